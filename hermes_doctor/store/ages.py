"""When a session was last used, from the three clocks that a store has, and whether that can be known at all.

A row's start, its newest message, and the last activity (0.20.0 on). The newest that can be trusted decides
(upstream 114219). A row with one absurd clock has no known age: it may have been used a minute ago (upstream 91536).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from hermes_doctor.store.cells import Cell, Key
from hermes_doctor.store.clocks import LATEST, trusted
from hermes_doctor.store.reader import in_keys
from hermes_doctor.store.shape import Shape
from hermes_doctor.store.view import StoreView

#: Hermes is younger than 2020. An earlier time comes from a clock that was not set yet (boards without a battery
#: start in 1970), and says nothing about when it was.
EARLIEST = 1_577_836_800.0

#: How many rows are asked about in one statement.
_AT_ONCE = 500


class Age(NamedTuple):
    """When a session was last used, in seconds since the epoch.

    ``newest``: the newest of all clocks, None where the age is not known. ``clock``: which one that is. ``started``
    and ``message``: the row's start and its newest message, None where there is none.
    """

    newest: float | None
    clock: str
    started: float | None = None
    message: float | None = None


#: An age that cannot be known.
UNKNOWN = Age(None, "")

#: How many columns `age_columns` gives.
WIDTH = 5


def age_columns(shape: Shape, sessions: str = "sessions") -> tuple[str, ...]:
    """Return SQL for what `age_from` wants of a row of sessions, which goes by the name ``sessions`` in the query.

    All message times are index seeks: the newest that can be a time, whether there is one beyond (numbers past 2103,
    text and blobs sort behind all times), and whether there are messages at all.
    """
    started = shape.column("sessions", "started_at", alias=sessions)
    activity = shape.column("sessions", "last_activity_at", alias=sessions)
    if not shape.has("messages", "session_id", "timestamp"):
        return started, activity, "NULL", "0", "0"
    ours = f"FROM messages m WHERE m.session_id = {sessions}.id"
    return (
        started,
        activity,
        f"(SELECT max(m.timestamp) {ours} AND m.timestamp > 0 AND m.timestamp < {LATEST})",
        f"EXISTS (SELECT 1 {ours} AND m.timestamp >= {LATEST})",
        f"EXISTS (SELECT 1 {ours})",
    )


def age_from(cells: Iterable[Cell]) -> Age:
    """Return the age of a row from the cells that `age_columns` asked for."""
    started_at, last_activity_at, newest_message, absurd_message, any_message = cells
    started, activity, message = trusted(started_at), trusted(last_activity_at), trusted(newest_message)
    absurd = (started is None and started_at is not None) or (activity is None and last_activity_at is not None)
    if absurd or absurd_message or (any_message and message is None):
        return UNKNOWN
    clocks = {"last_activity_at": activity, "messages.timestamp": message, "started_at": started}
    known = [(at, clock) for clock, at in clocks.items() if at is not None]
    if not known:
        return UNKNOWN
    # Of equal clocks the first named counts.
    newest, clock = max(known, key=lambda pair: pair[0])
    return UNKNOWN if newest < EARLIEST else Age(newest, clock, started, message)


def ages_of(view: StoreView, sessions: Iterable[Key]) -> dict[Key, Age]:
    """Return the ages of these sessions; an id of no row is left out."""
    columns = ", ".join(("sessions.id", *age_columns(view.shape)))
    asked = list(sessions)
    found: dict[Key, Age] = {}
    for start in range(0, len(asked), _AT_ONCE):
        among, cells = in_keys("sessions.id", asked[start : start + _AT_ONCE])
        for session, *times in view.rows(f"SELECT {columns} FROM sessions WHERE {among}", cells):
            found[session] = age_from(times)
    return found
