"""The tables that releases make, as a rescue knows them, asked of the releases themselves.

``python -m tests.oracle.known_tables`` writes ``hermes_doctor/rescue/known.json`` anew: facts about columns in a form
of our own. Once a column is there, every later release has it, in the same order and as it was: so one list for each
table and the release in which a column came tell all of them. That this is so is proved while the file is made.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import apsw

from tests.oracle.home import Home
from tests.oracle.releases import RELEASES, Release, get
from tests.oracle.steps import call, close_store

DATA: Final = Path(__file__).parents[2] / "hermes_doctor" / "rescue" / "known.json"

#: A column's facts; those that say nothing are left out.
Column = dict[str, Any]
Tables = dict[str, list[Column]]

_TABLES = """
SELECT name, sql FROM sqlite_schema
 WHERE type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL %' AND name NOT LIKE 'sqlite_%' AND name NOT LIKE 'messages_fts%'
 ORDER BY name
"""


def made_by(*versions: Release | str) -> tuple[Tables, dict[str, bool]]:
    """What a store looks like that these releases opened, one after the other; and which tables count their rowids."""
    with tempfile.TemporaryDirectory() as folder:
        home = Home(Path(folder) / "home")
        for number, version in enumerate(versions):
            # Some steps of an upgrade are only taken where there is something to upgrade.
            session = f"session-{number}"
            home.run(
                version,
                [call("create_session", session, "cli"), call("append_message", session, "user", "."), close_store()],
            )
        return read_tables(home.store)


def read_tables(store: Path) -> tuple[Tables, dict[str, bool]]:
    """The facts about the tables of one store, as SQLite understands its schema."""
    connection = apsw.Connection(str(store), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        statements = {str(name): str(sql) for name, sql in connection.execute(_TABLES)}
        tables = {name: [_column(connection, name, *row) for row in _columns(connection, name)] for name in statements}
        return tables, {name: "AUTOINCREMENT" in sql.upper() for name, sql in statements.items()}
    finally:
        connection.close()


def known(made: dict[str, tuple[Tables, dict[str, bool]]]) -> dict[str, Any]:
    """What the data file holds, from what each release makes, oldest first; one that does not fit fails."""
    newest, counted = made[next(reversed(made))]
    return {
        "releases": {version: get(version).schema for version in made},
        "tables": {
            name: {
                "since": _since(version for version, (tables, _) in made.items() if name in tables),
                "counted": counted[name],
                "columns": [_dated(made, name, column) for column in columns],
            }
            for name, columns in newest.items()
        },
    }


def main() -> None:
    """Writes the data file, a column a line."""
    made = {release.version: made_by(release) for release in RELEASES}
    DATA.write_text(text_of(known(made)))


def text_of(facts: Mapping[str, Any]) -> str:
    """The data file's text, a column a line."""
    lines = ["{", f' "releases": {json.dumps(facts["releases"])},', ' "tables": {']
    tables = facts["tables"]
    for name, table in tables.items():
        head = {key: value for key, value in table.items() if key != "columns"}
        lines.append(f"  {json.dumps(name)}: {json.dumps(head)[:-1]}, " + '"columns": [')
        lines.append(",\n".join(f"   {json.dumps(column)}" for column in table["columns"]))
        lines.append("  ]}" + ("" if name == next(reversed(tables)) else ","))
    return "\n".join([*lines, " }", "}", ""])


def _columns(connection: apsw.Connection, table: str) -> list[Any]:
    sql = 'SELECT name, type, "notnull", dflt_value, pk FROM pragma_table_info(?)'
    return connection.execute(sql, (table,)).fetchall()


def _column(
    connection: apsw.Connection, table: str, name: str, declared: str, needed: int, default: str | None, key: int
) -> Column:
    sql = 'SELECT "table", "to", on_delete FROM pragma_foreign_key_list(?) WHERE "from" = ?'
    references = connection.execute(sql, (table, name)).fetchall()
    facts: dict[str, Any] = {"name": name, "type": declared}
    facts |= {"key": key} if key else {}
    facts |= {"needed": True} if needed else {}
    facts |= {"default": default} if default is not None else {}
    if references:
        target, column, deleted = references[0]
        facts["references"] = [target, column] + ([] if deleted == "NO ACTION" else [deleted])
    return facts


def _dated(made: dict[str, tuple[Tables, dict[str, bool]]], table: str, column: Column) -> Column:
    """The column with the release since which it is there, where that is not the table's first."""
    having = [version for version, (tables, _) in made.items() if column in tables.get(table, [])]
    first = _since(version for version, (tables, _) in made.items() if table in tables)
    newest = made[next(reversed(made))][0][table]
    for version, (tables, _) in made.items():
        order = [each for each in newest if each in tables.get(table, [])]
        assert order == tables.get(table, []), f"{version} has another order of columns, or others, in {table}"
    since = _since(having)
    assert having == [version for version in made if get(version).since(since)], f"{table} lost a column"
    return column if since == first else {**column, "since": since}


def _since(versions: Iterable[str]) -> str:
    return min(versions, key=lambda version: get(version).order)


if __name__ == "__main__":
    main()
