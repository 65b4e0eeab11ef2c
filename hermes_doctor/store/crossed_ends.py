"""Rows of sessions whose start, end and end reason contradict one another, and when the end can be told all the same.

Every writer of every release sets ``ended_at`` and ``end_reason`` together and clears them together. Of all that may
have been there, one thing follows from the rest: a row that was compressed ended when the one row began in which its
conversation goes on.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from hermes_doctor.store.ages import UNKNOWN, Age, ages_of
from hermes_doctor.store.cells import Cell, Key
from hermes_doctor.store.clocks import MINUTE, trusted, trusted_sql
from hermes_doctor.store.lineage import COMPRESSION, continuations_of
from hermes_doctor.store.reader import in_keys
from hermes_doctor.store.retention import prune_is_off, retention
from hermes_doctor.store.shape import Shape
from hermes_doctor.store.view import StoreView

#: By so much may a message of a compressed row be younger than its continuation, in seconds: a rotation takes a while.
_ROTATION_SECONDS = 5 * MINUTE


class Kind(enum.StrEnum):
    """In which way an end contradicts itself."""

    NO_END = "reason-without-end"
    NO_REASON = "end-without-reason"
    BACKWARDS = "end-before-start"


class TrueEnd(NamedTuple):
    """When a row really ended, in seconds since the epoch. ``prunable``: with this end, a prune may delete it."""

    at: float
    continuation: Key
    prunable: bool


def crossed_sql(shape: Shape) -> str | None:
    """Return SQL over sessions for rows whose end contradicts itself; None where the shape cannot show it."""
    if not shape.has("sessions", "id", "ended_at", "end_reason"):
        return None
    ended, reason = shape.column("sessions", "ended_at"), shape.column("sessions", "end_reason")
    started = trusted_sql(shape.column("sessions", "started_at"))
    return (
        f"({ended} IS NULL AND {reason} IS NOT NULL) OR ({ended} IS NOT NULL AND coalesce({reason}, '') = '')"
        f" OR (typeof({ended}) IN ('integer', 'real') AND {ended} < {started})"
    )


def kinds_of(started_at: Cell, ended_at: Cell, end_reason: Cell) -> tuple[Kind, ...]:
    """Return in which ways these cells of one row contradict one another, in the order of `Kind`."""
    if ended_at is None:
        return () if end_reason is None else (Kind.NO_END,)
    started = trusted(started_at)
    backwards = isinstance(ended_at, int | float) and started is not None and ended_at < started
    found = {Kind.NO_REASON: end_reason in (None, ""), Kind.BACKWARDS: backwards}
    return tuple(kind for kind, is_so in found.items() if is_so)


def true_end(view: StoreView, session: Key, started_at: Cell, end_reason: Cell) -> TrueEnd | None:
    """Return when a row ended that was compressed, None where that does not follow.

    It follows from exactly one continuation that has messages and a start that can be true: not before the row's own,
    not in the future, and not while the row still took messages.
    """
    going_on = continuations_of(view, session) if end_reason == COMPRESSION else []
    if len(going_on) != 1 or not _has_messages(view, going_on[0].id):
        return None
    at, started = trusted(going_on[0].started_at), trusted(started_at)
    age = ages_of(view, [session]).get(session, UNKNOWN)
    if at is None or started is None or age.newest is None or not started <= at <= view.now:
        return None
    if age.message is not None and age.message > at + _ROTATION_SECONDS:
        return None
    return TrueEnd(at, going_on[0].id, _prunable(view, age))


def _prunable(view: StoreView, age: Age) -> bool:
    """Whether an ended row of that age may be pruned by the clock of any release: what is open never is."""
    oldest = min(at for at in (age.started, age.message, age.newest) if at is not None)
    return view.now - oldest >= retention(view) and not prune_is_off(view)


def _has_messages(view: StoreView, session: Key) -> bool:
    if not view.shape.has("messages", "session_id"):
        return False
    among, cells = in_keys("session_id", [session])
    return bool(view.rows(f"SELECT 1 FROM messages WHERE {among} LIMIT 1", cells))
