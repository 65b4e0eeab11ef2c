"""Sessions whose start, end and end reason contradict one another.

What it finds
Rows of `sessions` with an end reason but no end, with an end but no reason, or with an end that
lies before the start.

Why it matters
Some parts of hermes ask for `ended_at`, others for `end_reason`: to the gateway a row with a reason
is over, while lists and prune take it for open, and a row with an end alone is the other way
round. A compressed row without an end is followed to its continuation by some releases only.
Where the end lies before the start, durations are negative, and 0.13 to 0.17 lose track of
branches and continuations, which they tell by these two times.

How it decides
By the three cells of the row alone. An empty text is no reason. Times that cannot be (text, 0,
beyond 2103) are no start that an end could lie before. An end less than a minute before the start
is a note: clocks are set back.

Fix
Only the end of a compressed row follows from the rest: it is the start of the row in which its
conversation goes on. That must be exactly one, with messages, begun no earlier than the row
itself, not in the future, and not more than five minutes before the row's newest message. Then
`ended_at` becomes that. Everything else is reported: who ended a session, and when, is written
nowhere else. Resuming such a session (hermes --resume ID) clears both, and it can end anew.

Fix safety
Safe, but for a compressed row that had no end and is past the retention: once it is ended,
upstream's prune may delete it, so that is unsafe unless this home's config was read and turns
`sessions.auto_prune` off.

Upstream
All writers of 0.13.0 to 0.22.2 set and clear both columns together, and first come, first served:
what is crossed came from elsewhere (scripts, other clients, merged stores), or from a clock.
Issues 25774 and 56276 (clocks that go backwards).
"""

from __future__ import annotations

from hermes_doctor.engine.model import Check, Finding, Row, RowRule, Safety, Severity
from hermes_doctor.store.clocks import MINUTE, trusted
from hermes_doctor.store.crossed_ends import Kind, TrueEnd, crossed_sql, kinds_of, true_end
from hermes_doctor.store.view import StoreView

NAME = "crossed-ends"

_SAID = {
    Kind.NO_END: "has an end reason but no end",
    Kind.NO_REASON: "has an end but no reason",
    Kind.BACKWARDS: "ends before it starts",
}
_UNKNOWN = "who ended it, or when, does not follow from the rest"


def _judge(row: Row, view: StoreView) -> Finding | None:
    session, started, ended, reason = (row[name] for name in ("id", "started_at", "ended_at", "end_reason"))
    kinds = kinds_of(started, ended, reason)
    if session is None or not kinds:
        return None
    follows = None if Kind.NO_REASON in kinds else true_end(view, session, started, reason)
    detail: dict[str, str | int | float | list[str] | None] = {"kinds": [str(kind) for kind in kinds]}
    if Kind.BACKWARDS in kinds:
        detail["seconds_before"] = _seconds_before(row)
    if follows is not None:
        detail["ends_at"] = follows.at
        detail["continuation"] = str(follows.continuation)
    small = kinds == (Kind.BACKWARDS,) and _seconds_before(row) < MINUTE
    return Finding(
        check=NAME,
        severity=Severity.INFO if small else Severity.WARNING,
        table="sessions",
        key=session,
        session=session,
        summary=" and ".join(_SAID[kind] for kind in kinds),
        detail=detail,
        fix=_safety(kinds, follows),
        action=None if follows is None else "end it when its continuation began",
        refusal=_UNKNOWN if follows is None else None,
    )


def _safety(kinds: tuple[Kind, ...], follows: TrueEnd | None) -> Safety:
    if follows is None:
        return Safety.NONE
    return Safety.UNSAFE if Kind.NO_END in kinds and follows.prunable else Safety.SAFE


def _seconds_before(row: Row) -> float:
    started, ended = trusted(row["started_at"]), row["ended_at"]
    assert started is not None
    assert isinstance(ended, int | float)
    return started - ended


CHECK = Check(
    name=NAME,
    severity=Severity.WARNING,
    summary="starts, ends and end reasons of sessions that contradict one another",
    meaning="sessions that are over to one part of hermes and open to another",
    fix=Safety.SAFE,
    page=__doc__ or "",
    rule=RowRule("sessions", ("id", "started_at", "ended_at", "end_reason"), crossed_sql, _judge),
)
