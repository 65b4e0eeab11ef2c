"""Branches whose copies of the chat lost columns, or end early.

What it finds
Branches in which rows that were copied from the parent lack what the parent's same rows have: tool
calls, the ids and names in the answers of tools, reasoning. And branches whose copy stops although
the parent had more.

Why it matters
An answer of a tool that names no call never reaches the model: releases up to 0.20.0 and from
0.21.5 on drop it before they send the chat, and 0.20.6 sends it as it is, which providers refuse.
Beside it stand empty replies, where there were calls. That is an error. Reasoning that is missing
is a warning: models that want their own reasoning back go on without it. Is it `reasoning_content`
alone, the plain reasoning is sent in its place to all but a few providers: a note.

How it decides
By the parent's rows. From the first on, each row of the branch is a copy of the parent's next row
that has the same role and the same content (blanks around it do not count, for hermes takes them
off when it loads a chat), the same call id if both have one, and the same time, or the time when
the branch began. Rows that the parent has rewound or compacted may be passed over. The first row
without such a partner ends the copy. What the store does not tell, namely which release wrote the
branch, is read off the copy: a path writes a column of every row, or of none. Answers of tools
that are there without their ids were cut off; where there are no answers of tools at all, the
branch is plain dialogue, on purpose (the terminal UI's from 0.20.6 on). Reasoning counts where the
CLI made the branch: its source is cli, or the copies kept calls or plain reasoning. Only rows that
are replayed are looked at. A copy ends early where it ends with a whole piece of 500 rows, and the
parent had said more by then.

Fix
What is NULL gets the value of the parent's same row, character by character; nothing is written
over. A row with calls and the answers to them are filled together or not at all. The number of
tool calls follows, if it was right before. Left alone are rows that fit several rows of the parent
which differ, cells that are no list in the parent either, and branches in which a turn may be
running. What was not copied at all is only reported: the chat may have gone on from there.

Fix safety
Unsafe: that two rows are the same is concluded, not recorded. `api_content` and `finish_reason` are
not filled: one only warms a cache, the other is taken off before a row is sent.

Upstream
Issues 24769 and 106501. The CLI's /branch leaves out reasoning_details, codex_reasoning_items and
codex_message_items up to 0.20.0, reasoning_content up to 0.21.5; the terminal UI's writes role and
content only up to 0.20.0. Copies go in pieces of 500 rows from 0.20.0 on, errors are swallowed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hermes_doctor.engine.model import Check, Finding, RelationRule, Safety, Severity
from hermes_doctor.store.branch_copies import BranchCopy, broken_copies
from hermes_doctor.store.cells import Key
from hermes_doctor.store.laid_rows import LATE
from hermes_doctor.store.view import StoreView

NAME = "amputated-branches"


def _find(view: StoreView, keys: Sequence[Key] | None) -> Iterator[Finding]:
    for copy in broken_copies(view, keys):
        rows = len(copy.losses)
        mends = bool(rows) and copy.busy is None
        left = sum(copy.left.values())
        yield Finding(
            check=NAME,
            severity=_severity(copy),
            table="sessions",
            key=copy.session,
            session=copy.session,
            summary=_summary(copy),
            detail={
                "parent": copy.parent.hex() if isinstance(copy.parent, bytes) else str(copy.parent),
                "columns": list(copy.columns),
                "rows": rows + left,
                "left": left,
                "copied": copy.copied,
                "not_copied": copy.not_copied,
            },
            fix=Safety.UNSAFE if mends else Safety.NONE,
            action=f"fill {', '.join(_filled(copy))} of {_counted(rows, 'row')} from the parent" if mends else None,
            refusal=None if mends or not copy.columns else copy.busy or "; ".join(copy.left),
        )


def _severity(copy: BranchCopy) -> Severity:
    if copy.answers_lost:
        return Severity.ERROR
    return Severity.INFO if copy.columns == (LATE,) and not copy.not_copied else Severity.WARNING


def _summary(copy: BranchCopy) -> str:
    parts = []
    if copy.columns:
        lost = "tool calls and the ids of their answers" if copy.answers_lost else ", ".join(copy.columns)
        rows = len(copy.losses) + sum(copy.left.values())
        parts.append(f"{_counted(rows, 'row')} copied from its parent lost {lost}")
    if copy.not_copied:
        more = _counted(copy.not_copied, "more message")
        parts.append(f"its copy ends after {copy.copied:,} rows, where the parent had {more}")
    return "; ".join(parts)


def _filled(copy: BranchCopy) -> list[str]:
    """Return the columns that the fix fills, in their order."""
    fills = {column for loss in copy.losses for column in loss.columns}
    return [column for column in copy.columns if column in fills]


def _counted(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


CHECK = Check(
    name=NAME,
    severity=Severity.ERROR,
    summary="branches whose copies lost columns, or end early",
    meaning="branched chats that lost tool calls or reasoning which their parent still has",
    fix=Safety.UNSAFE,
    page=__doc__ or "",
    rule=RelationRule("sessions", _find),
)
