"""oversize-chats: what the releases themselves refuse, at the edge of a small limit, and wrong variants of it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apsw
import pytest
from filelock import FileLock

from checks.oversize_chats import CHECK, EXPORT_SETTING, RESUME_SETTING
from hermes_doctor.engine.model import Finding, RelationRule
from hermes_doctor.host.settings import Settings
from hermes_doctor.store import sizes
from tests.checks.support import findings_of
from tests.oracle.home import CallError, Home
from tests.oracle.releases import Release, get
from tests.oracle.steps import Step, call, sql_many
from tests.store.views import view_of

#: The limits that the homes of these tests set.
RESUME, EXPORT = 20, 12

LIMITED = [get("0.20.6"), get("0.21.5"), get("0.22.2")]
OLDER = [get("0.13.0"), get("0.18.2"), get("0.20.0")]


@dataclass
class Chats:
    """Collects sessions: each row's columns, and how many rows it has active, compacted and rewound."""

    steps: list[Step] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

    def add(
        self, name: str, active: int, compacted: int = 0, rewound: int = 0, *, release: Release, **columns: Any
    ) -> None:
        self.names.append(name)
        self.steps.append(call("create_session", name, "cli", model="m", **columns))
        rows = [[name, 1, 0]] * active
        if release.since("0.18.0"):
            rows += [[name, 0, 1]] * compacted + [[name, 0, 0]] * rewound
            insert = "INSERT INTO messages (session_id, role, content, timestamp, active, compacted)"
            self.steps.append(
                sql_many(f"{insert} VALUES (?, 'user', 'x', 1790000000, ?, ?)", [list(row) for row in rows])
            )
        else:
            insert = "INSERT INTO messages (session_id, role, content, timestamp)"
            self.steps.append(sql_many(f"{insert} VALUES (?, 'user', 'x', 1790000000)", [[row[0]] for row in rows]))


def chats(release: Release) -> Chats:
    made = Chats()

    def add(name: str, *rows: int, ends: str | None = None, **columns: Any) -> None:
        made.add(name, *rows, release=release, **columns)
        if ends:
            made.steps.append(call("end_session", name, ends))

    add("at the limit", RESUME)
    add("over the limit", RESUME + 1)
    add("at the export limit", EXPORT)
    add("over the export limit", EXPORT + 1)
    add("compacted", 1, RESUME)
    add("rewound", 1, 0, RESUME)
    add("chain-1", 8, ends="compression")
    add("chain-2", 8, ends="compression", parent_session_id="chain-1")
    add("chain-3", 5, parent_session_id="chain-2")
    add("short-1", 8, ends="compression")
    add("short-2", 8, parent_session_id="short-1")
    add("forked", EXPORT, ends="branched")
    add("branch", EXPORT, parent_session_id="forked", model_config={"_branched_from": "forked"})
    add("delegating", EXPORT)
    add("delegate", EXPORT, parent_session_id="delegating", model_config={"_delegate_from": "delegating"})
    add("reset-1", EXPORT, ends="session_reset")
    add("reset-2", EXPORT, parent_session_id="reset-1", model_config={"_reset_from": "reset-1"})
    return made


#: Sessions that only the doctor judges otherwise than the release, which adds a parent's messages to a delegate's
#: (0.20.6, 0.21.5): nobody resumes these.
RUNS = {"delegate"}


@dataclass(frozen=True)
class Judged:
    """A home, and which settings its release refuses each session for, on a resume that ends there or an export."""

    home: Home
    refused: dict[str, list[str]]

    def found(self, **settings: Any) -> dict[str, Finding]:
        return {str(f.key): f for f in findings_of(self.home.store, CHECK, home=self.home.path, **settings)}


@pytest.fixture(scope="module")
def judge(oracle: None, shared_folder: Path) -> Callable[[Release], Judged]:
    """Homes with all chats, built and asked once per test run."""

    def make(release: Release) -> Judged:
        folder = shared_folder / "oversize" / release.version
        folder.mkdir(parents=True, exist_ok=True)
        home, kept = Home(folder / "home"), folder / "refused.json"
        with FileLock(folder / "lock"):
            if not kept.exists():
                config = f"sessions: {{max_resume_messages: {RESUME}, max_export_messages: {EXPORT}}}\n"
                (home.path / "config.yaml").write_text(config)
                made = chats(release)
                limited = release.since("0.20.6")
                asked = [call("resolve_resume_session_id", name) for name in made.names]
                if limited:
                    asked += [call("assert_resume_safe", name) for name in made.names]
                    asked += [call("assert_export_safe", name) for name in made.names]
                given = home.run(release, [*made.steps, *asked], check=False)[len(made.steps) :]
                count = len(made.names)
                refused: dict[str, list[str]] = {}
                for place, name in enumerate(made.names if limited else []):
                    here = given[place] == name
                    resume, export = (isinstance(given[place + n * count], CallError) for n in (1, 2))
                    said = [RESUME_SETTING] if resume and here and name not in RUNS else []
                    said += [EXPORT_SETTING] if export else []
                    if said:
                        refused[name] = said
                kept.write_text(json.dumps(refused))
        return Judged(home, json.loads(kept.read_text()))

    return make


@pytest.mark.parametrize("release", LIMITED, ids=str)
def test_it_finds_what_the_release_refuses(release: Release, judge: Callable[[Release], Judged]) -> None:
    judged = judge(release)
    found = _settings_found(judged)
    assert found == judged.refused
    assert {"over the limit", "chain-3", "over the export limit"} <= found.keys()
    assert not {"at the limit", "short-2", "at the export limit"} & {
        name for name, settings in found.items() if settings == [RESUME_SETTING]
    }


def test_a_finding_says_how_many_and_which_setting_lifts_it(judge: Callable[[Release], Judged]) -> None:
    found = judge(get("0.22.2")).found()
    chain = found["chain-3"]
    assert chain.summary == (
        "hermes refuses to resume it: 21 messages in 3 sessions, and sessions.max_resume_messages allows 20"
        " (0 lifts the limit)"
    )
    assert (chain.severity.label, chain.fix, chain.refusal) == ("warning", "none", None)
    assert chain.detail["last_session_alone"] == 5
    export = found["over the export limit"]
    assert export.summary.startswith("hermes refuses to export it as JSON: 13 messages, and sessions.max_export_")
    assert export.severity.label == "info"


@pytest.mark.parametrize("release", OLDER, ids=str)
def test_older_releases_have_no_limit_so_it_is_for_information(
    release: Release, judge: Callable[[Release], Judged]
) -> None:
    found = judge(release).found()
    assert {"over the limit", "chain-3"} <= found.keys()
    assert {finding.severity.label for finding in found.values()} == {"info"}
    assert found["chain-3"].summary.startswith("releases from 0.20.6 refuse to resume it: 21 messages in 3 sessions")


@pytest.mark.parametrize(
    ("config", "number"),
    [("{}", 0), ("{max_resume_messages: 0, max_export_messages: 0}", 0), ("{max_resume_messages: 0}", 0)],
)
def test_without_a_limit_or_under_the_default_nothing_is_found(
    judge: Callable[[Release], Judged], config: str, number: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "config.yaml").write_text(f"sessions: {config}\n")
    store = judge(get("0.22.2")).home.store
    assert len(findings_of(store, CHECK, home=tmp_path)) == number
    # Alone, the default counts; a smaller one finds them.
    assert findings_of(store, CHECK) == []
    monkeypatch.setattr(sizes, "DEFAULT_LIMIT", RESUME)
    assert {str(f.key) for f in findings_of(store, CHECK)} >= {"over the limit", "chain-3"}


@pytest.mark.parametrize("release", [get("0.20.6"), get("0.22.2")], ids=str)
def test_asked_about_single_rows_it_says_the_same(release: Release, judge: Callable[[Release], Judged]) -> None:
    judged = judge(release)
    assert isinstance(CHECK.rule, RelationRule)
    with view_of(judged.home.store, home=judged.home.path) as view:
        everything = {finding.key: finding for finding in CHECK.rule.find(view, None)}
        assert everything
        for (key,) in view.rows("SELECT id FROM sessions"):
            assert list(CHECK.rule.find(view, [key])) == [f for f in everything.values() if f.key == key]


def test_a_loop_and_odd_ids_do_no_harm(judge: Callable[[Release], Judged], tmp_path: Path) -> None:
    store = tmp_path / "state.db"
    shutil.copy(judge(get("0.22.2")).home.store, store)
    with apsw.Connection(str(store)) as connection:
        connection.execute("UPDATE sessions SET parent_session_id = 'chain-3' WHERE id = 'chain-1'")
        connection.execute("INSERT INTO sessions (id, source, started_at) VALUES (x'00ff', 'cli', 1)")
        connection.execute("INSERT INTO sessions (id, source, started_at) VALUES (NULL, 'cli', 1)")
        connection.executemany(
            "INSERT INTO messages (session_id, role, timestamp) VALUES (x'00ff', 'user', ?)", [(n,) for n in range(30)]
        )
    connection.close()
    with view_of(store) as view:
        view.settings = Settings(read=True, max_resume_messages=RESUME, max_export_messages=0)
        assert isinstance(CHECK.rule, RelationRule)
        keys = {finding.key for finding in CHECK.rule.find(view, None)}
    assert b"\x00\xff" in keys
    assert "over the limit" in keys


@pytest.mark.parametrize(
    ("module_name", "wrong"),
    [
        ("resume_target", lambda _view, session: f"not {session}"),
        ("loaded_with", lambda _view, session: [session]),
        ("_loaded", lambda _view: "1"),
        ("_EXPORTS_ALL", 99),
        ("_WITH_COMPACTED", 99),
        ("_is_a_run", lambda _view, _session: True),
        ("_is_a_run", lambda _view, _session: False),
    ],
)
def test_wrong_variants_fail(
    module_name: str, wrong: Any, judge: Callable[[Release], Judged], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sizes, module_name, wrong)
    assert any(_settings_found(judged) != judged.refused for judged in map(judge, LIMITED))


def _settings_found(judged: Judged) -> dict[str, object]:
    return {name: finding.detail["settings"] for name, finding in judged.found().items()}
