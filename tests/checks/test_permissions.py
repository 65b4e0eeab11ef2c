"""Who can read a store: files open to others are found, and those behind a closed folder or shared on purpose left."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from checks.permissions import CHECK
from hermes_doctor.engine.model import FILES, Finding
from tests.checks.reachable import BACKUP
from tests.checks.support import findings_of

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="has no such bits")


def found(store: Path) -> list[Finding]:
    return findings_of(store, CHECK, home=store.parent)


def modes(store: Path) -> dict[object, tuple[object, object, str]]:
    return {each.key: (each.detail["mode"], each.detail["to"], each.fix.value) for each in found(store)}


@pytest.mark.parametrize(
    ("mode", "to"),
    [(0o644, "0600"), (0o640, "0600"), (0o604, "0600"), (0o755, "0700"), (0o444, "0400"), (0o606, "0600")],
)
def test_a_store_that_others_can_read_is_found(reachable: Path, mode: int, to: str) -> None:
    reachable.chmod(mode)
    assert modes(reachable) == {"state.db": (f"{mode:04o}", to, "safe")}
    assert {each.table for each in found(reachable)} == {FILES}


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o700, 0o601, 0o622])
def test_a_store_that_only_its_owner_can_read_is_left(reachable: Path, mode: int) -> None:
    reachable.chmod(mode)
    assert found(reachable) == []


@pytest.mark.parametrize("closed", ["home", "above"])
def test_behind_a_closed_folder_nothing_is_open(reachable: Path, closed: str) -> None:
    reachable.chmod(0o644)
    (reachable.parent if closed == "home" else reachable.parent.parent).chmod(0o700)
    assert found(reachable) == []


def test_a_folder_that_can_be_gone_through_protects_nothing(reachable: Path) -> None:
    reachable.chmod(0o644)
    reachable.parent.chmod(0o711)
    assert list(modes(reachable)) == ["state.db"]


def test_a_group_that_is_meant_to_have_it_keeps_its_rights(reachable: Path) -> None:
    reachable.chmod(0o664)
    assert modes(reachable) == {"state.db": ("0664", "0660", "safe")}
    reachable.chmod(0o660)
    assert found(reachable) == []
    reachable.chmod(0o640)
    assert list(modes(reachable)) == ["state.db"]
    reachable.parent.chmod(0o2755)
    assert found(reachable) == []


def test_its_sidecars_and_copies_are_looked_at_and_no_strangers(reachable: Path) -> None:
    names = [BACKUP, "doctor/doctor.db", "doctor/backups/state-20260901-120000.db", "config.yaml"]
    for name in names:
        path = reachable.parent / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        path.chmod(0o644)
    assert sorted(map(str, modes(reachable))) == sorted(names[:3])
    (reachable.parent / "doctor").chmod(0o700)
    assert list(modes(reachable)) == [BACKUP]


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() != 0, reason="only root gives files away")
def test_a_file_of_somebody_else_is_told_and_not_mended(reachable: Path) -> None:
    backup = reachable.with_name(BACKUP)
    backup.touch(0o600)
    os.chown(backup, 65534, -1)
    [finding] = found(reachable)
    assert (finding.key, finding.fix.value, dict(finding.detail)) == (BACKUP, "none", {})
    assert "sudo chown" in (finding.refusal or "")
    backup.chmod(0o644)
    [finding] = found(reachable)
    assert (finding.fix.value, finding.detail["mode"]) == ("none", "0644")
    os.chown(reachable, 65534, -1)
    assert modes(reachable) == {BACKUP: ("0644", "0600", "safe")}
