"""Conversations that hermes refuses to resume or to export, because they are too long.

What it finds
Conversations of more messages than `sessions.max_resume_messages` allows, and sessions of more than
`sessions.max_export_messages` allows: 20,000 each, where the config says nothing.

Why it matters
0.20.6 and newer count first, and load nothing when there are too many: the chat cannot be opened
any more, although nothing is wrong with it. The command line and the screens count the whole
conversation. From 0.21.5 on a single question (`hermes -z`), and screens that load what is older
page by page, look only at the last session.

How it decides
By rows, counted as the store's release counts them. Resuming goes to the end of a chain, so that is
the session that is named. 0.20.6 adds up the active rows of all sessions above it; 0.21.5 also the
compacted ones, but of a branch only its own; 0.22.2 only of sessions that it continues. What a tool
or a delegate ran is nothing that is resumed together with its parent. An export counts the
session's own rows: the active ones, from 0.22.2 on all. Stores of older releases are counted as
0.22.2 would, for information: these releases have no limit.

Fix
None. Hermes offers the way out: `hermes config set sessions.max_resume_messages 0` (or
`sessions.max_export_messages`) lifts the limit, at the cost of memory and time; any number sets
another one. The dashboard's export, and `hermes sessions export --format md`, are not limited.

Fix safety
Nothing is changed. A conversation is never cut.

Upstream
The limits came with 0.20.6, of `hermes_state` (`assert_resume_safe`, `assert_export_safe`). Issue
125041 (chains of 180 sessions in real stores).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hermes_doctor.engine.model import Check, Finding, RelationRule, Safety, Severity
from hermes_doctor.store.cells import Key
from hermes_doctor.store.sizes import LIMITED, Size, large, limits
from hermes_doctor.store.view import StoreView

NAME = "oversize-chats"

RESUME_SETTING = "sessions.max_resume_messages"
EXPORT_SETTING = "sessions.max_export_messages"


def _find(view: StoreView, keys: Sequence[Key] | None) -> Iterator[Finding]:
    most_resumed, most_exported = limits(view)
    for size in large(view, keys):
        refused = [RESUME_SETTING] if most_resumed and size.resumed > most_resumed else []
        refused += [EXPORT_SETTING] if most_exported and size.exported > most_exported else []
        if refused:
            yield _finding(view, size, refused)


def _finding(view: StoreView, size: Size, settings: Sequence[str]) -> Finding:
    most_resumed, most_exported = limits(view)
    limited = view.shape.version >= LIMITED
    if RESUME_SETTING in settings:
        along = "" if size.sessions == 1 else f" in {size.sessions:,} sessions"
        summary = _sentence("resume it", size.resumed, along, most_resumed, RESUME_SETTING, limited=limited)
    else:
        summary = _sentence("export it as JSON", size.exported, "", most_exported, EXPORT_SETTING, limited=limited)
    return Finding(
        check=NAME,
        severity=Severity.WARNING if limited and RESUME_SETTING in settings else Severity.INFO,
        table="sessions",
        key=size.session,
        session=size.session,
        summary=summary,
        detail={
            "settings": list(settings),
            "resumed": size.resumed,
            "resumed_sessions": size.sessions,
            "last_session_alone": size.alone,
            "exported": size.exported,
            "resume_limit": most_resumed,
            "export_limit": most_exported,
        },
    )


def _sentence(deed: str, count: int, along: str, limit: int, setting: str, *, limited: bool) -> str:
    who = "hermes refuses" if limited else "releases from 0.20.6 refuse"
    return f"{who} to {deed}: {count:,} messages{along}, and {setting} allows {limit:,} (0 lifts the limit)"


CHECK = Check(
    name=NAME,
    severity=Severity.WARNING,
    summary="conversations too long to be resumed or exported",
    meaning="chats that hermes refuses to open, unless a setting is raised",
    fix=Safety.NONE,
    page=__doc__ or "",
    rule=RelationRule("sessions", _find),
)
