"""Sessions that never held anything, as far as the store itself can say.

A stub has no message row of any kind, no title, no pin, no child, no usage, no calls, no tokens, no handoff. Rows
decide, not counters: ``message_count`` is 0 or NULL on many a real chat (upstream 45236: 147 of 150 TUI chats; 39734:
35 of 35 of the API server's), and stale on others. ``archived`` and ``hidden`` are about visibility and say nothing.
Who refers to a stub from elsewhere is the question of `references`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hermes_doctor.store.ages import age_from
from hermes_doctor.store.cells import Cell, Key
from hermes_doctor.store.clocks import DAY
from hermes_doctor.store.reader import Values, in_keys
from hermes_doctor.store.shape import Shape, Table
from hermes_doctor.store.view import StoreView

#: A stub younger than this, in seconds, may still be filled: a start can be slow, and clients create rows early.
IDLE_SECONDS = DAY

#: Columns of sessions that count what a session did. 0, NULL and a missing column mean: nothing.
_COUNTERS = (
    "tool_call_count",
    "api_call_count",
    "input_tokens",
    "output_tokens",
    "cache_read_tokens",
    "cache_write_tokens",
    "reasoning_tokens",
    "estimated_cost_usd",
    "actual_cost_usd",
    "rewind_count",
)

#: Rows that belong to a session: table, and the column that names the session.
_BELONGINGS = (
    ("messages", "session_id"),
    ("sessions", "parent_session_id"),
    ("session_model_usage", "session_id"),
)

#: Ids bound in one statement.
_KEYS_AT_ONCE = 500

_COLUMNS = ("id", "source", "parent_session_id", "started_at", "last_activity_at", "ended_at")


class Stub(NamedTuple):
    """A session that holds nothing. ``newest``: its last sign of life, in seconds since the epoch."""

    id: Key
    source: Cell
    parent: Key
    ended: bool
    newest: float


def stubs(view: StoreView, keys: Sequence[Key] | None = None) -> Iterator[Stub]:
    """Give the sessions (of these ids, or of the whole store) that hold nothing and are idle for a day.

    Idle: by the newer of start and last activity; a time that is absurd, or in the future, makes no stub. When it
    was ended does not count: nothing was going on in it. ``--idle`` raises the day. A store without a table of
    messages has no stubs: nothing proves them empty.
    """
    for values in _empty_rows(view, keys):
        stub = _judge(values, view)
        if stub is not None:
            yield stub


def is_stub(view: StoreView, session: Key) -> bool:
    """Whether that session holds nothing and is idle for a day."""
    return any(True for _stub in stubs(view, [session]))


def is_empty(view: StoreView, session: Key) -> bool:
    """Whether that session holds nothing, however young it is."""
    return any(True for _row in _empty_rows(view, [session]))


def _empty_sql(shape: Shape) -> str | None:
    """Return SQL over sessions (not aliased) for rows that hold nothing; None where the shape cannot show it.

    What no index answers is left out here and asked in one walk of the table instead.
    """
    if not shape.has("sessions", "id", "started_at") or not shape.has("messages", "session_id"):
        return None
    terms = ["sessions.id IS NOT NULL"]
    terms += [f"{shape.column('sessions', name)} IS NULL" for name in ("title", "handoff_state")]
    terms += [f"coalesce({shape.column('sessions', name, absent='0')}, 0) = 0" for name in ("pinned", *_COUNTERS)]
    terms += [
        f"NOT EXISTS (SELECT 1 FROM {table} AS belonging WHERE belonging.{column} = sessions.id)"
        for table, column in _BELONGINGS
        if shape.has(table, column) and _is_indexed(shape, table, column)
    ]
    return " AND ".join(terms)


def _empty_here(view: StoreView) -> str | None:
    return _empty_sql(view.shape)


def _unproven(view: StoreView) -> list[tuple[str, str]]:
    """Return the belongings that no index answers."""
    return [(table, column) for table, column in _BELONGINGS if not _is_indexed(view.shape, table, column)]


def _empty_rows(view: StoreView, keys: Sequence[Key] | None) -> Iterator[Values]:
    condition = view.once(_empty_here)
    if condition is None:
        return
    unproven = view.once(_unproven)
    rows = _rows(view, condition, keys)
    yield from _without(view, rows, unproven) if unproven else rows


def _rows(view: StoreView, condition: str, keys: Sequence[Key] | None) -> Iterator[Values]:
    columns = [view.shape.column("sessions", name) for name in _COLUMNS]
    if keys is None:
        yield from view.reader.walk(view.shape.tables["sessions"], columns, condition)
        return
    for start in range(0, len(keys), _KEYS_AT_ONCE):
        among, cells = in_keys("sessions.id", keys[start : start + _KEYS_AT_ONCE])
        yield from view.rows(f"SELECT {', '.join(columns)} FROM sessions WHERE {among} AND ({condition})", cells)


def _judge(values: Values, view: StoreView) -> Stub | None:
    session, source, parent, started_at, last_activity_at, ended_at = values
    # It has no messages, so there are no message times to ask about.
    newest = age_from((started_at, last_activity_at, None, 0, 0)).newest
    if newest is None or view.now - newest < view.idle_limit(IDLE_SECONDS):
        return None
    return Stub(session, source, parent, ended_at is not None, newest)


def _is_indexed(shape: Shape, table: str, column: str) -> bool:
    """Whether SQLite can look up rows by that column (true of a table that is not there)."""
    found = shape.tables.get(table)
    if found is None or not found.has(column) or _leads_key(found, column):
        return True
    leading = re.compile(rf'\bON\s+["`\[]?{table}["`\]]?\s*\(\s*["`\[]?{column}\b(?!.*\bWHERE\b)', re.I | re.S)
    return any(leading.search(sql) for sql in shape.indexes.values())


def _leads_key(table: Table, column: str) -> bool:
    return bool(table.primary_key) and table.primary_key[0].lower() == column


def _without(view: StoreView, rows: Iterator[Values], belongings: Sequence[tuple[str, str]]) -> Iterator[Values]:
    """Drop the sessions that own a row in one of these tables, reading each of them once."""
    left = {row[0]: row for row in rows}
    for name, column in belongings if left else ():
        cell = view.shape.column(name, column)
        for (owner,) in view.reader.walk(view.shape.tables[name], [cell], f"{cell} IS NOT NULL"):
            left.pop(owner, None)
    yield from left.values()
