"""What was answered about findings: whose it is, how long it holds, and that just that is mended."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import apsw
import pytest
import time_machine

from checks import CHECKS
from fixes import FIXES
from hermes_doctor.demo.home import make_demo_home
from hermes_doctor.engine.apply import apply_store
from hermes_doctor.engine.model import ExitCode, Finding, Safety, Severity
from hermes_doctor.engine.plan import Chosen, Place, place_of, plan_store
from hermes_doctor.engine.review import CHANGED, FILE, NO, YES, Answers, StoreAnswers, restricted, says
from hermes_doctor.engine.scan import ScanOptions, StoreScan, scan_store
from hermes_doctor.engine.stopping import Stop
from hermes_doctor.host.homes import StoreRef
from hermes_doctor.store.cells import BadText
from hermes_doctor.store.view import StoreView
from tests.cli.changing import DAY, contents, value
from tests.cli.reviewing import doubtful

ALL = Chosen(CHECKS, {fix.check: fix for fix in FIXES}, unsafe=True)
ENDED = "SELECT group_concat(id) FROM sessions WHERE id LIKE 'old-%' AND ended_at IS NOT NULL"

FOUND = Finding(
    check="open-zombies",
    severity=Severity.WARNING,
    table="sessions",
    key="old-1",
    session="old-1",
    summary="open for 9 days, a newer session has taken over its chat",
    detail={"source": "telegram", "idle_seconds": 777600},
    fix=Safety.UNSAFE,
    action="end it as startup_orphan_reap",
)


@pytest.fixture
def answers(tmp_path: Path) -> Answers:
    return Answers(tmp_path / "state")


def of_store(answers: Answers, store: Path) -> StoreAnswers:
    """The answers about a store, as it lies there now."""
    found: list[StoreAnswers] = []

    def look(_scan: StoreScan, view: StoreView) -> None:
        found.append(answers.of_store(store, view))

    scan_store(StoreRef(store, None, "default"), [], ScanOptions(), None, look).findings.close()
    return found[-1]


def words(kept: StoreAnswers, *findings: Finding) -> list[str | None]:
    return [answer.word if (answer := kept.about(finding)) else None for finding in findings]


@pytest.mark.parametrize(
    ("later", "same"),
    [
        (replace(FOUND, summary=FOUND.summary.replace("9 days", "2 hours")), True),
        (replace(FOUND, summary=FOUND.summary.replace("9 days", "less than a minute")), True),
        (replace(FOUND, detail={"idle_seconds": 1, "source": "telegram"}), True),
        (replace(FOUND, severity=Severity.INFO), True),
        (replace(FOUND, summary="open for 9 days, its gateway has given the chat up"), False),
        (replace(FOUND, detail={**FOUND.detail, "source": "discord"}), False),
        (replace(FOUND, detail={**FOUND.detail, "prunable": "once ended"}), False),
        (replace(FOUND, action="delete it"), False),
    ],
)
def test_how_long_something_has_been_so_makes_no_new_finding(later: Finding, same: bool) -> None:
    assert (says(later) == says(FOUND)) is same


def test_a_finding_is_known_by_its_place_and_by_what_it_says(tmp_path: Path, answers: Answers) -> None:
    store = make_demo_home(tmp_path / "home")
    odd = [
        replace(FOUND, key=key)
        for key in ("old-2", 7, "7", b"\x00\xff", BadText(b"\xff"), ("a", 1, None), "half \udcff of a pair")
    ]
    kept = of_store(answers, store)
    assert kept.keep([FOUND], YES)
    assert kept.keep(odd[:5], NO)
    assert kept.keep(odd[5:], YES)
    for again in (kept, of_store(answers, store)):
        assert words(again, FOUND, *odd[:4], *odd[5:]) == [YES, *[NO] * 4, YES, YES]
        others = replace(FOUND, check="orphan-stubs"), replace(FOUND, table="messages"), replace(FOUND, action="x")
        assert words(again, *others) == [None, None, None]
    kept = of_store(answers, store)
    assert kept.forget([place_of(FOUND), place_of(odd[0])])
    assert words(of_store(answers, store), FOUND, *odd[:2]) == [None, None, NO]
    # What says something else takes the place of what was answered before.
    assert kept.keep([replace(FOUND, action="x")], NO)
    assert words(of_store(answers, store), FOUND, replace(FOUND, action="x")) == [None, NO]


def test_answers_go_with_their_store(tmp_path: Path, answers: Answers) -> None:
    store = make_demo_home(tmp_path / "home")
    other = doubtful(tmp_path / "another")
    assert of_store(answers, store).keep([FOUND], NO)
    assert words(of_store(answers, other), FOUND) == [None]
    # A copy beside it is a store of its own, until the first one is gone.
    copy = tmp_path / "copy.db"
    shutil.copy(store, copy)
    assert words(of_store(answers, copy), FOUND) == [None]
    moved = store.rename(tmp_path / "moved.db")
    assert words(of_store(answers, moved), FOUND) == [NO]
    # Another store in the same place has none either.
    shutil.copy(other, store)
    with closing(apsw.Connection(str(store))) as connection:
        connection.execute("UPDATE sessions SET started_at = started_at + 0.5")
    assert words(of_store(answers, store), FOUND) == [None]


def test_they_are_private_and_a_broken_file_is_made_anew(tmp_path: Path, answers: Answers) -> None:
    store, file = make_demo_home(tmp_path / "home"), tmp_path / "state" / FILE
    kept = of_store(answers, store)
    assert not file.exists(), "looking makes nothing"
    assert kept.keep([FOUND], NO)
    assert (stat.S_IMODE(file.parent.stat().st_mode), stat.S_IMODE(file.stat().st_mode)) == (0o700, 0o600)
    for broken in (b"no database at all" * 100, b""):
        file.write_bytes(broken)
        again = of_store(answers, store)
        assert words(again, FOUND) == [None]
        assert again.keep([FOUND], NO)
        assert words(of_store(answers, store), FOUND) == [NO]
    with closing(sqlite3.connect(file)) as database, database:
        database.execute("ALTER TABLE answers ADD COLUMN more")
    assert of_store(answers, store).keep([FOUND], YES)
    assert words(of_store(answers, store), FOUND) == [YES]


def test_without_a_place_to_keep_them_they_hold_for_the_moment(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file where a folder should be")
    kept = of_store(Answers(tmp_path / "state"), make_demo_home(tmp_path / "home"))
    assert not kept.keep([FOUND], NO)
    assert words(kept, FOUND) == [NO]


def test_old_answers_are_forgotten(tmp_path: Path, answers: Answers) -> None:
    store = make_demo_home(tmp_path / "home")
    with time_machine.travel("2026-01-01"):
        of_store(answers, store).keep([FOUND], NO)
    with time_machine.travel("2027-12-30"):
        of_store(answers, store).keep([replace(FOUND, key="x")], NO)
        assert words(of_store(answers, store), FOUND) == [NO]
    with time_machine.travel("2028-01-10"):
        of_store(answers, store).keep([replace(FOUND, key="x")], NO)
        assert words(of_store(answers, store), FOUND) == [None]


def found(ref: StoreRef) -> dict[object, Finding]:
    """What a person has to decide, by key."""
    scan = scan_store(ref, CHECKS, ScanOptions())
    with scan.findings as findings:
        return {finding.key: finding for finding in findings if finding.fix is Safety.UNSAFE}


def test_just_what_was_answered_yes_is_mended(tmp_path: Path) -> None:
    store = doubtful(tmp_path / "home")
    ref = StoreRef(store, store.parent, "default")
    yes: dict[Place, str] = {place_of(each): says(each) for key, each in found(ref).items() if key == "old-2"}
    chosen = restricted(ALL, yes)
    plan = plan_store(ref, chosen, ScanOptions(), backup="never")
    with closing(plan):
        assert [(change.key, change.state) for change in plan.changes] == [("old-2", "planned")]
        assert (plan.left, plan.exit_code) == (1, ExitCode.FINDINGS)
    before = contents(store)
    fix = apply_store(ref, chosen, ScanOptions(), backup="never", stop=Stop())
    with closing(fix):
        assert [(change.key, change.state) for change in fix.changes] == [("old-2", "applied")]
        assert (fix.outcome, fix.exit_code, fix.left) == ("fixed", ExitCode.CLEAN, 0)
    after = contents(store)
    assert {table for table in before if before[table] != after[table]} == {"sessions"}
    assert len(set(before["sessions"]) - set(after["sessions"])) == 1
    assert value(store, ENDED) == "old-2"


def test_what_says_something_else_by_then_is_left_and_asked_again(tmp_path: Path) -> None:
    store = doubtful(tmp_path / "home")
    ref = StoreRef(store, store.parent, "default")
    chats = [each for key, each in found(ref).items() if str(key).startswith("old-")]
    yes = {place_of(each): says(each) for each in chats}
    with closing(apsw.Connection(str(store))) as connection:
        # A newer session yet takes over the second chat.
        connection.execute(
            "INSERT INTO sessions(id, source, started_at, session_key, message_count)"
            " SELECT 'newer', source, started_at + ?, session_key, 1 FROM sessions WHERE id = 'new-2'",
            (DAY,),
        )
        connection.execute(
            "INSERT INTO messages(session_id, role, content, timestamp)"
            " SELECT id, 'user', 'hello', started_at FROM sessions WHERE id = 'newer'"
        )
    changed = found(ref)["old-2"]
    assert says(changed) != yes[place_of(changed)], "or this test tests nothing"
    fix = apply_store(ref, restricted(ALL, yes), ScanOptions(), backup="never", stop=Stop())
    with closing(fix):
        states = {change.key: (change.state, change.reason) for change in fix.changes}
        assert states == {"old-1": ("applied", None), "old-2": ("refused", CHANGED), "old-3": ("applied", None)}
        assert (fix.outcome, fix.exit_code, fix.left) == ("partly-fixed", ExitCode.FINDINGS, 1)
    assert value(store, ENDED) == "old-1,old-3"


def test_files_are_held_to_what_was_answered_too(tmp_path: Path) -> None:
    store = make_demo_home(tmp_path / "home")
    ref = StoreRef(store, store.parent, "default")
    twins = [store.parent / f"state.db.malformed-backup-2026090{day}_120000" for day in (1, 2)]
    for age, twin in ((9, twins[0]), (8, twins[1])):
        shutil.copy(store, twin)
        at = time.time() - age * DAY
        os.utime(twin, (at, at))
    [(key, asked)] = found(ref).items()
    assert key == twins[0].name
    for digest, state, there in (
        ("of something else", ("refused", CHANGED), True),
        (says(asked), ("applied", None), False),
    ):
        fix = apply_store(ref, restricted(ALL, {place_of(asked): digest}), ScanOptions(), backup="never", stop=Stop())
        with closing(fix):
            assert [(change.state, change.reason) for change in fix.changes] == [state]
        assert twins[0].exists() is there
    assert twins[1].exists()
