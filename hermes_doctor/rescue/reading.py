"""Reading all tables of a copy into the new file: by SQLite where they are sound, page by page where they are not.

The surest rows come first, and a row that has its place stays: what the trees lead to; what lies in pages that no tree
leads to; what is in torn pages, or in pages that were given back; and last, rows that are cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace

import apsw

from hermes_doctor.rescue.account import LostRange, Rescue, Source, TableAccount
from hermes_doctor.rescue.copying import Copy
from hermes_doctor.rescue.filling import belongs, completed
from hermes_doctor.rescue.finishing import counters_of, note_failed
from hermes_doctor.rescue.forms import Form
from hermes_doctor.rescue.indexed import Indexed, indexed
from hermes_doctor.rescue.loose import Free, LoosePage, loose_pages, whose
from hermes_doctor.rescue.missing import Missing, find_missing
from hermes_doctor.rescue.pages import Cell, cuts_off_free_pages, free_pages, mark_behind_the_end
from hermes_doctor.rescue.records import Record
from hermes_doctor.rescue.schema import SCHEMA_FORM, Entry, forms_of, read_entries, shadows
from hermes_doctor.rescue.table import LISTED, CutRow, LaterPage, Table, runs
from hermes_doctor.rescue.trees import LostRowids, TreeWalk, claim
from hermes_doctor.rescue.writing import NewFile, Row, is_unique
from hermes_doctor.store.cells import BadText, quote
from hermes_doctor.store.integrity import Kind, ask
from hermes_doctor.store.trees import SCHEMA_ROOT

_ATTACHED = "damaged"
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
        self.tables: list[Table] = []
        #: The forms of what search indexes keep in tables, and of the schema; and those of all tables that have rowids.
        self._other_forms: list[Form] = [SCHEMA_FORM]
        self.forms: list[Form] = []
        #: The highest rowids that were ever given, by table (AUTOINCREMENT).
        self.counters: dict[str, int] = {}

    def read(self) -> None:
        """Read all tables. Raises Stopped, OSError and apsw.Error."""
        self._read_schema()
        self._make_tables()
        self.is_wiped = self._find_wiped()
        names = {table.entry.name for table in self.tables}
        self.counters = counters_of(self.pages, self.entries, names)
        with self.new.attached(self.copy.store, _ATTACHED, wanted=self.copy.connection is not None):
            for table in self.tables:
                self._read(table)
        unique = (entry for entry in self.entries if entry.kind == "index" and is_unique(entry))
        note_failed(self.result, self.new.make(unique))
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
            table.settle(self.new.connection)
        self._count_what_is_missing()

    def _make_tables(self) -> None:
        failed = self.new.make(table.entry for table in self.tables)
        for table in self.tables:
            table.account.failed = failed.get(table.entry.name)
        self.tables = [table for table in self.tables if table.account.failed is None]
        forms = [table.form for table in self.tables] + self._other_forms
        self.forms = [form for form in forms if not form.without_rowid]

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

        def is_read(entry: Entry) -> bool:
            return entry.name.lower() not in beside and not entry.name.lower().startswith("sqlite_")

        def failed(entry: Entry, why: str) -> None:
            if is_read(entry):
                why = f"what the store says of how it was made is not understood: {why}"
                self.result.tables.append(TableAccount(entry.name, failed=why))

        for entry, form in forms_of(self.entries, failed):
            if is_read(entry):
                account = TableAccount(entry.name)
                self.tables.append(Table(entry, form, account))
                self.result.tables.append(account)
            elif entry.name.lower() in beside:
                self._other_forms.append(form)
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

    def _read(self, table: Table) -> None:
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

    def _read_from_both_ends(self, table: Table) -> None:
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

    def _is_sound(self, table: Table) -> bool:
        """Whether SQLite finds a table sound, and no page of it holds another's rows, which it does not look at."""
        connection = self.copy.connection
        if connection is None or table.entry in self.missing.entries:
            return False
        if not self.copy.sound:
            answer = ask(connection, table.entry.name, how="quick_check", stop=self.new.stop)
            if not answer.finished or any(problem.kind not in _OF_INDEXES for problem in answer.problems):
                return False
        return table.form.without_rowid or not self._holds_others(table)

    def _holds_others(self, table: Table) -> bool:
        walk = TreeWalk(self.pages, table.entry.root, table.form)
        for count, found in enumerate(walk):
            if count % _OFTEN == 0:
                self.check()
            if found.torn and self._is_of_another(table, found.page):
                return True
        return any(self._is_of_another(table, each.page) for each in walk.lost if each.page is not None)

    def _is_of_another(self, table: Table, page: int) -> bool:
        leaf = self.pages.leaf(page)
        if leaf is None or not leaf.cells:
            return False
        tables = whose(self.forms, [self.pages.layout(page, cell) for cell in leaf.cells])
        return bool(tables) and table.form.table not in tables

    def _in_place(self, table: Table, walk: TreeWalk) -> Iterator[Row]:
        for count, found in enumerate(walk):
            if count % _OFTEN == 0:
                self.check()
            if found.torn:
                table.later.setdefault(Source.TORN, []).append(LaterPage.of(found.page, found.cells))
            else:
                yield from self._rows(table, found.page, found.cells, Source.IN_PLACE)

    def _rows(self, table: Table, page: int, cells: Iterable[Cell], source: Source) -> Iterator[Row]:
        """Give the rows of a page that are whole; those that are cut are read last."""
        for cell in cells:
            record = self.pages.record(page, cell, self.followed)
            if record is None:
                table.lost.append(LostRange(cell.number, cell.number, page, "what lies there is no row"))
            elif record.is_cut:
                table.cut.append(CutRow(page, cell, source, record.held))
            elif not self.copy.sound and (record.odd_end or _looks_torn(record)):
                # What is behind its beginning may be as it was, or may have been wiped or torn.
                table.cut.append(CutRow(page, cell, Source.TORN, record.held))
            else:
                yield cell.number, record.values

    def _claim_the_rest(self) -> None:
        """Mark the pages of tables that are not read: the schema, and search indexes, which are made anew."""
        claim(self.pages, SCHEMA_ROOT, self.claimed)
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
        numbers = self._telling(range(2, self.pages.count + 1))
        pages = loose_pages(self.pages, self.claimed, self.forms, gaps, free, numbers)
        with self.new.transaction():
            for found in pages:
                if found.table is None:
                    for name in found.candidates:
                        by_name[name].account.ambiguous_pages += 1
                    continue
                self._take_loose(by_name[found.table], found)

    def _take_loose(self, table: Table, found: LoosePage) -> None:
        account = table.account
        account.left_out += found.others
        if found.source is not Source.LOOSE:
            table.later.setdefault(found.source, []).append(LaterPage.of(found.page, found.cells))
            return
        named = self.indexed.get(table.form.table)
        if named is not None:
            doubtful = [cell for cell in found.cells if cell.number not in named]
            if doubtful:
                table.later.setdefault(Source.FREE, []).append(LaterPage.of(found.page, doubtful))
                # Not all of it is a page that was lost.
                found = replace(found, cells=[cell for cell in found.cells if cell.number in named], others=1)
        rows = list(self._rows(table, found.page, found.cells, Source.LOOSE))
        put_in = self.new.put(table.form, rows)
        account.saved[Source.LOOSE] = account.saved.get(Source.LOOSE, 0) + put_in
        account.left_out += len(rows) - put_in
        if not found.others and put_in == len(found.cells):
            table.found_again(found.cells)

    def _telling(self, numbers: range) -> Iterator[int]:
        for number in numbers:
            if number % _OFTEN == 0:
                self.check()
                self.tell("searching", number / len(numbers))
            yield number

    def _put_later(self, table: Table, source: Source) -> None:
        for page in table.later.pop(source, []):
            self.check()
            leaf = self.pages.leaf(page.number)
            starts = set(page.starts)
            cells = [] if leaf is None else [cell for cell in leaf.cells if cell.start in starts]
            rows = list(self._rows(table, page.number, cells, source))
            put_in = self.new.put(table.form, rows, table.doubtful.append)
            table.account.saved[source] = table.account.saved.get(source, 0) + put_in
            table.account.left_out += len(rows) - put_in

    def _put_cut(self, table: Table) -> None:
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
        table.account.cut_rows = runs(numbers)[:LISTED]

    def _put_what_is_left(self, table: Table, row: CutRow, record: Record) -> bool:
        if not record.is_cut:
            leaf = self.pages.leaf(row.page)
            if not belongs(table.form, record, torn=leaf is None or not leaf.whole):
                return False
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
                tables = whose(self.forms, [behind.layout(number, cell) for cell in cells])
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

    def _highest(self, table: Table) -> int:
        """Return the highest rowid that the table ever had, as far as is known."""
        key = table.form.rowid_name
        there = self.new.connection.execute(f"SELECT max({key}) FROM {quote(table.form.table)}").get
        return max(there if isinstance(there, int) else 0, self.counters.get(table.form.table, 0))

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


def _looks_torn(record: Record) -> bool:
    """Whether a text of a row is as one is whose pages were written over."""
    return any(isinstance(value, BadText) or (isinstance(value, str) and _WIPED in value) for value in record.values)
