"""Open rows that were left behind: idle for longer than their source allows, with no sign of life.

Used by open-zombies, and by orphan-stubs to tell whether an open stub is fit to be ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hermes_doctor.store.ages import WIDTH, Age, age_columns, age_from, ages_of
from hermes_doctor.store.cells import Cell, Key, as_text
from hermes_doctor.store.clocks import LATEST
from hermes_doctor.store.lineage import Edge, chain_of, descendants_of, edge_sql, has_lineage
from hermes_doctor.store.lineage_faults import goes_on_in
from hermes_doctor.store.liveness import HANDING_OFF, heartbeat, kept, live_work, routed, routes
from hermes_doctor.store.reader import Values, in_keys
from hermes_doctor.store.retention import retention
from hermes_doctor.store.shape import Shape
from hermes_doctor.store.sources import WORKER_LIMIT, Group, group_of, idle_limit
from hermes_doctor.store.view import StoreView

_AT_ONCE = 500


class LeftBehind(NamedTuple):
    """An open row that nobody will end.

    ``age``: of the row itself. ``idle``: seconds since it, or its compression chain, was last used; ``clock``: by
    which clock. ``end_reason``: of a row that is open by its time but carries a reason. ``successor``: the session
    that has taken over a chat. ``forked``: it is one of several continuations of one chat, of which releases resume the
    open one first.
    """

    session: Key
    source: Cell
    group: Group
    age: Age
    idle: float
    clock: str
    end_reason: Cell = None
    successor: Key = None
    forked: bool = False


@dataclass
class _Asked:
    """What is remembered while one run of `left_behind` asks about many rows: chains that many rows hang below."""

    view: StoreView
    chains: dict[Key, tuple[Key, ...] | None] = field(default_factory=dict)


@dataclass(frozen=True)
class _Row:
    session: Key
    source: Cell
    end_reason: Cell
    session_key: Cell
    handoff: Cell
    parent: Key
    continues: bool
    has_children: bool
    age: Age


def left_behind(view: StoreView, keys: Sequence[Key] | None) -> Iterator[LeftBehind]:
    """Give the open rows that were left behind: of the whole store, or of these ids only."""
    shape = view.shape
    if not shape.has("sessions", "id", "source", "started_at", "ended_at"):
        return
    columns, where, asked = _columns(shape), _suspects(view), _Asked(view)
    if keys is None:
        found: Iterator[Values] = view.reader.walk(shape.tables["sessions"], columns, where)
    else:
        found = _rows_of(view, keys, columns, where)
    for values in found:
        verdict = _judge(asked, _row(values))
        if verdict is not None:
            yield verdict


def _rows_of(view: StoreView, keys: Sequence[Key], columns: Sequence[str], where: str) -> Iterator[Values]:
    for start in range(0, len(keys), _AT_ONCE):
        among, cells = in_keys("sessions.id", keys[start : start + _AT_ONCE])
        yield from view.rows(f"SELECT {', '.join(columns)} FROM sessions WHERE {among} AND ({where})", cells)


def _columns(shape: Shape) -> list[str]:
    """Return what `_row` wants of a row of sessions: its own cells, and what index look-ups say around it."""
    own = [
        shape.column("sessions", name, alias="sessions")
        for name in ("id", "source", "end_reason", "session_key", "handoff_state", "parent_session_id")
    ]
    around = ["0", "0"]
    if has_lineage(shape):
        parent = "FROM sessions p WHERE p.id = sessions.parent_session_id"
        around = [
            f"(SELECT {edge_sql(shape, 'sessions', 'p')} = '{Edge.CONTINUATION}' {parent})",
            "EXISTS (SELECT 1 FROM sessions c WHERE c.parent_session_id = sessions.id)",
        ]
    return [*own, *around, *age_columns(shape)]


def _row(values: Values) -> _Row:
    session, source, end_reason, session_key, handoff, parent, continues, has_children = values[:-WIDTH]
    age = age_from(values[-WIDTH:])
    return _Row(session, source, end_reason, session_key, handoff, parent, bool(continues), bool(has_children), age)


def _suspects(view: StoreView) -> str:
    """Return SQL that is true of every row that can be left behind, and cheap: no look-ups, columns of the row only."""
    shortest = view.now - view.idle_limit(WORKER_LIMIT)
    conditions = ["sessions.ended_at IS NULL"]
    for name in ("started_at", "last_activity_at"):
        column = view.shape.column("sessions", name, alias="sessions")
        conditions.append(
            f"({column} IS NULL OR (typeof({column}) IN ('integer', 'real') AND {column} <= {shortest!r}))"
        )
    pinned = view.shape.column("sessions", "pinned", alias="sessions", absent="0")
    conditions.append(f"coalesce({pinned}, 0) = 0")
    return " AND ".join(conditions)


def _judge(asked: _Asked, row: _Row) -> LeftBehind | None:
    """Decide about one suspect; the cheapest questions come first."""
    view = asked.view
    group = group_of(row.source)
    limit = idle_limit(group, view.held, retention(view))
    if limit is None or row.age.newest is None:
        return None
    limit = view.idle_limit(limit)
    if view.now - row.age.newest < limit or routed(view, row.session) or row.handoff in HANDING_OFF:
        return None
    if _may_be_routed(view, row, group):
        return None
    newest, clock = row.age.newest, row.age.clock
    if row.continues:
        chain = _chain(asked, row)
        found = None if chain is None or kept(view, chain) else _newest(view, chain)
        if found is None or found.newest is None:
            return None
        if found.newest > newest:
            newest, clock = found.newest, found.clock
    if view.now - newest < limit or (row.has_children and not _quiet_below(view, row.session, limit)):
        return None
    successor = None
    if group is Group.MESSAGING:
        successor = _successor(asked, row)
        if successor is None:
            return None
    if live_work(view, row.session) or heartbeat(view, row.source, newest):
        return None
    idle = view.now - newest
    going_on = goes_on_in(view, row.parent) if row.continues else ()
    forked = row.session in going_on and len(going_on) > 1
    return LeftBehind(row.session, row.source, group, row.age, idle, clock, row.end_reason, successor, forked)


def _may_be_routed(view: StoreView, row: _Row, group: Group) -> bool:
    """Whether routes that cannot be seen could lead to the row.

    Chats lead to rows of the gateway's platforms, among which are plugins of any name, and to rows that were handed
    off to a chat. ``unknown`` is no platform: the token accounting writes it.
    """
    if routes(view).complete:
        return False
    if row.handoff not in (None, "failed"):
        return True
    return group is Group.MESSAGING or (group is Group.OTHER and row.source != "unknown")


def _chain(asked: _Asked, row: _Row) -> tuple[Key, ...] | None:
    """Return the compression chain that the row continues, None where it is too long to be read.

    Continuations of one parent share a chain, so it is walked once for all of them.
    """
    if row.parent not in asked.chains:
        chain = chain_of(asked.view, row.session)
        asked.chains[row.parent] = None if chain.cut else chain.ids
    return asked.chains[row.parent]


def _newest(view: StoreView, sessions: Sequence[Key]) -> Age | None:
    """Return the newest age among sessions, None where one of them has no known age."""
    ages = list(ages_of(view, sessions).values())
    if not ages or any(age.newest is None for age in ages):
        return None
    return max(ages, key=lambda age: age.newest or 0.0)


def _quiet_below(view: StoreView, session: Key, limit: float) -> bool:
    """Whether nothing below the session was used within the limit; False where that cannot be told."""
    below = descendants_of(view, session)
    if below.cut:
        return False
    ages = ages_of(view, below.ids).values()
    return all(age.newest is not None and view.now - age.newest >= limit for age in ages)


def _successor(asked: _Asked, row: _Row) -> Key:
    """Return a newer session that has taken over the row's chat, None for none.

    What descends from the row's own chain has not taken it over: it may still be part of it.
    """
    key = as_text(row.session_key)
    if not key or row.age.started is None:
        return None
    newer = asked.view.rows(
        "SELECT id FROM sessions WHERE session_key = ? AND typeof(started_at) IN ('integer', 'real')"
        f" AND started_at > ? AND started_at < {LATEST} ORDER BY started_at DESC LIMIT {_AT_ONCE}",
        (key, row.age.started),
    )
    if not newer:
        return None
    own: set[Key] = {row.session}
    if row.continues:
        own.update(_chain(asked, row) or ())
    if row.has_children:
        own.update(descendants_of(asked.view, row.session))
    return next((session for (session,) in newer if session not in own), None)
