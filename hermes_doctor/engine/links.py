"""References between rows (foreign keys), and which of them point at no row.

A repair may take a dangling reference away, and its being taken back must be able to restore it; but it must never
make a reference dangle that did not.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import apsw

from hermes_doctor.engine.changes import Op, RowChange
from hermes_doctor.engine.journal import Reference
from hermes_doctor.store.cells import Cell, json_key, quote

#: The table and column that a reference names; a reference without a column means the parent's primary key.
_TARGET = """
SELECT link."table", coalesce(link."to", (SELECT name FROM pragma_table_info(link."table") WHERE pk = 1))
  FROM pragma_foreign_key_list(?) AS link
 WHERE link."from" = ?
"""


#: The tables and columns that refer to a table, and the column there that they name.
_POINTING = """
SELECT tables.name, min(link."from"),
       coalesce(min(link."to"), (SELECT name FROM pragma_table_info(link."table") WHERE pk = 1))
  FROM pragma_table_list AS tables, pragma_foreign_key_list(tables.name) AS link
 WHERE tables.schema = 'main' AND tables.type = 'table' AND link."table" = ? COLLATE NOCASE
 GROUP BY tables.name, link.id HAVING count(*) = 1
"""


def dangling_before(connection: apsw.Connection, changes: Sequence[RowChange]) -> set[Reference]:
    """Return the references of the changed rows that pointed at no row before the changes were made.

    Called when they have been made, in the same transaction: a row that is there now, or that they deleted, was there.
    References at rows that the changes made are among them, each with the key of the row that holds it, not its value.
    """
    deleted = {
        (change.table, json.dumps(json_key(value)))
        for change in changes
        if change.op is Op.DELETE
        for value in change.key.values()
    }
    made = (change for change in changes if change.op is Op.INSERT)
    links = {table: _links(connection, table) for table in {change.table for change in changes}}
    return {reference for change in made for reference in _pointing_at(connection, change)} | {
        (change.table, column, shown)
        for change in changes
        for column, value, parent in _references(links[change.table], change.before)
        if (parent, shown := json.dumps(json_key(value))) not in deleted
        and not _exists(connection, change.table, column, value)
    }


def newly_dangling(
    connection: apsw.Connection, table: str, row: Mapping[str, Cell], allowed: Collection[Reference]
) -> str | None:
    """Return the first column of a restored row whose reference points at no row and is not an allowed one."""
    for column, value, _parent in _references(_links(connection, table), row):
        if (table, column, json.dumps(json_key(value))) not in allowed and not _exists(
            connection, table, column, value
        ):
            return column
    return None


def left_dangling(connection: apsw.Connection, removed: RowChange, allowed: Collection[Reference]) -> str | None:
    """Return the first table and column that newly refer to a row that has been removed, and is no more an allowed one.

    ``allowed``: what `dangling_before` gave when the row was made.
    """
    for table, column, key in _pointing_at(connection, removed):
        if (table, column, key) not in allowed:
            return f"{table}.{column}"
    return None


def _pointing_at(connection: apsw.Connection, change: RowChange) -> Iterator[Reference]:
    """Give the references at a row, there or not, by the keys of the rows that hold them; single-column ones only."""
    for table, column, target in connection.execute(_POINTING, (change.table,)).fetchall():
        if change.after.get(str(target)) is None:
            continue
        keys = connection.execute("SELECT name FROM pragma_table_info(?) WHERE pk ORDER BY pk", (table,)).fetchall()
        listed = ", ".join(quote(str(name)) for (name,) in keys) or "rowid"
        sql = f"SELECT {listed} FROM {quote(str(table))} WHERE {quote(str(column))} = ?"
        for key in connection.execute(sql, (change.after[str(target)],)):
            yield str(table), str(column), json.dumps([json_key(part) for part in key])


def _links(connection: apsw.Connection, table: str) -> list[tuple[str, str]]:
    """Return the columns of a table that refer to another, and to which; single-column references only."""
    found = connection.execute(
        'SELECT "from", "table" FROM pragma_foreign_key_list(?) GROUP BY id HAVING count(*) = 1', (table,)
    )
    return [(str(column), str(parent)) for column, parent in found]


def _references(links: Iterable[tuple[str, str]], row: Mapping[str, Cell]) -> Iterator[tuple[str, Cell, str]]:
    """Give column, value and parent table of each reference that the row holds."""
    for column, parent in links:
        if row.get(column) is not None:
            yield column, row[column], parent


def _exists(connection: apsw.Connection, table: str, column: str, value: Cell) -> bool:
    """Whether the row that a reference names is there."""
    found = connection.execute(_TARGET, (table, column)).fetchone()
    if found is None or found[1] is None:
        return False
    sql = f"SELECT 1 FROM {quote(str(found[0]))} WHERE {quote(str(found[1]))} = ?"
    return connection.execute(sql, (value,)).fetchone() is not None
