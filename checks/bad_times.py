"""Times that are none.

What it finds
Cells in which a time should stand, in `messages`, `sessions`, and the tables of routes, locks,
leases, heartbeats, deliveries, delegations, usage and topics, that hold no number, or one outside
1970 to 2103. One finding a row, with the columns and what stands there: text, date as text, number
as text, blob, negative, zero, milliseconds, beyond 2103, or (where no release allows it) missing.

Why it matters
What is no number breaks readers. With text or a blob in `last_read_at`, no release from 0.20.0 on
can list any session any more: an error. Where it is the newest time of a chat, `hermes sessions
list` of 0.13 to 0.20.6 ends at that chat without showing the rest. In a cooldown, or in the expiry
of a lock or a lease, it stands in the way of that chat's compression and of every undo; in a
delegation's times, of handing results over. An absurd number breaks nothing, but sorts: such a chat
is for ever the newest or the oldest of the list (by last activity up to 0.21.5, by start to this
day), and all releases prune an ended session that seems to have begun in 1970 or before.

How it decides
By each cell alone. NULL is right where the column may be empty, and 0 in `last_read_at` means
unread. A time in the future is no fault here, nor is one of 1970: clocks are wrong now and then. A
finding is a warning where it is about `messages.timestamp`, `sessions.started_at` or one that
breaks a reader, and else a note.

Fix
None. When it was cannot be known: no clock of the doctor's believes such a cell, and a session
with one has no known age, so no check here takes it for idle. `hermes sessions recover` of 0.22.2
makes a new store, in which a message takes the time of its neighbour.

Fix safety
Nothing is changed.

Upstream
Issues 91536 (numbers left by a recovery), 108086 (text), 99959, 102352, 102399 (one bad cell ended
whole listings; from 0.21.5 on it costs one cell).
"""

from __future__ import annotations

from functools import partial

from hermes_doctor.engine.model import Check, Finding, Row, RowRule, Safety, Severity
from hermes_doctor.store.shape import Shape
from hermes_doctor.store.times import NO_NUMBER, TIMES, Times, kind, no_time_sql
from hermes_doctor.store.view import StoreView

NAME = "bad-times"

#: By these a chat is sorted, whatever stands there.
_SORTED_BY = frozenset({("messages", "timestamp"), ("sessions", "started_at")})
#: Readers fail at these where no number stands there.
_RECKONED_WITH = frozenset(
    {
        ("sessions", "last_activity_at"),
        ("sessions", "compression_failure_cooldown_until"),
        ("compression_locks", "expires_at"),
        ("session_turn_leases", "expires_at"),
        ("async_delegations", "dispatched_at"),
        ("async_delegations", "completed_at"),
    }
)
#: And at this one, every list of sessions.
_BREAKS_LISTS = ("sessions", "last_read_at")


def _condition(table: str, shape: Shape) -> str | None:
    suspects = [no_time_sql(shape, table, time) for time in TIMES[table].times if shape.has(table, time.column)]
    return " OR ".join(suspects) or None


def _judge(table: str, row: Row, view: StoreView) -> Finding | None:
    session = TIMES[table].session
    times = [time for time in TIMES[table].times if view.shape.has(table, time.column)]
    told = {time.column: kind(time, row[time.column]) for time in times}
    found = {column: what for column, what in told.items() if what is not None}
    if not found:
        return None
    return Finding(
        check=NAME,
        severity=max(_severity(table, column, what) for column, what in found.items()),
        table=table,
        key=None,
        session=row[session] if session else None,
        summary=f"no time: {', '.join(f'{column} ({what})' for column, what in found.items())}",
        detail={"columns": list(found), "kinds": list(found.values())},
    )


def _severity(table: str, column: str, what: str) -> Severity:
    place = (table, column)
    if place == _BREAKS_LISTS and what in NO_NUMBER - {"number as text"}:
        return Severity.ERROR
    if place in _SORTED_BY or (place in _RECKONED_WITH and what in NO_NUMBER):
        return Severity.WARNING
    return Severity.INFO


def _rule(table: str, times: Times) -> RowRule:
    columns = [time.column for time in times.times] + ([times.session] if times.session else [])
    return RowRule(table, tuple(columns), partial(_condition, table), partial(_judge, table), lasting=True)


CHECK = Check(
    name=NAME,
    severity=Severity.ERROR,
    summary="times that are no numbers, or outside 1970 to 2103",
    meaning="cells that break lists of chats, or sort them wrongly",
    fix=Safety.NONE,
    page=__doc__ or "",
    rule=tuple(_rule(table, times) for table, times in TIMES.items()),
)
