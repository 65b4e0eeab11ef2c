"""Making files private: once, only what is open, and back."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from checks.permissions import CHECK
from fixes.permissions import FIX
from tests.checks.reachable import BACKUP
from tests.fixes.support import Patient, outcome

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="has no such bits")


@pytest.fixture
def patient(reachable: Path) -> Patient:
    """A store that everybody can read, a backup of it, and one that is private."""
    reachable.chmod(0o644)
    for name, mode in ((BACKUP, 0o440), (f"{BACKUP}_1", 0o600)):
        reachable.with_name(name).touch()
        reachable.with_name(name).chmod(mode)
    return Patient(reachable, reachable.parent)


def modes(patient: Patient) -> dict[str, int]:
    return {name: patient.store.with_name(name).stat().st_mode & 0o777 for name in ("state.db", BACKUP, f"{BACKUP}_1")}


def test_what_is_open_is_closed_once_and_opened_again_by_an_undo(patient: Patient) -> None:
    before = modes(patient)
    done = patient.mend(unsafe=False, checks=[CHECK], fixes=[FIX])
    assert outcome(done) == ("fixed", 0, None)
    assert [(change.key, change.state) for change in done.changes] == [("state.db", "applied"), (BACKUP, "applied")]
    assert modes(patient) == {"state.db": 0o600, BACKUP: 0o400, f"{BACKUP}_1": 0o600}
    assert patient.findings([CHECK]) == []
    assert outcome(patient.mend(checks=[CHECK], fixes=[FIX])) == ("nothing-to-do", 0, None)
    assert outcome(patient.undo(done.run)) == ("fixed", 0, None)
    assert modes(patient) == before


def test_a_mode_that_somebody_set_since_is_left(patient: Patient) -> None:
    done = patient.mend(checks=[CHECK], fixes=[FIX])
    patient.store.chmod(0o640)
    undone = patient.undo(done.run)
    assert {change.key: change.state for change in undone.changes} == {BACKUP: "restored", "state.db": "changed-since"}
    assert modes(patient) == {"state.db": 0o640, BACKUP: 0o440, f"{BACKUP}_1": 0o600}
