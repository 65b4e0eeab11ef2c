"""How far a write-ahead log has been carried over into its store, read from the header of its index, the ``-shm``.

SQLite tells this by checkpointing only, and refuses even a checkpoint that does nothing (SQLITE_CHECKPOINT_NOOP) on a
read-only connection. So the header is read: through a descriptor that SQLite has open in this process where there is
one, since closing one of our own would drop SQLite's locks; else by opening the file.
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from hermes_doctor.host.bundle import open_here, sidecar

#: Bytes of a log's own header, and of the header of each of its frames.
LOG_HEADER_BYTES = 32
FRAME_HEADER_BYTES = 24

#: The version of the index's format, the only one there is.
_INDEX_VERSION = 3007000
#: Two copies of 48 bytes, the last eight a sum over the others; then what was carried over, and five read marks.
_INDEX_HEADER = struct.Struct("=II4xBBHII8s8s8s")
_CARRIED = struct.Struct("=I5I")
_INDEX_BYTES = 2 * _INDEX_HEADER.size + _CARRIED.size
#: Where the first lock of the index lies, in the order in which SQLite has them; those of readers come last.
_LOCKS_AT, _CHECKPOINT_LOCK, _FIRST_READER, _LOCKS = 120, 121, 123, 8
#: The lock behind them is held, shared, by everybody who uses the index (SQLite's "dead man's switch").
_IN_USE_LOCK = _LOCKS_AT + _LOCKS

_LOOKS = 5


@dataclass(frozen=True)
class LogIndex:
    """What an index says of its log.

    ``frames``: those that are committed; ``carried``: so many of them, from the first on, are in the store's file too.
    ``marks``: frames that each of the five places of readers reaches to. ``salts``: of the log that it belongs to.
    ``page_size``: bytes of a page, and so of a frame without its header.
    """

    frames: int
    carried: int
    marks: tuple[int, ...]
    salts: bytes
    page_size: int


@dataclass(frozen=True)
class Log:
    """A log at one moment. ``present``: the frames that there is room for in its file; ``bytes``: None without one."""

    index: LogIndex
    bytes: int | None
    present: int

    @property
    def waiting(self) -> int:
        """Committed frames that are in the log only."""
        return max(0, min(self.index.frames, self.present) - self.index.carried)

    @property
    def missing(self) -> int:
        """Committed frames that are in no file: the log was cut off, or taken away."""
        return max(0, self.index.frames - max(self.present, self.index.carried))


class Busy(NamedTuple):
    """Who is at work on a log. ``readers``: processes that read a moment before its last frame; the doctor left out."""

    checkpointing: bool
    readers: tuple[int, ...]


def read_log(store: Path) -> Log | None:
    """Look at the log of a store and its index; None where there is no index, or it tells nothing of this log.

    ``store``: the file that SQLite was told to open, links followed.
    """
    wal, shm = sidecar(store, "-wal"), sidecar(store, "-shm")
    for _ in range(_LOOKS):
        index = parse_index(_peek(shm, _INDEX_BYTES))
        size, header = size_of(wal), _peek(wal, LOG_HEADER_BYTES)
        # A log that was written, or begun anew, between the two looks would be held against another's index.
        if index is not None and index == parse_index(_peek(shm, _INDEX_BYTES)):
            if index.frames and len(header) == LOG_HEADER_BYTES and header[16:24] != index.salts:
                return None
            room = max(0, (size or 0) - LOG_HEADER_BYTES)
            return Log(index, size, room // (FRAME_HEADER_BYTES + index.page_size))
    return None


def parse_index(data: bytes) -> LogIndex | None:
    """Return what the first bytes of an index say; None where they are none, or are just being written."""
    if len(data) < _INDEX_BYTES or data[:48] != data[48:96]:
        return None
    version, _, ready, _, size, frames, _, _, salts, _ = _INDEX_HEADER.unpack_from(data)
    if version != _INDEX_VERSION or not ready or _sum(data[:40]) != data[40:48]:
        return None
    carried, *marks = _CARRIED.unpack_from(data, 96)
    # 65536 does not fit into the field: its lowest bit stands for it.
    return LogIndex(frames, carried, tuple(marks), salts, (size & 0xFFFE) + ((size & 1) << 16))


def who_is_busy(store: Path, index: LogIndex, locks: str | None = None) -> Busy:
    """Say who has locks on the log of a store that keep frames from being carried over; nobody where it is not told.

    ``locks`` stands in for the text of ``/proc/locks`` (Linux).
    """
    try:
        inode = sidecar(store, "-shm").stat().st_ino
        text = Path("/proc/locks").read_text() if locks is None else locks
    except OSError:
        return Busy(checkpointing=False, readers=())
    checkpointing, readers = False, set()
    for pid, first, last in _locked(text, inode):
        held = range(first, last + 1)
        checkpointing = checkpointing or _CHECKPOINT_LOCK in held
        behind = (_FIRST_READER + place for place, mark in enumerate(index.marks) if mark < index.frames)
        if pid > 0 and pid != os.getpid() and any(lock in held for lock in behind):
            readers.add(pid)
    return Busy(checkpointing, tuple(sorted(readers)))


def index_users(locks: str | None = None) -> set[tuple[int, int]]:
    """Return which other processes use the index of which log, as pairs of their number and the file's inode.

    Whoever has a store in WAL mode open holds a lock on it, which keeps who opens it next from making it anew. Nothing
    where it is not told. ``locks`` stands in for the text of ``/proc/locks`` (Linux).
    """
    try:
        text = Path("/proc/locks").read_text() if locks is None else locks
    except OSError:
        return set()
    held = _locks(text)
    return {(pid, inode) for pid, inode, first, last in held if first <= _IN_USE_LOCK <= last and pid != os.getpid()}


def _locked(text: str, inode: int) -> Iterator[tuple[int, int, int]]:
    """Give who has locked which bytes of a log's index, of the lines of ``/proc/locks``."""
    for pid, locked, first, last in _locks(text):
        if locked == inode and last < _LOCKS_AT + _LOCKS:
            yield pid, first, last


def _locks(text: str) -> Iterator[tuple[int, int, int, int]]:
    """Give the process, the file's inode, and the first and last byte of each lock with an end."""
    for line in text.splitlines():
        fields = line.split()
        # "->" stands before those that wait for a lock.
        inode = fields[5].rpartition(":")[2] if len(fields) == 8 and fields[1] == "POSIX" else ""
        if inode.isdigit() and fields[6].isdigit() and fields[7].isdigit():
            yield int(fields[4]), int(inode), int(fields[6]), int(fields[7])


def _sum(data: bytes) -> bytes:
    """Return SQLite's sum over a log's data, as an index has it: in the machine's own order of bytes."""
    first = second = 0
    words = struct.unpack(f"={len(data) // 4}I", data)
    for one, other in zip(words[::2], words[1::2], strict=True):
        first = (first + one + second) & 0xFFFFFFFF
        second = (second + other + first) & 0xFFFFFFFF
    return struct.pack("=II", first, second)


def size_of(file: Path) -> int | None:
    """Return how many bytes a file has, None where it cannot be seen."""
    try:
        return file.stat().st_size
    except OSError:
        return None


def _peek(file: Path, count: int) -> bytes:
    """Return the first bytes of a file, without closing a descriptor of what this process has open; none on failure."""
    if sys.platform == "win32":
        return b""
    try:
        status = file.stat()
        descriptor = open_here(status.st_dev, status.st_ino)
        if descriptor is not None:
            return os.pread(descriptor, count, 0)
        with file.open("rb", buffering=0) as opened:
            return opened.read(count) or b""
    except OSError:
        return b""
