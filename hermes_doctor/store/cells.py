"""Cells as they really are: any column may hold any type, and text may be no text at all."""

from __future__ import annotations


class BadText(bytes):
    """Text of a store that is not valid in its encoding; the bytes as stored."""


#: Python's names for the encodings that SQLite does not call UTF-8.
CODECS = {"UTF-16le": "utf-16-le", "UTF-16be": "utf-16-be"}

#: What a cell may hold, as Python sees it.
Cell = str | int | float | bytes | None

#: A row's primary key: one cell, or a tuple of cells where it is composite.
Key = Cell | tuple[Cell, ...]


def json_key(key: Key) -> object:
    """Return the key as a report's JSON shows it: bytes and undecodable text as ``{"blob": "hex"}``."""
    if isinstance(key, tuple):
        return [json_key(part) for part in key]
    if isinstance(key, bytes):
        return {"blob": key.hex()}
    return key


def decoded(raw: bytes, encoding: str) -> str | BadText:
    """Return a text from the bytes that a store of that encoding holds it in."""
    try:
        return raw.decode(CODECS.get(encoding, "utf-8"))
    except UnicodeDecodeError:
        return BadText(raw)


def as_text(cell: Cell) -> str | None:
    """Return the cell if it is text, else None."""
    return cell if isinstance(cell, str) else None


def quote(name: str) -> str:
    """Return the name as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'
