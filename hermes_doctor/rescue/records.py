"""Records: how SQLite keeps the values of one row (the file format's "record format").

Read by hand, for SQLite gives rows only through a tree that leads to them. Its table ``sqlite_dbdata``, which reads
pages one by one, is not in APSW's SQLite, and gives a value whose pages are gone as if it were whole.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache

from hermes_doctor.store.cells import CODECS, Cell, decoded

#: Bytes of the integers and the float of each serial type up to 9; 8 and 9 are the numbers 0 and 1 themselves.
_SIZES = (0, 1, 2, 3, 4, 6, 8, 8, 0, 0)
_FLOAT, _ZERO, _ONE = 7, 8, 9
_DOUBLE = struct.Struct(">d")
#: A row has no more columns than that, and so no longer header (SQLite's greatest limit).
_MOST_COLUMNS = 32767
_LONGEST_HEADER = 9 * (_MOST_COLUMNS + 1)
#: Bytes of a header that is kept in mind: rows of one table have few different ones.
_REMEMBERED = 256


@dataclass(frozen=True)
class Layout:
    """The values of a record as its header lists them: the serial type of each, and how many bytes it all takes."""

    types: tuple[int, ...]
    header_bytes: int
    bytes: int


@dataclass(frozen=True)
class Record:
    """The values of one row, in the order in which the file has them.

    ``values``: those that are whole; fewer than ``layout`` lists where the record is cut. ``held``: so many bytes of it
    were there. ``partial``: the beginning of the text that is cut short, None where none is. ``odd_end``: its last
    page holds nothing but zeros, or leads on to nowhere, which may be right all the same.
    """

    layout: Layout
    values: list[Cell]
    held: int
    partial: str | None = None
    odd_end: bool = False

    @property
    def is_cut(self) -> bool:
        """Whether a value is missing or cut short."""
        return len(self.values) < len(self.layout.types)


def varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """Return SQLite's integer of variable length that begins there, and where it ends. Raises IndexError at the end."""
    value = 0
    for place in range(at, at + 8):
        byte = data[place]
        if byte < 0x80:
            return value << 7 | byte, place + 1
        value = value << 7 | byte & 0x7F
    return value << 8 | data[at + 8], at + 9


def signed(number: int) -> int:
    """Return a 64-bit number of `varint` with its sign."""
    return number - (1 << 64) if number >> 63 else number


def layout_of(payload: bytes) -> Layout | None:
    """Read a record's header; None where it is none, or is not whole."""
    try:
        length, _ = varint(payload, 0)
    except IndexError:
        return None
    if not 1 <= length <= min(len(payload), _LONGEST_HEADER):
        return None
    header = payload[:length]
    # Long ones are those of few rows, or no headers at all: not worth the memory.
    return _layout(header) if length <= _REMEMBERED else _read_layout(header)


def _read_layout(header: bytes) -> Layout | None:
    types: list[int] = []
    total = len(header)
    try:
        _, at = varint(header, 0)
        while at < len(header):
            kind, at = varint(header, at)
            if kind in (10, 11):
                # Never written into a file.
                return None
            types.append(kind)
            total += size_of(kind)
    except IndexError:
        return None
    return Layout(tuple(types), len(header), total)


_layout = lru_cache(maxsize=4096)(_read_layout)


def size_of(kind: int) -> int:
    """Return how many bytes a value of that serial type takes."""
    return (kind - 12) >> 1 if kind >= 12 else _SIZES[kind]


def read_record(payload: bytes, layout: Layout, encoding: str) -> Record:
    """Read the values of a record as far as its bytes are there. ``encoding``: as SQLite names it."""
    values: list[Cell] = []
    at, end = layout.header_bytes, len(payload)
    for kind in layout.types:
        if kind >= 12:
            following = at + ((kind - 12) >> 1)
            if following > end:
                return Record(layout, values, end, _beginning(payload[at:], encoding) if kind & 1 else None)
            piece = payload[at:following]
            values.append(decoded(piece, encoding) if kind & 1 else piece)
        elif kind == 0:
            following = at
            values.append(None)
        elif kind >= _ZERO:
            following = at
            values.append(kind - _ZERO)
        else:
            following = at + _SIZES[kind]
            if following > end:
                return Record(layout, values, end)
            if kind == _FLOAT:
                values.append(_DOUBLE.unpack_from(payload, at)[0])
            else:
                values.append(int.from_bytes(payload[at:following], "big", signed=True))
        at = following
    return Record(layout, values, end)


def only_blobs(layout: Layout, begin: int) -> bool:
    """Whether the bytes of a record from ``begin`` on are all of blobs."""
    at = layout.header_bytes
    for kind in layout.types:
        size = size_of(kind)
        at += size
        if size and at > begin and (kind < 12 or kind & 1):
            return False
    return at > begin


def _beginning(piece: bytes, encoding: str) -> str:
    """Return the beginning of a text, up to the last character that is whole."""
    return piece.decode(CODECS.get(encoding, "utf-8"), "ignore")
