"""Cells that should hold JSON and do not: what is wrong with each, and which reader loses what because of it.

Two readers differ. Python's `json` reads most columns; it takes NaN, and blobs where it is handed them. SQLite reads
`model_config` (all lists from 0.16.0 on) and the marks in `display_metadata` (0.21.5 on); to it NaN is no JSON. All
that is said here of a reader was seen by running the releases 0.13.0 to 0.22.2.

Strings that come to the right thing once they are unwrapped are `nested_json`'s, and text that is no text is nobody's
here: hermes cannot read such a row at all.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from typing import NamedTuple

from hermes_doctor.store.cells import BadText, Cell
from hermes_doctor.store.nested_json import GOALS, JSON_SPACE, Goal, unwrap, unwraps_sql
from hermes_doctor.store.shape import Shape
from hermes_doctor.store.text_faults import SENTINEL
from hermes_doctor.store.view import StoreView


class Fault(enum.StrEnum):
    """What is wrong with a cell.

    NUMBER: a number, or true, which cannot be gone through as a list can. UNLOADABLE: what makes Python's `json` raise
    what hermes does not catch, so that it loads no message of the chat. NOT_SQL: JSON to Python, and not to SQLite.
    """

    NO_JSON = "no-json"
    WRONG_KIND = "wrong-kind"
    NUMBER = "number"
    BLOB = "blob"
    UNLOADABLE = "unloadable"
    NOT_SQL = "not-sql"
    TWICE = "reactions-twice"


class Effect(enum.IntEnum):
    """What comes of it: nothing, something is lost without a word, or a reader fails."""

    NOTHING = 1
    LOSES = 2
    FAILS = 3


class Broken(NamedTuple):
    """One broken cell. ``what``: which reader loses what, in words that follow a colon."""

    fault: Fault
    effect: Effect
    what: str


class JsonColumn(NamedTuple):
    """A column that hermes reads by itself: what it wants there, and what comes of each fault.

    ``loss``: in words, what goes without a word. ``empty``: whether empty text means that nothing is there.
    """

    goal: Goal
    loss: str
    effects: Mapping[Fault, Effect]
    empty: bool = True


#: Python's `json` is handed whatever the cell holds: it reads blobs as it reads text.
_READ = {
    Fault.NO_JSON: Effect.LOSES,
    Fault.WRONG_KIND: Effect.LOSES,
    Fault.NUMBER: Effect.LOSES,
    Fault.BLOB: Effect.NOTHING,
    Fault.UNLOADABLE: Effect.FAILS,
}
#: Only text is read at all.
_TEXT_ONLY = _READ | {Fault.BLOB: Effect.LOSES}
#: Whatever is raised is caught.
_FORGIVING = _READ | {Fault.UNLOADABLE: Effect.LOSES}

_REASONING = "its reasoning is not sent to the model"

#: What get_messages_as_conversation and what follows it do with each column of ``messages``, from 0.13.0 to 0.22.2.
#: get_messages and exports hand all of them on as they are, but for calls and marks.
MESSAGE_COLUMNS: Mapping[str, JsonColumn] = {
    "tool_calls": JsonColumn(Goal.LIST, "its calls are not seen", _READ),
    "reasoning_details": JsonColumn(Goal.EITHER, _REASONING, _READ),
    "codex_reasoning_items": JsonColumn(Goal.LIST, _REASONING, _READ),
    "codex_message_items": JsonColumn(Goal.LIST, _REASONING, _READ),
    "display_metadata": JsonColumn(Goal.OBJECT, "its marks are not seen", _TEXT_ONLY, empty=False),
    # 0.22.2 only.
    "absorbed_message_uids": JsonColumn(Goal.LIST, "what was merged into it is forgotten", _TEXT_ONLY),
    "tool_call_uids": JsonColumn(Goal.OBJECT, "its calls are matched by the provider's ids alone", _TEXT_ONLY),
}

#: Where a chat came from (0.18.2 on): readers fall back to the row's own columns. To be read at all, it is text.
ORIGIN = JsonColumn(Goal.OBJECT, "where the chat came from is read from other columns only", _FORGIVING)
#: Where a chat leads (0.18.1 on): the gateway leaves the row out, finds the session again by the chat's other columns,
#: and writes the row anew.
ROUTE = JsonColumn(
    Goal.OBJECT, "the gateway looks for the session anew and drops what else is in it", _FORGIVING, False
)

#: The columns that only a message of the assistant's is asked for.
_OF_ASSISTANTS = frozenset({"reasoning_details", "codex_reasoning_items", "codex_message_items"})
#: From this schema on (0.19.0) what loads a chat to resume it goes through the calls, and fails on what it cannot.
_GOES_THROUGH_CALLS = 22
#: From this schema on (0.21.5) SQL looks for the marks of messages, with a guard, and without one in rows of these
#: kinds where it asks whether a result of background work has been delivered to the chat.
_SQL_READS_MARKS = 27
_DELIVERIES = frozenset({"async_delegation_complete", "hidden"})

#: The last character there is: what begins in some way sorts up to that followed by this.
_LAST = "\U0010ffff"

#: A list of sessions fails on a ``model_config`` that is no JSON: from 0.16.0 on for rows with a parent, from 0.17.0 on
#: for all, to 0.20.6; newer ones fail where the agent asks for the latest sessions, and where a session is taken up.
_LISTS_FAIL_ON_CHILDREN, _LISTS_FAIL, _LISTS_FAIL_TO = 14, 16, 26


def message_faults(row: Mapping[str, Cell], version: int) -> dict[str, Broken]:
    """Return what is broken in a row of ``messages``, by column, for a store of that schema.

    ``row`` has the JSON columns, ``content``, ``role`` and ``display_kind``.
    """
    found: dict[str, Broken] = {}
    for name, column in MESSAGE_COLUMNS.items():
        cell = row.get(name)
        if name in GOALS and isinstance(cell, str) and unwrap(cell, column.goal) is not None:
            continue
        fault = cell_fault(column, cell) or (_mark_fault(cell) if name == "display_metadata" else None)
        broken = None if fault is None else _in_message(name, column, fault, row, version)
        if broken is not None:
            found[name] = broken
    content = row.get("content")
    if isinstance(content, str) and content.startswith(SENTINEL):
        _value, fault = _loaded(content.removeprefix(SENTINEL))
        if fault is not None:
            found["content"] = _broken(fault, _READ[fault], "its raw text is shown")
    return found


def cell_fault(column: JsonColumn, cell: Cell) -> Fault | None:
    """Return what is wrong with a cell of a column that Python reads, None for nothing or text that is no text."""
    if cell is None or isinstance(cell, BadText) or (cell == "" and column.empty):
        return None
    if isinstance(cell, int | float):
        # Python's `json` takes none, and hermes takes that for no JSON.
        return Fault.NO_JSON
    if isinstance(cell, bytes) and (not cell or column.effects[Fault.BLOB] is not Effect.NOTHING):
        return Fault.BLOB
    value, fault = _loaded(cell)
    if fault is None:
        fault = _kind_fault(column, value)
    return Fault.BLOB if fault is None and isinstance(cell, bytes) else fault


def broken_cell(column: JsonColumn, cell: Cell) -> Broken | None:
    """Return what is broken in a cell outside ``messages``."""
    fault = cell_fault(column, cell)
    return None if fault is None else _broken(fault, column.effects[fault], column.loss)


def broken_config(view: StoreView, cell: Cell, *, child: bool) -> Broken | None:
    """Return what is broken in a ``model_config``, as SQL reads it; ``child``: whether the session has a parent."""
    if cell is None or isinstance(cell, BadText):
        return None
    fault = _config_fault(view, cell)
    if fault is not Fault.NO_JSON:
        return None if fault is None else Broken(fault, Effect.LOSES, "its settings and marks are not read")
    version = view.shape.version
    if version > _LISTS_FAIL_TO:
        what = "hermes can neither list the latest sessions to the agent nor take this one up in full"
    elif version >= (_LISTS_FAIL_ON_CHILDREN if child else _LISTS_FAIL):
        what = "this release lists no session at all"
    else:
        return Broken(fault, Effect.LOSES, "its settings are not read, and newer releases list no session at all")
    return Broken(fault, Effect.FAILS, what)


def suspect_sql(expression: str, column: JsonColumn, *, may_be_wrapped: bool = False) -> str:
    """Return SQL that is true for whatever is not text of JSON that begins as the goal does.

    NULL, nearly every cell, is passed at once; the rest is parsed by SQLite, once. Text is compared as a range, which
    takes no copy of its first character, and in which no blob and no number lies. Numbers too long for Python to load
    are not looked for: nothing that hermes has ever written with can write one. ``may_be_wrapped``: what comes right
    once it is unwrapped is passed, too.
    """
    begins = " OR ".join(f"{expression} BETWEEN '{first}' AND '{first}{_LAST}'" for first in column.goal)
    otherwise = f"{expression} <> ''" if column.empty else "1"
    if may_be_wrapped:
        otherwise = f"{otherwise} AND NOT {unwraps_sql(expression, column.goal)}"
    return f"CASE WHEN {expression} IS NULL THEN 0 WHEN {begins} THEN NOT json_valid({expression}) ELSE {otherwise} END"


def suspect_marks_sql(expression: str) -> str:
    """Return SQL that is true for an object with more than one reaction."""
    return (
        f"CASE WHEN {expression} IS NULL OR typeof({expression}) <> 'text' OR instr({expression}, '\"reactions\"') = 0"
        f" THEN 0 WHEN json_valid({expression}) THEN json_array_length({expression}, '$.reactions') > 1 ELSE 0 END"
    )


def suspect_content_sql(shape: Shape) -> str | None:
    """Return SQL that is true for structured content that SQLite does not take for JSON; None where it cannot tell.

    What follows the NUL, where text functions of SQL stop, is reached as bytes. The prefix is a range of text: nothing
    is copied of other content.
    """
    if shape.encoding != "UTF-8" or not shape.has("messages", "content"):
        return None
    content = shape.column("messages", "content")
    behind = f"CAST(substr(CAST({content} AS BLOB), {len(SENTINEL) + 1}) AS TEXT)"
    return (
        f"CASE WHEN {content} BETWEEN char(0) || 'json:' AND char(0) || 'json:{_LAST}'"
        f" THEN NOT json_valid({behind}) ELSE 0 END"
    )


def _in_message(name: str, column: JsonColumn, fault: Fault, row: Mapping[str, Cell], version: int) -> Broken | None:
    if fault is Fault.TWICE:
        return Broken(fault, Effect.NOTHING, "the model is told of both, until that author reacts anew")
    if name in _OF_ASSISTANTS and row.get("role") != "assistant":
        return Broken(fault, Effect.NOTHING, "of this message nobody reads it")
    if name == "display_metadata":
        sql_reads = version >= _SQL_READS_MARKS
        if sql_reads and fault in (Fault.NO_JSON, Fault.NOT_SQL) and row.get("display_kind") in _DELIVERIES:
            return Broken(fault, Effect.FAILS, "no result of background work can be delivered to the chat")
        if row[name] == "" or (fault is Fault.NOT_SQL and not sql_reads):
            return None
    effect = column.effects.get(fault, Effect.LOSES)
    if name == "tool_calls" and fault is Fault.NUMBER and version >= _GOES_THROUGH_CALLS:
        effect = Effect.FAILS
    return _broken(fault, effect, column.loss)


def _broken(fault: Fault, effect: Effect, loss: str) -> Broken:
    match effect:
        case Effect.NOTHING:
            return Broken(fault, effect, "it is read all the same")
        case Effect.LOSES:
            return Broken(fault, effect, loss)
        case Effect.FAILS:
            return Broken(fault, effect, "the chat cannot be loaded")


def _loaded(cell: str | bytes) -> tuple[object, Fault | None]:
    try:
        return json.loads(cell), None
    except json.JSONDecodeError:
        return None, Fault.NO_JSON
    except (ValueError, RecursionError):
        # Bytes that are no text, numbers too long for Python, lists in lists in lists.
        return None, Fault.UNLOADABLE


def _kind_fault(column: JsonColumn, value: object) -> Fault | None:
    if value is None and column.empty:
        return None
    if isinstance(value, list):
        return None if "[" in column.goal else Fault.WRONG_KIND
    if isinstance(value, dict):
        return None if "{" in column.goal else Fault.WRONG_KIND
    # False and 0 are passed over like an empty list.
    return Fault.NUMBER if isinstance(value, int | float) and value else Fault.WRONG_KIND


def _mark_fault(cell: Cell) -> Fault | None:
    """Return what is wrong with marks that Python reads as an object."""
    if not isinstance(cell, str) or not cell:
        return None
    constants: list[str] = []
    marks = json.loads(cell, parse_constant=constants.append)
    if constants:
        return Fault.NOT_SQL
    reactions = marks.get("reactions") if isinstance(marks, dict) else None
    authors = (
        [each.get("author") for each in reactions if isinstance(each, dict)] if isinstance(reactions, list) else []
    )
    return Fault.TWICE if any(authors.count(author) > 1 for author in authors) else None


def _config_fault(view: StoreView, cell: Cell) -> Fault | None:
    if isinstance(cell, int | float):
        return Fault.NUMBER
    text = cell.encode("utf-8", "surrogatepass") if isinstance(cell, str) else bytes(cell or b"")
    # A blob is text to SQLite's JSON, in most versions of it.
    if not view.reader.value("SELECT json_valid(CAST(? AS TEXT))", (text,)):
        return Fault.NO_JSON
    if isinstance(cell, bytes):
        return Fault.BLOB
    first = str(cell).lstrip(JSON_SPACE)[:1]
    return None if first in ("{", "n") else Fault.WRONG_KIND
