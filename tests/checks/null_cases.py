"""Chats with NULL in ``active``, written by real releases into a table whose column has no default."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hermes_doctor.store.null_active import Standing
from tests.oracle.history import CALLS, PICTURE, SUMMARY_PREFIX
from tests.oracle.home import Home
from tests.oracle.releases import Release, get
from tests.oracle.steps import Step, call, clock, open_store, ref, sql

LIVE, ARCHIVED, MISSED = Standing.LIVE, Standing.ARCHIVED, Standing.MISSED
#: What a row's ``active`` and ``compacted`` are to be once it is mended.
MARKS = {LIVE: (1, 0), ARCHIVED: (0, 1), MISSED: (0, 1)}

SUMMARY = f"{SUMMARY_PREFIX} a talk about tea"


@dataclass(frozen=True)
class Line:
    """One message. ``marks``: its ``active`` and ``compacted``; ``was``: what it is to be taken for, if found."""

    content: Any = "hello"
    marks: tuple[int | None, int] = (None, 0)
    was: Standing | None = LIVE
    role: str = "user"
    calls: Any = None


@dataclass(frozen=True)
class NullCase:
    """A chat. ``counts``: its two counters as they are found, None where they are left as the release wrote them.

    ``mended``: as they are once all is mended, None where they stay.
    """

    name: str
    lines: Sequence[Line]
    counts: tuple[int | None, int | None] | None = None
    mended: tuple[int | None, int | None] | None = None

    @property
    def compacts(self) -> bool:
        """Whether it takes a release that compacts in place."""
        return any(line.marks[1] for line in self.lines) or any(line.was is MISSED for line in self.lines)


def seen(content: Any = "hello", **cells: Any) -> Line:
    """A row that is shown."""
    return Line(content, (1, 0), None, **cells)


CALLING = Line("", role="assistant", calls=CALLS * 2)
GONE = Line("never mind", (0, 0), None)
PUT_AWAY = Line("long ago", (0, 1), None)
OLD = Line("long ago", was=MISSED)

CASES: tuple[NullCase, ...] = (
    NullCase("a whole chat", (Line(), CALLING, Line("a.txt", role="tool"), Line("one file", role="assistant"))),
    NullCase("one row of many", (seen(), Line(), seen(), GONE)),
    NullCase("a picture", (Line(PICTURE), Line("a cat", role="assistant"))),
    NullCase("only what is seen is counted", (seen(), CALLING, seen(), Line()), (2, 0), (4, 2)),
    NullCase("calls are counted, messages are not", (seen(), CALLING, Line()), (1, 2), (3, 2)),
    NullCase("nothing is counted", (Line(), CALLING), (0, 0), (2, 2)),
    NullCase("rewound rows are counted", (seen(), Line(), GONE, GONE), (4, 0)),
    NullCase("counted at random", (seen(), Line(), Line()), (9, 7)),
    NullCase("fewer than are seen", (seen(), seen(), Line()), (1, 0), (3, 0)),
    NullCase("not counted", (Line(), seen()), (None, None)),
    NullCase("some of it counted", (Line(), Line(), CALLING, Line()), (2, 0), (4, 2)),
    NullCase("a continuation", (Line(), Line(SUMMARY), Line())),
    NullCase("summary of long ago, then nothing was counted", (Line(), Line(SUMMARY), Line(), Line()), (2, 0), (4, 0)),
    NullCase("marked as put away", (Line(marks=(None, 1), was=ARCHIVED), seen(SUMMARY), seen()), (2, 0)),
    NullCase("missed by a compaction", (OLD, OLD, OLD, Line(), Line(SUMMARY), Line()), (3, 0)),
    NullCase("one missed among many put away", (PUT_AWAY, OLD, PUT_AWAY, seen(), seen(SUMMARY), seen()), (3, 0)),
    NullCase("missed, and the chat went on", (OLD, PUT_AWAY, OLD, seen(SUMMARY), Line(), CALLING), (3, 2)),
    # Look-alikes.
    NullCase("all is well", (seen(), seen("hi", role="assistant"), GONE)),
    NullCase("compacted in place", (PUT_AWAY, PUT_AWAY, seen(SUMMARY), seen()), (2, 0)),
)


def cases_of(release: Release | str) -> tuple[NullCase, ...]:
    """The cases that a release can show."""
    return tuple(case for case in CASES if get(release).since("0.18.0") or not case.compacts)


def without_default(home: Home) -> None:
    """A store whose ``active`` has no default, as the makers of columns of some builds before 0.16 left it."""
    home.run("0.15.2", [open_store(), sql("ALTER TABLE messages ADD COLUMN active INTEGER")])


def plant(home: Home, release: Release | str) -> tuple[NullCase, ...]:
    """Write the cases into a fresh home, an hour ago; the release must not open it again where it heals such rows."""
    without_default(home)
    cases = cases_of(release)
    compacts = get(release).since("0.18.0")
    steps: list[Step] = [clock(time.time() - 3600)]
    for case in cases:
        steps.append(call("create_session", case.name, "cli"))
        for place, line in enumerate(case.lines):
            key = f"{case.name}: {place}"
            steps.append(call("append_message", case.name, line.role, line.content, tool_calls=line.calls, keep=key))
            marks = dict(zip(("active", "compacted"), line.marks[: 1 + compacts], strict=False))
            listed = ", ".join(f"{column} = ?" for column in marks)
            steps.append(sql(f"UPDATE messages SET {listed} WHERE id = ?", *marks.values(), ref(key)))
        if case.counts is not None:
            counters = "UPDATE sessions SET message_count = ?, tool_call_count = ? WHERE id = ?"
            steps.append(sql(counters, *case.counts, case.name))
    home.run(release, steps)
    return cases
