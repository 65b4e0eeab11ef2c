"""Which rows of a table are still somewhere in a damaged file: a yardstick for whoever saves rows, told by no other.

A row counts as there where the leaf that it was on lies somewhere in what is left, byte for byte, and the pages on
which it went on are as they were. More may be had: of a leaf of which a part is left, say.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import apsw

#: Bytes in front of a log's first page and of each of its pages.
_LOG_HEADER, _FRAME_HEADER = 32, 24


@dataclass(frozen=True)
class Place:
    """Where a row is: its rowid, the page of its leaf, and those on which it goes on."""

    rowid: int
    leaf: int
    more: tuple[int, ...]


def places_of(store: Path, table: str) -> list[Place]:
    """Where each row of a table is in a sound store at rest."""
    connection = apsw.Connection(f"{store.as_uri()}?immutable=1", apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
    with closing(connection):
        asked = "SELECT pageno FROM dbstat WHERE name = ? AND pagetype = 'leaf'"
        leaves = [int(row[0]) for row in connection.execute(asked, (table,))]
    file = _File(store)
    return [place for leaf in leaves for place in file.rows_on(leaf)]


def still_there(before: Path, table: str, damaged: Path) -> set[int]:
    """The rowids of the rows of a sound store at rest that are still somewhere in a damaged one, or beside it."""
    was, now = _File(before), _File(damaged)
    log, journal = (_bytes_of(damaged.with_name(damaged.name + suffix)) for suffix in ("-wal", "-journal"))
    # Not by the header of the file: that may be gone. It is of the same size of page.
    left = {now.data[at : at + was.size] for at in range(0, len(now.data), was.size)}
    frame = was.size + _FRAME_HEADER
    logged = [log[at + _FRAME_HEADER : at + frame] for at in range(_LOG_HEADER, len(log), frame)]
    left.update(logged)
    found = set()
    for place in places_of(before, table):
        leaf = was.page(place.leaf)
        if leaf not in left and leaf not in journal:
            continue
        pages = [(was.page(number), now.data[(number - 1) * was.size : number * was.size]) for number in place.more]
        if all(page == here or page in logged or page in journal for page, here in pages):
            found.add(place.rowid)
    return found


class _File:
    """The pages of a file."""

    def __init__(self, path: Path) -> None:
        self.data = path.read_bytes()
        size = int.from_bytes(self.data[16:18], "big")
        self.size = 65536 if size == 1 else size
        self.usable = self.size - self.data[20]

    def page(self, number: int) -> bytes:
        """The bytes of a page; pages are counted from 1."""
        return self.data[(number - 1) * self.size : number * self.size]

    def rows_on(self, leaf: int) -> Iterator[Place]:
        """The rows of a leaf of a table, as the file format has them: sizes and numbers, then the record."""
        page = self.page(leaf)
        for n in range(int.from_bytes(page[3:5], "big")):
            at = int.from_bytes(page[8 + 2 * n : 10 + 2 * n], "big")
            length, at = _varint(page, at)
            rowid, at = _varint(page, at)
            most = self.usable - 35
            least = (self.usable - 12) * 32 // 255 - 23
            here = least + (length - least) % (self.usable - 4)
            here = length if length <= most else here if here <= most else least
            following = int.from_bytes(page[at + here : at + here + 4], "big") if here < length else 0
            more = []
            while following:
                more.append(following)
                following = int.from_bytes(self.page(following)[:4], "big")
            yield Place(rowid, leaf, tuple(more))


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for n in range(9):
        byte = data[at + n]
        if n == 8:
            return value << 8 | byte, at + 9
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at + n + 1
    raise AssertionError


def _bytes_of(file: Path) -> bytes:
    return file.read_bytes() if file.exists() else b""
