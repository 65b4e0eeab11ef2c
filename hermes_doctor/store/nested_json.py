"""JSON that was stored as a string of JSON, and how far it may be taken out of its strings.

The conversation loader of every release decodes a column once, so one string layer too many gives it text where it
wants a list. Whatever is taken out must be read by that loader: Python's `json`, which lets two failures through to
the caller and then loads no conversation at all, numbers of more than 4,300 digits and deep nesting (0.13.0 to
0.22.2). So what would fail there is refused here. The innermost text is given back character by character; nothing
is ever written anew from what was parsed.
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from hermes_doctor.store.cells import Cell

#: Most string layers that are taken off. Each one doubles the backslashes, so the size is met first as a rule.
MAX_LAYERS = 32
#: Longest cell that is looked into, in bytes of UTF-8.
MAX_BYTES = 64 << 20
#: Deepest nesting of lists and objects in what was taken out.
MAX_DEPTH = 500
#: Most digits of a whole number in what was taken out: what Python's int() takes by default.
MAX_DIGITS = 4300

#: What JSON takes for white space, and nothing else.
JSON_SPACE = " \t\n\r"


class Goal(enum.StrEnum):
    """What a column's value is when it is healthy, as the first characters that its text may have."""

    LIST = "["
    OBJECT = "{"
    EITHER = "[{"


#: The columns of `messages` that hold JSON, and what each must come to.
GOALS: Mapping[str, Goal] = {
    "tool_calls": Goal.LIST,
    "reasoning_details": Goal.EITHER,
    "codex_reasoning_items": Goal.LIST,
    "codex_message_items": Goal.LIST,
    "display_metadata": Goal.OBJECT,
}


@dataclass(frozen=True, slots=True)
class Unwrapped:
    """What came out: the text of the list or object as it was, and how many string layers lay around it."""

    layers: int
    value_text: str


class Refusal(NamedTuple):
    """Why text that is a string of JSON is not taken out, in words."""

    reason: str


def unwrap(text: str, goal: Goal) -> Unwrapped | Refusal | None:
    """Take a list or object out of the JSON strings around it; stop at the first list or object.

    None where there is nothing to take out: no JSON string at all, or one that does not come to the goal.
    """
    # Most cells that are asked about begin as they should.
    if text.startswith(("[", "{")):
        return None
    first, layers = _first(text), 0
    if first != '"':
        return None
    if _longer_than_limit(text):
        return Refusal(f"it is longer than {MAX_BYTES >> 20} MiB")
    while first == '"':
        if layers == MAX_LAYERS:
            return Refusal(f"more than {MAX_LAYERS} string layers lie around it")
        try:
            # A string literal alone, so there is no nesting to go astray in.
            text = _PARSER.decode(text)
        except ValueError:
            return None
        first, layers = _first(text), layers + 1
    return _verdict(text, layers) if first in tuple(goal) else None


def unwrap_cells(cells: Mapping[str, Cell]) -> dict[str, Unwrapped | Refusal]:
    """Look into the JSON columns of one `messages` row; give those that hold strings of JSON, by column.

    Only text counts: a blob, a number or undecodable text is left to others.
    """
    found: dict[str, Unwrapped | Refusal] = {}
    for column, goal in GOALS.items():
        cell = cells.get(column)
        result = unwrap(cell, goal) if isinstance(cell, str) else None
        if result is not None:
            found[column] = result
    return found


def is_string_sql(expression: str) -> str:
    """Return SQL that is true for text whose first character after JSON's white space is a quotation mark.

    NULL and text that begins otherwise, nearly every cell, are passed by comparisons, which copy nothing: whatever
    begins with a quotation mark or a blank sorts before ``#``.
    """
    blanks = "char(32, 9, 10, 13)"
    return (
        f"CASE WHEN {expression} IS NULL OR {expression} >= '#' OR typeof({expression}) <> 'text' THEN 0"
        f" ELSE substr(ltrim({expression}, {blanks}), 1, 1) = '\"' END"
    )


def unwraps_sql(expression: str, goal: Goal) -> str:
    """Return SQL that is true for text out of which `unwrap` takes something, from under the one layer that most have.

    Where more layers lie around it, or a NUL is in it (SQLite's JSON ends there), it may be false all the same.
    """
    inner = f"json_extract({expression}, '$')"
    kinds = ", ".join(f"'{_KINDS[first]}'" for first in goal)
    nul = f"instr({expression}, char(0)) OR instr({expression}, '\\u0000')"
    return (
        f"CASE WHEN typeof({expression}) <> 'text' OR {nul} THEN 0 WHEN NOT json_valid({expression}) THEN 0"
        f" WHEN json_type({expression}) <> 'text' THEN 0"
        f" WHEN json_valid({inner}) THEN json_type({inner}) IN ({kinds}) ELSE 0 END"
    )


def _first(text: str) -> str:
    """The first character behind white space, '' where there is none."""
    found = _FIRST.match(text)
    return found[1] if found else ""


#: What SQLite calls that which begins so.
_KINDS = {"[": "array", "{": "object"}
_FIRST = re.compile(rf"[{JSON_SPACE}]*+(.)", re.S)
_STRINGS = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.S)
_BRACKETS = b"[{]}"
_NO_BRACKETS = bytes(set(range(256)) - set(_BRACKETS))
#: One deeper for what opens, one less deep (-1 as a byte) for what closes.
_STEPS = bytes.maketrans(_BRACKETS, b"\x01\x01\xff\xff")


def _longer_than_limit(text: str) -> bool:
    # No character takes more than four bytes: most text needs no copy to be measured.
    if len(text) * 4 <= MAX_BYTES:
        return False
    return len(text) > MAX_BYTES or len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES


def _verdict(text: str, layers: int) -> Unwrapped | Refusal | None:
    """Decide on text that begins like a list or object: is it one, and may it stand in the cell?"""
    # Before it is parsed: the parser recurses, and how deep it may is a matter of who called.
    if _deeper_than_limit(text):
        return Refusal(f"its lists and objects are nested more than {MAX_DEPTH} deep")
    try:
        _PARSER.decode(text)
    except _TooManyDigitsError:
        return Refusal(f"it holds a number with more than {MAX_DIGITS:,} digits, which hermes cannot load")
    except ValueError:
        return None
    except RecursionError:
        return Refusal("its lists and objects are nested too deep")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return Refusal("it holds half of a surrogate pair, which cannot be stored as text")
    return Unwrapped(layers, text)


def _deeper_than_limit(text: str) -> bool:
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return False
    outside_strings = _STRINGS.sub("", text).encode("utf-8", "surrogatepass")
    steps = memoryview(outside_strings.translate(_STEPS, _NO_BRACKETS)).cast("b")
    return max(accumulate(steps), default=0) > MAX_DEPTH


class _TooManyDigitsError(Exception):
    """A whole number that Python's int() would not take. No ValueError, which means: not JSON."""


def _check_digits(number: str) -> None:
    if len(number.lstrip("-")) > MAX_DIGITS:
        raise _TooManyDigitsError


def _ignore(_number: str) -> None:
    """Floating-point numbers of any length load; their value is of no interest here."""


#: Made once: to make one takes longer than to parse most cells.
_PARSER = json.JSONDecoder(parse_int=_check_digits, parse_float=_ignore)
