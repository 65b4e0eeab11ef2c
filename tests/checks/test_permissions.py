"""Who can read a store: files open to others are found, and those behind a closed folder or shared on purpose left."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from checks.permissions import CHECK
from hermes_doctor.demo.home import make_demo_home
from hermes_doctor.engine.model import FILES, Finding
from tests.checks.support import findings_of

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="has no such bits")

BACKUP = "state.db.malformed-backup-20260901_120000"


@pytest.fixture
def store() -> Iterator[Path]:
    """A private store that everybody can reach: the tests' own folders are closed to others."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o755)
    made = make_demo_home(folder / "home")
    made.parent.chmod(0o755)
    made.chmod(0o600)
    yield made
    shutil.rmtree(folder)


def found(store: Path) -> list[Finding]:
    return findings_of(store, CHECK, home=store.parent)


def modes(store: Path) -> dict[object, tuple[object, object, str]]:
    return {each.key: (each.detail["mode"], each.detail["to"], each.fix.value) for each in found(store)}


@pytest.mark.parametrize(
    ("mode", "to"),
    [(0o644, "0600"), (0o640, "0600"), (0o604, "0600"), (0o755, "0700"), (0o444, "0400"), (0o606, "0600")],
)
def test_a_store_that_others_can_read_is_found(store: Path, mode: int, to: str) -> None:
    store.chmod(mode)
    assert modes(store) == {"state.db": (f"{mode:04o}", to, "safe")}
    assert {each.table for each in found(store)} == {FILES}


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o700, 0o601, 0o622])
def test_a_store_that_only_its_owner_can_read_is_left(store: Path, mode: int) -> None:
    store.chmod(mode)
    assert found(store) == []


@pytest.mark.parametrize("closed", ["home", "above"])
def test_behind_a_closed_folder_nothing_is_open(store: Path, closed: str) -> None:
    store.chmod(0o644)
    (store.parent if closed == "home" else store.parent.parent).chmod(0o700)
    assert found(store) == []


def test_a_folder_that_can_be_gone_through_protects_nothing(store: Path) -> None:
    store.chmod(0o644)
    store.parent.chmod(0o711)
    assert list(modes(store)) == ["state.db"]


def test_a_group_that_is_meant_to_have_it_keeps_its_rights(store: Path) -> None:
    store.chmod(0o664)
    assert modes(store) == {"state.db": ("0664", "0660", "safe")}
    store.chmod(0o660)
    assert found(store) == []
    store.chmod(0o640)
    assert list(modes(store)) == ["state.db"]
    store.parent.chmod(0o2755)
    assert found(store) == []


def test_its_sidecars_and_copies_are_looked_at_and_no_strangers(store: Path) -> None:
    names = [BACKUP, "doctor/doctor.db", "doctor/backups/state-20260901-120000.db", "config.yaml"]
    for name in names:
        path = store.parent / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        path.chmod(0o644)
    assert sorted(map(str, modes(store))) == sorted(names[:3])
    (store.parent / "doctor").chmod(0o700)
    assert list(modes(store)) == [BACKUP]


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() != 0, reason="only root gives files away")
def test_a_file_of_somebody_else_is_told_and_not_mended(store: Path) -> None:
    backup = store.with_name(BACKUP)
    backup.touch(0o600)
    os.chown(backup, 65534, -1)
    [finding] = found(store)
    assert (finding.key, finding.fix.value, dict(finding.detail)) == (BACKUP, "none", {})
    assert "sudo chown" in (finding.refusal or "")
    backup.chmod(0o644)
    [finding] = found(store)
    assert (finding.fix.value, finding.detail["mode"]) == ("none", "0644")
    os.chown(store, 65534, -1)
    assert modes(store) == {BACKUP: ("0644", "0600", "safe")}
