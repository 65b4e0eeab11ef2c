"""lineage-gaps' fix: each kind of gap is closed in its own way, and what is only reported stays as it is."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from checks.lineage_gaps import CHECK
from fixes.lineage_gaps import FIX
from hermes_doctor.engine.cure import Fix, Mending
from hermes_doctor.engine.model import Bucket, Finding
from hermes_doctor.store.lineage_faults import Kind
from tests.checks import lineage_cases
from tests.checks.lineage_cases import CASES, Case
from tests.fixes.support import Patient, change_meanwhile, outcome
from tests.oracle.faults import planting
from tests.oracle.home import Home
from tests.oracle.releases import NEWEST, Release, get
from tests.oracle.steps import call
from tests.whole.identical import Image, difference, image_of

#: Where a time is ahead of the clock nothing is ended or deleted; the longest chains only cost time here.
TRUSTED = tuple(c for c in CASES if "future" not in c.name and len(c.sessions) < 200)


@dataclass
class Planted:
    home: Home
    cases: tuple[Case, ...]

    @property
    def patient(self) -> Patient:
        return Patient(self.home.store, self.home.path)

    def wanted(self, before: Image, ended: float, *, unsafe: bool) -> dict[bytes, dict[str, Any]]:
        """The rows of sessions as they must be; ``ended``: the moment of the run."""
        rows: dict[bytes, dict[str, Any]] = {bytes(row["id"]): dict(row) for row in before.table("sessions")}  # type: ignore[call-overload]  # ids are text
        reap = {"ended_at": ended, "end_reason": b"startup_orphan_reap"}
        for case in self.cases:
            for name, expected in case.found.items():
                if expected.bucket is not Bucket.SAFE and not (unsafe and expected.bucket is Bucket.UNSAFE):
                    continue
                row = rows[case.id(name).encode()]
                if expected.kind in (Kind.OWN_PARENT, Kind.MISSING_PARENT):
                    row["parent_session_id"] = None
                if expected.kind is Kind.EMPTY_CONTINUATION:
                    del rows[case.id("stub").encode()]
                # One that was its own parent, and compressed, goes on nowhere once it is detached.
                if expected.kind in (Kind.EMPTY_CONTINUATION, Kind.CLOSED) or row["end_reason"] == b"compression":
                    row |= {"ended_at": None, "end_reason": None} if expected.reopen else reap
        return rows


def plant(home: Home, release: Release) -> Planted:
    return Planted(home, lineage_cases.plant(home, release, time.time(), TRUSTED))


def wrong(planted: Planted, fix: Fix, *, unsafe: bool = True) -> list[str]:
    """Mend with that fix and take it back; say what is not as it must be."""
    store, patient = planted.home.store, planted.patient
    before = image_of(store)
    begun = time.time()
    done = patient.mend(checks=[CHECK], fixes=[fix], unsafe=unsafe)
    assert done.outcome in ("fixed", "partly-fixed"), outcome(done)
    after = image_of(store)
    known = {row["id"]: row["ended_at"] for row in before.table("sessions")}
    new = {
        row["ended_at"]
        for row in after.table("sessions")
        if row["id"] in known and row["ended_at"] != known[row["id"]] and row["ended_at"] is not None
    }
    # One moment for the whole run, and it is now.
    at = max((each for each in new if isinstance(each, float)), default=begun)
    bad = [f"ended at {new}"] if new - {at} or not begun <= at <= time.time() else []
    rows = {row["id"]: row for row in after.table("sessions")}
    wanted = planted.wanted(before, at, unsafe=unsafe)
    bad += [str(key) for key in rows.keys() | wanted.keys() if rows.get(key) != wanted.get(key)]  # type: ignore[call-overload]  # ids are text
    bad += [table for table in after.rows if table != "sessions" and after.rows[table] != before.rows[table]]
    if done.run is not None:
        assert outcome(patient.undo(done.run)) == ("fixed", 0, None)
    return bad + difference(before, image_of(store))


@pytest.mark.parametrize("release", [get("0.13.0"), get("0.20.6"), NEWEST], ids=str)
def test_every_case_is_mended_once_and_taken_back(home: Home, release: Release) -> None:
    planted = plant(home, release)
    assert wrong(planted, FIX, unsafe=False) == []
    assert wrong(planted, FIX) == []
    done = planted.patient.mend(checks=[CHECK], fixes=[FIX])
    assert outcome(done) == ("fixed", 0, None)
    assert [f for f in planted.patient.findings([CHECK]) if f.bucket in (Bucket.SAFE, Bucket.UNSAFE)] == []
    again = planted.patient.mend(checks=[CHECK], fixes=[FIX])
    assert (outcome(again), again.run) == (("nothing-to-do", 0, None), None)


Mend = Callable[[Mending, Finding], None]


def _instead(kinds: tuple[Kind, ...], *statements: str) -> Mend:
    """These kinds are mended by other statements."""

    def mend(mending: Mending, finding: Finding) -> None:
        if finding.detail["kind"] not in kinds:
            FIX.mend(mending, finding)
            return
        values = {"session": mending.single(finding.key), "now": mending.view.now}
        for statement in statements:
            mending.connection.execute(statement, values | {"empty": str(finding.detail.get("empty"))})

    return mend


REAP = "UPDATE sessions SET ended_at = :now, end_reason = 'startup_orphan_reap' WHERE id = :session"
VARIANTS: dict[str, Mend] = {
    "keeps the old end": _instead(
        (Kind.CLOSED,), "UPDATE sessions SET end_reason = 'startup_orphan_reap' WHERE id = :session"
    ),
    "opens every parent": _instead(
        (Kind.CLOSED,), "UPDATE sessions SET ended_at = NULL, end_reason = NULL WHERE id = :session"
    ),
    "opens none": _instead((Kind.CLOSED,), REAP),
    "detaches all children": _instead((Kind.MISSING_PARENT,), "UPDATE sessions SET parent_session_id = NULL WHERE 1"),
    "makes up a parent": _instead(
        (Kind.MISSING_PARENT,),
        "INSERT INTO sessions (id, source, started_at) SELECT parent_session_id, 'recovered', :now FROM sessions"
        " WHERE id = :session AND parent_session_id IS NOT NULL",
    ),
    "keeps the empty row": _instead((Kind.EMPTY_CONTINUATION,), REAP),
    "closes the parent for good": _instead(
        (Kind.EMPTY_CONTINUATION,),
        "DELETE FROM sessions WHERE id = :empty",
        "UPDATE sessions SET end_reason = 'cli_close' WHERE id = :session",
    ),
}


def test_every_wrong_fix_fails_a_case(home: Home) -> None:
    planted = plant(home, NEWEST)
    # Each is taken back before the next one's turn.
    passed = [name for name, mend in VARIANTS.items() if wrong(planted, replace(FIX, mend=mend)) == []]
    assert passed == []


def _one(home: Home, release: Release, kind: Any) -> tuple[Patient, Finding, str, str | None]:
    with planting(home, release) as plant_one:
        session, other = plant_one.lineage_gap(kind)
    patient = Patient(home.store, home.path)
    (finding,) = [f for f in patient.findings([CHECK]) if f.key == session]
    return patient, finding, session, other


@pytest.mark.parametrize("release", [get("0.13.0"), NEWEST], ids=str)
def test_a_parent_that_came_back_keeps_its_child(home: Home, release: Release) -> None:
    patient, finding, session, missing = _one(home, release, "missing-parent")
    home.run(release, [call("create_session", missing, "cli")])
    before = image_of(home.store)
    assert change_meanwhile(patient, FIX, finding) == "RowMovedError"
    assert difference(before, image_of(home.store)) == []
    detaches = _instead((Kind.MISSING_PARENT,), "UPDATE sessions SET parent_session_id = NULL WHERE id = :session")
    assert change_meanwhile(patient, replace(FIX, mend=detaches), finding) is None
    row = home.session(release, session)
    assert row is not None
    assert row["parent_session_id"] is None


@pytest.mark.parametrize("release", [get("0.13.0"), NEWEST], ids=str)
def test_an_empty_continuation_that_holds_something_by_now_is_left(home: Home, release: Release) -> None:
    patient, finding, session, empty = _one(home, release, "empty-continuation")
    said = "INSERT INTO messages (session_id, role, content, timestamp) VALUES (?, 'user', 'hello', 1790000000.0)"
    assert change_meanwhile(patient, FIX, finding, (said, (str(empty),))) == "RowMovedError"
    # Neither half of it was done.
    rows = {row["id"]: row["end_reason"] for row in image_of(home.store).table("sessions")}
    assert rows == {session.encode(): b"compression", str(empty).encode(): None}


@pytest.mark.parametrize("release", [get("0.13.0"), NEWEST], ids=str)
def test_a_parent_that_was_opened_meanwhile_is_left(home: Home, release: Release) -> None:
    patient, finding, session, _ = _one(home, release, "no-continuation")
    home.run(release, [call("reopen_session", session)])
    before = image_of(home.store)
    assert change_meanwhile(patient, FIX, finding) == "RowMovedError"
    assert difference(before, image_of(home.store)) == []
    ends = replace(FIX, mend=_instead((Kind.CLOSED,), REAP))
    assert change_meanwhile(patient, ends, finding) is None
    assert difference(before, image_of(home.store)) != []


def test_one_that_is_no_longer_its_own_parent_is_left(home: Home) -> None:
    patient, finding, session, _ = _one(home, NEWEST, "self-parent")
    other = ("INSERT INTO sessions (id, source, started_at) VALUES ('root', 'cli', 1790000000.0)", ())
    moved = ("UPDATE sessions SET parent_session_id = 'root' WHERE id = ?", (session,))
    assert change_meanwhile(patient, FIX, finding, other, moved) == "RowMovedError"
    rows = {row["id"]: row["parent_session_id"] for row in image_of(home.store).table("sessions")}
    assert rows[session.encode()] == b"root"
