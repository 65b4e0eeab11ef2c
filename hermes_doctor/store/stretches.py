"""Stretches of a table: so many rows that follow one another, and a proof, on a later day, that they are as they were.

A table's rows lie in the leaves of its tree, in the order of their rowids; what does not fit into a leaf goes on in a
chain of pages of its own. A stretch is some leaves that follow one another and all pages that their rows go on in.
Its rows are the very same, and none has come between them, where

- the leaves still follow one another in the tree as it is now, and the tree leads to them with those rowids: the page
  above them has the same bytes, or else its list of leaves, and the numbers that divide them, are gone through;
- all pages have the same bytes. Rows refer to the pages that they go on in by number, so the chains are the same too;
- what says how bytes are to be read is the same: sizes of pages, text encoding, the table's own statement.

It needs no word of who may have written to the file, and holds over anything: pages that were freed with what was in
them, used anew, moved by a vacuum; an older copy in the file's place; rows rewritten at the same size.

Bytes are compared by XXH3 of 128 bits: two that differ by accident, be it in a million stores each night, will not
meet there. It is no protection from somebody who makes two pages to meet; who can write to the store can do worse.

Of a damaged tree it says nothing beyond the stretch: a leaf elsewhere that holds a rowid of it is not looked at.
"""

from __future__ import annotations

import os
import struct
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import compress, islice
from typing import NamedTuple

from xxhash import xxh3_128, xxh3_128_digest

from hermes_doctor.store.raw_pages import Doubt, RawPages, feed_from_file, runs_of
from hermes_doctor.store.reader import Pace, Reader
from hermes_doctor.store.shape import Table

#: A stretch ends with the leaf with which it has so many rows, or so many bytes.
STRETCH_ROWS = 2048
STRETCH_BYTES = 8 << 20

_LOWEST, _HIGHEST = -(1 << 63), (1 << 63) - 1
#: The first byte of a page: of one that leads to others, of one with rows.
_INTERIOR, _LEAF = 5, 13
_INTERIOR_CELLS, _LEAF_CELLS = 12, 8
#: SQLite goes no further down either.
_DEEPEST = 20
#: Stretches that are asked about together: in a slice, since no one of them ends it.
_AT_ONCE = 8
#: Times that a recording begins anew where it stopped, since somebody wrote, before it gives up.
_PATIENCE = 20


@dataclass(frozen=True, slots=True)
class Stretch:
    """Some rows that follow one another, and what shows later that they are the same.

    ``low``, ``high``: the rowids of the first and the last. ``parent``: the page above the leaves, 0 where the only
    leaf is the root. ``linkage``: digests of that page, and of the numbers that divide the leaves. ``leaves``: their
    page numbers, in order, four bytes each with the highest first. ``runs``: all pages, as runs in ascending order:
    the first's number and how many there are, four bytes each likewise. ``digest``: of the bytes of all pages.
    """

    low: int
    high: int
    parent: int
    linkage: bytes
    leaves: bytes
    runs: bytes
    digest: bytes


@dataclass(frozen=True)
class Unchanged:
    """Which of the recorded stretches are proven to be as they were, and why no more are, where that is a doubt."""

    stretches: Sequence[Stretch]
    doubt: str | None = None


class Recording:
    """The stretches of a table as they are now, in order of their rowids; to be gone through once.

    While one is given, the reader is kept to the moment that it is of: what the consumer reads of its rows, before he
    asks for the next, is what its digest is of. He must be quick: no longer than the reader's pace allows a statement.
    From one to the next the store may have moved on, as everywhere else in the reader's walks.

    ``doubt``: afterwards, why the stretches end before the last row; None where they do not.
    """

    def __init__(self, reader: Reader, table: Table, low: int | None, high: int | None) -> None:
        self.doubt: str | None = None
        self._reader = reader
        self._table = table
        self._low = _LOWEST if low is None else low
        self._high = _HIGHEST if high is None else high

    def __iter__(self) -> Iterator[Stretch]:
        low, patience = self._low, _PATIENCE
        while True:
            given = low
            try:
                with RawPages(self._reader) as pages:
                    tree = _Tree(pages, self._reader, self._table)
                    for stretch in _stretches(tree, low, self._high):
                        yield stretch
                        if stretch.high == _HIGHEST:
                            return
                        low = stretch.high + 1
                        if pages.expired:
                            break
                    else:
                        return
            except Doubt as doubt:
                patience = _PATIENCE if low > given else patience - 1
                if not doubt.passing or not patience:
                    self.doubt = str(doubt)
                    return


def record(reader: Reader, table: Table, low: int | None = None, high: int | None = None) -> Recording:
    """Return the stretches that all rows of a table from ``low`` to ``high`` lie in.

    They consist of whole leaves: the first may begin below ``low``, and the last end above ``high``. One at a time is
    held. Raises apsw.Error where the store cannot be read at all, TimeIsUp past the reader's deadline.
    """
    return Recording(reader, table, low, high)


def unchanged(
    reader: Reader, table: Table, recorded: Iterable[Stretch], threads: int = 1, descriptor: int | None = None
) -> Unchanged:
    """Return those of the recorded stretches whose rows are proven to be the same now, with none between them.

    ``descriptor``: one of this process, of the very file that SQLite has open, that stays open (SQLite's own:
    `bundle.open_here`): by that so many ``threads`` read and hash at once. Without it, and where somebody may wait for
    the end of a slice, SQLite itself reads, in one thread.

    In a long look at a store that is written to, the first stretches are of an earlier moment than the last (the
    reader's ``moved`` says so); where it is read in slices, one that was written to meanwhile is a doubt. Raises
    apsw.Error where the store cannot be read at all, TimeIsUp past the reader's deadline.
    """
    proven: list[Stretch] = []
    waiting = iter(recorded)
    somebody_waits = reader.pace is Pace.SLICED and reader.rests
    by = None if somebody_waits or not hasattr(os, "preadv") else descriptor
    try:
        with _spreading(threads if by is not None else 1) as spread:
            some = list(islice(waiting, _AT_ONCE))
            while some:
                with RawPages(reader) as pages:
                    tree = _Tree(pages, reader, table)
                    while some:
                        pages.breathe()
                        linked = [stretch for stretch in some if _is_linked(tree, stretch)]
                        proven += compress(linked, spread(partial(_is_same, tree, by), linked))
                        some = list(islice(waiting, _AT_ONCE))
                        if pages.expired:
                            break
    except Doubt as doubt:
        return Unchanged((), str(doubt))
    return Unchanged(proven)


#: How each of some stretches is asked about: one after the other, or by several threads.
_Spread = Callable[[Callable[[Stretch], bool], Iterable[Stretch]], Iterable[bool]]


@contextmanager
def _spreading(threads: int) -> Iterator[_Spread]:
    if threads == 1:
        yield map
        return
    # Takes its time, which only large stores are worth.
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(threads) as pool:
        yield pool.map


class _Tree:
    """The tree of a table at one moment: the pages just above its leaves, in order, and what they divide."""

    def __init__(self, pages: RawPages, reader: Reader, table: Table) -> None:
        if table.without_rowid or table.rowid is None:
            raise Doubt("the table has no rowids that can be reached")
        row = reader.row(
            "SELECT rootpage, CAST(sql AS BLOB) FROM sqlite_schema WHERE type = 'table' AND name = ?", (table.name,)
        )
        root, sql = row or (None, None)
        if not isinstance(root, int) or not isinstance(sql, bytes) or not pages.has(root):
            raise Doubt("the table has no root that can be told")
        self.pages = pages
        #: What says how the bytes of rows are to be read.
        self.reading = struct.pack(">IBBI", pages.size, pages.reserved, pages.encoding, len(sql)) + sql
        self.parents = array("I")
        #: The highest rowid that may lie under each of them.
        self.uppers = array("q")
        self.digests: list[bytes] = []
        self._root = root
        self._kept: tuple[int, list[int], list[int]] = (-1, [], [])
        depth = self._depth()
        if depth:
            # No page that leads to others can be met twice: its numbers have one place in the order.
            self._go_through(root, depth, _LOWEST - 1, _HIGHEST)
        else:
            self.parents.append(0)
            self.uppers.append(_HIGHEST)
            self.digests.append(xxh3_128_digest(struct.pack(">I", root)))

    def _depth(self) -> int:
        number = self._root
        for depth in range(_DEEPEST):
            page = self.pages.page(number)
            if page[0] == _LEAF:
                return depth
            number = self._children(page)[0][0]
        raise Doubt("the tree is too deep")

    def _go_through(self, number: int, depth: int, lower: int, upper: int) -> None:
        page = self.pages.page(number)
        if depth == 1:
            if page[0] != _INTERIOR:
                raise Doubt("a page of the tree is none that leads to others")
            self.parents.append(number)
            self.uppers.append(upper)
            self.digests.append(xxh3_128_digest(page))
            return
        children, keys = self._children(page)
        _check_order(lower, keys, upper)
        for child, key in zip(children, [*keys, upper], strict=True):
            self._go_through(child, depth - 1, lower, key)
            lower = key

    def lower(self, place: int) -> int:
        """Return the number above which the rowids under a parent lie."""
        return self.uppers[place - 1] if place else _LOWEST - 1

    def leaves(self, place: int) -> tuple[list[int], list[int]]:
        """Return the leaves under a parent and the highest rowid that may lie in each."""
        if self._kept[0] != place:
            upper = self.uppers[place]
            if self.parents[place]:
                children, keys = self._children(self.pages.page(self.parents[place]))
                _check_order(self.lower(place), keys, upper)
            else:
                children, keys = [self._root], []
            self._kept = place, children, [*keys, upper]
        return self._kept[1:]

    def _children(self, page: bytes) -> tuple[list[int], list[int]]:
        """Return the pages that one leads to, and the highest rowid under each but the last."""
        count = int.from_bytes(page[3:5], "big")
        if page[0] != _INTERIOR or not count or _INTERIOR_CELLS + 2 * count > self.pages.usable:
            raise Doubt("a page of the tree is none that leads to others")
        children: list[int] = []
        keys: list[int] = []
        try:
            for at in struct.unpack_from(f">{count}H", page, _INTERIOR_CELLS):
                children.append(int.from_bytes(page[at : at + 4], "big"))
                key = page[at + 4]
                if key >= 0x80:
                    key = _varint(page, at + 4)[0]
                keys.append(key)
        except IndexError:
            raise Doubt("a page of the tree is cut short") from None
        children.append(int.from_bytes(page[8:12], "big"))
        if not all(map(self.pages.has, children)):
            raise Doubt("a page of the tree leads out of the file")
        return children, keys


def _stretches(tree: _Tree, low: int, high: int) -> Iterator[Stretch]:
    """Give the stretches that hold rows from ``low`` to ``high``; never leaves of two parents in one."""
    for place in range(bisect_left(tree.uppers, low), len(tree.parents)):
        if tree.lower(place) >= high:
            return
        leaves, uppers = tree.leaves(place)
        begun = _Begun(tree, place)
        for index in range(bisect_left(uppers, low), len(leaves)):
            lower = uppers[index - 1] if index else tree.lower(place)
            if lower >= high:
                break
            leaf = _leaf(tree.pages, leaves[index], lower, uppers[index])
            if leaf is not None and low <= leaf.last and leaf.first <= high:
                begun.add(leaves[index], uppers[index], leaf)
            if begun.is_full:
                yield begun.ended()
                begun = _Begun(tree, place)
        if begun.leaves:
            yield begun.ended()


class _Begun:
    """A stretch that is being put together."""

    def __init__(self, tree: _Tree, place: int) -> None:
        self.leaves: list[int] = []
        self._tree = tree
        self._place = place
        self._uppers: list[int] = []
        self._others: list[int] = []
        self._rows = self._low = self._high = 0

    @property
    def is_full(self) -> bool:
        size = (len(self.leaves) + len(self._others)) * self._tree.pages.size
        return self._rows >= STRETCH_ROWS or size >= STRETCH_BYTES

    def add(self, number: int, upper: int, leaf: _Leaf) -> None:
        if not self.leaves:
            self._low = leaf.first
        self._high = leaf.last
        self._rows += leaf.rows
        self.leaves.append(number)
        self._uppers.append(upper)
        self._others += leaf.others

    def ended(self) -> Stretch:
        tree, numbers = self._tree, sorted([*self.leaves, *self._others])
        if len(set(numbers)) < len(numbers):
            raise Doubt("a page belongs to two rows")
        runs = array("I", [number for run in runs_of(numbers) for number in run])
        digest = _digest(tree, runs)
        # What the consumer reads now is to have a slice of its own.
        tree.pages.refresh()
        return Stretch(
            low=self._low,
            high=self._high,
            parent=tree.parents[self._place],
            linkage=tree.digests[self._place] + _of_dividing(self._uppers),
            leaves=_packed(array("I", self.leaves)),
            runs=_packed(runs),
            digest=digest,
        )


def _is_linked(tree: _Tree, stretch: Stretch) -> bool:
    """Whether the tree leads to the leaves of a stretch, and to no other between them, with its rowids."""
    if not stretch.leaves or not stretch.runs:
        return False
    place = bisect_left(tree.uppers, stretch.low)
    same = tree.parents[place] == stretch.parent and tree.digests[place] == stretch.linkage[:16]
    if same:
        return tree.lower(place) < stretch.low and stretch.high <= tree.uppers[place]
    wanted = _unpacked(stretch.leaves).tolist()
    # The first leaf that may hold the lowest rowid, and those after it, be they under other parents.
    leaves, uppers = tree.leaves(place)
    first = bisect_left(uppers, stretch.low)
    leaves, uppers = leaves[first:], uppers[first:]
    while len(leaves) < len(wanted) and leaves == wanted[: len(leaves)] and place + 1 < len(tree.parents):
        place += 1
        more, more_uppers = tree.leaves(place)
        leaves, uppers = leaves + more, uppers + more_uppers
    leaves, uppers = leaves[: len(wanted)], uppers[: len(wanted)]
    return leaves == wanted and stretch.high <= uppers[-1] and _of_dividing(uppers) == stretch.linkage[16:]


def _of_dividing(uppers: Sequence[int]) -> bytes:
    """Return a digest of the numbers that divide leaves from one another; the last one's bound may move."""
    return xxh3_128_digest(struct.pack(f">{len(uppers) - 1}q", *uppers[:-1]))


def _is_same(tree: _Tree, descriptor: int | None, stretch: Stretch) -> bool:
    """Whether all pages of a stretch have the bytes that they had."""
    runs = _unpacked(stretch.runs)
    if runs[-2] + runs[-1] - 1 > tree.pages.count:
        return False
    return _digest(tree, runs, descriptor) == stretch.digest


def _digest(tree: _Tree, runs: Sequence[int], descriptor: int | None = None) -> bytes:
    digest = xxh3_128(tree.reading)
    if descriptor is not None and tree.pages.is_in_file(runs):
        feed_from_file(descriptor, tree.pages.size, runs, digest.update)
    else:
        tree.pages.feed(runs, digest.update)
    return digest.digest()


class _Leaf(NamedTuple):
    """What a leaf holds: the rowids of its first and last row, how many there are, and the pages that they go on in."""

    first: int
    last: int
    rows: int
    others: Sequence[int]


def _leaf(pages: RawPages, number: int, lower: int, upper: int) -> _Leaf | None:
    """Look into a leaf, None where it is empty. Raises Doubt where it is not sound, as far as it is looked at."""
    page, usable = pages.page(number), pages.usable
    rows = int.from_bytes(page[3:5], "big")
    if page[0] != _LEAF or _LEAF_CELLS + 2 * rows > usable:
        raise Doubt("a leaf of the tree holds no rows")
    if not rows:
        return None
    others: list[int] = []
    cells = struct.unpack_from(f">{rows}H", page, _LEAF_CELLS)
    # What a row may have in its leaf at most, by SQLite's own figure.
    most = usable - 35
    try:
        for at in cells:
            size = page[at]
            if size >= 0x80:
                after = page[at + 1]
                size = (size & 0x7F) << 7 | after if after < 0x80 else _varint(page, at)[0]
            if not 0 <= size <= most:
                others += _chain(pages, page, at)
        first, last = _rowid(page, cells[0]), _rowid(page, cells[-1])
    except IndexError:
        raise Doubt("a leaf of the tree is cut short") from None
    if not lower < first <= last <= upper:
        raise Doubt("the rowids of the tree are in disorder")
    return _Leaf(first, last, rows, others)


def _rowid(page: bytes, at: int) -> int:
    """Return the rowid of the row at a place of a leaf, behind its size. Raises IndexError."""
    end = at + 8
    while page[at] >= 0x80 and at < end:
        at += 1
    return _varint(page, at + 1)[0]


def _chain(pages: RawPages, page: bytes, at: int) -> Iterator[int]:
    """Give the pages that the row at a place of a leaf goes on in."""
    size, after = _varint(page, at)
    after = _varint(page, after)[1]
    # SQLite's own figures: what a row has at least in its leaf, and what of it a page besides takes.
    most, least, elsewhere = pages.usable - 35, (pages.usable - 12) * 32 // 255 - 23, pages.usable - 4
    here = least + (size - least) % elsewhere
    here = here if here <= most else least
    after += here
    count = -((here - size) // elsewhere)
    if not 0 < count <= pages.count:
        raise Doubt("a row has an absurd size")
    if after + 4 > pages.usable:
        raise IndexError
    number = int.from_bytes(page[after : after + 4], "big")
    for left in range(count - 1, -1, -1):
        if not pages.has(number):
            raise Doubt("a row goes on outside of the file")
        yield number
        if left:
            number = pages.first_number(number)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return one of SQLite's numbers, of 64 bits with a sign, and where it ends. Raises IndexError."""
    value = 0
    for place in range(at, at + 8):
        byte = data[place]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, place + 1
    value = value << 8 | data[at + 8]
    return value - (1 << 64) if value >> 63 else value, at + 9


def _check_order(lower: int, numbers: Sequence[int], upper: int) -> None:
    """Raise Doubt where numbers do not ascend between two others."""
    before = lower
    for number in numbers:
        if number <= before:
            raise Doubt("the rowids of the tree are in disorder")
        before = number
    if before >= upper:
        raise Doubt("the rowids of the tree are in disorder")


def _packed(numbers: array[int]) -> bytes:
    return struct.pack(f">{len(numbers)}I", *numbers)


def _unpacked(data: bytes) -> array[int]:
    return array("I", struct.unpack(f">{len(data) // 4}I", data))
