"""The pages of a store as they are at one moment: most of them read raw, which costs a quarter of reading their rows.

They are read through the file that SQLite has open: opening it once more, and closing that, would drop its locks.
Why what is read so is what SQLite would read at that moment, by pace:

FREE: nobody writes. Where a private copy has a log, its index says which pages are newer there.

SNAPSHOT: a read transaction is open. A checkpoint writes into the file only pages that have a frame in the log, and
only frames that every reader's mark reaches; a page whose last frame of ours is carried over already is not written
again while our mark stands, since what comes later lies behind it. So a page is read from the log where its last
frame up to ours waits there still, else from the file. That the index's figures are those of our moment shows by
looking before and after it begins. If all frames were carried over, we hold the lock of those who read the file only
(or a mark): a writer may begin the log anew, but not one frame of that is carried over before we let go; nor do we
look at the log then. If some wait, we hold a mark, and nobody can begin the log anew. What SQLite builds from a log
that nobody has open is in its memory only: where there is such a log with any content, that is a doubt.

SLICED: rollback mode. A shared lock keeps writers out of the file for a short while; the store's version, asked at
the begin of each slice, shows whether somebody wrote in between, and ends the moment.
"""

from __future__ import annotations

import os
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path

import apsw

from hermes_doctor.host.bundle import sidecar
from hermes_doctor.host.wal_files import FRAME_HEADER_BYTES, LOG_HEADER_BYTES, Log, read_log
from hermes_doctor.store.reader import SLICE_SECONDS, SNAPSHOT_SECONDS, Pace, Reader

#: Bytes that are read at once: what fits into a processor's second cache is hashed fastest.
READ_BYTES = 1 << 18
#: Seconds of one slice of reading.
_SLICE = SLICE_SECONDS / 4
#: Looks at a log that moves while a snapshot begins.
_LOOKS = 5
#: Frames waiting in a log beyond which it is not gone through: half a gigabyte of pages of 4 KiB.
_MOST_FRAMES = 1 << 17

_MAIN, _LOG = 0, 1
#: SQLite never uses the page in which the bytes lie that its locks are of.
_LOCKED_BYTE = 1 << 30
_MAGIC = b"SQLite format 3\x00"


class Doubt(Exception):  # noqa: N818  # no error: a reason to read the rows instead
    """What is there is not what should be, or cannot be told; the message is a short phrase.

    ``passing``: it comes from what somebody did meanwhile, so that another try may do.
    """

    def __init__(self, reason: str, *, passing: bool = False) -> None:
        super().__init__(reason)
        self.passing = passing


class RawPages:
    """The pages of one moment, which lasts until `close`; use it as a context manager.

    ``size``: bytes of a page; ``reserved``: those at its end that are not SQLite's; ``count``: how many pages the
    store has; ``encoding``: the number of its text encoding.

    Nothing else may be read by the reader while it is made; a snapshot of the reader's ends. Raises Doubt where the
    moment cannot be had, and apsw.Error as any first read does.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._connection = reader.connection
        self._slice = ExitStack()
        #: A connection is for one thread at a time.
        self._one = threading.Lock()
        self._version: int | None = None
        self._frames: Mapping[int, int] = {}
        self._began = self._slice_began = time.monotonic()
        self.size = self.reserved = self.count = self.encoding = 0
        try:
            self._begin()
            self._read_header()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> RawPages:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the moment. May be called more than once."""
        self._slice.close()

    @property
    def usable(self) -> int:
        """Bytes of a page that are SQLite's."""
        return self.size - self.reserved

    @property
    def expired(self) -> bool:
        """Whether the moment has to be let go before much more is read: it keeps a log from being begun anew."""
        return self._reader.pace is Pace.SNAPSHOT and time.monotonic() - self._began >= SNAPSHOT_SECONDS

    def has(self, number: int) -> bool:
        """Whether there can be a page of that number in a tree of rows."""
        return 2 <= number <= self.count and number != _LOCKED_BYTE // self.size + 1

    def page(self, number: int) -> bytes:
        """Return a page."""
        self.breathe()
        return self._bytes_of(number, self.size)

    def first_number(self, number: int) -> int:
        """Return what the first four bytes of a page say: of one that a long row goes on in, which is the next."""
        self.breathe()
        return int.from_bytes(self._bytes_of(number, 4), "big")

    def feed(self, runs: Sequence[int], take: Callable[[bytes], object]) -> None:
        """Hand over the bytes of pages, in pieces. ``runs``: the first number and how many follow it, by turns."""
        with self._one:
            self._feed(runs, take)

    def _feed(self, runs: Sequence[int], take: Callable[[bytes], object]) -> None:
        connection, size = self._connection, self.size
        for first, count in zip(runs[::2], runs[1::2], strict=True):
            if self._frames and self._is_newer(first, count):
                for number in range(first, first + count):
                    take(self.page(number))
                continue
            offset, end = (first - 1) * size, (first - 1 + count) * size
            while offset < end:
                self.breathe()
                amount = min(READ_BYTES, end - offset)
                take(_read(connection, _MAIN, offset, amount))
                offset += amount

    def is_in_file(self, runs: Sequence[int]) -> bool:
        """Whether those pages are in the file as they are at this moment, not in the log; ``runs`` as for `feed`."""
        return not self._frames or not any(map(self._is_newer, runs[::2], runs[1::2]))

    def _is_newer(self, first: int, count: int) -> bool:
        return not self._frames.keys().isdisjoint(range(first, first + count))

    def breathe(self) -> None:
        """Let a writer have its turn where one may wait.

        Raises Doubt where somebody wrote, and TimeIsUp past the reader's deadline.
        """
        self._reader.check_time()
        if self._reader.pace is not Pace.SLICED:
            return
        if time.monotonic() - self._slice_began >= _SLICE:
            self.refresh()

    def refresh(self) -> None:
        """Begin a new slice, so that something else can be read in it, at the same moment. Raises Doubt likewise."""
        if self._reader.pace is not Pace.SLICED:
            return
        self._slice.close()
        if self._reader.rests:
            time.sleep(min(time.monotonic() - self._slice_began, SLICE_SECONDS))
        self._begin_slice()

    def _begin(self) -> None:
        if self._reader.pace is Pace.SLICED:
            self._begin_slice()
            return
        if self._reader.pace is Pace.SNAPSHOT:
            self._reader.finish()
            if self._connection.txn_state("main") != apsw.SQLITE_TXN_NONE:
                raise Doubt("the store is being read already")
        for _ in range(_LOOKS):
            before = self._look_at_log()
            self._begun()
            if self._connection.pragma("journal_mode") != "wal":
                return
            log = self._look_at_log()
            if not self._shares_index():
                if _is_complete(self._connection, _LOG, LOG_HEADER_BYTES):
                    raise Doubt("nobody has its log open")
                return
            if before is not None and log is not None and _figures(before) == _figures(log):
                self._frames = self._waiting(log)
                return
            self._slice.close()
        raise Doubt("what its log has does not stand still", passing=True)

    def _begin_slice(self) -> None:
        self._begun()
        # Where it was changed to another mode meanwhile, its version was changed too.
        if self._connection.pragma("journal_mode") == "wal":
            raise Doubt("it has a log")

    def _begun(self) -> None:
        self._slice.enter_context(self._reader.pinned())
        self._slice_began = time.monotonic()
        # The first read: SQLite begins a transaction with it, not with BEGIN.
        version = int(str(self._connection.pragma("data_version")))
        if self._version not in (None, version) and self._reader.pace is Pace.SLICED:
            raise Doubt("somebody writes to it", passing=True)
        self._version = version

    def _read_header(self) -> None:
        self.size = int(str(self._connection.pragma("page_size")))
        self.count = int(str(self._connection.pragma("page_count")))
        header = self._bytes_of(1, self.size)
        size = int.from_bytes(header[16:18], "big")
        if header[:16] != _MAGIC or (size == 1 and self.size != 1 << 16) or (size != 1 and size != self.size):
            raise Doubt("its header is not that of the store that is open")
        self.reserved = header[20]
        self.encoding = int.from_bytes(header[56:60], "big")

    def _look_at_log(self) -> Log | None:
        store = self._store()
        return None if store is None else read_log(store)

    def _store(self) -> Path | None:
        try:
            return Path(self._connection.filename)
        except UnicodeDecodeError:
            return None

    def _shares_index(self) -> bool:
        """Whether SQLite has mapped the index that lies beside the store: then it is what it goes by.

        Raises Doubt where the system does not tell (it does on Linux).
        """
        store = self._store()
        try:
            if store is None:
                return False
            inode = str(sidecar(store, "-shm").stat().st_ino).encode()
            with Path("/proc/self/maps").open("rb") as maps:
                mapped = [line.split(maxsplit=5) for line in maps]
        except FileNotFoundError:
            raise Doubt("it cannot be told whose index its log has") from None
        # The device is left out: that of some file systems is not the one that stat tells.
        return any(len(line) == 6 and line[4] == inode and line[5].rstrip().endswith(b"-shm") for line in mapped)

    def _waiting(self, log: Log) -> dict[int, int]:
        """Return the last frame of each page that is newer in the log, counted from 0."""
        index = log.index
        if log.missing:
            raise Doubt("its log is cut short")
        if index.frames <= index.carried:
            return {}
        if index.frames - index.carried > _MOST_FRAMES:
            raise Doubt("too much waits in its log")
        header = _read(self._connection, _LOG, 0, LOG_HEADER_BYTES)
        if header[16:24] != index.salts or int.from_bytes(header[8:12], "big") != index.page_size:
            raise Doubt("its log is not the one that its index is of")
        frame_bytes = FRAME_HEADER_BYTES + index.page_size
        frame = struct.Struct(f">I4x8s{frame_bytes - 16}x")
        at_once = max(1, READ_BYTES // frame_bytes)
        frames: dict[int, int] = {}
        for first in range(index.carried, index.frames, at_once):
            count = min(at_once, index.frames - first)
            piece = _read(self._connection, _LOG, LOG_HEADER_BYTES + first * frame_bytes, count * frame_bytes)
            for position, (number, salts) in enumerate(frame.iter_unpack(piece), first):
                if salts != index.salts or not number:
                    raise Doubt("a frame of its log is not what its index says")
                frames[number] = position
        return frames

    def _bytes_of(self, number: int, amount: int) -> bytes:
        frame = self._frames.get(number)
        if frame is None:
            return _read(self._connection, _MAIN, (number - 1) * self.size, amount)
        offset = LOG_HEADER_BYTES + frame * (FRAME_HEADER_BYTES + self.size)
        found = _read(self._connection, _LOG, offset, FRAME_HEADER_BYTES + amount)
        if int.from_bytes(found[:4], "big") != number:
            raise Doubt("its log was begun anew")
        return found[FRAME_HEADER_BYTES:]


def _read(connection: apsw.Connection, which: int, offset: int, amount: int) -> bytes:
    try:
        complete, found = connection.read("main", which, offset, amount)
    except apsw.Error:
        raise Doubt("a page cannot be read") from None
    if not complete:
        raise Doubt("the file ends before its last page")
    return found


def _is_complete(connection: apsw.Connection, which: int, amount: int) -> bool:
    try:
        return connection.read("main", which, 0, amount)[0]
    except apsw.Error:
        raise Doubt("its log cannot be read") from None


def _figures(log: Log) -> tuple[int, int, bytes]:
    return log.index.frames, log.index.carried, log.index.salts


def feed_from_file(descriptor: int, size: int, runs: Sequence[int], take: Callable[[memoryview], object]) -> None:
    """Hand over the bytes of pages, in pieces, read by a descriptor; other threads can work meanwhile.

    ``size``: bytes of a page; ``runs`` as for `RawPages.feed`. Raises Doubt where the file ends before.
    """
    buffer = memoryview(bytearray(READ_BYTES))
    filled = 0
    for first, count in zip(runs[::2], runs[1::2], strict=True):
        offset, end = (first - 1) * size, (first - 1 + count) * size
        while offset < end:
            amount = min(READ_BYTES - filled, end - offset)
            if os.preadv(descriptor, [buffer[filled : filled + amount]], offset) != amount:
                raise Doubt("the file ends before its last page")
            filled += amount
            offset += amount
            if filled == READ_BYTES:
                take(buffer)
                filled = 0
    if filled:
        take(buffer[:filled])


def runs_of(numbers: list[int]) -> Iterator[tuple[int, int]]:
    """Give the runs of ascending numbers, none of them twice: the first and how many follow one another."""
    if not numbers:
        return
    first = last = numbers[0]
    for number in islice(numbers, 1, None):
        if number != last + 1:
            yield first, last - first + 1
            first = number
        last = number
    yield first, last - first + 1
