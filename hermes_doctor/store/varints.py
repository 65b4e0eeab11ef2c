"""SQLite's integers of variable length, of which FTS5 makes its records."""

from __future__ import annotations

from collections.abc import Iterator


def varints(data: bytes) -> Iterator[int]:
    """Give the numbers of a list: seven bits a byte, of which the highest says that more come; eight in a ninth byte.

    Raises ValueError behind the others where the last is cut short.
    """
    value = length = 0
    for byte in data:
        length += 1
        if length == 9:
            value = value << 8 | byte
        else:
            value = value << 7 | byte & 0x7F
            if byte & 0x80:
                continue
        yield value
        value = length = 0
    if length:
        raise ValueError("cut short")
