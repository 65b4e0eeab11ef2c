"""Signs of life: what says that somebody will still use a session, and that it must be left alone.

A sign spares rows, not stores. Where a sign cannot be read it counts as there: a wrong spare leaves a row open for
another day, a wrong repair cuts off a living chat (upstream 94895, 118161, 55485).
"""

from __future__ import annotations

import enum
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from hermes_doctor.host.state_files import routed_session_ids
from hermes_doctor.store.cells import Cell, Key, quote
from hermes_doctor.store.clocks import HOUR, LATEST
from hermes_doctor.store.lineage import family_of, root_of
from hermes_doctor.store.reader import in_keys
from hermes_doctor.store.sources import BACKED
from hermes_doctor.store.view import StoreView

#: A backend is alive if its heartbeat is no older, in seconds (the sweep's own limit, 0.21.5 on; it beats every 60).
HEARTBEAT_SECONDS = 180.0
#: A backend may own rows that began before it registered by so much, in seconds (twice the sweep's 6 h, 0.21.5 on).
OWNERSHIP_GRACE = 12 * HOUR

#: Delegations in one of these states are over (0.19.0 on; ``unknown``: its owner's process is gone).
FINISHED = frozenset(
    {"completed", "error", "failed", "interrupted", "timeout", "cancelled", "canceled", "stalled", "unknown"}
)
#: Nothing of these is still to be delivered (dropped: 0.20.0 on).
_DELIVERED = frozenset({"delivered", "dropped"})


#: States of ``handoff_state`` in which somebody is about to take the session over (all releases).
HANDING_OFF = frozenset({"pending", "running"})


class Sign(enum.StrEnum):
    """Why a session is spared, in words that follow "spared: "."""

    PINNED = "it is pinned"
    ROUTED = "a chat is routed to it"
    HANDOFF = "it is being handed off"
    LEASE = "a turn is running in its lineage"
    LOCK = "its lineage is being compressed"
    DELEGATION = "a delegation of its lineage is running or undelivered"


@dataclass(frozen=True)
class Routes:
    """Sessions that chats lead to. ``complete``: nothing that could name one was unreadable or out of sight."""

    ids: frozenset[Key]
    complete: bool


class Guards(NamedTuple):
    """Sessions named by work that is going on: turn leases, compression locks, delegations.

    Only what has not expired, or whose expiry cannot be told.
    """

    leases: frozenset[Key]
    locks: frozenset[Key]
    delegations: frozenset[Key]


class _LiveFamilies(NamedTuple):
    """All rows of the families in which work goes on; of families too large to list, the roots."""

    rows: Mapping[Key, Sign]
    roots: Mapping[Key, Sign]


class _Backend(NamedTuple):
    """A living backend; ``started_at`` None: cannot be told."""

    started_at: float | None


def routes(view: StoreView) -> Routes:
    """Return the sessions that chats lead to, read once.

    From ``gateway_routing`` (0.18.1 on; every session id in an entry, whatever the scope), the topic bindings of
    Telegram, and ``sessions/sessions.json`` (all that releases up to 0.18.0 have). Without a home the file is out of
    sight; then the routes are complete only if the table has entries.
    """
    return view.once(_load_routes)


def routed(view: StoreView, session: Key) -> bool:
    """Whether a chat leads to the session; False also where that cannot be seen (`routes` says whether)."""
    return session in routes(view).ids


def guards(view: StoreView) -> Guards:
    """Return what work is going on, by the ids that it names itself, read once."""
    return view.once(_load_guards)


def lease_alive(view: StoreView, sessions: Iterable[Key]) -> bool:
    """Whether a turn lease on one of these sessions has not expired, or cannot be told to have (0.20.6 on)."""
    return not guards(view).leases.isdisjoint(sessions)


def lock_alive(view: StoreView, sessions: Iterable[Key]) -> bool:
    """Whether a compression lock on one of these sessions has not expired, or cannot be told to have (0.16.0 on)."""
    return not guards(view).locks.isdisjoint(sessions)


def live_work(view: StoreView, session: Key) -> Sign | None:
    """Return the work that is going on anywhere in the session's family (its root's whole tree), None for none."""
    live = view.once(_load_live_families)
    found = live.rows.get(session)
    if found is None and live.roots:
        return live.roots.get(root_of(view, session))
    return found


def heartbeat(view: StoreView, source: Cell, newest: float) -> bool:
    """Whether a living backend could own a session of that source, last used at ``newest`` (0.21.5 on).

    A backend that registered more than 12 h after the session was last used cannot be the one that runs it.
    """
    if source not in BACKED:
        return False
    return any(
        backend.started_at is None or backend.started_at <= newest + OWNERSHIP_GRACE
        for backend in view.once(_load_backends)
    )


def kept(view: StoreView, sessions: Iterable[Key]) -> Sign | None:
    """Return what keeps these sessions by itself: a pin, a route, a handoff that is pending or running.

    Ask about a row together with its compression chain: a route or a pin may stay on a row that was compressed.
    """
    asked = list(sessions)
    if not routes(view).ids.isdisjoint(asked):
        return Sign.ROUTED
    pinned = view.shape.column("sessions", "pinned", absent="0")
    handoff = view.shape.column("sessions", "handoff_state")
    states = ", ".join(f"'{state}'" for state in sorted(HANDING_OFF))
    for some in _batches(asked):
        among, cells = in_keys("id", some)
        marks = view.rows(
            f"SELECT coalesce({pinned}, 0) <> 0 FROM sessions"
            f" WHERE {among} AND (coalesce({pinned}, 0) <> 0 OR {handoff} IN ({states})) LIMIT 1",
            cells,
        )
        if marks:
            return Sign.PINNED if marks[0][0] else Sign.HANDOFF
    return None


def expired(cell: Cell, now: float) -> bool:
    """Whether an expiry is over for certain; what is no time, or absurd, is not."""
    return isinstance(cell, int | float) and cell <= now and cell < LATEST


def session_ids_in(value: object) -> Iterator[str]:
    """Give every session id in parsed JSON: texts under a key that ends in ``session_id``, at any depth."""
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            for name, inner in part.items():
                if isinstance(inner, str) and inner and str(name).endswith("session_id"):
                    yield inner
                else:
                    waiting.append(inner)
        elif isinstance(part, list):
            waiting.extend(part)


def _load_routes(view: StoreView) -> Routes:
    ids: set[Key] = set()
    complete = True
    entries = _column(view, "gateway_routing", "entry_json")
    for entry in entries:
        try:
            ids.update(session_ids_in(json.loads(entry if isinstance(entry, str) else "")))
        except (ValueError, RecursionError):
            complete = False
    ids.update(_column(view, "telegram_dm_topic_bindings", "session_id"))
    if view.home is None:
        return Routes(frozenset(ids), complete and bool(entries))
    mentions = routed_session_ids(view.home)
    return Routes(frozenset(ids | mentions.ids), complete and mentions.readable)


def _load_guards(view: StoreView) -> Guards:
    return Guards(
        leases=_unexpired(view, "session_turn_leases", "conversation_id"),
        locks=_unexpired(view, "compression_locks", "session_id"),
        delegations=_delegating(view),
    )


def _unexpired(view: StoreView, table: str, column: str) -> frozenset[Key]:
    if not view.shape.has(table, column):
        return frozenset()
    expires = view.shape.column(table, "expires_at")
    rows = view.rows(f"SELECT {view.shape.column(table, column)}, {expires} FROM {quote(table)}")
    return frozenset(session for session, at in rows if not expired(at, view.now))


def _delegating(view: StoreView) -> frozenset[Key]:
    """Return the sessions that running or undelivered delegations name, by id or by routing key.

    ``origin_session`` is a routing key for a gateway's chat and an id elsewhere (0.19.0 on).
    """
    table = "async_delegations"
    if not view.shape.has(table):
        return frozenset()
    named = ("origin_session", "origin_session_id", "origin_ui_session_id", "parent_session_id")
    asked = ["state", "delivery_state", *named]
    columns = ", ".join(view.shape.column(table, column) for column in asked)
    ids: set[Key] = set()
    origins: set[Key] = set()
    for state, delivery, *names in view.rows(f"SELECT {columns} FROM {quote(table)}"):
        if state in FINISHED and (delivery in _DELIVERED or not view.shape.has(table, "delivery_state")):
            continue
        ids.update(name for name in names if name not in (None, ""))
        origins.add(names[0])
    origins -= {None, ""}
    if origins and view.shape.has("sessions", "id", "session_key"):
        for some in _batches(sorted(origins, key=repr)):
            among, cells = in_keys("session_key", some)
            ids.update(row[0] for row in view.rows(f"SELECT id FROM sessions WHERE {among}", cells))
    return frozenset(ids)


def _load_live_families(view: StoreView) -> _LiveFamilies:
    """Walk down from the few rows that are guarded, so that the many suspects need no walk of their own."""
    guarded = guards(view)
    rows: dict[Key, Sign] = {}
    roots: dict[Key, Sign] = {}
    for sign, ids in (
        (Sign.LEASE, guarded.leases),
        (Sign.LOCK, guarded.locks),
        (Sign.DELEGATION, guarded.delegations),
    ):
        for session in ids:
            if session in rows:
                continue
            family = family_of(view, session)
            if family.cut:
                roots[root_of(view, session)] = sign
            for member in (session, *family.ids):
                rows.setdefault(member, sign)
    return _LiveFamilies(rows, roots)


def _load_backends(view: StoreView) -> list[_Backend]:
    if not view.shape.has("gateway_heartbeats", "last_heartbeat"):
        return []
    started = view.shape.column("gateway_heartbeats", "started_at")
    living = view.rows(
        f"SELECT {started} FROM gateway_heartbeats WHERE last_heartbeat >= ?", (view.now - HEARTBEAT_SECONDS,)
    )
    return [_Backend(float(at) if isinstance(at, int | float) else None) for (at,) in living]


def _column(view: StoreView, table: str, column: str) -> list[Cell]:
    if not view.shape.has(table, column):
        return []
    return [row[0] for row in view.rows(f"SELECT {view.shape.column(table, column)} FROM {quote(table)}")]


def _batches(keys: list[Key], size: int = 500) -> Iterator[list[Key]]:
    for start in range(0, len(keys), size):
        yield keys[start : start + size]
