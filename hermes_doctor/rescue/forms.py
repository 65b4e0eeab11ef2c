"""What the rows of a table can look like in the file, so that a page is told by what is in it.

SQLite converts a value to what its column is declared for where that loses nothing: a column of text never holds a
number, and one of numbers holds a text only where that is none. The rowid's own column is never in the record.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import apsw

from hermes_doctor.rescue.records import Layout
from hermes_doctor.store.cells import quote
from hermes_doctor.store.shape import affinity_of

_ROWIDS = ("rowid", "_rowid_", "oid")


class FormColumn(NamedTuple):
    """A column as it is in the file.

    ``affinity``: what SQLite converts to (TEXT, NUMERIC, INTEGER, REAL or BLOB). ``needed``: NULL is refused, or it is
    part of the key; ``has_default``: what a row without it gets is known. ``is_rowid``: it is the rowid under another
    name. ``generated``: it is stored, but nobody writes it.
    """

    name: str
    affinity: str
    needed: bool = False
    has_default: bool = False
    is_rowid: bool = False
    generated: bool = False


@dataclass(frozen=True)
class Form:
    """The columns of a table that are in the file, in its order.

    ``without_rowid``: the file keeps the table as an index, which only SQLite reads here.
    """

    table: str
    columns: tuple[FormColumn, ...]
    without_rowid: bool = False

    def takes(self, layout: Layout | None) -> bool:
        """Whether a record can be a row of the table."""
        if layout is None or not self._least <= len(layout.types) <= len(self.columns):
            return False
        return all(map(_can_be, self.columns, layout.types))

    def likeness(self, layout: Layout) -> float:
        """Return how much a record that can be a row looks like one, 0 to 1: it has all columns, each of its kind."""
        alike = sum(map(_is_usual, self.columns, layout.types))
        return alike / len(self.columns)

    @cached_property
    def rowid(self) -> str | None:
        """The name by which a rowid is set; None where there is none, or a column is it, or has its name."""
        if self.without_rowid or any(column.is_rowid for column in self.columns):
            return None
        names = {column.name.lower() for column in self.columns}
        return next((name for name in _ROWIDS if name not in names), None)

    @cached_property
    def rowid_name(self) -> str | None:
        """The name by which a rowid is asked for, as SQL; None where it has none."""
        own = next((quote(column.name) for column in self.columns if column.is_rowid), None)
        return own or self.rowid

    @cached_property
    def _least(self) -> int:
        # Columns that were added later are missing in older rows, and each of those has a default or may be NULL.
        needed = [place for place, column in enumerate(self.columns, 1) if column.needed and not column.has_default]
        return max(needed, default=1)


def read_form(connection: apsw.Connection, table: str) -> Form:
    """Read the form of a table that a connection knows. Raises apsw.Error where it knows none."""
    kinds = connection.execute(
        "SELECT wr FROM pragma_table_list(?) WHERE type = 'table' AND schema = 'main'", (table,)
    ).fetchall()
    if not kinds:
        raise apsw.SQLError("it is no table")
    without_rowid = bool(kinds[0][0])
    # A key that is the rowid has no index of its own; INTEGER PRIMARY KEY DESC, say, is none.
    indexed = connection.execute("SELECT 1 FROM pragma_index_list(?) WHERE origin = 'pk'", (table,)).fetchall()
    rows = list(
        connection.execute(
            'SELECT name, type, "notnull", dflt_value IS NOT NULL, pk, hidden FROM pragma_table_xinfo(?)', (table,)
        )
    )
    keys = [row for row in rows if row[4]]
    return Form(
        table,
        tuple(
            FormColumn(
                str(name),
                affinity_of(str(declared or "")),
                needed=bool(needed or key),
                has_default=bool(default),
                is_rowid=bool(key) and len(keys) == 1 and not indexed and str(declared).upper() == "INTEGER",
                generated=hidden == 3,
            )
            # A generated column that is not stored (hidden = 2) is not in the file.
            for name, declared, needed, default, key, hidden in rows
            if hidden != 2
        ),
        without_rowid,
    )


def _can_be(column: FormColumn, kind: int) -> bool:
    if column.is_rowid:
        return kind == 0
    if kind == 0:
        return not column.needed
    return not (column.affinity == "TEXT" and 1 <= kind <= 9)


def _is_usual(column: FormColumn, kind: int) -> bool:
    if kind == 0:
        return column.is_rowid or not column.needed
    if column.affinity == "TEXT":
        return kind >= 13 and kind % 2 == 1
    if column.affinity == "BLOB":
        return True
    return 1 <= kind <= 9
