"""A home that a release lived in, however often it was upgraded, gives no finding above info and no trace."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from checks import CHECKS
from hermes_doctor.engine.scan import ScanOptions, scan_store
from hermes_doctor.host.homes import StoreRef
from tests.disks import small_disk
from tests.oracle.history import held_cli
from tests.oracle.releases import CHAINS, RELEASES, Release
from tests.oracle.templates import LivedIn
from tests.whole.support import fingerprint, scan

LIVES = [(release.version,) for release in RELEASES] + [tuple(map(str, chain)) for chain in CHAINS]

#: Checks that may note something of a healthy home: rows of servers that nobody ever ends.
NOTES = {"open-zombies"}


@pytest.mark.parametrize("wal", [False, True], ids=["as-made", "wal"])
@pytest.mark.parametrize("life", LIVES, ids="→".join)
def test_a_healthy_home_is_silent(lived_in: LivedIn, life: tuple[str, ...], wal: bool) -> None:
    home = lived_in(*life, wal=wal).home
    before = fingerprint(home.path)
    (database,) = scan(home.path, codes=(0,))
    assert [f for f in database["findings"] if f["severity"] != "info"] == []
    assert {f["check"] for f in database["findings"]} <= NOTES
    assert [check for check in database["checks"] if check["status"] == "failed"] == []
    # Old stores lack the tables of a few checks, of no more.
    assert {check["check"] for check in database["checks"] if check["status"] == "skipped"} <= {
        "dangling-routes",
        "stale-locks",
        "stuck-delegations",
    }
    assert database["condition"] == "readable"
    assert database["held"] == "no"
    assert database["consistent"] is True
    assert database["trace"] == []
    # Silence must not come from looking at nothing.
    assert database["sessions"] > 15
    assert database["messages"] > 30
    assert fingerprint(home.path) == before


@pytest.mark.parametrize("release", [RELEASES[0], RELEASES[6], RELEASES[-1]], ids=str)
def test_a_row_of_a_living_process_is_left_alone(lived_in: LivedIn, release: Release) -> None:
    lived = lived_in(release.version)
    process, session = held_cli(lived.home, release)
    with process:
        (held,) = scan(lived.home.path)
        # That its Python's SQLite should not write to a WAL store may be said, and is so.
        assert {f["check"] for f in held["findings"] if f["severity"] != "info"} <= {"sqlite-runtime"}
        assert held["held"] == "yes"
        assert process.pid in [holder["pid"] for holder in held["holders"]]
    (left,) = scan(lived.home.path, codes=(1,))
    assert left["held"] == "no"
    found = {f["session"]: f["check"] for f in left["findings"] if f["severity"] != "info"}
    assert found == {session: "open-zombies"}


@pytest.mark.parametrize("version", ["0.13.0", "0.22.2"])
def test_a_healthy_home_on_a_disk_that_is_nearly_full_is_silent(
    lived_in: LivedIn, version: str, tmp_path: Path
) -> None:
    home = lived_in(version).home
    with small_disk(tmp_path / "disk", 64 << 20) as disk:
        moved = Path(shutil.copytree(home.path, disk / "home", symlinks=True))
        room = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
        (disk / "filler").write_bytes(bytes(room - (256 << 10)))
        (database,) = scan(moved, codes=(0,))
        assert [f for f in database["findings"] if f["severity"] != "info"] == []


@pytest.mark.parametrize("life", LIVES, ids="→".join)
def test_the_same_home_seen_without_its_folder_is_silent(lived_in: LivedIn, life: tuple[str, ...]) -> None:
    store = lived_in(*life).home.store
    result = scan_store(StoreRef(store, None, "default"), CHECKS, ScanOptions())
    with result.findings as findings:
        assert [f for f in findings if f.severity.label != "info"] == []
