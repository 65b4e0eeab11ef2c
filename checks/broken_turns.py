"""Chats whose turns do not follow one another as they should.

What it finds
Sessions in whose live messages a user speaks twice in a row, a tool call is never answered, an
answer is to no call, or an assistant's reply is missing. One finding a session, with counts.

Why it matters
Mostly not at all. Providers refuse such a history, so hermes repairs it, in memory, each time that
it loads the chat: it joins what a user said twice, and drops answers without a call and calls
without an answer. What the agent had said or found out there is not in the chat any more.

How it decides
By rows in the order of their ids, and only by those that are replayed: inactive rows and NULL in
`active` do not count. An answer is to a call of the assistant's turn right before it, by any of the
call's ids; that one id stands for many calls is normal. A reply is missing where a user speaks
after the answers of tools, or where a session has ended and the last word is a user's or a tool's.

Passed over are notices in a user's name (`display_kind`: a model was switched, a process ended, a
word to a running turn), what was overheard in a group, and what comes right behind a compaction's
summary. The last turn of a session that is open, or that went on in another by compression, may
still be waiting: it is not counted. Calls that cannot be read are not judged.

Fix
None. Hermes repairs what it loads and leaves the rows as they are, and so does the doctor: a reply
cannot be invented, and other programs hold the ids of the rows.

Fix safety
Nothing is changed.

Upstream
Issues 64934 and 66301 (two users in a row, healed at load), 49045 (calls and answers alone), 43062
(replies missing), 88324 (which call an answer is to), 94486 (a notice in a user's name), 45560 (why
stored rows are not joined).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hermes_doctor.engine.model import Check, Finding, Fold, FoldRule, Safety, Severity, Told
from hermes_doctor.store.cells import Cell, Key
from hermes_doctor.store.shape import Shape
from hermes_doctor.store.turns import (
    NEIGHBOURS,
    BrokenTurns,
    Doubtful,
    broken_turns,
    doubtful_sql,
    judgeable,
    session_sql,
)
from hermes_doctor.store.view import StoreView

NAME = "broken-turns"

#: So many sessions are read at once when the doubtful ones are gone through.
_AT_ONCE = 500

#: The counts, and what one of each is called.
_WORDS = (
    ("users_in_a_row", "user message right behind another", "user messages right behind another"),
    ("replies_missing", "reply missing", "replies missing"),
    ("calls_unanswered", "call never answered", "calls never answered"),
    ("answers_to_no_call", "answer to no call", "answers to no call"),
)


def _told(shape: Shape) -> Told | None:
    return Told(doubtful_sql(shape), (session_sql(),), neighbours=NEIGHBOURS) if judgeable(shape) else None


class _Fold(Fold):
    """Remembers whose turns are doubtful, and reads those sessions in the end."""

    def __init__(self, view: StoreView) -> None:
        self._view = view
        self._doubtful = Doubtful()

    def see(self, *cells: Cell) -> None:
        self._doubtful.see(cells[0])

    def findings(self) -> Iterator[Finding]:
        some: list[Key] = []
        for session in self._doubtful.sessions(self._view):
            some.append(session)
            if len(some) == _AT_ONCE:
                yield from _again(self._view, some)
                some.clear()
        yield from _again(self._view, some)


def _again(view: StoreView, keys: Sequence[Key]) -> Iterator[Finding]:
    for broken in broken_turns(view, keys):
        yield _finding(broken)


def _finding(broken: BrokenTurns) -> Finding:
    counts = {name: int(getattr(broken, name)) for name, _one, _many in _WORDS}
    said = [f"{counts[name]:,} {one if counts[name] == 1 else many}" for name, one, many in _WORDS if counts[name]]
    return Finding(
        check=NAME,
        severity=Severity.INFO,
        table="sessions",
        key=broken.session,
        session=broken.session,
        summary=", ".join(said),
        detail={**counts, "ended": broken.ended},
    )


CHECK = Check(
    name=NAME,
    severity=Severity.INFO,
    summary="chats with a turn missing or doubled, which hermes repairs at load",
    meaning="turns that lack their other half; hermes repairs them whenever it loads the chat",
    fix=Safety.NONE,
    page=__doc__ or "",
    rule=FoldRule("sessions", "messages", _told, _Fold, _again),
)
