"""Fill what a branch's copies lost from the parent's same rows.

Each row is filled by a statement of its own, only where the columns are NULL and the role is the parent's; the values
come out of the parent's row within the store, to the last character. The parent is not touched. `tool_calls` and
`tool_name` are indexed for search, and the store's own triggers keep the index. The branch's number of tool calls grows
by the calls that are filled in, if its rows explained it before.

Beside a living hermes (--live)
No: a hermes that has the branch in memory would compact or rewrite it without what was filled in.
"""

from __future__ import annotations

from hermes_doctor.engine.cure import Fix, FixRefusedError, Mending, Phase, RowMovedError
from hermes_doctor.engine.model import Finding
from hermes_doctor.store.branch_copies import Loss, broken_copies
from hermes_doctor.store.cells import quote
from hermes_doctor.store.counters import CALLS, drifts
from hermes_doctor.store.reader import in_keys

#: {assigned} and {empty} are over the columns that the row lacks.
_FILL = """
UPDATE messages SET {assigned}
 WHERE id = :row AND {empty}
   AND role IS (SELECT role FROM messages WHERE id = :parent_row)
"""

_COUNT = """
SELECT json_array_length(tool_calls) FROM messages
 WHERE id = ? AND typeof(tool_calls) = 'text'
"""


def _mend(mending: Mending, finding: Finding) -> None:
    session, view = mending.single(finding.key), mending.view
    copy = next(broken_copies(view, [session]), None)
    if copy is None or not copy.losses:
        raise RowMovedError("the copy lacks nothing that could be filled in any more")
    if copy.busy is not None:
        raise FixRefusedError(copy.busy)
    explained = all(each.column != CALLS for drift in drifts(view, [session]) for each in drift.miscounts)
    added = 0
    for loss in copy.losses:
        _fill(mending, loss)
        if "tool_calls" in loss.columns:
            calls = view.reader.value(_COUNT, (loss.row,))
            added += calls if isinstance(calls, int) else 0
    if added and explained and view.shape.has("sessions", CALLS):
        among, cells = in_keys("id", [session])
        held = view.reader.value(f"SELECT {CALLS} FROM sessions WHERE {among}", cells)
        if isinstance(held, int):
            mending.set("sessions", session, to={CALLS: held + added}, expects={CALLS: held})


def _fill(mending: Mending, loss: Loss) -> None:
    names = [quote(column) for column in loss.columns]
    theirs = "(SELECT its.{0} FROM messages AS its WHERE its.id = :parent_row)"
    statement = _FILL.format(
        assigned=", ".join(f"{name} = {theirs.format(name)}" for name in names),
        empty=" AND ".join(f"{name} IS NULL" for name in names),
    )
    mending.run(statement, {"row": loss.row, "parent_row": loss.parent_row})


FIX = Fix(check="amputated-branches", phase=Phase.RESTORE, uses_clock=False, page=__doc__ or "", mend=_mend)
