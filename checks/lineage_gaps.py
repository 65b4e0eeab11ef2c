"""Chats that lost their parent, or that go on nowhere.

What it finds
Sessions whose parent does not exist, or is the session itself. Sessions ended by compression whose
conversation goes on in no other session, or only in an empty one. And, to look at: loops of
parents, delegates whose marks name each other, one conversation that goes on in several sessions,
chains of more links than this release follows.

Why it matters
When a conversation grows too long, hermes ends its session as `compression` and goes on in a new
one; `parent_session_id` joins the two. A session with a missing parent is in no list of any
release, and neither is one that is its own parent, or in a loop. A session that was ended by
compression refuses every new message (0.20.0 on) although there is no other to write to. Where the
other is empty, resuming opens it (0.17.0 on), and the chat seems to have lost all its messages.

How it decides
Only a continuation continues a conversation. A child is something else if it is a tool's, or if its
mark says that it was branched, delegated or reset from this very parent; a mark that names another
session was inherited. A continuation counts in whatever state it is, and may have started before
its parent ended. A parent that ended in the last five minutes may be in the middle of a rotation,
and so may one with a lease or lock that is still good on it, on its chain or on its root: both are
left alone. Empty means: never held anything, for at least a day. A child without a mark that is
more than five minutes older than its parent's end does not make a second continuation: delegates of
old releases look like that. Up to schema 22 (0.19.0) closed parents still take messages: this is
for information only.

Fix
Missing or own parent: the session is detached, so that it is listed again. No continuation: the end
is cleared where a chat is routed there or it was used in the last day; else the reason becomes
`startup_orphan_reap` with the present time, after which it takes messages again and is no open row.
An empty continuation is deleted, and its parent mended in the same transaction. Everything else is
reported only: each of several continuations may hold turns of its own.

Fix safety
Safe, but for the deletion of an empty row, which is unsafe. A missing parent is detached only from
what was a chat of its own: branched or reset from that parent, or a chat of a person's with
messages of theirs and no delegate's mark. It is refused while messages, usage or routes of the
missing session are left, from which it can be rebuilt. Deleting is refused while anything names the
empty row.

Upstream
Issues 80337 and 80487 (closed without continuation), 15000, 45035, 48682 (resume opens an empty
child), 34351 (several continuations), 49148 (delegates that name each other: deleting one deleted
its parent), 125041 (longest chain), 75194 (missing parent). 0.20.6 on reopen such a parent in one
case of their own; no release mends the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hermes_doctor.engine.model import Check, Finding, RelationRule, Safety, Severity
from hermes_doctor.store.cells import Key
from hermes_doctor.store.lineage_faults import Fault, Kind, faults
from hermes_doctor.store.view import StoreView

NAME = "lineage-gaps"

#: From this schema on (0.20.0) a parent ended by compression refuses writes; 0.19.0 (22) still takes them.
REFUSES_WRITES = 23
#: From this schema on (0.17.0) resuming goes to the end of a chain, whether or not it holds messages.
RESUMES_AT_TIP = 16

_SHOWN = 20


def find(view: StoreView, keys: Sequence[Key] | None) -> Iterator[Finding]:
    """Give what is wrong with the lineage of these sessions, or of all."""
    for fault in faults(view, keys):
        safety = _safety(fault)
        can_be_done = fault.mendable and fault.obstacle is None
        yield Finding(
            check=NAME,
            severity=_severity(fault, view.shape.version),
            table="sessions",
            key=fault.session,
            session=fault.session,
            summary=_summary(fault, view.shape.version),
            detail=_detail(fault),
            fix=safety if can_be_done else Safety.NONE,
            action=_action(fault) if can_be_done else None,
            refusal=fault.obstacle if fault.mendable else None,
        )


def _safety(fault: Fault) -> Safety:
    return Safety.UNSAFE if fault.kind is Kind.EMPTY_CONTINUATION else Safety.SAFE


def _severity(fault: Fault, version: int) -> Severity:
    match fault.kind:
        case Kind.OWN_PARENT | Kind.LOOP:
            return Severity.ERROR
        case Kind.MISSING_PARENT:
            return Severity.ERROR if fault.hides else Severity.INFO
        case Kind.EMPTY_CONTINUATION:
            return Severity.ERROR if version >= RESUMES_AT_TIP else Severity.INFO
        case Kind.CLOSED:
            return Severity.WARNING if version >= REFUSES_WRITES else Severity.INFO
        case Kind.LONG_CHAIN:
            return Severity.INFO
        case _:
            return Severity.WARNING


def _summary(fault: Fault, version: int) -> str:
    match fault.kind:
        case Kind.OWN_PARENT:
            return "is its own parent, so no list shows it"
        case Kind.MISSING_PARENT if fault.hides:
            return "its parent does not exist, so no list shows it"
        case Kind.MISSING_PARENT:
            return "its parent does not exist; it is a run that no list shows anyway"
        case Kind.LOOP:
            return f"is its own ancestor, in a loop of {fault.count} sessions that no list shows"
        case Kind.CLOSED if version >= REFUSES_WRITES:
            return "was compressed and goes on nowhere, and refuses every new message"
        case Kind.CLOSED:
            return "was compressed and goes on nowhere; releases from 0.20 will refuse new messages"
        case Kind.EMPTY_CONTINUATION if version >= RESUMES_AT_TIP:
            return "goes on in an empty row only, so that the chat shows no messages"
        case Kind.EMPTY_CONTINUATION:
            return "goes on in an empty row only; releases from 0.17 will show no messages"
        case Kind.DELEGATE_LOOP if fault.count == 1:
            return "is marked as its own delegate, so that deleting it may take others"
        case Kind.DELEGATE_LOOP:
            return f"is one of {fault.count} delegates marked as each other's, so that deleting one may take its parent"
        case Kind.SEVERAL:
            return f"goes on in {fault.count} sessions, each of which may hold turns of its own"
        case Kind.LONG_CHAIN:
            return f"goes on in a chain of more than {fault.count} links, which is more than this release follows"


def _action(fault: Fault) -> str:
    match fault.kind:
        case Kind.OWN_PARENT:
            return "detach it from itself"
        case Kind.MISSING_PARENT:
            return "detach it from the missing parent"
        case Kind.EMPTY_CONTINUATION:
            return "delete the empty row and make its parent writable again"
        case _ if fault.reopen:
            return "clear its end, so that it takes messages again"
        case _:
            return "make its reason startup_orphan_reap, so that it takes messages again"


def _detail(fault: Fault) -> dict[str, str | int | float | bool | Sequence[str] | None]:
    detail: dict[str, str | int | float | bool | Sequence[str] | None] = {"kind": fault.kind.value}
    names = [_shown(other) for other in fault.others[:_SHOWN]]
    match fault.kind:
        case Kind.MISSING_PARENT:
            detail["parent"] = names[0]
        case Kind.EMPTY_CONTINUATION:
            detail["empty"] = names[0]
        case Kind.LOOP | Kind.DELEGATE_LOOP | Kind.SEVERAL:
            detail |= {"count": fault.count, "sessions": names}
        case Kind.LONG_CHAIN:
            detail["longest"] = fault.count
        case _:
            pass
    if fault.kind in (Kind.EMPTY_CONTINUATION, Kind.CLOSED):
        detail["reopen"] = fault.reopen
    return detail


def _shown(key: Key) -> str:
    return key.hex() if isinstance(key, bytes) else str(key)


CHECK = Check(
    name=NAME,
    severity=Severity.ERROR,
    summary="sessions that lost their parent, or whose conversation goes on nowhere",
    meaning="chats that no list shows, that refuse new messages, or that resume empty",
    fix=Safety.SAFE,
    page=__doc__ or "",
    rule=RelationRule("sessions", find),
)
