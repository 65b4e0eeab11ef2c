"""What a schema says is read, and nothing of it is run but what makes tables, indexes, views and triggers."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from hermes_doctor.rescue.schema import Entry, create, forms_of, read_entries, shadows
from tests.rescue.lab import account, ask, hermes, make, pages_of, read, rescue, rows_of, run, zero


def saying(name: str, sql: str) -> str:
    """Has the schema say something else of a thing."""
    return f"UPDATE sqlite_schema SET sql = '{sql.replace(chr(39), chr(39) * 2)}' WHERE name = '{name}'"


@pytest.mark.parametrize(
    "sql",
    [
        "ATTACH '{evil}' AS evil",
        "CREATE TABLE t(a, b); ATTACH '{evil}' AS evil",
        "CREATE TABLE t(a, b); INSERT INTO sessions VALUES ('evil', 'cli', 1)",
        "INSERT INTO sessions VALUES ('evil', 'cli', 1)",
        "PRAGMA user_version = 666",
        "VACUUM INTO '{evil}'",
        "DROP TABLE sessions",
        "CREATE TABLE other(a, b)",
        "CREATE TEMP TABLE t(a, b)",
        "CREATE TABLE temp.t(a, b)",
        "CREATE TABLE t AS SELECT 1 AS a, 2 AS b",
        "CREATE TABLE t AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i FROM n) SELECT i FROM n",
        "CREATE VIEW t AS SELECT 1 AS a, 2 AS b",
        "CREATE TRIGGER t AFTER INSERT ON sessions BEGIN DELETE FROM sessions; END",
        "CREATE VIRTUAL TABLE t USING nothing_known(a)",
        "CREATE VIRTUAL TABLE t USING csv(filename='{evil}')",
        "CREATE TABLE t(a TEXT COLLATE unknown, b)",
        "CREATE TABLE t(",
        "nonsense",
        "",
    ],
)
def test_what_stands_for_a_tables_statement_is_not_run(store: Path, new: Path, tmp_path: Path, sql: str) -> None:
    evil = tmp_path / "evil.db"
    hermes(store, "CREATE TABLE t(a, b)", "INSERT INTO t VALUES (1, 2)", "PRAGMA user_version = 5")
    before = {table: rows_of(store, table) for table in ("messages", "sessions")}
    run(store, saying("t", sql.format(evil=evil)))
    result = rescue(store, new)
    assert not evil.exists()
    assert {table: rows_of(new, table) for table in before} == before
    assert ask(new, "PRAGMA user_version") == [(5,)]
    assert ask(new, "SELECT count(*) FROM sqlite_schema WHERE type = 'trigger'") == [(0,)]
    # It is said of the table that it could not be saved.
    assert result.exit_code == 1
    named = result.table("t")
    assert (named is not None and named.failed) or any(note.startswith("t could not be made") for note in result.notes)


@pytest.mark.parametrize(
    ("kind", "sql"),
    [
        ("index", "CREATE TRIGGER x AFTER DELETE ON state_meta BEGIN DELETE FROM messages; END"),
        ("index", "CREATE TABLE x(a)"),
        ("view", "CREATE TABLE x AS SELECT 1"),
        ("trigger", "CREATE TABLE x(a)"),
        ("trigger", "CREATE TRIGGER x AFTER INSERT ON sessions BEGIN SELECT 1; END; DELETE FROM sessions"),
        ("table", "CREATE UNIQUE INDEX x ON sessions(source)"),
        ("view", "CREATE TEMP VIEW x AS SELECT 1"),
    ],
)
def test_each_thing_is_made_by_its_own_statement_only(kind: str, sql: str) -> None:
    connection = apsw.Connection(":memory:")
    connection.execute("CREATE TABLE state_meta(key); CREATE TABLE messages(a); CREATE TABLE sessions(id, source)")
    with pytest.raises(apsw.Error):
        create(connection, Entry(kind, "x", "x", 0, sql))
    assert connection.authorizer is None
    assert connection.exec_trace is None
    left = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema")}
    assert left - {"x"} == {"state_meta", "messages", "sessions"}
    connection.close()


def test_what_may_be_made() -> None:
    connection = apsw.Connection(":memory:")
    for kind, sql in [
        ("table", "CREATE TABLE t(a INTEGER PRIMARY KEY AUTOINCREMENT, b CHECK (length(b) > 1) DEFAULT 1, UNIQUE(b))"),
        ("table", "create table \"a b\"(x)"),
        ("index", "CREATE INDEX i ON t(lower(b)) WHERE b > 'c'"),
        ("index", "CREATE UNIQUE INDEX u ON t(a, b)"),
        ("view", "CREATE VIEW v AS SELECT * FROM t JOIN nowhere"),
        ("trigger", "CREATE TRIGGER g AFTER INSERT ON t BEGIN INSERT INTO nowhere SELECT * FROM v; DELETE FROM t; END"),
        ("table", "CREATE VIRTUAL TABLE f USING fts5(x, tokenize='trigram')"),
    ]:  # fmt: skip
        create(connection, Entry(kind, "x", "x", 0, sql))
    connection.close()


def test_triggers_do_not_run_while_rows_are_put_in(store: Path, new: Path) -> None:
    hermes(
        store,
        "CREATE TABLE state_meta(key TEXT PRIMARY KEY, value)",
        "INSERT INTO state_meta VALUES ('fts_rebuild_progress', 5), ('mine', 6)",
        "CREATE TABLE seen(what)",
        *(
            f"CREATE TRIGGER {table}_{what} AFTER {what} ON {table} BEGIN INSERT INTO seen VALUES ('{what}'); END"
            for table in ("messages", "sessions", "state_meta")
            for what in ("INSERT", "DELETE", "UPDATE")
        ),
        messages=0,
    )
    run(store, "INSERT INTO messages(session_id, role, timestamp) VALUES ('s', 'user', 1)", "DELETE FROM seen")
    result = rescue(store, new)
    assert (result.outcome, result.notes) == ("rescued", [])
    assert ask(new, "SELECT * FROM seen") == []
    assert len(ask(new, "SELECT 1 FROM sqlite_schema WHERE type = 'trigger'")) == 9


def test_names_of_every_kind(store: Path, new: Path) -> None:
    name = "a\"b'c\n[`日 ;--"
    quoted = '"' + name.replace('"', '""') + '"'
    hermes(
        store,
        f"CREATE TABLE {quoted} ({quoted} TEXT, [sel ect] INT DEFAULT 5)",
        f"INSERT INTO {quoted} VALUES ('x', 1)",
        f'CREATE INDEX {quoted[:-1]}i" ON {quoted}({quoted})',
        'CREATE TABLE "123"(a)',
        'INSERT INTO "123" VALUES (1)',
        messages=300,
    )
    before = rows_of(store, name)
    zero(store, pages_of(store, "messages", "leaf")[0])
    result = rescue(store, new)
    assert rows_of(new, name) == before
    assert len(rows_of(new, "123")) == 1
    assert account(result, name).is_whole


def test_search_tables_of_strangers(store: Path, new: Path) -> None:
    hermes(
        store,
        "CREATE VIRTUAL TABLE mine USING fts5(title, body)",
        "INSERT INTO mine VALUES ('hello', 'world'), ('good', 'morning')",
        "CREATE VIRTUAL TABLE places USING rtree(id, low, high)",
        "INSERT INTO places VALUES (1, 2, 3)",
    )
    result = rescue(store, new)
    assert rows_of(new, "messages") == rows_of(store, "messages")
    assert ask(new, "SELECT rowid, title, body FROM mine WHERE mine MATCH 'world OR good' ORDER BY 1") == [
        (1, "hello", "world"),
        (2, "good", "morning"),
    ]
    # What cannot be made is said, and its rows are there in the tables that kept them.
    assert any(note.startswith("places could not be made again") for note in result.notes)
    assert ask(new, "SELECT count(*) FROM places_node") == [(1,)]
    assert result.exit_code == 1


def test_search_tables_of_strangers_in_a_store_that_sqlite_cannot_open(store: Path, new: Path) -> None:
    hermes(
        store, "CREATE VIRTUAL TABLE mine USING fts5(title)", "INSERT INTO mine VALUES ('hello')", "CREATE TABLE t(a)"
    )
    run(store, saying("t", "nonsense"))
    result = rescue(store, new)
    assert any("mine" in note for note in result.notes)
    assert result.exit_code == 1


def test_entries_of_a_sound_schema(store: Path) -> None:
    make(
        store,
        *(f"CREATE TABLE t{n}(a UNIQUE, b CHECK (b <> '{'x' * 90}'))" for n in range(60)),
        "CREATE VIEW v AS SELECT 1",
        "CREATE VIRTUAL TABLE f USING fts5(x)",
        page_size=1024,
    )
    lost: list[object] = []
    with read(store) as pages:
        entries = read_entries(pages, lost)  # type: ignore[arg-type]  # nothing is put in
    assert lost == []
    told = ask(store, "SELECT type, name, tbl_name, rootpage, sql FROM sqlite_schema WHERE sql IS NOT NULL")
    assert [tuple(entry) for entry in entries] == told
    assert {"f_data", "f_content"} <= shadows(entries)
    forms = {form.table for _, form in forms_of(entries)}
    assert forms == {f"t{n}" for n in range(60)} | {"f_data", "f_idx", "f_content", "f_docsize", "f_config"}


def test_a_schema_that_is_listed_twice(store: Path, new: Path) -> None:
    hermes(store)
    before = rows_of(store, "messages")
    run(
        store,
        "INSERT INTO sqlite_schema SELECT type, upper(name), tbl_name, rootpage, sql FROM sqlite_schema",
    )
    result = rescue(store, new)
    assert rows_of(new, "messages") == before
    assert account(result, "messages").is_whole
