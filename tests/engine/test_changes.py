"""A changeset, row by row and by column name, exact to the type."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import apsw
import pytest

from hermes_doctor.engine.changes import Op, RowChange, UnreadableChangeError, changes_of, column_order, holds, read_row
from hermes_doctor.store.cells import Cell
from hermes_doctor.store.shape import read_shape


@contextmanager
def store(schema: str) -> Iterator[apsw.Connection]:
    connection = apsw.Connection(":memory:")
    for statement in schema.split(";"):
        connection.execute(statement)
    yield connection
    connection.close()


def recorded(connection: apsw.Connection, *statements: str) -> list[RowChange]:
    """What a changeset of these statements says."""
    shape = read_shape(connection)
    tables = [table.name for table in shape.tables.values() if table.primary_key]
    session = apsw.Session(connection, "main")
    for table in tables:
        session.attach(table)
    for statement in statements:
        connection.execute(statement)
    found = list(changes_of(session.changeset(), column_order(shape, tables)))
    session.close()
    return found


ROWS = (
    "CREATE TABLE t (a TEXT, id INTEGER PRIMARY KEY, b, c);INSERT INTO t VALUES ('x', 1, 1.0, NULL), ('y', 2, x'00', 7)"
)


def test_an_update_names_what_changed_and_nothing_else() -> None:
    with store(ROWS) as connection:
        (change,) = recorded(connection, "UPDATE t SET b = 1, c = 'é' WHERE id = 1")
    assert change == RowChange("t", Op.UPDATE, {"id": 1}, {"b": 1.0, "c": None}, {"b": 1, "c": "é"})
    assert isinstance(change.before["b"], float)
    assert isinstance(change.after["b"], int)


def test_an_insert_and_a_delete_hold_the_whole_row() -> None:
    with store(ROWS) as connection:
        changes = recorded(connection, "DELETE FROM t WHERE id = 2", "INSERT INTO t VALUES (NULL, 3, 'z', 2)")
    by_op = {change.op: change for change in changes}
    assert by_op[Op.DELETE] == RowChange("t", Op.DELETE, {"id": 2}, {"a": "y", "id": 2, "b": b"\0", "c": 7}, {})
    assert by_op[Op.INSERT] == RowChange("t", Op.INSERT, {"id": 3}, {}, {"a": None, "id": 3, "b": "z", "c": 2})


def test_a_key_of_several_columns_and_a_generated_column() -> None:
    schema = (
        "CREATE TABLE u (n INT, g INT GENERATED ALWAYS AS (n + 1), q TEXT, p TEXT, PRIMARY KEY (p, q));"
        "INSERT INTO u (n, q, p) VALUES (1, 'q', 'p')"
    )
    with store(schema) as connection:
        (change,) = recorded(connection, "UPDATE u SET n = 5")
    assert (dict(change.key), change.before, change.after) == ({"p": "p", "q": "q"}, {"n": 1}, {"n": 5})


def test_what_ends_as_it_began_is_no_change() -> None:
    with store(ROWS) as connection:
        assert (
            recorded(connection, "UPDATE t SET c = 9", "UPDATE t SET c = NULL WHERE id = 1", "UPDATE t SET c = 7") != []
        )
    with store(ROWS) as connection:
        assert recorded(connection, "UPDATE t SET a = 'z' WHERE id = 1", "UPDATE t SET a = 'x' WHERE id = 1") == []


def test_text_that_is_no_text_is_said_to_be_unreadable() -> None:
    with store(ROWS) as connection, pytest.raises(UnreadableChangeError):
        recorded(connection, "UPDATE t SET a = CAST(x'ff' AS TEXT) WHERE id = 1")
    schema = ROWS + ", (CAST(x'fe' AS TEXT), 3, 1, 1)"
    with store(schema) as connection, pytest.raises(UnreadableChangeError):
        recorded(connection, "DELETE FROM t WHERE id = 3")


@pytest.mark.parametrize(
    ("cell", "other"), [(1, 1.0), (1, "1"), ("a", b"a"), (None, ""), (0.0, 0), ("é", "e"), (b"", None), (1, 2)]
)
def test_a_row_holds_an_image_to_the_type(cell: Cell, other: Cell) -> None:
    with store("CREATE TABLE t (id INTEGER PRIMARY KEY, v)") as connection:
        connection.execute("INSERT INTO t VALUES (1, ?)", (cell,))
        row = read_row(connection, "t", {"id": 1}, ["v", "id"])
        assert holds(row, {"v": cell, "id": 1})
        assert not holds(row, {"v": other})
        assert read_row(connection, "t", {"id": 2}, ["v"]) is None
        assert not holds(None, {})
