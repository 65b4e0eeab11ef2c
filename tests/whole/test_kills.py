"""Killed at every numbered step, and at random: the store is whole, the journal knows, the same command carries on."""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from hermes_doctor.engine.steps import Step
from tests.oracle.home import Home
from tests.oracle.steps import sql
from tests.whole import killing
from tests.whole.identical import difference, image_of
from tests.whole.killing import (
    BACKUP,
    COMMANDS,
    COMPACT,
    EACH,
    LATER,
    ONCE,
    SCAN,
    SETTLE,
    STORES,
    UNDO,
    UNDO_FILE,
    UNDO_ONCE,
    RandomKills,
    agreement,
    journal,
    patient,
)
from tests.whole.runner import Doctors
from tests.whole.support import fingerprint

pytestmark = pytest.mark.usefixtures("oracle")

#: One store of each journal mode; the long form (bench/kills.py) goes through all four.
OLD, NEW = STORES[:2]
SEED = 20261129


@pytest.fixture(scope="module")
def doctors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doctors]:
    with Doctors(tmp_path_factory.mktemp("doctors")) as running:
        yield running


@pytest.fixture
def templates(shared_folder: Path) -> Path:
    return shared_folder / "damaged"


def test_every_step_is_killed_at() -> None:
    steps = (*SCAN, *BACKUP, *ONCE, *EACH, *SETTLE, *UNDO_ONCE, *UNDO, *UNDO_FILE, *COMPACT)
    assert sorted(steps) == sorted(Step)


@pytest.mark.parametrize(("step", "store"), list(zip(SCAN, (OLD, NEW), strict=True)))
def test_killed_while_scanning(doctors: Doctors, templates: Path, step: Step, store: tuple[str, str]) -> None:
    with patient(templates, doctors, *store) as sick:
        killing.kill_in_scan(sick, step, 1)


@pytest.mark.parametrize(("step", "store"), list(zip(BACKUP, (OLD, NEW, OLD, NEW), strict=True)))
def test_killed_while_backing_up(doctors: Doctors, templates: Path, step: Step, store: tuple[str, str]) -> None:
    with patient(templates, doctors, *store) as sick:
        killing.kill_in_backup(sick, step, 1)


@pytest.mark.parametrize(("step", "store"), list(zip(ONCE, (OLD, NEW), strict=True)))
def test_killed_before_or_after_all_transactions(
    doctors: Doctors, templates: Path, step: Step, store: tuple[str, str]
) -> None:
    with patient(templates, doctors, *store) as sick:
        killing.kill_in_fix(sick, step, 1)


@pytest.mark.parametrize(("count", "store"), [(1, OLD), (LATER, NEW)], ids=["first", "later"])
@pytest.mark.parametrize("step", EACH)
def test_killed_in_a_transaction(
    doctors: Doctors, templates: Path, step: Step, count: int, store: tuple[str, str]
) -> None:
    with patient(templates, doctors, *store) as sick:
        killing.kill_in_fix(sick, step, count)


@pytest.mark.parametrize(
    ("step", "before", "store"), [(Step.SETTLING, Step.PENDING, OLD), (Step.SETTLED, Step.COMMITTED, NEW)]
)
def test_killed_while_settling_what_a_kill_left(
    doctors: Doctors, templates: Path, step: Step, before: Step, store: tuple[str, str]
) -> None:
    with patient(templates, doctors, *store) as sick:
        killing.kill_in_settling(sick, step, before)


@pytest.mark.parametrize(("count", "store"), [(1, NEW), (LATER, OLD)], ids=["first", "later"])
@pytest.mark.parametrize("step", UNDO)
def test_killed_while_taking_back(
    doctors: Doctors, templates: Path, step: Step, count: int, store: tuple[str, str]
) -> None:
    with patient(templates, doctors, *store) as sick:
        killing.kill_in_undo(sick, step, count)


@pytest.mark.parametrize(("step", "store"), [(step, OLD) for step in UNDO_ONCE] + [(step, NEW) for step in UNDO_FILE])
def test_killed_around_taking_back_and_in_a_files(
    doctors: Doctors, templates: Path, step: Step, store: tuple[str, str]
) -> None:
    with patient(templates, doctors, *store) as sick:
        killing.kill_in_undo(sick, step, 1)


@pytest.mark.parametrize(("step", "store"), list(zip(COMPACT, (NEW, OLD, NEW, OLD, NEW), strict=True)))
def test_killed_while_compacting(doctors: Doctors, templates: Path, step: Step, store: tuple[str, str]) -> None:
    with patient(templates, doctors, *store) as sick:
        killing.kill_in_compact(sick, step, 1)


@pytest.mark.parametrize("store", [OLD, NEW], ids="-".join)
def test_killed_at_random(doctors: Doctors, templates: Path, store: tuple[str, str]) -> None:
    """At any call of the system: a moment of a clock would hit less of what is quick."""
    with patient(templates, doctors, *store) as sick:
        spans = killing.spans(sick)
    with patient(templates, doctors, *store) as sick:
        kills = RandomKills(random.Random(f"{SEED} {store}"), spans, by_time=False)
        kills(sick)
    # The others came too late, as a busy machine makes a command longer than it is.
    assert set(kills.hits) == set(COMMANDS)
    assert kills.hits.total() >= 3, (kills.hits, spans)


def test_a_kill_after_the_last_transaction_leaves_a_run_that_can_be_undone(doctors: Doctors, templates: Path) -> None:
    """Nothing is left to mend, so no repair comes to settle what is pending: the undoing does."""
    with patient(templates, doctors, *NEW) as sick:
        # Up to ten rows get a transaction each.
        gaps = ("--check", "lineage-gaps")
        killing.killed(sick.fix(*gaps, kill_at=f"{Step.COMMITTED}:10"))
        again = sick.fix(*gaps)
        assert again.code == 0
        assert again.json()["outcome"] == "nothing-to-do"
        (run,) = sick.runs()
        plan = sick.doctors.run("undo", run, sick.home.path, "--json")
        assert plan.code == 1
        assert len({(each["table"], each["key"]) for each in plan.json()["changes"]}) == 13
        sick.undo_all()


def test_the_same_command_finishes_although_nothing_is_left_to_mend(doctors: Doctors, templates: Path) -> None:
    """Killed after the last commit of all: what is pending stays so until it is undone, or until the next repair."""
    with patient(templates, doctors, *OLD) as sick:
        assert sick.fix("--skip", "orphan-stubs").code == 0
        # Ten empty chats, which get a transaction each.
        killing.killed(sick.fix(kill_at=f"{Step.COMMITTED}:10"))
        sick.finish()
        assert journal(sick.home, "SELECT state FROM changesets ORDER BY number DESC LIMIT 1") == [("pending",)]
        sick.undo_all()


def test_a_backup_that_was_cut_off_goes_although_the_next_repair_makes_none(doctors: Doctors, templates: Path) -> None:
    with patient(templates, doctors, *OLD) as sick:
        killing.killed(sick.fix(kill_at=f"{Step.BACKUP_COPIED}:1", backup="always"))
        (left,) = (sick.home.path / "doctor" / "backups").iterdir()
        assert left.suffix == ".partial"
        sick.finish(backup="never")
        sick.undo_all()


def test_killed_while_taking_back_what_was_changed_twice(doctors: Doctors, templates: Path, tmp_path: Path) -> None:
    """Empty chats that were ended, then deleted: the deletion is taken back and settled, the end taken back."""
    with patient(templates, doctors, *OLD) as sick:
        assert sick.fix("--check", "open-zombies").code == 0
        ended = stubs_by_changeset(sick.home)
        assert sick.fix("--check", "orphan-stubs").code == 0
        deleted, first = sick.runs()
        assert sick.undo(deleted).code == 0
        newest = max(ended)
        later = journal(sick.home, f"SELECT number FROM changesets WHERE run = '{first}' AND number > {newest}")
        killing.killed(sick.undo(first, kill_at=f"{Step.UNDO_COMMITTED}:{len(later) + 1}"))
        assert journal(sick.home, f"SELECT state FROM changesets WHERE number = {newest}") == [("applied",)]
        assert agreement(sick.home, stopped=True) == []
        # As it was never, or otherwise another row than the deletion had found: that is seen.
        stub = min(ended[newest])
        for change, seen in (("ended_at = 1.0", "neither"), ("source = 'other'", f"'{stub}'),)) is not as before")):
            other = altered(sick.home, tmp_path / change[:6], f"UPDATE sessions SET {change} WHERE id = '{stub}'")
            assert seen in agreement(other, stopped=True)[0]
        sick.undo_all()


def stubs_by_changeset(home: Home) -> dict[int, set[str]]:
    """Which empty chats each changeset is about, of those that are about any."""
    found: dict[int, set[str]] = {}
    for number, key in journal(home, "SELECT number, key FROM receipts WHERE state = 'applied'"):
        if str(json.loads(key)).startswith("stub-"):
            found.setdefault(number, set()).add(json.loads(key))
    return found


def altered(home: Home, to: Path, statement: str) -> Home:
    """A copy of a home whose store was changed behind the doctor's back."""
    shutil.copytree(home.path, to)
    store = apsw.Connection(str(Home(to).store))
    store.execute(statement)
    assert store.changes() == 1
    store.close()
    return Home(to)


_CUT_OFF = """
import os, signal, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("PRAGMA cache_size = 1")
connection.execute("BEGIN")
connection.execute("UPDATE changesets SET state = 'applied', changeset = zeroblob(100000)")
connection.execute("UPDATE runs SET path = ''")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_killed_in_the_middle_of_writing_the_journal(doctors: Doctors, templates: Path) -> None:
    """Its rollback journal is hot: who only reads takes that back in a copy, who works in the file itself."""
    with patient(templates, doctors, *OLD) as sick:
        killing.killed(sick.fix(kill_at=f"{Step.PENDING}:{LATER}"))
        folder = sick.home.path / "doctor"
        subprocess.run([sys.executable, "-c", _CUT_OFF, folder / "doctor.db"], check=False)
        assert (folder / "doctor.db-journal").stat().st_size > 512
        before = fingerprint(folder)
        plan = doctors.run("fix", sick.home.path)
        assert plan.code == 1, (plan.out, plan.err)
        (run,) = sick.runs()
        plan = doctors.run("undo", run, sick.home.path)
        assert plan.code == 1, (plan.out, plan.err)
        assert fingerprint(folder) == before
        sick.finish()
        sick.undo_all()


@pytest.mark.parametrize("left", ["nothing", "an empty table of contents"])
def test_killed_while_the_journal_was_made(doctors: Doctors, templates: Path, left: str) -> None:
    with patient(templates, doctors, *NEW) as sick:
        folder = sick.home.path / "doctor"
        folder.mkdir(mode=0o700)
        made = sqlite3.connect(folder / "doctor.db")
        if left != "nothing":
            made.execute("PRAGMA user_version = 1")
        made.close()
        plan = doctors.run("fix", sick.home.path)
        assert plan.code == 1, (plan.out, plan.err)
        sick.finish()
        sick.undo_all()


def test_a_doctor_that_writes_its_journal_afterwards_is_found_out(tmp_path: Path, templates: Path) -> None:
    """The wrong variant: killed between the store's commit and its journal, it cannot give back what it changed."""
    with Doctors(tmp_path, late=True) as wrong, patient(templates, wrong, *OLD) as sick:
        killing.killed(sick.fix(kill_at=f"{Step.COMMITTED}:{LATER}"))
        # The journal itself does not show it: it knows nothing of the transaction.
        assert agreement(sick.home, stopped=True) == []
        sick.finish()
        for run in sick.runs():
            assert sick.undo(run).code == 0
        assert difference(sick.before, image_of(sick.home.store)) != []


def test_the_oracle_sees_a_journal_that_is_wrong(doctors: Doctors, templates: Path) -> None:
    with patient(templates, doctors, *NEW) as sick:
        assert sick.fix().code == 0
        assert agreement(sick.home) == []
        reopened = "UPDATE sessions SET ended_at = NULL WHERE end_reason = 'startup_orphan_reap'"
        sick.home.run(NEW[0], [sql(reopened)])
        assert agreement(sick.home) != []
