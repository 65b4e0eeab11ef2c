"""Sessions that are open although nobody will ever end them.

What it finds
Rows of `sessions` whose `ended_at` is NULL, which have been idle for longer than whoever made them
would leave them so, and which show no sign of life.

Why it matters
Pruning, exports and statistics go by ended rows: what stays open is never aged out, and the store
grows. Hermes marks the end of a session only when the process that ran it leaves in good order;
after a kill, a crash or a closed lid nobody comes back for it.

How it decides
Idle counts from the newest of the start, the newest message and the last activity; in a compression
chain from the newest row of the chain. A time that cannot be (text, 0, beyond 2103, before hermes
existed) makes the age unknown, and then there is no finding.

cli, cron, kanban, subagent, tool, oneshot: 1 hour where nobody has the store open, else 24 hours.
tui, desktop: 6 hours, and only where nobody has the store open. recovered: past the retention (90
days, or `sessions.retention_days`). api_server, acp: open is their healthy state, since nobody ever
ends or reopens them: a note past 24 hours, a warning past the retention. Messaging platforms: only
where a newer session has taken over the same `session_key` and nothing routes to this one, after
24 hours. Any other source: 24 hours.

Spared are rows that are pinned, routed (gateway_routing, sessions.json, topic bindings), being
handed off, or fresh anywhere below; and those in whose lineage a turn lease or a compression lock
has not expired, or a delegation is running or undelivered; and those that a backend with a
heartbeat within 180 seconds could own. Where the routes cannot be seen, chats are spared.

Fix
The row is ended as `startup_orphan_reap` at the present time. That is the reason by which hermes
itself ends such rows; resuming one reopens it, and from 0.21 on it ages from this end.

Fix safety
Safe, but for these. Up to schema 29 upstream's prune goes by the start or the messages of an ended
row and may delete it at the next start: a row past its retention by that clock is unsafe, unless
this home's config was read and turns `sessions.auto_prune` off. api_server and acp are unsafe up to
schema 25, whose releases do not know the reason. Messaging platforms are always unsafe: a chat that
still leads there would break. So is one of several continuations of a chat: releases resume the
open one first, and would then resume another. Other sources are reported only, and so are open rows
that carry an end reason, which would be lost.

Upstream
Issues 12029, 22071, 94924 (open rows that nobody ends), 94895, 94971, 118161 (live and pinned rows
that a sweep ended), 88443 (a person at work in an open cron row), 114219 (which clock counts).
Releases end tui, desktop and subagent rows themselves from 0.20.6 on, other state-owned sources
past their retention from 0.21.5 on, and nothing before that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hermes_doctor.engine.model import Check, Finding, RelationRule, Safety, Severity
from hermes_doctor.store.cells import Key, as_text
from hermes_doctor.store.clocks import DAY, HOUR
from hermes_doctor.store.open_rows import LeftBehind, left_behind
from hermes_doctor.store.retention import ending_is_dangerous, retention
from hermes_doctor.store.sources import Group
from hermes_doctor.store.view import StoreView

NAME = "open-zombies"

#: The last schema of a release (0.20.0) that takes startup_orphan_reap for an end like any other.
_KNOWS_NOT_THE_REASON = 25

_GONE = {
    "cli": "its terminal is gone",
    "cron": "its cron run is gone",
    "kanban": "its kanban worker is gone",
    "subagent": "the run that it worked for is gone",
    "tool": "its tool run is gone",
    "oneshot": "its run is gone",
    "tui": "its terminal is gone",
    "desktop": "its window is gone",
}
_WHY = {
    Group.STANDING: "nobody ever ends such rows",
    Group.RECOVERED: "a placeholder of a recovery, past the retention",
    Group.MESSAGING: "a newer session has taken over its chat",
    Group.OTHER: "nobody is known to end it",
}


def _find(view: StoreView, keys: Sequence[Key] | None) -> Iterator[Finding]:
    for row in left_behind(view, keys):
        yield _finding(view, row)


def _finding(view: StoreView, row: LeftBehind) -> Finding:
    safety, refusal = _safety(view, row)
    source = as_text(row.source)
    detail: dict[str, str | int | float | bool | Sequence[str] | None] = {
        "source": source,
        "idle_seconds": round(row.idle),
        "clock": row.clock,
    }
    if row.successor is not None:
        detail["successor"] = str(row.successor)
    if row.forked:
        detail["forked"] = True
    if safety is Safety.UNSAFE and ending_is_dangerous(view, row.age):
        detail["prunable"] = "once ended"
    why = _WHY.get(row.group) or _GONE[source or ""]
    standing_early = row.group is Group.STANDING and row.idle < retention(view)
    return Finding(
        check=NAME,
        severity=Severity.INFO if standing_early else Severity.WARNING,
        table="sessions",
        key=row.session,
        session=row.session,
        summary=f"open for {_in_words(row.idle)}, {why}",
        detail=detail,
        fix=safety,
        action=None if safety is Safety.NONE else "end it as startup_orphan_reap",
        refusal=refusal,
    )


def _safety(view: StoreView, row: LeftBehind) -> tuple[Safety, str | None]:
    """Return how safe it is to end the row, and why it is not to be ended here."""
    if row.group is Group.OTHER:
        return Safety.NONE, None
    if row.end_reason is not None:
        return Safety.NONE, "it has no end but carries an end reason, which would be overwritten"
    too_old = row.group is Group.STANDING and view.shape.version <= _KNOWS_NOT_THE_REASON
    if row.group is Group.MESSAGING or too_old or row.forked or ending_is_dangerous(view, row.age):
        return Safety.UNSAFE, None
    return Safety.SAFE, None


def _in_words(seconds: float) -> str:
    """Return a span of time as a person says it, rounded down: 3 days, 5 hours."""
    for unit, size in (("day", DAY), ("hour", HOUR), ("minute", 60.0)):
        count = int(seconds // size)
        if count:
            return f"{count:,} {unit}{'' if count == 1 else 's'}"
    return "less than a minute"


CHECK = Check(
    name=NAME,
    severity=Severity.WARNING,
    summary="sessions that are open although nobody will ever end them",
    meaning="rows that nobody will ever end; prune steps around them",
    fix=Safety.SAFE,
    page=__doc__ or "",
    rule=RelationRule("sessions", _find),
)
