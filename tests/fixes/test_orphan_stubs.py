"""orphan-stubs' fix: the empty rows go, and nothing but them; undone, they are there again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from checks.orphan_stubs import CHECK
from fixes.orphan_stubs import FIX
from hermes_doctor.engine.cure import Fix, Mending
from hermes_doctor.engine.model import Finding, Safety
from tests.checks.test_orphan_stubs import CASES, Planted, plant
from tests.fixes.support import Patient, change_meanwhile, outcome
from tests.oracle.home import Home
from tests.oracle.releases import NEWEST, Release, get
from tests.oracle.steps import call
from tests.whole.identical import Image, difference, image_of, index_faults

#: One case has a time ahead of the clock: where one is, nothing is deleted at all.
TRUSTED = [case for case in CASES if case.name != "begins tomorrow"]


#: A few of them, among them one that is unsafe, for what has to be done many times.
FEW = ("ended tui", "ended cron", "ended webui", "open cli", "child of a closed parent", "titled", "only continuation")
SHORT = [case for case in CASES if case.name in FEW]


def patient_of(planted: Planted) -> Patient:
    return Patient(planted.home.store, planted.home.path)


def wrong(planted: Planted, fix: Fix, *, unsafe: bool = True) -> list[str]:
    """Mend with that fix and take it back; say what is not as it must be."""
    store, patient = planted.home.store, patient_of(planted)
    before = image_of(store)
    done = patient.mend(checks=[CHECK], fixes=[fix], unsafe=unsafe)
    assert done.outcome in ("fixed", "partly-fixed"), outcome(done)
    wanted = (Safety.SAFE, Safety.UNSAFE) if unsafe else (Safety.SAFE,)
    gone = {session for session, case in planted.cases.items() if case.expected in wanted}
    lines = [line for line in difference(before, image_of(store)) if line not in _gone(gone)]
    lines += [session for session in gone if session in image_of(store).ids()]
    if done.run is not None:
        assert outcome(patient.undo(done.run)) == ("fixed", 0, None)
    return lines + difference(before, image_of(store))


def _gone(sessions: set[str]) -> set[str]:
    return {f"sessions {session.encode()!r}: the row is gone" for session in sessions}


@pytest.mark.parametrize("release", [get("0.13.0"), get("0.19.0"), NEWEST], ids=str)
def test_every_case_is_deleted_once_and_taken_back(home: Home, release: Release) -> None:
    planted = plant(home, release, TRUSTED)
    before = image_of(home.store)
    done = patient_of(planted).mend(checks=[CHECK], fixes=[FIX])
    assert outcome(done) == ("fixed", 0, None)
    assert planted.named(patient_of(planted).findings([CHECK])) == {}
    gone = {session for session, case in planted.cases.items() if case.expected is not None}
    assert set(difference(before, image_of(home.store))) == _gone(gone)
    again = patient_of(planted).mend(checks=[CHECK], fixes=[FIX])
    assert (outcome(again), again.run) == (("nothing-to-do", 0, None), None)
    assert index_faults(home.store) == []
    assert outcome(patient_of(planted).undo(done.run)) == ("fixed", 0, None)
    assert difference(before, image_of(home.store)) == []
    assert planted.named(patient_of(planted).findings([CHECK])) == planted.expected


def _deleting(*statements: str) -> Callable[[Mending, Finding], None]:
    def mend(mending: Mending, finding: Finding) -> None:
        for statement in statements:
            mending.connection.execute(statement, (mending.single(finding.key),))

    return mend


_DELETE = "DELETE FROM sessions WHERE id = ?"
VARIANTS = {
    "writes to its neighbours": ("UPDATE sessions SET message_count = 0 WHERE id <> ?", _DELETE),
    "hides it instead": ("UPDATE sessions SET source = 'tool', end_reason = 'hidden' WHERE id = ?",),
    "ends its parent": (
        "UPDATE sessions SET end_reason = 'cut' WHERE id = (SELECT parent_session_id FROM sessions WHERE id = ?)",
        _DELETE,
    ),
}


def test_every_wrong_fix_fails_a_case(home: Home) -> None:
    planted = plant(home, NEWEST, SHORT)
    assert len(planted.cases) == len(FEW)
    assert wrong(planted, FIX, unsafe=False) == []
    assert wrong(planted, FIX) == []
    # Each is taken back before the next one's turn.
    passed = [name for name, mend in VARIANTS.items() if wrong(planted, replace(FIX, mend=_deleting(*mend))) == []]
    assert passed == []


TAKES_ALL = replace(FIX, mend=_deleting("DELETE FROM messages WHERE session_id = ?", _DELETE))


@pytest.mark.parametrize("release", [get("0.13.0"), NEWEST], ids=str)
def test_a_row_that_came_to_life_is_left(home: Home, release: Release) -> None:
    planted = plant(home, release, [case for case in CASES if case.name == "ended tui"])
    patient = patient_of(planted)
    (finding,) = patient.findings([CHECK])
    said = (
        "INSERT INTO messages (session_id, role, content, timestamp) VALUES (?, 'user', 'hello', 1790000000.0)",
        (str(finding.key),),
    )
    assert change_meanwhile(patient, FIX, finding, said) == "RowMovedError"
    assert len(image_of(home.store).table("messages")) == 1
    assert len(home.conversation(release, str(finding.key))) == 1
    assert change_meanwhile(patient, TAKES_ALL, finding) is None
    assert image_of(home.store).table("messages") == []


@pytest.mark.parametrize("release", [get("0.13.0"), NEWEST], ids=str)
def test_a_row_that_got_a_child_is_left(home: Home, release: Release) -> None:
    planted = plant(home, release, [case for case in CASES if case.name == "ended tui"])
    patient = patient_of(planted)
    (finding,) = patient.findings([CHECK])
    home.run(release, [call("create_session", "child", "cli", parent_session_id=str(finding.key))])
    before: Image = image_of(home.store)
    assert change_meanwhile(patient, FIX, finding) == "RowMovedError"
    assert difference(before, image_of(home.store)) == []
    gone = ("DELETE FROM sessions WHERE id = ?", ("child",))
    assert change_meanwhile(patient, FIX, finding, gone, ("DELETE FROM sessions", ())) == "RowMovedError"
