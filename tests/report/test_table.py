"""The table: what a person reads."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from hermes_doctor.engine.model import FILES, INDEX, ExitCode, Safety, Severity
from hermes_doctor.engine.scan import Muted, StoreScan
from hermes_doctor.host.bundle import Condition
from hermes_doctor.host.holders import Holder
from hermes_doctor.host.homes import StoreRef
from hermes_doctor.report.ink import Ink
from hermes_doctor.report.layout import Look
from hermes_doctor.report.model import RunEnd
from hermes_doctor.report.table import ScanTable, checks_table
from tests.report.support import make_check, make_finding, make_scan, report_on


def printed(*scans: StoreScan, end: RunEnd | None = None, **look: object) -> str:
    stream = io.StringIO()
    table = ScanTable(stream, Look(**look))  # type: ignore[arg-type]  # Look's own keywords
    report_on(table, *scans, end=end)
    return stream.getvalue()


def test_the_whole_of_it() -> None:
    findings = [
        make_finding("loose-ends", severity=Severity.ERROR, key="s3", summary="its end is loose", action="tie it"),
        make_finding(key="s1"),
        make_finding(key="s2", fix=Safety.UNSAFE, action="make it even, by force"),
        make_finding(key="s4", fix=Safety.NONE, action=None, refusal="somebody needs it so"),
        make_finding(key="s5", fix=Safety.NONE, action=None, severity=Severity.INFO),
    ]
    checks = [make_check(), make_check("loose-ends", Severity.ERROR)]
    end = RunEnd(0.41, ExitCode.FINDINGS, (), ["doctor fix (shows what would be done)", "doctor explain loose-ends"])
    text = printed(make_scan(findings, checks), end=end, limit=9)
    assert (
        text
        == """\
/srv/hermes/state.db   schema 22 · 3,049 sessions · 61,465 messages · 1.4 GB
  nobody has it open

check       found  mends safely  needs you  what it means
----------  -----  ------------  ---------  ------------------------------------
loose-ends      1             1          0  rows that are odd in a way that
                                            takes more than one line of a narrow
                                            table to be told
odd-rows        4             1          3  rows that are odd in a way that
                                            takes more than one line of a narrow
                                            table to be told

loose-ends
  s3: its end is loose. Mends safely: tie it.

odd-rows
  s1: it is odd. Mends safely: make it even.
  s2: it is odd. Needs --unsafe: make it even, by force.
  s4: it is odd. Not mended: somebody needs it so.
  s5 (info): it is odd.

5 findings (1 error, 3 warnings, 1 info), 2 of them mend safely. Read in 0.4 s,
nothing was changed.
Next: doctor fix (shows what would be done), doctor explain loose-ends
"""
    )


def test_healthy_stores_get_a_line_each() -> None:
    other = make_scan(ref=StoreRef(Path("/srv/hermes/profiles/work/state.db"), None, "work"), sessions=1)
    assert (
        printed(make_scan(), other, end=RunEnd(0.81, ExitCode.CLEAN))
        == """\
/srv/hermes/state.db   healthy · schema 22 · 3,049 sessions · 61,465 messages
/srv/hermes/profiles/work/state.db   healthy · schema 22 · 1 session · 61,465 messages

2 stores looked at in 0.8 s, nothing was changed.
"""
    )


@pytest.mark.parametrize(
    ("condition", "word"),
    [
        (Condition.DAMAGED, "damaged"),
        (Condition.UNREADABLE, "cannot be read"),
        (Condition.MISSING, "missing"),
        (Condition.NOT_HERMES, "not a store of hermes"),
    ],
)
def test_a_store_that_cannot_be_read_says_why_and_what_next(condition: Condition, word: str) -> None:
    text = printed(make_scan(condition=condition, reason="its bytes\nare gone", next_step="hermes do-this"))
    assert text == f"/srv/hermes/state.db   {word}\n  its bytes\\x0aare gone\n  Next: hermes do-this\n"


def test_what_to_type_is_said_once() -> None:
    reason = "its bytes are gone: hermes do-this"
    text = printed(make_scan(condition=Condition.DAMAGED, reason=reason, next_step="hermes do-this"))
    assert text.count("hermes do-this") == 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"condition": Condition.NEEDS_RECOVERY}, "last writer did not finish"),
        ({"condition": Condition.NEWER_SCHEMA, "schema_version": 99}, "newer than what this doctor knows (31)"),
        ({"trace": ["an empty state.db-shm"]}, "Left behind by the scan: an empty state.db-shm"),
    ],
)
def test_how_it_was_read_is_said_even_without_findings(changes: dict[str, Any], said: str) -> None:
    text = " ".join(printed(make_scan(**changes), quiet=True).split())
    assert "healthy" not in text
    assert said in text


def test_a_store_that_moved_says_so() -> None:
    assert "wrote to it while it was read" in printed(make_scan([make_finding()], consistent=False))
    assert printed(make_scan(consistent=False)).endswith("messages · written to meanwhile\n")
    assert printed(make_scan(consistent=False), quiet=True) == ""


@pytest.mark.parametrize(
    ("held", "holders", "said"),
    [
        ("no", (), "nobody has it open"),
        ("unknown", (), "who has it open cannot be seen"),
        ("yes", (), "somebody has it open"),
        ("yes", (Holder(4711, "hermes"),), "open in hermes (4711)"),
        ("yes", tuple(Holder(n, "h\x1b") for n in range(5)), "open in h\\x1b (0), h\\x1b (1), h\\x1b (2) and 2 more"),
    ],
)
def test_who_has_it_open(held: str, holders: tuple[Holder, ...], said: str) -> None:
    text = printed(make_scan([make_finding()], held=held, holders=holders))
    assert said in text


MUTED = Muted(since=0.0, until=datetime(2026, 12, 14, 6, 55).timestamp(), worse_than=8)


def test_what_is_muted_is_shown_and_not_counted() -> None:
    scan = make_scan(
        [make_finding(key="s1"), make_finding("loose-ends", key="s2", severity=Severity.ERROR)],
        [make_check(), make_check("loose-ends", Severity.ERROR)],
    )
    scan.checks[1].muted = MUTED
    text = printed(scan, width=200)
    assert "odd-rows        1             1          0  rows that are odd" in text
    assert "loose-ends      1             1          0  muted\n" in text
    assert "s1: it is odd." in text
    assert "s2" not in text
    assert "1 finding (1 warning), it mends safely." in text
    said = "of loose-ends not counted: muted until 2026-12-14 06:55, or until more than 8 are found"
    assert f"1 finding {said} (doctor unmute loose-ends).\n" in text
    assert scan.exit_code(Severity.WARNING) is ExitCode.FINDINGS
    assert scan.exit_code(Severity.ERROR) is ExitCode.CLEAN


def test_a_mute_is_told_where_there_is_nothing_to_mute_or_nothing_else() -> None:
    scan, other = make_scan(), make_scan([make_finding()])
    scan.checks[0].muted = other.checks[0].muted = replace(MUTED, worse_than=None)
    assert other.exit_code(Severity.INFO) is ExitCode.CLEAN
    said = "of odd-rows not counted: muted until 2026-12-14 06:55 (doctor unmute odd-rows).\n"
    text = printed(scan, width=120)
    assert "healthy" in text
    assert text.endswith(f"\n0 findings {said}")
    text = printed(other, width=120)
    assert "healthy" not in text
    assert text.endswith(f"\n1 finding {said}")
    assert printed(other, quiet=True) == ""


def test_a_check_that_failed_is_named() -> None:
    scan = make_scan()
    scan.checks[0].fail("KeyError at x.py:3")
    assert "odd-rows could not be checked in full: KeyError at x.py:3" in printed(scan, width=120)


def test_a_finding_of_a_message_names_message_and_session() -> None:
    text = printed(make_scan([make_finding(table="messages", key=42, session="s\x07")]))
    assert "message 42 of session s\\x07: it is odd." in text


@pytest.mark.parametrize(
    ("table", "key", "said"),
    [
        (FILES, "state.db-wal", "file state.db-wal: it is odd."),
        (INDEX, "messages_fts:0-2047", "search index messages_fts:0-2047: it is odd."),
    ],
)
def test_what_is_no_row_is_called_what_it_is(table: str, key: str, said: str) -> None:
    assert said in printed(make_scan([make_finding(table=table, key=key, session=None)]))


def test_steps_stand_in_order_a_line_each_and_are_never_broken() -> None:
    long = f"cp /proc/4711/fd/12 {'/a/long/way' * 12}/state.db-wal"
    lines = printed(make_scan([make_finding(detail={"steps": ["stop\x1b hermes", long]})]), width=60).splitlines()
    [first] = [place for place, line in enumerate(lines) if "1. stop" in line]
    assert lines[first : first + 2] == ["    1. stop\\x1b hermes", f"    2. {long}"]


def test_what_was_found_in_a_damaged_store_is_told_behind_what_to_do() -> None:
    scan = make_scan([make_finding()])
    scan.condition, scan.reason, scan.next_step = Condition.DAMAGED, "half of it is gone", "hermes sessions recover"
    text = printed(scan)
    assert 0 < text.index("half of it is gone") < text.index("hermes sessions recover") < text.index("it is odd")


@pytest.mark.parametrize("width", [60, 80, 100, 120])
def test_it_fits_the_width(width: int) -> None:
    scan = make_scan([make_finding(key=f"s{n}", summary="it is odd " * 12) for n in range(20)])
    text = printed(scan, width=width)
    assert max(len(line) for line in text.splitlines()) <= width
    assert "… and 17 more" in text


@pytest.mark.parametrize(("limit", "shown"), [(0, 0), (1, 1), (5, 5), (99, 20)])
def test_limit(limit: int, shown: int) -> None:
    text = printed(make_scan([make_finding(key=f"s{n}") for n in range(20)]), limit=limit)
    assert text.count("it is odd.") == shown
    assert ("… and" in text) == (0 < shown < 20)


def test_sums_are_over_all_stores() -> None:
    text = printed(make_scan([make_finding()]), make_scan([make_finding(), make_finding(fix=Safety.NONE)]))
    assert "3 findings (3 warnings), 2 of them mend safely." in text


@pytest.mark.parametrize(
    ("fixes", "said"),
    [
        ([Safety.SAFE], "1 finding (1 warning), it mends safely."),
        ([Safety.SAFE] * 2, "2 findings (2 warnings), all of them mend safely."),
        ([Safety.SAFE, Safety.UNSAFE], "2 findings (2 warnings), 1 of them mends safely."),
        ([Safety.NONE], "1 finding (1 warning), none of them mends safely."),
    ],
)
def test_what_mends(fixes: list[Safety], said: str) -> None:
    text = " ".join(printed(make_scan([make_finding(fix=fix) for fix in fixes])).split())
    assert said in text


def test_colour_carries_no_meaning_alone() -> None:
    findings = [make_finding(), make_finding("loose-ends", severity=Severity.ERROR)]
    plain = printed(make_scan(findings))
    colored = printed(make_scan(findings), ink=Ink(colored=True))
    assert "\x1b[31mloose-ends\x1b[0m" in colored
    assert re.sub(r"\x1b\[[0-9;]*m", "", colored) == plain


def test_the_list_of_checks() -> None:
    text = checks_table([make_check(), make_check("loose-ends", Severity.ERROR)], Look())
    assert (
        text
        == """\
check       severity  fix   what it finds
----------  --------  ----  ---------------------
odd-rows    warning   safe  what odd-rows finds
loose-ends  error     safe  what loose-ends finds
"""
    )
