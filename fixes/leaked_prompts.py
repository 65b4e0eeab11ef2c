"""Hide the prompt of a background review and the rows of its reply, as a rewind hides rows.

They become inactive and stay in the store. A counter that agreed with the live rows is lowered by what is hidden; one
that did not is left: the rows explain it now just as they did before.
"""

from __future__ import annotations

import json

from hermes_doctor.engine.cure import Fix, FixRefusedError, Mending, Phase, RowMovedError
from hermes_doctor.engine.model import Finding
from hermes_doctor.store.counters import CALLS, MESSAGES, length_sql
from hermes_doctor.store.review_prompts import leak_at, live_sql

_LOWER = """
UPDATE sessions SET {counter} = {counter} - (SELECT {total} FROM messages WHERE {counted} AND {hidden})
 WHERE id = CAST(:session AS TEXT)
   AND {counter} = (SELECT {total} FROM messages WHERE session_id = CAST(:session AS TEXT) AND {counted})
"""

_HIDE = "UPDATE messages SET {inactive} WHERE {hidden} AND {live}"

_HIDDEN = "id IN (SELECT value FROM json_each(:rows))"


def _mend(mending: Mending, finding: Finding) -> None:
    shape = mending.view.shape
    leak = leak_at(mending.view, finding.session, finding.key)
    if leak is None:
        raise RowMovedError("the row is no live prompt of a review any more")
    if leak.doubt is not None or not shape.has("messages", "active"):
        raise FixRefusedError(leak.doubt or "its schema cannot hide messages")
    rows = (leak.prompt, *leak.replies)
    values = {"rows": json.dumps(rows)}
    live = live_sql(shape)
    counters = {MESSAGES: ("count(*)", live)}
    if shape.has("messages", "tool_calls"):
        total = f"coalesce(sum({length_sql('tool_calls')}), 0)"
        counters[CALLS] = (total, f"{live} AND role = 'assistant' AND tool_calls IS NOT NULL")
    for counter, (total, counted) in counters.items():
        if shape.has("sessions", "id", counter):
            sql = _LOWER.format(counter=counter, total=total, counted=counted, hidden=_HIDDEN)
            mending.connection.execute(sql, {**values, "session": mending.single(finding.session)})
    inactive = ", ".join(f"{column} = 0" for column in ("active", "compacted") if shape.has("messages", column))
    mending.run(_HIDE.format(inactive=inactive, hidden=_HIDDEN, live=live), values, rows=len(rows))


FIX = Fix(check="leaked-prompts", phase=Phase.HIDE, uses_clock=False, page=__doc__ or "", mend=_mend)
