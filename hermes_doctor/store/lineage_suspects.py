"""Which sessions may have something wrong with their lineage: one pass over the table, index look-ups only.

A healthy row costs no query of its own. What is wrong with a suspect, if anything, is for the rule to say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set

from hermes_doctor.store.cells import Key
from hermes_doctor.store.lineage import (
    COMPRESSION,
    DELEGATE_MARKER,
    Edge,
    edge_sql,
    has_lineage,
    key_order,
    marker_sql,
)
from hermes_doctor.store.shape import Shape
from hermes_doctor.store.view import StoreView


def suspects(view: StoreView, longest: int) -> list[Key]:
    """Return the ids of sessions to look at, each once.

    Rows whose parent is missing or themselves; rows ended by compression that do not go on in exactly one session
    with messages; of every loop of parents, and of every ring of delegates' marks, the smallest id; and the first
    row of every chain of more than ``longest`` continuations.
    """
    if not has_lineage(view.shape):
        return []
    found: dict[Key, None] = {}
    # Only rows with a parent and a child can lie on a loop or inside a chain, and only delegates of delegates on a
    # ring of marks: few, even in a large store.
    above: dict[Key, Key] = {}
    continuing: set[Key] = set()
    named: dict[Key, Key] = {}
    suspect, between, nested = _suspect_sql(view.shape), _between_sql(), _nested_sql(view.shape)
    mark = marker_sql(view.shape, DELEGATE_MARKER, "sessions")
    columns = ["sessions.id", "sessions.parent_session_id", f"({suspect})", f"({between})", f"({nested})"]
    columns += [_continues_sql(view.shape), mark]
    where = f"sessions.id IS NOT NULL AND (({suspect}) OR ({between}) OR ({nested}))"
    for own, parent, is_suspect, is_between, is_nested, continues, names in view.reader.walk(
        view.shape.tables["sessions"], columns, where
    ):
        if is_suspect:
            found[own] = None
        if is_nested:
            named[own] = names
        if is_between:
            above[own] = parent
            if continues:
                continuing.add(own)
    for heads in (loop_heads(above), loop_heads(named), _long_chain_tops(above, continuing, longest)):
        found.update(dict.fromkeys(heads))
    return list(found)


def loop_heads(above: Mapping[Key, Key]) -> Iterator[Key]:
    """Give the smallest member of every loop in a mapping of rows to their parents."""
    done: set[Key] = set()
    for start in above:
        path: list[Key] = []
        here: Key = start
        while here in above and here not in done:
            done.add(here)
            path.append(here)
            here = above[here]
        if here in path:
            yield min(path[path.index(here) :], key=key_order)


def _long_chain_tops(above: Mapping[Key, Key], continuing: Set[Key], longest: int) -> Iterator[Key]:
    """Give the first row of every chain that has so many continuations with a child of their own."""
    parents = {above[own] for own in continuing}
    for end in continuing - parents:
        seen: set[Key] = set()
        here = end
        while here in continuing and here not in seen:
            seen.add(here)
            here = above[here]
        if len(seen) >= longest and here not in seen:
            yield here


def _suspect_sql(shape: Shape) -> str:
    reason = shape.column("sessions", "end_reason", alias="sessions")
    ended = shape.column("sessions", "ended_at", alias="sessions")
    goes_on = (
        "FROM sessions c WHERE c.parent_session_id = sessions.id AND c.id <> sessions.id"
        f" AND {edge_sql(shape, 'c', 'sessions')} = '{Edge.CONTINUATION}'"
    )
    filled = (
        "EXISTS (SELECT 1 FROM messages m WHERE m.session_id = c.id)" if shape.has("messages", "session_id") else "1"
    )
    return f"""
        sessions.parent_session_id = sessions.id
        OR (sessions.parent_session_id IS NOT NULL
            AND NOT EXISTS (SELECT 1 FROM sessions p WHERE p.id = sessions.parent_session_id))
        OR CASE WHEN {reason} = '{COMPRESSION}' AND {ended} IS NOT NULL
            THEN (SELECT count(*) <> 1 OR NOT max({filled}) {goes_on}) END"""


def _nested_sql(shape: Shape) -> str:
    own, theirs = (marker_sql(shape, DELEGATE_MARKER, alias) for alias in ("sessions", "p"))
    return f"EXISTS (SELECT 1 FROM sessions p WHERE p.id = {own} AND {theirs} IS NOT NULL)"


def _between_sql() -> str:
    return (
        "sessions.parent_session_id IS NOT NULL"
        " AND EXISTS (SELECT 1 FROM sessions c WHERE c.parent_session_id = sessions.id)"
    )


def _continues_sql(shape: Shape) -> str:
    return (
        f"EXISTS (SELECT 1 FROM sessions p WHERE p.id = sessions.parent_session_id"
        f" AND {edge_sql(shape, 'sessions', 'p')} = '{Edge.CONTINUATION}')"
    )
