"""What tests of the commands that change stores share: damage to order, and what a store holds."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import apsw

Rows = dict[str, list[tuple[object, ...]]]

DAY = 86400.0


def contents(store: Path) -> Rows:
    """Every row of every ordinary table with the types of its cells, and the schema: what must be as before."""
    connection = apsw.Connection(str(store), flags=apsw.SQLITE_OPEN_READONLY)
    with closing(connection):
        found: Rows = {
            "schema": sorted(connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema"), key=repr)
        }
        tables = connection.execute(
            "SELECT name FROM pragma_table_list WHERE schema = 'main' AND type = 'table' AND name NOT LIKE 'sqlite_%'"
        ).fetchall()
        for (table,) in tables:
            rows = connection.execute(f'SELECT * FROM "{table}"').fetchall()
            found[str(table)] = sorted((tuple((type(cell).__name__, cell) for cell in row) for row in rows), key=repr)
    assert found["sessions"], "a comparison of nothing proves nothing"
    return found


def many_zombies(store: Path, count: int) -> None:
    """Adds that many open cron rows, each with a message, of months ago."""
    connection = apsw.Connection(str(store))
    with closing(connection), connection:
        connection.execute(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)"
            " INSERT INTO sessions(id, source, started_at, message_count)"
            " SELECT 'zombie_' || i, 'cron', ? - i, 1 FROM n",
            (count, time.time() - 60 * DAY),
        )
        connection.execute(
            "INSERT INTO messages(session_id, role, content, timestamp)"
            " SELECT id, 'user', 'wake up', started_at FROM sessions WHERE id LIKE 'zombie_%'"
        )


def superseded_chat(store: Path) -> None:
    """Adds a chat of a platform whose key a newer session has taken over: it is ended only with --unsafe."""
    now = time.time()
    connection = apsw.Connection(str(store))
    with closing(connection), connection:
        for name, began in (("old-chat", now - 9 * DAY), ("new-chat", now - 8 * DAY)):
            connection.execute(
                "INSERT INTO sessions(id, source, started_at, session_key, message_count) VALUES (?, ?, ?, ?, 1)",
                (name, "telegram", began, "agent:main:telegram:dm:7"),
            )
            connection.execute(
                "INSERT INTO messages(session_id, role, content, timestamp) VALUES (?, 'user', 'hello', ?)",
                (name, began),
            )


@contextmanager
def journal_of(store: Path) -> Iterator[sqlite3.Connection]:
    """The journal beside a store, for looking into it."""
    with closing(sqlite3.connect(f"{(store.parent / 'doctor' / 'doctor.db').as_uri()}?mode=ro", uri=True)) as journal:
        yield journal


def value(store: Path, sql: str) -> object:
    """The first value that a question to a store gives."""
    connection = apsw.Connection(str(store), flags=apsw.SQLITE_OPEN_READONLY)
    with closing(connection):
        return connection.execute(sql).fetchone()[0]  # type: ignore[index]  # every question of a test has an answer
