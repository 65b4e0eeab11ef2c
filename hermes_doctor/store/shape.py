"""The shape of a store: its tables, columns, triggers and indexes, read from the file and never inferred.

A store's ``schema_version`` says little: builds between two releases carry columns under a lower number, older
releases reopen newer files, and columns stand in any order (state.db files of 0.13.0 to 0.22.2). So a rule asks the
shape whether a column is there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import apsw

from hermes_doctor.store.cells import CODECS, quote

#: The newest schema that this doctor knows (0.22.2).
KNOWN_SCHEMA = 31

_SHADOW_SUFFIXES = ("_data", "_idx", "_content", "_docsize", "_config")
_ROWID_NAMES = ("rowid", "_rowid_", "oid")

#: What SQLite itself can order text by.
_COLLATIONS = frozenset({"binary", "nocase", "rtrim"})
_COLLATE = re.compile(r"\bCOLLATE\s+[\"`\[]?(\w+)", re.I)
_TEXTS = re.compile(r"--[^\n]*|/\*.*?\*/|'(?:[^']|'')*'", re.S)

#: The statement of an index of all messages that begins with the session.
_BY_SESSION = re.compile(r'\bON\s+["`\[]?messages["`\]]?\s*\(\s*["`\[]?session_id\b(?!.*\bWHERE\b)', re.I | re.S)


class Column(NamedTuple):
    """One column as declared: name, declared type, whether NULL is refused, place in the primary key (0: none)."""

    name: str
    type: str
    not_null: bool
    key_place: int
    generated: bool = False

    @property
    def keeps_integers(self) -> bool:
        """Whether a whole number stays what it is in it: other columns make text of it, or a fraction."""
        return affinity_of(self.type) not in ("TEXT", "REAL")


class Table(NamedTuple):
    """An ordinary table: its columns by lower-case name, in the file's order."""

    name: str
    columns: Mapping[str, Column]
    without_rowid: bool

    def has(self, column: str) -> bool:
        """Whether the table has the column (names compare as SQLite compares them), and rows hold it.

        No release makes a generated column. What a stranger's comes to is computed at each look, however long that
        takes and however large it is, so it is left alone.
        """
        found = self.columns.get(column.lower())
        return found is not None and not found.generated

    @property
    def primary_key(self) -> tuple[str, ...]:
        """The names of the primary key's columns in order; empty where none is declared."""
        keyed = sorted((c for c in self.columns.values() if c.key_place), key=lambda c: c.key_place)
        return tuple(c.name for c in keyed)

    @property
    def rowid(self) -> str | None:
        """A name that reaches the row's rowid, or None where there is none or all its names are taken."""
        if self.without_rowid:
            return None
        return next((name for name in _ROWID_NAMES if name not in self.columns), None)


@dataclass(frozen=True)
class Shape:
    """What a store is made of. ``tables`` holds ordinary tables only: no views, virtual or shadow tables."""

    tables: Mapping[str, Table]
    virtual_tables: Mapping[str, str]
    views: Mapping[str, str]
    triggers: Mapping[str, str]
    indexes: Mapping[str, str]
    schema_version: int | None
    encoding: str = "UTF-8"
    unreadable: tuple[str, ...] = field(default=())

    def has(self, table: str, *columns: str) -> bool:
        """Whether the store has the table and, in it, all of the columns."""
        found = self.tables.get(table.lower())
        return found is not None and all(found.has(column) for column in columns)

    def column(self, table: str, column: str, *, alias: str | None = None, absent: str = "NULL") -> str:
        """Return SQL for a column, or ``absent`` (an SQL literal: the column's default) where it is missing."""
        if not self.has(table, column):
            return absent
        name = quote(self.tables[table.lower()].columns[column.lower()].name)
        return f"{alias}.{name}" if alias else name

    @cached_property
    def messages_by_session(self) -> bool:
        """Whether an index over all messages leads from a session to its own (every release makes one)."""
        return self.has("messages", "session_id") and any(_BY_SESSION.search(sql) for sql in self.indexes.values())

    @cached_property
    def version(self) -> int:
        """The store's schema number, 0 where it has none that can be read."""
        return self.schema_version or 0


def read_shape(connection: apsw.Connection) -> Shape:
    """Read the shape of the store behind the connection.

    Raises apsw.Error where the schema itself cannot be read; a single table that cannot be described is named in
    ``unreadable`` and left out.
    """
    encoding = str(connection.pragma("encoding"))
    of_type: dict[str, dict[str, str]] = {"table": {}, "view": {}, "trigger": {}, "index": {}}
    unreadable: list[str] = []
    # As bytes: one name or comment that is no text would end the reading.
    for kind, raw_name, raw_sql in connection.execute(
        "SELECT CAST(type AS TEXT), CAST(name AS BLOB), CAST(coalesce(sql, '') AS BLOB)"
        " FROM sqlite_schema WHERE typeof(name) = 'text'"
    ):
        name = _text(raw_name, encoding)
        if name is not None:
            of_type.setdefault(str(kind), {})[name] = _text(raw_sql, encoding, errors="replace") or ""
        elif kind == "table":
            unreadable.append(_text(raw_name, encoding, errors="backslashreplace") or "")
    virtual = {n: s for n, s in of_type["table"].items() if re.match(r"\s*create\s+virtual\b", s, re.I)}
    shadows = {f"{name}{suffix}".lower() for name in virtual for suffix in _SHADOW_SUFFIXES}
    tables: dict[str, Table] = {}
    for name in of_type["table"]:
        if name in virtual or name.lower() in shadows or name.lower().startswith("sqlite_"):
            continue
        try:
            tables[name.lower()] = _read_table(connection, name)
        except (apsw.Error, UnicodeDecodeError):
            unreadable.append(name)
    return Shape(
        tables=tables,
        virtual_tables=virtual,
        views=of_type["view"],
        triggers=of_type["trigger"],
        indexes=of_type["index"],
        schema_version=_read_schema_version(connection, tables),
        encoding=encoding,
        unreadable=tuple(unreadable),
    )


def affinity_of(declared: str) -> str:
    """Return what SQLite converts the values of a column to (its rules for declared types, in their order)."""
    upper = declared.upper()
    if "INT" in upper:
        return "INTEGER"
    if any(part in upper for part in ("CHAR", "CLOB", "TEXT")):
        return "TEXT"
    if "BLOB" in upper or not upper:
        return "BLOB"
    if any(part in upper for part in ("REAL", "FLOA", "DOUB")):
        return "REAL"
    return "NUMERIC"


def foreign_collations(connection: apsw.Connection) -> list[str]:
    """Return the orders of text that a store asks for and SQLite has not: only a stranger's program knows them."""
    encoding = str(connection.pragma("encoding"))
    named: set[str] = set()
    for (raw,) in connection.execute(
        "SELECT CAST(sql AS BLOB) FROM sqlite_schema WHERE type IN ('table', 'index') AND sql LIKE '%COLLATE%'"
    ):
        sql = _text(raw, encoding, errors="replace") or ""
        named.update(name.lower() for name in _COLLATE.findall(_TEXTS.sub(" ", sql)))
    return sorted(named - _COLLATIONS)


def _text(raw: object, encoding: str, errors: str = "strict") -> str | None:
    """Decode text as the store holds it; None where it is no text."""
    assert isinstance(raw, bytes)
    try:
        return raw.decode(CODECS.get(encoding, "utf-8"), errors)
    except UnicodeDecodeError:
        return None


def _read_table(connection: apsw.Connection, name: str) -> Table:
    columns = {
        column.lower(): Column(column, declared or "", bool(not_null), key_place, hidden in (2, 3))
        for column, declared, not_null, key_place, hidden in connection.execute(
            'SELECT name, type, "notnull", pk, hidden FROM pragma_table_xinfo(?) WHERE hidden <> 1', (name,)
        )
    }
    without_rowid = connection.execute("SELECT wr FROM pragma_table_list(?)", (name,)).fetchone()
    return Table(name, columns, bool(without_rowid and without_rowid[0]))


def _read_schema_version(connection: apsw.Connection, tables: Mapping[str, Table]) -> int | None:
    table = tables.get("schema_version")
    if table is None or not table.has("version"):
        return None
    row = connection.execute("SELECT max(version) FROM schema_version WHERE typeof(version) = 'integer'").fetchone()
    return int(row[0]) if row and row[0] is not None else None
