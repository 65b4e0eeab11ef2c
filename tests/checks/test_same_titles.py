"""same-titles: who gives its title up is found as 0.22.2 decides, and no number is given twice."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from checks.same_titles import CHECK
from hermes_doctor.engine.model import Bucket, Finding, Severity
from hermes_doctor.engine.rows import ask
from hermes_doctor.store import titles
from hermes_doctor.store.titles import base_of
from tests.checks.support import Planted, by_key, findings_of, once_a_release
from tests.checks.title_cases import CASES, DROP_INDEX, TitleCase, Titled, plant
from tests.oracle.home import CallError, Home
from tests.oracle.releases import CHAINS, Release, get
from tests.oracle.steps import call, open_store, sql
from tests.oracle.templates import LivedIn
from tests.store.views import view_of

STORES = ("0.13.0", "0.22.2")


def plant_cases(home: Home, version: str, cases: tuple[TitleCase, ...] = CASES) -> Planted[TitleCase]:
    now = time.time()
    chosen = plant(home, version, now, cases)
    return Planted(home, now, tuple(chosen), tuple(findings_of(home.store, CHECK, home=home.path, now=now)))


@pytest.fixture(scope="module")
def planted(oracle: None, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Planted[TitleCase]]:
    return once_a_release(plant_cases, tmp_path_factory)


def wrong_cases(cases: Sequence[TitleCase], findings: Sequence[Finding]) -> dict[str, Any]:
    """What was said and not wanted, or the other way: the new titles, None where there can be none."""
    said = {finding.key: finding.detail["number"] for finding in findings}
    wanted: dict[str, int | None] = {
        case.id(name): int(title.rpartition("#")[2]) for case in cases for name, title in case.renamed.items()
    }
    wanted |= {case.id(name): None for case in cases for name in case.refused}
    different = {key for key in said.keys() | wanted.keys() if said.get(key, "-") != wanted.get(str(key), "-")}
    return {str(key): said.get(key) for key in different}


@pytest.mark.parametrize("version", STORES)
def test_each_case_is_judged_right(planted: Callable[[str], Planted[TitleCase]], version: str) -> None:
    store = planted(version)
    assert wrong_cases(store.cases, store.findings) == {}
    for finding in store.findings:
        assert finding.severity is (Severity.ERROR if version == "0.13.0" else Severity.WARNING)
        refused = str(finding.key).startswith("no text")
        assert finding.bucket is (Bucket.REFUSED if refused else Bucket.UNSAFE)
        # Titles are private.
        private = {str(row.title) for case in store.cases for row in case.rows if row.title}
        assert not any(title in f"{finding.summary} {finding.action}" for title in private)
        assert set(finding.detail) == {"keeps", "count", "number"}


@pytest.mark.parametrize("version", ["0.13.0", "0.22.2"])
def test_rows_asked_about_one_by_one_are_judged_alike(
    planted: Callable[[str], Planted[TitleCase]], version: str
) -> None:
    store = planted(version)
    with view_of(store.home.store) as view:
        together = list(ask(CHECK, [row[0] for row in view.rows("SELECT id FROM sessions")], view))
    assert store.asked_one_by_one(CHECK) == by_key(together) == by_key(store.findings)


@pytest.mark.parametrize("chain", [("0.13.0",), ("0.22.2",), CHAINS[0]], ids="+".join)
def test_a_home_lived_in_has_no_equal_titles(lived_in: LivedIn, chain: tuple[str, ...]) -> None:
    """Not with the index, and not without it: it is the titles that are judged."""
    home = lived_in(*chain).home
    assert findings_of(home.store, CHECK, home=home.path) == []
    home.run(chain[-1], [open_store(), DROP_INDEX])
    assert findings_of(home.store, CHECK, home=home.path) == []


def test_an_index_of_that_name_that_is_not_unique_is_none(home: Home, oracle: None) -> None:
    """No release makes its own then, and so none fails; the titles are the same all the same."""
    plant(home, "0.18.2", time.time(), CASES[:1], index="CREATE INDEX idx_sessions_title_unique ON sessions(title)")
    home.run("0.18.2", [open_store()])
    (finding,) = findings_of(home.store, CHECK)
    assert (finding.key, finding.severity) == ("two: b", Severity.WARNING)


TWO = (CASES[0],)


@pytest.mark.parametrize("release", [get("0.13.0"), get("0.18.2")], ids=str)
def test_old_releases_cannot_open_such_a_store(home: Home, release: Release) -> None:
    plant(home, release, time.time(), TWO)
    (opened,) = home.run(release, [call("list_sessions_rich")], check=False)
    assert isinstance(opened, CallError)
    assert opened.kind == "IntegrityError"


def titles_of(home: Home, release: str) -> dict[str, Any]:
    (rows,) = home.run(release, [sql("SELECT id, title FROM sessions")])
    return dict(rows)


def test_newest_release_decides_alike(home: Home, oracle: None) -> None:
    """0.22.2 numbers a person's titles just so, and clears those that a program gave."""
    cases = tuple(case for case in CASES if not case.own)
    chosen = plant(home, "0.22.2", time.time(), cases)
    after = titles_of(home, "0.22.2")
    for case in chosen:
        for row in case.rows:
            wanted = None if row.name in case.cleared else case.renamed.get(row.name, row.title)
            assert after[case.id(row.name)] == wanted, (case.name, row.name)


def test_releases_between_clear_titles(home: Home, oracle: None) -> None:
    plant(home, "0.19.0", time.time(), TWO)
    assert titles_of(home, "0.19.0") == {"two: a": None, "two: b": "tea"}


# Deliberately wrong variants: each must get at least one case wrong.


def _newest(group: Sequence[Any]) -> Any:
    return max(group, key=lambda row: row.age)


def _oldest(group: Sequence[Any]) -> Any:
    return min(group, key=lambda row: row.age)


def _unranked(view: Any) -> Iterator[Any]:
    yield from (replace(row, rank=2) for row in _ROWS(view))


def _folded(view: Any) -> list[Any]:
    found = [row[0] for row in view.rows("SELECT title FROM sessions WHERE typeof(title) = 'text'")]
    return [title for title in found if sum(title.lower() == other.lower() for other in found) > 1]


def _folded_rows(view: Any) -> Iterator[Any]:
    yield from (
        replace(row, title=row.title.lower() if isinstance(row.title, str) else row.title) for row in _ROWS(view)
    )


_ROWS = titles._rows
VARIANTS: dict[str, dict[str, object]] = {
    "the newest keeps it": {"_keeper": _newest},
    "the oldest keeps it": {"_keeper": _oldest},
    "who gave it is not asked": {"_rows": _unranked},
    "capitals are the same": {"_repeated": _folded, "_rows": _folded_rows},
    "numbers that are taken are not looked for": {"_note_number": lambda _bases, _title: None},
    "capitals in numbers differ": {"_lower": lambda text: text},
    "a number belongs to the title": {"base_of": lambda title: title},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_wrong_variant_fails(
    planted: Callable[[str], Planted[TitleCase]], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    store = planted("0.22.2")
    for what, wrong in VARIANTS[name].items():
        monkeypatch.setattr(titles, what, wrong)
    assert wrong_cases(store.cases, findings_of(store.home.store, CHECK)) != {}


def test_titles_are_taken_apart_as_the_releases_do(home: Home, oracle: None) -> None:
    texts = ["tea", "tea #2", "tea #2 #3", "tea #", "tea #x", "#4", " #4", "tea  #12", "tea#3", "ü #٣"]
    steps = [call("get_next_title_in_lineage", text) for text in texts]
    assert [base_of(text) for text in texts] == home.run("0.22.2", steps)


def test_rows_in_another_order_are_numbered_alike(home: Home, oracle: None) -> None:
    rows = (Titled("a", "jam", 3.0), Titled("c", "jam", 6.0), Titled("b", "jam", 9.0))
    case = TitleCase("turned", rows, {"c": "jam #2", "a": "jam #3"})
    store = plant_cases(home, "0.19.0", (case,))
    assert wrong_cases(store.cases, store.findings) == {}
