"""Take copies out of a conversation, as a rewind takes messages out.

The first of each stays live under its own id, so the conversation keeps its order and hermes the ids it knows. The
session's counters are lowered with it, where they counted just its live messages; hermes does both when it rewinds
(0.20.6 on). No time of the session changes.
"""

from __future__ import annotations

import json

from hermes_doctor.engine.cure import Fix, Mending, Phase, RowMovedError
from hermes_doctor.engine.model import Finding
from hermes_doctor.store.replays import blocks
from hermes_doctor.store.setting_aside import counted_without


def _mend(mending: Mending, finding: Finding) -> None:
    block = next(blocks(mending.view, [finding.key]), None)
    if block is None or not block.certain or block.summary:
        raise RowMovedError("the message is no copy in a row of copies any more")
    counted = counted_without(mending.view, block.session, block.ids)
    aside = "active = 0, compacted = 0" if mending.view.shape.has("messages", "compacted") else "active = 0"
    mending.run(
        f"UPDATE messages SET {aside} WHERE active = 1 AND id IN (SELECT value FROM json_each(:ids))",
        {"ids": json.dumps(block.ids)},
        rows=len(block.ids),
    )
    if counted.after:
        mending.set("sessions", block.session, to=counted.after, expects=counted.before)


FIX = Fix(check="replayed-blocks", phase=Phase.HIDE, uses_clock=False, page=__doc__ or "", mend=_mend)
