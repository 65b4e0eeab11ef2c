"""Which processes have files of a store open, by which descriptors, and whether these files were deleted since.

A process keeps a deleted file for as long as it has it open, and SQLite goes on writing to it: ``/proc`` tells (Linux).
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from hermes_doctor.host.bundle import Bundle
from hermes_doctor.host.holders import may_write, name_of
from hermes_doctor.host.upstream import printable

_PROC = Path("/proc")
_DELETED = " (deleted)"
#: How the program of a Python is called.
PYTHON_NAME = re.compile(r"python[0-9.]*[a-z]*|pypy[0-9.]*", re.IGNORECASE)
#: SQLite deletes a log just before it closes it: what is still open after so many seconds was not deleted by its owner.
_CLOSING_SECONDS = 0.1


class File(NamedTuple):
    """One open file of a process. ``deleted``: it has no name any more; ``writes``: it was opened for writing, too."""

    descriptor: int
    device: int
    inode: int
    deleted: bool
    writes: bool


@dataclass(frozen=True)
class Opener:
    """A process that has the store open. ``log`` and ``index``: its ``-wal`` and ``-shm``, None where it has none."""

    pid: int
    name: str
    store: File
    log: File | None
    index: File | None

    @property
    def deleted(self) -> tuple[str, ...]:
        """Which of its files were deleted: what their names add to the store's."""
        named = {"": self.store, "-wal": self.log, "-shm": self.index}
        return tuple(name for name, file in named.items() if file is not None and file.deleted)

    def descriptor(self, file: File) -> str:
        """Return the path by which others can read an open file of this process."""
        return f"/proc/{self.pid}/fd/{file.descriptor}"


def openers(bundle: Bundle, *, any_program: bool = True) -> list[Opener]:
    """Return the processes that have the store open, this one left out, in the order of their numbers.

    A process in a container may know the store by another path: it is known by its inode. What the user may not look
    into is left out. Without ``any_program`` only Pythons are looked at, which is a fraction of the work.
    """
    if not sys.platform.startswith("linux"):
        return []
    found = []
    for pid in _processes():
        if not any_program and not is_python(pid):
            continue
        try:
            opener = _look(pid, bundle)
        except OSError:
            continue
        if opener is not None:
            found.append(opener)
    return sorted(found, key=lambda each: each.pid)


def without_files(found: Iterable[Opener], bundle: Bundle) -> list[Opener]:
    """Return those of a store's openers whose files were deleted, and not by themselves as they close it."""
    found = [each for each in found if each.deleted]
    if not found:
        return []
    time.sleep(_CLOSING_SECONDS)
    return [each for each in found if _stands(each, bundle)]


def _stands(opener: Opener, bundle: Bundle) -> bool:
    try:
        return _look(opener.pid, bundle) == opener
    except OSError:
        return False


def is_python(pid: int) -> bool:
    """Tell from its program's name whether a process runs in a Python of its own."""
    try:
        program = os.readlink(f"{_PROC}/{pid}/exe")  # noqa: PTH115  (hundreds of them: a Path takes as long again)
    except OSError:
        return False
    return PYTHON_NAME.fullmatch(program.rpartition("/")[2].removesuffix(_DELETED)) is not None


def _processes() -> list[int]:
    try:
        with os.scandir(_PROC) as entries:
            return [int(each.name) for each in entries if each.name.isdigit() and int(each.name) != os.getpid()]
    except OSError:
        return []


def _look(pid: int, bundle: Bundle) -> Opener | None:
    """Look at the descriptors of one process; raises OSError where that is not allowed, or it is gone."""
    process = _PROC / str(pid)
    named = bundle.real_path.name
    files: dict[str, File] = {}
    for descriptor in os.listdir(f"{process}/fd"):  # noqa: PTH208  (there are thousands of them)
        try:
            target = os.readlink(f"{process}/fd/{descriptor}")  # noqa: PTH115
        except OSError:
            continue
        file = _open_file(process, descriptor) if named in target else None
        path = target.removesuffix(_DELETED)
        # Of several descriptors the one that says most: of a deleted file, and one that writes.
        before = files.get(path)
        if file and (before is None or (file.deleted, file.writes) > (before.deleted, before.writes)):
            files[path] = file
    for path, file in files.items():
        is_ours = (file.device, file.inode) == (bundle.device, bundle.inode)
        if is_ours or path == str(bundle.real_path):
            # Whoever runs as this user gives itself any name, and it is told to a terminal.
            return Opener(pid, printable(name_of(process)), file, files.get(f"{path}-wal"), files.get(f"{path}-shm"))
    return None


def _open_file(process: Path, descriptor: str) -> File | None:
    try:
        status = (process / "fd" / descriptor).stat()
        writes = may_write(process / "fdinfo" / descriptor)
        return File(int(descriptor), status.st_dev, status.st_ino, status.st_nlink == 0, writes)
    except (OSError, ValueError):
        return None
