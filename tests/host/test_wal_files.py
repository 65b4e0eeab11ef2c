"""The header of a log's index against what SQLite itself says of the log, and who has locks on it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest

from hermes_doctor.host.wal_files import Log, LogIndex, index_users, parse_index, read_log, who_is_busy
from tests.host.evidence import run_python

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="is not read there")


@pytest.fixture
def connect(tmp_path: Path) -> Iterator[Callable[[int], apsw.Connection]]:
    """Makes a store in WAL mode with pages of so many bytes; its connection."""
    opened: list[apsw.Connection] = []

    def make(page_size: int) -> apsw.Connection:
        connection = apsw.Connection(str(tmp_path / "state.db"))
        opened.append(connection)
        for name, value in (("page_size", page_size), ("journal_mode", "wal"), ("wal_autocheckpoint", 0)):
            connection.pragma(name, value)
        connection.execute("CREATE TABLE t(x)")
        return connection

    yield make
    for connection in opened:
        connection.close()


def seen(store: Path) -> tuple[int, int]:
    log = read_log(store)
    assert log is not None
    assert log.missing == 0
    assert log.waiting == log.index.frames - log.index.carried
    return log.index.frames, log.index.carried


@pytest.mark.parametrize("page_size", [512, 4096, 65536])
def test_frames_are_those_that_sqlite_counts(
    connect: Callable[[int], apsw.Connection], tmp_path: Path, page_size: int
) -> None:
    connection = connect(page_size)
    store = tmp_path / "state.db"

    def as_sqlite_says() -> tuple[int, int]:
        return connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)

    for step in (
        "INSERT INTO t VALUES (zeroblob(100_000))",
        "PRAGMA wal_checkpoint(PASSIVE)",
        "INSERT INTO t VALUES (1)",
        "PRAGMA wal_checkpoint(TRUNCATE)",
        "INSERT INTO t VALUES (2)",
    ):
        list(connection.execute(step))
        assert seen(store) == as_sqlite_says(), step
    committed = as_sqlite_says()
    connection.execute("BEGIN IMMEDIATE; UPDATE t SET x = zeroblob(200_000)")
    assert seen(store) == committed, "what is not committed does not wait"
    log = read_log(store)
    assert log is not None
    assert log.index.page_size == page_size
    connection.execute("ROLLBACK")


def test_looking_drops_no_lock_of_this_process(connect: Callable[[int], apsw.Connection], tmp_path: Path) -> None:
    connection = connect(4096)
    connection.execute("BEGIN IMMEDIATE; INSERT INTO t VALUES (1)")
    assert seen(tmp_path / "state.db")
    code = (
        "import apsw, sys\n"
        "try: apsw.Connection(sys.argv[1]).execute('BEGIN IMMEDIATE'); print('got in')\n"
        "except apsw.BusyError: print('busy')"
    )
    assert run_python(code, str(tmp_path / "state.db")).stdout == "busy\n"
    connection.execute("ROLLBACK")


def test_what_is_no_index_tells_nothing(connect: Callable[[int], apsw.Connection], tmp_path: Path) -> None:
    connect(4096)
    header = (tmp_path / "state.db-shm").read_bytes()
    assert parse_index(header) is not None
    assert parse_index(header[:119]) is None
    assert parse_index(b"") is None
    assert parse_index(bytes(136)) is None
    being_written = header[:16] + b"\xff" + header[17:]
    assert parse_index(being_written) is None
    spoilt = bytearray(header)
    spoilt[16] = spoilt[48 + 16] = 0xFF
    assert parse_index(bytes(spoilt)) is None


def test_missing_and_waiting_frames() -> None:
    index = LogIndex(frames=100, carried=40, marks=(0, 100, 100, 100, 100), salts=b"", page_size=4096)
    amounts = {
        present: (Log(index, 1, present).waiting, Log(index, 1, present).missing) for present in (0, 30, 70, 300)
    }
    assert amounts == {0: (0, 60), 30: (0, 60), 70: (30, 30), 300: (60, 0)}


def test_who_is_busy_by_the_locks_on_the_index(tmp_path: Path) -> None:
    index = LogIndex(frames=100, carried=40, marks=(0, 40, 100, 0xFFFFFFFF, 0xFFFFFFFF), salts=b"", page_size=4096)
    store = tmp_path / "state.db"
    shm = tmp_path / "state.db-shm"
    assert not who_is_busy(store, index, "").readers
    shm.touch()
    inode = shm.stat().st_ino
    lines = {
        "at the last frame": (f"1: POSIX  ADVISORY  READ 11 fe:00:{inode} 125 125", (False, ())),
        "behind": (f"2: POSIX  ADVISORY  READ 12 fe:00:{inode} 124 124", (False, (12,))),
        "in the store's file only": (f"3: POSIX  ADVISORY  READ 13 fe:00:{inode} 123 123", (False, (13,))),
        "checkpointing": (f"4: POSIX  ADVISORY  WRITE 14 fe:00:{inode} 121 121", (True, ())),
        "writing": (f"5: POSIX  ADVISORY  WRITE 15 fe:00:{inode} 120 120", (False, ())),
        "the dead man's switch": (f"6: POSIX  ADVISORY  READ 16 fe:00:{inode} 128 128", (False, ())),
        "waiting": (f"7: -> POSIX  ADVISORY  WRITE 17 fe:00:{inode} 121 121", (False, ())),
        "another file": (f"8: POSIX  ADVISORY  READ 18 fe:00:{inode}9 124 124", (False, ())),
        "another kind": (f"9: FLOCK  ADVISORY  WRITE 19 fe:00:{inode} 0 EOF", (False, ())),
        "in another namespace": (f"10: POSIX  ADVISORY  READ 0 fe:00:{inode} 124 124", (False, ())),
        "this process": (f"11: POSIX  ADVISORY  READ {os.getpid()} fe:00:{inode} 124 124", (False, ())),
    }
    for what, (line, expected) in lines.items():
        busy = who_is_busy(store, index, f"{line}\n")
        assert (busy.checkpointing, busy.readers) == expected, what
    assert who_is_busy(store, index, "\n".join(line for line, _ in lines.values())).readers == (12, 13)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc/locks is Linux's")
def test_who_uses_an_index_is_told_until_it_closes(connect: Callable[[int], apsw.Connection], tmp_path: Path) -> None:
    connect(4096)
    inode = (tmp_path / "state.db-shm").stat().st_ino
    hold = (
        "import apsw, sys; c = apsw.Connection(sys.argv[1]); c.execute('SELECT 1 FROM t').fetchall(); print(flush=True)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", f"{hold}; sys.stdin.read()", str(tmp_path / "state.db")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        # This process uses it, too, and is left out.
        assert {pid for pid, used in index_users() if used == inode} == {other.pid}
    assert {pid for pid, used in index_users() if used == inode} == set()


def test_locks_on_other_bytes_are_no_use_of_an_index() -> None:
    line = "1: POSIX  ADVISORY  READ  {} 00:1b:{} {} {}"
    told = [(11, 5, 128, 128), (12, 5, 123, 123), (13, 6, 120, 130), (14, 5, 0, "EOF"), (15, 5, 1073741826, 1073742335)]
    locks = "\n".join(line.format(*each) for each in told)
    assert index_users(f"{locks}\n2: -> POSIX ADVISORY WRITE 16 00:1b:5 128 128") == {(11, 5), (13, 6)}
