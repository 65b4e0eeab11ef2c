"""same-titles' fix: titles are numbered and none is lost, and every release opens the store again."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from checks.same_titles import CHECK
from fixes.same_titles import FIX
from hermes_doctor.engine.cure import Fix, Mending
from hermes_doctor.engine.model import Finding
from tests.checks.support import Planted
from tests.checks.test_same_titles import plant_cases
from tests.checks.title_cases import CASES, TitleCase
from tests.fixes.support import Patient, change_meanwhile, outcome, there_and_back
from tests.oracle.home import Home
from tests.oracle.steps import call, sql
from tests.whole.identical import Image, difference, image_of

#: What no release numbers cannot be in a store that is to be opened.
NUMBERED = tuple(case for case in CASES if not case.refused)


@pytest.fixture(scope="module")
def planted(oracle: None, tmp_path_factory: pytest.TempPathFactory) -> Planted[TitleCase]:
    """The cases in a store of the newest release; each test leaves it as it found it."""
    return plant_cases(Home(tmp_path_factory.mktemp("planted") / "home"), "0.22.2")


def titles_in(image: Image) -> dict[Any, Any]:
    return {row["id"]: row["title"] for row in image.table("sessions")}


def wrong(planted: Planted[TitleCase], fix: Fix, once: Sequence[Finding] | None = None) -> list[Any]:
    """Mend with that fix and take it back; say what is not as it must be."""
    patient = Patient(planted.home.store, planted.home.path)
    before, after, back = there_and_back(patient, CHECK, fix, image_of, once=once)
    wanted = titles_in(before) | {
        case.id(name).encode(): title.encode() for case in planted.cases for name, title in case.renamed.items()
    }
    lines: list[Any] = sorted(titles_in(after).items() ^ wanted.items(), key=repr)
    lines += [line for line in difference(before, after) if ": title " not in line]
    return lines + difference(before, back)


def test_every_case_is_numbered_once_and_taken_back(planted: Planted[TitleCase]) -> None:
    assert wrong(planted, FIX, planted.findings) == []


@pytest.mark.parametrize("version", ["0.13.0", "0.18.2", "0.22.2"])
def test_the_release_opens_the_store_and_keeps_every_title(home: Home, version: str) -> None:
    planted = plant_cases(home, version, NUMBERED)
    assert outcome(Patient(home.store, home.path).mend(checks=[CHECK], fixes=[FIX])) == ("fixed", 0, None)
    mended = titles_in(image_of(home.store))
    index = sql("SELECT count(*) FROM sqlite_schema WHERE name = 'idx_sessions_title_unique'")
    by_title = [call("get_session_by_title", title.decode()) for title in mended.values() if title]
    made, *found = home.run(version, [index, *by_title])
    assert made == [[1]]
    assert [row["id"].encode() for row in found] == [own for own, title in mended.items() if title]
    assert titles_in(image_of(home.store)) == mended
    # Nothing that was called something is called nothing now.
    assert sum(title is not None for title in mended.values()) == sum(
        row.title is not None for case in planted.cases for row in case.rows
    )


def test_without_the_fix_titles_are_lost(home: Home, oracle: None) -> None:
    plant_cases(home, "0.19.0", CASES[:1])
    untouched = Home(shutil.copytree(home.path, home.path.with_name("untouched")))
    Patient(home.store, home.path).mend(checks=[CHECK], fixes=[FIX])
    for each, lost in ((untouched, 1), (home, 0)):
        each.run("0.19.0", [call("list_sessions_rich")])
        assert list(titles_in(image_of(each.store)).values()).count(None) == lost


def test_what_was_renamed_meanwhile_is_left(home: Home, oracle: None) -> None:
    planted = plant_cases(home, "0.22.2", CASES[:1])
    (finding,) = planted.findings
    patient = Patient(home.store, home.path)
    for statement in (
        "UPDATE sessions SET title = 'other' WHERE id = 'two: b'",
        "UPDATE sessions SET title = NULL WHERE id = 'two: a'",
        "INSERT INTO sessions(id, source, title, started_at) VALUES ('x', 'cli', 'tea #2', 1.0)",
    ):
        before = image_of(home.store)
        undo = ("UPDATE sessions SET title = 'tea' WHERE id IN ('two: a', 'two: b')", ())
        assert change_meanwhile(patient, FIX, finding, undo, (statement, ())) == "RowMovedError"
        assert titles_in(before).keys() <= titles_in(image_of(home.store)).keys()


# Deliberately wrong variants of the fix.


def _running(statement: str) -> Callable[[Mending, Finding], None]:
    def mend(mending: Mending, finding: Finding) -> None:
        mending.connection.execute(statement, {"id": mending.single(finding.key), "n": finding.detail["number"]})

    return mend


VARIANTS = {
    "clears it": "UPDATE sessions SET title = NULL WHERE id = :id AND :n > 0",
    "always the second": "UPDATE sessions SET title = title || ' #2' WHERE id = :id AND :n > 0",
    "the number behind the number": "UPDATE sessions SET title = title || ' #' || :n WHERE id = :id",
    "says that a person did it": (
        "UPDATE sessions SET title = rtrim(title, ' #0123456789') || ' #' || :n, title_source = 'user' WHERE id = :id"
    ),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_wrong_variant_fails(planted: Planted[TitleCase], name: str) -> None:
    assert wrong(planted, replace(FIX, mend=_running(VARIANTS[name]))) != []
