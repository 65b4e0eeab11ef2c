"""Prompts of background reviews that lie in somebody's chat.

What it finds
Rows of a chat in which hermes tells itself to look back over the conversation for what is worth
keeping in its memory or its skills, stored as if the person had said so, and the reply to each.

Why it matters
Who resumes the chat gives the model an order that was never meant for it: it goes on as a curator
and refuses the person's task. Releases up to 0.17.0 replay all of it. From 0.18.0 on the prompts
about skills and about memory are left out, with the one row behind each. What follows of a reply
that calls tools is replayed all the same, and so is the prompt about both.

How it decides
A live `user` or `system` row whose content is one of the three prompts as 0.13.0 to 0.22.2 send
it: its opening words, what it says about having nothing to save, and at its very end the paragraph
about the tools, or the prompt's own last words. Who quotes a prompt has written more, or less.

The reply is what the assistant says next, with its calls and the tools' answers, up to the first
row without calls or the next message. Of several prompts in a row none has a reply: what comes next
belongs to the chat. Rewound and compacted rows are no fault. A session in which nobody but reviews
ever asked anything is a review's own, and none either.

Fix
The prompt and the rows of its reply become inactive, as a rewind leaves them. Nothing is deleted.
Where the session's counters counted just its live rows, they still do.

Fix safety
Unsafe. No mark tells whose a reply is, only its place. Where a turn of the chat was under way when
the prompt was written, or both are mixed, the row is left; so it is while a turn may be running,
and in schemas without `active` (up to 0.15.2).

Upstream
Issue 110606, and 111566: two prompts in a row (0.21.5 on; 0.18.0 to 0.20.6 lose the real reply).
Since 0.18.0 reviews store nothing.
"""

from __future__ import annotations

from dataclasses import replace

from hermes_doctor.engine.model import Check, Finding, Row, RowRule, Safety, Severity
from hermes_doctor.store.review_prompts import Leak, is_prompt, leak_at, live_sql, suspect_sql
from hermes_doctor.store.setting_aside import spared
from hermes_doctor.store.shape import Shape
from hermes_doctor.store.view import StoreView

NAME = "leaked-prompts"


def _condition(shape: Shape) -> str | None:
    suspect = suspect_sql(shape)
    return suspect and f"{live_sql(shape)} AND {suspect}"


def _judge(row: Row, view: StoreView) -> Finding | None:
    # The content is at hand, so that quotes cost no look-up.
    leak = leak_at(view, row["session_id"], row["id"]) if is_prompt(row["content"]) else None
    if leak is None:
        return None
    count = len(leak.replies)
    rows = f"{count} row{'' if count == 1 else 's'} of its reply"
    finding = Finding(
        check=NAME,
        severity=Severity.WARNING,
        table="messages",
        key=leak.prompt,
        session=leak.session,
        summary="a background review's prompt lies in the chat" + (f", with {rows}" if count else ""),
        detail={"replies": count, "in_a_row": leak.in_a_row},
        fix=Safety.UNSAFE,
        action="hide it" + (f" and {rows}" if count else ""),
    )
    reason = _refusal(view, leak)
    return finding if reason is None else replace(finding, fix=Safety.NONE, action=None, refusal=reason)


def _refusal(view: StoreView, leak: Leak) -> str | None:
    """Return why the rows must not be hidden, None where they may."""
    if not view.shape.has("messages", "active"):
        return "its schema cannot hide messages: open the store with hermes 0.16.0 or newer, then scan again"
    return spared(view, leak.session) or leak.doubt


CHECK = Check(
    name=NAME,
    severity=Severity.WARNING,
    summary="prompts of background reviews in somebody's chat, and the replies to them",
    meaning="hermes's orders to itself lie in chats; who resumes one gets a curator",
    fix=Safety.UNSAFE,
    page=__doc__ or "",
    rule=RowRule("messages", ("id", "session_id", "content"), _condition, _judge),
)
