"""Give a message with NULL in `active` the marks that it should have, and count it where nobody does.

Up to 0.19 the triggers put a message into the search indexes anew whatever column changes, so texts have to be cut as
hermes cuts them. A counter that explains no more than the rows that were seen is raised to what it is when none is
NULL any more, once for the session; one that is so high already, or was wrong before, is left.
"""

from __future__ import annotations

from hermes_doctor.engine.cure import Fix, Mending, Phase
from hermes_doctor.engine.model import Finding
from hermes_doctor.store.cells import Cell, Key
from hermes_doctor.store.counters import CALLS, MESSAGES, explained
from hermes_doctor.store.null_active import was_compacted
from hermes_doctor.store.reader import in_keys
from hermes_doctor.store.view import StoreView


def _mend(mending: Mending, finding: Finding) -> None:
    live: dict[str, Cell] = {"active": 1}
    put_away: dict[str, Cell] = {"active": 0, "compacted": 1}
    comes_back = finding.detail["becomes"] == 1
    if comes_back and not was_compacted(mending.view, finding.session):
        _count(mending, finding.session)
    mending.set("messages", finding.key, to=live if comes_back else put_away, expects={"active": None})


def _count(mending: Mending, session: Key) -> None:
    """Raise the counters of a session that leave out its rows with NULL.

    What they come to then does not change while row after row is mended, so each transaction looks once.
    """
    view = mending.view
    counted = view.once(_counted)
    if session in counted:
        return
    own, cells = in_keys("id", [session])
    enough = True
    for column, needs in ((MESSAGES, "active"), (CALLS, "tool_calls")):
        if not view.shape.has("sessions", "id", column) or not view.shape.has("messages", needs):
            continue
        held = view.reader.value(f"SELECT {column} FROM sessions WHERE {own}", cells)
        known = explained(view, session, column)
        if known is not None and isinstance(held, int) and known.low <= held < known.right:
            mending.set("sessions", session, to={column: known.right}, expects={column: held})
            enough = False  # and if this row's repair is taken back, so is this
    if enough:
        counted.add(session)


def _counted(_view: StoreView) -> set[Key]:
    """The sessions whose counters are high enough."""
    return set()


FIX = Fix(check="hidden-by-null", phase=Phase.RESTORE, uses_clock=False, page=__doc__ or "", mend=_mend, reindexes=True)
