"""`doctor undo`: taking one run back, newest change first, row by row and by column name.

What a run changed is read from its changesets; SQLite's own apply is not used, because it goes by the position of
columns, and a store may have been upgraded or rebuilt since. A column that no longer holds what the run wrote is left
as it is; changes that others made to other columns stay.

Triggers fire when rows are put back, and some of them move columns (0.21.5 on: display_identity, display_order,
message_uid). So each transaction ends by comparing every row with its image from before and setting right what a
trigger moved; it is rolled back where a row still differs, a reference would newly dangle, or the search index would
be left out of step.
"""

from __future__ import annotations

import enum
import json
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import apsw

from hermes_doctor.engine.became import Changes
from hermes_doctor.engine.changes import Op, RowChange, changes_of, holds, read_row
from hermes_doctor.engine.file_changes import FileChange, FileMovedError, Kind
from hermes_doctor.engine.findings import Closing, Shelf
from hermes_doctor.engine.gates import Planned, busy, refusal
from hermes_doctor.engine.halts import halt_of_moved, halt_of_store
from hermes_doctor.engine.identity import is_the_same
from hermes_doctor.engine.journal import APPLIED, PENDING, UNDONE, UNKNOWN, Entry, Journal, Run, folder_of
from hermes_doctor.engine.links import left_dangling, newly_dangling
from hermes_doctor.engine.model import FILES, ExitCode
from hermes_doctor.engine.pacing import Pacing
from hermes_doctor.engine.plan import Outcome
from hermes_doctor.engine.scan import Progress, ScanOptions, StoreScan, scan_store
from hermes_doctor.engine.settle import settle_pending
from hermes_doctor.engine.steps import Step, reach
from hermes_doctor.engine.stopping import Stop
from hermes_doctor.engine.transaction import Change
from hermes_doctor.engine.writer import Writer, checkpoint_if_alone, open_writer
from hermes_doctor.host.bundle import StoreProblem
from hermes_doctor.host.homes import StoreRef
from hermes_doctor.host.locks import LockTakenError, doctor_lock, upstream_maintenance_lock
from hermes_doctor.host.same_files import StoreMovedError
from hermes_doctor.store.cells import BadText, Cell, Key, json_key, quote
from hermes_doctor.store.search_index import check_rows, kept_in_step, match_trigrams
from hermes_doctor.store.shape import Shape
from hermes_doctor.store.strangers import StrangersTriggerError

#: The states of one row's restoration, as reports show them.
PLANNED, RESTORED, CHANGED_SINCE, FAILED = "planned", "restored", "changed-since", "failed"

#: Columns of messages that triggers fill and move (0.21.5 on; the last from 0.22.2).
_MOVED = ("display_identity", "display_order", "message_uid")
#: Columns of which a message's identity in the display is made: where one comes back, a trigger empties it, rightly.
_IDENTITY = frozenset({"role", "content", "timestamp", "tool_call_id", "tool_calls", "tool_name", "display_kind"})

#: How often columns that a trigger moved are set right before a transaction is given up.
_SETTINGS_RIGHT = 3


class CannotRestoreError(Exception):
    """A transaction that cannot be taken back, and why: it is rolled back.

    ``rows``: those that stand in the way, so that the others can be put back without them; none: nobody knows which.
    """

    def __init__(self, reason: str, rows: Sequence[RowChange] = ()) -> None:
        super().__init__(reason)
        self.rows = rows


@dataclass
class StoreUndo(Closing):
    """What taking one run back, or the plan of it, came to."""

    ref: StoreRef
    scan: StoreScan
    run: str
    applied: bool
    would_be_refused: str | None = None
    reason: str | None = None
    journal: Path | None = None
    changes: Changes = field(default_factory=Changes)
    transactions: int = 0
    holds: dict[str, float] = field(default_factory=dict)
    outcome: Outcome = "nothing-to-do"
    exit_code: ExitCode = ExitCode.CLEAN

    def count(self, *states: str) -> int:
        """How many changes are in one of the states."""
        return self.changes.count(*states)

    def close(self) -> None:
        """Let the temporary files go: what was found, and what became of it."""
        self.scan.findings.close()
        self.changes.close()


def undo_store(
    ref: StoreRef, run: Run, options: ScanOptions, *, apply: bool, stop: Stop, progress: Progress | None = None
) -> StoreUndo:
    """Take one run back, or say what that would do.

    Never raises for what stands in the way: the outcome, the exit code and the reason say it.
    """
    scan = scan_store(ref, (), options, progress)
    undo = StoreUndo(ref, scan, run.run, applied=apply)
    code = scan.exit_code(None)
    if code is not ExitCode.CLEAN:
        undo.outcome, undo.exit_code, undo.reason = "failed", code, scan.reason
        return undo
    if run.forgotten_at is not None:
        undo.outcome, undo.exit_code = "refused", ExitCode.REFUSED
        undo.reason = "the journal of this run has been forgotten: it can no longer be taken back"
        return undo
    folder = folder_of(ref.path)
    nothing = Planned(rows=0, bytes=0, uses_clock=False)
    stands = refusal(scan, nothing, backup="never", command=("undo", run.run))
    try:
        if not apply:
            undo.would_be_refused = stands.reason if stands else None
            _plan(undo, ref, run, progress)
            return undo
        if stands is not None:
            undo.outcome, undo.exit_code, undo.reason = "refused", stands.code, stands.reason
            return undo
        with ExitStack() as opened:
            opened.enter_context(doctor_lock(folder))
            opened.enter_context(upstream_maintenance_lock(ref.path))
            journal = opened.enter_context(Journal(folder))
            reach(Step.UNDO_LOCKED)
            undo.journal = journal.path
            _work(undo, run, journal, options, stop, progress)
    except LockTakenError as taken:
        undo.outcome, undo.exit_code = "refused", ExitCode.BUSY
        undo.reason = busy(taken.holder)
    except apsw.BusyError:
        undo.outcome, undo.exit_code = "stopped", ExitCode.STOPPED
        undo.reason = "somebody else holds the store's write lock"
    except StoreMovedError as moved:
        undo.exit_code, undo.reason = halt_of_moved(moved, scan)
        undo.outcome = "stopped" if undo.exit_code is ExitCode.STOPPED else "failed"
    except StoreProblem as problem:
        scan.condition, scan.next_step = problem.condition, problem.next_step
        undo.outcome, undo.exit_code, undo.reason = "failed", ExitCode.DAMAGED, problem.reason
    except (OSError, sqlite3.Error, apsw.Error) as error:
        undo.exit_code, undo.reason = halt_of_store(error, scan)
        undo.outcome = "stopped" if undo.exit_code is ExitCode.STOPPED else "failed"
    return undo


def _told(entries: Iterable[Entry], count: int, path: Path, step: str, progress: Progress | None) -> Iterator[Entry]:
    """Give the entries, and tell before each how far it is."""
    for place, entry in enumerate(entries):
        if progress is not None:
            progress(path, step, min(place / max(count, 1), 1.0))
        yield entry


def _plan(undo: StoreUndo, ref: StoreRef, run: Run, progress: Progress | None) -> None:
    """Look, without writing, at what could be restored."""
    from hermes_doctor.store.opening import open_without_trace
    from hermes_doctor.store.shape import read_shape

    journal = Journal.beside(ref.path)
    if journal is None:
        return
    with journal, open_without_trace(ref.path) as store:
        shape = read_shape(store.connection)
        assert undo.scan.bundle is not None, "a store that was scanned has been looked at"
        if not is_the_same(run.identity, store.connection, shape, undo.scan.bundle):
            _leave_all(undo, journal)
            return
        # One that is pending was left by a stop; the work settles it first, by how its rows are.
        states = [APPLIED, UNKNOWN, PENDING]
        with _WouldBe(store.connection) as would_be:
            for entry in journal.entries(undo.run, states=states):
                for change in _rows(entry):
                    would_be.foresee(change)
            count = journal.count(undo.run, states=states)
            entries = journal.entries(undo.run, states=states)
            for entry in _told(entries, count, ref.path, "comparing the rows", progress):
                _plan_entry(undo, entry, shape, would_be)
    if undo.count(PLANNED):
        undo.outcome, undo.exit_code = "planned", ExitCode.FINDINGS


def _plan_entry(undo: StoreUndo, entry: Entry, shape: Shape, would_be: _WouldBe) -> None:
    """Say of one transaction of the run what could be restored of it."""
    if entry.file is not None:
        done = entry.file.is_done()
        if done is not False:
            undo.changes.add(_of_file(entry, entry.file, PLANNED if done else CHANGED_SINCE))
    for change in reversed(_rows(entry)):
        if _has_columns(shape, change) and would_be.holds(change, change.after):
            undo.changes.add(_change(entry, change, PLANNED))
            would_be.restore(change)
        elif not (_has_columns(shape, change) and would_be.holds(change, change.before)):
            undo.changes.add(_change(entry, change, CHANGED_SINCE))


class _WouldBe(Closing):
    """The store as it would be by then: what a run changed twice can be put back once the later change is.

    It is told first of all changes of the run, and keeps nothing of rows that are changed only once, which may be many
    and large.
    """

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self._times: Shelf[int] = Shelf()
        #: The columns that would be put back by then, None for a row that would be removed.
        self._restored: Shelf[dict[str, Cell] | None] = Shelf()

    def close(self) -> None:
        """Let the temporary files go."""
        self._times.close()
        self._restored.close()

    def foresee(self, change: RowChange) -> None:
        """Take note that the run changed the row, perhaps once more."""
        name = _row(change)
        self._times.put(name, self._times.get(name, 0) + 1)

    def holds(self, change: RowChange, image: Mapping[str, Cell]) -> bool:
        """Whether the row would hold that image of the change; an empty image: it would not be there."""
        row = read_row(self._connection, change.table, change.key, list(image or change.key))
        name = _row(change)
        restored = self._restored.get(name, {}) if self._times.get(name, 0) > 1 else {}
        if restored is None:
            row = None
        elif restored:
            row = {**(row or {}), **restored}
        return holds(row, image) if image else row is None

    def restore(self, change: RowChange) -> None:
        """Take note that the row would be put back as it was before the change."""
        name = _row(change)
        if self._times.get(name, 0) > 1:
            known = self._restored.get(name, {}) or {}
            self._restored.put(name, {**known, **change.before} if change.before else None)


def _row(change: RowChange) -> str:
    """Return a name for the row: its table, and the cells of its key."""
    return json.dumps((change.table, json_key(tuple(change.key.values()))))


def _leave_all(undo: StoreUndo, journal: Journal) -> None:
    """Say that this is another store, so that nothing of the run can be put back."""
    for entry in journal.entries(undo.run, states=[APPLIED, UNKNOWN, PENDING]):
        left = [_change(entry, change, CHANGED_SINCE) for change in reversed(_rows(entry))]
        left += [] if entry.file is None else [_of_file(entry, entry.file, CHANGED_SINCE)]
        for change in left:
            undo.changes.add(change.became(CHANGED_SINCE, "this is another store: left as it is"))
    undo.reason = "this is not the store that the run changed: move that one to this place, then try again"


def _work(
    undo: StoreUndo, run: Run, journal: Journal, options: ScanOptions, stop: Stop, progress: Progress | None
) -> None:
    pacing = Pacing()
    with open_writer(undo.scan, journal, options) as writer:
        if not is_the_same(run.identity, writer.connection, writer.view.shape, writer.bundle):
            _leave_all(undo, journal)
            undo.outcome, undo.exit_code = "partly-fixed", ExitCode.FINDINGS
            return
        # What a repair took away may have dangled; each row's references are looked at one by one instead.
        writer.connection.config(apsw.SQLITE_DBCONFIG_ENABLE_FKEY, 0)
        settle_pending(writer)
        match_trigrams(writer.connection, writer.view.shape)
        count = journal.count(undo.run, states=[APPLIED, UNKNOWN])
        entries = journal.entries(undo.run, states=[APPLIED, UNKNOWN])
        for entry in _told(entries, count, undo.ref.path, "taking back", progress):
            writer.watch_for_others(stop)
            if stop:
                break
            begun = time.monotonic()
            for change in _take_back(writer, entry):
                undo.changes.add(change)
            undo.transactions += 1
            # No rest: nobody else has the store open, and whoever comes is seen at the next look.
            pacing.note(1, time.monotonic() - begun)
    checkpoint_if_alone(writer.bundle)
    undo.holds = pacing.summary()
    if not any(True for _ in journal.entries(undo.run, states=[APPLIED, UNKNOWN])):
        journal.mark_undone(undo.run)
        reach(Step.UNDO_MARKED)
    if stop:
        undo.outcome, undo.exit_code, undo.reason = "stopped", ExitCode.STOPPED, stop.reason
    elif undo.count(CHANGED_SINCE, FAILED):
        undo.outcome, undo.exit_code = "partly-fixed", ExitCode.FINDINGS
    elif undo.changes:
        undo.outcome = "fixed"


def _take_back(writer: Writer, entry: Entry) -> list[Change]:
    """Take one transaction of the run back, in one transaction; rows that cannot be put back never stop the rest."""
    if entry.file is not None:
        return [_put_file_back(writer, entry, entry.file)]
    changes = list(reversed(_rows(entry)))
    left: dict[int, str] = {}
    while True:
        try:
            results = _try_to_take_back(writer, entry, changes, left)
            break
        except CannotRestoreError as error:
            if not error.rows:
                return [_change(entry, change, FAILED, str(error)) for change in changes]
            stopped = {id(row) for row in error.rows}
            left |= {place: str(error) for place, change in enumerate(changes) if id(change) in stopped}
    if all(result.state == RESTORED for result in results):
        writer.journal.settle(entry.number, UNDONE)
    reach(Step.UNDONE)
    return results


def _put_file_back(writer: Writer, entry: Entry, file: FileChange) -> Change:
    """Take one file's change back."""
    reach(Step.UNDO_BEGUN)
    try:
        # One that is as before already: an undo that was stopped goes on.
        if file.is_done() is not False:
            file.take_back()
    except FileMovedError:
        return _of_file(entry, file, CHANGED_SINCE)
    except OSError as error:
        return _of_file(entry, file, FAILED, error.strerror)
    reach(Step.UNDO_RESTORED)
    writer.journal.settle(entry.number, UNDONE)
    reach(Step.UNDONE)
    return _of_file(entry, file, RESTORED)


def _of_file(entry: Entry, file: FileChange, state: str, reason: str | None = None) -> Change:
    if state == CHANGED_SINCE:
        reason = "changed since the run: left as it is"
    verb = "restore its mode" if file.kind is Kind.MODE else "bring it back"
    return Change(entry.check, FILES, file.name, verb, state, reason)


def _try_to_take_back(
    writer: Writer, entry: Entry, changes: Sequence[RowChange], left: Mapping[int, str]
) -> list[Change]:
    """Put back what can be, but for the changes at the places ``left``; raises CannotRestoreError, rolled back."""
    connection = writer.connection
    writer.begin()
    try:
        reach(Step.UNDO_BEGUN)
        results = _restore_all(writer, entry, changes, left)
        reach(Step.UNDO_RESTORED)
        writer.commit()
    except (apsw.ConstraintError, StrangersTriggerError) as error:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise CannotRestoreError(str(error)) from error
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    reach(Step.UNDO_COMMITTED)
    return results


def _restore_all(writer: Writer, entry: Entry, changes: Sequence[RowChange], left: Mapping[int, str]) -> list[Change]:
    """Put every row back that still is as the run left it, set right what triggers moved, and check the outcome."""
    connection, shape = writer.connection, writer.view.shape
    tried = {place: change for place, change in enumerate(changes) if place not in left}
    found = {place: _found(connection, shape, change) for place, change in tried.items()}
    ours = [change for place, change in tried.items() if found[place] is _Side.AFTER]
    messages = [
        i for change in ours if change.table.lower() == "messages" and isinstance(i := change.key.get("id"), int)
    ]
    wrong_before = set(check_rows(connection, shape, messages))
    images = [_with_what_triggers_move(connection, shape, change) for change in ours]
    with kept_in_step(connection, writer.view, _sessions_that_an_index_sees(ours)):
        _put_back(connection, ours)
        _set_right(connection, images)
    _require_no_new_dangling(connection, entry, ours)
    if set(check_rows(connection, shape, messages)) - wrong_before:
        raise CannotRestoreError("the search index would be left out of step")

    def became(place: int, change: RowChange) -> Change:
        if place in left:
            return _change(entry, change, FAILED, left[place])
        return _change(entry, change, CHANGED_SINCE if found[place] is _Side.NEITHER else RESTORED)

    return [became(place, change) for place, change in enumerate(changes)]


def _put_back(connection: apsw.Connection, changes: Iterable[RowChange]) -> None:
    """Write the images from before; those that meet the same obstacle are named together, for each try is a new one."""
    obstacle = ""
    stopped: list[RowChange] = []
    # Parents first where rows come back, so that triggers that look at the session find it.
    for change in sorted(changes, key=lambda change: (change.op is not Op.DELETE, change.table.lower() != "sessions")):
        try:
            _restore(connection, change)
        except apsw.ConstraintError as error:
            obstacle = obstacle or str(error)
            stopped += [change] if str(error) == obstacle else []
    if stopped:
        raise CannotRestoreError(f"another row stands in its way ({obstacle})", stopped)


def _require_no_new_dangling(connection: apsw.Connection, entry: Entry, changes: Iterable[RowChange]) -> None:
    """Make sure that no reference points at nothing which the run did not find so.

    Raises CannotRestoreError with all rows that miss the same.
    """
    missed = ""
    missing: list[RowChange] = []
    for change in changes:
        if change.before:
            dangles = newly_dangling(connection, change.table, {**change.key, **change.before}, entry.dangling)
            if dangles is not None:
                missed = missed or f"{change.table}.{dangles}"
                missing += [change] if missed == f"{change.table}.{dangles}" else []
        elif not missing and (holder := left_dangling(connection, change, entry.dangling)) is not None:
            raise CannotRestoreError(f"{holder} refers to it since", [change])
    if missing:
        raise CannotRestoreError(f"what {missed} refers to is gone since", missing)


def _sessions_that_an_index_sees(changes: Iterable[RowChange]) -> list[Key]:
    """The sessions of which a row comes, goes, or changes in what a search index depends on (search_index.py)."""
    return [
        next(iter(change.key.values()))
        for change in changes
        if change.table.lower() == "sessions"
        and (change.op is not Op.UPDATE or not {"source", "model_config"}.isdisjoint(map(str.lower, change.before)))
    ]


def _restore(connection: apsw.Connection, change: RowChange) -> None:
    """Write a row's image from before, to a row that `_found` has just found as the run left it.

    By its key alone: a trigger may have moved columns of it by now, for another row that came back (0.21.5 on), and
    `_set_right` goes by the image from before.
    """
    table = quote(change.table)
    if change.op is Op.DELETE:
        names = ", ".join(quote(name) for name in change.before)
        marks = ", ".join("?" for _ in change.before)
        connection.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", tuple(change.before.values()))
        return
    if change.op is Op.INSERT:
        where, values = _where(change.key)
        connection.execute(f"DELETE FROM {table} WHERE {where}", values)
    else:
        _assign(connection, change)
    if connection.changes() != 1:
        raise CannotRestoreError(f"a row of {change.table} changed while it was put back")


def _with_what_triggers_move(connection: apsw.Connection, shape: Shape, change: RowChange) -> RowChange:
    """Return the change with what else its row is to hold afterwards: columns that a trigger moves when it comes back.

    The run had not moved them: a row of an older release that no display had read yet has none of them (0.21.5 on).
    """
    if change.table.lower() != "messages" or change.op is not Op.UPDATE:
        return change
    # By the names that the file gives them: some program may have written them in capitals.
    there = shape.tables["messages"].columns
    columns = [there[name].name for name in _MOVED if name in there and there[name].name not in change.before]
    if not columns or not _IDENTITY.isdisjoint(name.lower() for name in change.before):
        return change
    held = read_row(connection, change.table, change.key, columns)
    return replace(change, before={**(held or {}), **change.before})


def _set_right(connection: apsw.Connection, changes: Iterable[RowChange]) -> None:
    """Set columns that a trigger moved back to their image from before, until every row is as it was."""
    differing: list[RowChange] = []
    for _ in range(_SETTINGS_RIGHT):
        differing = [change for change in changes if not _is_as_before(connection, change)]
        for change in differing:
            if not change.before:
                raise CannotRestoreError(f"a row of {change.table} that the run had made cannot be removed")
            _assign(connection, change)
        if not differing:
            return
    if any(not _is_as_before(connection, change) for change in differing):
        raise CannotRestoreError("a trigger of the store keeps changing what is put back")


def _assign(connection: apsw.Connection, change: RowChange) -> None:
    """Give a row's columns what they held before."""
    assigned = ", ".join(
        f"{quote(name)} = {'CAST(? AS TEXT)' if isinstance(cell, BadText) else '?'}"
        for name, cell in change.before.items()
    )
    where, values = _where(change.key)
    connection.execute(f"UPDATE {quote(change.table)} SET {assigned} WHERE {where}", (*change.before.values(), *values))


def _where(image: Mapping[str, Cell]) -> tuple[str, tuple[Cell, ...]]:
    return " AND ".join(f"{quote(name)} IS ?" for name in image), tuple(image.values())


def _is_as_before(connection: apsw.Connection, change: RowChange) -> bool:
    row = read_row(connection, change.table, change.key, list(change.before or change.key))
    return holds(row, change.before) if change.before else row is None


class _Side(enum.Enum):
    """As what a row is found: as the run left it, as it was before the run (an undo that was stopped), or neither."""

    AFTER = enum.auto()
    BEFORE = enum.auto()
    NEITHER = enum.auto()


def _found(connection: apsw.Connection, shape: Shape, change: RowChange) -> _Side:
    """Tell from the columns that the run set, or from the row's absence, whether it is still as the run left it."""
    if not _has_columns(shape, change):
        return _Side.NEITHER
    row = read_row(connection, change.table, change.key, list(change.after or change.key))
    if holds(row, change.after) if change.after else row is None:
        return _Side.AFTER
    return _Side.BEFORE if _is_as_before(connection, change) else _Side.NEITHER


def _has_columns(shape: Shape, change: RowChange) -> bool:
    return shape.has(change.table, *change.key, *change.before, *change.after)


def _rows(entry: Entry) -> list[RowChange]:
    return [] if entry.changeset is None else list(changes_of(entry.changeset, entry.columns))


def _change(entry: Entry, change: RowChange, state: str, reason: str | None = None) -> Change:
    key: Key = next(iter(change.key.values())) if len(change.key) == 1 else tuple(change.key.values())
    if state == CHANGED_SINCE:
        reason = "changed since the run: left as it is"
    verb = {Op.INSERT: "remove", Op.UPDATE: "restore", Op.DELETE: "bring back"}[change.op]
    columns = f" {', '.join(change.before)}" if change.op is Op.UPDATE else " the row"
    return Change(entry.check, change.table, key, f"{verb}{columns}", state, reason)
