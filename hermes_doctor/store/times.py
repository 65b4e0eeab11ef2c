"""Which cells of a store are times, and what stands there that is none.

As the releases write them (0.13.0 to 0.22.2): seconds since the epoch. Not among them: the times inside JSON and in
``state_meta``, and ``owner_started_at``, which counts the ticks of a machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

from hermes_doctor.store.cells import BadText, Cell
from hermes_doctor.store.clocks import LATEST
from hermes_doctor.store.shape import Shape


class Time(NamedTuple):
    """A column of times. ``required``: every release declares it NOT NULL. ``zero``: hermes writes 0 for "never"."""

    column: str
    required: bool = False
    zero: bool = False


class Times(NamedTuple):
    """The times of a table. ``session``: the column that names the session a row belongs to, if one does."""

    session: str | None
    times: tuple[Time, ...]


def _required(*columns: str) -> tuple[Time, ...]:
    return tuple(Time(column, required=True) for column in columns)


def _optional(*columns: str) -> tuple[Time, ...]:
    return tuple(Time(column) for column in columns)


TIMES: Mapping[str, Times] = {
    "messages": Times("session_id", _required("timestamp")),
    "sessions": Times(
        "id",
        (
            *_required("started_at"),
            *_optional("ended_at", "last_activity_at"),
            Time("last_read_at", zero=True),  # 0: marked as unread
            *_optional("compression_failure_cooldown_until", "compression_recovery_deadline"),
        ),
    ),
    "session_model_usage": Times("session_id", _optional("first_seen", "last_seen")),
    "compression_locks": Times("session_id", _required("acquired_at", "expires_at")),
    "session_turn_leases": Times("conversation_id", _required("acquired_at", "expires_at")),
    "gateway_heartbeats": Times(None, _required("started_at", "last_heartbeat")),
    "gateway_routing": Times(None, _required("updated_at")),
    "async_delegations": Times(
        "parent_session_id",
        (*_required("dispatched_at", "updated_at"), *_optional("completed_at", "delivered_at", "delivery_claimed_at")),
    ),
    "delivery_obligations": Times(None, _required("created_at", "updated_at")),
    "telegram_dm_topic_mode": Times(
        None, (*_required("activated_at", "updated_at"), *_optional("capability_checked_at"))
    ),
    "telegram_dm_topic_bindings": Times("session_id", _required("linked_at", "updated_at")),
}

#: What is none of SQLite's numbers.
NO_NUMBER = frozenset({"text", "date as text", "number as text", "blob"})

#: Times in milliseconds begin here (2001): as seconds, far beyond 2103.
_MILLISECONDS = 1e12


def no_time_sql(shape: Shape, table: str, time: Time) -> str:
    """Return SQL for whether a cell is no time: no number from 1970 to 2103. NULL is one only where it is required.

    The first second of 1970 does not count: what stands there is a 0, or the rest of one.
    """
    # The plus takes the column's type away: else text would be compared as text where the column is declared so.
    cell = f"+{shape.column(table, time.column)}"
    inside = f"{cell} >= 1.0 AND {cell} < {LATEST}"
    accepted = f"({inside}) OR {cell} = 0" if time.zero else inside
    return f"({accepted}) IS {'NOT TRUE' if time.required else 'FALSE'}"


def kind(time: Time, cell: Cell) -> str | None:
    """Say in a word or two, which tell nothing of a text, what stands in a cell; None where it is a time."""
    if cell is None:
        return "missing" if time.required else None
    if isinstance(cell, str):
        return _kind_of_text(cell)
    if isinstance(cell, bytes):
        return "text" if isinstance(cell, BadText) else "blob"
    if 1 <= cell < LATEST or (time.zero and cell == 0):
        return None
    if cell < 1:
        return "negative" if cell < 0 else "zero"
    return "milliseconds" if _MILLISECONDS <= cell < LATEST * 1000 else "beyond 2103"


def _kind_of_text(text: str) -> str:
    for kind, read in (("number as text", float), ("date as text", datetime.fromisoformat)):
        try:
            read(text.strip())
        except ValueError:
            continue
        return kind
    return "text"
