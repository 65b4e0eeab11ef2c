"""Messages whose ``active`` is NULL: whether they were live, or a compaction meant to put them away.

No release writes NULL on purpose. It comes from inserts that do not name the column (0.16 to 0.18.0, tools) into a
table whose column has no default. Every later writer then misses the row, because all of them ask for ``active = 1``:
above all the compaction in place (0.18.0 on), which puts what it sees away, adds a summary and the rows that stay, and
sets the counter to the number of these. So where the newest rows, as many as the counter says, hold a summary, the
rows before them are what the compaction missed.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from hermes_doctor.store.cells import Cell, Key
from hermes_doctor.store.counters import MESSAGES
from hermes_doctor.store.handoffs import is_summary_sql
from hermes_doctor.store.reader import in_keys
from hermes_doctor.store.setting_aside import spared
from hermes_doctor.store.view import StoreView

#: From this schema on (0.18.2) each writable open of hermes makes such rows active, archived or not.
HEALED_SINCE = 19


class Standing(enum.Enum):
    """What a row was before its ``active`` became NULL. ARCHIVED: it says so itself; MISSED: see above."""

    LIVE = enum.auto()
    ARCHIVED = enum.auto()
    MISSED = enum.auto()


class _Chat(NamedTuple):
    """A session with such rows. ``live_from``: the oldest row that a compaction in place left live, if there was one.

    ``spared``: why it is not to be touched now, if so.
    """

    live_from: int | None
    spared: str | None


def standing(view: StoreView, session: Key, row_id: Cell, compacted: Cell) -> Standing:
    """Return what a message with NULL in ``active`` was."""
    if compacted not in (None, 0):
        return Standing.ARCHIVED
    live_from = _chat(view, session).live_from
    return (
        Standing.MISSED if live_from is not None and isinstance(row_id, int) and row_id < live_from else Standing.LIVE
    )


def waits(view: StoreView, session: Key) -> str | None:
    """Return why the session is left as it is for now, None where nothing speaks against it."""
    return _chat(view, session).spared


def _chat(view: StoreView, session: Key) -> _Chat:
    chats = view.once(_chats)
    if session not in chats:
        chats[session] = _Chat(_live_from(view, session), spared(view, session))
    return chats[session]


def _chats(_view: StoreView) -> dict[Key, _Chat]:
    """What is known of the sessions that were asked about."""
    return {}


def _live_from(view: StoreView, session: Key) -> int | None:
    shape = view.shape
    if not shape.has("messages", "session_id", "active", "compacted", "content") or not shape.has("sessions", MESSAGES):
        return None
    own, id_cells = in_keys("id", [session])
    counted = view.reader.value(f"SELECT {MESSAGES} FROM sessions WHERE {own}", id_cells)
    if not isinstance(counted, int) or counted <= 0:
        return None
    ours, cells = in_keys("session_id", [session])
    # The plus keeps SQLite from going through the whole table in the order of its ids.
    live = f"FROM messages WHERE {ours} AND coalesce(active, 1) = 1"
    oldest = view.reader.value(f"SELECT id {live} ORDER BY +id DESC LIMIT 1 OFFSET ?", (*cells, counted - 1))
    if not isinstance(oldest, int) or not view.rows(f"SELECT 1 {live} AND id < ? LIMIT 1", (*cells, oldest)):
        return None
    summary = view.rows(f"SELECT 1 {live} AND id >= ? AND {is_summary_sql(shape)} LIMIT 1", (*cells, oldest))
    return oldest if summary else None
