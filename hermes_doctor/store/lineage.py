"""Who descends from whom, and by what kind of edge.

``sessions.parent_session_id`` carries six kinds of edges, and only one of them says that a conversation goes on in
the child. Which it is follows from the markers in ``model_config``, from how the parent ended, and from routing
keys; `edge_sql` is the one place that says so. Walks are recursive queries with UNION, so a loop ends them, and
their order is that of the walk: nearest first.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hermes_doctor.store.cells import Cell, Key
from hermes_doctor.store.clocks import trusted
from hermes_doctor.store.reader import in_keys
from hermes_doctor.store.shape import Shape
from hermes_doctor.store.view import StoreView

#: Most rows that a walk gives; what is larger says that it was cut.
FAMILY_LIMIT = 10_000

#: A parent ended so has handed its conversation to a child row (all releases).
COMPRESSION = "compression"
#: The end that resuming takes back in every release, and from which releases from 0.21 on count a row's age.
ORPHAN_REAP = "startup_orphan_reap"
#: A parent ended so was left for a copy of itself (all releases; the legacy sign of a branch).
BRANCHED = "branched"

#: After one of these a child is a conversation of its own (0.20.6 on; older releases know no such set).
RESET_REASONS = frozenset({"session_reset", "session_switch", "idle", "daily", "suspended", "resume_pending_expired"})
#: Accidental ends: a routed chat with one of these is reopened by the gateway itself (set of 0.20.6 on; 0.18.0 knows
#: only agent_close, 0.19.0 also ws_orphan_reap, older releases none).
RECOVERABLE_REASONS = frozenset({"agent_close", "ws_orphan_reap", "superseded_by_resume", "startup_orphan_reap"})
#: Ends by automatic cleanup, which a writer that is alive may clear (0.21.5 on; upstream 88197).
AUTOMATIC_REASONS = RECOVERABLE_REASONS | {"tui_shutdown", "ws_disconnect", "idle_timeout", "lru_evict"}

#: The markers of ``model_config``: branch (0.13 on), delegate (0.16 on), reset child (0.20.6 on).
BRANCH_MARKER = "_branched_from"
DELEGATE_MARKER = "_delegate_from"
RESET_MARKER = "_reset_from"


class Edge(enum.StrEnum):
    """What a child is to its parent; `edge_sql` decides."""

    TOOL = "tool"
    BRANCH = "branch"
    DELEGATE = "delegate"
    RESET = "reset"
    CONTINUATION = "continuation"
    SUBAGENT = "subagent"


@dataclass(frozen=True)
class Kin:
    """Ids of related sessions, in the order of the walk. ``cut``: there are more than were walked."""

    ids: tuple[Key, ...]
    cut: bool = False

    def __iter__(self) -> Iterator[Key]:
        return iter(self.ids)

    def __len__(self) -> int:
        return len(self.ids)

    def __contains__(self, session: object) -> bool:
        return session in self.ids


class Continuation(NamedTuple):
    """A child in which a compressed conversation goes on, with the cells that say in what state it is."""

    id: Key
    started_at: Cell
    ended_at: Cell
    end_reason: Cell

    @property
    def open(self) -> bool:
        """Whether nothing has ended it."""
        return self.ended_at is None and self.end_reason is None


def has_lineage(shape: Shape) -> bool:
    """Whether the store has sessions that can have parents at all."""
    return shape.has("sessions", "id", "parent_session_id")


def marker_sql(shape: Shape, marker: str, alias: str) -> str:
    """Return SQL for a marker's value in ``model_config``; NULL where there is none, or no JSON to hold one.

    One row whose ``model_config`` is no JSON makes the lists of 0.16.0 to 0.20.6 raise; here it is a row without
    markers. The nesting is what keeps SQLite from asking in another order.
    """
    config = shape.column("sessions", "model_config", alias=alias)
    return (
        f"CASE typeof({config}) WHEN 'text' THEN"
        f" CASE json_valid({config}) WHEN 1 THEN json_extract({config}, '$.{marker}') END END"
    )


def edge_sql(shape: Shape, child: str = "c", parent: str = "p") -> str:
    """Return SQL that names the `Edge` between two aliased rows of sessions, of which one is the other's parent.

    The order is upstream's own (`_BRANCH_CHILD_SQL`, `_RESET_CHILD_SQL`, `_non_continuation_child_sql` of 0.22.2),
    with one sharpening that 0.20.6 on apply where it matters most: a marker counts only if it names this very
    parent, because a continuation inherits its parent's ``model_config`` verbatim, markers included (upstream
    80487). There is no test of times for a continuation: a child may start before its parent's end is stamped
    (0.18.0 on; 0.13 to 0.17 did not follow such a child).
    """

    def own(column: str) -> str:
        return shape.column("sessions", column, alias=child)

    def its(column: str) -> str:
        return shape.column("sessions", column, alias=parent)

    def names_parent(marker: str) -> str:
        return f"({marker_sql(shape, marker, child)}) = {its('id')}"

    resets = ", ".join(f"'{reason}'" for reason in sorted(RESET_REASONS))
    return f"""CASE
        WHEN {own("source")} = 'tool' THEN '{Edge.TOOL}'
        WHEN {names_parent(BRANCH_MARKER)} THEN '{Edge.BRANCH}'
        WHEN {its("end_reason")} = '{BRANCHED}' AND {own("started_at")} >= {its("ended_at")} THEN '{Edge.BRANCH}'
        WHEN {names_parent(DELEGATE_MARKER)} THEN '{Edge.DELEGATE}'
        WHEN {names_parent(RESET_MARKER)} THEN '{Edge.RESET}'
        WHEN {its("end_reason")} IN ({resets}) AND {own("session_key")} <> ''
            AND {own("session_key")} = {its("session_key")} THEN '{Edge.RESET}'
        WHEN {its("end_reason")} = '{COMPRESSION}' THEN '{Edge.CONTINUATION}'
        ELSE '{Edge.SUBAGENT}' END"""


def parent_of(view: StoreView, session: Key) -> Key:
    """Return the parent's id as the row holds it, whether or not there is such a row; None where there is none."""
    if not has_lineage(view.shape):
        return None
    among, cells = in_keys("id", [session])
    return view.reader.value(f"SELECT parent_session_id FROM sessions WHERE {among}", cells)


def root_of(view: StoreView, session: Key) -> Key:
    """Return the topmost row above a session, by any edge; the session itself where nothing is above it.

    Of a loop, which has no top, it is the smallest id, so that every row of a family has the same root.
    """
    path = _path_up(view, session)
    if not path:
        return session
    last, above = path[-1]
    places = {own: place for place, (own, _parent) in enumerate(path)}
    if above is None or above not in places:
        return last
    return min((own for own, _parent in path[places[above] :]), key=key_order)


def ancestors_of(view: StoreView, session: Key) -> Kin:
    """Return the rows above a session, by any edge, the parent first; never the session itself."""
    path = _path_up(view, session)
    return Kin(tuple(own for own, _parent in path if own != session), len(path) >= FAMILY_LIMIT)


def descendants_of(view: StoreView, session: Key) -> Kin:
    """Return the rows below a session, by any edge, children first; never the session itself."""
    below = _down(view, session)
    return Kin(tuple(own for own in below.ids if own != session), below.cut)


def family_of(view: StoreView, session: Key) -> Kin:
    """Return the whole tree that a session belongs to, its root first, at most `FAMILY_LIMIT` rows of it.

    The session itself is always in it, a cut family included.
    """
    family = _down(view, root_of(view, session))
    return family if session in family.ids else Kin((*family.ids, session), family.cut)


def chain_of(view: StoreView, session: Key) -> Kin:
    """Return the compression chain of a session: its first row first, then every continuation below that.

    Where a parent has several continuations all of them are in it. The first row's id is what a turn lease is
    taken on (0.20.6 on).
    """
    if not has_lineage(view.shape):
        return Kin((session,))
    edge = edge_sql(view.shape)
    among, cells = in_keys("id", [session])
    up = view.rows(
        f"""WITH RECURSIVE up(id) AS (
            SELECT id FROM sessions WHERE {among}
            UNION
            SELECT p.id FROM up
            JOIN sessions c ON c.id = up.id
            JOIN sessions p ON p.id = c.parent_session_id
            WHERE {edge} = '{Edge.CONTINUATION}'
        ) SELECT id FROM up LIMIT {FAMILY_LIMIT}""",
        cells,
    )
    top = up[-1][0] if up else session
    among, cells = in_keys("id", [top])
    down = view.rows(
        f"""WITH RECURSIVE down(id) AS (
            SELECT id FROM sessions WHERE {among}
            UNION
            SELECT c.id FROM down
            JOIN sessions p ON p.id = down.id
            JOIN sessions c ON c.parent_session_id = p.id
            WHERE {edge} = '{Edge.CONTINUATION}'
        ) SELECT id FROM down LIMIT {FAMILY_LIMIT + 1}""",
        cells,
    )
    ids = tuple(row[0] for row in down[:FAMILY_LIMIT])
    return Kin(ids or (session,), len(down) > FAMILY_LIMIT or len(up) >= FAMILY_LIMIT)


def chain_links(view: StoreView, session: Key, limit: int) -> int:
    """Return how many continuations follow one another below a session, counted up to ``limit`` + 1."""
    if not has_lineage(view.shape):
        return 0
    among, cells = in_keys("id", [session])
    # The depth is bounded, so that a loop ends the walk too.
    deepest = view.reader.value(
        f"""WITH RECURSIVE down(id, depth) AS (
            SELECT id, 0 FROM sessions WHERE {among}
            UNION
            SELECT c.id, down.depth + 1 FROM down
            JOIN sessions p ON p.id = down.id
            JOIN sessions c ON c.parent_session_id = p.id
            WHERE down.depth <= {int(limit)} AND {edge_sql(view.shape)} = '{Edge.CONTINUATION}'
        ) SELECT max(depth) FROM down""",
        cells,
    )
    return deepest if isinstance(deepest, int) else 0


def loop_of(view: StoreView, session: Key) -> tuple[Key, ...]:
    """Return the sessions of the loop of parents that this one is part of; empty where it is part of none."""
    path = _path_up(view, session)
    if not path or path[-1][1] != session:
        return ()
    return tuple(own for own, _parent in path)


def marker_loop_of(view: StoreView, session: Key, marker: str = DELEGATE_MARKER) -> tuple[Key, ...]:
    """Return the sessions whose markers name one another in a ring, this one among them; empty where there is none."""
    if not view.shape.has("sessions", "id", "model_config"):
        return ()
    among, cells = in_keys("s.id", [session])
    named = marker_sql(view.shape, marker, "s")
    rows = view.rows(
        f"""WITH RECURSIVE named(id) AS (
            SELECT {named} FROM sessions s WHERE {among}
            UNION
            SELECT {named} FROM named JOIN sessions s ON s.id = named.id
        ) SELECT id FROM named WHERE id IS NOT NULL LIMIT {FAMILY_LIMIT}""",
        cells,
    )
    ids = tuple(row[0] for row in rows)
    return ids if session in ids else ()


def continuations_of(view: StoreView, parent: Key) -> list[Continuation]:
    """Return the continuations of a parent that was ended by compression, in any state, never the parent itself.

    The order is near to that in which a release picks a tip: those that were compressed in turn, open ones, the rest.
    """
    return next(iter(continuations_of_each(view, [parent]).values()), [])


def continuations_of_each(view: StoreView, parents: Sequence[Key]) -> dict[Key, list[Continuation]]:
    """Return the continuations of some parents, at most 900, by parent; one that has none is left out."""
    if not has_lineage(view.shape):
        return {}
    among, cells = in_keys("p.id", parents)
    found: dict[Key, list[Continuation]] = {}
    for parent, *row in view.rows(f"{view.once(_continuations_sql)} AND {among}", cells):
        found.setdefault(parent, []).append(Continuation(*row))
    for each in found.values():
        each.sort(key=lambda one: (_rank(one), -(trusted(one.started_at) or 0.0), key_order(one.id)))
    return found


def _continuations_sql(view: StoreView) -> str:
    """Return the query for continuations, open for which parents; made once for many rows."""
    cells_of = ", ".join(
        view.shape.column("sessions", name, alias="c") for name in ("started_at", "ended_at", "end_reason")
    )
    return f"""SELECT p.id, c.id, {cells_of}
        FROM sessions p JOIN sessions c ON c.parent_session_id = p.id
        WHERE c.id <> p.id AND {edge_sql(view.shape)} = '{Edge.CONTINUATION}'"""


def key_order(key: Key) -> tuple[str, bytes]:
    """Return what orders ids of any type among each other, always in the same way."""
    if isinstance(key, str):
        return "str", key.encode("utf-8", "surrogatepass")
    if isinstance(key, bytes):
        return type(key).__name__, bytes(key)
    return type(key).__name__, repr(key).encode()


def _rank(continuation: Continuation) -> int:
    if continuation.end_reason == COMPRESSION:
        return 0
    return 1 if continuation.ended_at is None else 2


def _path_up(view: StoreView, session: Key) -> list[tuple[Cell, Cell]]:
    """Return (id, parent's id) of the session and of every row above it; a loop is walked once."""
    if not has_lineage(view.shape):
        return []
    among, cells = in_keys("id", [session])
    rows = view.rows(
        f"""WITH RECURSIVE up(id, parent) AS (
            SELECT id, parent_session_id FROM sessions WHERE {among}
            UNION
            SELECT p.id, p.parent_session_id FROM up JOIN sessions p ON p.id = up.parent
        ) SELECT id, parent FROM up LIMIT {FAMILY_LIMIT}""",
        cells,
    )
    return [(own, parent) for own, parent in rows]


def _down(view: StoreView, session: Key) -> Kin:
    """Return the session and every row below it."""
    if not has_lineage(view.shape):
        return Kin((session,))
    among, cells = in_keys("id", [session])
    rows = view.rows(
        f"""WITH RECURSIVE down(id) AS (
            SELECT id FROM sessions WHERE {among}
            UNION
            SELECT c.id FROM down JOIN sessions c ON c.parent_session_id = down.id
        ) SELECT id FROM down LIMIT {FAMILY_LIMIT + 1}""",
        cells,
    )
    ids = tuple(row[0] for row in rows[:FAMILY_LIMIT])
    return Kin(ids or (session,), len(rows) > FAMILY_LIMIT)
