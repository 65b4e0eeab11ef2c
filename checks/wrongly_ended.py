"""Chats that carry an end although they still go on.

What it finds
Sessions that a chat still leads to, that have messages younger than their end, and whose end was
no decision of a person: an automatic clean-up, or the close of a program that had already handed
the session on.

Why it matters
From 0.18.0 on the end reason is what the gateway asks to tell whether a chat is alive: the next
message finds this one over and begins an empty one, without a word. Older gateways go on in the
row. In every release prune counts it among the ended ones and may delete it, and from 0.21 on a
conversation with such an end can never be compressed, so that a long one stops.

How it decides
All of this must be so. A route that can be seen leads to the row itself: its entry in
gateway_routing, a topic binding, or sessions.json where there is nothing else. The reason is an
automatic one (agent_close, ws_orphan_reap, superseded_by_resume, startup_orphan_reap,
tui_shutdown, ws_disconnect, idle_timeout, lru_evict), or, after a handoff that was completed, a
close (cli_close, tui_close, webhook_complete, cron_complete). An active message is younger than
the end. No child row is there in which the conversation could go on; only branches, delegates,
resets and tools may be below it. /new, /resume, resets, compression and every unknown reason are
decisions, and never found.

Where the store's release opens such a chat again by itself at the next message, it is a note:
agent_close from 0.18.0 on, ws_orphan_reap from 0.19.0 on, superseded_by_resume and
startup_orphan_reap from 0.20.6 on, any reason after a completed handoff from 0.21.5 on. It finds
the row by its session key or its chat; from 0.20.6 on it does not where another row of the chat
was reset after the last activity that this row notes.

Fix
Both the end and its reason are cleared, if they are still the same: the row is open again, and a
later close is recorded. Routes are left as they are. What heals itself is left to the gateway.

Fix safety
Unsafe. Only the gateway knows whether it still routes a chat; a route may be stale. Left alone are
chats in which another session of the same key has begun, or was ended on purpose, since; and those
in whose lineage a turn, a compression or a delegation is going on.

Upstream
Issues 106459 and 107187 (a stale close on a routed row: only the routing host may clear it, and
only without a continuation), 88234, 88244 and 119876 (the close after a handoff), 88197 (automatic
ends), 63219 and 98495 (live chats that were ended). 0.21.5 clears explicit closes itself, in the
process that runs the chat.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hermes_doctor.engine.model import Check, Finding, RelationRule, Safety, Severity
from hermes_doctor.store.cells import Key
from hermes_doctor.store.view import StoreView
from hermes_doctor.store.wrong_ends import WrongEnd, wrong_ends

NAME = "wrongly-ended"

_HEALS = "the gateway opens it again by itself at the next message"


def _find(view: StoreView, keys: Sequence[Key] | None) -> Iterator[Finding]:
    for wrong in wrong_ends(view, keys):
        yield _finding(wrong)


def _finding(wrong: WrongEnd) -> Finding:
    refusal = wrong.obstacle or (_HEALS if wrong.heals else None)
    after = " after it was handed over" if wrong.handed_over else ""
    return Finding(
        check=NAME,
        severity=Severity.INFO if wrong.heals else Severity.WARNING,
        table="sessions",
        key=wrong.session,
        session=wrong.session,
        summary=f"was ended as {wrong.end_reason}{after}, but its chat goes on",
        detail={"end_reason": wrong.end_reason, "ended_at": wrong.ended_at, "handed_over": wrong.handed_over},
        fix=Safety.UNSAFE if refusal is None else Safety.NONE,
        action="clear its end" if refusal is None else None,
        refusal=refusal,
    )


CHECK = Check(
    name=NAME,
    severity=Severity.WARNING,
    summary="chats that carry an end although they still go on",
    meaning="the next message may begin an empty chat; long ones can never be compressed",
    fix=Safety.UNSAFE,
    page=__doc__ or "",
    rule=RelationRule("sessions", _find),
)
