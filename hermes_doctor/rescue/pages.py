"""The pages of a private copy, read by hand: what each is, and the cells of those of tables.

Only a page's own bytes are looked at here; whether it is where it should be, `trees` and `loose` tell.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from hermes_doctor.rescue.records import Layout, Record, layout_of, only_blobs, read_record, signed, varint

MAGIC = b"SQLite format 3\x00"
HEADER_BYTES = 100
#: The first byte of a page of a table: one that leads to others, and one that holds rows.
INTERIOR, LEAF = 0x05, 0x0D
_INTERIOR_HEADER, _LEAF_HEADER = 12, 8
#: The longest value that SQLite writes, and so about the longest row.
_LONGEST_ROW = (1 << 31) - 1
#: Bytes that are read at once where pages are looked at one after the other.
_WINDOW = 1 << 20
_ENCODINGS = {1: "UTF-8", 2: "UTF-16le", 3: "UTF-16be"}


@dataclass(frozen=True)
class Cell:
    """One row in a page of a table.

    ``number``: its rowid; ``length``: bytes of its record; ``start`` and ``end``: where the part of it that is in the
    page begins and ends; ``body``: where its record begins; ``overflow``: the page that holds the rest, 0 where
    nothing is left.
    """

    number: int
    length: int
    start: int
    body: int
    end: int
    overflow: int


@dataclass(frozen=True)
class Leaf:
    """The rows of a page, those that can be read. ``whole``: the page is all that it says, and in order."""

    cells: list[Cell]
    whole: bool


@dataclass(frozen=True)
class Branch:
    """A page that leads to others: the pages, each with the highest rowid in it, and the one behind the last.

    0 stands for a page that the file once had: it was cut off. ``whole``: as for a `Leaf`.
    """

    children: list[tuple[int, int]]
    last: int
    whole: bool

    @property
    def ways(self) -> list[int]:
        """All pages that it leads to."""
        return [child for child, _ in self.children] + ([self.last] if self.last else [])


class Pages:
    """The pages of a file, some of them newer in its log.

    ``size``: bytes of a page; ``usable``: those that SQLite uses; ``count``: pages of the file with its log.
    """

    def __init__(
        self, file: Path, size: int, reserved: int = 0, encoding: str = "UTF-8", newer: Mapping[int, int] | None = None
    ) -> None:
        """``newer``: where the last copy of a page begins in the log, for the pages that are in it."""
        self.size, self.usable, self.encoding = size, size - reserved, encoding
        self._newer = newer or {}
        self._file = file.open("rb", buffering=0)
        self._log = file.with_name(file.name + "-wal").open("rb", buffering=0) if self._newer else None
        self._file_bytes = os.fstat(self._file.fileno()).st_size
        self.count = max(-(-self._file_bytes // size), max(self._newer, default=0))
        header = self._read(1)
        #: How many pages the header says there are: a file that was cut off leads to some that are not there.
        self.promised = int.from_bytes(header[28:32], "big") if header.startswith(MAGIC) else 0
        #: The page that was asked for last: most are asked for several times in a row.
        self._last: tuple[int, bytes] = (0, b"")
        self._window: tuple[int, bytes] = (-1, b"")

    def close(self) -> None:
        """Let go of the files."""
        self._file.close()
        if self._log is not None:
            self._log.close()

    def with_newer(self, newer: Mapping[int, int]) -> Pages:
        """Return the same pages, but that more of them are newer in the log."""
        reserved = self.size - self.usable
        return Pages(Path(self._file.name), self.size, reserved, self.encoding, {**self._newer, **newer})

    def __enter__(self) -> Pages:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def page(self, number: int) -> bytes:
        """Return a page; what the file lacks of it is zeros."""
        if self._last[0] != number:
            self._last = (number, self._read(number))
        return self._last[1]

    def _read(self, number: int) -> bytes:
        at = self._newer.get(number)
        if at is None or self._log is None:
            data = os.pread(self._file.fileno(), self.size, (number - 1) * self.size)
        else:
            data = os.pread(self._log.fileno(), self.size, at)
        return data.ljust(self.size, b"\0")

    def first_byte(self, number: int) -> int:
        """Return what says of which kind a page is; that of the first page lies behind its header."""
        if number in self._newer:
            return self.page(number)[0]
        # Asked for one after the other: read by the window.
        window, place = divmod((number - 1) * self.size, _WINDOW)
        if self._window[0] != window:
            self._window = (window, os.pread(self._file.fileno(), _WINDOW, window * _WINDOW))
        data = self._window[1]
        return data[place] if place < len(data) else 0

    def has(self, number: int) -> bool:
        """Whether the file or its log has a page of that number, the first excepted, which nothing leads to."""
        return 1 < number <= self.count

    def is_zeros(self, number: int) -> bool:
        """Whether a page holds nothing but zeros."""
        return not self.page(number).strip(b"\0")

    def leaf(self, number: int) -> Leaf | None:
        """Return the rows of a page, None where it is no page of rows."""
        data = self.page(number)
        base = HEADER_BYTES if number == 1 else 0
        if data[base] != LEAF:
            return None
        places, first = self._places(data, base, _LEAF_HEADER)
        if places is None:
            return Leaf([], whole=False)
        cells: list[Cell] = []
        whole = True
        for place in places:
            cell = self._cell(data, place, first)
            if cell is None or (cells and cell.number <= cells[-1].number):
                whole = False
            else:
                cells.append(cell)
        return Leaf(cells, whole and not _overlap(cells))

    def branch(self, number: int) -> Branch | None:
        """Return where a page leads to, None where it leads nowhere."""
        data = self.page(number)
        base = HEADER_BYTES if number == 1 else 0
        if data[base] != INTERIOR:
            return None
        places, first = self._places(data, base, _INTERIOR_HEADER)
        if places is None:
            return Branch([], 0, whole=False)
        children: list[tuple[int, int]] = []
        # The first page has less room than others: what does not fit into it any more may be all in one page below.
        whole = bool(places) or number == 1
        for place in places:
            try:
                key, end = varint(data, place + 4)
            except IndexError:
                key, end = 0, self.usable + 1
            child = int.from_bytes(data[place : place + 4], "big")
            fits = first <= place and end <= self.usable
            if fits and (self.has(child) or self.count < child <= self.promised):
                children.append((child if self.has(child) else 0, signed(key)))
            else:
                whole = False
        last = int.from_bytes(data[base + 8 : base + 12], "big")
        return Branch(children, last if self.has(last) else 0, whole)

    def _places(self, data: bytes, base: int, header: int) -> tuple[tuple[int, ...] | None, int]:
        """Return where the cells of a page begin, None where it has no room for as many, and the first place for one.

        ``base``: where the page's own header begins; ``header``: how many bytes that has.
        """
        count = int.from_bytes(data[base + 3 : base + 5], "big")
        first = base + header + 2 * count
        return struct.unpack_from(f">{count}H", data, base + header) if first <= self.usable else None, first

    def payload(self, number: int, cell: Cell, used: bytearray | None = None) -> bytes:
        """Return a row's record, as far as its pages can be followed: shorter than it should be where they cannot.

        ``used``: a mark for each page; one that another row's record was read from already is not followed, and those
        that are get theirs.
        """
        return self._followed(number, cell, used)[0]

    def _followed(self, number: int, cell: Cell, used: bytearray | None) -> tuple[bytes, bool]:
        """Return a row's record as far as it is there, and whether its last page ends as the last one of a row does."""
        data = self.page(number)[cell.body : cell.end]
        if not cell.overflow:
            return data, True
        pieces = [data]
        ends_well = True
        missing = cell.length - len(data)
        following, room = cell.overflow, self.usable - 4
        while missing > 0:
            if not self.has(following) or (used is not None and used[following]):
                break
            page = self.page(following)
            after = int.from_bytes(page[:4], "big")
            # The last page of a chain leads nowhere, all others do. Where it leads to a page that is none, that may be
            # all that is wrong.
            ends_well = after == 0 or missing > room
            if (after == 0 and missing > room) or (not ends_well and self.has(after)):
                break
            if used is not None:
                used[following] = 1
            pieces.append(page[4 : 4 + min(room, missing)])
            missing -= room
            following = after
        return b"".join(pieces), ends_well

    def record(self, number: int, cell: Cell, used: bytearray | None = None, held: int | None = None) -> Record | None:
        """Return the values of a row; None where what lies there is no record.

        ``held``: no more bytes of it count. The last page of a long row may hold nothing but zeros: where they are the
        end of a blob that may be right, and the record says so; else the page was wiped, and the row is cut.
        """
        payload, ends_well = self._followed(number, cell, used)
        payload = payload[:held]
        layout = layout_of(payload)
        if layout is None or layout.bytes != cell.length:
            return None
        if not cell.overflow or len(payload) < cell.length:
            return read_record(payload, layout, self.encoding)
        begin = cell.length - ((cell.length - (cell.end - cell.body) - 1) % (self.usable - 4) + 1)
        if payload[begin:].strip(b"\0"):
            return replace(read_record(payload, layout, self.encoding), odd_end=not ends_well)
        if only_blobs(layout, begin):
            return replace(read_record(payload, layout, self.encoding), odd_end=True)
        return read_record(payload[:begin], layout, self.encoding)

    def layout(self, number: int, cell: Cell) -> Layout | None:
        """Return what the header of a row's record says; None where what lies there is no record."""
        layout = layout_of(self.page(number)[cell.body : cell.end])
        if layout is None:
            # A header that is longer than what a page holds of its row.
            layout = layout_of(self.payload(number, cell))
        return layout if layout is not None and layout.bytes == cell.length else None

    def _cell(self, data: bytes, start: int, first: int) -> Cell | None:
        if not first <= start < self.usable:
            return None
        try:
            length, at = varint(data, start)
            number, body = varint(data, at)
        except IndexError:
            return None
        if not 1 <= length <= _LONGEST_ROW:
            return None
        local = self._local(length)
        end = body + local
        overflow = 0
        if local < length:
            overflow = int.from_bytes(data[end : end + 4], "big")
            if not self.has(overflow):
                overflow = self.count + 1
        if end + (4 if overflow else 0) > self.usable:
            return None
        return Cell(signed(number), length, start, body, end, overflow)

    def _local(self, length: int) -> int:
        """Return how many bytes of a record are kept in a page of a table (the file format's own sums)."""
        most = self.usable - 35
        if length <= most:
            return length
        least = (self.usable - 12) * 32 // 255 - 23
        kept = least + (length - least) % (self.usable - 4)
        return kept if kept <= most else least


def _overlap(cells: list[Cell]) -> bool:
    end = 0
    for cell in sorted(cells, key=lambda cell: cell.start):
        if cell.start < end:
            return True
        end = cell.end + (4 if cell.overflow else 0)
    return False


def free_pages(pages: Pages) -> tuple[bytearray, bool]:
    """Return a mark for each page that was given back, and whether the list of them is whole."""
    marks = bytearray(pages.count + 2)
    header = pages.page(1)
    trunk = int.from_bytes(header[32:36], "big")
    promised = int.from_bytes(header[36:40], "big")
    found = 0
    while trunk and pages.has(trunk) and not marks[trunk]:
        marks[trunk] = 1
        found += 1
        data = pages.page(trunk)
        for leaf in _listed(data, pages.usable):
            if not pages.has(leaf) or marks[leaf]:
                return marks, False
            marks[leaf] = 1
            found += 1
        trunk = int.from_bytes(data[:4], "big")
    return marks, trunk == 0 and found == promised


def mark_behind_the_end(pages: Pages, marks: bytearray) -> None:
    """Mark pages, too, that lie behind the end that the header gives: the file was not cut off there yet."""
    header = pages.page(1)
    count = int.from_bytes(header[28:32], "big")
    # SQLite before 3.7.0 left the count as it was; then the two counters differ.
    if 0 < count < pages.count and header[24:28] == header[92:96]:
        marks[count + 1 : pages.count + 1] = bytes([1]) * (pages.count - count)


def cuts_off_free_pages(pages: Pages) -> bool:
    """Whether the file keeps no free pages at all (auto_vacuum = FULL)."""
    header = pages.page(1)
    return header[52:56] != bytes(4) and header[64:68] == bytes(4)


def _listed(data: bytes, usable: int) -> Iterator[int]:
    count = min(int.from_bytes(data[4:8], "big"), usable // 4 - 2)
    for at in range(8, 8 + 4 * count, 4):
        yield int.from_bytes(data[at : at + 4], "big")


def encoding_of(header: bytes) -> str:
    """Return the encoding of texts that a file's header names, as SQLite names it; UTF-8 where it is no header."""
    # SQLite looks at these two bits only.
    known = _ENCODINGS.get(int.from_bytes(header[56:60], "big") & 3) if header.startswith(MAGIC) else None
    return known or "UTF-8"
