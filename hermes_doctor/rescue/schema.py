"""What a damaged store's schema says, read by hand: its tables with their roots, its indexes, triggers and views."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import apsw

from hermes_doctor.rescue.account import LostRange
from hermes_doctor.rescue.forms import Form, FormColumn, read_form
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
_KINDS = ("table", "index", "view", "trigger")
_SHADOWS = ("_data", "_idx", "_content", "_docsize", "_config")


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


def forms_of(entries: Iterable[Entry]) -> Iterator[tuple[Entry, Form]]:
    """Give the form of each ordinary table, as SQLite understands its statement; what it does not is left out."""
    connection = apsw.Connection(":memory:")
    try:
        for entry in entries:
            if entry.kind == "table" and not entry.is_virtual and entry.name != "sqlite_sequence":
                try:
                    create(connection, entry.sql)
                    yield entry, read_form(connection, entry.name)
                except (apsw.Error, UnicodeDecodeError):
                    continue
    finally:
        connection.close()


def create(connection: apsw.Connection, sql: str) -> None:
    """Run a CREATE statement of a store's, and nothing else that may stand in its place.

    Raises apsw.Error where it is none, or where SQLite does not understand it.
    """
    if re.match(r"\s*create\b", sql, re.I) is None:
        raise apsw.SQLError("no CREATE statement")
    seen: list[str] = []

    def alone(_cursor: apsw.Cursor, statement: str, _bindings: apsw.Bindings | None) -> bool:
        seen.append(statement)
        return len(seen) == 1

    connection.authorizer, connection.exec_trace = _creating_only, alone
    try:
        connection.execute(sql).fetchall()
    except apsw.ExecTraceAbort:
        raise apsw.SQLError("more than one statement") from None
    finally:
        connection.authorizer = connection.exec_trace = None


def shadows(entries: Iterable[Entry]) -> set[str]:
    """Return the names of the tables in which search indexes keep what they hold, in lower case."""
    names = [entry.name for entry in entries if entry.is_virtual]
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


def _creating_only(code: int, first: str | None, second: str | None, _third: str | None, _fourth: str | None) -> int:
    if code == apsw.SQLITE_CREATE_VTABLE and (second or "").lower() not in ("fts5", "fts4", "fts3"):
        return apsw.SQLITE_DENY
    return apsw.SQLITE_DENY if code in _REFUSED else apsw.SQLITE_OK


def _note(entries: dict[tuple[str, str], Entry], found: Iterable[Entry]) -> None:
    for entry in found:
        entries.setdefault((entry.kind, entry.name.lower()), entry)


def _entries(pages: Pages, number: int, cells: Iterable[Cell]) -> Iterator[Entry]:
    for cell in cells:
        if not SCHEMA_FORM.takes(pages.layout(number, cell)):
            continue
        record = pages.record(number, cell)
        if record is None or record.is_cut:
            continue
        kind, name, table, root, sql = record.values
        if not isinstance(name, str) or not isinstance(table, str) or kind not in _KINDS:
            continue
        # Indexes that a key brings with it have no statement of their own.
        if isinstance(sql, str) and sql:
            yield Entry(str(kind), name, table, root if isinstance(root, int) and root > 1 else 0, sql)
