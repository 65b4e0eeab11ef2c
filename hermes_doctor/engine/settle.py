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
    One of another store, which lies elsewhere now, stays pending.
    """
    settled = 0
    for entry in writer.journal.entries(states=[PENDING], newest_first=False):
        run = writer.journal.run(entry.run)
        known = {} if run is None else run.identity
        if not is_the_same(known, writer.connection, writer.view.shape, writer.bundle):
            continue
        reach(Step.SETTLING)
        writer.journal.settle(entry.number, _state(writer, entry))
        reach(Step.SETTLED)
        settled += 1
    return settled


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
