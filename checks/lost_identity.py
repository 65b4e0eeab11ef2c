"""Continuations that lost what says whose chat they are, or where they work.

What it finds
Sessions in which a compressed conversation goes on, and that lack what their parent has: the
routing of a chat (`session_key`, `user_id`, `chat_id`, `chat_type`, `thread_id`), or the working
folder and repository (`cwd`, `git_repo_root`, `git_branch`).

Why it matters
Without routing a chat's continuation is not found by its chat: after a restart the gateway opens
the old part or begins anew, the list of that chat lacks it, and resuming it there is refused, since
nobody can prove whose it is. Without a folder it drops out of its project (0.16 on). Releases up to
0.19 make continuations so; what sets the routing right afterwards may never come to it.

How it decides
Only a continuation inherits, and only from its immediate parent, which ended by compression;
branches, delegates and reset chats never do. What that parent lacks itself and gets from its own
counts as the parent's. A parent without a routing key and a chat has nothing to hand on. A session
with another key is routed elsewhere, and one with another folder works elsewhere: neither is a
loss. A parent that ended in the last five minutes, or a turn or compression that is under way in
the conversation, may still be about to set it.

Fix
Columns that are NULL get the parent's value, nothing else is touched: routing together with what
the releases copy beside it (`display_name`, `origin_json`, `profile_name`, `transport_profile`),
and folder, repository and branch.

Fix safety
Unsafe: routing guards a chat against other people. It is refused where source, profile or any part
of the routing that the session has contradicts its parent's, where a chat with that key is routed
to a session outside the conversation, or where such a session has the key and is open or newer.
The folder may be mended all the same.

Upstream
Issues 59527 and 62278 (routing; releases from 0.20.0 copy it, NULL only, when the row is made),
69343 and 64709 (folder), 92859 (two open sessions with one key), 82616 (`hermes sessions
repair-routing`, which also looks for other donors; 0.20.6 on).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hermes_doctor.engine.model import Check, Finding, RelationRule, Safety, Severity
from hermes_doctor.store.cells import Key
from hermes_doctor.store.identity import PLACE, ROUTING, Lost, losses
from hermes_doctor.store.view import StoreView

NAME = "lost-identity"


def _find(view: StoreView, keys: Sequence[Key] | None) -> Iterator[Finding]:
    for lost in losses(view, keys):
        yield Finding(
            check=NAME,
            severity=_severity(lost),
            table="sessions",
            key=lost.session,
            session=lost.session,
            summary=_summary(lost),
            detail={
                "parent": lost.parent.hex() if isinstance(lost.parent, bytes) else str(lost.parent),
                "columns": list(lost.columns),
                "contested": list(lost.contested),
                "tip": lost.tip,
            },
            fix=Safety.UNSAFE if lost.values else Safety.NONE,
            action=f"fill in {', '.join(lost.columns)} from its parent" if lost.values else None,
            refusal=None if lost.values else lost.obstacle,
        )


def _severity(lost: Lost) -> Severity:
    if not lost.tip:
        return Severity.INFO
    return Severity.ERROR if _lacks_routing(lost) else Severity.WARNING


def _lacks_routing(lost: Lost) -> bool:
    return any(column in ROUTING for column in (*lost.columns, *lost.contested))


def _summary(lost: Lost) -> str:
    what = []
    if _lacks_routing(lost):
        what.append("routing")
    if any(column in PLACE for column in lost.columns):
        what.append("folder" if "cwd" in lost.columns else "repository")
    text = f"goes on a conversation without its {' and '.join(what)}"
    return f"{text}; {lost.obstacle}" if lost.values and lost.obstacle else text


CHECK = Check(
    name=NAME,
    severity=Severity.ERROR,
    summary="continuations that lost their chat's routing or their folder",
    meaning="chats that go on in a session which their chat or project does not find",
    fix=Safety.UNSAFE,
    page=__doc__ or "",
    rule=RelationRule("sessions", _find),
)
