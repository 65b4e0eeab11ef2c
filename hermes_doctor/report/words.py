"""Numbers, sizes, times and paths in words, and whatever comes from a store made safe to print."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from hermes_doctor.store.cells import Key

if TYPE_CHECKING:
    from hermes_doctor.engine.scan import Muted

_UNITS = ("bytes", "KB", "MB", "GB", "TB", "PB")
_SPANS = (("day", 86400), ("hour", 3600), ("minute", 60), ("second", 1))

#: Longest id that is printed whole.
_LONGEST = 80


def number(count: int) -> str:
    """Return a count with separators: ``3,049``."""
    return f"{count:,}"


def counted(count: int, noun: str) -> str:
    """Return a count with its noun, in the plural where it belongs: ``1 session``, ``2 sessions``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def size(count: int) -> str:
    """Return a size in bytes in words, in units of 1,024: ``1.4 GB``."""
    amount = float(count)
    unit = 0
    while amount >= 999.95 and unit < len(_UNITS) - 1:
        amount /= 1024
        unit += 1
    return counted(count, "byte") if unit == 0 else f"{amount:.1f} {_UNITS[unit]}"


def duration(seconds: float) -> str:
    """Return a length of time in words: ``0.4 s``, ``5 minutes``, ``3 days``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    for name, length in _SPANS:
        if seconds >= length:
            return counted(int(seconds // length), name)
    raise AssertionError("unreachable: a minute is at least a second")


def ago(then: float, now: float) -> str:
    """Return how long ago a time was, both in seconds since the epoch: ``3 days ago``, ``in 2 hours``."""
    apart = now - then
    if abs(apart) < 60:
        return "just now"
    return f"{duration(apart)} ago" if apart > 0 else f"in {duration(-apart)}"


def moment(then: float, now: float) -> str:
    """Return a time in the reader's zone and how long ago it was: ``2026-11-26 14:03 (3 days ago)``."""
    return f"{datetime.fromtimestamp(then):%Y-%m-%d %H:%M} ({ago(then, now)})"


def muted_words(muted: Muted) -> str:
    """Return that a check is muted and until when: ``muted until 2026-12-14 06:55, or until more than 8 are found``."""
    words = f"muted until {datetime.fromtimestamp(muted.until):%Y-%m-%d %H:%M}"
    return words if muted.worse_than is None else f"{words}, or until more than {number(muted.worse_than)} are found"


def visible(text: str) -> str:
    r"""Return text with what cannot be seen, or acts, made visible (``\x1b``, ``\u202e``): it stays on its line.

    That is all but what Unicode calls printable: controls, marks that turn the direction of text, separators, tags
    that are hidden in it, what UTF-8 cannot hold, and what no program knows yet.
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else _escaped(c) for c in text)


def short_path(path: Path | str) -> str:
    """Return a path for a person: the home folder as ``~``, control characters visible."""
    text = str(path)
    home = os.path.expanduser("~").rstrip("/\\")  # noqa: PTH111  (pathlib raises where there is no home)
    if home and home != "~" and (text == home or text.startswith((home + "/", home + "\\"))):
        text = "~" + text[len(home) :]
    return visible(text)


def key_text(key: Key) -> str:
    """Return a row's primary key for a person; bytes as hex, long ones shortened in the middle."""
    if isinstance(key, tuple):
        return "(" + ", ".join(key_text(part) for part in key) + ")"
    if isinstance(key, bytes):
        text = f"x'{key.hex()}'"
    elif key is None:
        text = "NULL"
    else:
        text = visible(str(key))
    if len(text) <= _LONGEST:
        return text or "''"
    half = (_LONGEST - 1) // 2
    return f"{text[:half]}…{text[-half:]}"


def _escaped(character: str) -> str:
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
