"""Titles that several sessions have, and which of them would keep it.

A unique index keeps titles apart in every release; where it is missing, two sessions may have got the same. The rules
for numbers are the releases' own: a title "T #3" belongs to the base "T", and the next in a row is one more than the
highest number that any title "T #..." ends with, in capitals or not (all releases).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from hermes_doctor.store.cells import Cell, Key
from hermes_doctor.store.clocks import LATEST, trusted
from hermes_doctor.store.reader import in_keys
from hermes_doctor.store.shape import Shape
from hermes_doctor.store.view import StoreView

#: By this name every release makes the index when it opens a store, if there is none of that name.
TITLE_INDEX = "idx_sessions_title_unique"
#: The chat that a bot is found by, by just this title; its row is hidden (0.20.6 on).
BOT_CHAT = "Bot Chat"

_NUMBERED = re.compile(r"(.*?) #(\d+)", re.DOTALL)
_UNIQUE = re.compile(
    r"\s*CREATE\s+UNIQUE\s+INDEX\b.*\bON\s+\W?sessions\W?\s*\(\s*\W?title\W?\s*\)"
    r"\s*(WHERE\s+\W?title\W?\s+IS\s+NOT\s+NULL)?\s*",
    re.IGNORECASE | re.DOTALL,
)
_ASCII_LOWER = str.maketrans({chr(c): chr(c + 32) for c in range(ord("A"), ord("Z") + 1)})
#: Who may overwrite whose title: a person's outranks a model's, and that one a derived one (0.20.6 on).
_RANKS = {"derived": 0, "llm": 1, "user": 2, None: 2}
_KEYS_AT_ONCE = 500


@dataclass(frozen=True)
class Same:
    """A session that has another's title and would give it up.

    ``number``: of its new title, None where the title cannot be numbered. ``keeper``: who keeps the title. ``count``:
    how many sessions have it.
    """

    session: Key
    keeper: Key
    number: int | None
    count: int


@dataclass(frozen=True)
class _Row:
    id: Key
    title: Cell
    rank: int
    started: float
    rowid: int
    known: bool

    @property
    def age(self) -> tuple[float, int]:
        return self.started, self.rowid


def titles_are_unique(shape: Shape) -> bool:
    """Whether the store has an index that no two equal titles can be in."""
    return any(_UNIQUE.fullmatch(sql) for sql in shape.indexes.values())


def has_index_of_that_name(shape: Shape) -> bool:
    """Whether a release would find an index of the name and so make none, whatever that index is."""
    return any(name.lower() == TITLE_INDEX for name in shape.indexes)


def base_of(title: str) -> str:
    """Return the title without a number " #N" at its end."""
    numbered = _NUMBERED.fullmatch(title)
    return numbered.group(1) if numbered else title


def same_titles(view: StoreView, keys: Sequence[Key] | None) -> Iterator[Same]:
    """Give the sessions (of these ids, or of all) that have another's title and would give it up.

    Who keeps it is who 0.22.2 lets keep it: the oldest of those that a person named (or of which nobody knows who
    did); where a program named all, the newest of the best. And before all a bot's own chat, which is found by it.
    Numbers follow the order in which the sessions began, a person's first.
    """
    if not view.shape.has("sessions", "id", "title") or titles_are_unique(view.shape):
        return
    titles = _repeated(view) if keys is None else _titles_of(view, keys)
    asked = None if keys is None else set(keys)
    for same in _allotted(view, titles):
        if asked is None or same.session in asked:
            yield same


def _repeated(view: StoreView) -> list[Cell]:
    """Return each title that more than one session has: without an index only a look at all tells."""
    seen: set[tuple[type, Cell]] = set()
    repeated: dict[tuple[type, Cell], Cell] = {}
    title = view.shape.column("sessions", "title")
    for (cell,) in view.reader.walk(view.shape.tables["sessions"], [title], f"{title} IS NOT NULL"):
        # Text that is no text and a blob of the same bytes are different titles.
        kind = (type(cell), cell)
        if kind in seen:
            repeated[kind] = cell
        seen.add(kind)
    return list(repeated.values())


def _titles_of(view: StoreView, keys: Sequence[Key]) -> list[Cell]:
    title = view.shape.column("sessions", "title")
    found: list[Cell] = []
    for start in range(0, len(keys), _KEYS_AT_ONCE):
        among, cells = in_keys("id", keys[start : start + _KEYS_AT_ONCE])
        found += [row[0] for row in view.rows(f"SELECT {title} FROM sessions WHERE {among}", cells)]
    return [cell for cell in found if cell is not None]


def _allotted(view: StoreView, titles: Iterable[Cell]) -> Iterator[Same]:
    """Give who would be renamed of all that share a base with one of these titles.

    All of a base together, since they share its numbers: asking about one row gives what asking about all gave.
    """
    bases = {_lower(base_of(title)): 1 for title in titles if isinstance(title, str)}
    odd = {(type(title), title) for title in titles if not isinstance(title, str)}
    if not bases and not odd:
        return
    rows: dict[tuple[type, Cell], list[_Row]] = {}
    for row in _rows(view):
        kind = (type(row.title), row.title)
        if isinstance(row.title, str):
            _note_number(bases, row.title)
            if _lower(base_of(row.title)) in bases:
                rows.setdefault(kind, []).append(row)
        elif kind in odd:
            rows.setdefault(kind, []).append(row)
    groups = [group for group in rows.values() if len(group) > 1]
    groups.sort(key=lambda group: max((row.rank, row.age) for row in group), reverse=True)
    for group in groups:
        yield from _group(group, bases)


def _group(group: Sequence[_Row], numbers: dict[str, int]) -> Iterator[Same]:
    """Give who of those with one title would be renamed; ``numbers``: the last one of each base, brought on."""
    keeper = _keeper(group)
    for row in sorted(group, key=lambda row: (row.rank != _RANKS["user"], row.age)):
        if row is keeper:
            continue
        number = None
        if isinstance(row.title, str):
            base = _lower(base_of(row.title))
            number = numbers[base] = numbers[base] + 1
        if row.id is not None:
            yield Same(row.id, keeper.id, number, len(group))


def _keeper(group: Sequence[_Row]) -> _Row:
    known = [row for row in group if row.known]
    persons = known or [row for row in group if row.rank == _RANKS["user"]]
    if persons:
        return min(persons, key=lambda row: row.age)
    return max(group, key=lambda row: (row.rank, row.age))


def _rows(view: StoreView) -> Iterator[_Row]:
    shape, table = view.shape, view.shape.tables["sessions"]
    title = shape.column("sessions", "title")
    columns = ["id", title, shape.column("sessions", "title_source"), shape.column("sessions", "started_at")]
    columns += [table.rowid or "0", shape.column("sessions", "hidden", absent="0")]
    columns += [shape.column("sessions", "archived", absent="0")]
    for own, cell, source, started, rowid, hidden, archived in view.reader.walk(table, columns, f"{title} IS NOT NULL"):
        begun = trusted(started)
        yield _Row(
            id=own,
            title=cell,
            rank=_RANKS.get(source, 0) if source is None or isinstance(source, str) else 0,
            started=LATEST if begun is None else begun,
            rowid=rowid if isinstance(rowid, int) else 0,
            known=cell == BOT_CHAT and bool(hidden) and not archived,
        )


def _note_number(bases: dict[str, int], title: str) -> None:
    numbered = _NUMBERED.fullmatch(title)
    if numbered is None:
        return
    for place in re.finditer(" #", title):
        base = _lower(title[: place.start()])
        if base in bases:
            bases[base] = max(bases[base], int(numbered.group(2)))


def _lower(text: str) -> str:
    """Fold capitals as SQLite's LIKE does: those of ASCII only."""
    return text.translate(_ASCII_LOWER)
