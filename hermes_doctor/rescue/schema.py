"""What a damaged store's schema says, read by hand: its tables with their roots, its indexes, triggers and views."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import apsw

from hermes_doctor.rescue.account import LostRange
from hermes_doctor.rescue.forms import Form, FormColumn, read_form
from hermes_doctor.rescue.known import SEARCH_TABLES
from hermes_doctor.rescue.pages import Cell, Pages, free_pages
from hermes_doctor.rescue.trees import LostRowids, TreeWalk
from hermes_doctor.store.trees import SCHEMA, SCHEMA_ROOT

#: The table of all the others (the file format's own).
SCHEMA_FORM = Form(
    SCHEMA,
    (
        FormColumn("type", "TEXT", needed=True),
        FormColumn("name", "TEXT", needed=True),
        FormColumn("tbl_name", "TEXT", needed=True),
        FormColumn("rootpage", "INTEGER"),
        FormColumn("sql", "TEXT"),
    ),
)
#: Where SQLite keeps the highest rowids that it gave (AUTOINCREMENT).
SEQUENCE_FORM = Form("sqlite_sequence", (FormColumn("name", "BLOB"), FormColumn("seq", "BLOB")))
_KINDS = ("table", "index", "view", "trigger")
#: As SQLite itself begins the statements that it keeps.
_STATEMENTS = {
    "table": r"create\s+(virtual\s+)?table\b",
    "index": r"create\s+(unique\s+)?index\b",
    "view": r"create\s+view\b",
    "trigger": r"create\s+trigger\b",
}
#: What search indexes are made by.
_MODULES = ("fts5", "fts4", "fts3")
_SHADOWS = ("_data", "_idx", "_content", "_docsize", "_config", "_segments", "_segdir", "_stat")


class Entry(NamedTuple):
    """One thing that the schema names. ``root``: the first page of its tree, 0 where it has none or it is not known."""

    kind: str
    name: str
    table: str
    root: int
    sql: str

    @property
    def is_virtual(self) -> bool:
        """Whether it is a table without rows of its own, such as a search index."""
        return self.kind == "table" and re.match(r"\s*create\s+virtual\b", self.sql, re.I) is not None


def read_entries(pages: Pages, lost: list[LostRange]) -> list[Entry]:
    """Read the schema, each name once: what its tree leads to, and where parts of it are lost, what lies about.

    ``lost`` gets what the tree does not lead to.
    """
    claimed = bytearray(pages.count + 2)
    walk = TreeWalk(pages, SCHEMA_ROOT, SCHEMA_FORM, claimed)
    entries: dict[tuple[str, str], Entry] = {}
    for found in walk:
        _note(entries, _entries(pages, found.page, found.cells))
    lost += walk.lost
    gone = LostRowids(walk.lost)
    if gone:
        free, _ = free_pages(pages)
        # What was given back counts last: it may be of a table that is no more.
        for wanted in (0, 1):
            for number in range(2, pages.count + 1):
                leaf = None if claimed[number] or free[number] != wanted else pages.leaf(number)
                if leaf is not None:
                    _note(entries, _entries(pages, number, [cell for cell in leaf.cells if cell.number in gone]))
    return list(entries.values())


def forms_of(
    entries: Iterable[Entry], failed: Callable[[Entry, str], object] | None = None
) -> Iterator[tuple[Entry, Form]]:
    """Give the form of each ordinary table, as SQLite understands its statement.

    What it does not is left out: ``failed`` hears of each, and why.
    """
    connection = apsw.Connection(":memory:")
    try:
        for entry in entries:
            if entry.kind == "table" and not entry.is_virtual and entry.name != "sqlite_sequence":
                try:
                    create(connection, entry)
                    form = read_form(connection, entry.name)
                except (apsw.Error, UnicodeDecodeError) as error:
                    if failed is not None:
                        failed(entry, " ".join(str(error).split()))
                else:
                    yield entry, form
    finally:
        connection.close()


def create(connection: apsw.Connection, entry: Entry) -> None:
    """Run the CREATE statement of an entry, and nothing else that may stand in its place.

    Raises apsw.Error where it is none for such a thing, or where SQLite does not understand it.
    """
    if "\0" in entry.sql or re.match(_STATEMENTS[entry.kind], entry.sql, re.I) is None:
        raise apsw.SQLError(f"no statement that makes a {entry.kind}")
    seen: list[str] = []

    def alone(_cursor: apsw.Cursor, statement: str, _bindings: apsw.Bindings | None) -> bool:
        seen.append(statement)
        return len(seen) == 1

    def creating_only(code: int, _first: str | None, module: str | None, *_others: str | None) -> int:
        # Search indexes read their own settings; a table that is made of what a SELECT gives runs that.
        refused = code in _REFUSED or (code == apsw.SQLITE_SELECT and not entry.is_virtual)
        unknown = code == apsw.SQLITE_CREATE_VTABLE and (module or "").lower() not in _MODULES
        return apsw.SQLITE_DENY if refused or unknown else apsw.SQLITE_OK

    connection.authorizer, connection.exec_trace = creating_only, alone
    try:
        connection.execute(entry.sql).fetchall()
    except apsw.ExecTraceAbort:
        raise apsw.SQLError("more than one statement") from None
    finally:
        connection.authorizer = connection.exec_trace = None


def shadows(entries: Iterable[Entry]) -> set[str]:
    """Return the names of the tables in which search indexes keep what they hold, in lower case."""
    names = [*SEARCH_TABLES, *(entry.name for entry in entries if entry.is_virtual)]
    return {f"{name}{suffix}".lower() for name in names for suffix in _SHADOWS}


#: What a CREATE statement may lead to, a search index's own tables included; all else is refused.
_REFUSED = frozenset(
    {
        apsw.SQLITE_ATTACH,
        apsw.SQLITE_DETACH,
        apsw.SQLITE_ALTER_TABLE,
        apsw.SQLITE_DROP_TABLE,
        apsw.SQLITE_DROP_INDEX,
        apsw.SQLITE_DROP_TRIGGER,
        apsw.SQLITE_DROP_VIEW,
        apsw.SQLITE_DROP_VTABLE,
        apsw.SQLITE_CREATE_TEMP_TABLE,
        apsw.SQLITE_CREATE_TEMP_TRIGGER,
        apsw.SQLITE_CREATE_TEMP_VIEW,
        apsw.SQLITE_CREATE_TEMP_INDEX,
    }
)


def _note(entries: dict[tuple[str, str], Entry], found: Iterable[Entry]) -> None:
    for entry in found:
        entries.setdefault((entry.kind, entry.name.lower()), entry)


def _entries(pages: Pages, number: int, cells: Iterable[Cell]) -> Iterator[Entry]:
    for cell in cells:
        if not SCHEMA_FORM.takes(pages.layout(number, cell)):
            continue
        record = pages.record(number, cell)
        if record is None or record.is_cut or len(record.values) != len(SCHEMA_FORM.columns):
            continue
        kind, name, table, root, sql = record.values
        if not isinstance(name, str) or not isinstance(table, str) or kind not in _KINDS:
            continue
        # Indexes that a key brings with it have no statement of their own; a table of which it cannot be read is told.
        if not isinstance(sql, str):
            sql = ""
        if sql or kind == "table":
            yield Entry(str(kind), name, table, root if isinstance(root, int) and root > 1 else 0, sql)
