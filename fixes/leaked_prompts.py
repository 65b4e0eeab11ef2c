"""Hide the prompt of a background review and the rows of its reply, as a rewind hides rows.

They become inactive and stay in the store. The session's counters are lowered with them, where they counted just its
live messages. No time of the session changes.
"""

from __future__ import annotations

import json

from hermes_doctor.engine.cure import Fix, FixRefusedError, Mending, Phase, RowMovedError
from hermes_doctor.engine.model import Finding
from hermes_doctor.store.review_prompts import leak_at, live_sql
from hermes_doctor.store.setting_aside import counted_without


def _mend(mending: Mending, finding: Finding) -> None:
    shape = mending.view.shape
    leak = leak_at(mending.view, finding.session, finding.key)
    if leak is None:
        raise RowMovedError("the row is no live prompt of a review any more")
    if leak.doubt is not None or not shape.has("messages", "active"):
        raise FixRefusedError(leak.doubt or "its schema cannot hide messages")
    rows = (leak.prompt, *leak.replies)
    counted = counted_without(mending.view, leak.session, rows)
    hidden = ", ".join(f"{column} = 0" for column in ("active", "compacted") if shape.has("messages", column))
    mending.run(
        f"UPDATE messages SET {hidden} WHERE id IN (SELECT value FROM json_each(:rows)) AND {live_sql(shape)}",
        {"rows": json.dumps(rows)},
        rows=len(rows),
    )
    if counted.after:
        mending.set("sessions", leak.session, to=counted.after, expects=counted.before)


FIX = Fix(check="leaked-prompts", phase=Phase.HIDE, uses_clock=False, page=__doc__ or "", mend=_mend)
