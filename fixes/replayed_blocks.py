"""Take copies out of a conversation, as a rewind takes messages out.

The first of each stays live under its own id, so the conversation keeps its order and hermes the ids it knows. The
session's counters are lowered with it, where they counted just its live messages; hermes does both when it rewinds
(0.20.6 on). No time of the session changes.

Beside a living hermes (--live)
No: a hermes that has the chat in memory goes on with the copies that were taken out, and compacts by them.
"""

from __future__ import annotations

from hermes_doctor.engine.cure import Fix, Mending, Phase, RowMovedError
from hermes_doctor.engine.model import Finding
from hermes_doctor.engine.rewinding import set_aside
from hermes_doctor.store.replays import blocks


def _mend(mending: Mending, finding: Finding) -> None:
    block = next(blocks(mending.view, [finding.key]), None)
    if block is None or not block.certain or block.summary:
        raise RowMovedError("the message is no copy in a row of copies any more")
    set_aside(mending, block.session, block.ids)


FIX = Fix(check="replayed-blocks", phase=Phase.HIDE, uses_clock=False, page=__doc__ or "", mend=_mend)
