"""A doctor that is killed in the middle of a commit: when SQLite puts the log on the disk, all of it written by then.

``python -m tests.whole.killed_in_commit ARGUMENTS`` runs that command over an APSW VFS and ends by SIGKILL.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import apsw

from hermes_doctor.cli.run import run

#: The system's own VFS.
BASE = apsw.vfs_names()[0]


class _File(apsw.VFSFile):
    def __init__(self, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        self._name = name.filename() if isinstance(name, apsw.URIFilename) else name
        super().__init__(BASE, name, flags)

    def xSync(self, flags: int) -> None:  # noqa: N802  # APSW's name, as below
        if (self._name or "").endswith("state.db-wal"):
            os.kill(os.getpid(), signal.SIGKILL)
        super().xSync(flags)


class _VFS(apsw.VFS):
    def __init__(self) -> None:
        super().__init__("killed", BASE, makedefault=True)

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:  # noqa: N802
        return _File(name, flags)


if __name__ == "__main__":
    vfs = _VFS()
    sys.exit(run(sys.argv[1:]))
