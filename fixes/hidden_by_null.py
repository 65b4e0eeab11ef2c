"""Give a message with NULL in `active` the marks that it should have.

Up to 0.19 the triggers put a message into the search indexes anew whatever column changes, so texts have to be cut as
hermes cuts them. With the last such row of a session, a counter that comes to less than the rows that are seen now is
raised to them.

Beside a living hermes (--live)
Safe: from 0.18.2 on hermes does it itself at each start, beside others that run. What has the chat in memory goes on
without the message until it reads it again.
"""

from __future__ import annotations

from hermes_doctor.engine.cure import Fix, Mending, Phase, always_live
from hermes_doctor.engine.model import Finding
from hermes_doctor.store.cells import Cell, Key
from hermes_doctor.store.counters import CALLS, MESSAGES, explained
from hermes_doctor.store.reader import in_keys


def _mend(mending: Mending, finding: Finding) -> None:
    live: dict[str, Cell] = {"active": 1}
    put_away: dict[str, Cell] = {"active": 0, "compacted": 1}
    to = live if finding.detail["becomes"] == 1 else put_away
    mending.set("messages", finding.key, to=to, expects={"active": None})
    ours, cells = in_keys("session_id", [finding.session])
    if not mending.view.rows(f"SELECT 1 FROM messages WHERE {ours} AND active IS NULL LIMIT 1", cells):
        _count(mending, finding.session)


def _count(mending: Mending, session: Key) -> None:
    """Raise the counters of a session that say less than its rows do."""
    view = mending.view
    own, cells = in_keys("id", [session])
    for column, counts in ((MESSAGES, "active"), (CALLS, "tool_calls")):
        if not view.shape.has("sessions", "id", column) or not view.shape.has("messages", counts):
            continue
        held = view.reader.value(f"SELECT {column} FROM sessions WHERE {own}", cells)
        known = explained(view, session, column)
        if known is not None and isinstance(held, int) and held < known.low:
            mending.set("sessions", session, to={column: known.right}, expects={column: held})


FIX = Fix(
    check="hidden-by-null",
    phase=Phase.RESTORE,
    uses_clock=False,
    page=__doc__ or "",
    mend=_mend,
    reindexes=True,
    live=always_live,
)
