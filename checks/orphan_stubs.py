"""Sessions that never held anything and that nothing refers to.

What it finds
Rows of `sessions` that a start or a passing event left behind: no message row of any kind, no
title, no pin, no child, no usage, no tokens or calls, no handoff, and idle for a day.

Why it matters
They fill the lists of sessions (138 of 270 rows in one day, 24 of 52 of a terminal's), and in
0.17 and later an empty row can be what a resumed chat lands on. Upstream's own clean-ups look
only at ended rows of one source, once in the life of a store, or trust `message_count`.

How it decides
Rows decide, not counters: `message_count` is 0 on many a real chat. A session is left alone where
anything speaks of it: any session-id column or JSON with session ids of any ordinary table of the
store (routes, topic bindings, delegations, leases, goals kept in `state_meta`, tables of plugins),
a marker in another session's `model_config`, `sessions.json`, `active_sessions.json`,
`cron/jobs.json`, a transcript file, hermes's other databases in the home. So are the only
continuation of a parent ended by compression (that is lineage-gaps') and whatever belongs to a
family in which a turn, a compression or a delegation is going on.
An open row must also be fit to be ended, as open-zombies sees it; one of the API server or of an
editor (acp), whose healthy state is open, only past the retention. A messaging platform's row is
one only where the routes can be seen. Hidden and archived are no evidence either way. Absurd times
are no evidence of age, and a time in the future means not idle.

Fix
The empty row is deleted.

Fix safety
Safe for cli, cron, kanban, subagent, tool, oneshot, api_server, acp, recovered, tui and desktop
rows. Unsafe for every other source, and wherever something that could refer to the row cannot be
seen: a store without its home, a file or a table that cannot be read, an id that is no text.

Upstream
Issues 18269, 40949, 43855 (delete only without messages, title and children), 43212, 111999 and
112311 (rows that the token accounting made); 45236 and 39734 for real chats with a counter of 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hermes_doctor.engine.model import Check, Finding, RelationRule, Safety, Severity
from hermes_doctor.store.cells import Key
from hermes_doctor.store.clocks import DAY
from hermes_doctor.store.lineage import continuations_of
from hermes_doctor.store.liveness import live_work, routes
from hermes_doctor.store.open_rows import left_behind
from hermes_doctor.store.references import References, has_transcript, references
from hermes_doctor.store.retention import retention
from hermes_doctor.store.sources import Group, group_of
from hermes_doctor.store.stubs import Stub, is_empty, stubs
from hermes_doctor.store.view import StoreView

NAME = "orphan-stubs"

#: Groups of sources whose empty rows nobody would miss; the others belong to somebody outside.
_SAFE_GROUPS = frozenset({Group.WORKER, Group.SCREEN, Group.STANDING, Group.RECOVERED})


def _find(view: StoreView, keys: Sequence[Key] | None) -> Iterator[Finding]:
    candidates = [stub for stub in stubs(view, keys) if not _is_wanted(view, stub)]
    candidates = [*_fit(view, candidates)]
    mentioned = references(view, [stub.id for stub in candidates])
    for stub in candidates:
        if not mentioned.of(stub.id) and not has_transcript(view, stub.id):
            yield _finding(view, stub, mentioned)


def _is_wanted(view: StoreView, stub: Stub) -> bool:
    """Whether the store itself says that the row is still needed."""
    if group_of(stub.source) is Group.MESSAGING and not routes(view).complete:
        return True
    return live_work(view, stub.id) is not None or _is_only_continuation(view, stub)


def _is_only_continuation(view: StoreView, stub: Stub) -> bool:
    """Whether a compressed conversation goes on in this row, and in no other that holds anything."""
    if stub.parent is None:
        return False
    ids = [continuation.id for continuation in continuations_of(view, stub.parent)]
    return stub.id in ids and all(is_empty(view, other) for other in ids if other != stub.id)


def _fit(view: StoreView, candidates: Sequence[Stub]) -> Iterator[Stub]:
    """Give the stubs that are ended, or open and fit to be ended."""
    behind = {row.session: row for row in left_behind(view, [stub.id for stub in candidates if not stub.ended])}
    for stub in candidates:
        row = behind.get(stub.id)
        if stub.ended or (row and (row.group is not Group.STANDING or row.idle >= retention(view))):
            yield stub


def _finding(view: StoreView, stub: Stub, mentioned: References) -> Finding:
    unseen = list(mentioned.unseen)
    if not isinstance(stub.id, str):
        unseen.append("its id is no text")
    idle = view.now - stub.newest
    days = int(idle // DAY)
    span = f"{days:,} day{'' if days == 1 else 's'}"
    summary = f"never held anything, {'ended' if stub.ended else 'open'} and idle for {span}"
    safe = group_of(stub.source) in _SAFE_GROUPS and not unseen
    return Finding(
        check=NAME,
        severity=Severity.WARNING,
        table="sessions",
        key=stub.id,
        session=stub.id,
        summary=f"{summary}; references cannot be seen: {unseen[0]}" if unseen else summary,
        detail={
            "source": stub.source if isinstance(stub.source, str) else None,
            "idle_seconds": round(idle),
            "ended": stub.ended,
            "unseen": unseen,
        },
        fix=Safety.SAFE if safe else Safety.UNSAFE,
        action="delete the empty row",
    )


CHECK = Check(
    name=NAME,
    severity=Severity.WARNING,
    summary="sessions that never held anything",
    meaning="sessions that never held a message",
    fix=Safety.SAFE,
    page=__doc__ or "",
    rule=RelationRule("sessions", _find),
)
