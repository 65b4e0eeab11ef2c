"""Hide the prompt of a background review and the rows of its reply, as a rewind hides rows.

They become inactive and stay in the store. The session's counters are lowered with them, where they counted just its
live messages. No time of the session changes.

Beside a living hermes (--live)
No: a hermes that has the chat in memory goes on with the rows that were hidden, and compacts by them.
"""

from __future__ import annotations

from hermes_doctor.engine.cure import Fix, FixRefusedError, Mending, Phase, RowMovedError
from hermes_doctor.engine.model import Finding
from hermes_doctor.engine.rewinding import set_aside
from hermes_doctor.store.review_prompts import leak_at


def _mend(mending: Mending, finding: Finding) -> None:
    leak = leak_at(mending.view, finding.session, finding.key)
    if leak is None:
        raise RowMovedError("the row is no live prompt of a review any more")
    if leak.doubt is not None or not mending.view.shape.has("messages", "active"):
        raise FixRefusedError(leak.doubt or "its schema cannot hide messages")
    set_aside(mending, leak.session, (leak.prompt, *leak.replies))


FIX = Fix(check="leaked-prompts", phase=Phase.HIDE, uses_clock=False, page=__doc__ or "", mend=_mend)
