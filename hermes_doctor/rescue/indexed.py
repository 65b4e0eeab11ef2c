"""Rowids that a table's indexes still name: what is found of them in loose pages was not deleted.

Each row has its place in each index of its table, and loses it when it is deleted. SQLite reads an index alone where
that has all that is asked for, whatever became of the table's own pages.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left

import apsw

from hermes_doctor.rescue.forms import Form
from hermes_doctor.rescue.trees import LostRowids
from hermes_doctor.store.cells import quote
from hermes_doctor.store.integrity import Stop, stopped_by


class Indexed:
    """The rowids in some ranges that an index names."""

    def __init__(self, numbers: array[int]) -> None:
        self._numbers = array("q", sorted(numbers))

    def __contains__(self, number: int) -> bool:
        place = bisect_left(self._numbers, number)
        return place < len(self._numbers) and self._numbers[place] == number


def indexed(connection: apsw.Connection | None, form: Form, wanted: LostRowids, stop: Stop) -> Indexed:
    """Read the indexes of a table for those rowids that are wanted, each as far as SQLite can.

    ``connection``: to the damaged file; without one nothing is named.
    """
    found: array[int] = array("q")
    key = form.rowid_name
    if connection is None or key is None:
        return Indexed(found)
    try:
        names = connection.execute("SELECT name FROM pragma_index_list(?) WHERE NOT partial", (form.table,)).fetchall()
    except (apsw.SQLError, apsw.CorruptError):
        return Indexed(found)
    for (name,) in names:
        try:
            with stopped_by(connection, stop):
                rows = connection.execute(f"SELECT {key} FROM {quote(form.table)} INDEXED BY {quote(str(name))}")
                found.extend(number for (number,) in rows if isinstance(number, int) and number in wanted)
        except (apsw.SQLError, apsw.CorruptError):
            # What it gave until there is right all the same.
            continue
    return Indexed(found)
