"""Reading all tables of a copy into the new file: by SQLite where they are sound, page by page where they are not.

The surest rows come first, and a row that has its place stays: what the trees lead to; what lies in pages that no tree
leads to; what is in torn pages, or in pages that were given back; and last, rows that are cut.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import apsw

from hermes_doctor.rescue.account import LostRange, Rescue, Source, TableAccount
from hermes_doctor.rescue.copying import Copy
from hermes_doctor.rescue.filling import completed
from hermes_doctor.rescue.forms import Form, FormColumn
from hermes_doctor.rescue.indexed import Indexed, indexed
from hermes_doctor.rescue.loose import Free, LoosePage, loose_pages, whose
from hermes_doctor.rescue.missing import Missing, find_missing
from hermes_doctor.rescue.pages import Cell, cuts_off_free_pages, free_pages, mark_behind_the_end
from hermes_doctor.rescue.records import Record
from hermes_doctor.rescue.schema import SCHEMA_FORM, Entry, forms_of, read_entries, shadows
from hermes_doctor.rescue.trees import LostRowids, TreeWalk, claim
from hermes_doctor.rescue.writing import NewFile, Row, is_unique
from hermes_doctor.store.cells import BadText, quote
from hermes_doctor.store.integrity import Kind, ask
from hermes_doctor.store.trees import SCHEMA_ROOT

_ATTACHED = "damaged"
#: Where SQLite keeps the highest rowids that it gave (AUTOINCREMENT).
_SEQUENCE = Form("sqlite_sequence", (FormColumn("name", "BLOB"), FormColumn("seq", "BLOB")))
#: Ranges and runs that an account names; there may be any number of them.
_LISTED = 1000
#: SQLite never uses the page that holds this byte of a file: there it keeps its locks.
_LOCK_BYTE = 1 << 30
#: Pages between two looks whether to stop.
_OFTEN = 2048
_LINES = 20
#: More NULs in a row than are in a text for a reason; a disk loses many times as many at once.
_WIPED = "\0" * 64
#: What SQLite says of indexes; a table is sound even so.
_OF_INDEXES = (Kind.COUNT, Kind.INDEX)

#: Messages that are fewer than their session counted: how many of them, in how many sessions.
_SHORT = """
SELECT count(*), coalesce(sum(counted - there), 0)
  FROM (SELECT s.message_count AS counted, coalesce(m.there, 0) AS there
          FROM sessions AS s
          LEFT JOIN (SELECT session_id, count(*) AS there FROM messages GROUP BY session_id) AS m
                 ON m.session_id = s.id
         WHERE typeof(s.message_count) = 'integer')
 WHERE counted > there
"""
_ORPHANS = """
SELECT count(DISTINCT session_id) FROM messages
 WHERE session_id IS NOT NULL AND session_id NOT IN (SELECT id FROM sessions WHERE id IS NOT NULL)
"""


class _Page(NamedTuple):
    """A page that is read later: those of its rows that count, by their place in it."""

    number: int
    starts: array[int]


class _CutRow(NamedTuple):
    """A row that is cut, or may be, and where its page was found. ``held``: so many bytes of it are its own."""

    page: int
    cell: Cell
    source: Source
    held: int


@dataclass
class _Table:
    """One table while it is read."""

    entry: Entry
    form: Form
    account: TableAccount
    lost: list[LostRange] = field(default_factory=list)
    later: dict[Source, list[_Page]] = field(default_factory=dict)
    cut: list[_CutRow] = field(default_factory=list)
    doubtful: list[int] = field(default_factory=list)
    #: Rows that are there, and that the table does not take.
    refused: list[int | None] = field(default_factory=list)


class Reading:
    """Reads a copy into the new file, and keeps the account."""

    def __init__(
        self,
        copy: Copy,
        new: NewFile,
        result: Rescue,
        tell: Callable[[str, float | None], None],
        check: Callable[[], None],
    ) -> None:
        self.copy, self.pages, self.new, self.result = copy, copy.pages, new, result
        self.tell, self.check = tell, check
        self.claimed = bytearray(self.pages.count + 2)
        #: Pages of long rows from which a row was read already.
        self.followed = bytearray(self.pages.count + 2)
        self.is_wiped = False
        #: Where it is not known which pages were given back: the rows that were not deleted, by their table.
        self.indexed: dict[str, Indexed] = {}
        self.entries: list[Entry] = []
        #: Tables whose statement is lost.
        self.missing = Missing()
        self._known_forms: list[Form] | None = None
        self.tables: list[_Table] = []

    def read(self) -> None:
        """Read all tables. Raises Stopped, OSError and apsw.Error."""
        self._read_schema()
        self._make_tables()
        self.is_wiped = self._find_wiped()
        with self.new.attached(self.copy.store, _ATTACHED, wanted=self.copy.connection is not None):
            for table in self.tables:
                self._read(table)
        self._note_failed(self.new.make(entry for entry in self.entries if entry.kind == "index" and is_unique(entry)))
        self._claim_the_rest()
        self._read_loose()
        for source in (Source.TORN, Source.FREE):
            for table in self.tables:
                with self.new.transaction():
                    self._put_later(table, source)
        for table in self.tables:
            with self.new.transaction():
                self._put_cut(table)
        self._read_behind()
        for table in self.tables:
            self._account(table)
        self._count_what_is_missing()

    def finish(self) -> None:
        """Make what is not rows: indexes, search indexes, views and triggers."""
        self.tell("indexing", None)
        of_kind: dict[str, list[Entry]] = {"index": [], "view": [], "trigger": []}
        for entry in self.entries:
            if entry.kind in of_kind and not (entry.kind == "index" and is_unique(entry)):
                of_kind[entry.kind].append(entry)
        failed = self.new.make(of_kind["index"])
        virtual = [entry for entry in self.entries if entry.is_virtual]
        failed |= self.new.make(virtual)
        failed |= self.new.make(of_kind["view"])
        unfilled = [name for name in self.new.fill_indexes() if not self._copy_search(name)]
        failed |= self.new.make(of_kind["trigger"])
        self.result.index_rebuilt = bool(virtual) and not unfilled
        with suppress(apsw.SQLError):
            self.new.set_counters(self._counters())
        self._note_failed(failed)
        for name in unfilled:
            self.result.notes.append(f"The search index {name} could not be filled here: it is empty")
        header = self.pages.page(1) if self.copy.header else bytes(100)
        self.new.settle(
            application_id=int.from_bytes(header[68:72], "big", signed=True),
            user_version=int.from_bytes(header[60:64], "big", signed=True),
            wal=header[18:20] == b"\x02\x02",
        )

    def _copy_search(self, name: str) -> bool:
        """Copy a search table that is not of messages, and keeps its own texts, where SQLite finds those sound."""
        connection = self.copy.connection
        return connection is not None and not self.is_wiped and self.new.copy_search(name, connection)

    def _note_failed(self, failed: Mapping[str, str]) -> None:
        for name, why in failed.items():
            self.result.notes.append(f"{name} could not be made again ({why})")

    def _make_tables(self) -> None:
        failed = self.new.make(table.entry for table in self.tables)
        for table in self.tables:
            table.account.failed = failed.get(table.entry.name)
        self.tables = [table for table in self.tables if table.account.failed is None]

    def _read_schema(self) -> None:
        lost: list[LostRange] = []
        self.entries = read_entries(self.pages, lost)
        numbers = self._telling(range(2, self.pages.count + 1))
        self.missing = find_missing(self.pages, self.entries, lost, header=self.copy.header, numbers=numbers)
        self.entries = self.missing.completed(self.entries)
        self.result.notes += self.missing.notes
        for page in self.missing.foreign:
            claim(self.pages, page, self.claimed)
        beside = shadows(self.entries)

        def failed(entry: Entry, why: str) -> None:
            if entry.name.lower() not in beside and not entry.name.lower().startswith("sqlite_"):
                why = f"what the store says of how it was made is not understood: {why}"
                self.result.tables.append(TableAccount(entry.name, failed=why))

        for entry, form in forms_of(self.entries, failed):
            if entry.name.lower() not in beside and not entry.name.lower().startswith("sqlite_"):
                account = TableAccount(entry.name)
                self.tables.append(_Table(entry, form, account))
                self.result.tables.append(account)
        if lost:
            self.result.notes.append(
                "A part of the list of all tables is damaged: what it names was put together from what is left of it"
            )

    def _find_wiped(self) -> bool:
        """Whether a page was wiped that SQLite would take for a part of a row."""
        free, _ = free_pages(self.pages)
        locks = _LOCK_BYTE // self.pages.size + 1
        for number in range(1, self.pages.count + 1):
            if number % _OFTEN == 0:
                self.check()
            used = not free[number] and number != locks
            if used and not self.pages.first_byte(number) and self.pages.is_zeros(number):
                return True
        return False

    def _read(self, table: _Table) -> None:
        self.check()
        self.tell(f"reading {table.entry.name}", None)
        connection = self.copy.connection
        if connection is not None and not self.is_wiped and self._is_sound(table):
            with suppress(apsw.CorruptError), self.new.transaction():
                copied = self.new.copy_from(table.form, _ATTACHED, connection, table.refused.append)
                table.account.saved[Source.IN_PLACE] = copied
                claim(self.pages, table.entry.root, self.claimed)
                return
            table.refused.clear()
        if table.form.without_rowid:
            self._read_from_both_ends(table)
            return
        table.account.read_by = "pages"
        walk = TreeWalk(self.pages, table.entry.root, table.form, self.claimed)
        with self.new.transaction():
            rows = self._in_place(table, walk)
            table.account.saved[Source.IN_PLACE] = self.new.put(table.form, rows, refused=table.refused.append)
        table.lost += walk.lost + self.missing.lost.get(table.form.table, [])

    def _read_from_both_ends(self, table: _Table) -> None:
        """Read a table that the file keeps as an index, as far as SQLite can from either end; nobody else can."""
        connection = self.copy.connection
        with self.new.transaction():
            saved = 0 if connection is None else self.new.copy_ends(table.form, connection)
        # What is between the ends is not known, and what was read may not be in its place.
        table.account.saved[Source.TORN] = saved
        if self._is_sound(table):
            return
        why = (
            "it is a table without rowids, and damaged: no more than what SQLite can read from its ends could be saved"
        )
        table.lost = [LostRange(None, None, table.entry.root or None, why)]
        if not saved:
            table.account.failed = "it is a table without rowids, and damaged: SQLite cannot read any of it"

    def _is_sound(self, table: _Table) -> bool:
        """Whether SQLite finds a table sound, and no page of it holds another's rows, which it does not look at."""
        connection = self.copy.connection
        if connection is None or table.entry in self.missing.entries:
            return False
        if not self.copy.sound:
            answer = ask(connection, table.entry.name, how="quick_check", stop=self.new.stop)
            if not answer.finished or any(problem.kind not in _OF_INDEXES for problem in answer.problems):
                return False
        return table.form.without_rowid or not self._holds_others(table)

    def _holds_others(self, table: _Table) -> bool:
        forms = self._forms()
        walk = TreeWalk(self.pages, table.entry.root, table.form, bytearray(self.pages.count + 2))
        for count, found in enumerate(walk):
            if count % _OFTEN == 0:
                self.check()
            if found.torn and self._is_of_another(table, found.page, forms):
                return True
        return any(self._is_of_another(table, each.page, forms) for each in walk.lost if each.page is not None)

    def _is_of_another(self, table: _Table, page: int, forms: list[Form]) -> bool:
        leaf = self.pages.leaf(page)
        if leaf is None or not leaf.cells:
            return False
        tables = whose(forms, [self.pages.layout(page, cell) for cell in leaf.cells])
        return bool(tables) and table.form.table not in tables

    def _in_place(self, table: _Table, walk: TreeWalk) -> Iterator[Row]:
        for count, found in enumerate(walk):
            if count % _OFTEN == 0:
                self.check()
            if found.torn:
                table.later.setdefault(Source.TORN, []).append(_page(found.page, found.cells))
            else:
                yield from self._rows(table, found.page, found.cells, Source.IN_PLACE)

    def _rows(self, table: _Table, page: int, cells: Iterable[Cell], source: Source) -> Iterator[Row]:
        """Give the rows of a page that are whole; those that are cut are read last."""
        for cell in cells:
            record = self.pages.record(page, cell, self.followed)
            if record is None:
                table.lost.append(LostRange(cell.number, cell.number, page, "what lies there is no row"))
            elif record.is_cut:
                table.cut.append(_CutRow(page, cell, source, record.held))
            elif cell.overflow and not self.copy.sound and (record.ends_in_zeros or _looks_torn(record)):
                # Its later pages may be as they were, or may have been wiped or torn.
                table.cut.append(_CutRow(page, cell, Source.TORN, record.held))
            else:
                yield cell.number, record.values

    def _claim_the_rest(self) -> None:
        """Mark the pages of tables that are not read: the schema, and search indexes, which are made anew."""
        top = self.pages.branch(SCHEMA_ROOT)
        for child in [] if top is None else [*(child for child, _ in top.children), top.last]:
            claim(self.pages, child, self.claimed)
        read = {table.entry.name for table in self.tables}
        for entry in self.entries:
            if entry.kind == "table" and entry.name not in read and entry.root:
                claim(self.pages, entry.root, self.claimed)

    def _read_loose(self) -> None:
        gaps = {table.form.table: LostRowids(table.lost) for table in self.tables if table.lost}
        if not gaps:
            return
        by_name = {table.form.table: table for table in self.tables}
        marks, known = free_pages(self.pages)
        # A list that was lost cannot be told from one of a store that never had any.
        none_is_listed = not any(marks)
        mark_behind_the_end(self.pages, marks)
        free = Free(marks, known and self.copy.header)
        if free.known and none_is_listed and not cuts_off_free_pages(self.pages):
            connection, stop = self.copy.connection, self.new.stop
            self.indexed = {
                table.form.table: indexed(connection, table.form, gaps[table.form.table], stop)
                for table in self.tables
                if table.lost
            }
        pages = loose_pages(
            self.pages, self.claimed, self._forms(), gaps, free, self._telling(range(2, self.pages.count + 1))
        )
        with self.new.transaction():
            for found in pages:
                if found.table is None:
                    for name in found.candidates:
                        by_name[name].account.ambiguous_pages += 1
                    continue
                self._take_loose(by_name[found.table], found)

    def _take_loose(self, table: _Table, found: LoosePage) -> None:
        account = table.account
        account.left_out += found.others
        if found.source is not Source.LOOSE:
            table.later.setdefault(found.source, []).append(_page(found.page, found.cells))
            return
        named = self.indexed.get(table.form.table)
        if named is not None:
            doubtful = [cell for cell in found.cells if cell.number not in named]
            if doubtful:
                table.later.setdefault(Source.FREE, []).append(_page(found.page, doubtful))
                # Not all of it is a page that was lost.
                found = replace(found, cells=[cell for cell in found.cells if cell.number in named], others=1)
        rows = list(self._rows(table, found.page, found.cells, Source.LOOSE))
        put_in = self.new.put(table.form, rows)
        account.saved[Source.LOOSE] = account.saved.get(Source.LOOSE, 0) + put_in
        account.left_out += len(rows) - put_in
        if not found.others and put_in == len(found.cells):
            _found_again(table.lost, found.cells)

    def _forms(self) -> list[Form]:
        """Return the forms of all tables that keep their rows by rowids, those of search indexes included."""
        if self._known_forms is None:
            beside = shadows(self.entries)
            others = [form for entry, form in forms_of(self.entries) if entry.name.lower() in beside]
            forms = [table.form for table in self.tables] + others + [SCHEMA_FORM]
            self._known_forms = [form for form in forms if not form.without_rowid]
        return self._known_forms

    def _telling(self, numbers: range) -> Iterator[int]:
        for number in numbers:
            if number % _OFTEN == 0:
                self.check()
                self.tell("searching", number / len(numbers))
            yield number

    def _put_later(self, table: _Table, source: Source) -> None:
        for page in table.later.pop(source, []):
            self.check()
            leaf = self.pages.leaf(page.number)
            starts = set(page.starts)
            cells = [] if leaf is None else [cell for cell in leaf.cells if cell.start in starts]
            rows = list(self._rows(table, page.number, cells, source))
            put_in = self.new.put(table.form, rows, table.doubtful.append)
            table.account.saved[source] = table.account.saved.get(source, 0) + put_in
            table.account.left_out += len(rows) - put_in

    def _put_cut(self, table: _Table) -> None:
        numbers: list[int] = []
        for row in table.cut:
            self.check()
            # Which pages were followed says nothing any more: those that were its own are within what it held.
            record = self.pages.record(row.page, row.cell, held=row.held)
            if record is None or not self._put_what_is_left(table, row, record):
                table.lost.append(LostRange(row.cell.number, row.cell.number, row.page, "a row's later pages are gone"))
                continue
            if record.is_cut:
                numbers.append(row.cell.number)
            table.account.saved[row.source] = table.account.saved.get(row.source, 0) + 1
            if row.source in (Source.TORN, Source.FREE):
                table.doubtful.append(row.cell.number)
        table.account.cut += len(numbers)
        table.account.cut_rows = _runs(numbers)[:_LISTED]

    def _put_what_is_left(self, table: _Table, row: _CutRow, record: Record) -> bool:
        if not record.is_cut:
            return self.new.put(table.form, [(row.cell.number, record.values)]) == 1
        values = completed(self.new.connection, table.form, row.cell.number, record)
        return values is not None and self.new.put_named(table.form, row.cell.number, values)

    def _read_behind(self) -> None:
        """Read what hermes wrote to the log behind a broken frame: rows with rowids that none had before."""
        behind = self.copy.behind
        if behind is None:
            return
        highest = {table.form.table: self._highest(table) for table in self.tables if table.form.rowid_name}
        by_name = {table.form.table: table for table in self.tables}
        with self.new.transaction():
            for number in self.copy.behind_numbers:
                self.check()
                leaf = behind.leaf(number)
                cells = [] if leaf is None else leaf.cells
                tables = whose(self._forms(), [behind.layout(number, cell) for cell in cells])
                if len(tables) != 1 or tables[0] not in highest:
                    continue
                table = by_name[tables[0]]
                records = ((cell.number, behind.record(number, cell)) for cell in cells)
                rows = [
                    (rowid, record.values)
                    for rowid, record in records
                    if rowid > highest[tables[0]] and record is not None and not record.is_cut
                ]
                put_in = self.new.put(table.form, rows, table.doubtful.append)
                table.account.saved[Source.LOG] = table.account.saved.get(Source.LOG, 0) + put_in
        self.result.notes.append(
            "The write-ahead log is broken in its midst, and SQLite goes by what is before that: new rows from behind "
            "it were saved, changes and deletions that were written there are not known"
        )

    def _highest(self, table: _Table) -> int:
        """Return the highest rowid that the table ever had, as far as is known."""
        key = table.form.rowid_name
        there = self.new.connection.execute(f"SELECT max({key}) FROM {quote(table.form.table)}").get
        return max(there if isinstance(there, int) else 0, self._counters().get(table.form.table, 0))

    def _account(self, table: _Table) -> None:
        account = table.account
        account.doubtful = _runs(table.doubtful)[:_LISTED]
        why = "its table does not take such a row: a value that may be there once is there twice, or one is missing"
        runs = _runs(number for number in table.refused if number is not None)
        table.lost += [LostRange(low, high, None, why) for low, high in runs]
        if None in table.refused:
            table.lost.append(LostRange(None, None, None, why))
        lost = _joined(each for each in table.lost if not self._is_filled(table, each))
        account.lost, account.more_lost = lost[:_LISTED], max(0, len(lost) - _LISTED)

    def _is_filled(self, table: _Table, lost: LostRange) -> bool:
        """Whether a row is there for each rowid of a range."""
        key = table.form.rowid_name
        if lost.high is None or key is None:
            return False
        # SQLite gives no rowid below 1 by itself.
        low = 1 if lost.low is None else lost.low
        if lost.high < low:
            return lost.low is not None
        sql = f"SELECT count(*) FROM {quote(table.form.table)} WHERE {key} BETWEEN ? AND ?"
        return bool(self.new.connection.execute(sql, (low, lost.high)).get == lost.high - low + 1)

    def _count_what_is_missing(self) -> None:
        connection = self.new.connection
        messages = self.result.table("messages")
        if messages is None or messages.is_whole:
            return
        with suppress(apsw.SQLError):
            short, missing = connection.execute(_SHORT).fetchall()[0]
            self.result.chats_short, self.result.messages_missing = int(str(short)), int(str(missing))
        if self.result.inspect_only:
            with suppress(apsw.SQLError):
                self.result.sessions_given = int(str(connection.execute(_ORPHANS).get))

    def _counters(self) -> dict[str, int]:
        """Return the highest rowids that were ever given, by table."""
        entry = next((entry for entry in self.entries if entry.name == _SEQUENCE.table), None)
        if entry is None:
            return {}
        counters: dict[str, int] = {}
        known = {table.entry.name for table in self.tables}
        for found in TreeWalk(self.pages, entry.root, _SEQUENCE, bytearray(self.pages.count + 2)):
            for cell in found.cells:
                record = self.pages.record(found.page, cell)
                if record is not None and not record.is_cut:
                    name, number = record.values
                    if name in known and isinstance(number, int):
                        counters[str(name)] = max(number, counters.get(str(name), number))
        return counters


def _looks_torn(record: Record) -> bool:
    """Whether a text of a row is as one is whose pages were written over."""
    return any(isinstance(value, BadText) or (isinstance(value, str) and _WIPED in value) for value in record.values)


def _page(number: int, cells: Iterable[Cell]) -> _Page:
    # Where they begin is less than the cells themselves: there may be a great many.
    return _Page(number, array("i", (cell.start for cell in cells)))


def _joined(lost: Iterable[LostRange]) -> list[LostRange]:
    """Make one range of those that follow one another and are lost for the same reason."""
    joined: list[LostRange] = []
    for each in lost:
        last = joined[-1] if joined else None
        if last is not None and last.high is not None and (each.low, each.why) == (last.high + 1, last.why):
            page = last.page if last.page == each.page else None
            joined[-1] = LostRange(last.low, each.high, page, last.why)
        else:
            joined.append(each)
    return joined


def _found_again(lost: list[LostRange], cells: list[Cell]) -> None:
    """Take out the range whose one page this is: nothing else was there."""
    first, last = cells[0].number, cells[-1].number
    for place, each in enumerate(lost):
        fits = (each.low is None or each.low <= first) and (each.high is None or last <= each.high)
        if each.one_page and fits:
            del lost[place]
            return


def _runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Return the runs of numbers that follow one another, both ends included."""
    runs: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return runs
