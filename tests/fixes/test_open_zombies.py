"""open-zombies' fix: rows get an end of now, whatever else is in the store stays as it is."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from checks.open_zombies import CHECK
from fixes.open_zombies import FIX
from hermes_doctor.engine.cure import Fix, Mending
from hermes_doctor.engine.model import Finding
from tests.checks.zombie_cases import CASES, Plot
from tests.fixes.support import Patient, change_meanwhile, outcome
from tests.oracle.faults import planting
from tests.oracle.home import Home
from tests.oracle.releases import NEWEST, Release, get
from tests.oracle.steps import Step, clock
from tests.whole.identical import difference, image_of


@dataclass
class Planted:
    """A home with the cases of the check; ``expected``: the sessions to be ended, by how safe that is."""

    home: Home
    now: float
    expected: dict[str, str]

    @property
    def patient(self) -> Patient:
        return Patient(self.home.store, self.home.path, self.now)

    def forget_runs(self) -> None:
        """The clock stands still, and ends are refused where it is behind the last run."""
        shutil.rmtree(self.home.path / "doctor")


def plant(home: Home, release: Release) -> Planted:
    """All cases but those with a time ahead of the clock: where one is, nothing is ended at all."""
    now = time.time()
    steps: list[Step] = []
    expected: dict[str, str] = {}
    for case in CASES:
        if case.shown_by(release) and "future" not in case.name:
            plot = Plot(case.name, release, now)
            case.plant(plot)
            steps += plot.steps
            expected |= {plot.id(part): fix for part, (_severity, fix) in case.expected(release).items()}
    home.run(release, [*steps, clock(None)])
    return Planted(home, now, {session: fix for session, fix in expected.items() if fix != "none"})


def wrong(planted: Planted, fix: Fix, *, unsafe: bool = True) -> list[str]:
    """Mend with that fix and take it back; say what is not as it must be."""
    before = image_of(planted.home.store)
    done = planted.patient.mend(checks=[CHECK], fixes=[fix], unsafe=unsafe)
    assert outcome(done) == ("fixed", 0, None)
    ended = {session for session, safety in planted.expected.items() if unsafe or safety == "safe"}
    bad = []
    known = {row["id"]: row for row in before.table("sessions")}
    after = image_of(planted.home.store)
    for row in after.table("sessions"):
        mended = dict(known[row["id"]])
        if isinstance(row["id"], bytes) and row["id"].decode() in ended:
            mended |= {"ended_at": planted.now, "end_reason": b"startup_orphan_reap"}
        if row != mended:
            bad.append(f"{row['id']!r}: {row['ended_at']}, {row['end_reason']!r}")
    bad += [
        f"{table} differs" for table in after.rows if table != "sessions" and after.rows[table] != before.rows[table]
    ]
    assert outcome(planted.patient.undo(done.run)) == ("fixed", 0, None)
    planted.forget_runs()
    return bad + difference(before, image_of(planted.home.store))


@pytest.mark.parametrize("release", [get("0.13.0"), get("0.20.6"), NEWEST], ids=str)
def test_every_case_is_ended_once_and_taken_back(home: Home, release: Release) -> None:
    planted = plant(home, release)
    assert wrong(planted, FIX, unsafe=False) == []
    assert wrong(planted, FIX) == []
    done = planted.patient.mend(checks=[CHECK], fixes=[FIX])
    assert {str(c.key) for c in done.changes if c.state == "applied"} == set(planted.expected)
    (run,) = planted.patient.runs()
    kept = planted.home.path / "kept"
    (planted.home.path / "doctor").rename(kept)
    again = planted.patient.mend(checks=[CHECK], fixes=[FIX])
    assert (outcome(again), again.run) == (("nothing-to-do", 0, None), None)
    assert not (planted.home.path / "doctor").exists()
    kept.rename(planted.home.path / "doctor")
    # One that is taken back is found again.
    planted.patient.undo(run.run)
    assert {str(f.key) for f in planted.patient.findings([CHECK]) if f.fix != "none"} == set(planted.expected)


def _ending(statement: str) -> Callable[[Mending, Finding], None]:
    def mend(mending: Mending, finding: Finding) -> None:
        values = {"now": mending.view.now, "session": mending.single(finding.key)}
        mending.connection.execute(statement, values)

    return mend


VARIANTS = {
    "backdates the end": "UPDATE sessions SET ended_at = started_at, end_reason = 'startup_orphan_reap'"
    " WHERE id = :session",
    "another reason": "UPDATE sessions SET ended_at = :now, end_reason = 'cli_close' WHERE id = :session",
    "no reason": "UPDATE sessions SET ended_at = :now WHERE id = :session",
    "a whole number": "UPDATE sessions SET ended_at = CAST(:now AS INTEGER), end_reason = 'startup_orphan_reap'"
    " WHERE id = :session",
    "the whole family": "UPDATE sessions SET ended_at = :now, end_reason = 'startup_orphan_reap'"
    " WHERE id = :session OR parent_session_id = :session OR id = (SELECT parent_session_id FROM sessions"
    " WHERE id = :session)",
}


def test_every_wrong_fix_fails_a_case(home: Home) -> None:
    planted = plant(home, NEWEST)
    # Each is taken back before the next one's turn.
    passed = [name for name, mend in VARIANTS.items() if wrong(planted, replace(FIX, mend=_ending(mend))) == []]
    assert passed == []


OVERWRITES = replace(
    FIX,
    mend=_ending("UPDATE sessions SET ended_at = :now, end_reason = 'startup_orphan_reap' WHERE id = :session"),
)


@pytest.mark.parametrize("release", [get("0.13.0"), NEWEST], ids=str)
def test_what_somebody_did_meanwhile_stays(home: Home, release: Release) -> None:
    with planting(home, release) as plant_one:
        session = plant_one.open_zombie()
    patient = Patient(home.store, home.path, time.time())
    (finding,) = patient.findings([CHECK])
    reason = ("UPDATE sessions SET end_reason = 'cli_close' WHERE id = ?", (session,))
    end = ("UPDATE sessions SET ended_at = 1790000000.0, end_reason = 'cli_close' WHERE id = ?", (session,))

    def row() -> tuple[object, object]:
        (found,) = image_of(home.store).table("sessions")
        return found["ended_at"], found["end_reason"]

    # A reason that came meanwhile is upstream's to keep, an end that came meanwhile is the end.
    assert change_meanwhile(patient, FIX, finding, reason) is None
    assert row() == (patient.now, b"cli_close")
    assert change_meanwhile(patient, FIX, finding, end) == "RowMovedError"
    assert row() == (1790000000.0, b"cli_close")
    assert change_meanwhile(patient, OVERWRITES, finding) is None
    assert row() != (1790000000.0, b"cli_close")
    assert (
        change_meanwhile(patient, FIX, finding, ("DELETE FROM messages", ()), ("DELETE FROM sessions", ())) is not None
    )
