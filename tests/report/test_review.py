"""The words of a review: what a finding goes by, what would change, what lies around it, at any width."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import pytest

from checks import CHECKS
from hermes_doctor.engine.changes import Op
from hermes_doctor.engine.model import Finding, Safety, Severity
from hermes_doctor.engine.rehearsal import ColumnEffect, Effect, Held, TableEffect
from hermes_doctor.engine.review import NO, Answer
from hermes_doctor.report.ink import Ink
from hermes_doctor.report.review import ReviewWords
from hermes_doctor.store.around import Around, Message, Session

NOW = 1790000000.0
HOUR = 3600.0
WORDS = ReviewWords(80, Ink())

FOUND = Finding(
    check="open-zombies",
    severity=Severity.WARNING,
    table="messages",
    key=1234567,
    session="a\x1b[31mchat",
    summary="open for\x07 9 days",
    detail={
        "idle_seconds": 777600,
        "ended_at": NOW - HOUR,
        "bytes": 2048,
        "rows": 12345,
        "tip": False,
        "columns": [f"c{n}" for n in range(12)],
        "unseen": None,
        "successor": "new\u202e",
    },
    fix=Safety.UNSAFE,
    action="end it",
)


def flat(lines: Sequence[str]) -> str:
    return " ".join(" ".join(lines).split())


def test_a_finding_says_what_it_goes_by() -> None:
    told = flat(list(WORDS.asked(FOUND, "1 of 2", None, NOW)))
    assert "1 of 2 · open-zombies · warning · message 1234567 of session a\\x1b[31mchat" in told
    assert "Found: open for\\x07 9 days" in told
    assert re.search(r"By this: idle 9 days · ended at \S+ \S+ \(1 hour ago\) · bytes 2\.0 KB · rows 12,345", told)
    assert "tip no · columns c0, c1, c2, c3, c4, c5, c6, c7 and 4 more · successor new\\u202e" in told
    assert "unseen" not in told
    assert "answered" not in told


def test_it_says_what_was_answered_before() -> None:
    told = flat(list(WORDS.asked(FOUND, "1 of 2", Answer(NO, NOW - 2 * HOUR), NOW)))
    assert told.endswith("You answered no 2 hours ago.")


def test_a_finding_that_says_no_more_has_no_line_for_it() -> None:
    assert "By this" not in flat(list(WORDS.asked(replace(FOUND, detail={"unseen": None}), "1 of 1", None, NOW)))


def became(column: str, *pairs: tuple[Held, Held]) -> str:
    table = TableEffect("sessions", Op.UPDATE, len(pairs), {column: ColumnEffect(column, list(pairs))})
    lines = list(WORDS.would(FOUND, Effect([table]), NOW))
    assert lines[0] == "  The fix: end it"
    return lines[-1].strip()


NOTHING = Held("nothing")


@pytest.mark.parametrize(
    ("column", "pairs", "told"),
    [
        ("active", [(Held("number", 1), Held("number", 0))], "active: 1 -> 0"),
        ("active", [(Held("number", 1), Held("number", 0))] * 3, "active: 1 -> 0 (3 rows)"),
        (
            "message_count",
            [(Held("number", 12000), Held("number", 3)), (Held("number", 7), Held("number", 3))],
            "message_count: numbers -> 3 (2 rows)",
        ),
        (
            "title",
            [(Held("text", None, 15), Held("text", None, 18))],
            "title: text of 15 characters -> text of 18 char",
        ),
        (
            "tool_calls",
            [(NOTHING, Held("text", None, 9)), (NOTHING, Held("text", None, 1200))],
            "tool_calls: NULL -> text of 9 to 1,200 characters (2 rows)",
        ),
        ("end_reason", [(Held("text", "cli_close", 9), NOTHING)], "end_reason: cli_close -> NULL"),
        ("source", [(Held("text", "x\x1b", 2), Held("bytes", None, 4))], "source: x\\x1b -> 4 bytes"),
        (
            "x",
            [(NOTHING, Held("number", 1.5)), (Held("text", None, 3), Held("number", 1.5))],
            "x: NULL or text of 3 characters -> 1.5 (2 rows)",
        ),
    ],
)
def test_values_are_told_where_they_are_the_same_and_kinds_where_not(
    column: str, pairs: list[tuple[Held, Held]], told: str
) -> None:
    assert became(column, *pairs).startswith(told)


def test_times_are_told_as_times() -> None:
    assert re.fullmatch(
        r"ended_at: NULL -> \d{4}-\d\d-\d\d \d\d:\d\d \(just now\)", became("ended_at", (NOTHING, Held("number", NOW)))
    )


def test_rows_that_come_and_go_are_counted() -> None:
    columns = {name: ColumnEffect(name, [(NOTHING, Held("number", 1))]) for name in ("id", "title")}
    effect = Effect([TableEffect("sessions", Op.INSERT, 1, columns), TableEffect("messages", Op.DELETE, 2000)])
    told = list(WORDS.would(FOUND, effect, NOW))
    assert "  It would change: 1 row of sessions added, with id, title" in told
    assert "  It would change: 2,000 rows of messages deleted" in told


def test_it_says_why_it_cannot_say_what_would_change() -> None:
    told = flat(list(WORDS.would(replace(FOUND, action=None), Effect(unknown="no room\x1b"), NOW)))
    assert told == "The fix: mend it What it would change is not known: no room\\x1b"
    told = flat(list(WORDS.would(FOUND, Effect(otherwise="a file"), NOW)))
    assert told == "The fix: end it It would change: a file"


def test_the_rows_around_are_a_line_each() -> None:
    around = Around(
        [
            Session("up", "its parent", "cli", NOW - HOUR, NOW, "compression", 3),
            Session("s\x1b", "this one", None, None, None, None, None),
        ],
        [
            Message(7, False, "user", NOW - HOUR, 5, ["reasoning"]),
            Message(9, True, "assistant", None, None, []),
        ],
        1200,
    )
    told = list(WORDS.around(around, NOW))
    assert flat(told[:2]).startswith("up (its parent) · cli · began ")
    assert flat(told).count("ended ") == 1
    assert "  s\\x1b (this one) · no source · open" in told
    assert "  2 of 1,200 messages:" in told
    assert re.fullmatch(r"    7 · user · .* \(1 hour ago\) · 5 bytes · reasoning", told[-2])
    assert told[-1] == "  > 9 · assistant · no time · no content"
    assert "no row around it" in flat(list(WORDS.around(Around((), (), 0), NOW)))


def test_why_one_is_asked_stands_on_each_page_that_may_ask() -> None:
    asked = [check for check in CHECKS if check.fix is not Safety.NONE]
    assert len(asked) > 20
    for check in asked:
        told = list(WORDS.introduced(check))
        assert told[0].startswith(f"{check.name}: ")
        assert any("Why you are asked: " in line for line in told), check.name
        assert "Upstream" not in " ".join(told[-1:])


@pytest.mark.parametrize("width", [24, 40, 100])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    words = ReviewWords(width, Ink())
    lines = [
        line
        for check in CHECKS
        for line in (*words.introduced(check), *words.help(check.name, 12345))
        # A word is never broken.
        if len(line.split()) > 1
    ]
    assert [line for line in lines if len(line) > width] == []
    assert max(map(len, lines)) > width - 4
