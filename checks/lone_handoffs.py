"""Chats in which only a compaction's summary still asks for anything.

What it finds
Sessions that end with a finished answer, and whose only live message in a user's name is the
summary of a compaction.

Why it matters
Whoever goes on with such a chat without a new message (a restart, a reconnection, one more round of
the same turn) hands the model the summary as if a user had just said it. The model then takes up
work that was done long ago. A new message of the user's puts it right.

How it decides
By the rows that are replayed, as 0.20.6 and newer ask before they call the model after a
compaction. A summary is known by its first words, which all releases spell alike, or by
`_compressed_summary`; one that carries a user's own words, before or behind it, is a user's
message. Calls or answers of tools behind the summary are work under way, and that is no fault. The
last assistant's row must be finished (`finish_reason` is stop) and without calls. Notices in a
user's name, and what a compaction puts in the place of a user who never was, are nobody's words.

It is a warning where the session is open, or has an end that hermes takes back by itself; where
somebody closed it, it is a note. Passed over are chats that were used within a day (`--idle` makes
that longer) or in which work goes on, since right after a compaction this is how a chat may look;
sessions whose age cannot be told; and sessions that went on in another by compression.

Fix
None. What the user had asked is in the summary, or in rows that the compaction put away, and nobody
but the user knows what is to be done next: resume the chat with a message that says so.

Fix safety
Nothing is changed.

Upstream
Issue 80622 (a summary alone must not become the active turn; a guard since 0.20.6), 100818 (a task
that was not finished is said again behind the summary).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hermes_doctor.engine.model import Check, Finding, Fold, FoldRule, Safety, Severity, Told
from hermes_doctor.store.cells import Cell, Key, decoded
from hermes_doctor.store.handoff_rows import LoneHandoff, lone_handoffs, told_sql
from hermes_doctor.store.shape import Shape
from hermes_doctor.store.turns import session_sql
from hermes_doctor.store.view import StoreView

NAME = "lone-handoffs"


def _told(shape: Shape) -> Told | None:
    told = told_sql(shape)
    return None if told is None else Told(told[0], (session_sql(),), also=told[1])


class _Fold(Fold):
    """Remembers the sessions without a user's message, which are few: almost every one of them is found."""

    def __init__(self, view: StoreView) -> None:
        self._view = view
        self._sessions: dict[Key, None] = {}

    def see(self, *cells: Cell) -> None:
        (session,) = cells
        if isinstance(session, bytes):
            self._sessions[decoded(session, self._view.reader.encoding)] = None

    def findings(self) -> Iterator[Finding]:
        yield from _again(self._view, list(self._sessions))


def _again(view: StoreView, keys: Sequence[Key]) -> Iterator[Finding]:
    for lone in lone_handoffs(view, keys):
        yield _finding(lone)


def _finding(lone: LoneHandoff) -> Finding:
    means = "going on with it takes up old work" if lone.taken_up else "resumed without a message, it takes up old work"
    return Finding(
        check=NAME,
        severity=Severity.WARNING if lone.taken_up else Severity.INFO,
        table="sessions",
        key=lone.session,
        session=lone.session,
        summary=f"its only live user message is a compaction's summary; {means}",
        detail={"handoff": str(lone.handoff), "last_answer": str(lone.answer), "taken_up": lone.taken_up},
    )


CHECK = Check(
    name=NAME,
    severity=Severity.WARNING,
    summary="chats in which only a compaction's summary still asks for anything",
    meaning="going on without a new message would take up work that was finished",
    fix=Safety.NONE,
    page=__doc__ or "",
    rule=FoldRule("sessions", "messages", _told, _Fold, _again),
)
