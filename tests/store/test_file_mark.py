"""Marks of a store's files: equal ones only where nobody wrote, none where that cannot be told."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import apsw
import pytest

from hermes_doctor.host.lease import LeaseRefusal
from hermes_doctor.store import file_mark as module
from hermes_doctor.store.file_mark import FileMark, take_mark
from hermes_doctor.store.opening import OpenStore, Rung, open_without_trace


@pytest.fixture(autouse=True)
def _soon_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SETTLED", 0.05)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return make(tmp_path, "wal")


def make(folder: Path, mode: str) -> Path:
    path = folder / mode / "state.db"
    path.parent.mkdir()
    connection = apsw.Connection(str(path))
    connection.pragma("journal_mode", mode)
    connection.execute("CREATE TABLE t(a)")
    connection.execute("INSERT INTO t VALUES(zeroblob(9000))")
    connection.close()
    time.sleep(0.06)
    return path


@contextmanager
def opened(path: Path, lease: LeaseRefusal | None = None) -> Iterator[OpenStore]:
    with open_without_trace(path, hermes_only=False, lease=lease) as store:
        yield store


def mark_of(path: Path, lease: LeaseRefusal | None = None) -> FileMark:
    with opened(path, lease) as store:
        mark = take_mark(store)
    assert mark is not None
    return mark


def test_nothing_happened(path: Path) -> None:
    first = mark_of(path)
    assert first.settled
    assert mark_of(path).shows_no_change_since(first)
    as_written = json.loads(json.dumps(asdict(first)))
    for name in ("file", "log", "journal"):
        as_written[name] = as_written[name] and tuple(as_written[name])
    assert mark_of(path).shows_no_change_since(FileMark(**as_written))


def commit(path: Path) -> None:
    connection = apsw.Connection(str(path))
    connection.execute("UPDATE t SET a = randomblob(9000)")
    connection.close()


def commit_into_the_log(path: Path) -> None:
    connection = apsw.Connection(str(path))
    connection.pragma("journal_mode", "wal")
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    connection.execute("UPDATE t SET a = randomblob(9000)")
    connection.close()


def overwrite(path: Path) -> None:
    """One byte, with the old time put back."""
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"x")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def replace_by_a_copy(path: Path) -> None:
    copy = path.with_name("copy")
    shutil.copy2(path, copy)
    copy.replace(path)


def fill_anew(path: Path) -> None:
    before, data = path.stat(), path.read_bytes()
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def leave_a_journal(path: Path) -> None:
    path.with_name("state.db-journal").write_bytes(b"")


CHANGES: list[Callable[[Path], None]] = [
    *(commit, commit_into_the_log, overwrite, replace_by_a_copy, fill_anew, leave_a_journal)
]


@pytest.mark.parametrize("mode", ["delete", "wal"])
def test_whatever_happened_shows(tmp_path: Path, mode: str) -> None:
    path = make(tmp_path, mode)
    before = mark_of(path)
    for change in CHANGES:
        change(path)
        time.sleep(0.06)
        mark = mark_of(path)
        assert mark.settled, (change, mark)
        assert not mark.shows_no_change_since(before), change
        before = mark


def test_a_mark_taken_right_after_a_change_proves_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SETTLED", 60.0)
    first = mark_of(path)
    assert not first.settled
    assert not mark_of(path).shows_no_change_since(first)


def test_times_of_whole_seconds_prove_nothing(path: Path) -> None:
    os.utime(path, ns=(10**18, 10**18))
    time.sleep(0.06)
    assert not mark_of(path).settled


def test_a_clock_that_went_back_proves_nothing(path: Path) -> None:
    first, second = mark_of(path), mark_of(path)
    assert second.shows_no_change_since(first)
    assert not replace(second, taken=first.taken - 1).shows_no_change_since(first)


def test_a_change_in_the_future_proves_nothing(path: Path) -> None:
    ahead = time.time_ns() + 10**12 + 1
    os.utime(path, ns=(ahead, ahead))
    assert not mark_of(path).settled


def test_there_is_none_where_somebody_may_write(tmp_path: Path) -> None:
    with opened(make(tmp_path, "delete"), LeaseRefusal.UNAVAILABLE) as store:
        assert store.rung is Rung.ROLLBACK
        assert take_mark(store) is None


def test_there_is_none_once_somebody_opened_it_for_writing(path: Path) -> None:
    with opened(path) as store:
        subprocess.run([sys.executable, "-c", "import sys; open(sys.argv[1], 'r+b')", str(path)], check=True)
        assert take_mark(store) is None


def test_there_is_none_of_a_file_that_was_put_in_its_place(path: Path) -> None:
    with opened(path) as store:
        replace_by_a_copy(path)
        assert take_mark(store) is None


def test_a_private_copy_is_of_what_the_mark_shows(path: Path) -> None:
    first = mark_of(path)
    with opened(path, LeaseRefusal.UNAVAILABLE) as store:
        assert store.private
        mark = take_mark(store)
        assert mark is not None
        assert mark.shows_no_change_since(first)
        commit(path)
        assert take_mark(store) is None
