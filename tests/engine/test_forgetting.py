"""Forgetting by itself: what is too old, then the oldest beyond the limit, never the run that was just made."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from hermes_doctor.engine.forgetting import KEPT_BYTES, KEPT_SECONDS, forget_old_runs
from hermes_doctor.engine.journal import APPLIED, Journal, Receipt

DAY = 86400.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "doctor").mkdir()
    return tmp_path / "doctor"


def make_run(journal: Journal, days_ago: float, size: int) -> str:
    run = journal.start_run(Path("/a/state.db"), {}, 31, None)
    receipt = Receipt("open-zombies", "sessions", "s1", "end it", "applied", None)
    journal.settle(journal.write_pending(run, "open-zombies", b"\xa7" * size, {}, [], [receipt]), APPLIED)
    with closing(sqlite3.connect(journal.path)) as direct, direct:
        direct.execute("UPDATE runs SET at = ? WHERE run = ?", (time.time() - days_ago * DAY, run))
    return run


def forgotten(journal: Journal) -> set[str]:
    return {run.run for run in journal.runs() if run.forgotten_at is not None}


def test_the_limits() -> None:
    assert (KEPT_SECONDS, KEPT_BYTES) == (90 * DAY, 2 * 1024**3)


def test_what_is_too_old(folder: Path) -> None:
    with Journal(folder) as journal:
        older, old, young = (make_run(journal, days, 100) for days in (200, 90.1, 89.9))
        assert forget_old_runs(journal, time.time()) == [older, old]
        assert forgotten(journal) == {older, old}
        assert journal.changeset_bytes_by_run() == {older: 0, old: 0, young: 100}
        # What is forgotten is not forgotten again.
        assert forget_old_runs(journal, time.time()) == []


def test_how_much_there_is_is_told_without_reading_it(folder: Path) -> None:
    """Journals hold gigabytes. Where the rest of a changeset should be there is nothing, and nobody looks."""
    with Journal(folder) as journal:
        first, second = (make_run(journal, 1, size) for size in (50_000, 70_000))
        path = journal.path
    with closing(apsw.Connection(str(path))) as direct:
        size = int(str(direct.pragma("page_size")))
        rows = direct.execute("SELECT pageno FROM dbstat WHERE name = 'changesets' AND pagetype = 'overflow'")
        overflow = [int(str(number)) for (number,) in rows]
    with path.open("r+b") as file:
        for number in overflow:
            file.seek((number - 1) * size)
            file.write(b"\x7f\xff\xff\xff")
    with closing(sqlite3.connect(path)) as direct, pytest.raises(sqlite3.DatabaseError):
        direct.execute("SELECT max(changeset) FROM changesets").fetchall()
    with Journal(folder) as journal:
        assert journal.changeset_bytes_by_run() == {first: 50_000, second: 70_000}


def test_the_oldest_go_until_the_rest_fits(folder: Path) -> None:
    with Journal(folder) as journal:
        _fourth, third, second, first = (make_run(journal, days, 100) for days in (4, 3, 2, 1))
        assert forget_old_runs(journal, time.time(), most_bytes=400) == []
        assert forget_old_runs(journal, time.time(), most_bytes=250) == [_fourth, third]
        assert forgotten(journal) == {_fourth, third}
        assert forget_old_runs(journal, time.time(), spare=first, most_bytes=10) == [second]
        assert forget_old_runs(journal, time.time(), spare=first, most_bytes=10) == []


def test_what_is_forgotten_leaves_the_file_and_stays_told(folder: Path) -> None:
    with Journal(folder) as journal:
        run = make_run(journal, 100, 200_000)
        large = journal.path.stat().st_size
        assert b"\xa7" * 100 in journal.path.read_bytes()
        forget_old_runs(journal, time.time())
        assert b"\xa7" * 100 not in journal.path.read_bytes()
        assert journal.path.stat().st_size < large - 150_000
        assert journal.mended(run) == {"open-zombies": 1}
        assert [receipt.key for receipt in journal.receipts(run)] == ["s1"]
        [entry] = journal.entries(run)
        assert entry.changeset is None


def test_a_run_without_a_changeset_is_discarded(folder: Path) -> None:
    with Journal(folder) as journal:
        kept = make_run(journal, 1, 10)
        empty = journal.start_run(Path("/a/state.db"), {}, 31, None)
        assert not journal.discard_if_empty(kept)
        assert journal.discard_if_empty(empty)
        assert [run.run for run in journal.runs()] == [kept]
