r"""Text that is none, or that some readers cannot take: bytes of no encoding, half surrogate pairs, NUL characters.

Three faults, and what the releases (0.13.0 to 0.22.2, all alike) make of them:

* Bytes that are no UTF-8 (in a UTF-16 store: no UTF-16). Python's sqlite3 raises "Could not decode to UTF-8" for the
  whole query, so one cell costs the whole chat, or the whole list of sessions. Half of a surrogate pair stored as bytes
  (``ED A0..BF ..``) is no UTF-8 either.
* Half of a surrogate pair as an escape (``\ud800`` to ``\udfff``) in JSON. It loads, as a str that cannot be encoded:
  writing it out fails. Hermes replaces it before it sends a chat to a model, but not for an export or a screen.
* NUL characters. Python reads past them; SQLite's LIKE, length() and substr(), and so previews, end there. The first
  character of structured content (NUL and ``json:``) is hermes's own mark and no fault.
"""

from __future__ import annotations

import codecs
import enum
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from hermes_doctor.store.cells import CODECS, BadText, Cell
from hermes_doctor.store.shape import Shape

#: How content that is a list or an object begins, from 0.13.0 on.
SENTINEL = "\0json:"
_MARK = SENTINEL.encode()


class TextFault(enum.StrEnum):
    """What is wrong with a text, in words."""

    BYTES = "invalid bytes"
    SURROGATE = "surrogate bytes"
    ESCAPE = "surrogate escape"
    NUL = "NUL"


class Fault(NamedTuple):
    """The first fault of its kind in a cell: how many bytes into the text it lies, as the store holds it."""

    column: str
    kind: TextFault
    offset: int


#: Longer texts than this, in bytes, are not gathered but looked at one by one.
_GATHERED = 8192

#: Bytes that are decoded at once to see whether they are text.
_PIECE = 1 << 15

#: JSON up to the first escape that is half of a surrogate pair. A backslash goes with the character behind it.
_WHOLE_ESCAPES = re.compile(
    r"(?:[^\\]|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\(?!u[dD][89a-fA-F][0-9a-fA-F]{2}).)*+",
    re.S,
)
_SURROGATES = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]")


def faults_of(row: Mapping[str, Cell], columns: Sequence[str], json: Sequence[str], encoding: str) -> list[Fault]:
    """Return what is wrong with these text columns of a row; blobs and numbers in them are others' to judge.

    ``json``: those of the columns that hold JSON. In one named ``content`` it stands behind the sentinel.
    """
    found: list[Fault] = []
    for column in columns:
        cell = row[column]
        if isinstance(cell, BadText):
            found += _bad_bytes(column, bytes(cell), encoding)
        elif isinstance(cell, str):
            found += _bad_characters(column, cell, column in json, encoding)
    return found


def _bad_bytes(column: str, raw: bytes, encoding: str) -> list[Fault]:
    if encoding in CODECS:
        try:
            raw.decode(CODECS[encoding])
        except UnicodeDecodeError as error:
            # Of UTF-16 nothing can be wrong but half a pair, or half a unit at the very end.
            half_a_unit = error.start == len(raw) - 1
            return [Fault(column, TextFault.BYTES if half_a_unit else TextFault.SURROGATE, error.start)]
        return []
    found: list[Fault] = []
    surrogate = _SURROGATES.search(raw)
    if surrogate:
        found.append(Fault(column, TextFault.SURROGATE, surrogate.start()))
    try:
        # Of the same length, so that what lies behind stays where it is.
        _SURROGATES.sub(b"???", raw).decode()
    except UnicodeDecodeError as error:
        found.append(Fault(column, TextFault.BYTES, error.start))
    return found


def _bad_characters(column: str, text: str, is_json: bool, encoding: str) -> list[Fault]:
    found: list[Fault] = []
    marked = column == "content" and text.startswith(SENTINEL)
    begin = len(SENTINEL) if marked else 0
    nul = text.find("\0", begin)
    if nul >= 0:
        found.append(Fault(column, TextFault.NUL, _bytes_before(text, nul, encoding)))
    if (is_json or marked) and "\\u" in text:
        whole = _WHOLE_ESCAPES.match(text, begin)
        end = whole.end() if whole else begin
        if end < len(text) - 1:
            found.append(Fault(column, TextFault.ESCAPE, _bytes_before(text, end, encoding)))
    return found


def _bytes_before(text: str, position: int, encoding: str) -> int:
    return len(text[:position].encode(CODECS.get(encoding, "utf-8")))


def suspect_sql(shape: Shape, table: str, columns: Sequence[str]) -> str | None:
    """Return SQL that is true for a row with a fault in one of these columns, and for few others.

    None where the table has none of them. It calls what `SUSPECTS` names.
    """
    suspects = f"doctor_text_{CODECS.get(shape.encoding, 'utf-8').replace('-', '_')}"
    there = [shape.column(table, column) for column in columns if shape.has(table, column)]
    # NULL, which most cells are, is passed without a call.
    return " OR ".join(f"CASE WHEN {c} IS NULL THEN 0 ELSE {suspects}(CAST({c} AS BLOB)) END" for c in there) or None


def gathered_sql(shape: Shape, table: str, column: str) -> tuple[str, str] | None:
    """Return aggregate SQL that gathers the short texts of a column for `is_clean`, and a condition for the others.

    The condition is true for a fault in those that are not gathered, and calls what `SUSPECTS` names. None where the
    encoding is not UTF-8: SQLite mends UTF-16 on the way.
    """
    if shape.encoding in CODECS or not shape.has(table, column):
        return None
    cell = shape.column(table, column)
    # Structured content begins with NUL: that is no fault, but would look like one among others. Numbers come before
    # all text, blobs behind it.
    short = f"octet_length({cell}) <= {_GATHERED} AND {cell} >= char(1)"
    asked = f"doctor_text_utf_8(CAST({cell} AS BLOB))"
    others = (
        f"CASE WHEN octet_length({cell}) > {_GATHERED} THEN {asked}"
        f" WHEN {cell} < char(1) THEN CASE WHEN {cell} <> '' THEN {asked} END END"
    )
    return f"CAST(group_concat({cell}, char(10)) FILTER (WHERE {short}) AS BLOB)", others


def is_clean(gathered: Cell) -> bool:
    """Tell whether none of the texts that were gathered is at fault: what joins them hides no fault, and makes none."""
    return not isinstance(gathered, bytes) or not _suspect(gathered)


def suspect_row_sql(shape: Shape, table: str, columns: Sequence[str]) -> str | None:
    """Return the same, with one call for a row: less where most of the columns are filled, and short."""
    there = [shape.column(table, column) for column in columns if shape.has(table, column)]
    # SQLite joins text as UTF-8, and mends UTF-16 on the way.
    if shape.encoding in CODECS or not there:
        return suspect_sql(shape, table, columns)
    return f"doctor_text_utf_8(CAST(concat_ws(char(10), {', '.join(there)}) AS BLOB))"


def escapes_sql(shape: Shape, table: str, columns: Sequence[str]) -> str | None:
    r"""Return SQL that is true where one of these columns has an escape that may be of a surrogate; None as above.

    ``LIKE`` goes from backslash to backslash and costs next to nothing; it takes ``\uD8`` for ``\ud8``, too.
    """
    there = [shape.column(table, column) for column in columns if shape.has(table, column)]
    return " OR ".join(rf"CASE WHEN {c} IS NULL THEN 0 ELSE {c} LIKE '%\ud%' END" for c in there) or None


def _suspect(raw: bytes | None) -> bool:
    # A damaged page may have a NULL where the table allows none, and SQLite does not ask there.
    if raw is None:
        return False
    # Called for every row: nearly all of them end in this line.
    if raw.isascii():
        return 0 in raw and _suspect_with_nul(raw)
    return 0 in raw or not _is_utf_8(raw)


def _is_utf_8(raw: bytes) -> bool:
    """Decode piece by piece: at once, it takes six times as long to get the memory for all that would come out."""
    rest, begin = memoryview(raw), 0
    try:
        while begin < len(raw):
            end = begin + _PIECE
            # All but the last piece may end within a character, which the next one begins with then.
            begin += codecs.utf_8_decode(rest[begin:end], "strict", end >= len(raw))[1]
    except UnicodeDecodeError:
        return False
    return True


def _suspect_with_nul(raw: bytes) -> bool:
    """Whether ASCII text with a NUL may be at fault; structured content without a doubt is passed, of any size."""
    if not raw.startswith(_MARK) or raw.find(0, len(_MARK)) > 0:
        return True
    first = raw.find(b"\\")
    return first >= 0 and (raw.find(b"\\ud", first) >= 0 or raw.find(b"\\uD", first) >= 0)


def _suspect_utf_16(codec: str) -> Callable[[bytes], bool]:
    def suspect(raw: bytes | None) -> bool:
        if raw is None:
            return False
        try:
            text = raw.decode(codec)
        except UnicodeDecodeError:
            return True
        return "\0" in text

    return suspect


#: What the conditions call: whether a text, given as its bytes, is at fault.
SUSPECTS: Mapping[str, Callable[..., bool]] = {
    "doctor_text_utf_8": _suspect,
    "doctor_text_utf_16_le": _suspect_utf_16("utf-16-le"),
    "doctor_text_utf_16_be": _suspect_utf_16("utf-16-be"),
}
