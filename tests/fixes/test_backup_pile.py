"""Removing backups that lie there twice: once, in an order in which no backup loses its log, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from checks.backup_pile import CHECK
from fixes.backup_pile import FIX
from hermes_doctor.demo.home import make_demo_home
from hermes_doctor.engine.file_changes import FileChange
from hermes_doctor.engine.model import Finding
from hermes_doctor.engine.transaction import Change
from hermes_doctor.store.view import StoreView
from tests.fixes.support import Patient, outcome

OLD, MIDDLE, NEW = (f"state.db.malformed-backup-2026090{day}_120000" for day in (1, 2, 3))
BYTES = {OLD: b"a", f"{OLD}-wal": b"w", MIDDLE: b"other", NEW: b"a", f"{NEW}-wal": b"w"}


@pytest.fixture
def patient(tmp_path: Path) -> Patient:
    store = make_demo_home(tmp_path / "home")
    for name, content in BYTES.items():
        store.with_name(name).write_bytes(content)
        store.with_name(name).chmod(0o640 if name == OLD else 0o600)
    return Patient(store, store.parent)


def backups(patient: Patient) -> dict[str, tuple[bytes, int, int]]:
    found = sorted(patient.store.parent.glob("state.db.malformed-backup-*"))
    return {each.name: (each.read_bytes(), each.stat().st_mode, each.stat().st_mtime_ns) for each in found}


def states(changes: Iterable[Change]) -> dict[object, str]:
    return {change.key: change.state for change in changes}


def forbid_to_remove(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    real = Path.unlink

    def refusing(self: Path, missing_ok: bool = False) -> None:
        if self.name == name:
            raise PermissionError(13, "Permission denied", str(self))
        real(self, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", refusing)


def test_a_duplicate_goes_once_and_comes_back(patient: Patient) -> None:
    before = backups(patient)
    safely = patient.mend(unsafe=False, checks=[CHECK], fixes=[FIX])
    assert (outcome(safely), safely.run) == (("nothing-to-do", 0, None), None)
    done = patient.mend(checks=[CHECK], fixes=[FIX])
    assert outcome(done) == ("fixed", 0, None)
    assert [(each.key, each.state) for each in done.changes] == [(OLD, "applied"), (f"{OLD}-wal", "applied")]
    assert backups(patient) == {name: before[name] for name in (MIDDLE, NEW, f"{NEW}-wal")}
    assert [each.key for each in patient.findings([CHECK])] == ["state.db"]
    assert outcome(patient.mend(checks=[CHECK], fixes=[FIX])) == ("nothing-to-do", 0, None)
    assert outcome(patient.undo(done.run)) == ("fixed", 0, None)
    assert backups(patient) == before


def test_what_comes_back_comes_with_its_log_first(patient: Patient, monkeypatch: pytest.MonkeyPatch) -> None:
    done = patient.mend(checks=[CHECK], fixes=[FIX])
    order: list[str] = []
    real = FileChange.take_back

    def noting(self: FileChange) -> None:
        order.append(self.name)
        real(self)

    monkeypatch.setattr(FileChange, "take_back", noting)
    patient.undo(done.run)
    assert order == [f"{OLD}-wal", OLD]


def test_a_log_stays_where_its_backup_could_not_go(patient: Patient, monkeypatch: pytest.MonkeyPatch) -> None:
    before = backups(patient)
    forbid_to_remove(monkeypatch, OLD)
    done = patient.mend(checks=[CHECK], fixes=[FIX])
    assert states(done.changes) == {OLD: "failed", f"{OLD}-wal": "refused"}
    assert backups(patient) == before


def test_what_was_stopped_half_way_is_carried_on(patient: Patient) -> None:
    before = backups(patient)
    patient.store.with_name(OLD).unlink()
    done = patient.mend(checks=[CHECK], fixes=[FIX])
    assert states(done.changes) == {f"{OLD}-wal": "applied"}
    assert backups(patient) == {name: before[name] for name in (MIDDLE, NEW, f"{NEW}-wal")}


def test_a_twin_that_changes_at_the_last_moment_saves_the_older_one(
    patient: Patient, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = FileChange.carry_out

    def late(self: FileChange) -> None:
        Path(self.twin).write_bytes(b"b")
        real(self)

    monkeypatch.setattr(FileChange, "carry_out", late)
    done = patient.mend(checks=[CHECK], fixes=[FIX])
    assert states(done.changes) == {OLD: "gone", f"{OLD}-wal": "gone"}
    assert {OLD, f"{OLD}-wal"} <= backups(patient).keys()


def without_a_look_at_the_backup(view: StoreView, finding: Finding) -> FileChange:
    folder = patient_folder(view)
    return FileChange.of_removal(folder / str(finding.key), folder / str(finding.detail["twin"]))


def the_newer_one(view: StoreView, finding: Finding) -> FileChange:
    folder = patient_folder(view)
    return FileChange.of_removal(folder / str(finding.detail["twin"]), folder / str(finding.key))


def patient_folder(view: StoreView) -> Path:
    assert view.bundle is not None
    return view.bundle.real_path.parent


@pytest.mark.parametrize("wrong", [without_a_look_at_the_backup, the_newer_one])
def test_wrong_fixes_fail(
    patient: Patient, monkeypatch: pytest.MonkeyPatch, wrong: Callable[[StoreView, Finding], FileChange]
) -> None:
    before = backups(patient)
    forbid_to_remove(monkeypatch, OLD)
    patient.mend(checks=[CHECK], fixes=[replace(FIX, files=wrong)])
    assert backups(patient) != before


def test_nothing_comes_back_from_a_twin_that_changed(patient: Patient) -> None:
    done = patient.mend(checks=[CHECK], fixes=[FIX])
    patient.store.with_name(NEW).write_bytes(b"b")
    undone = patient.undo(done.run)
    assert states(undone.changes) == {f"{OLD}-wal": "restored", OLD: "changed-since"}
    assert {name: content for name, (content, _mode, _time) in backups(patient).items()} == {
        **{name: content for name, content in BYTES.items() if name != OLD},
        NEW: b"b",
    }
