"""Whether everybody who has a store open has the same three files: the store, its log, and the log's index.

Whoever has a log open that was deleted, or a store that another file has taken the place of, writes where others do
not look. To write beside such a one would make two stores of one. Only names, stat and ``/proc``: nothing is opened,
since closing a descriptor would drop the locks that this process holds on the file through SQLite.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from hermes_doctor.host.bundle import Bundle, open_here, sidecar
from hermes_doctor.host.openers import Opener, openers

#: Whoever opens a store has its log a moment later, and SQLite deletes one just before it closes it.
_MOMENT = 0.1

#: A file, by its device and inode.
Id = tuple[int, int]


@dataclass(frozen=True)
class Generation:
    """The three files of a store in WAL mode, by device and inode, as their names lead to them."""

    store: Id
    log: Id
    index: Id

    def is_open_here(self) -> bool:
        """Whether this process has all three open: SQLite opened what was looked at, and nothing else."""
        return all(open_here(*each) is not None for each in (self.store, self.log, self.index))


def generation(store: Path) -> Generation | None:
    """Return the files that lie there now; None where one of them is missing. ``store``: links followed."""
    try:
        return Generation(_id(store), _id(sidecar(store, "-wal")), _id(sidecar(store, "-shm")))
    except OSError:
        return None


def strangers(bundle: Bundle, files: Generation) -> list[Opener]:
    """Return the processes that may write to a store and have not just these three files of it open.

    That is other ones, deleted ones, or fewer: a log that was renamed is found under no name of the store's.
    """
    found = _astray(bundle, files)
    if not found:
        return []
    time.sleep(_MOMENT)
    return [each for each in _astray(bundle, files) if each in found]


def _astray(bundle: Bundle, files: Generation) -> list[Opener]:
    return [each for each in openers(bundle) if each.store.writes and _files_of(each) != files]


def _files_of(opener: Opener) -> Generation | None:
    store, log, index = opener.store, opener.log, opener.index
    if log is None or index is None or opener.deleted:
        return None
    return Generation((store.device, store.inode), (log.device, log.inode), (index.device, index.inode))


def _id(path: Path) -> Id:
    status = path.stat()
    return status.st_dev, status.st_ino
