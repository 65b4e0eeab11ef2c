"""The new file: made with the store's own statements and settings, and filled table by table.

Triggers come last, so that nothing a stranger wrote into the schema runs while rows are put in, and indexes that allow
each value once come before the rows that are less sure, so that the surer row of two stays.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import apsw

from hermes_doctor.rescue.forms import Form
from hermes_doctor.rescue.schema import Entry, create
from hermes_doctor.store.cells import CODECS, BadText, Cell, quote
from hermes_doctor.store.integrity import Stop, ask, stopped_by
from hermes_doctor.store.search_index import Layout, declared_by, inline_texts, layouts
from hermes_doctor.store.shape import read_shape

#: One row: its rowid, and as many of its values as there are, in the order of the table's columns.
Row = tuple[int, Sequence[Cell]]

#: What hermes notes of an index that it has not filled yet (0.20.0 on): all of the new ones are full.
_INDEX_STATE = """
DELETE FROM state_meta
 WHERE key IN ('fts_rebuild_progress', 'fts_rebuild_high_water', 'fts_stale',
               'fts_cjk_rebuild_progress', 'fts_cjk_rebuild_high_water', 'fts_cjk_stale')
"""


class NewFile:
    """The file that is being made. Raises apsw.Error and OSError where the machine cannot do it."""

    def __init__(self, path: Path, *, page_size: int, encoding: str, stop: Stop) -> None:
        self.path = path
        flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE | apsw.SQLITE_OPEN_URI
        self.connection = apsw.Connection(path.as_uri(), flags=flags)
        self.stop = stop
        self._codec = CODECS.get(encoding)
        self._statements: dict[tuple[int, int, tuple[int, ...]], tuple[Form, str]] = {}
        self._numbers: dict[str, set[int]] = {}
        path.chmod(0o600)
        self.connection.pragma("page_size", page_size)
        self.connection.pragma("encoding", encoding)
        # A file that nobody knows of yet needs no protection from a crash.
        self.connection.pragma("journal_mode", "memory")
        self.connection.pragma("synchronous", "off")
        self.connection.pragma("foreign_keys", False)
        self.connection.pragma("ignore_check_constraints", True)
        self.connection.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
        self.connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)

    def close(self) -> None:
        """Let go of the file."""
        self.connection.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Do what is inside in one transaction, and let an end that was asked for break it off."""
        with stopped_by(self.connection, self.stop):
            self.connection.execute("BEGIN")
            try:
                yield
                self.connection.execute("COMMIT")
            except BaseException:
                # SQLite may have done that itself.
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")
                raise

    @contextmanager
    def attached(self, store: Path, name: str, *, wanted: bool) -> Iterator[None]:
        """Have a private copy at hand under a name, where SQLite can open it."""
        if wanted:
            self.connection.execute(f"ATTACH ? AS {quote(name)}", (f"{store.as_uri()}?mode=ro",))
        yield
        if wanted:
            self.connection.execute(f"DETACH {quote(name)}")

    def make(self, entries: Iterable[Entry]) -> dict[str, str]:
        """Make what the entries name; return what could not be made, by its name, and why."""
        failed: dict[str, str] = {}
        for entry in entries:
            try:
                with stopped_by(self.connection, self.stop):
                    create(self.connection, entry)
            except apsw.InterruptError:
                raise
            except (apsw.SQLError, apsw.ConstraintError, apsw.AuthError, apsw.SchemaChangeError) as error:
                failed[entry.name] = " ".join(str(error).split())
        return failed

    def put(
        self,
        form: Form,
        rows: Iterable[Row],
        note: Callable[[int], object] | None = None,
        refused: Callable[[int], object] | None = None,
    ) -> int:
        """Put rows into a table, each but where one of its keys is there already; return how many were put in.

        ``note`` hears of the rowid of each that was, ``refused`` of each that was not: a key of it is there already, or
        it breaks what its table insists on.
        """
        put_in = 0
        for number, values in rows:
            if self._put_one(form, number, values):
                put_in += 1
                if note is not None:
                    note(number)
            elif refused is not None:
                refused(number)
        return put_in

    def _put_one(self, form: Form, number: int, values: Sequence[Cell]) -> bool:
        if form.rowid_name is None:
            # SQLite gives such a row another rowid, and so would not refuse it a second time.
            numbers = self._numbers.setdefault(form.table, set())
            if number in numbers:
                return False
            numbers.add(number)
        if self._codec is not None:
            # SQLite would change some characters on the way from one encoding to the other.
            values = [BadText(cell.encode(self._codec)) if isinstance(cell, str) else cell for cell in values]
        try:
            self.connection.execute(self._statement(form, values), _bindings(form, number, values))
        except apsw.ConstraintError:
            # STRICT tables refuse a type even so.
            return False
        return bool(self.connection.changes())

    def _statement(self, form: Form, values: Sequence[Cell]) -> str:
        bad = tuple(place for place, value in enumerate(values) if isinstance(value, BadText))
        # By the form itself, not by its table: a part of one puts in other columns. It is kept for as long as its name.
        key = (id(form), len(values), bad)
        if key not in self._statements:
            self._statements[key] = (form, _insert(form, len(values), bad))
        return self._statements[key][1]

    def put_named(self, form: Form, number: int, values: Mapping[str, Cell]) -> bool:
        """Put in one row of which columns may be missing, by their names in lower case; whether it was put in."""
        columns = tuple(c for c in form.columns if c.is_rowid or c.name.lower() in values)
        part = Form(form.table, columns)
        return self.put(part, [(number, [values.get(column.name.lower()) for column in columns])]) == 1

    def copy_from(
        self, form: Form, schema: str, source: apsw.Connection, refused: Callable[[int | None], object]
    ) -> int:
        """Copy a sound table as SQLite reads it from an attached file; return how many rows.

        ``source``: a connection to that file. ``refused`` hears of the rowid of each row that its table refuses; None
        where it cannot be told. Raises apsw.CorruptError where the table is not sound after all.
        """
        theirs, ours = f"{quote(schema)}.{quote(form.table)}", f"main.{quote(form.table)}"
        columns = ", ".join(_written(form))
        before = self.connection.total_changes()
        try:
            self.connection.execute(
                f"INSERT OR IGNORE INTO {ours}({columns}) SELECT {columns} FROM {theirs} NOT INDEXED"
            )
        except apsw.ConstraintError:
            # STRICT tables refuse a type even so: row by row then.
            self._copy_rows(form, source, "")
        put_in = self.connection.total_changes() - before
        if self.connection.execute(f"SELECT count(*) FROM {theirs} NOT INDEXED").get == put_in:
            return put_in
        key = form.rowid_name
        if key is None:
            refused(None)
            return put_in
        missing = f"SELECT {key} FROM {theirs} NOT INDEXED WHERE {key} NOT IN (SELECT {key} FROM {ours})"
        for (number,) in self.connection.execute(missing):
            refused(int(str(number)))
        return put_in

    def copy_ends(self, form: Form, source: apsw.Connection) -> int:
        """Copy what SQLite can read of a damaged table from its beginning, and from its end; return how many rows.

        ``source``: a connection to the damaged file.
        """
        before = self.connection.total_changes()
        keys = self.connection.execute("SELECT name FROM pragma_table_info(?) WHERE pk ORDER BY pk", (form.table,))
        backwards = ", ".join(f"{quote(str(name))} DESC" for (name,) in keys)
        if not self._copy_rows(form, source, "") and backwards:
            self._copy_rows(form, source, f"ORDER BY {backwards}")
        return self.connection.total_changes() - before

    def _copy_rows(self, form: Form, source: apsw.Connection, order: str) -> bool:
        """Copy rows one by one as far as SQLite can read them, in that order; whether it came to the end."""
        names = _written(form)
        into = f"INSERT OR IGNORE INTO {quote(form.table)}({', '.join(names)})"
        return self._copy_cells(into, names, f"{quote(form.table)} {order}", source)

    def _copy_cells(self, into: str, names: Sequence[str], theirs: str, source: apsw.Connection) -> bool:
        # Texts as their bytes: not all of them are texts.
        texts = ", ".join(f"typeof({name}) = 'text'" for name in names)
        cells = ", ".join(
            f"CASE typeof({name}) WHEN 'text' THEN CAST({name} AS BLOB) ELSE {name} END" for name in names
        )
        sql = f"SELECT {texts}, {cells} FROM {theirs}"
        try:
            with stopped_by(source, self.stop):
                for row in source.execute(sql):
                    places = ", ".join("CAST(? AS TEXT)" if is_text else "?" for is_text in row[: len(names)])
                    with suppress(apsw.ConstraintError):
                        self.connection.execute(f"{into} VALUES ({places})", row[len(names) :])
        except apsw.CorruptError:
            return False
        return True

    def copy_search(self, name: str, source: apsw.Connection) -> bool:
        """Fill a search table that keeps its own texts from those; whether all of them could be read.

        ``source``: a connection to the damaged file.
        """
        kept = f"{name}_content"
        asked = "SELECT name FROM pragma_table_xinfo(?) WHERE hidden = 0 ORDER BY cid"
        ours = [quote(str(column)) for (column,) in self.connection.execute(asked, (name,))]
        # Its rowid, and one column for each of the table's.
        theirs = [quote(str(column)) for (column,) in source.execute(asked, (kept,))]
        if len(theirs) != len(ours) + 1:
            return False
        answer = ask(source, kept, how="quick_check", stop=self.stop)
        if answer.problems or not answer.finished:
            return False
        into = f"INSERT INTO {quote(name)}(rowid, {', '.join(ours)})"
        with suppress(apsw.SQLError, apsw.CorruptError), self.transaction():
            if not self._copy_cells(into, theirs, quote(kept), source):
                raise apsw.CorruptError("all of it or nothing")
            return True
        return False

    def empty(self, form: Form) -> None:
        """Take all rows out of a table again."""
        self.connection.execute(f"DELETE FROM {quote(form.table)}")

    def fill_indexes(self) -> list[str]:
        """Fill each search index from the messages; return those that cannot be filled here."""
        shape = read_shape(self.connection)
        failed: list[str] = []
        if shape.has("state_meta", "key"):
            self.connection.execute(_INDEX_STATE)
        known = layouts(shape)
        for name in shape.virtual_tables:
            layout = known.get(name.lower(), Layout.UNKNOWN)
            declared = declared_by(shape, name)
            try:
                with stopped_by(self.connection, self.stop):
                    if layout is Layout.INLINE:
                        whole, _ = inline_texts(shape)
                        self.connection.execute(
                            f"INSERT INTO {quote(name)}(rowid, content) SELECT m.id, {whole} FROM messages AS m"
                        )
                    elif declared is not None and declared.content is not None:
                        self.connection.execute(f"INSERT INTO {quote(name)}({quote(name)}) VALUES ('rebuild')")
                    else:
                        failed.append(name)
            except apsw.InterruptError:
                raise
            except (apsw.SQLError, apsw.CorruptError):
                failed.append(name)
        return failed

    def set_counters(self, counters: Mapping[str, int]) -> None:
        """Let no rowid be given anew that was given before, by the table's name (AUTOINCREMENT)."""
        for table, number in counters.items():
            known = self.connection.execute("SELECT seq FROM sqlite_sequence WHERE name = ?", (table,)).get
            if known is None:
                self.connection.execute("INSERT INTO sqlite_sequence(name, seq) VALUES (?, ?)", (table, number))
            elif int(str(known)) < number:
                self.connection.execute("UPDATE sqlite_sequence SET seq = ? WHERE name = ?", (number, table))

    def settle(self, *, application_id: int, user_version: int, wal: bool) -> None:
        """Give the file the settings of the store, and put it on the disk."""
        self.connection.pragma("application_id", application_id)
        self.connection.pragma("user_version", user_version)
        self.connection.pragma("synchronous", "full")
        self.connection.pragma("journal_mode", "wal" if wal else "delete")


def is_unique(entry: Entry) -> bool:
    """Whether an index allows each value once."""
    return re.match(r"\s*create\s+unique\b", entry.sql, re.I) is not None


def _written(form: Form) -> list[str]:
    """Return the columns that are written, and the rowid, as SQL names them."""
    rowid = form.rowid
    own = [quote(column.name) for column in form.columns if not column.generated]
    return own if rowid is None else [rowid, *own]


def _insert(form: Form, count: int, bad: Collection[int]) -> str:
    """Return the statement that puts in so many values; ``bad``: the places of texts that are no text."""
    names, places = ([], []) if form.rowid is None else ([form.rowid], ["?"])
    for place, column in enumerate(form.columns[:count]):
        if not column.generated:
            names.append(quote(column.name))
            # They go in as bytes, and become text again there.
            places.append("CAST(? AS TEXT)" if place in bad else "?")
    return f"INSERT OR IGNORE INTO {quote(form.table)}({', '.join(names)}) VALUES ({', '.join(places)})"


def _bindings(form: Form, number: int, values: Sequence[Cell]) -> list[Cell]:
    bound: list[Cell] = [] if form.rowid is None else [number]
    for column, value in zip(form.columns, values, strict=False):
        if not column.generated:
            bound.append(number if column.is_rowid else bytes(value) if isinstance(value, BadText) else value)
    return bound
