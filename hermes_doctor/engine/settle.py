"""After a stop: finding out of each pending changeset whether the store's commit came to be."""

from __future__ import annotations

from hermes_doctor.engine.changes import RowChange, changes_of, holds, read_row
from hermes_doctor.engine.identity import is_the_same
from hermes_doctor.engine.journal import APPLIED, NOT_APPLIED, PENDING, UNKNOWN, Entry
from hermes_doctor.engine.steps import Step, reach
from hermes_doctor.engine.writer import Writer


def settle_pending(writer: Writer) -> int:
    """Settle every pending changeset of the store's journal, row by row; return how many there were.

    All rows as after: applied. All as before: not applied. Anything else: unknown, kept so that it can be undone.
    One of another store, which lies elsewhere now, stays pending. Raises apsw.BusyError, or beside a living hermes
    GaveWayError.
    """
    settled = 0
    for entry in writer.journal.entries(states=[PENDING], newest_first=False):
        run = writer.journal.run(entry.run)
        known = {} if run is None else run.identity
        if not is_the_same(known, writer.connection, writer.view.shape, writer.bundle):
            continue
        reach(Step.SETTLING)
        state = _state(writer, entry)
        if state == NOT_APPLIED and entry.file is None and writer.beside is not None:
            state = _for_good(writer, entry)
        writer.journal.settle(entry.number, state)
        reach(Step.SETTLED)
        settled += 1
    return settled


def _for_good(writer: Writer, entry: Entry) -> str:
    """Return what became of a changeset whose rows are as before, where somebody has had the store open all the time.

    A doctor that is killed while it commits may leave its pages in the log, whole, and not yet in the log's index.
    Nobody sees them then; but should all who have the store open end without having written, whoever comes next makes
    the index anew from the log, with them. The next transaction is written over them: so there is one, of the first
    page as it is.
    """
    connection = writer.connection
    writer.begin()
    try:
        state = _state(writer, entry)
        if state == NOT_APPLIED:
            # The number itself is none of ours; setting it writes the page whether it is another one or not.
            connection.pragma("user_version", connection.pragma("user_version"))
        writer.commit()
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return state


def _state(writer: Writer, entry: Entry) -> str:
    if entry.file is not None:
        return {True: APPLIED, False: NOT_APPLIED, None: UNKNOWN}[entry.file.is_done()]
    if entry.changeset is None:
        return UNKNOWN
    if not entry.changeset:
        # Of what is derived from the rows: done or not, there is nothing to take back.
        return APPLIED
    sides = {_side(writer, change) for change in changes_of(entry.changeset, entry.columns)}
    if sides == {APPLIED}:
        return APPLIED
    return NOT_APPLIED if sides == {NOT_APPLIED} else UNKNOWN


def _side(writer: Writer, change: RowChange) -> str:
    """On which side of its change a row is now."""
    table = writer.view.shape.tables.get(change.table.lower())
    columns = [*change.key, *(name for name in (change.after or change.before) if name not in change.key)]
    if table is None or not all(table.has(column) for column in columns):
        return UNKNOWN
    row = read_row(writer.connection, change.table, change.key, columns)
    if (row is None) if not change.after else holds(row, change.after):
        return APPLIED
    if (row is None) if not change.before else holds(row, change.before):
        return NOT_APPLIED
    return UNKNOWN
