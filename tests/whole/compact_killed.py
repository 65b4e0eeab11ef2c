"""Doctors that compact a store and are killed at one of their writes to it.

``python -m tests.whole.compact_killed TEMPLATE FOLDER COUNT [careless]`` copies the home TEMPLATE to FOLDER/0,
FOLDER/1, ... and compacts each in a process of its own over an APSW VFS that ends the process by SIGKILL: first none,
which tells how many writes there are, then COUNT of them at writes all over the work. It prints, a line each, at which
write (0: none) and how the process ended. ``careless`` is a wrong doctor, which saves no old pages.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import apsw

from hermes_doctor.engine import compact
from hermes_doctor.engine.compact import compact_store
from hermes_doctor.engine.stopping import Stop
from hermes_doctor.host.homes import StoreRef
from hermes_doctor.store.writing import open_for_writing

#: The system's own VFS.
BASE = apsw.vfs_names()[0]


class _Count:
    """What was written to the store's files so far, and at which write the process is to be killed (0: never)."""

    def __init__(self, store: Path, fatal: int) -> None:
        self._files = {str(store), f"{store}-wal", f"{store}-journal"}
        self._fatal = fatal
        self.written = 0

    def note(self, name: str | None) -> None:
        if name in self._files:
            self.written += 1
            if self.written == self._fatal:
                os.kill(os.getpid(), signal.SIGKILL)


class _File(apsw.VFSFile):
    def __init__(self, count: _Count, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        self._count = count
        self._name = name.filename() if isinstance(name, apsw.URIFilename) else name
        super().__init__(BASE, name, flags)

    def xWrite(self, data: Any, offset: int) -> None:  # noqa: N802  # APSW's name, as below
        self._count.note(self._name)
        super().xWrite(data, offset)

    def xTruncate(self, size: int) -> None:  # noqa: N802
        self._count.note(self._name)
        super().xTruncate(size)


class _VFS(apsw.VFS):
    def __init__(self, count: _Count) -> None:
        self._count = count
        super().__init__("fatal", BASE, makedefault=True)

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:  # noqa: N802
        return _File(self._count, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        self._count.note(filename)
        super().xDelete(filename, syncdir)


def _carelessly(path: Path) -> apsw.Connection:
    connection = open_for_writing(path)
    # In memory, where a kill takes them ("off" is refused to a connection that defends itself).
    connection.pragma("journal_mode", "memory")
    return connection


def compacted(home: Path, fatal: int, writes: Path, *, careless: bool) -> int:
    """Compact a home's store in a process of its own; return how that ended. ``writes`` takes how many there were."""
    child = os.fork()
    if child == 0:
        code = 3
        try:
            if careless:
                compact.open_for_writing = _carelessly  # type: ignore[attr-defined]  # a wrong doctor
            count = _Count(home / "state.db", fatal)
            vfs = _VFS(count)
            result = compact_store(StoreRef(home / "state.db", home, "default"), apply=True, stop=Stop())
            code = int(result.exit_code)
            writes.write_text(str(count.written))
            del vfs
        finally:
            os._exit(code)
    _pid, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def main(template: Path, folder: Path, count: int, *, careless: bool) -> None:
    """Compact one copy of the template without a kill, and so many with one."""
    writes = folder / "writes"
    fatal = 0
    for number in range(count + 1):
        home = folder / str(number)
        shutil.copytree(template, home)
        if number:
            # The first, the last, and what lies between.
            fatal = 1 + (int(writes.read_text()) - 1) * (number - 1) // max(count - 1, 1)
        sys.stdout.write(f"{fatal} {compacted(home, fatal, writes, careless=careless)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), careless="careless" in sys.argv[4:])
