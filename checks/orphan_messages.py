"""Messages whose session is gone.

What it finds
Sessions that have messages and no row in `sessions`. One finding for each such session; its key is
the smallest id of its messages.

Why it matters
No list of any release shows these messages, and no search leads to them, but they are whole. Found
in the wild: 20,817 of 20,824 messages after the table of sessions was damaged; 36,785 of 39,055
messages of 1,383 deleted sessions. Upstream's own recovery once saved such messages and then
deleted them as orphans.

How it decides
By the ids alone: a message names a session that has no row. The table of sessions counts as lost
where ten sessions are missing for each that is there (1,000 at most); rows rebuilt last count as
missing until all are rebuilt.

Fix
The session gets a minimal row, as upstream's `sessions recover` makes it: source `recovered`, a
title that says so and names its id, its start the time of its earliest message, and counts of its
active messages and their tool calls; where the release has it, also the time of its last message.
It is open, as upstream's is; but where just one session names it as its parent and begins with its
summary, it is ended as `compression` when that one began, since no list would show that one
otherwise. What the row held besides (model, parent, chat, costs) is not made up.
Its messages are put into the search index where that leaves out messages without a session. No
message is ever deleted.

Fix safety
Safe where the table of sessions is lost or nearly so. Unsafe where a few sessions are missing among
others that are there: somebody may have deleted them, and they would be listed again. Refused for
an id that is no text, for a session no message of which has a time that can be one, and where there
is no table of sessions at all.

Upstream
Issues 71803 (rebuild, never delete), 87928 (a deletion of such messages was proposed and not
merged), 114900 (recovered rows then expire as others do), 91536 (absurd times left by a recovery).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hermes_doctor.engine.model import Check, Finding, RelationRule, Safety, Severity
from hermes_doctor.store.cells import Key
from hermes_doctor.store.clocks import LATEST
from hermes_doctor.store.hermes_command import hermes
from hermes_doctor.store.orphans import Missing, missing_sessions, sessions_are_lost
from hermes_doctor.store.reader import in_keys
from hermes_doctor.store.view import StoreView

NAME = "orphan-messages"


def find(view: StoreView, keys: Sequence[Key] | None) -> Iterator[Finding]:
    """Give the sessions that are gone and left messages, all or those whose smallest message ids these are."""
    for missing in missing_sessions(view, keys):
        refusal = _refusal(view, missing)
        lost = sessions_are_lost(view)
        safety = Safety.SAFE if lost else Safety.UNSAFE
        yield Finding(
            check=NAME,
            severity=Severity.ERROR,
            table="messages",
            key=missing.first,
            session=missing.id,
            summary=_summary(missing.messages),
            detail={"messages": missing.messages, "sessions_lost": lost},
            fix=safety if refusal is None else Safety.NONE,
            action="rebuild the session from its messages" if refusal is None else None,
            refusal=refusal,
        )


def _summary(messages: int) -> str:
    if messages == 1:
        return "a message whose session is gone, so that no list shows it"
    return f"{messages:,} messages whose session is gone, so that no list shows them"


def _refusal(view: StoreView, missing: Missing) -> str | None:
    """Say why the session cannot be rebuilt here; None where it can."""
    if not view.shape.has("sessions", "id", "source", "started_at"):
        return f"there is no table of sessions: start {hermes(view)} once, which makes one"
    if not isinstance(missing.id, str):
        return "the session's id is no text"
    if not _has_time(view, missing.id):
        return "no message of it has a time that can be one, so that its start is not known"
    return None


def _has_time(view: StoreView, session: Key) -> bool:
    if not view.shape.has("messages", "timestamp"):
        return False
    among, cells = in_keys("session_id", [session])
    # Numbers sort before text and blobs, so one seek tells.
    return bool(
        view.rows(f"SELECT 1 FROM messages WHERE {among} AND timestamp > 0 AND timestamp < {LATEST} LIMIT 1", cells)
    )


CHECK = Check(
    name=NAME,
    severity=Severity.ERROR,
    summary="messages whose session is gone",
    meaning="chats whose messages are here and that no list shows, since their session is gone",
    fix=Safety.SAFE,
    page=__doc__ or "",
    rule=RelationRule("messages", find),
)
