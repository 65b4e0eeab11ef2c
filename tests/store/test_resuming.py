"""Where a resume ends and what it loads: what the releases themselves answer, on their own stores."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from hermes_doctor.store import resuming
from hermes_doctor.store.resuming import compression_tip, loaded_with, resume_target
from hermes_doctor.store.view import StoreView
from tests.oracle.home import CallError, Home
from tests.oracle.releases import CHAINS, Release, get
from tests.oracle.steps import Step, call, sql, sql_many
from tests.oracle.templates import LivedIn
from tests.store.views import view_of

RELEASES = [get(version) for version in ("0.13.0", "0.17.0", "0.19.0", "0.20.6", "0.21.5", "0.22.2")]

#: Read when the module is: the times of a family only need to be apart.
NOW = time.time()

#: More than 0.21.5 and older follow to a tip (100) and on from there (31).
LINKS = 160


@dataclass
class Family:
    """Rows of sessions by name: (columns, messages). Times are hours before NOW."""

    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    said: dict[str, int] = field(default_factory=dict)

    def add(
        self,
        name: str,
        parent: str | None = None,
        *,
        start: float,
        end: float | None = None,
        said: int = 1,
        **more: Any,
    ) -> None:
        if "model_config" in more:
            more["model_config"] = json.dumps(more["model_config"])
        ended = None if end is None else NOW - end * 3600
        self.rows[name] = {
            "source": "cli",
            "started_at": NOW - start * 3600,
            "ended_at": ended,
            "end_reason": None if end is None else "compression",
            "parent_session_id": parent,
        } | more
        self.said[name] = said


def family() -> Family:
    """Every way of going on that the releases tell apart, in one store."""
    made = Family()
    add = made.add
    # A plain chain; one that ends in an empty row; one whose child began before the stamp.
    add("a1", start=90, end=80)
    add("a2", "a1", start=80, end=70)
    add("a3", "a2", start=70)
    add("e1", start=90, end=80)
    add("e2", "e1", start=80, said=0)
    add("b1", start=90, end=80)
    add("b2", "b1", start=81)
    # Several continuations: compressed in turn, open, ended; and by their last use.
    add("s1", start=90, end=80)
    add("s-ended", "s1", start=60, end=50, end_reason="cli_close")
    add("s-open", "s1", start=79)
    add("s-compressed", "s1", start=79.5, end=79)
    add("t1", start=90, end=80)
    add("t-early", "t1", start=79, said=2)
    add("t-late", "t1", start=70, said=0)
    # Beside the continuation: a branch, a delegate, a tool's run, marks that name others, a reset child.
    for name, marks in (("branch", {"_branched_from": "m1"}), ("delegate", {"_delegate_from": "m1"})):
        add(f"m-{name}", "m1", start=60, model_config=marks)
    add("m1", start=90, end=80)
    add("m-tool", "m1", start=59, source="tool")
    add("m2", "m1", start=80)
    add("i1", start=90, end=80)
    add("i2", "i1", start=80, end=70, model_config={"_branched_from": "elsewhere"})
    add("i3", "i2", start=70)
    add("r1", start=90, end=80, session_key="agent:main:telegram:dm:1")
    add("r-marked", "r1", start=70, session_key="agent:main:telegram:dm:1", model_config={"_reset_from": "r1"})
    add("l1", start=90, end=80, end_reason="session_reset", session_key="agent:main:telegram:dm:2")
    add("l2", "l1", start=80, session_key="agent:main:telegram:dm:2")
    # A child of a parent that was not compressed; an empty parent of one; branched the old way.
    add("p1", start=90, end=80, end_reason="cli_close")
    add("p2", "p1", start=79)
    add("h1", start=90, said=0)
    add("h2", "h1", start=80, said=0)
    add("h3", "h2", start=79)
    add("o1", start=90, end=80, end_reason="branched")
    add("o2", "o1", start=80, model_config={"_branched_from": "o1"})
    # Longer than most releases follow.
    for link in range(LINKS):
        add(f"z{link:03}", f"z{link - 1:03}" if link else None, start=90 - link / 10, end=90 - link / 10)
    return made


def asked() -> list[str]:
    """The sessions that are asked about: of the long chain only some, as each is a long walk."""
    return [name for name in family().rows if name[0] != "z" or int(name[1:]) % 50 == 0]


def planted(release: Release) -> list[Step]:
    """The steps that plant the family: no release makes most of it, so SQL does."""
    made = family()
    kept = {"session_key"} if not release.since("0.18.0") else set()
    steps: list[Step] = []
    for name in sorted(made.rows, key=lambda each: -made.rows[each]["started_at"]):
        row = {"id": name} | {column: cell for column, cell in made.rows[name].items() if column not in kept}
        steps.append(sql("PRAGMA foreign_keys = OFF"))
        marks = ", ".join("?" for _ in row)
        steps.append(sql(f"INSERT INTO sessions ({', '.join(row)}) VALUES ({marks})", *row.values()))
    said = [[name, made.rows[name]["started_at"] + n] for name, count in made.said.items() for n in range(count)]
    steps.append(
        sql_many("INSERT INTO messages (session_id, role, content, timestamp) VALUES (?, 'user', 'x', ?)", said)
    )
    return steps


@dataclass(frozen=True)
class Answers:
    """What a release says of every session: its tip, what a resume opens, and how many sessions are counted."""

    store: Path
    tips: dict[str, str]
    resumes: dict[str, str]
    counted: dict[str, int]


@pytest.fixture(scope="module")
def ask(oracle: None, shared_folder: Path) -> Callable[[Release], Answers]:
    """Asks a release about all of the family, once per test run."""

    def answers(release: Release) -> Answers:
        folder = shared_folder / "resuming" / release.version
        folder.mkdir(parents=True, exist_ok=True)
        home, kept = Home(folder / "home"), folder / "answers.json"
        with FileLock(folder / "lock"):
            if not kept.exists():
                names = asked()
                counts = "get_resume_message_count" if release.since("0.20.6") else "get_session"
                steps = [
                    call(method, name)
                    for method in ("get_compression_tip", "resolve_resume_session_id", counts)
                    for name in names
                ]
                plant = planted(release)
                given = home.run(release, [*plant, *steps])[len(plant) :]
                assert not [value for value in given if isinstance(value, CallError)]
                parts = [dict(zip(names, given[n * len(names) :], strict=False)) for n in range(3)]
                kept.write_text(json.dumps(parts))
        tips, resumes, counted = json.loads(kept.read_text())
        return Answers(home.store, tips, resumes, counted)

    return answers


@pytest.mark.parametrize("release", RELEASES, ids=str)
def test_it_ends_where_the_release_says(release: Release, ask: Callable[[Release], Answers]) -> None:
    said = ask(release)
    with view_of(said.store) as view:
        assert {name: compression_tip(view, name) for name in said.tips} == said.tips
        assert {name: resume_target(view, name) for name in said.resumes} == said.resumes


@pytest.mark.parametrize("release", RELEASES[3:], ids=str)
def test_it_loads_what_the_release_counts(release: Release, ask: Callable[[Release], Answers]) -> None:
    said = ask(release)
    made = family().said
    with view_of(said.store) as view:
        counted = {name: sum(made[str(each)] for each in loaded_with(view, name)) for name in said.counted}
    assert counted == said.counted


@pytest.mark.parametrize("life", [("0.16.0",), ("0.22.2",), CHAINS[1]], ids="→".join)
def test_it_ends_where_the_release_says_in_a_home_that_was_lived_in(lived_in: LivedIn, life: Sequence[str]) -> None:
    home = lived_in(*life).home
    ids = [row[0] for row in home.ask(life[-1], sql("SELECT id FROM sessions"))]
    given = home.run(life[-1], [call("resolve_resume_session_id", session) for session in ids])
    with view_of(home.store) as view:
        assert [resume_target(view, session) for session in ids] == given


def _always_itself(_view: StoreView, session: Any) -> Any:
    return session


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("_BY_MARKS", 16),  # marks are read from 0.17.0 on
        ("_PAST_RESETS", 27),
        ("_NO_RESET_TIP", 26),
        ("_TIP_FIRST", 11),
        ("_LONG_TIP_LINKS", 100),
        ("_next_by_time", _always_itself),
        ("_newest_plain_child", _always_itself),
    ],
)
def test_wrong_variants_fail(
    name: str, wrong: Any, ask: Callable[[Release], Answers], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resuming, name, wrong)
    assert any(_differs(ask(release)) for release in RELEASES)


def _differs(said: Answers) -> bool:
    with view_of(said.store) as view:
        resumes = {each: resume_target(view, each) for each in said.resumes}
        tips = {each: compression_tip(view, each) for each in said.tips}
    return (resumes, tips) != (said.resumes, said.tips)
