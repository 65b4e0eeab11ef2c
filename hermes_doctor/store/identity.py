"""What a continuation should have of its parent, and has not: where it is routed, and where it works.

A compression makes a new row, and releases up to 0.19 let it begin without its parent's folder, and for a while
without its routing; a crash in between leaves it so. Later releases copy both when the row is made, each column only
where it is NULL (0.20.0 on). Routing is what says whose chat it is: one person's must never come to another's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from hermes_doctor.store.ages import ages_of
from hermes_doctor.store.cells import Cell, Key
from hermes_doctor.store.clocks import MINUTE, trusted
from hermes_doctor.store.lineage import (
    AUTOMATIC_REASONS,
    COMPRESSION,
    Edge,
    chain_of,
    edge_sql,
    has_lineage,
    root_of,
)
from hermes_doctor.store.liveness import guards, lease_alive, lock_alive, session_ids_in
from hermes_doctor.store.reader import in_keys
from hermes_doctor.store.shape import Shape
from hermes_doctor.store.view import StoreView

#: Whose chat it is; ``session_key`` since 0.18.0, and before that there was nothing that asked.
ROUTING = ("session_key", "user_id", "chat_id", "chat_type", "thread_id")
#: What the releases copy beside it (0.20.0 on; the transport 0.22.2).
_BESIDE_ROUTING = ("display_name", "origin_json", "transport_profile", "profile_name")
#: Where it works.
PLACE = ("cwd", "git_repo_root", "git_branch")

_CARRIED = (*ROUTING, *_BESIDE_ROUTING, *PLACE)
#: So long after its parent's end a continuation may still get what it lacks (up to 0.19: with its next turn).
_ROTATION_SECONDS = 5 * MINUTE
_KEYS_AT_ONCE = 300


@dataclass(frozen=True)
class Lost:
    """A continuation that lacks what its parent has.

    ``values``: what can be filled in, by column. ``contested``: columns that cannot, and ``obstacle`` why. ``tip``:
    the conversation has not gone on from here, so that it is this row that is resumed.
    """

    session: Key
    parent: Key
    values: Mapping[str, str] = field(default_factory=dict)
    contested: tuple[str, ...] = ()
    obstacle: str | None = None
    tip: bool = True

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that can be filled in, in a fixed order."""
        return tuple(column for column in _CARRIED if column in self.values)


class _Row(NamedTuple):
    id: Key
    parent: Key
    source: Cell
    ended_at: Cell
    end_reason: Cell
    started_at: Cell
    parents_end: Cell
    continues: bool
    cells: Mapping[str, Cell]

    def has(self, column: str) -> str | None:
        """What may be handed on: text that is not empty."""
        cell = self.cells[column]
        return cell if isinstance(cell, str) and cell else None

    @property
    def tip(self) -> bool:
        return self.end_reason != COMPRESSION

    @property
    def can_be_routed_to(self) -> bool:
        """Whether a gateway may send messages to it if it has the key: open, or ended by no one's will."""
        return self.ended_at is None or self.end_reason in AUTOMATIC_REASONS


def losses(view: StoreView, keys: Sequence[Key] | None) -> Iterator[Lost]:
    """Give the continuations, of these sessions or of all, that lack what their parent has; parents first.

    What a parent lacks itself and gets from its own counts as the parent's, so that a chain is mended in one go.
    """
    if not has_lineage(view.shape):
        return
    search = _Search(view)
    yield from search.below(search.suspects()) if keys is None else search.among(list(keys))


class _Search:
    """Judges rows; ``_whole`` keeps, for rows of a chain, what they have once everything is filled in."""

    def __init__(self, view: StoreView) -> None:
        self._view = view
        self._whole: dict[Key, _Row] = {}

    def suspects(self) -> list[Key]:
        """Return the rows that lack what their own parent has: one pass, one look-up for each child."""
        shape = self._view.shape
        reason = shape.column("sessions", "end_reason", alias="p")
        lacks = " OR ".join(
            f"({shape.column('sessions', c, alias='sessions')} IS NULL"
            f" AND {shape.column('sessions', c, alias='p')} <> '')"
            for c in (*ROUTING, *PLACE)
        )
        where = (
            "sessions.parent_session_id IS NOT NULL AND EXISTS (SELECT 1 FROM sessions p"
            f" WHERE p.id = sessions.parent_session_id AND {reason} = '{COMPRESSION}' AND ({lacks}))"
        )
        return [row[0] for row in self._view.reader.walk(shape.tables["sessions"], ["sessions.id"], where)]

    def among(self, keys: Sequence[Key]) -> Iterator[Lost]:
        """Give what these rows lost."""
        for start in range(0, len(keys), _KEYS_AT_ONCE):
            for row in self._rows("sessions.id", keys[start : start + _KEYS_AT_ONCE]):
                lost = self._judge(row)
                if lost is not None:
                    yield lost

    def below(self, suspects: Sequence[Key]) -> Iterator[Lost]:
        """Give what these rows lost, and what the rows below them lost with them."""
        done: set[Key] = set()
        waiting = list(suspects)
        while waiting:
            some, waiting = waiting[:_KEYS_AT_ONCE], waiting[_KEYS_AT_ONCE:]
            found: list[Key] = []
            for row in self._rows("sessions.id", [key for key in some if key not in done]):
                done.add(row.id)
                lost = self._judge(row)
                if lost is not None:
                    found.append(row.id)
                    yield lost
            if found:
                below = [row.id for row in self._rows("sessions.parent_session_id", found) if row.continues]
                waiting = below + waiting

    def _judge(self, row: _Row) -> Lost | None:
        path = self._path(row)
        lost: Lost | None = None
        # From the top down, since what a row has may come from above its parent.
        for parent, child in zip(reversed(path), [*reversed(path[:-1]), None], strict=True):
            if child is None:
                break
            whole = self._whole.get(parent.id, parent)
            lost = self._compare(child, whole)
            self._whole[child.id] = child if lost is None else child._replace(cells={**child.cells, **lost.values})
        return lost

    def _path(self, row: _Row) -> list[_Row]:
        """Return the row and those above it that it continues, up to the first that is known already."""
        path, seen = [row], {row.id}
        while path[-1].continues:
            above = next(iter(self._rows("sessions.id", [path[-1].parent])), None)
            if above is None or above.id in seen:
                break
            path.append(above)
            seen.add(above.id)
            if above.id in self._whole:
                break
        return path

    def _compare(self, row: _Row, parent: _Row) -> Lost | None:
        routing, obstacle = self._routing(row, parent)
        place = _place(row, parent)
        if not routing and not place:
            return None
        if self._is_rotating(row):
            return None
        lost = Lost(row.id, parent.id, tip=row.tip)
        if obstacle is not None:
            return replace(lost, values=place, contested=tuple(routing), obstacle=obstacle)
        beside = {c: value for c in _BESIDE_ROUTING if row.cells[c] is None and (value := parent.has(c)) is not None}
        return replace(lost, values={**routing, **(beside if routing else {}), **place})

    def _routing(self, row: _Row, parent: _Row) -> tuple[dict[str, str], str | None]:
        """Return what the row lacks of its parent's routing, and what stands in the way of filling it in."""
        if parent.has("session_key") is None and parent.has("chat_id") is None:
            return {}, None
        own_key = row.cells["session_key"]
        if own_key is not None and own_key != parent.cells["session_key"]:
            # It is routed elsewhere: that is no loss.
            return {}, None
        lacks = {c: value for c in ROUTING if row.cells[c] is None and (value := parent.has(c)) is not None}
        if not lacks:
            return {}, None
        if row.source != parent.source:
            return lacks, "its source is another than its parent's"
        for column in (*ROUTING, "profile_name"):
            if row.cells[column] is not None and parent.cells[column] not in (None, row.cells[column]):
                return lacks, f"its {column} is another than its parent's"
        if row.can_be_routed_to and self._is_taken(row, str(parent.cells["session_key"] or "")):
            return lacks, "another session has the chat by now: look at both before one of them gets it"
        return lacks, None

    def _is_taken(self, row: _Row, key: str) -> bool:
        """Whether a session outside the row's chain has the key and is open, or newer; or a chat is routed there."""
        if not key:
            return False
        view, chain = self._view, {*chain_of(self._view, row.id)}
        if not self._view.once(_keyed_routes).get(key, frozenset()) <= chain:
            return True
        others = [each for each in self._rows("sessions.session_key", [key]) if each.id not in chain]
        if not others:
            return False
        if any(each.can_be_routed_to for each in others):
            return True
        used = ages_of(view, [row.id]).get(row.id)
        latest = used.newest if used is not None else None
        return latest is None or any((trusted(each.started_at) or latest) >= latest for each in others)

    def _is_rotating(self, row: _Row) -> bool:
        ended = trusted(row.parents_end)
        if ended is not None and self._view.now - ended < _ROTATION_SECONDS:
            return True
        if not guards(self._view).leases and not guards(self._view).locks:
            return False
        family = {root_of(self._view, row.id), *chain_of(self._view, row.id)}
        return lease_alive(self._view, family) or lock_alive(self._view, family)

    def _rows(self, column: str, keys: Sequence[Key]) -> list[_Row]:
        if not keys or not self._view.shape.has("sessions", column.partition(".")[2]):
            return []
        shape = self._view.shape
        among, values = in_keys(column, keys)
        named = ("source", "ended_at", "end_reason", "started_at")
        columns = ["sessions.id", "sessions.parent_session_id"]
        columns += [shape.column("sessions", name, alias="sessions") for name in named]
        columns += [shape.column("sessions", "ended_at", alias="p"), f"({_continues_sql(shape)})"]
        columns += [shape.column("sessions", name, alias="sessions") for name in _CARRIED]
        found = self._view.rows(
            f"SELECT {', '.join(columns)} FROM sessions LEFT JOIN sessions p ON p.id = sessions.parent_session_id"
            f" AND p.id <> sessions.id WHERE {among}",
            values,
        )
        return [
            _Row(own, parent, source, ended, reason, started, parents_end, bool(continues), _named(cells))
            for own, parent, source, ended, reason, started, parents_end, continues, *cells in found
        ]


def _named(cells: Sequence[Cell]) -> dict[str, Cell]:
    return dict(zip(_CARRIED, cells, strict=True))


def _place(row: _Row, parent: _Row) -> dict[str, str]:
    """Return what the row lacks of its parent's folder and repository.

    A folder of its own that is another speaks for itself: what belongs to the parent's would contradict it.
    """
    cwd, its = row.cells["cwd"], parent.has("cwd")
    if cwd is not None and cwd != its:
        return {}
    if any(row.cells[c] is not None and row.cells[c] != parent.cells[c] for c in PLACE):
        return {}
    lacks = {c: value for c in PLACE if row.cells[c] is None and (value := parent.has(c)) is not None}
    # A branch alone is no loss: without one is how a repository looks that has no branch checked out.
    return {} if tuple(lacks) == ("git_branch",) else lacks


def _continues_sql(shape: Shape) -> str:
    return f"p.id IS NOT NULL AND {edge_sql(shape, 'sessions', 'p')} = '{Edge.CONTINUATION}'"


def _keyed_routes(view: StoreView) -> Mapping[str, frozenset[str]]:
    """Return the sessions that each routing key leads to (0.18.1 on); what cannot be read leads away from all."""
    if not view.shape.has("gateway_routing", "session_key", "entry_json"):
        return {}
    found: dict[str, frozenset[str]] = {}
    for key, entry in view.rows("SELECT session_key, entry_json FROM gateway_routing"):
        try:
            ids = frozenset(session_ids_in(json.loads(entry if isinstance(entry, str) else "")))
        except (ValueError, RecursionError):
            ids = frozenset({""})
        found[str(key)] = found.get(str(key), frozenset()) | ids
    return found
