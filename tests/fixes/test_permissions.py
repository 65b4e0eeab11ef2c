"""Making files private: once, only what is open, and back."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from checks.permissions import CHECK
from fixes.permissions import FIX
from hermes_doctor.demo.home import make_demo_home
from tests.fixes.support import Patient, outcome

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="has no such bits")

BACKUP = "state.db.malformed-backup-20260901_120000"


@pytest.fixture
def patient() -> Iterator[Patient]:
    """A store that everybody can read, a backup of it, and one that is private."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o755)
    store = make_demo_home(folder / "home")
    store.parent.chmod(0o755)
    store.chmod(0o644)
    for name, mode in ((BACKUP, 0o440), (f"{BACKUP}_1", 0o600)):
        store.with_name(name).touch()
        store.with_name(name).chmod(mode)
    yield Patient(store, store.parent)
    shutil.rmtree(folder)


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
    assert modes(patient)["state.db"] == 0o640
