"""Whether a folder is there: asked of the real file system, and of nothing that could hang."""

from __future__ import annotations

import os
from collections import namedtuple
from pathlib import Path

import psutil
import pytest

from hermes_doctor.host import places
from hermes_doctor.host.places import Places, Presence

GONE, FOLDER, UNKNOWN = Presence.GONE, Presence.FOLDER, Presence.UNKNOWN


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Folders, links, a file, a repository with a linked worktree."""
    folder = tmp_path.resolve() / "tree"
    for name in ("repo/.git/worktrees/side", "repo/src", "side/src", "plain", "with space", "späße"):
        (folder / name).mkdir(parents=True)
    (folder / "side/.git").write_text(f"gitdir: {folder}/repo/.git/worktrees/side\n")
    (folder / "file").write_text("")
    (folder / "to-plain").symlink_to("plain")
    (folder / "to-src").symlink_to(folder / "repo" / "src")
    (folder / "to-nothing").symlink_to("nothing")
    (folder / "round").symlink_to("round")
    os.mkfifo(folder / "pipe")
    return folder


@pytest.mark.parametrize(
    ("name", "presence"),
    [
        ("plain", FOLDER),
        ("plain/", FOLDER),
        ("plain/./../plain", FOLDER),
        ("with space", FOLDER),
        ("späße", FOLDER),
        ("to-plain", FOLDER),
        ("to-src/../src", FOLDER),
        ("nothing", GONE),
        ("nothing/below", GONE),
        ("file", GONE),
        ("file/below", GONE),
        ("pipe", GONE),
        ("to-nothing", GONE),
        ("round", UNKNOWN),
        ("pla\x1bin", UNKNOWN),
        ("pla\x00in", UNKNOWN),
        ("x" * 300, UNKNOWN),
        ("x/" * 3000, UNKNOWN),
    ],
)
def test_what_is_there(tree: Path, name: str, presence: Presence) -> None:
    assert Places().at(f"{tree}/{name}").presence is presence


@pytest.mark.parametrize("path", ["", "plain", "./plain", "~/plain", "\\\\server\\share", "C:\\Users"])
def test_what_is_not_absolute_is_not_asked_about(tree: Path, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tree)
    assert Places().at(path).presence is UNKNOWN


def test_links_are_followed_in_the_name(tree: Path) -> None:
    assert Places().at(f"{tree}/to-src").path == f"{tree}/repo/src"


@pytest.mark.parametrize(
    ("name", "linked"), [("repo", False), ("repo/src", False), ("side/src", True), ("side", True), ("plain", False)]
)
def test_a_linked_worktree_is_known_by_its_file(tree: Path, name: str, linked: bool) -> None:
    assert Places().at(f"{tree}/{name}").linked is linked


Mount = namedtuple("Mount", "device mountpoint fstype opts")


@pytest.mark.parametrize(
    ("fstype", "opts", "asked"),
    [
        ("nfs4", "rw", False),
        ("cifs", "rw", False),
        ("fuse.sshfs", "rw", False),
        ("autofs", "rw", False),
        ("NTFS", "rw,remote", False),
        ("ext4", "rw", True),
        ("fuseblk", "rw", True),
        ("tmpfs", "rw", True),
    ],
)
def test_nothing_is_asked_of_another_machine(
    tree: Path, fstype: str, opts: str, asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Mounting needs an administrator: only the list of mounts is made up, the folders are real.
    mounts = [Mount("server:/x", str(tree / "repo"), fstype, opts)]
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: mounts)  # noqa: A006  (psutil's own name)
    touched: list[str] = []
    ask = os.lstat

    def lstat(path: str) -> os.stat_result:
        touched.append(str(path))
        return ask(path)

    monkeypatch.setattr(os, "lstat", lstat)
    known = Places()
    found = [known.at(f"{tree}/{name}").presence for name in ("repo", "repo/src", "to-src", "repo/nothing")]
    assert found == ([FOLDER, FOLDER, FOLDER, GONE] if asked else [UNKNOWN] * 4)
    assert any(path.startswith(f"{tree}/repo") for path in touched) is asked
    assert known.at(f"{tree}/plain").presence is FOLDER


def test_each_path_is_asked_about_once_and_only_so_many(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "MOST_PATHS", 2)
    known = Places()
    assert known.at(f"{tree}/plain").presence is FOLDER
    (tree / "plain").rmdir()
    assert known.at(f"{tree}/plain").presence is FOLDER
    assert known.at(f"{tree}/nothing").presence is GONE
    assert known.at(f"{tree}/repo").presence is UNKNOWN
    assert known.at(f"{tree}/nothing").presence is GONE


@pytest.mark.skipif(os.geteuid() == 0, reason="an administrator may see everything")
def test_what_may_not_be_seen_is_unknown(tree: Path) -> None:
    (tree / "repo").chmod(0)
    try:
        assert Places().at(f"{tree}/repo/src").presence is UNKNOWN
    finally:
        (tree / "repo").chmod(0o700)
