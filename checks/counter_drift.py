"""Sessions that count other messages or tool calls than they have.

What it finds
Rows of `sessions` whose `message_count` or `tool_call_count` is nothing that the message rows
explain, or is NULL.

Why it matters
Lists, filters and statistics go by the counters and never look at the rows. Up to 0.20.6 hermes's
own "delete empty sessions" goes by them too: a session that has ended with a count of 0 is deleted
with all messages that it really has. From 0.21.5 on it looks first. A NULL stays one for ever,
because every writer adds to it.

How it decides
Counted are active rows, whatever their role, and the entries of their `tool_calls`. Up to 0.20.0
`/undo` took rows out and left the counters as they were, so with A active and R rewound rows
anything from A to A + R is right, in every schema; rows that a compaction put away count for
nothing. Below A is a warning, and stays one where the count is 0, since nothing is lost yet: 0.20.6
leaves it so when rewound rows are brought back. Above A + R is a note. NULL is a warning where
there is something to count, else a note. `tool_calls` in a string of JSON may count as one call or
as its length for as long as they are in there: that is double-encoded's to mend. Where a cell of
`tool_calls` is no JSON at all, that counter is not judged.

While somebody has the store open, sessions used within five minutes are passed over.

Fix
The counter becomes what the newest releases would count: A, and the calls of the active rows. A
counter that the rows explain is left as it is.

Fix safety
Safe. The counters are derived from the rows, and the releases from 0.20.6 on recount them in the
same way with every rewind. It comes before whatever looks for empty sessions.

Upstream
Issues 45236 and 39734 (147 of 150 terminal chats, 35 of 35 API chats with a count of 0 or NULL),
52640 (`/undo`), 564 (calls counted wrongly), 39896 (a recount must leave out inactive rows).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hermes_doctor.engine.model import Check, Finding, Fold, FoldRule, Safety, Severity, Told
from hermes_doctor.store.cells import Key
from hermes_doctor.store.counters import MESSAGES, CallSums, Drift, Miscount, calls_sql, drifts, summed_up
from hermes_doctor.store.shape import Shape
from hermes_doctor.store.view import StoreView

NAME = "counter-drift"

#: From this schema on (first released in 0.21.5) "delete empty sessions" looks for rows before it deletes.
_LOOKS_FIRST = 30

_WORDS = {MESSAGES: "message"}


def _told(shape: Shape) -> Told:
    return Told(totals=(calls_sql(shape),), condense=summed_up)


class _Counts(CallSums, Fold):
    """The fold: what the rows come to, compared with what their sessions say."""

    def findings(self) -> Iterator[Finding]:
        for drift in self.drifts():
            yield _finding(self.view, drift)


def _again(view: StoreView, keys: Sequence[Key]) -> Iterator[Finding]:
    for drift in drifts(view, keys):
        yield _finding(view, drift)


def _finding(view: StoreView, drift: Drift) -> Finding:
    columns = [each.column for each in drift.miscounts]
    detail: dict[str, str | int | Sequence[str] | None] = {"columns": columns}
    for each in drift.miscounts:
        detail[each.column] = each.holds if isinstance(each.holds, int | None) else "no number"
        detail[f"{each.column}_right"] = each.explained.right
        detail[f"{each.column}_explained_up_to"] = each.explained.high
    parts = [_in_words(each) for each in drift.miscounts]
    if any(_looks_empty(each) for each in drift.miscounts) and not drift.archived and view.shape.version < _LOOKS_FIRST:
        parts.append("hermes takes it for empty and deletes it with them, once it has ended and is told to clean up")
    return Finding(
        check=NAME,
        severity=max(_severity(each) for each in drift.miscounts),
        table="sessions",
        key=drift.session,
        session=drift.session,
        summary="; ".join(parts),
        detail=detail,
        fix=Safety.SAFE,
        action=f"recount {' and '.join(columns)}",
    )


def _severity(miscount: Miscount) -> Severity:
    """Judge how bad a miscount is: too many misleads less than too few, and NULL for nothing misleads nobody."""
    if isinstance(miscount.holds, int):
        return Severity.INFO if miscount.holds > miscount.explained.high else Severity.WARNING
    harmless = miscount.holds is None and miscount.explained.high == 0
    return Severity.INFO if harmless else Severity.WARNING


def _looks_empty(miscount: Miscount) -> bool:
    return miscount.column == MESSAGES and miscount.holds == 0 and miscount.explained.low > 0


def _in_words(miscount: Miscount) -> str:
    held = miscount.holds if isinstance(miscount.holds, int) else "NULL" if miscount.holds is None else "no number"
    low, high = miscount.explained.low, miscount.explained.high
    there = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    thing = _WORDS.get(miscount.column, "tool call")
    return f"{miscount.column} is {held}, its rows say {there} {thing}{'' if there == '1' else 's'}"


CHECK = Check(
    name=NAME,
    severity=Severity.WARNING,
    summary="counts of messages and tool calls that the rows do not explain",
    meaning="counters that mislead lists; hermes may take a full chat for an empty one",
    fix=Safety.SAFE,
    page=__doc__ or "",
    rule=FoldRule("sessions", "messages", _told, _Counts, _again),
)
