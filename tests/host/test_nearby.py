"""What belongs to a store of all that lies around it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hermes_doctor.demo.home import make_demo_home
from hermes_doctor.host.bundle import inspect
from hermes_doctor.host.nearby import Kind, nearby

NAMES = {
    "state.db-journal": Kind.SIDECAR,
    "state.db.malformed-backup-20260901_120000": Kind.MALFORMED_BACKUP,
    "state.db.malformed-backup-20260901_120000_2": Kind.MALFORMED_BACKUP,
    "state.db.malformed-backup-20260901_120000-wal": Kind.MALFORMED_BACKUP,
    "state.db.malformed-backup-20260901_120000.incomplete-4711": Kind.SCRATCH,
    "state.db.pre-clean-markers-backup-20260901_120000": Kind.CLEANED_BACKUP,
    "state.db.zeroed-20260901_120000-4711.bak": Kind.ZEROED_BACKUP,
    "state.db.repair-scratch": Kind.SCRATCH,
    "state.db.backup-staging-20260901_120000-wal": Kind.SCRATCH,
    "state.db.repair-attempts.json": Kind.LEDGER,
    "doctor/doctor.db": Kind.DOCTOR_FILE,
    "doctor/backups/state-20260901-120000.db": Kind.DOCTOR_BACKUP,
    "config.yaml": None,
    "kanban.db": None,
    "state.db.fts_rebuild.lock": None,
    "old-state.db.malformed-backup-20260901_120000": None,
    "state.db.malformed-backup-mine": None,
}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return make_demo_home(tmp_path / "home")


def test_each_file_is_what_its_name_says(store: Path) -> None:
    for name in NAMES:
        path = store.parent / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (store.parent / "state.db.retired-wal-20260901T120000Z-4711").mkdir()
    found = {each.name: each.kind for each in nearby(inspect(store))}
    assert found == {
        "state.db": Kind.STORE,
        "state.db.retired-wal-20260901T120000Z-4711": Kind.RETIRED_LOG,
        **{name: kind for name, kind in NAMES.items() if kind is not None},
    }


def test_links_are_no_files_of_the_store(store: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").touch()
    (store.parent / "state.db.malformed-backup-20260901_120000").symlink_to(tmp_path / "elsewhere")
    assert [each.name for each in nearby(inspect(store))] == ["state.db"]


def test_a_store_of_another_name_has_files_of_its_own(store: Path) -> None:
    copy = store.with_name("copy (1).db")
    copy.write_bytes(store.read_bytes())
    for name in ("state.db.repair-scratch", "copy (1).db.repair-scratch", "copy (1).db-wal"):
        store.with_name(name).touch()
    assert [each.name for each in nearby(inspect(copy))] == [
        "copy (1).db",
        "copy (1).db-wal",
        "copy (1).db.repair-scratch",
    ]
