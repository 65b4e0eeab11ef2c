"""The reports of fix, undo and runs: what a person reads, and documents that are valid whatever a store holds."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from hermes_doctor.engine.became import Changes
from hermes_doctor.engine.journal import Run
from hermes_doctor.engine.model import Check, ExitCode, Finding, Safety, Severity
from hermes_doctor.engine.plan import NEEDS_UNSAFE, BackupForecast, Outcome, StoreFix
from hermes_doctor.engine.prune_forecast import PruneForecast
from hermes_doctor.engine.transaction import Change
from hermes_doctor.engine.undo import StoreUndo
from hermes_doctor.report.changes_json import FixJson, UndoJson
from hermes_doctor.report.changes_model import ChangesEnd, ChangesStart, outcome_of
from hermes_doctor.report.fix_table import FixTable
from hermes_doctor.report.layout import Look, next_lines
from hermes_doctor.report.runs import PastRun, runs_json, runs_table
from hermes_doctor.report.undo_table import UndoTable
from hermes_doctor.store.cells import BadText, Key
from tests.cli.support import valid
from tests.report.support import make_check, make_finding, make_scan

RUN = "20261129-210000-7f3a"
CHECKS = [make_check(), make_check("loose-ends", Severity.ERROR)]


def make_fix(found: list[Finding], changes: list[Change], checks: list[Check] = CHECKS, **more: object) -> StoreFix:
    scan = make_scan(found, checks, bundle=object())
    fix = StoreFix(scan.ref, scan, applied=bool(more.get("applied")), changes=Changes(changes))
    return replace(fix, **more)  # type: ignore[arg-type]  # the keywords are StoreFix's own


def change(key: Key, state: str, reason: str | None = None, **more: Any) -> Change:
    words = {"check": "odd-rows", "table": "sessions", "action": "make it even"} | more
    return Change(key=key, state=state, reason=reason, **words)


def printed(fix: StoreFix, end: ChangesEnd | None = None, **look: object) -> str:
    stream = io.StringIO()
    table = FixTable(stream, Look(**look), CHECKS)  # type: ignore[arg-type]  # Look's own keywords
    table.begin(ChangesStart("0", "3", 0.0, fix.applied))
    with fix.scan.findings:
        table.store(fix)
    table.end(end or ChangesEnd(0.41, fix.outcome, fix.exit_code))
    return stream.getvalue()


def test_the_whole_of_a_plan() -> None:
    found = [
        make_finding(key="s1"),
        make_finding(key="s2"),
        make_finding(key="s3", fix=Safety.UNSAFE),
        make_finding(key="s4", fix=Safety.NONE, action=None, refusal="somebody needs it so"),
        make_finding(key="s5", fix=Safety.NONE, action=None, refusal="somebody needs it so"),
        make_finding(key="s6", fix=Safety.NONE, action=None),
        make_finding("loose-ends", table="messages", key=7, session="s\x1b9", summary="its end is loose", action="tie"),
    ]
    changes = [
        change("s1", "planned"),
        change("s2", "planned"),
        change("s3", "refused", NEEDS_UNSAFE),
        change("s4", "refused", "somebody needs it so"),
        change("s5", "refused", "somebody needs it so"),
        change(7, "planned", check="loose-ends", table="messages", action="tie"),
    ]
    fix = make_fix(
        found,
        changes,
        outcome="planned",
        exit_code=ExitCode.FINDINGS,
        would_be_refused="hermes (pid 4711) has it open: stop it first",
        backup_forecast=BackupForecast(made=True, bytes=1503238553),
        prune_forecast=PruneForecast(3, 1200, 90.0, "unknown"),
    )
    end = ChangesEnd(0.4, "planned", ExitCode.FINDINGS, (), ["doctor fix --apply (mends it)"])
    assert (
        printed(fix, end, limit=1)
        == """\
/srv/hermes/state.db   schema 22 · 3,049 sessions · 61,465 messages · 1.4 GB
  nobody has it open
  It would be refused now: hermes (pid 4711) has it open: stop it first.

check       found  would mend  refused  needs --unsafe  only reported
----------  -----  ----------  -------  --------------  -------------
odd-rows        6           2        2               1              1
loose-ends      1           1        0               0              0

odd-rows
  s1: it is odd: make it even
  … and 1 more

loose-ends
  message 7 of session s\\x1b9: its end is loose: tie

Would not be mended
  1 of odd-rows: is mended only with --unsafe (s3)
  2 of odd-rows: somebody needs it so (s4 and 1 more)

There will be a backup first (1.4 GB).
hermes's next prune would then delete 3 sessions with 1,200 messages: older than
90 days, once ended.

3 rows would be mended. Nothing was changed. This is the first round: mending
one fault can show another, which --apply then mends too.
Next: doctor fix --apply (mends it)
"""
    )


def test_the_whole_of_the_work() -> None:
    found = [make_finding(key=f"s{n}") for n in range(1, 5)]
    changes = [
        change("s1", "applied"),
        change("s2", "gone", "no longer shows the fault"),
        change("s3", "failed", "a constraint is in the way"),
        change("s4", "refused", "somebody needs it so"),
    ]
    fix = make_fix(
        found,
        changes,
        applied=True,
        run=RUN,
        backup=Path("/srv/hermes/doctor/backups/state-20261129-210000.db"),
        transactions=1204,
        holds={"median": 0.01, "p95": 0.02, "longest": 0.0314},
        left=1,
        still_found=2,
        outcome="partly-fixed",
        exit_code=ExitCode.FINDINGS,
    )
    assert (
        printed(fix, limit=0)
        == """\
/srv/hermes/state.db   schema 22 · 3,049 sessions · 61,465 messages · 1.4 GB
  nobody has it open

check     found  mended  refused  needs --unsafe  failed  gone
--------  -----  ------  -------  --------------  ------  ----
odd-rows      4       1        1               0       1     1

Not mended
  1 of odd-rows: a constraint is in the way
  1 of odd-rows: somebody needs it so

Backup: /srv/hermes/doctor/backups/state-20261129-210000.db
Run 20261129-210000-7f3a: 1,204 transactions, of which the longest held the
store for 31 ms.
2 findings left, 1 of them can be mended by the same command.

1 row mended in 0.4 s.
"""
    )


@pytest.mark.parametrize(
    ("still_found", "said"),
    [
        (0, None),
        (1, "1 finding left that this command does not mend (doctor scan shows it)."),
        (2, "2 findings left that this command does not mend (doctor scan shows them)."),
    ],
)
def test_what_is_left_and_not_for_this_command(still_found: int, said: str | None) -> None:
    fix = make_fix([], [change("s1", "applied")], applied=True, run=RUN, still_found=still_found, outcome="fixed")
    text = " ".join(printed(fix).split())
    assert (said in text) if said else ("left" not in text)


@pytest.mark.parametrize(
    ("forecast", "said"),
    [
        (BackupForecast(False, 10, "never"), "There will be no backup (--backup never)"),
        (BackupForecast(False, 3 << 30, "too-large"), "no backup of so large a store (3.0 GB) unless you ask for it"),
        (BackupForecast(False, 3 << 20, "no-room"), "there is too little room beside the store (3.0 MB)"),
    ],
)
def test_why_there_is_no_backup(forecast: BackupForecast, said: str) -> None:
    fix = make_fix([make_finding()], [change("s1", "planned")], outcome="planned", backup_forecast=forecast)
    assert said in " ".join(printed(fix).split())


@pytest.mark.parametrize(
    ("outcome", "code", "word"),
    [("refused", 5, "Refused"), ("failed", 3, "Failed"), ("stopped", 7, "Stopped")],
)
def test_what_stood_in_the_way(outcome: Outcome, code: int, word: str) -> None:
    fix = make_fix(
        [make_finding()],
        [change("s1", "planned")],
        applied=True,
        outcome=outcome,
        exit_code=ExitCode(code),
        reason="red\x1b[31m stands there",
    )
    text = printed(fix)
    assert f"  {word}: red\\x1b[31m stands there.\n" in text
    # What a stop left is not called mended.
    assert re.search(r"^odd-rows +1 +0 +0 +0 +1$", text, re.MULTILINE)
    assert "not reached" in text
    assert "mended in" not in text


def test_nothing_to_do_is_one_line() -> None:
    assert printed(make_fix([], [])) == (
        "/srv/hermes/state.db   nothing to do · schema 22 · 3,049 sessions · 61,465 messages\n"
    )
    told = [make_finding(fix=Safety.NONE, action=None)]
    assert printed(make_fix(told, [])).endswith(" · 1 finding that no fix is for\n")
    assert printed(make_fix([], []), quiet=True) == ""


@pytest.mark.parametrize("width", [60, 80, 120])
def test_lines_keep_to_the_width(width: int) -> None:
    found = [make_finding(key="s" * 40, summary="odd " * 30)]
    changes = [change("s" * 40, "planned", action="make it even " * 20), change("t", "refused", "no " * 80)]
    fix = make_fix(found, changes, outcome="planned", backup_forecast=BackupForecast(True, 1))
    assert max(map(len, printed(fix, width=width).splitlines())) <= width


def test_commands_that_are_named_are_never_broken() -> None:
    assert next_lines([], 80) == []
    assert next_lines(["doctor a (x)", "doctor b"], 80) == ["Next: doctor a (x), doctor b"]
    assert next_lines(["doctor a (x)", "doctor b"], 20) == ["Next: doctor a (x)", "  or: doctor b"]


# Undo


def test_the_whole_of_an_undo() -> None:
    scan = make_scan()
    changes = [
        change("s1", "planned", action="restore ended_at"),
        change(3, "planned", check="loose-ends", table="messages", action="restore content"),
        change("s2", "changed-since", "changed since the run: left as it is"),
    ]
    undo = StoreUndo(scan.ref, scan, RUN, applied=False, changes=Changes(changes), outcome="planned")
    stream = io.StringIO()
    table = UndoTable(stream, Look(), f"Run {RUN} of yesterday")
    table.begin(ChangesStart("0", "3", 0.0, applied=False))
    table.store(undo)
    table.end(ChangesEnd(0.1, "planned", ExitCode.FINDINGS, (), [f"doctor undo {RUN} --apply (does it)"]))
    scan.findings.close()
    assert (
        stream.getvalue()
        == """\
/srv/hermes/state.db   schema 22 · 3,049 sessions · 61,465 messages · 1.4 GB
  nobody has it open
  Run 20261129-210000-7f3a of yesterday

mended for  rows  would put back  changed since
----------  ----  --------------  -------------
odd-rows       2               1              1
loose-ends     1               1              0

odd-rows
  s1: restore ended_at

loose-ends
  message 3: restore content

Would not be put back
  1 of odd-rows: changed since the run: left as it is (s2)

2 rows would be put back. Nothing was changed.
Next: doctor undo 20261129-210000-7f3a --apply (does it)
"""
    )


# Documents

_KEYS: list[tuple[Key, object]] = [
    ("s1", "s1"),
    (7, 7),
    (1.5, 1.5),
    (None, None),
    (b"\x00\xff", {"blob": "00ff"}),
    (BadText(b"caf\xe9"), {"blob": "636166e9"}),
    (("a", 1, b"\x01"), ["a", 1, {"blob": "01"}]),
    ("\ud800 \x1b\u202e", "\\ud800 \x1b\u202e"),
    (float("inf"), "inf"),
]


def fix_document(*fixes: StoreFix, outcome: Outcome, code: ExitCode, applied: bool = False) -> Any:
    stream = io.StringIO()
    report = FixJson(stream)
    report.begin(ChangesStart("0.1.0", "3.54.1", 1796072400.9, applied))
    for fix in fixes:
        with fix.scan.findings:
            report.store(fix)
    report.end(ChangesEnd(0.4142, outcome, code, [Path("/never/state.db")]))
    assert stream.getvalue().isascii()
    return valid(stream.getvalue(), "fix")


@pytest.mark.parametrize(("key", "shown"), _KEYS, ids=repr)
def test_keys_of_every_kind(key: Key, shown: object) -> None:
    fix = make_fix([make_finding()], [change(key, "planned")], outcome="planned", exit_code=ExitCode.FINDINGS)
    document = fix_document(fix, fix, outcome="planned", code=ExitCode.FINDINGS)
    assert [each["changes"][0]["key"] for each in document["databases"]] == [shown, shown]
    assert document["not_reached"] == ["/never/state.db"]
    assert (document["started_at"], document["seconds"]) == ("2026-11-30T21:00:00Z", 0.414)


def test_a_document_without_stores() -> None:
    assert fix_document(outcome="stopped", code=ExitCode.STOPPED)["databases"] == []


def test_holds_and_forecasts() -> None:
    fix = make_fix(
        [make_finding()],
        [change("s1", "applied")],
        applied=True,
        run=RUN,
        backup=Path("/b"),
        journal=Path("/j"),
        transactions=2,
        holds={"median": 0.0123456, "p95": 0.05, "longest": 0.1},
        backup_forecast=BackupForecast(True, 5),
        prune_forecast=PruneForecast(1, 2, 90.0, "off"),
        still_found=3,
        left=1,
        outcome="partly-fixed",
        exit_code=ExitCode.FINDINGS,
    )
    [database] = fix_document(fix, outcome="partly-fixed", code=ExitCode.FINDINGS, applied=True)["databases"]
    assert database["hold_seconds"] == {"median": 0.0123, "p95": 0.05, "longest": 0.1}
    assert database["prune_forecast"] == {"sessions": 1, "messages": 2, "retention_days": 90.0, "pruning": "off"}
    assert (database["run"], database["backup"], database["journal"]) == (RUN, "/b", "/j")
    assert (database["found"], database["fixed"], database["left"], database["mendable"]) == (1, 1, 3, 1)


def test_an_undo_document() -> None:
    scan = make_scan()
    changes = [change("s1", "restored"), change("s2", "changed-since", "so it is"), change("s3", "failed", "no")]
    undo = StoreUndo(scan.ref, scan, RUN, applied=True, changes=Changes(changes), outcome="partly-fixed")
    undo.exit_code = ExitCode.FINDINGS
    stream = io.StringIO()
    report = UndoJson(stream)
    report.begin(ChangesStart("0.1.0", "3.54.1", 0.0, applied=True))
    with scan.findings:
        report.store(undo)
    report.end(ChangesEnd(0.1, "partly-fixed", ExitCode.FINDINGS))
    [database] = valid(stream.getvalue(), "undo")["databases"]
    assert [each["state"] for each in database["changes"]] == ["restored", "changed-since", "failed"]
    assert (database["found"], database["fixed"], database["left"], database["hold_seconds"]) == (3, 1, 2, None)


@pytest.mark.parametrize(
    ("stores", "code", "expected"),
    [
        ([], 0, "nothing-to-do"),
        ([(0, "nothing-to-do"), (0, "fixed")], 0, "fixed"),
        ([(0, "nothing-to-do")], 0, "nothing-to-do"),
        ([(1, "planned"), (0, "nothing-to-do")], 1, "planned"),
        ([(0, "fixed"), (1, "partly-fixed")], 1, "partly-fixed"),
        ([(0, "fixed"), (4, "failed"), (5, "refused")], 4, "failed"),
        ([(5, "refused"), (7, "stopped")], 5, "refused"),
        ([], 7, "stopped"),
        ([(0, "fixed")], 7, "stopped"),
    ],
)
def test_the_outcome_of_several_stores(stores: list[tuple[int, Outcome]], code: int, expected: str) -> None:
    assert expected in get_args(Outcome)
    assert outcome_of([(ExitCode(each), outcome) for each, outcome in stores], ExitCode(code)) == expected


# Runs


def past(**more: object) -> PastRun:
    run = Run(RUN, 1796072400.0, "/srv/hermes/state.db", {}, 31, 1796072401.0, "fixed", None, None, None)
    run = replace(run, **more)  # type: ignore[arg-type]  # the keywords are Run's own
    store = Path("/srv/hermes/state.db")
    return PastRun(store, store.parent / "doctor" / "doctor.db", run, {"odd-rows": 1200, "loose-ends": 1})


@pytest.mark.parametrize(
    ("more", "state", "said"),
    [
        ({}, "done", "1 loose-ends$"),
        ({"undone_at": 1796072400.0 + 7200}, "undone", r"\(undone 1 hour ago\)"),
        ({"forgotten_at": 1796072405.0}, "forgotten", r"\(forgotten: it can no longer be undone\)"),
        ({"finished_at": None, "outcome": None}, "unfinished", r"\(unfinished: doctor fix --apply carries on\)"),
        ({"outcome": "stopped"}, "done", r"\(stopped part-way\)"),
    ],
)
def test_a_run_in_words_and_as_json(more: dict[str, object], state: str, said: str) -> None:
    text = " ".join(runs_table([past(**more)], 1796072400.0 + 3 * 3600, Look(width=120)).split())
    assert f"{RUN} 3 hours ago /srv/hermes/state.db: 1,200 odd-rows, 1 loose-ends" in text
    assert re.search(said, text)
    [entry] = valid(runs_json([past(**more)], []), "runs")["runs"]
    assert (entry["state"], entry["applied"]) == (state, 1201)
    assert entry["undone"] is (state == "undone")
    assert entry["forgotten"] is (state == "forgotten")
    assert entry["at"] == "2026-11-30T21:00:00Z"


def test_an_odd_path_and_an_unreadable_journal() -> None:
    odd = replace(past(), store=Path("/caf\udce9/\x1b[31m/state.db"))
    assert "\x1b" not in runs_table([odd], 0.0, Look())
    document = valid(runs_json([odd], [(Path("/x"), "no")]), "runs")
    assert document["runs"][0]["path"] == "/caf\\udce9/\x1b[31m/state.db"
    assert document["unreadable"] == [{"path": "/x", "reason": "no"}]
