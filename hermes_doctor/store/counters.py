"""What a session counts of itself, and what its message rows explain.

``message_count`` counts active rows, ``tool_call_count`` the entries of their ``tool_calls`` (a value that is no list
is one). Up to 0.20.0 a rewind left both as they were, so a count may include rewound rows too; rows that a compaction
put away (``compacted``) are never counted. Rows with NULL in ``active`` count: each open makes them active (0.18.2 on).

Cheap where all is well: the cells of tool calls are measured by SQLite in the common pass over messages, and one pass
over sessions, with index look-ups, follows. Only of sessions that do not agree are the rows read. A store without an
index from a session to its messages is not judged: every release makes that index anew when it opens the store.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hermes_doctor.store.ages import ages_of
from hermes_doctor.store.cells import Cell, Key
from hermes_doctor.store.clocks import MINUTE
from hermes_doctor.store.nested_json import Goal, Unwrapped, unwrap
from hermes_doctor.store.reader import in_keys
from hermes_doctor.store.shape import Shape
from hermes_doctor.store.view import StoreView

#: Where somebody has the store open, a session used within this, in seconds, is left alone: a turn may be running.
BUSY_SECONDS = 5 * MINUTE

MESSAGES = "message_count"
CALLS = "tool_call_count"

_AT_ONCE = 500

#: Stands for the length of a cell that is no list; larger than any counter, and no sum of it overflows.
_NOT_A_LIST = 1 << 40


@dataclass(frozen=True)
class Explained:
    """The numbers that rows explain: from ``low`` to ``high``; ``right`` is what the newest releases would count."""

    low: int = 0
    right: int = 0
    high: int = 0

    def __add__(self, other: Explained) -> Explained:
        return Explained(self.low + other.low, self.right + other.right, self.high + other.high)


class Miscount(NamedTuple):
    """A counter, what it holds, and what the rows explain."""

    column: str
    holds: Cell
    explained: Explained


class Drift(NamedTuple):
    """A session with counters that its rows do not explain. ``archived``: an own clean-up of hermes's spares it."""

    session: Key
    miscounts: tuple[Miscount, ...]
    archived: bool


def counters_of(shape: Shape) -> list[str]:
    """Return the counters of sessions that can be judged in such a store, and in which a number stays a number."""
    counters = [column for column in (MESSAGES, CALLS) if _keeps_integers(shape, "sessions", column)]
    if not shape.has("sessions", "id"):
        return []
    if shape.has("messages", "active") and not _keeps_integers(shape, "messages", "active"):
        # What is active differs there by how it is asked.
        return []
    if CALLS in counters and not shape.has("messages", "tool_calls"):
        counters.remove(CALLS)
    return counters if shape.messages_by_session else []


def _keeps_integers(shape: Shape, table: str, column: str) -> bool:
    return shape.has(table, column) and shape.tables[table].columns[column].keeps_integers


def drifts(view: StoreView, keys: Sequence[Key]) -> Iterator[Drift]:
    """Give those of these sessions whose counters the rows do not explain."""
    shape = view.shape
    counters = counters_of(shape)
    if not counters:
        return
    asked = [key for key in keys if key is not None]
    columns = ", ".join(shape.column("sessions", column) for column in ("id", *counters))
    archived = shape.column("sessions", "archived", absent="0")
    for start in range(0, len(asked), _AT_ONCE):
        some = asked[start : start + _AT_ONCE]
        used_now = busy(view, some)
        among, cells = in_keys("id", some)
        for session, *holds, put_away in view.rows(f"SELECT {columns}, {archived} FROM sessions WHERE {among}", cells):
            if session not in used_now:
                found = tuple(_miscounts(view, session, dict(zip(counters, holds, strict=True))))
                if found:
                    yield Drift(session, found, put_away not in (None, 0))


def busy(view: StoreView, sessions: Sequence[Key]) -> set[Key]:
    """Return the sessions in which a turn may be running; none where nobody has the store open."""
    if view.held == "no":
        return set()
    ages = ages_of(view, sessions)
    return {s for s, age in ages.items() if age.newest is not None and view.now - age.newest < BUSY_SECONDS}


@dataclass
class CallSums:
    """How many calls the active rows of each session hold: one number for each session that has any."""

    view: StoreView
    _sums: dict[Cell, int] = field(default_factory=dict)

    def add(self, *totals: Cell) -> None:
        """Take in some rows: what `calls_sql` comes to, be it summed up or not."""
        (listed,) = totals
        # A table without any row comes to an empty list.
        if not isinstance(listed, str) or not listed:
            return
        for line in listed.split("\n"):
            session, _, length = line.partition(" ")
            key = bytes.fromhex(session)
            self._sums[key] = self._sums.get(key, 0) + int(length)

    def drifts(self) -> Iterator[Drift]:
        """Give all sessions whose counters the rows do not explain, once all rows were seen."""
        view, asked = self.view, list[Key]()
        for session in _disagreeing(view, self._sums):
            asked.append(session)
            if len(asked) == _AT_ONCE:
                yield from drifts(view, asked)
                asked.clear()
        yield from drifts(view, asked)


def calls_sql(shape: Shape) -> str:
    """Return aggregate SQL: for each active row with calls a line, its session's id in hex and how many there are.

    NULL where no counter needs it.
    """
    if CALLS not in counters_of(shape):
        return "NULL"
    active = shape.column("messages", "active", absent="1")
    role = shape.column("messages", "role", absent="'assistant'")
    line = f"hex(CAST(session_id AS BLOB)) || ' ' || {length_sql('tool_calls')}"
    has_calls = f"tool_calls IS NOT NULL AND {active} = 1 AND {role} = 'assistant'"
    return f"group_concat({line}, char(10)) FILTER (WHERE {has_calls})"


def summed_up(listed: Cell) -> Cell:
    """Return what `calls_sql` comes to with one line for each session: there are far fewer of them than of rows."""
    if not isinstance(listed, str) or not listed:
        return None
    sums: dict[str, int] = {}
    for line, times in Counter(listed.split("\n")).items():
        session, _, length = line.partition(" ")
        sums[session] = sums.get(session, 0) + int(length) * times
    return "\n".join(f"{session} {calls}" for session, calls in sums.items())


def _disagreeing(view: StoreView, calls: Mapping[Cell, int]) -> Iterator[Key]:
    """Give the sessions of which a counter is not just what their active rows come to."""
    shape = view.shape
    active = shape.column("messages", "active", alias="m", absent="1")
    wrong = {
        MESSAGES: f"sessions.{MESSAGES} IS NOT"
        f" (SELECT count(*) FROM messages m WHERE m.session_id = sessions.id AND {active} = 1)",
        CALLS: f"sessions.{CALLS} IS NOT coalesce(doctor_calls(CAST(sessions.id AS BLOB)), 0)",
    }
    chosen = [wrong[column] for column in counters_of(shape)]
    if not chosen:
        return
    count: Callable[..., int | None] = calls.get
    view.reader.connection.create_scalar_function("doctor_calls", count, 1)
    where = f"sessions.id IS NOT NULL AND ({' OR '.join(chosen)})"
    for (session,) in view.reader.walk(shape.tables["sessions"], ["sessions.id"], where):
        yield session


def length_sql(cell: str) -> str:
    """Return SQL for the length of a JSON list; what is none gives a number that no counter holds, to be looked at.

    Nested, so that what is no JSON raises nothing.
    """
    return (
        f"CASE typeof({cell}) WHEN 'text' THEN CASE json_valid({cell}) WHEN 1 THEN"
        f" CASE json_type({cell}) WHEN 'array' THEN json_array_length({cell}) ELSE {_NOT_A_LIST} END"
        f" ELSE {_NOT_A_LIST} END ELSE {_NOT_A_LIST} END"
    )


def _miscounts(view: StoreView, session: Key, holds: Mapping[str, Cell]) -> Iterator[Miscount]:
    with view.reader.pinned():
        for column, held in holds.items():
            known = explained(view, session, column)
            if known is not None and not (isinstance(held, int) and known.low <= held <= known.high):
                yield Miscount(column, held, known)


def explained(view: StoreView, session: Key, column: str) -> Explained | None:
    """Return what the rows of a session explain of a counter, None where a cell of theirs cannot be read."""
    return _messages(view, session) if column == MESSAGES else _calls(view, session)


def _standings(shape: Shape) -> tuple[str, str, str]:
    """Return SQL for: the row is counted for certain, it is to be counted, it may have been counted."""
    active = shape.column("messages", "active", absent="1")
    compacted = shape.column("messages", "compacted", absent="0")
    counted = f"coalesce({active}, 1) = 1"
    return f"{active} IS 1", counted, f"({counted} OR coalesce({compacted}, 0) = 0)"


def _messages(view: StoreView, session: Key) -> Explained:
    counts = ", ".join(f"count(*) FILTER (WHERE {standing})" for standing in _standings(view.shape))
    among, cells = in_keys("session_id", [session])
    row = view.reader.row(f"SELECT {counts} FROM messages WHERE {among}", cells)
    return Explained(*(count for count in row or () if isinstance(count, int)))


def _calls(view: StoreView, session: Key) -> Explained | None:
    """Return what the calls of a session's rows explain, None where a cell cannot be read: then nothing is known."""
    certain, counted, perhaps = _standings(view.shape)
    # Other roles have no calls; where they do, some releases counted them all the same.
    role = view.shape.column("messages", "role", absent="'assistant'")
    among, cells = in_keys("session_id", [session])
    total = Explained()
    for cell, is_certain, is_counted in view.reader.rows(
        f"SELECT tool_calls, {certain} AND {role} = 'assistant', {counted} FROM messages"
        f" WHERE {among} AND tool_calls IS NOT NULL AND {perhaps}",
        cells,
    ):
        length = calls_in(cell)
        if length is None:
            return None
        total += Explained(length.low if is_certain else 0, length.right if is_counted else 0, length.high)
    return total


def calls_in(cell: Cell) -> Explained | None:
    """Return for how many calls a cell stands; None for what is no JSON.

    A list inside a string of JSON was counted as one by whoever wrote it so (up to 0.19.0) and as its length by others
    (0.20.0 on): both are explained, and the length is right. A value that is neither list nor string was counted as
    one when it was written, and an empty one as none when it was recounted (0.20.6 on).
    """
    if not isinstance(cell, str):
        return None
    try:
        value = json.loads(cell)
        if isinstance(value, str):
            unwrapped = unwrap(cell, Goal.LIST)
            if isinstance(unwrapped, Unwrapped):
                inner = len(json.loads(unwrapped.value_text))
                return Explained(min(1, inner), inner, max(1, inner))
    except (ValueError, RecursionError):
        return None
    if isinstance(value, list):
        return Explained(len(value), len(value), len(value))
    return Explained(int(bool(value)), int(bool(value)), 1)
