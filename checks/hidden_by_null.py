"""Messages that no replay shows, because their `active` is neither 1 nor 0 but NULL.

What it finds
Rows of `messages` with NULL in `active`.

Why it matters
Every reader asks for `active = 1`, so such rows are in no chat that is resumed, and a chat of
nothing else looks as if hermes had forgotten it. 0.16 to 0.18.0 leave them so for ever, and write
more of them: their inserts do not name the column, and in the stores that this happens to, it has
no default. From 0.18.2 on each start of hermes that may write makes all of them active; what lies
there until then was written by such a release or by a tool.

How it decides
By the NULL alone: an error below schema 19, whose releases never mend it, else a warning. What the
row was before is another question. Nearly always it was live. A row that is marked `compacted` was
put away by a compaction in place: hermes's own repair would bring it back into the chat, beside the
summary that stands for it. So it would with rows that a compaction missed (0.18.0 compacts in place
unless told otherwise, and puts away only what is active): where the newest rows, as many as
`message_count` says, hold a summary, the rows before them are taken for those. Both are warnings.

Fix
`active` becomes 1. A row marked `compacted` gets 0 instead, and a row that a compaction missed gets
both marks of one that is put away: still found by search, not replayed. A session's counters that
come to less than what is seen then are raised to it. Nothing is changed in a session that may be in
use at that moment.

Fix safety
Safe: the rows are shown as they were written. Only the rows that a compaction missed are left until
`--unsafe`, since what was put away is concluded from the counter.

Upstream
Issues 51646 and 60108 (the repair at each start; the inserts name the column from then on).
"""

from __future__ import annotations

from hermes_doctor.engine.model import Check, Finding, Row, RowRule, Safety, Severity
from hermes_doctor.store.null_active import HEALED_SINCE, Standing, standing, waits
from hermes_doctor.store.shape import Shape
from hermes_doctor.store.view import StoreView

NAME = "hidden-by-null"


def _condition(shape: Shape) -> str | None:
    return f"{shape.column('messages', 'active')} IS NULL" if shape.has("messages", "active") else None


def _judge(row: Row, view: StoreView) -> Finding:
    session = row["session_id"]
    was = standing(view, session, row["id"], row["compacted"])
    live = was is Standing.LIVE
    fix = Safety.UNSAFE if was is Standing.MISSED else Safety.SAFE
    refusal = waits(view, session)
    return Finding(
        check=NAME,
        severity=Severity.ERROR if live and view.shape.version < HEALED_SINCE else Severity.WARNING,
        table="messages",
        key=None,
        session=session,
        summary=_SUMMARIES[was],
        detail={"column": "active", "becomes": 1 if live else 0},
        fix=Safety.NONE if refusal else fix,
        action=None if refusal else "show it again" if live else "put it away, as the compaction meant to",
        refusal=refusal,
    )


_SUMMARIES = {
    Standing.LIVE: "active is NULL, so no replay shows it",
    Standing.ARCHIVED: "active is NULL in a row that a compaction put away, and hermes would replay it again",
    Standing.MISSED: "active is NULL, so a compaction missed it, and hermes would replay it beside the summary",
}


CHECK = Check(
    name=NAME,
    severity=Severity.ERROR,
    summary="messages that no replay shows, because their active is NULL",
    meaning="chats that hermes seems to have forgotten",
    fix=Safety.SAFE,
    page=__doc__ or "",
    rule=RowRule("messages", ("id", "session_id", "compacted"), _condition, _judge),
)
