"""Tables whose statement is lost with a part of the schema: found again by their pages, as releases make them.

Which releases a store went through gives the columns of all its tables, in their order. Of all ways through the
releases that one is taken which fits best: the tables whose statements are left, the rows that no table claims, and
the version that the schema says it has. The page where a table's tree begins is the one that no other leads to.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple

from hermes_doctor.rescue.account import LostRange
from hermes_doctor.rescue.forms import Form, FormColumn
from hermes_doctor.rescue.known import SEARCH_TABLES, Known, KnownColumn, Way, form_of, known
from hermes_doctor.rescue.looks import oddities
from hermes_doctor.rescue.loose import whose
from hermes_doctor.rescue.pages import INTERIOR, LEAF, Cell, Pages, free_pages
from hermes_doctor.rescue.records import Layout
from hermes_doctor.rescue.schema import SCHEMA_FORM, SEQUENCE_FORM, Entry, forms_of
from hermes_doctor.rescue.trees import NO_ROOT, TreeWalk, claim
from hermes_doctor.store.cells import Cell as Value
from hermes_doctor.store.trees import SCHEMA_ROOT

#: Tables that every store has had since the first release, and of which a store without them makes no sense.
_CONVERSATIONS = ("messages", "sessions")
#: What shows that a schema is, or was, a store's.
_SIGNS = frozenset((*_CONVERSATIONS, "schema_version"))
#: Columns without which a table of that name is not hermes's.
_NEEDED = {
    "messages": {"session_id", "role", "content", "timestamp"},
    "sessions": {"source", "started_at", "end_reason"},
}
_MAKES_SEQUENCE = "CREATE TABLE sqlite_sequence(name,seq)"
_NOTES = Form("sqlite_stat1", tuple(FormColumn(name, "BLOB") for name in ("tbl", "idx", "stat")))
#: The table of rows that only look like those of one.
_FOREIGN = ""
#: Kinds of rows, pages and rows that are looked at to tell one order from another.
_MOST_SHAPES, _MOST_PAGES, _MOST_ROWS = 300, 4000, 400
#: What kind a value is, by its serial type: NULL, an integer, the number 0, bytes, text.
_NULL, _NUMBER, _ZERO, _BLOB, _TEXT = 0, 1, 8, 12, 13
_LOOKED_AT = 20
_WAYS_DOWN = (0.0, 0.5, 1.0)
_DEEPEST = 40


@dataclass
class Missing:
    """What was found: ``entries``: as the schema would have them, ``lost``: rowids that their trees may not lead to.

    ``foreign``: where trees begin that are not of a table of a release, so that they are not taken for one's.
    """

    entries: list[Entry] = field(default_factory=list)
    lost: dict[str, list[LostRange]] = field(default_factory=dict)
    foreign: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    #: Search indexes of which a part has no statement any more, and their triggers.
    left_out: set[str] = field(default_factory=set)

    def completed(self, entries: Sequence[Entry]) -> list[Entry]:
        """Return what the schema names with what was found, and without what is to be left out."""
        found = {("table", entry.name.lower()) for entry in self.entries}
        gone = found | {(kind, name) for kind in ("table", "trigger") for name in self.left_out}
        return [entry for entry in entries if (entry.kind, entry.name.lower()) not in gone] + self.entries


def find_missing(
    pages: Pages, entries: Sequence[Entry], lost: Sequence[LostRange], *, header: bool, numbers: Iterable[int]
) -> Missing:
    """Find the tables of releases that the schema does not name.

    ``lost``: what is lost of the schema; where nothing is, only conversations are looked for: a store that never had
    another table gets none. ``header``: the file's first page is one. ``numbers``: the pages to look at.
    """
    missing = _find_tables(pages, entries, lost, header=header, numbers=numbers)
    # Of a table that was taken out of the schema, its triggers were, too.
    torn = missing.entries or (lost and _CONVERSATIONS[0] in _names(entries, "table"))
    halves = _halves(entries) if torn else {}
    missing.left_out = {name for index, parts in halves.items() for name in (index, *parts)}
    if halves:
        missing.notes.append(_note_of_search(list(halves)))
    return missing


def _find_tables(
    pages: Pages, entries: Sequence[Entry], lost: Sequence[LostRange], *, header: bool, numbers: Iterable[int]
) -> Missing:
    present = {entry.name.lower() for entry in entries if entry.kind == "table" and entry.sql}
    wanted = list(known().tables) if lost else [table for table in _CONVERSATIONS if present & _SIGNS]
    absent = [table for table in wanted if table not in present]
    if not absent and not (lost and SEQUENCE_FORM.table not in present):
        return Missing()
    return _Search(pages, entries, absent, lost, header).find(numbers)


class _Fit(NamedTuple):
    """How well a way fits, what counts most first."""

    #: Tables with a statement whose columns are as that way leaves them.
    tables: int
    #: Rows that can be of a table whose statement is lost; those that have as many values as that way gives.
    rows: int = 0
    exact: int = 0
    #: Values of an unusual kind, below zero.
    kinds: int = 0


class _Search:
    """One search through the pages of a store."""

    def __init__(
        self, pages: Pages, entries: Sequence[Entry], absent: list[str], lost: Sequence[LostRange], header: bool
    ) -> None:
        self.pages, self.entries, self.absent, self.lost = pages, entries, absent, lost
        self.known: Known = known()
        #: Where tables begin of which no more than that is left.
        self.roots = {e.name.lower(): e.root for e in entries if e.kind == "table" and not e.sql and e.root}
        self.present = {form.table.lower(): form for _, form in forms_of(entries) if not form.without_rowid}
        self.free, whole = free_pages(pages)
        self.free_known = whole and header
        #: Pages that no table claims: of rows, and those that lead to others, with all that they lead to.
        self.leaves = array("L")
        self.empty: list[int] = []
        self.branches: list[int] = []
        self.led_to: set[int] = set()
        self.foreign: list[int] = []
        self.zeros = 0
        self.shapes: Counter[tuple[int, ...]] = Counter()
        #: Pages that hold one number and nothing else.
        self.versions: list[int] = []
        self._fits: dict[tuple[tuple[KnownColumn, ...], frozenset[int]], tuple[int, int, int]] = {}
        self._shapes_of: dict[str, list[tuple[int, ...]]] = {}
        self._odds: dict[tuple[str, tuple[str, ...]], int] = {}
        self._samples: dict[str, list[list[Value]]] = {}
        self._whole: dict[str, bool] = {}

    def find(self, numbers: Iterable[int]) -> Missing:
        self._survey(numbers)
        found = Missing()
        if not (self.leaves or self.branches or self.empty):
            # Which way would fit best takes seconds to tell.
            return found
        way, guessed = self._way()
        absent = [table for table in self.absent if self.known.has(table, way[-1])]
        ways = {table: self._way_of(table, way) for table in absent}
        forms = {table: form_of(table, self.known.columns(table, ways[table])) for table in absent}
        if forms and not self._is_a_store(forms):
            absent, forms = [], {}
        tops = self._tops(forms)
        counters = tops.get(SEQUENCE_FORM.table, [])
        if SEQUENCE_FORM.table not in _names(self.entries, "table") and len(counters) == 1:
            found.entries.append(Entry("table", SEQUENCE_FORM.table, SEQUENCE_FORM.table, counters[0], _MAKES_SEQUENCE))
        found.foreign = self.foreign
        nothing_left = [table for table in absent if not tops.get(table)]
        if not self.lost:
            # Its schema is whole: what it does not name and what has no rows was never there.
            absent = [table for table in absent if table not in nothing_left]
        elif len(nothing_left) <= len(self.empty):
            tops |= {table: [page] for table, page in zip(nothing_left, self.empty, strict=False)}
        for table in absent:
            root, lost = self._root(forms[table], tops.get(table, []))
            found.entries.append(Entry("table", table, table, root, self.known.statement(table, ways[table])))
            if lost:
                found.lost[table] = lost
        if absent:
            found.notes.append(_note(absent, way, guessed))
        return found

    def _survey(self, numbers: Iterable[int]) -> None:
        claimed = bytearray(self.pages.count + 2)
        for entry in self.entries:
            if entry.kind == "table" and entry.name.lower() not in self.roots:
                claim(self.pages, entry.root, claimed)
        claim(self.pages, SCHEMA_ROOT, claimed)
        for number in numbers:
            if claimed[number] or (self.free_known and self.free[number]):
                continue
            kind = self.pages.first_byte(number)
            if kind == LEAF:
                self._look_at(number)
            elif kind == INTERIOR:
                branch = self.pages.branch(number)
                if branch is not None and branch.children:
                    self.branches.append(number)
                    self.led_to.update(branch.ways)
            elif not kind and self.pages.is_zeros(number):
                self.zeros += 1

    def _look_at(self, number: int) -> None:
        leaf = self.pages.leaf(number)
        if leaf is None or (not leaf.cells and not leaf.whole):
            return
        if not leaf.cells:
            self.empty.append(number)
            return
        self.leaves.append(number)
        shapes = [_shape(layout) for layout in self._layouts(number, leaf.cells)]
        self.shapes.update(shapes)
        if len(shapes) == 1 and len(shapes[0]) == 1 and shapes[0][0] == _NUMBER:
            self.versions.append(number)

    def _layouts(self, number: int, cells: Iterable[Cell]) -> Iterator[Layout]:
        for cell in cells:
            layout = self.pages.layout(number, cell)
            if layout is not None:
                yield layout

    def _way(self) -> tuple[Way, bool]:
        """Return the way that fits best, and whether another fits as well that names differently what rows hold."""
        fitting = _best(list(self.known.ways()), self._fit)
        finals = _best(fitting, lambda way: -sum(self._odd(table, way) for table in self._unlisted))
        version = self._version()
        chosen = next((way for way in finals if self.known.releases[way[-1]] == version), finals[0])
        return chosen, any(self._differ(table, chosen, way) for way in finals for table in self._unlisted)

    def _way_of(self, table: str, way: Way) -> Way:
        """Return that way, or where a table's rows do not fit it, another: some columns are added when first needed."""
        others = [(version,) for version in self.known.releases if self.known.has(table, version)]
        if table in _CONVERSATIONS or len({self.known.columns(table, other) for other in others}) == 1:
            return way
        return max((way, *others), key=lambda other: self._fit_of(table, other))

    @property
    def _unlisted(self) -> list[str]:
        return [table for table in _CONVERSATIONS if table in self.absent]

    def _fit(self, way: Way) -> _Fit:
        listed = [table for table in self.known.tables if table in self.present]
        fit = _Fit(
            sum(
                self.present[table].columns == form_of(table, self.known.columns(table, way)).columns
                for table in listed
            )
        )
        for table in self._unlisted:
            rows, exact, kinds = self._fit_of(table, way)
            fit = _Fit(fit.tables, fit.rows + rows, fit.exact + exact, fit.kinds + kinds)
        return fit

    def _fit_of(self, table: str, way: Way) -> tuple[int, int, int]:
        columns, lengths = self.known.columns(table, way), self.known.lengths(table, way)
        known = self._fits.get((columns, lengths))
        if known is None:
            form = form_of(table, columns)
            taken = [shape for shape in self._usual_shapes(table) if form.takes(_layout(shape))]
            known = (
                sum(self.shapes[shape] for shape in taken),
                sum(self.shapes[shape] for shape in taken if len(shape) in lengths),
                -sum(self.shapes[shape] * _unusual(form, shape) for shape in taken),
            )
            self._fits[columns, lengths] = known
        return known

    def _usual_shapes(self, table: str) -> list[tuple[int, ...]]:
        """Return those kinds of rows that may be the table's by its key, the most frequent first."""
        if table not in self._shapes_of:
            first = self.known.tables[table].columns[0]
            kind = _NULL if first.declared == "INTEGER" else _TEXT
            found = (shape for shape, _ in self.shapes.most_common() if shape[:1] == (kind,))
            self._shapes_of[table] = list(islice(found, _MOST_SHAPES))
        return self._shapes_of[table]

    def _odd(self, table: str, way: Way) -> int:
        """Return how many values do not look like what their columns hold."""
        names = tuple(column.name for column in self.known.columns(table, way))
        if (table, names) not in self._odds:
            self._odds[table, names] = sum(oddities(table, names, row) for row in self._rows(table, way))
        return self._odds[table, names]

    def _rows(self, table: str, way: Way) -> list[list[Value]]:
        """Return some rows that may be the table's, from all over the file."""
        if table not in self._samples:
            form = form_of(table, self.known.columns(table, way))
            step = max(1, len(self.leaves) // _MOST_PAGES)
            rows = (row for number in self.leaves[::step] for row in self._read(number, form, 2))
            self._samples[table] = list(islice(rows, _MOST_ROWS))
        return self._samples[table]

    def _read(self, number: int, form: Form, most: int) -> Iterator[list[Value]]:
        """Give the first rows of a page that a form takes, as far as they are there."""
        leaf = self.pages.leaf(number)
        for cell in [] if leaf is None else leaf.cells[:most]:
            if form.takes(self.pages.layout(number, cell)):
                record = self.pages.record(number, cell)
                if record is not None:
                    yield record.values

    def _differ(self, table: str, one: Way, other: Way) -> bool:
        """Whether two ways give different names to what a row holds."""
        columns = self.known.columns(table, one), self.known.columns(table, other)
        form = form_of(table, columns[0])
        unlike = {place for place, (a, b) in enumerate(zip(*columns, strict=False)) if a.name != b.name}
        defaults = {place for place, (a, b) in enumerate(zip(*columns, strict=False)) if a.default == b.default == "0"}
        return bool(unlike) and any(
            kind != _NULL and not (kind == _ZERO and place in defaults)
            for shape in self._usual_shapes(table)
            if form.takes(_layout(shape))
            for place, kind in enumerate(shape)
            if place in unlike
        )

    def _version(self) -> Value:
        """Return the version that the schema says it has; None where that is not there, or there are several."""
        form = form_of("schema_version", self.known.tables["schema_version"].columns)
        entry = next((entry for entry in self.entries if entry.name.lower() == form.table), None)
        pages: Iterable[int] = self.versions
        if entry is not None:
            pages = (found.page for found in TreeWalk(self.pages, entry.root, form))
        found = {row[0] for page in pages for row in self._read(page, form, 2) if row}
        return found.pop() if len(found) == 1 else None

    def _is_a_store(self, forms: dict[str, Form]) -> bool:
        """Whether it is, or was, a store of hermes: its conversations have a statement, or what looks like one does."""
        names = {table: {column.name for column in form.columns} for table, form in self.present.items()}
        if any(needed <= names.get(table, set()) for table, needed in _NEEDED.items()):
            return True
        for table in self._unlisted:
            columns = tuple(column.name for column in forms[table].columns)
            rows = self._samples.get(table, [])
            if sum(oddities(table, columns, row) * 5 < len(columns) for row in rows) * 2 > len(rows):
                return True
        return False

    def _tops(self, forms: dict[str, Form]) -> dict[str, list[int]]:
        """Return the pages that no other page leads to, by the table whose rows they lead to."""
        tops: dict[str, list[int]] = {}
        for number in (*self.branches, *self.leaves):
            table = None if number in self.led_to else self._whose(forms, number)
            if table is not None:
                tops.setdefault(table, []).append(number)
                if table not in forms:
                    self.foreign.append(number)
        self.empty = [number for number in self.empty if number not in self.led_to]
        return tops

    def _whose(self, forms: dict[str, Form], top: int) -> str | None:
        """Return the table of a tree; _FOREIGN where only the kinds of its values are as in one; None for others."""
        number = next((page for share in _WAYS_DOWN if (page := self._leaf_below(top, share))), None)
        leaf = None if number is None else self.pages.leaf(number)
        if number is None or leaf is None:
            return None
        for form in (SEQUENCE_FORM, _NOTES):
            rows = list(self._read(number, form, len(leaf.cells)))
            if len(rows) == len(leaf.cells) and all(self._is_of_sqlite(form, row) for row in rows):
                return form.table
        layouts = list(self._layouts(number, leaf.cells[:_LOOKED_AT]))
        all_forms = {SCHEMA_FORM.table: SCHEMA_FORM, **self.present, **forms}
        known = {table: all_forms[table] for table in whose(list(all_forms.values()), layouts)}
        if not known.keys() & forms.keys():
            return None
        if len(known) > 1:
            # A page of a table that is whole would not be loose.
            known = {table: form for table, form in known.items() if not self._is_whole(table)}
            odd = {table: self._odd_rows(number, form) for table, form in known.items()}
            known = {table: form for table, form in known.items() if odd[table] == min(odd.values())}
        if len(known) != 1 or not known.keys() <= forms.keys():
            return None
        table, form = known.popitem()
        taken = [layout for layout in layouts if form.takes(layout)]
        values = sum(len(layout.types) for layout in taken)
        odd_kinds = sum(_unusual(form, layout.types) for layout in taken)
        if 10 * len(taken) < 9 * len(layouts) or 10 * odd_kinds > values:
            return None
        if table not in _CONVERSATIONS and 2 * self._odd_rows(number, form) > len(leaf.cells[:_LOOKED_AT]):
            return _FOREIGN
        return table

    def _is_whole(self, table: str) -> bool:
        """Whether a table has a statement, and nothing of its tree is lost."""
        if table not in self._whole:
            entry = next((e for e in self.entries if e.kind == "table" and e.name.lower() == table and e.sql), None)
            if entry is None or table not in self.present:
                self._whole[table] = False
            else:
                walk = TreeWalk(self.pages, entry.root, self.present[table])
                self._whole[table] = all(found.cells for found in walk) and not walk.lost
        return self._whole[table]

    def _odd_rows(self, number: int, form: Form) -> int:
        names = tuple(column.name for column in form.columns)
        return sum(oddities(form.table, names, row) > 0 for row in self._read(number, form, _LOOKED_AT))

    def _is_of_sqlite(self, form: Form, row: list[Value]) -> bool:
        """Whether it is a row of a table in which SQLite keeps something about tables: the first column names one."""
        named = row[0] in {*self.known.tables, *self.present}
        return len(row) == len(form.columns) and named and (form is _NOTES or isinstance(row[1], int))

    def _leaf_below(self, top: int, share: float) -> int | None:
        page = top
        for _ in range(_DEEPEST):
            branch = self.pages.branch(page)
            if branch is None:
                leaf = self.pages.leaf(page)
                return page if leaf is not None and leaf.cells else None
            ways = [page for page in branch.ways if page]
            if not ways:
                return None
            page = ways[min(int(share * len(ways)), len(ways) - 1)]
        return None

    def _root(self, form: Form, tops: list[int]) -> tuple[int, list[LostRange]]:
        """Return where a table's tree begins, 0 where that cannot be told, and what may be missing in it even so."""
        if form.table in self.roots:
            return self.roots[form.table], []
        if len(tops) != 1 and (self.free_known or not tops):
            return 0, []
        # A page is gone that no loss in the schema explains: it may have been above this one.
        more_is_lost = all(each.one_page for each in self.lost) and self.zeros > len(self.lost)
        if len(tops) == 1 and not more_is_lost:
            return tops[0], []
        walks = {top: self._walk(form, top) for top in tops}
        top = max(walks, key=lambda top: walks[top].rows)
        walk = walks.pop(top)
        if len(tops) > 1 and walk.damaged:
            return 0, []
        if not walk.rows:
            return top, []
        low = min((other.low for other in walks.values()), default=walk.low)
        high = max((other.high for other in walks.values()), default=walk.high)
        lost = []
        if low < walk.low or more_is_lost:
            lost.append(LostRange(None, walk.low - 1, None, NO_ROOT))
        if high > walk.high or more_is_lost:
            lost.append(LostRange(walk.high + 1, None, None, NO_ROOT))
        return top, lost

    def _walk(self, form: Form, top: int) -> _Walk:
        walk = TreeWalk(self.pages, top, form)
        rows, low, high = 0, (1 << 63) - 1, -(1 << 63)
        for found in walk:
            rows += len(found.cells)
            low, high = min(low, found.cells[0].number), max(high, found.cells[-1].number)
        return _Walk(rows, low, high, bool(walk.lost))


class _Walk(NamedTuple):
    """What a tree holds: how many rows, the lowest and the highest rowid, and whether a part of it is lost."""

    rows: int
    low: int
    high: int
    damaged: bool


def _names(entries: Iterable[Entry], kind: str) -> set[str]:
    return {entry.name.lower() for entry in entries if entry.kind == kind and entry.sql}


def _halves(entries: Sequence[Entry]) -> dict[str, tuple[str, ...]]:
    """Return the search indexes of which a part is lost, with the triggers that belong to them.

    hermes looks for one part and takes the others for granted: up to 0.15.2 for the index itself, later for the
    triggers. So that it makes all of an index anew, nothing of it may be there.
    """
    triggers = _names(entries, "trigger")
    views = _names(entries, "view") | _names(entries, "table")
    indexes = {entry.name.lower(): entry for entry in entries if entry.is_virtual}
    halves: dict[str, tuple[str, ...]] = {}
    for name in SEARCH_TABLES:
        own = tuple(f"{name}_{event}" for event in ("insert", "delete", "update"))
        index = indexes.get(name)
        content = None if index is None else re.search(r"\bcontent\s*=\s*'(\w+)'", index.sql)
        whole = index is not None and triggers.issuperset(own) and (content is None or content[1].lower() in views)
        usual = name != "messages_fts_cjk"
        if not whole and (usual or index is not None or not triggers.isdisjoint(own)):
            halves[name] = own
    return halves


def _note_of_search(names: list[str]) -> str:
    return (
        f"What makes the search index ({', '.join(names)}) is lost at least in part: hermes makes it anew when it "
        "starts. Up to 0.15.2 it leaves it empty: doctor fix --check search-index --unsafe --apply fills it then"
    )


def _best(ways: list[Way], score: Callable[[Way], Any]) -> list[Way]:
    scores = [score(way) for way in ways]
    best = max(scores)
    return [way for way, each in zip(ways, scores, strict=True) if each == best]


def _shape(layout: Layout) -> tuple[int, ...]:
    return _kinds(layout.types)


@lru_cache(maxsize=4096)
def _kinds(types: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(_kind(kind) for kind in types)


def _kind(kind: int) -> int:
    if kind >= _BLOB:
        return _TEXT if kind & 1 else _BLOB
    return _NUMBER if 1 <= kind <= 6 else kind


def _layout(shape: tuple[int, ...]) -> Layout:
    return Layout(shape, 0, 0)


def _unusual(form: Form, kinds: tuple[int, ...]) -> int:
    """Return how many values of a row are of another kind than is usual in their columns."""
    return len(kinds) - round(form.likeness(_layout(kinds)) * len(form.columns))


def _note(tables: list[str], way: Way, guessed: bool) -> str:
    one = len(tables) == 1
    named = ", ".join(sorted(tables, key=lambda table: (table not in _CONVERSATIONS, table)))
    note = (
        f"The statement that made the table {named} is lost: its columns are those of hermes {way[-1]}"
        if one
        else f"The statements that made the tables {named} are lost: their columns are those of hermes {way[-1]}"
    )
    if len(way) > 1:
        note += f", in the order in which upgrades from {', '.join(way[:-1])} leave them"
    if guessed:
        note += "; other orders fit what the rows hold as well, so this is a guess"
    return note
