"""Chats that no list shows.

What it finds
Ordinary chats that an upgrade marked as delegates without a parent. Chats that hang on another
session without being a branch, a reset chat or a continuation of it, although a person wrote in
them.

Why it matters
The upgrade to schema 16 (0.17.0, or any newer release that opens an older file) means to mark the
runs of delegates whose parent was deleted. It marks every short untitled session in which a tool
was used, and from 0.17 on no list shows what is marked: the chat is there, but only its id leads to
it. Search leaves its messages out as well (0.21.5 on).

How it decides
The mark is `_delegate_from` with the value `__orphaned__`, on a session without a parent or on a
continuation that copied it. It is an ordinary chat for certain if it has a title, a user or a chat,
or is pinned, or if a person wrote in it more than once: a delegate gets one task and nothing of the
others. With a single message it may be either. Runs (subagent, tool, cron, kanban, oneshot) are
none. A child without a mark is reported where its parent did not end by compression and a person
wrote in it at least twice; a chat whose parent was opened again looks so. Hidden on purpose or
archived is no fault. A missing parent is lineage-gaps', a `model_config` that is no JSON, on which
whole lists fail, broken-json's.

Fix
The mark is taken out of `model_config`, everything else in it stays as it is written; where nothing
else was in it the column becomes NULL, as hermes leaves it. The search index gets the messages.

Fix safety
Unsafe: whether a session is a chat is known from its messages only. A marked session with a single
message is refused, and so is a `model_config` in which the mark is not found by its text.

Upstream
The step is in every release from 0.17.0 to 0.22.2; none takes the mark off again. Issue 20856
(branches that vanished from the list when their parent ended anew).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hermes_doctor.engine.model import Check, Finding, RelationRule, Safety, Severity
from hermes_doctor.store.cells import Key
from hermes_doctor.store.hidden_chats import HIDES_MARKED, Hidden, Why, hidden_chats
from hermes_doctor.store.view import StoreView

NAME = "hidden-chats"

_MAY_BE_A_RUN = (
    "a single message may be a delegate's task: read it with hermes --resume and its id; if it is a chat, give it a"
    " title with hermes sessions rename, then type doctor fix again"
)


def _find(view: StoreView, keys: Sequence[Key] | None) -> Iterator[Finding]:
    for chat in hidden_chats(view, keys):
        marked = chat.why is Why.MARKED
        yield Finding(
            check=NAME,
            severity=_severity(chat, view.shape.version),
            table="sessions",
            key=chat.session,
            session=chat.session,
            summary=_summary(chat, view.shape.version),
            detail={
                "kind": chat.why.value,
                "source": chat.source if isinstance(chat.source, str) else None,
                "user_messages": chat.said,
            },
            fix=Safety.UNSAFE if marked and chat.certain else Safety.NONE,
            action="take the mark off, so that it is listed" if marked and chat.certain else None,
            refusal=_MAY_BE_A_RUN if marked and not chat.certain else None,
        )


def _severity(chat: Hidden, version: int) -> Severity:
    match chat.why:
        case Why.UNJOINED:
            return Severity.WARNING
        case Why.MARKED:
            return Severity.ERROR if chat.certain and version >= HIDES_MARKED else Severity.INFO


def _summary(chat: Hidden, version: int) -> str:
    match chat.why:
        case Why.UNJOINED:
            return "hangs on another session as a delegate would, so no list shows it; hermes --resume with its id does"
        case Why.MARKED if version < HIDES_MARKED:
            return "was marked as a delegate by an upgrade; releases from 0.17 do not list it"
        case Why.MARKED if not chat.certain:
            return "was marked as a delegate by an upgrade, and may be one, so no list shows it"
        case Why.MARKED:
            return "was marked as a delegate by an upgrade, so no list shows it"


CHECK = Check(
    name=NAME,
    severity=Severity.ERROR,
    summary="chats that no list shows",
    meaning="chats that are there, but that no list shows",
    fix=Safety.UNSAFE,
    page=__doc__ or "",
    rule=RelationRule("sessions", _find),
)
