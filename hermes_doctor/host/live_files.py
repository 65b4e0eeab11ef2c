"""Whether everybody who has a store open has the same three files: the store, its log, and the log's index.

Whoever has a log open that was deleted, or a store that another file has taken the place of, writes where others do
not look. To write beside such a one would make two stores of one. Only names, stat and ``/proc``: nothing is opened,
since closing a descriptor would drop the locks that this process holds on the file through SQLite.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hermes_doctor.host.bundle import Bundle, open_here, sidecar
from hermes_doctor.host.openers import File, Opener, openers

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


def strangers(bundle: Bundle, files: Generation) -> Iterator[Opener]:
    """Give the processes that have another file open than the one that lies there, or one that was deleted."""
    for opener in openers(bundle):
        if opener.deleted or any(
            file is not None and (file.device, file.inode) != wanted for file, wanted in _pairs(opener, files)
        ):
            yield opener


def _pairs(opener: Opener, files: Generation) -> tuple[tuple[File | None, Id], ...]:
    return (opener.store, files.store), (opener.log, files.log), (opener.index, files.index)


def _id(path: Path) -> Id:
    status = path.stat()
    return status.st_dev, status.st_ino
