"""One transaction of a repair: find anew, mend, record, put the record on the disk, commit, settle.

The order is the safety: the changeset is in the journal, on the disk, before the store's commit. A stop at any point
leaves the store and a journal that knows at least as much. That a changeset is in the store is put on the disk with the
next one: each time of its own would cost as many syncs of the disk as the commit.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any

import apsw

from hermes_doctor.engine.changes import Op, RowChange, UnreadableChangeError, changes_of, column_order
from hermes_doctor.engine.cure import Fix, FixRefusedError, Mending, RowMovedError
from hermes_doctor.engine.defects import defect
from hermes_doctor.engine.file_changes import FileMovedError
from hermes_doctor.engine.journal import NOT_APPLIED, Receipt
from hermes_doctor.engine.links import dangling_before
from hermes_doctor.engine.live import left_to_hermes, used_sessions
from hermes_doctor.engine.model import Check, Finding, Safety
from hermes_doctor.engine.rows import find_again
from hermes_doctor.engine.steps import Step, reach
from hermes_doctor.engine.writer import Writer
from hermes_doctor.store.cells import Key, json_key, quote
from hermes_doctor.store.reader import in_keys
from hermes_doctor.store.shape import Table
from hermes_doctor.store.strangers import StrangersTriggerError, laid_out_otherwise
from hermes_doctor.store.view import StoreView

#: The states of one row's change, as reports show them.
PLANNED, DONE, GONE, REFUSED, FAILED = "planned", "applied", "gone", "refused", "failed"

#: Why a row was left, in words that the plan and the work share.
NEEDS_UNSAFE = "is mended only with --unsafe"
NO_FAULT = "no longer shows the fault"


@dataclass(frozen=True, slots=True)
class Change:
    """What became of one finding."""

    check: str
    table: str
    key: Key
    action: str | None
    state: str
    reason: str | None = None

    @classmethod
    def of(cls, finding: Finding, state: str, reason: str | None = None) -> Change:
        """Return that a finding is in that state."""
        return cls(finding.check, finding.table, finding.key, finding.action, state, reason)

    @property
    def row(self) -> tuple[str, Key]:
        """Which row of the store it is: its table and its key there."""
        return self.table, self.key

    def became(self, state: str, reason: str | None) -> Change:
        """Return the change in another state."""
        return Change(self.check, self.table, self.key, self.action, state, reason)

    def __reduce__(self) -> tuple[type[Change], tuple[Any, ...]]:
        # By position, as findings are.
        return Change, _ALL_OF_CHANGE(self)


_ALL_OF_CHANGE: Callable[[Change], tuple[Any, ...]] = attrgetter(*(field.name for field in fields(Change)))

#: The rows of ordinary tables that a transaction wrote to, as SQLite's update hook tells: by table and rowid, the kind
#: of the first write.
_Touched = dict[tuple[str, int], int]

#: How many rows are asked about in one statement.
_AT_ONCE = 500


class UncoveredError(Exception):
    """The changeset does not cover every row that was touched: the transaction must not stand."""


def mend_rows(
    writer: Writer, check: Check, fix: Fix, findings: Sequence[Finding], *, unsafe: bool
) -> tuple[list[Change], float]:
    """Mend some findings of one check in one transaction; return what became of each, and the seconds of the hold.

    A row that the check no longer finds is ``gone``; one that may not be mended is ``refused``; one whose repair
    raises is taken back alone and ``failed``. Raises apsw.BusyError where the write lock is not to be had, GaveWayError
    where a living hermes goes first, and whatever the journal or the disk raise, with nothing changed in the store.
    """
    connection = writer.connection
    writer.disk_seconds = 0.0
    writer.begin()
    begun = time.monotonic()
    try:
        reach(Step.BEGUN)
        changes, changeset, order, rows = _mend(writer, check, fix, findings, unsafe=unsafe)
        if not changeset and not (fix.derived and any(change.state == DONE for change in changes)):
            connection.execute("ROLLBACK")
            return changes, time.monotonic() - begun
        reach(Step.CHANGESET)
        writing = time.monotonic()
        receipts = [_receipt(change) for change in changes]
        dangling = dangling_before(connection, rows)
        number = writer.write_pending(check.name, changeset, order, dangling, receipts)
        writer.commit()
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    ended = time.monotonic()
    held, writer.disk_seconds = ended - begun, ended - writing
    reach(Step.COMMITTED)
    writer.unsettled = number
    if writer.beside is not None:
        # A living hermes may change these rows, by which it would be told after a stop.
        writer.settle()
    return changes, held


def rehearse(writer: Writer, check: Check, fix: Fix, finding: Finding) -> tuple[Change, list[RowChange]]:
    """Mend one finding in a private copy of its store, and take that back; return what became of it, row by row.

    Raises UncoveredError, and what SQLite raises.
    """
    writer.connection.execute("BEGIN IMMEDIATE")
    try:
        [change], _changeset, _order, rows = _mend(writer, check, fix, [finding], unsafe=True)
    finally:
        if writer.connection.in_transaction:
            writer.connection.execute("ROLLBACK")
    return change, rows


def change_files(
    writer: Writer, check: Check, fix: Fix, findings: Sequence[Finding], *, unsafe: bool
) -> tuple[list[Change], float]:
    """Mend findings about files, one after the other; return what became of each, and that no row was held.

    Raises what the journal raises, with the file at hand unchanged.
    """
    with writer.view.reader.pinned():
        writer.view.forget()
        fresh = {finding.row: finding for finding in find_again(check, findings, writer.view)}
        left = _left_to_hermes(writer, fix, fresh.values())
    changes = [
        left.get(finding.row) or _change_file(writer, fix, finding, fresh.get(finding.row), unsafe=unsafe)
        for finding in findings
    ]
    return changes, 0.0


def _left_to_hermes(writer: Writer, fix: Fix, fresh: Collection[Finding]) -> dict[tuple[str, Key], Change]:
    """Return the rows that are left alone beside a living hermes, and why: by what this very moment shows."""
    if writer.beside is None:
        return {}
    used = used_sessions(writer.view, fresh)
    told = ((finding, left_to_hermes(finding, fix, used)) for finding in fresh)
    return {finding.row: Change.of(finding, REFUSED, why) for finding, why in told if why is not None}


def _change_file(writer: Writer, fix: Fix, planned: Finding, fresh: Finding | None, *, unsafe: bool) -> Change:
    """Note one file's change in the journal, carry it out, and settle it."""
    assert fix.files is not None, "only for fixes that change files"
    refused = _not_to_be_mended(planned, fresh, unsafe=unsafe)
    if refused is not None or fresh is None:
        return refused or Change.of(planned, GONE)
    try:
        file = fix.files(writer.view, fresh)
    except (FixRefusedError, FileMovedError) as error:
        return Change.of(fresh, REFUSED, str(error))
    except OSError as error:
        return Change.of(fresh, FAILED, error.strerror)
    done = Change.of(fresh, DONE)
    number = writer.write_pending(planned.check, b"", {}, (), [_receipt(done)], file)
    try:
        file.carry_out()
    except FileMovedError as error:
        writer.journal.settle(number, NOT_APPLIED)
        return Change.of(fresh, GONE, str(error))
    except OSError as error:
        writer.journal.settle(number, NOT_APPLIED)
        return Change.of(fresh, FAILED, error.strerror)
    reach(Step.COMMITTED)
    writer.unsettled = number
    return done


def _receipt(change: Change) -> Receipt:
    return Receipt(change.check, change.table, json_key(change.key), change.action, change.state, change.reason)


def _mend(
    writer: Writer, check: Check, fix: Fix, findings: Sequence[Finding], *, unsafe: bool
) -> tuple[list[Change], bytes, dict[str, list[str]], list[RowChange]]:
    """Do the work between BEGIN and the journal.

    Return what became of the findings, the changeset, its tables' columns, and what it says row by row.
    """
    connection, view = writer.connection, writer.view
    attached = _attachable(view)
    with _recording(connection, attached) as session, _watching(connection, view) as touched:
        with view.reader.pinned():
            view.forget()
            fresh = {finding.row: finding for finding in find_again(check, findings, view)}
            left = _left_to_hermes(writer, fix, fresh.values())
        changes = [
            left.get(finding.row) or _mend_one(writer, fix, finding, fresh.get(finding.row), unsafe=unsafe)
            for finding in findings
        ]
        reach(Step.MENDED)
        changeset = session.changeset()
    order = column_order(view.shape, attached)
    rows = _covered(connection, view, touched, changeset, order)
    return changes, changeset, order, rows


def _mend_one(writer: Writer, fix: Fix, planned: Finding, fresh: Finding | None, *, unsafe: bool) -> Change:
    """Mend one row inside a savepoint of its own, so that one bad row never stops the rest."""
    refused = _not_to_be_mended(planned, fresh, unsafe=unsafe)
    if refused is not None or fresh is None:
        return refused or Change.of(planned, GONE)
    connection = writer.connection
    connection.execute("SAVEPOINT one_row")
    try:
        with writer.view.reader.pinned():
            fix.mend(Mending(writer.view, connection), fresh)
    except (apsw.BusyError, apsw.FullError, apsw.IOError, apsw.CorruptError, apsw.ReadOnlyError):
        raise  # not this row's: the machine's, or the file's
    except Exception as error:
        if not connection.in_transaction:
            raise UncoveredError("the store's own tables end the whole transaction over it") from error
        connection.execute("ROLLBACK TO one_row")
        connection.execute("RELEASE one_row")
        return Change.of(fresh, *_why_not(error))
    connection.execute("RELEASE one_row")
    return Change.of(fresh, DONE)


def _not_to_be_mended(planned: Finding, fresh: Finding | None, *, unsafe: bool) -> Change | None:
    """Return why a row is not to be touched, by what the check says of it now; None where it is to be mended."""
    if fresh is None:
        return Change.of(planned, GONE, NO_FAULT)
    if fresh.fix is Safety.NONE:
        return Change.of(fresh, REFUSED, fresh.refusal or "there is no fix for this row")
    if fresh.fix is Safety.UNSAFE and not unsafe:
        return Change.of(fresh, REFUSED, NEEDS_UNSAFE)
    return None


def _why_not(error: Exception) -> tuple[str, str]:
    """Return the state of a row whose repair raised, and the reason in words."""
    if isinstance(error, RowMovedError):
        return GONE, str(error)
    if isinstance(error, FixRefusedError | StrangersTriggerError):
        return REFUSED, str(error)
    if isinstance(error, apsw.SQLError) and (otherwise := laid_out_otherwise(error)) is not None:
        return REFUSED, otherwise
    if isinstance(error, apsw.ConstraintError):
        return FAILED, f"another row stands in its way ({error})"
    return FAILED, f"a defect of the doctor: {defect(error)}"


def _attachable(view: StoreView) -> list[str]:
    """The tables whose changes the session extension can record, parents before children."""
    keyed = [table.name for table in view.shape.tables.values() if table.primary_key]
    first = {"sessions": 0, "messages": 1}
    return sorted(keyed, key=lambda name: (first.get(name.lower(), 2), name))


@contextmanager
def _recording(connection: apsw.Connection, tables: Sequence[str]) -> Iterator[apsw.Session]:
    session = apsw.Session(connection, "main")
    try:
        for table in tables:
            session.attach(table)
        yield session
    finally:
        session.close()


@contextmanager
def _watching(connection: apsw.Connection, view: StoreView) -> Iterator[_Touched]:
    """Watch every row that is written, but for those of the search index's own tables."""
    ordinary = {table.name for table in view.shape.tables.values()}
    touched: _Touched = {}

    def note(kind: int, _database: str, table: str, rowid: int) -> None:
        if table in ordinary:
            touched.setdefault((table, rowid), kind)

    connection.set_update_hook(note)
    try:
        yield touched
    finally:
        connection.set_update_hook(None)


def _covered(
    connection: apsw.Connection,
    view: StoreView,
    touched: _Touched,
    changeset: bytes,
    order: dict[str, list[str]],
) -> list[RowChange]:
    """Return what the changeset says, once it is sure that it can take back every row that was touched.

    The session extension leaves out tables without a primary key and rows with a NULL in it. A touched row that
    still exists must have a whole key; of those that are gone, as many must be in the changeset as deletions. Raises
    UncoveredError.
    """
    try:
        rows = list(changes_of(changeset, order))
    except UnreadableChangeError as error:
        raise UncoveredError(f"a row holds {error}") from error
    deleted = Counter(row.table for row in rows if row.op is Op.DELETE)
    touched_in: dict[str, dict[int, int]] = {}
    for (name, rowid), first in touched.items():
        touched_in.setdefault(name, {})[rowid] = first
    gone: Counter[str] = Counter()
    for name, kinds in touched_in.items():
        if name not in order or view.shape.tables[name.lower()].rowid is None:
            raise UncoveredError(f"table {name} has no primary key")
        there = _with_whole_key(connection, view.shape.tables[name.lower()], list(kinds))
        gone[name] = sum(kind != apsw.SQLITE_INSERT and rowid not in there for rowid, kind in kinds.items())
    if +gone != deleted:
        raise UncoveredError("a deleted row is not in the record of changes")
    return rows


def _with_whole_key(connection: apsw.Connection, table: Table, rowids: Sequence[int]) -> set[int]:
    """Return which of these rows are there. Raises UncoveredError for one with a NULL in its key."""
    no_key = " OR ".join(f"{quote(column)} IS NULL" for column in table.primary_key)
    there: set[int] = set()
    for start in range(0, len(rowids), _AT_ONCE):
        among, cells = in_keys(str(table.rowid), rowids[start : start + _AT_ONCE])
        for rowid, lacks in connection.execute(
            f"SELECT {table.rowid}, {no_key} FROM {quote(table.name)} WHERE {among}", cells
        ):
            if lacks:
                raise UncoveredError(f"a row of {table.name} has no whole primary key")
            there.add(int(rowid))
    return there
