"""What the rows of a table can look like: as SQLite itself writes them, for every way in which a table is declared."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from hermes_doctor.rescue.forms import Form, read_form
from hermes_doctor.rescue.records import Layout
from hermes_doctor.store.shape import affinity_of
from tests.rescue.lab import make, pages_of, read


def form_of(*statements: str, table: str = "t") -> Form:
    connection = apsw.Connection(":memory:")
    for statement in statements:
        connection.execute(statement)
    form = read_form(connection, table)
    connection.close()
    return form


def layouts_of(path: Path, *statements: str) -> list[Layout | None]:
    make(path, *statements)
    with read(path) as pages:
        return [
            pages.layout(number, cell)
            for number in pages_of(path, "t", "leaf")
            for cell in (pages.leaf(number) or pytest.fail("no leaf")).cells
        ]


@pytest.mark.parametrize(
    ("declared", "is_rowid"),
    [
        ("a INTEGER PRIMARY KEY, b", True),
        ("a integer primary key AUTOINCREMENT, b", True),
        ("a INTEGER, b, PRIMARY KEY (a)", True),
        ("a INTEGER, b, PRIMARY KEY (a DESC)", True),
        ("a INTEGER PRIMARY KEY DESC, b", False),
        ("a INT PRIMARY KEY, b", False),
        ("a BIGINT PRIMARY KEY, b", False),
        ("a INTEGER, b, PRIMARY KEY (a, b)", False),
        ("a INTEGER UNIQUE NOT NULL, b", False),
    ],
)
def test_which_column_is_the_rowid(store: Path, declared: str, is_rowid: bool) -> None:
    form = form_of(f"CREATE TABLE t({declared})")
    assert [column.is_rowid for column in form.columns] == [is_rowid, False]
    [layout] = layouts_of(store, f"CREATE TABLE t({declared})", "INSERT INTO t VALUES (5, 6)")
    assert layout is not None
    assert layout.types == ((0, 1) if is_rowid else (1, 1))
    assert form.takes(layout)


def test_a_table_without_rowids_has_none() -> None:
    form = form_of("CREATE TABLE t(a INTEGER PRIMARY KEY, b) WITHOUT ROWID")
    assert form.without_rowid
    assert not any(column.is_rowid for column in form.columns)


def test_what_is_no_table_has_no_form() -> None:
    with pytest.raises(apsw.SQLError):
        form_of("CREATE TABLE other(a)")
    with pytest.raises(apsw.SQLError):
        form_of("CREATE VIEW t AS SELECT 1 AS a")


def test_of_generated_columns_those_are_in_the_file_that_are_stored(store: Path) -> None:
    made = "CREATE TABLE t(a INT, v AS (a * 2), s TEXT AS (a || 'x') STORED, b)"
    form = form_of(made)
    assert [(column.name, column.generated) for column in form.columns] == [("a", False), ("s", True), ("b", False)]
    [layout] = layouts_of(store, made, "INSERT INTO t(a, b) VALUES (5, 'b')")
    assert form.takes(layout)
    assert layout is not None
    assert len(layout.types) == 3


def test_rows_from_before_a_column_was_added(store: Path) -> None:
    statements = (
        "CREATE TABLE t(a TEXT NOT NULL)",
        "INSERT INTO t VALUES ('old')",
        "ALTER TABLE t ADD COLUMN b TEXT NOT NULL DEFAULT 'd'",
        "ALTER TABLE t ADD COLUMN c",
        "INSERT INTO t VALUES ('new', 'b', 5)",
    )
    form = form_of(*statements)
    old, new = layouts_of(store, *statements)
    assert form.takes(old)
    assert form.takes(new)
    assert old is not None
    assert new is not None
    assert form.likeness(old) < form.likeness(new) == 1
    assert not form.takes(Layout((), 1, 1))
    assert not form.takes(Layout((13, 13, 13, 13), 5, 5))


def test_what_cannot_be_a_row() -> None:
    form = form_of("CREATE TABLE t(id INTEGER PRIMARY KEY, a TEXT NOT NULL, n REAL, x BLOB)")
    assert form.takes(Layout((0, 13, 7, 12), 5, 13))
    assert form.takes(Layout((0, 13, 1, 1), 5, 7)), "whole numbers of a REAL column are kept as integers"
    assert form.takes(Layout((0, 12, 15, 0), 5, 6)), "a blob in a column of text, a text in one of numbers"
    assert not form.takes(Layout((1, 13, 7, 12), 5, 14)), "the rowid is never in the record"
    assert not form.takes(Layout((0, 0, 7, 12), 5, 13)), "NULL is refused"
    assert not form.takes(Layout((0, 1, 7, 12), 5, 14)), "a number in a column of text becomes one"
    assert not form.takes(None)


@pytest.mark.parametrize(
    ("declared", "affinity"),
    [
        ("INTEGER", "INTEGER"), ("int", "INTEGER"), ("POINT", "INTEGER"), ("CHARINT", "INTEGER"),
        ("VARCHAR(10)", "TEXT"), ("CLOB", "TEXT"), ("TEXT", "TEXT"), ("BLOB", "BLOB"), ("", "BLOB"),
        ("REAL", "REAL"), ("FLOAT", "REAL"), ("DOUBLE PRECISION", "REAL"), ("STRING", "NUMERIC"),
        ("BOOLEAN", "NUMERIC"), ("DECIMAL(5)", "NUMERIC"), ("TIMESTAMP", "NUMERIC"),
    ],
)  # fmt: skip
def test_affinities_are_sqlites(declared: str, affinity: str) -> None:
    assert affinity_of(declared) == affinity
    connection = apsw.Connection(":memory:")
    connection.execute(f"CREATE TABLE t(a {declared})")
    connection.execute("INSERT INTO t VALUES ('5'), (5), (5.5)")
    kept = [str(kind) for (kind,) in connection.execute("SELECT typeof(a) FROM t")]
    connection.close()
    expected = {
        "INTEGER": ["integer", "integer", "real"],
        "NUMERIC": ["integer", "integer", "real"],
        "REAL": ["real", "real", "real"],
        "TEXT": ["text", "text", "text"],
        "BLOB": ["text", "integer", "real"],
    }
    assert kept == expected[affinity]
