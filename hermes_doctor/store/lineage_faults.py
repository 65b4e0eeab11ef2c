"""What is wrong with the lineage of sessions: lost parents, conversations that nothing continues, loops.

`lineage_suspects` says where to look; here it is decided, row by row, so that asking about one row again, even in
the middle of a transaction, gives what asking about all gave.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from hermes_doctor.store.ages import UNKNOWN, ages_of
from hermes_doctor.store.cells import Cell, Key
from hermes_doctor.store.clocks import DAY, MINUTE, trusted
from hermes_doctor.store.lineage import (
    BRANCH_MARKER,
    COMPRESSION,
    DELEGATE_MARKER,
    RESET_MARKER,
    Continuation,
    Edge,
    chain_links,
    chain_of,
    continuations_of_each,
    edge_sql,
    has_lineage,
    key_order,
    loop_of,
    marker_loop_of,
    marker_sql,
    root_of,
)
from hermes_doctor.store.lineage_suspects import suspects
from hermes_doctor.store.liveness import guards, lease_alive, lock_alive, routes
from hermes_doctor.store.reader import Values, in_keys
from hermes_doctor.store.references import references
from hermes_doctor.store.shape import Shape
from hermes_doctor.store.sources import MESSAGING, SCREENS, WORKERS
from hermes_doctor.store.stubs import is_stub
from hermes_doctor.store.view import StoreView

#: A rotation may still be at work on a row that was ended less long ago, in seconds (0.13 to 0.19 write end and child
#: one after the other); by as much may a child be older than its parent's end.
ROTATION_SECONDS = 5 * MINUTE
#: A chat used within this, in seconds, is mended by opening it again.
RECENT_SECONDS = DAY

#: Sources of a person's own chats; everything else that has a parent may be a run of the program's.
_CHATS = frozenset({"cli"}) | SCREENS | MESSAGING
#: Sources of runs that no list shows anyway.
_BACKGROUND = WORKERS - {"cli"}

_AT_ONCE = 300


class Kind(enum.StrEnum):
    """One way in which a lineage can be wrong."""

    OWN_PARENT = "own-parent"
    MISSING_PARENT = "missing-parent"
    LOOP = "loop"
    EMPTY_CONTINUATION = "empty-continuation"
    CLOSED = "closed-without-continuation"
    DELEGATE_LOOP = "delegate-loop"
    SEVERAL = "several-continuations"
    LONG_CHAIN = "long-chain"


@dataclass(frozen=True)
class Fault:
    """What is wrong with one session.

    ``others``: the sessions that have a part in it: the missing parent, the empty row, the loop, the continuations.
    ``mendable``: there is a repair for it; ``obstacle``: why it must not be done here. ``reopen``: a closed parent is
    mended by clearing its end, else by another reason for it. ``hides``: a list lacks the session because of this.
    ``count``: links of a chain, or sessions of a loop.
    """

    kind: Kind
    session: Key
    others: tuple[Key, ...] = ()
    mendable: bool = False
    obstacle: str | None = None
    reopen: bool = False
    hides: bool = False
    count: int = 0


class _Row(NamedTuple):
    id: Key
    source: Cell
    parent: Key
    ended_at: Cell
    end_reason: Cell
    branched: Cell
    delegated: Cell
    reset: Cell
    has_parent: bool
    continues: bool
    #: Where its conversation goes on, if it is compressed.
    going_on: Sequence[Continuation] = ()

    @property
    def compressed(self) -> bool:
        """Whether the row refuses writes because its conversation has moved on."""
        return self.end_reason == COMPRESSION and self.ended_at is not None


def longest_chain(shape: Shape) -> int:
    """Return how many continuations the store's release follows: 1000 from 0.22.2 on (upstream 125041), else 100."""
    return 1000 if shape.version >= 31 else 100


def faults(view: StoreView, keys: Sequence[Key] | None) -> Iterator[Fault]:
    """Give what is wrong with these sessions, or with all: at most one fault of each, the gravest."""
    if not has_lineage(view.shape):
        return
    asked = suspects(view, longest_chain(view.shape)) if keys is None else list(keys)
    goes_on_empty: list[Fault] = []
    for start in range(0, len(asked), _AT_ONCE):
        for row in _rows(view, asked[start : start + _AT_ONCE]):
            fault = _judge(view, row)
            if fault is not None and fault.kind is Kind.EMPTY_CONTINUATION:
                goes_on_empty.append(fault)
            elif fault is not None:
                yield fault
    # Looking for references walks every table: once, however many rows are asked about.
    yield from _with_references(view, goes_on_empty)


def _judge(view: StoreView, row: _Row) -> Fault | None:
    for rule in _RULES:
        fault = rule(view, row)
        if fault is not None:
            return fault
    return None


def _own_parent(_view: StoreView, row: _Row) -> Fault | None:
    if row.parent != row.id:
        return None
    return Fault(Kind.OWN_PARENT, row.id, mendable=True, hides=True)


def _missing_parent(view: StoreView, row: _Row) -> Fault | None:
    """A parent that no row is. What was a chat of its own can do without; a run of the program's is left as it is."""
    if row.parent is None or row.has_parent:
        return None
    ours = row.delegated is None and row.source not in _BACKGROUND
    own = row.parent in (row.branched, row.reset) or (row.source in _CHATS and _has(view, row.id, "role = 'user'"))
    fault = Fault(Kind.MISSING_PARENT, row.id, (row.parent,), hides=ours and _has(view, row.id))
    if not (ours and own):
        return fault
    return replace(fault, mendable=True, hides=True, obstacle=_can_be_rebuilt(view, row.parent))


def _can_be_rebuilt(view: StoreView, parent: Key) -> str | None:
    """Say what is left of a session that has no row; None where nothing is."""
    if _has(view, parent):
        return "messages of the missing parent are still here, so it can be rebuilt: doctor fix --check orphan-messages"
    among, cells = in_keys("session_id", [parent])
    if view.shape.has("session_model_usage", "session_id") and view.rows(
        f"SELECT 1 FROM session_model_usage WHERE {among} LIMIT 1", cells
    ):
        return "usage of the missing parent is still here, so it can be rebuilt"
    if parent in routes(view).ids:
        return "a chat is still routed to the missing parent"
    if view.home is not None and not routes(view).complete:
        return "the chats that may be routed to the missing parent cannot be read"
    return None


def _loop(view: StoreView, row: _Row) -> Fault | None:
    members = loop_of(view, row.id) if row.has_parent else ()
    if len(members) < 2 or row.id != min(members, key=key_order):
        return None
    return Fault(Kind.LOOP, row.id, members, hides=True, count=len(members))


def _goes_nowhere(view: StoreView, row: _Row) -> Fault | None:
    """A row ended by compression whose conversation goes on nowhere, or in an empty row only."""
    if not row.compressed:
        return None
    going_on = row.going_on
    if len(going_on) > 1 or (going_on and not is_stub(view, going_on[0].id)):
        return None
    ended = trusted(row.ended_at)
    if ended is not None and view.now - ended < view.idle_limit(ROTATION_SECONDS):
        return None
    if _is_guarded(view, (row.id, *(each.id for each in going_on))):
        return None
    newest = ages_of(view, [row.id]).get(row.id, UNKNOWN).newest
    recent = any(at is not None and view.now - at < RECENT_SECONDS for at in (newest, ended))
    return Fault(
        Kind.EMPTY_CONTINUATION if going_on else Kind.CLOSED,
        row.id,
        tuple(each.id for each in going_on),
        mendable=True,
        # An absurd end was not written by a rotation, and nothing says when it was.
        obstacle=None if ended is not None else "the time of its end cannot be read",
        reopen=row.id in routes(view).ids or recent,
    )


def _is_guarded(view: StoreView, sessions: Sequence[Key]) -> bool:
    """Whether a lease or lock that may be alive lies on one of these, on their root, or in their chain."""
    if not guards(view).leases and not guards(view).locks:
        return False
    asked = {*sessions, root_of(view, sessions[0]), *chain_of(view, sessions[0])}
    return lease_alive(view, asked) or lock_alive(view, asked)


def _delegate_loop(view: StoreView, row: _Row) -> Fault | None:
    members = marker_loop_of(view, row.id) if row.delegated is not None else ()
    if not members or row.id != min(members, key=key_order):
        return None
    return Fault(Kind.DELEGATE_LOOP, row.id, members, count=len(members))


def _several(view: StoreView, row: _Row) -> Fault | None:
    going_on = _really_going_on(row)
    if len(going_on) < 2:
        return None
    return Fault(Kind.SEVERAL, row.id, going_on, count=len(going_on))


def goes_on_in(view: StoreView, session: Key) -> tuple[Key, ...]:
    """Return the sessions in which a compressed conversation goes on; where they are several, it was forked."""
    return next((_really_going_on(row) for row in _rows(view, [session])), ()) if has_lineage(view.shape) else ()


def _really_going_on(row: _Row) -> tuple[Key, ...]:
    """Return the continuations without what only looks like one."""
    ended = trusted(row.ended_at)
    return tuple(each.id for each in row.going_on if not _was_delegated(each, ended))


def _was_delegated(child: Continuation, parent_ended: float | None) -> bool:
    """Whether a child that looks like a continuation began long before there was anything to continue.

    Delegates of 0.13 to 0.15 have their parent's source and no marker: only their start tells them apart.
    """
    started = trusted(child.started_at)
    return started is not None and parent_ended is not None and started < parent_ended - ROTATION_SECONDS


def _long_chain(view: StoreView, row: _Row) -> Fault | None:
    limit = longest_chain(view.shape)
    if not row.compressed or row.continues or chain_links(view, row.id, limit) <= limit:
        return None
    return Fault(Kind.LONG_CHAIN, row.id, count=limit)


#: The gravest first: of several faults of one row the first is told, and the next once that is mended.
_RULES: tuple[Callable[[StoreView, _Row], Fault | None], ...] = (
    _own_parent,
    _missing_parent,
    _loop,
    _goes_nowhere,
    _delegate_loop,
    _several,
    _long_chain,
)


def _with_references(view: StoreView, found: Sequence[Fault]) -> Iterator[Fault]:
    """Note which empty rows something still refers to."""
    named = references(view, [fault.others[0] for fault in found])
    for fault in found:
        places = named.of(fault.others[0])
        if places and fault.obstacle is None:
            yield replace(fault, obstacle=f"the empty row is still named in {', '.join(places[:3])}")
        else:
            yield fault


def _has(view: StoreView, session: Key, condition: str = "1") -> bool:
    """Whether the store has message rows of that session (whether or not there is a row of the session itself)."""
    if not view.shape.has("messages", "session_id", "role"):
        return False
    among, cells = in_keys("session_id", [session])
    return bool(view.rows(f"SELECT 1 FROM messages WHERE {among} AND {condition} LIMIT 1", cells))


def _rows(view: StoreView, keys: Sequence[Key]) -> list[_Row]:
    shape = view.shape
    columns = [
        shape.column("sessions", name, alias="s")
        for name in ("id", "source", "parent_session_id", "ended_at", "end_reason")
    ]
    columns += [marker_sql(shape, marker, "s") for marker in (BRANCH_MARKER, DELEGATE_MARKER, RESET_MARKER)]
    among, cells = in_keys("s.id", keys)
    sql = f"""SELECT {", ".join(columns)}, p.id IS NOT NULL, coalesce({edge_sql(shape, "s")} = '{Edge.CONTINUATION}', 0)
        FROM sessions s LEFT JOIN sessions p ON p.id = s.parent_session_id
        WHERE s.id IS NOT NULL AND {among}"""
    rows = [_row(values) for values in view.rows(sql, cells)]
    going_on = continuations_of_each(view, [row.id for row in rows if row.compressed])
    return [row._replace(going_on=going_on.get(row.id, ())) for row in rows]


def _row(values: Values) -> _Row:
    session, source, parent, ended_at, end_reason, branched, delegated, reset, has_parent, continues = values
    return _Row(
        session,
        source,
        parent,
        ended_at,
        end_reason,
        branched,
        delegated,
        reset,
        bool(has_parent),
        bool(continues),
    )
