"""One conversation with its kin, as data: the sessions of a tree, how they are joined, and where a resume ends."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from hermes_doctor.engine.model import Finding
from hermes_doctor.store.cells import Cell, Key
from hermes_doctor.store.lineage import Edge, ancestors_of, edge_sql, family_of, has_lineage, key_order
from hermes_doctor.store.reader import in_keys
from hermes_doctor.store.resuming import compression_tip, resume_target
from hermes_doctor.store.view import StoreView

_AT_ONCE = 200
#: Ids that a name which matches none is compared with: those that begin alike, and the newest.
_ALIKE, _NEWEST = 200, 300


@dataclass(eq=False)
class Node:
    """One session. ``edge``: what it is to its parent, None where it has none in this store.

    ``messages`` counts its rows, ``message_count`` is what it says itself; times are seconds since the epoch, as
    stored. ``children`` are in the order of their start.
    """

    id: Key
    parent: Cell
    edge: Edge | None
    source: Cell
    started_at: Cell
    ended_at: Cell
    end_reason: Cell
    message_count: Cell
    messages: int = 0
    children: list[Node] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


@dataclass(frozen=True)
class Tree:
    """The tree that a session belongs to. ``nodes``: every session of it once, by id, the root first.

    ``tip``: where the compression chain of the session ends; ``resumes``: what the store's release opens when the
    session is resumed. ``cut``: there are more sessions than were read.
    """

    asked: Key
    root: Node
    nodes: dict[Key, Node]
    tip: Key
    resumes: Key
    cut: bool = False


@dataclass(frozen=True)
class Matches:
    """The sessions that a name stands for. ``exact``: one is called so; else ``ids`` are those that begin so.

    ``alike``: ids worth comparing with the name, where no session is called so or begins so.
    """

    exact: bool = False
    ids: tuple[Key, ...] = ()
    alike: tuple[str, ...] = ()


def match(view: StoreView, name: str) -> Matches:
    """Return the sessions that are called so, else those whose id begins so, else ids that may look like it.

    An id that is a number is found by its digits. What a report shows of an id that cannot be typed (bytes, control
    characters) is no name of it.
    """
    if not view.shape.has("sessions", "id") or not name:
        return Matches()
    called = view.rows("SELECT id FROM sessions WHERE id = ?1 OR id = CAST(?1 AS INTEGER) AND id || '' = ?1", (name,))
    if called:
        return Matches(exact=True, ids=(called[0][0],))
    begun = view.rows(
        f"SELECT id FROM sessions WHERE substr(id, 1, length(?1)) = ?1 ORDER BY id LIMIT {_AT_ONCE}", (name,)
    )
    if begun:
        return Matches(ids=tuple(row[0] for row in begun))
    return Matches(alike=tuple(_alike(view, name)))


def _alike(view: StoreView, name: str) -> list[str]:
    """Return ids worth comparing with a name that is no session's: the longest common beginnings, and the newest."""
    for length in range(len(name) - 1, 2, -1):
        sql = f"SELECT id FROM sessions WHERE substr(id, 1, {length}) = ? LIMIT {_ALIKE}"
        begun = [row[0] for row in view.rows(sql, (name[:length],))]
        if begun:
            break
    else:
        begun = []
    started = view.shape.column("sessions", "started_at")
    newest = [row[0] for row in view.rows(f"SELECT id FROM sessions ORDER BY {started} DESC LIMIT {_NEWEST}")]
    return list(dict.fromkeys(each for each in (*begun, *newest) if isinstance(each, str)))


def tree_of(view: StoreView, session: Key, findings: Iterable[Finding] = ()) -> Tree | None:
    """Return the tree of a session, with what was found of its sessions; None where the store has no such session."""
    family = family_of(view, session)
    # A cut family may lack what leads to the session.
    way = ancestors_of(view, session).ids if family.cut else ()
    nodes = _nodes(view, list(dict.fromkeys((*family.ids, *way))))
    if session not in nodes:
        return None
    root = next(iter(nodes.values()))
    _join(nodes, root)
    for finding in findings:
        if finding.session in nodes:
            nodes[finding.session].findings.append(finding)
    return Tree(session, root, nodes, compression_tip(view, session), resume_target(view, session), family.cut)


def _nodes(view: StoreView, ids: Sequence[Key]) -> dict[Key, Node]:
    """Read the sessions of these ids, in their order."""
    names = ("parent_session_id", "source", "started_at", "ended_at", "end_reason", "message_count")
    own = ", ".join(view.shape.column("sessions", name, alias="c") for name in names)
    edge, joined = "NULL", ""
    if has_lineage(view.shape):
        edge = f"CASE WHEN p.id IS NOT NULL THEN {edge_sql(view.shape)} END"
        joined = " LEFT JOIN sessions p ON p.id = c.parent_session_id"
    found: dict[Key, Node] = {}
    for some in _batches(ids):
        among, cells = in_keys("c.id", some)
        sql = f"SELECT c.id, {own}, {edge} FROM sessions c{joined} WHERE {among}"
        for session, parent, source, started, ended, reason, count, kind in view.rows(sql, cells):
            to_parent = Edge(kind) if isinstance(kind, str) else None
            found[session] = Node(session, parent, to_parent, source, started, ended, reason, count)
    for some in _batches(list(found) if view.shape.has("messages", "session_id") else ()):
        among, cells = in_keys("session_id", some)
        counts = f"SELECT session_id, count(*) FROM messages WHERE {among} GROUP BY session_id"
        for session, rows in view.rows(counts, cells):
            if session in found and isinstance(rows, int):
                found[session].messages = rows
    return {session: found[session] for session in ids if session in found}


def _join(nodes: dict[Key, Node], root: Node) -> None:
    """Hang every session below its parent, the root below none: of a loop it is where the walk began."""
    below: defaultdict[Key, list[Node]] = defaultdict(list)
    for node in nodes.values():
        if node is not root:
            below[node.parent].append(node)
    for parent, children in below.items():
        if parent in nodes:
            nodes[parent].children = sorted(children, key=_by_start)


def _by_start(node: Node) -> tuple[float, tuple[str, bytes]]:
    started = node.started_at
    return (float(started) if isinstance(started, int | float) else 0.0), key_order(node.id)


def _batches(ids: Sequence[Key]) -> Iterable[Sequence[Key]]:
    return (ids[start : start + _AT_ONCE] for start in range(0, len(ids), _AT_ONCE))
