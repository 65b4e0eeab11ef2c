"""What a store takes up, what a VACUUM would give back of it, and the room that a VACUUM needs meanwhile.

A VACUUM writes the store anew into a temporary file, and then copies that back: through the write-ahead log, or after
saving the old pages in the rollback journal. Either lies beside the store.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import apsw

from hermes_doctor.host.room import free_bytes, same_filesystem, sqlite_temporary_folder

#: Bytes that must stay free beyond what is expected to be written.
SPARE = 16 << 20


class Extent(NamedTuple):
    """What a store takes up, in bytes and in pages; ``log_bytes``: of its write-ahead log."""

    file_bytes: int
    log_bytes: int
    page_size: int
    pages: int
    free_pages: int

    @property
    def bytes(self) -> int:
        """Bytes on the disk: the file and its log."""
        return self.file_bytes + self.log_bytes

    @property
    def free_bytes(self) -> int:
        """Bytes of free pages: what a VACUUM gives back at least. Pages that are half empty come on top."""
        return self.free_pages * self.page_size

    @property
    def free_share(self) -> float:
        """The share of the pages that are free, 0 to 1."""
        return self.free_pages / self.pages if self.pages else 0.0


class Room(NamedTuple):
    """How many bytes a VACUUM needs on the file system of a folder, and how many are free there."""

    folder: Path
    needed: int
    free: int

    @property
    def is_enough(self) -> bool:
        """Whether it fits."""
        return self.needed <= self.free


def extent(connection: apsw.Connection, file_bytes: int, log_bytes: int) -> Extent:
    """Measure a store through a connection; reads one page. Raises apsw.Error where that cannot be read."""
    size, pages, free = (int(str(connection.pragma(each))) for each in ("page_size", "page_count", "freelist_count"))
    return Extent(file_bytes, log_bytes, size, pages, free)


def room_for_vacuum(store: Path, size: int) -> Sequence[Room]:
    """Return what a VACUUM needs where: twice the ``size`` (bytes of the store and its log), in one place or in two.

    Raises OSError where a file system cannot be asked.
    """
    beside, aside = store.parent, sqlite_temporary_folder()
    if same_filesystem(beside, aside):
        return [Room(beside, 2 * size + SPARE, free_bytes(beside))]
    return [Room(folder, size + SPARE, free_bytes(folder)) for folder in (beside, aside)]
