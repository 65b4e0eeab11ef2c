"""The new file: made with the store's own statements and settings, and filled table by table.

Triggers come last, so that nothing a stranger wrote into the schema runs while rows are put in, and indexes that allow
each value once come before the rows that are less sure, so that the surer row of two stays.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import apsw

from hermes_doctor.rescue.forms import Form
from hermes_doctor.rescue.schema import Entry, create
from hermes_doctor.store.cells import BadText, Cell, quote
from hermes_doctor.store.integrity import Stop, stopped_by
from hermes_doctor.store.search_index import Layout, declared_by, inline_texts, layouts
from hermes_doctor.store.shape import read_shape

#: One row: its rowid, and as many of its values as there are, in the order of the table's columns.
Row = tuple[int, Sequence[Cell]]

_ROWIDS = ("rowid", "_rowid_", "oid")
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
        #: Whether the damaged file can be read by SQL beside the new one.
        self.has_attached = False
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
            yield
            self.connection.execute("COMMIT")

    @contextmanager
    def attached(self, store: Path, name: str, *, wanted: bool) -> Iterator[None]:
        """Have a private copy at hand under a name, where SQLite can open it."""
        if wanted:
            self.connection.execute(f"ATTACH ? AS {quote(name)}", (f"{store.as_uri()}?mode=ro",))
            self.has_attached = True
        yield
        if wanted:
            self.connection.execute(f"DETACH {quote(name)}")
            self.has_attached = False

    def make(self, entries: Iterable[Entry]) -> dict[str, str]:
        """Make what the entries name; return what could not be made, by its name, and why."""
        failed: dict[str, str] = {}
        for entry in entries:
            try:
                with stopped_by(self.connection, self.stop):
                    create(self.connection, entry.sql)
            except apsw.InterruptError:
                raise
            except (apsw.SQLError, apsw.ConstraintError, apsw.AuthError, apsw.SchemaChangeError) as error:
                failed[entry.name] = " ".join(str(error).split())
        return failed

    def put(self, form: Form, rows: Iterable[Row], note: Callable[[int], object] | None = None) -> int:
        """Put rows into a table, each but where one of its keys is there already; return how many were put in.

        ``note`` hears of the rowid of each that was.
        """
        put_in = 0
        for number, values in rows:
            self.connection.execute(_insert(form, values), _bindings(form, number, values))
            if self.connection.changes():
                put_in += 1
                if note is not None:
                    note(number)
        return put_in

    def put_named(self, form: Form, number: int, values: Mapping[str, Cell]) -> bool:
        """Put in one row of which columns may be missing, by their names in lower case; whether it was put in."""
        columns = tuple(c for c in form.columns if c.is_rowid or c.name.lower() in values)
        part = Form(form.table, columns)
        return self.put(part, [(number, [values.get(column.name.lower()) for column in columns])]) == 1

    def copy_from(self, form: Form, schema: str) -> int:
        """Copy a sound table as SQLite reads it from an attached file; return how many rows.

        Raises apsw.CorruptError where it is not sound after all.
        """
        names = [quote(column.name) for column in form.columns if not column.generated]
        rowid = rowid_of(form)
        if rowid is not None:
            names.insert(0, rowid)
        columns = ", ".join(names)
        before = self.connection.total_changes()
        self.connection.execute(
            f"INSERT OR IGNORE INTO main.{quote(form.table)}({columns})"
            f" SELECT {columns} FROM {quote(schema)}.{quote(form.table)} NOT INDEXED"
        )
        return self.connection.total_changes() - before

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


def rowid_of(form: Form) -> str | None:
    """Return the name by which the rowid is set; None where a column is the rowid, or all its names are taken."""
    if any(column.is_rowid for column in form.columns):
        return None
    names = {column.name.lower() for column in form.columns}
    return next((name for name in _ROWIDS if name not in names), None)


def is_unique(entry: Entry) -> bool:
    """Whether an index allows each value once."""
    return re.match(r"\s*create\s+unique\b", entry.sql, re.I) is not None


def _insert(form: Form, values: Sequence[Cell]) -> str:
    rowid = rowid_of(form)
    names, places = ([], []) if rowid is None else ([rowid], ["?"])
    for column, value in zip(form.columns, values, strict=False):
        if not column.generated:
            names.append(quote(column.name))
            # Text that is no text goes in as bytes, and becomes text again there.
            places.append("CAST(? AS TEXT)" if isinstance(value, BadText) else "?")
    return f"INSERT OR IGNORE INTO {quote(form.table)}({', '.join(names)}) VALUES ({', '.join(places)})"


def _bindings(form: Form, number: int, values: Sequence[Cell]) -> list[Cell]:
    bound: list[Cell] = [] if rowid_of(form) is None else [number]
    for column, value in zip(form.columns, values, strict=False):
        if not column.generated:
            bound.append(number if column.is_rowid else bytes(value) if isinstance(value, BadText) else value)
    return bound
