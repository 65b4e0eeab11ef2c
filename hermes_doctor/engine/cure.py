"""What a cure is: a fix of one check's findings, the phase it belongs to, and what its statements may do."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import apsw

from hermes_doctor.engine.file_changes import FileChange
from hermes_doctor.engine.model import Finding
from hermes_doctor.store.cells import BadText, Cell, Key, quote
from hermes_doctor.store.view import StoreView


class Phase(enum.IntEnum):
    """When a fix runs: what restores comes first, what takes comes last, each on what the ones before it left.

    The search index comes before all: the triggers that other fixes fire are to meet a sound one.
    """

    INDEX = 1
    RESTORE = 2
    HIDE = 3
    LOCKS = 4
    LINEAGE = 5
    COUNT = 6
    END = 7
    TAKE = 8


class RowMovedError(Exception):
    """A statement did not find the row as its WHERE expects it: somebody changed it, so it is left as it is."""


class FixRefusedError(Exception):
    """A fix that will not mend this row, and why: one plain sentence."""


@dataclass
class Mending:
    """One row's repair inside the engine's transaction: the view to look through, and the statements' way in.

    The engine has just found the row faulty again in this transaction; it records what is changed, and takes all
    of it back when a statement raises.
    """

    view: StoreView
    connection: apsw.Connection

    def run(self, sql: str, values: Mapping[str, Cell], *, rows: int = 1) -> None:
        """Run one UPDATE, INSERT or DELETE that must change exactly ``rows`` rows of its table.

        Raises RowMovedError where it changes another number: its WHERE names what it expects to find.
        """
        self.connection.execute(_or_abort(sql), dict(values))
        changed = self.connection.changes()
        if changed != rows:
            raise RowMovedError(f"expected to change {rows} row(s), found {changed}")

    @staticmethod
    def single(key: Key) -> Cell:
        """Return a key of one column; raises FixRefusedError for a composite one, or none."""
        if key is None or isinstance(key, tuple):
            raise FixRefusedError("the row has no single key")
        return key

    def primary_key(self, table: str) -> tuple[str, ...]:
        """Return the columns of a table's primary key.

        Raises FixRefusedError where it has none: no release makes such a table, and nothing in it could be put back.
        """
        columns = self.view.shape.tables[table.lower()].primary_key
        if not columns:
            raise FixRefusedError(f"{table} has no primary key here, so that its rows cannot be told apart")
        return columns

    def set(self, table: str, key: Key, *, to: Mapping[str, Cell], expects: Mapping[str, Cell]) -> None:
        """Set columns of the row with that (single-column) primary key, if the expected columns still hold it.

        Raises RowMovedError where the row is gone or holds something else.
        """
        expected: dict[str, Cell] = {self.primary_key(table)[0]: self.single(key), **expects}
        name = self.view.shape.tables[table.lower()].name
        self.connection.execute(
            _update_sql(name, tuple(map(_marked, to.items())), tuple(map(_marked, expected.items()))),
            (*to.values(), *expected.values()),
        )
        if self.connection.changes() != 1:
            raise RowMovedError(f"{table} {key!r} is not what it was")


def _marked(cell: tuple[str, Cell]) -> tuple[str, str]:
    """Return a column's name, and how its value is bound."""
    name, value = cell
    return name, "CAST(? AS TEXT)" if isinstance(value, BadText) else "?"


@lru_cache(maxsize=64)
def _update_sql(table: str, to: tuple[tuple[str, str], ...], expects: tuple[tuple[str, str], ...]) -> str:
    assigned = ", ".join(f"{quote(name)} = {mark}" for name, mark in to)
    found = " AND ".join(f"{quote(name)} IS {mark}" for name, mark in expects)
    return f"UPDATE OR ABORT {quote(table)} SET {assigned} WHERE {found}"


def never_live(_finding: Finding) -> bool:
    """Stand for the ``live`` of a fix that is carried out only while nobody has the store open."""
    return False


def always_live(_finding: Finding) -> bool:
    """Stand for the ``live`` of a fix that is as safe beside a living hermes."""
    return True


def _or_abort(sql: str) -> str:
    """Let an UPDATE fail where a row stands in its way, whatever the table says: it may say to delete that row."""
    return sql.replace("UPDATE ", "UPDATE OR ABORT ", 1) if sql.startswith("UPDATE ") else sql


def mends_no_row(_mending: Mending, _finding: Finding) -> None:
    """Stand for the ``mend`` of a fix that changes files. Raises FixRefusedError."""
    raise FixRefusedError("this is mended in the folder, not in the store")


@dataclass(frozen=True)
class Fix:
    """The cure of one check's findings.

    ``mend`` gets the finding as found anew in the transaction and changes just that row and what hangs on it.
    ``uses_clock``: it stamps the present time or judges by age, so it is refused where the clock is off.
    ``reindexes``: it moves messages in or out of the search index itself, so that the connection has to cut texts as
    hermes's does. ``derived``: all that it mends is derived from the rows, which it leaves alone, so that there is
    nothing to take back. ``files``: for findings about files, the change that mends one, carried out by the engine; no
    ``mend`` is called then. ``live``: whether this finding may be mended beside a living hermes (--live), in a session
    that nobody is using: only where no running hermes writes the same cells again from what it has in memory, or fails
    over what they hold now. Not known means no. ``page``: the module's docstring, shown beside the check's own page.
    """

    check: str
    phase: Phase
    uses_clock: bool
    page: str
    mend: Callable[[Mending, Finding], None] = mends_no_row
    reindexes: bool = False
    derived: bool = False
    files: Callable[[StoreView, Finding], FileChange] | None = None
    live: Callable[[Finding], bool] = never_live
