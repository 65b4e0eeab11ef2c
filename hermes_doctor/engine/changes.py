"""What a changeset of SQLite's session extension says, row by row and by column name."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import apsw

from hermes_doctor.store.cells import Cell, decoded, quote
from hermes_doctor.store.shape import Shape

#: The names of a table's columns, in the order in which they stood when the changeset was taken.
ColumnOrder = Mapping[str, Sequence[str]]


class Op(enum.StrEnum):
    """What happened to a row."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"


@dataclass(frozen=True)
class RowChange:
    """One row's change: ``before`` and ``after`` hold the columns that changed (all, of an insert or a delete)."""

    table: str
    op: Op
    key: Mapping[str, Cell]
    before: Mapping[str, Cell]
    after: Mapping[str, Cell]


class UnreadableChangeError(Exception):
    """A changed row holds text that Python cannot read, so that its change could not be taken back exactly."""


def column_order(shape: Shape, tables: Sequence[str]) -> dict[str, list[str]]:
    """Return the ordered column names of these tables, to be kept beside a changeset; generated ones are in none."""
    return {
        table: [column.name for column in shape.tables[table.lower()].columns.values() if not column.generated]
        for table in sorted(tables)
    }


def changes_of(changeset: bytes, order: ColumnOrder) -> Iterator[RowChange]:
    """Give the changes of a changeset.

    Raises UnreadableChangeError for text that is not valid, KeyError for a table whose columns are not known.
    """
    try:
        for change in apsw.Changeset.iter(changeset):
            names = order[change.name]
            old = _named(names, change.old)
            new = _named(names, change.new)
            key_names = [names[place] for place in sorted(change.pk_columns)]
            known = old or new
            key = {name: known[name] for name in key_names}
            if change.op == "UPDATE":
                changed = [name for name in new if name not in key]
                yield RowChange(
                    change.name,
                    Op.UPDATE,
                    key,
                    {name: old[name] for name in changed},
                    {name: new[name] for name in changed},
                )
            elif change.op == "INSERT":
                yield RowChange(change.name, Op.INSERT, key, {}, new)
            else:
                yield RowChange(change.name, Op.DELETE, key, old, {})
    except UnicodeDecodeError as error:
        raise UnreadableChangeError(f"text that is no UTF-8 ({error.reason})") from error


def read_row(
    connection: apsw.Connection, table: str, key: Mapping[str, Cell], columns: Sequence[str]
) -> dict[str, Cell] | None:
    """Return these columns of the row with that key, None where there is no such row."""
    listed = ", ".join(quote(name) for name in columns)
    found = " AND ".join(f"{quote(name)} IS ?" for name in key)
    where = f"FROM {quote(table)} WHERE {found}"
    try:
        row = connection.execute(f"SELECT {listed} {where}", tuple(key.values())).fetchone()
    except UnicodeDecodeError:
        row = tuple(_read_cell(connection, name, where, tuple(key.values())) for name in columns)
    return None if row is None else dict(zip(columns, row, strict=True))


def _read_cell(connection: apsw.Connection, column: str, where: str, values: tuple[Cell, ...]) -> Cell:
    """Return one cell of a row, of which some hold text that is none."""
    name = quote(column)
    (kind, raw, cell), *_ = connection.execute(
        f"SELECT typeof({name}), CAST({name} AS BLOB), iif(typeof({name}) = 'text', NULL, {name}) {where}", values
    )
    return decoded(raw, str(connection.pragma("encoding"))) if kind == "text" and isinstance(raw, bytes) else cell


def same(left: Cell, right: Cell) -> bool:
    """Whether two cells are equal in type and value: 1 is not 1.0."""
    return type(left) is type(right) and left == right


def holds(row: Mapping[str, Cell] | None, image: Mapping[str, Cell]) -> bool:
    """Whether the row is there and holds the image in all of its columns."""
    return row is not None and all(same(row[name], value) for name, value in image.items())


def _named(names: Sequence[str], values: Sequence[object] | None) -> dict[str, Cell]:
    """Name a change's values, leaving out what it does not carry."""
    if values is None:
        return {}
    return {
        name: value  # type: ignore[misc]  # what a changeset carries are cells
        for name, value in zip(names, values, strict=True)
        if value is not apsw.no_change
    }
