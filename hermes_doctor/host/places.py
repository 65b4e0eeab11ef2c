"""Whether a folder is on this host, asked so that nothing can hang.

A path is walked part by part with lstat, links included, and never into what another machine serves: a server that is
gone would hold the question for minutes. Each path is asked about once, and only so many.
"""

from __future__ import annotations

import enum
import os
import re
import stat
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

#: Paths that one scan asks about; what is beyond stays unknown.
MOST_PATHS = 2_000
_MOST_LINKS = 40
_LONGEST = 4096
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")

#: File systems whose answer comes from elsewhere, or from a program that may be gone.
_REMOTE = re.compile(r"nfs|cifs|smb|afs|fuse|9p|ceph|gluster|lustre|gpfs|davfs|webdav|virtiofs|autofs|beegfs|ncp")
#: Of these, file systems that are the machine's own in spite of their name.
_LOCAL = frozenset({"fuseblk", "fusectl"})


class Presence(enum.StrEnum):
    """What is at a path: a folder, none, or nobody can tell."""

    FOLDER = "folder"
    GONE = "gone"
    UNKNOWN = "unknown"


class Place(NamedTuple):
    """What is at a path, and its name without links.

    ``linked``: the nearest ``.git`` at or above it is no folder, as in a linked worktree or a submodule, whose
    repository is elsewhere.
    """

    presence: Presence
    path: str = ""
    linked: bool = False


UNKNOWN = Place(Presence.UNKNOWN)


@dataclass
class Places:
    """The folders of this host, each asked about once."""

    _known: dict[str, Place] = field(default_factory=dict, init=False)

    def at(self, path: str) -> Place:
        """Return what is at an absolute path; UNKNOWN for any other, and for what cannot be asked safely."""
        if path in self._known:
            return self._known[path]
        if len(self._known) >= MOST_PATHS:
            return UNKNOWN
        try:
            place = self._ask(path)
        except (OSError, ValueError):
            place = UNKNOWN
        self._known[path] = place
        return place

    @cached_property
    def _elsewhere(self) -> frozenset[str]:
        """Where file systems of other machines are mounted."""
        import psutil

        return frozenset(
            os.path.normcase(mount.mountpoint)
            for mount in psutil.disk_partitions(all=True)
            if "remote" in mount.opts.split(",")
            or (mount.fstype.lower() not in _LOCAL and _REMOTE.search(mount.fstype.lower()))
        )

    def _ask(self, path: str) -> Place:
        """Walk down the path. Raises OSError where a part cannot be seen."""
        # A share of Windows (\\server\share) is another machine's by its name.
        if not Path(path).is_absolute() or path.startswith("\\\\") or len(path) > _LONGEST or _CONTROL.search(path):
            return UNKNOWN
        here, waiting = _split(path)
        if os.sep == "\\" and os.path.normcase(here) in self._elsewhere:
            return UNKNOWN
        links = 0
        while waiting:
            part = waiting.pop()
            if part == "..":
                here = os.path.dirname(here)  # noqa: PTH120  (text, not a question to the file system)
                continue
            below = os.path.join(here, part)  # noqa: PTH118
            if os.path.normcase(below) in self._elsewhere:
                return UNKNOWN
            try:
                mode = os.lstat(below).st_mode
            except (FileNotFoundError, NotADirectoryError):
                return Place(Presence.GONE)
            if stat.S_ISLNK(mode):
                links += 1
                target = os.readlink(below)  # noqa: PTH115
                if links > _MOST_LINKS or target.startswith("\\\\"):
                    return UNKNOWN
                start, parts = _split(target)
                here, waiting = (start if Path(target).is_absolute() else here), waiting + parts
            elif stat.S_ISDIR(mode):
                here = below
            else:
                return Place(Presence.GONE)
        return Place(Presence.FOLDER, here, _is_linked(here))


def _split(path: str) -> tuple[str, list[str]]:
    """Return where a path starts (its drive and root), and its parts, the last one first."""
    drive, rest = os.path.splitdrive(path)
    parts = [part for part in re.split(r"[/\\]" if os.sep == "\\" else "/", rest) if part not in ("", ".")]
    return drive + os.sep, parts[::-1]


def _is_linked(folder: str) -> bool:
    """Whether the nearest ``.git`` at or above a folder is no folder itself.

    The folders are known to be this host's own. Raises OSError where one cannot be seen.
    """
    while True:
        try:
            return not stat.S_ISDIR(os.lstat(os.path.join(folder, ".git")).st_mode)  # noqa: PTH118
        except (FileNotFoundError, NotADirectoryError):
            above = os.path.dirname(folder)  # noqa: PTH120
            if above == folder:
                return False
            folder = above
