"""Free room, on real small file systems."""

from __future__ import annotations

from pathlib import Path

from hermes_doctor.host.room import free_bytes, same_filesystem
from tests.disks import small_disk

MIB = 1 << 20


def test_free_bytes_follow_what_is_written(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 8 * MIB) as disk:
        assert free_bytes(disk) == 8 * MIB
        (disk / "filler").write_bytes(b"x" * 3 * MIB)
        assert free_bytes(disk) == 5 * MIB


def test_a_folder_yet_to_be_made_has_the_room_of_where_it_will_be(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 2 * MIB) as disk:
        assert free_bytes(disk / "doctor" / "backups") == 2 * MIB
        assert not (disk / "doctor").exists()


def test_two_folders_on_one_file_system(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    assert same_filesystem(tmp_path / "a", tmp_path / "b" / "not made yet")


def test_a_mounted_folder_is_another_file_system(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", MIB) as disk:
        assert not same_filesystem(tmp_path, disk)
        assert same_filesystem(disk, disk / "doctor")


def test_a_link_leads_to_the_file_system_of_its_target(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", MIB) as disk:
        (tmp_path / "doctor").symlink_to(disk)
        assert free_bytes(tmp_path / "doctor") == MIB
        assert not same_filesystem(tmp_path, tmp_path / "doctor")
