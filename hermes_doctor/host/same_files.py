"""Whether a store is still the file that was opened: replaced, deleted or cut off, it must not be written to.

SQLite goes on with the file that it has open, whatever lies at its name by now: what it commits there nobody sees.
Only names and stat: nothing is opened, since closing a descriptor would drop this process's locks on the file.
"""

from __future__ import annotations

import os
from pathlib import Path

from hermes_doctor.host.bundle import Bundle
from hermes_doctor.host.upstream import printable


class StoreMovedError(Exception):
    """The store is not what was opened; the text is one line for a person. ``cut``: it is, but was cut off."""

    def __init__(self, reason: str, *, cut: bool = False) -> None:
        super().__init__(reason)
        self.cut = cut


class SameFiles:
    """A store's file and its log, as they were when they were opened."""

    def __init__(self, bundle: Bundle) -> None:
        """Take the store for what was looked at."""
        self._path = bundle.real_path
        self._file = (bundle.device, bundle.inode)
        self._log_path = bundle.wal_path
        self._log: tuple[int, int] | None = None
        # What broke off is rolled back when it is opened, and may become smaller by that.
        self._bytes = 0 if bundle.journal_bytes else bundle.size

    def opened(self) -> None:
        """Note that SQLite has it open. Raises StoreMovedError where that is not what was looked at."""
        self.check()
        self.note()

    def note(self) -> None:
        """Take what lies there for right: just opened, or just committed."""
        status = _status(self._path)
        self._bytes = status.st_size if status is not None else 0
        log = _status(self._log_path)
        self._log = None if log is None else (log.st_dev, log.st_ino)

    def check_name(self) -> os.stat_result:
        """Raise StoreMovedError where the store was replaced or deleted; return its status."""
        status = _status(self._path)
        name = printable(self._path)
        if status is None:
            raise StoreMovedError(f"{name} was moved away or deleted meanwhile: nothing more was written")
        if (status.st_dev, status.st_ino) != self._file:
            raise StoreMovedError(f"{name} was replaced by another file meanwhile: nothing was written to that one")
        return status

    def check(self) -> None:
        """Raise StoreMovedError where the store was replaced, deleted or cut off, or its log was."""
        status = self.check_name()
        name = printable(self._path)
        if status.st_size < self._bytes:
            raise StoreMovedError(f"{name} was cut off meanwhile: nothing more was written", cut=True)
        if self._log is not None:
            log = _status(self._log_path)
            if log is None or (log.st_dev, log.st_ino) != self._log:
                raise StoreMovedError(f"the log of {name} was taken away meanwhile: nothing more was written")


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None
