"""Each rung of the ladder on files that real releases left, were killed over, or hold open right now."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import apsw
import pytest

from hermes_doctor.host.bundle import Condition, StoreProblem, inspect
from hermes_doctor.host.lease import LeaseRefusal
from hermes_doctor.store.opening import OpenStore, Rung, open_without_trace
from hermes_doctor.store.reader import Pace
from hermes_doctor.store.shape import KNOWN_SCHEMA
from tests.host.evidence import everything_in, may_unshare, no_trace_in, run_python
from tests.oracle.home import Home
from tests.oracle.process import HermesProcess
from tests.oracle.steps import Step, call, die_in_transaction, kill, sql

#: The last release that makes WAL stores on any SQLite, and the newest, which makes rollback ones on an old SQLite.
WAL, NEWEST = "0.19.0", "0.22.2"

#: Enough rows that they are in more than one page, and in the log.
TALK: list[Step] = [
    call("create_session", "s1", "cli"),
    *(call("append_message", "s1", "user", f"message {number} " + "x" * 300) for number in range(40)),
]
MORE: list[Step] = [call("append_message", "s1", "user", "one more " + "y" * 300)]


def talk_of(store: OpenStore) -> list[str]:
    """All contents of the session that TALK wrote, in order."""
    rows = store.connection.execute("SELECT content FROM messages WHERE session_id = 's1' ORDER BY id")
    return [str(content) for (content,) in rows]


def said_by(home: Home, release: str) -> list[str]:
    """The same, as the release itself reads it from a copy of the home."""
    copy = Home(home.path.with_name(home.path.name + "-read"))
    shutil.copytree(home.path, copy.path, dirs_exist_ok=True)
    return [str(message["content"]) for message in copy.messages(release, "s1")]


@pytest.fixture
def in_temporary(tmp_path: Path) -> Path:
    """A folder for private copies, so that what stays behind would show."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    return folder


# --- the table of proofs -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """``leave``: what happens to the home first. ``held``: a process of the release stays on it meanwhile."""

    name: str
    release: str
    leave: Callable[[Home, str], object]
    rung: Rung
    held: bool = False
    unleased: bool = False
    wal: bool = False
    condition: Condition = Condition.READABLE
    while_held: tuple[Step, ...] = ()


#: A closed home for each release, made once per process.
_templates: dict[str, Path] = {}


def closed(home: Home, release: str) -> None:
    if home.store.exists():
        home.run(release, TALK)
    else:
        if release not in _templates:
            template = Home(Path(tempfile.mkdtemp(prefix="talk-", dir=home.path.parents[1])) / "home")
            template.run(release, TALK)
            _templates[release] = template.path
        shutil.copytree(_templates[release], home.path, dirs_exist_ok=True)
    for leftover in ("-wal", "-shm"):
        assert not home.path.joinpath("state.db" + leftover).exists()


def killed(home: Home, release: str) -> None:
    home.run(release, [*TALK, kill()])
    assert home.path.joinpath("state.db-wal").stat().st_size > 0
    assert home.path.joinpath("state.db-shm").exists()


def killed_with_empty_log(home: Home, release: str) -> None:
    home.run(release, [*TALK, sql("PRAGMA wal_checkpoint(TRUNCATE)"), kill()])
    assert home.path.joinpath("state.db-wal").stat().st_size == 0
    assert home.path.joinpath("state.db-shm").exists()


def killed_and_index_lost(home: Home, release: str) -> None:
    killed(home, release)
    home.path.joinpath("state.db-shm").unlink()


def empty_log_and_index_lost(home: Home, release: str) -> None:
    killed_with_empty_log(home, release)
    home.path.joinpath("state.db-shm").unlink()


def index_emptied(home: Home, release: str) -> None:
    killed(home, release)
    os.truncate(home.path / "state.db-shm", 0)


def killed_in_transaction(home: Home, release: str) -> None:
    closed(home, release)
    home.run(release, [die_in_transaction(("UPDATE messages SET content = 'never committed ' || content",))])
    assert home.path.joinpath("state.db-journal").stat().st_size > 0


def journal_with_zeroed_header(home: Home, release: str) -> None:
    home.run(release, [*TALK, sql("PRAGMA journal_mode=PERSIST"), *MORE])
    assert home.path.joinpath("state.db-journal").read_bytes()[:28] == bytes(28)


def empty_journal(home: Home, release: str) -> None:
    closed(home, release)
    home.path.joinpath("state.db-journal").touch()


CASES = [
    Case("a-held", WAL, closed, Rung.SHARED_WAL, held=True),
    Case("a-held-mid-transaction", WAL, closed, Rung.SHARED_WAL, held=True, while_held=(
        sql("BEGIN IMMEDIATE"), sql("UPDATE messages SET content = 'not yet'"))),
    Case("a-held-newest", NEWEST, closed, Rung.SHARED_WAL, held=True, wal=True),
    Case("a-crash", WAL, killed, Rung.SHARED_WAL),
    Case("a-crash-newest", NEWEST, killed, Rung.SHARED_WAL, wal=True),
    Case("a-crash-empty-log", WAL, killed_with_empty_log, Rung.SHARED_WAL),
    Case("a-crash-empty-index", WAL, index_emptied, Rung.SHARED_WAL),
    Case("b-closed", NEWEST, closed, Rung.ROLLBACK),
    Case("b-held", NEWEST, closed, Rung.ROLLBACK, held=True),
    Case("b-held-mid-transaction", NEWEST, closed, Rung.ROLLBACK, held=True, while_held=(
        sql("BEGIN IMMEDIATE"), sql("UPDATE messages SET content = 'not yet'"))),
    Case("b-zeroed-journal", NEWEST, journal_with_zeroed_header, Rung.ROLLBACK),
    Case("b-empty-journal", NEWEST, empty_journal, Rung.ROLLBACK),
    Case("c-closed", WAL, closed, Rung.IMMUTABLE),
    Case("c-closed-newest", NEWEST, closed, Rung.IMMUTABLE, wal=True),
    Case("c-empty-log-without-index", WAL, empty_log_and_index_lost, Rung.IMMUTABLE),
    Case("d-closed", WAL, closed, Rung.UNLEASED, unleased=True),
    Case("d-empty-log-without-index", WAL, empty_log_and_index_lost, Rung.UNLEASED, unleased=True),
    Case("e-hot-journal", NEWEST, killed_in_transaction, Rung.RECOVERED, condition=Condition.NEEDS_RECOVERY),
    Case("e-log-without-index", WAL, killed_and_index_lost, Rung.RECOVERED, condition=Condition.NEEDS_RECOVERY),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_rung_shows_what_the_release_shows_and_leaves_no_trace(case: Case, home: Home, in_temporary: Path) -> None:
    if case.wal:
        home.use_wal(case.release)
    case.leave(home, case.release)
    expected = said_by(home, case.release)
    assert len(expected) >= 40
    with contextlib.ExitStack() as stack:
        if case.held:
            holder = stack.enter_context(HermesProcess(home, case.release))
            for step in case.while_held:
                holder.step(step)
        stack.enter_context(no_trace_in(home.path))
        lease = LeaseRefusal.UNAVAILABLE if case.unleased else None
        store = stack.enter_context(open_without_trace(home.store, lease=lease, temporary=in_temporary))
        assert (store.rung, store.condition, store.trace) == (case.rung, case.condition, [])
        assert talk_of(store) == expected
        if case.unleased:
            # A process of the store's owner that cannot be read makes it "unknown": see tests/host/test_holders.py.
            assert store.holding.state in ("no", "unknown")
        else:
            assert store.holding.state == ("yes" if case.held else "no")
        assert [each.pid for each in store.holding.holders] == ([holder.pid] if case.held else [])
        assert not store.moved()
        assert store.private == (case.rung in (Rung.UNLEASED, Rung.RECOVERED))
    assert list(in_temporary.iterdir()) == []


@pytest.mark.parametrize(
    ("release", "lease", "pace"),
    [(WAL, None, Pace.FREE), (WAL, LeaseRefusal.UNAVAILABLE, Pace.FREE), (NEWEST, None, Pace.SLICED)],
)
def test_the_pace_follows_from_whom_a_reader_would_keep_waiting(
    home: Home, release: str, lease: LeaseRefusal | None, pace: Pace
) -> None:
    closed(home, release)
    with open_without_trace(home.store, lease=lease) as store:
        assert store.pace is pace
    if release == WAL:
        with HermesProcess(home, release), open_without_trace(home.store) as store:
            assert store.pace is Pace.SNAPSHOT


def test_a_recovered_copy_is_recovered_by_the_release_to_the_same(home: Home) -> None:
    """What the doctor saw in its copy is what hermes makes of the original afterwards."""
    killed_in_transaction(home, NEWEST)
    with open_without_trace(home.store) as store:
        seen = talk_of(store)
    assert not any("never committed" in text for text in seen)
    assert [message["content"] for message in home.messages(NEWEST, "s1")] == seen


# --- the lease breaks ----------------------------------------------------------------------------------------------

_OPEN_FOR_WRITING = (
    "import os, sys, time\n"
    "t = time.monotonic(); f = os.open(sys.argv[1], os.O_RDWR); print(time.monotonic() - t, flush=True)\n"
    "sys.stdin.read()"
)


@contextlib.contextmanager
def opened_for_writing(file: Path) -> Iterator[float]:
    """Another process has the file open for writing; gives how long its open took, in seconds."""
    command = [sys.executable, "-c", _OPEN_FOR_WRITING, str(file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield float(process.stdout.readline())
        process.communicate()


def test_who_opens_for_writing_does_not_wait_and_the_reader_knows(home: Home) -> None:
    closed(home, WAL)
    with open_without_trace(home.store) as store:
        cursor = store.connection.execute("SELECT content FROM messages")
        next(cursor)
        assert not store.moved()
        with opened_for_writing(home.store) as waited:
            assert waited < 1.0
            assert store.moved()
        assert store.moved(), "what was read meanwhile stays void"


def test_after_the_lease_broke_the_store_is_reopened_through_the_log(home: Home) -> None:
    closed(home, WAL)
    store = open_without_trace(home.store)
    try:
        assert store.rung is Rung.IMMUTABLE
        with HermesProcess(home, WAL) as holder:
            for step in MORE:
                holder.step(step)
            assert store.moved()
            store.close()
            store = open_without_trace(home.store)
            assert store.rung is Rung.SHARED_WAL
            assert talk_of(store)[-1].startswith("one more")
            store.close()
    finally:
        store.close()


def test_a_writer_sees_no_lock_of_an_immutable_reader(home: Home) -> None:
    """A release writes, checkpoints and closes while the doctor still has it open as immutable."""
    closed(home, WAL)
    with open_without_trace(home.store) as store:
        store.connection.execute("BEGIN")
        talk_of(store)
        home.run(WAL, MORE)
        assert store.moved()
    assert said_by(home, WAL)[-1].startswith("one more")


#: Opens the store, writes two rows in one transaction, closes it, and over again; a line each time.
_COMES_AND_GOES = (
    "import apsw, sys, time\n"
    "while True:\n"
    "    c = apsw.Connection(sys.argv[1]); c.set_busy_timeout(20_000)\n"
    "    t = time.monotonic()\n"
    "    with c:\n"
    "        c.execute('INSERT INTO sessions(id, source, started_at) VALUES (random(), 0, 0)')\n"
    "        c.execute('INSERT INTO schema_version VALUES (0)')\n"
    "    c.close(); print(time.monotonic() - t, flush=True); time.sleep(0.05)"
)


@pytest.mark.parametrize("release", [WAL, NEWEST])
def test_a_writer_that_comes_and_goes_is_never_in_the_way(home: Home, release: str) -> None:
    """Log and index appear and vanish between look and opening; every view is of one moment, or says it is void."""
    closed(home, release)
    uneven = "SELECT (SELECT count(*) FROM sessions) - (SELECT count(*) FROM schema_version)"
    views = 0
    with subprocess.Popen(
        [sys.executable, "-c", _COMES_AND_GOES, str(home.store)], stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        try:
            until = time.monotonic() + 3
            while time.monotonic() < until:
                with open_without_trace(home.store, busy_seconds=20) as store:
                    difference = store.connection.execute(uneven).get
                    if not store.moved():
                        views += 1
                        assert difference == 0
                        # A log that vanishes in the very moment of opening comes back empty. It is named, and the
                        # writer's next closing takes it away.
                        assert set(store.trace) <= {"state.db-wal (0 bytes)"}
        finally:
            writer.kill()
            waits = [float(line) for line in writer.stdout.read().split()]
    assert views > 5
    assert max(waits) < 1.0


def test_another_file_in_its_place_is_noticed(home: Home) -> None:
    closed(home, NEWEST)
    with open_without_trace(home.store) as store:
        home.store.rename(home.path / "old.db")
        assert store.moved()
        shutil.copy2(home.path / "old.db", home.store)
        assert store.moved()


def test_killed_doctor_lets_go(home: Home) -> None:
    closed(home, WAL)
    code = (
        "import sys; from pathlib import Path\n"
        "from hermes_doctor.store.opening import open_without_trace\n"
        "s = open_without_trace(Path(sys.argv[1])); print(s.lease.pid, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(home.store)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    ) as doctor:
        assert doctor.stdout is not None
        helper = int(doctor.stdout.readline())
        assert Path(f"/proc/{helper}").exists()
        doctor.kill()
        doctor.wait()
        until = time.monotonic() + 10
        while _runs(helper):
            assert time.monotonic() < until, "the helper outlives the doctor"
            time.sleep(0.01)


def _runs(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


# --- holders -------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not may_unshare(), reason="this machine does not let us make a pid namespace (unshare)")
def test_holder_in_another_pid_namespace_is_held(home: Home) -> None:
    closed(home, WAL)
    command = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", _OPEN_FOR_WRITING, str(home.store)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with no_trace_in(home.path), open_without_trace(home.store) as store:
            assert store.holding.state == "yes"
            assert store.rung is Rung.UNLEASED, "nothing is immutable while somebody may write"
            assert len(talk_of(store)) == 40
        process.communicate()


def test_the_log_of_a_holder_was_deleted(home: Home) -> None:
    closed(home, WAL)
    with HermesProcess(home, WAL) as holder:
        for step in MORE:
            holder.step(step)
        for leftover in ("-wal", "-shm"):
            home.path.joinpath("state.db" + leftover).unlink()
        with no_trace_in(home.path), open_without_trace(home.store) as store:
            assert store.holding.deleted_sidecar
            assert [each.pid for each in store.holding.holders] == [holder.pid]
            assert store.private
            assert store.note is not None
            assert len(talk_of(store)) >= 40
        holder.kill()


# --- no room, no peace ---------------------------------------------------------------------------------------------


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Path]:
    """A file system of one mebibyte."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"cannot mount a small file system here: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_without_lease_and_room_what_is_left_behind_is_named(home: Home, tiny: Path) -> None:
    closed(home, WAL)
    before = everything_in(home.path)
    with open_without_trace(home.store, lease=LeaseRefusal.UNAVAILABLE, temporary=tiny) as store:
        assert store.rung is Rung.UNLEASED
        assert not store.private
        assert store.pace is Pace.SNAPSHOT
        assert len(talk_of(store)) == 40
        trace = store.trace
    after = everything_in(home.path)
    new = sorted(set(after) - set(before))
    assert new == ["state.db-shm", "state.db-wal"]
    assert sorted(line.split()[0] for line in trace) == new
    assert after["state.db"] == before["state.db"]


def test_no_room_to_recover_a_copy_is_said_with_the_bytes_needed(home: Home, tiny: Path) -> None:
    killed_in_transaction(home, NEWEST)
    with no_trace_in(home.path), pytest.raises(StoreProblem) as caught:
        open_without_trace(home.store, temporary=tiny)
    assert caught.value.condition is Condition.UNREADABLE
    sizes = sum(home.path.joinpath(name).stat().st_size for name in ("state.db", "state.db-journal"))
    needed = [int(word.replace(",", "")) for word in caught.value.reason.split() if word[:1].isdigit()]
    assert any(each >= sizes for each in needed)
    assert "TMPDIR" in (caught.value.next_step or "")
    assert list(tiny.iterdir()) == []


def test_what_is_written_to_all_the_time_is_not_copied_half(home: Home, in_temporary: Path) -> None:
    closed(home, WAL)
    code = "import os, sys, time\nwhile True:\n    os.utime(sys.argv[1]); print(flush=True); time.sleep(0.001)"
    with subprocess.Popen([sys.executable, "-c", code, str(home.store)], stdout=subprocess.PIPE) as restless:
        assert restless.stdout is not None
        restless.stdout.readline()
        try:
            with pytest.raises(StoreProblem) as caught:
                open_without_trace(home.store, lease=LeaseRefusal.UNAVAILABLE, temporary=in_temporary)
        finally:
            restless.kill()
            restless.stdout.read()
    assert caught.value.condition is Condition.UNREADABLE
    assert "written to all the time" in caught.value.reason
    assert list(in_temporary.iterdir()) == []


def test_a_private_copy_is_private_and_goes(home: Home, in_temporary: Path) -> None:
    killed_and_index_lost(home, WAL)
    with open_without_trace(home.store, temporary=in_temporary) as store:
        (folder,) = in_temporary.iterdir()
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert {stat.S_IMODE(file.stat().st_mode) & 0o077 for file in folder.iterdir()} == {0}
        with pytest.raises(apsw.ReadOnlyError):
            store.connection.execute("DELETE FROM messages")
    assert list(in_temporary.iterdir()) == []


def test_a_private_copy_goes_where_opening_fails(home: Home, in_temporary: Path) -> None:
    home.run(WAL, [*TALK, sql("PRAGMA foreign_keys=0"), sql("DROP TABLE sessions"), sql("DROP TABLE messages"), kill()])
    home.path.joinpath("state.db-shm").unlink()
    with pytest.raises(StoreProblem) as caught:
        open_without_trace(home.store, temporary=in_temporary)
    assert caught.value.condition is Condition.NOT_HERMES
    assert list(in_temporary.iterdir()) == []


def test_closing_twice_is_closing_once(home: Home) -> None:
    closed(home, WAL)
    store = open_without_trace(home.store)
    store.close()
    store.close()
    with pytest.raises(apsw.ConnectionClosedError):
        store.connection.execute("SELECT 1")
    with opened_for_writing(home.store) as waited:
        assert waited < 1.0


# --- guards --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("leave", [closed, killed, killed_and_index_lost], ids=["c", "a", "e"])
def test_the_guards_are_on_whatever_the_rung(home: Home, leave: Callable[[Home, str], object]) -> None:
    leave(home, WAL)
    with open_without_trace(home.store) as store:
        assert store.connection.pragma("query_only") == 1
        assert store.connection.pragma("trusted_schema") == 0
        assert store.connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, -1) == 1
        assert store.connection.config(apsw.SQLITE_DBCONFIG_ENABLE_LOAD_EXTENSION, -1) == 0
        with pytest.raises(apsw.ReadOnlyError):
            store.connection.execute("UPDATE sessions SET title = 'x'")


def test_a_store_that_this_process_has_open_is_not_read_raw(home: Home) -> None:
    """Closing the raw descriptor would drop the locks of the first connection."""
    closed(home, NEWEST)
    with open_without_trace(home.store) as store:
        store.connection.execute("BEGIN")
        talk_of(store)
        with pytest.raises(RuntimeError, match="has the store open"):
            open_without_trace(home.store)
        # The lock is still there: nobody else gets to write.
        code = (
            "import sys, apsw\n"
            "c = apsw.Connection(sys.argv[1])\n"
            "try: c.execute('BEGIN EXCLUSIVE')\n"
            "except apsw.BusyError: print('locked')"
        )
        assert run_python(code, str(home.store)).stdout.strip() == "locked"


def test_two_stores_in_one_process(make_home: Callable[[str], Home]) -> None:
    one, other = make_home("one"), make_home("other")
    one.run(WAL, TALK)
    other.run(NEWEST, [*TALK, *MORE])
    with (
        no_trace_in(one.path),
        no_trace_in(other.path),
        open_without_trace(one.store) as first,
        open_without_trace(other.store) as second,
    ):
        assert len(talk_of(first)) == 40
        assert len(talk_of(second)) == 41


@pytest.mark.parametrize("release", [WAL, NEWEST])
@pytest.mark.parametrize(
    "name",
    [b"a?b=c&immutable=1", b"a#b", b"50%41", b"with space", b"\xff\xfe", "глава".encode(), b"file:", b"a\nb"],
)
def test_names_that_a_uri_would_misread(home: Home, tmp_path: Path, release: str, name: bytes) -> None:
    closed(home, release)
    folder = tmp_path / os.fsdecode(name)
    shutil.copytree(home.path, folder)
    with no_trace_in(folder), open_without_trace(folder / "state.db") as store:
        assert len(talk_of(store)) == 40
    home.store.rename(folder / os.fsdecode(name))
    with no_trace_in(folder), open_without_trace(folder / os.fsdecode(name)) as store:
        assert len(talk_of(store)) == 40


def test_a_symbolic_link_leads_to_the_sidecars_too(home: Home, tmp_path: Path) -> None:
    killed(home, WAL)
    link = tmp_path / "elsewhere" / "state.db"
    link.parent.mkdir()
    link.symlink_to(home.store)
    with no_trace_in(link.parent), no_trace_in(home.path), open_without_trace(link) as store:
        assert store.rung is Rung.SHARED_WAL
        assert len(talk_of(store)) == 40


# --- what cannot be read -------------------------------------------------------------------------------------------


def test_a_lock_is_waited_for_and_then_named(home: Home) -> None:
    closed(home, NEWEST)
    with HermesProcess(home, NEWEST) as holder:
        holder.step(sql("BEGIN EXCLUSIVE"))
        started = time.monotonic()
        with no_trace_in(home.path), pytest.raises(StoreProblem) as caught:
            open_without_trace(home.store, busy_seconds=0.5)
        assert 0.4 < time.monotonic() - started < 5
        assert caught.value.condition is Condition.UNREADABLE
        assert "locked" in caught.value.reason
        assert f"pid {holder.pid}" in caught.value.reason
        holder.step(sql("ROLLBACK"))


def test_a_lock_that_goes_in_time_is_no_problem(home: Home) -> None:
    closed(home, NEWEST)
    with HermesProcess(home, NEWEST) as holder:
        holder.step(sql("BEGIN EXCLUSIVE"))
        holder.send({"hold": 0.5})
        holder.send(sql("COMMIT"))
        with open_without_trace(home.store, busy_seconds=20) as store:
            assert len(talk_of(store)) == 40
        holder.receive()
        holder.receive()


def test_a_malformed_schema_is_damage_with_the_next_command(home: Home) -> None:
    home.run(NEWEST, [
        *TALK,
        sql("PRAGMA writable_schema=1"),
        sql("UPDATE sqlite_master SET sql = 'CREATE TABLE sessions(' WHERE name = 'sessions'"),
        kill(),
    ])  # fmt: skip
    with no_trace_in(home.path), pytest.raises(StoreProblem) as caught:
        open_without_trace(home.store)
    assert caught.value.condition is Condition.DAMAGED
    assert "malformed database schema" in caught.value.reason
    assert f"doctor rescue {home.store} " in (caught.value.next_step or "")
    assert "\n" not in caught.value.reason


@pytest.mark.parametrize("release", [WAL, NEWEST])
def test_a_wiped_first_page_is_damage(home: Home, release: str) -> None:
    closed(home, release)
    with home.store.open("r+b") as file:
        file.seek(100)
        file.write(b"\xa5" * 3996)
    with no_trace_in(home.path), pytest.raises(StoreProblem) as caught:
        open_without_trace(home.store)
    assert caught.value.condition is Condition.DAMAGED


def test_somebody_elses_database(tmp_path: Path) -> None:
    with contextlib.closing(apsw.Connection(str(tmp_path / "state.db"))) as connection:
        connection.execute("CREATE TABLE sessions(id, label); CREATE TABLE notes(id, session_id, role)")
    with no_trace_in(tmp_path), pytest.raises(StoreProblem) as caught:
        open_without_trace(tmp_path / "state.db")
    assert caught.value.condition is Condition.NOT_HERMES
    with open_without_trace(tmp_path / "state.db", hermes_only=False) as store:
        assert store.connection.execute("SELECT count(*) FROM notes").get == 0


@pytest.mark.parametrize("lost", ["sessions", "messages"])
def test_a_store_that_lost_one_of_its_tables_is_still_hermes(home: Home, lost: str) -> None:
    home.run(NEWEST, [*TALK, sql("PRAGMA foreign_keys=0"), sql(f"DROP TABLE {lost}"), kill()])
    with open_without_trace(home.store) as store:
        assert store.condition in (Condition.READABLE, Condition.NEEDS_RECOVERY)


@pytest.mark.parametrize(
    ("statement", "version", "condition"),
    [
        ("UPDATE schema_version SET version = version", KNOWN_SCHEMA, Condition.READABLE),
        (f"UPDATE schema_version SET version = {KNOWN_SCHEMA + 1}", KNOWN_SCHEMA + 1, Condition.NEWER_SCHEMA),
        ("UPDATE schema_version SET version = 'newest'", None, Condition.READABLE),
        ("DELETE FROM schema_version", None, Condition.READABLE),
        ("DROP TABLE schema_version", None, Condition.READABLE),
    ],
)
def test_the_schema_version(home: Home, statement: str, version: int | None, condition: Condition) -> None:
    home.run(NEWEST, [*TALK, sql(statement), kill()])
    with open_without_trace(home.store) as store:
        assert (store.schema_version, store.condition) == (version, condition)


@pytest.mark.parametrize("encoding", ["UTF-16le", "UTF-16be"])
def test_a_store_of_another_encoding_is_hermes_all_the_same(home: Home, encoding: str) -> None:
    with contextlib.closing(apsw.Connection(str(home.store))) as connection:
        connection.execute(f"PRAGMA encoding = '{encoding}'; CREATE TABLE kept_by_sqlite(x)")
    home.run(NEWEST, TALK)
    with no_trace_in(home.path), open_without_trace(home.store) as store:
        assert store.connection.pragma("encoding") == encoding
        assert (store.schema_version, store.condition) == (KNOWN_SCHEMA, Condition.READABLE)
        assert len(talk_of(store)) == 40


def test_a_name_that_is_no_text_does_not_stop_the_opening(home: Home) -> None:
    home.run(NEWEST, [
        *TALK,
        sql("CREATE TABLE odd(x)"),
        sql("PRAGMA writable_schema=1"),
        sql("UPDATE sqlite_master SET name = CAST(x'ff6f' AS TEXT) WHERE name = 'odd'"),
        sql("UPDATE sqlite_master SET tbl_name = name, sql = CAST(x'435245415445205441424c4520ff6f287829' AS TEXT)"
            " WHERE tbl_name = 'odd'"),
        kill(),
    ])  # fmt: skip
    with open_without_trace(home.store) as store:
        assert len(talk_of(store)) == 40


def test_what_inspect_refuses_open_refuses(tmp_path: Path) -> None:
    with pytest.raises(StoreProblem) as caught:
        open_without_trace(tmp_path / "state.db")
    assert caught.value.condition is Condition.MISSING
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
@pytest.mark.parametrize("release", [WAL, NEWEST])
def test_a_stranger_without_permission_gets_one_clear_line(home: Home, release: str) -> None:
    closed(home, release)
    with tempfile.TemporaryDirectory() as open_to_all:
        folder = Path(open_to_all)
        folder.chmod(0o755)
        shutil.copytree(home.path, folder / "home")
        (folder / "home").chmod(0o755)
        store = folder / "home" / "state.db"
        store.chmod(0o600)
        assert _as_nobody(store) == ["unreadable", "permission", "sudo"]
        # Readable, in a folder that it may not write to: a copy does.
        store.chmod(0o644)
        with no_trace_in(folder / "home"):
            assert _as_nobody(store) == [{WAL: "d", NEWEST: "b"}[release], "40"]


def _as_nobody(store: Path) -> list[str]:
    """Opens a store as the user nobody; what came of it, in words."""
    code = (
        "import os, sys; from pathlib import Path\n"
        "from hermes_doctor.host.bundle import StoreProblem\n"
        "from hermes_doctor.store.opening import open_without_trace\n"
        "import hermes_doctor.host.lease, hermes_doctor.host.holders, psutil, tempfile, subprocess\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "try:\n"
        "    with open_without_trace(Path(sys.argv[1]), temporary=Path('/tmp')) as s:\n"
        "        print(s.rung, s.connection.execute('SELECT count(*) FROM messages').get)\n"
        "except StoreProblem as p:\n"
        "    print(p.condition, 'permission' if 'permission' in p.reason else p.reason,\n"
        "          'sudo' if 'sudo -u root doctor scan' in p.next_step else p.next_step)\n"
    )
    return run_python(code, str(store)).stdout.split()


def test_a_frozen_helper_is_no_proof(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    closed(home, WAL)
    monkeypatch.setattr("hermes_doctor.host.lease._ANSWER_SECONDS", 0.2)
    with open_without_trace(home.store) as store:
        assert store.lease is not None
        os.kill(store.lease.pid, signal.SIGSTOP)
        assert store.moved()


def test_the_bundle_is_what_stat_says(home: Home) -> None:
    killed(home, WAL)
    bundle = inspect(home.store)
    status = home.store.stat()
    assert (bundle.device, bundle.inode, bundle.size) == (status.st_dev, status.st_ino, status.st_size)
    assert bundle.wal_bytes == home.path.joinpath("state.db-wal").stat().st_size
    assert (bundle.shm, bundle.journal_bytes, bundle.journal_mode, bundle.page_size) == (True, None, "wal", 4096)
