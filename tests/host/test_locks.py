"""Locks between real processes: two doctors, and the doctor and real releases of hermes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hermes_doctor.host.locks import LockTakenError, doctor_lock, upstream_maintenance_lock
from tests.oracle.home import Home, environment
from tests.oracle.releases import get
from tests.oracle.steps import call, clock

ROOT = Path(__file__).parents[2]
WITH_MAINTENANCE_LOCK = ("0.21.5", "0.22.2")
DAY = 86400.0


class Peer:
    """Another process that answers one line of Python at a time: its value as JSON, or the error's name and text."""

    _LOOP = (
        "import json, sys\n"
        "names = {}\n"
        "exec(sys.argv[1], names)\n"
        "for line in sys.stdin:\n"
        "    try:\n"
        "        answer = eval(line, names)\n"
        "    except Exception as error:\n"
        "        answer = [type(error).__name__, str(error)]\n"
        "    print(json.dumps(answer), flush=True)\n"
    )

    def __init__(self, setup: str, arguments: Sequence[str], env: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", self._LOOP, setup, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=env,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, expression: str) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(expression + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)
        self._process.stdout.close()


@contextmanager
def another_doctor(also: str = "") -> Iterator[Peer]:
    """A process that takes the doctor's locks when it is told to; ``also``: more Python for it to begin with."""
    setup = (
        "from contextlib import ExitStack\n"
        "from pathlib import Path\n"
        "from hermes_doctor.host.locks import doctor_lock, upstream_maintenance_lock\n"
        "held = ExitStack()\n"
        "def take(lock, path):\n"
        "    held.enter_context(lock(Path(path)))\n"
        "    return 'taken'\n"
    )
    peer = Peer(setup + also, [], dict(os.environ) | {"PYTHONPATH": str(ROOT)})
    try:
        yield peer
    finally:
        peer.close()


@contextmanager
def hermes_at(home: Home, version: str) -> Iterator[Peer]:
    """A real release with its own functions for the lock, on the home's store."""
    setup = (
        "import sys\n"
        "from pathlib import Path\n"
        "import hermes_state\n"
        "import hermes_state_repair as repair\n"
        "import hermes_state_common as common\n"
        "store = Path(sys.argv[2])\n"
        "held = []\n"
        "def take():\n"
        "    handle = repair._try_acquire_auto_maintenance_lock(store)\n"
        "    if handle is not None:\n"
        "        held.append(handle)\n"
        "    return handle is not None\n"
        "def release():\n"
        "    repair._release_auto_maintenance_lock(held.pop())\n"
        "def record():\n"
        "    with open(f'{store}.auto-maintenance.lock', 'rb') as file:\n"
        "        return common._read_lock_holder_record(file)\n"
        "def holder_is_dead():\n"
        "    return common._lock_holder_provably_dead(record())\n"
    )
    home.store.touch()
    peer = Peer(setup, [str(home.store)], environment(home.path, get(version)))
    try:
        yield peer
    finally:
        peer.close()


def maintenance_file(store: Path) -> Path:
    return store.with_name(store.name + ".auto-maintenance.lock")


def test_a_second_doctor_is_told_who_the_first_one_is(tmp_path: Path) -> None:
    with another_doctor() as other:
        assert other.ask(f"take(doctor_lock, {str(tmp_path)!r})") == "taken"
        with pytest.raises(LockTakenError) as taken, doctor_lock(tmp_path):
            pass
        assert taken.value.holder == f"process {other.pid} (doctor)"


def test_the_first_doctor_keeps_the_second_out_until_it_is_done(tmp_path: Path) -> None:
    with another_doctor() as other:
        with doctor_lock(tmp_path):
            refused = other.ask(f"take(doctor_lock, {str(tmp_path)!r})")
            assert refused == ["LockTakenError", f"process {os.getpid()} (doctor) has the lock"]
        assert other.ask(f"take(doctor_lock, {str(tmp_path)!r})") == "taken"


def test_two_folders_are_two_locks(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with another_doctor() as other, doctor_lock(tmp_path / "a"):
        assert other.ask(f"take(doctor_lock, {str(tmp_path / 'b')!r})") == "taken"


def test_a_killed_doctor_leaves_no_lock(tmp_path: Path) -> None:
    with another_doctor() as other:
        other.ask(f"take(doctor_lock, {str(tmp_path)!r})")
        other.kill()
        left = json.loads((tmp_path / "doctor.lock").read_text())
        assert left["pid"] == other.pid
        with doctor_lock(tmp_path):
            assert json.loads((tmp_path / "doctor.lock").read_text())["pid"] == os.getpid()


def test_a_record_that_a_killed_doctor_left_is_not_taken_for_the_holder(tmp_path: Path) -> None:
    with another_doctor() as first, another_doctor() as second:
        first.ask(f"take(doctor_lock, {str(tmp_path)!r})")
        first.kill()
        left = (tmp_path / "doctor.lock").read_text()
        second.ask(f"take(doctor_lock, {str(tmp_path)!r})")
        # As a holder would leave it that writes no record.
        (tmp_path / "doctor.lock").write_text(left)
        with pytest.raises(LockTakenError, match=rf"^process {second.pid} \(doctor\)"), doctor_lock(tmp_path):
            pass


def test_a_released_lock_file_stays_empty_and_private(tmp_path: Path) -> None:
    with doctor_lock(tmp_path):
        inode = (tmp_path / "doctor.lock").stat().st_ino
    status = (tmp_path / "doctor.lock").stat()
    assert (status.st_ino, status.st_size, status.st_mode & 0o777) == (inode, 0, 0o600)
    with doctor_lock(tmp_path):
        assert (tmp_path / "doctor.lock").stat().st_ino == inode


def test_the_lock_is_given_back_when_the_work_fails(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), doctor_lock(tmp_path):
        raise ZeroDivisionError
    with another_doctor() as other:
        assert other.ask(f"take(doctor_lock, {str(tmp_path)!r})") == "taken"


def test_processes_that_are_started_meanwhile_do_not_inherit_the_lock(tmp_path: Path) -> None:
    with doctor_lock(tmp_path):
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, close_fds=False)
    try:
        with doctor_lock(tmp_path):
            assert child.poll() is None
    finally:
        child.communicate(b"\n")


def test_a_lock_on_a_file_that_was_replaced_meanwhile_is_not_taken_for_the_lock(tmp_path: Path) -> None:
    """The other process replaces the file at the very moment before it locks what it had opened."""
    replace_once = (
        "import sys, os\n"
        "count = 0\n"
        "def hook(event, args):\n"
        "    global count\n"
        "    if event == 'fcntl.flock' and not count:\n"
        "        count = 1\n"
        f"        os.rename({str(tmp_path / 'fresh')!r}, {str(tmp_path / 'doctor.lock')!r})\n"
        "sys.addaudithook(hook)\n"
    )
    (tmp_path / "doctor.lock").write_bytes(b"")
    (tmp_path / "fresh").write_bytes(b"")
    fresh = (tmp_path / "fresh").stat().st_ino
    with another_doctor(replace_once) as other:
        assert other.ask(f"take(doctor_lock, {str(tmp_path)!r})") == "taken"
        assert other.ask("count") == 1
        assert (tmp_path / "doctor.lock").stat().st_ino == fresh
        with pytest.raises(LockTakenError), doctor_lock(tmp_path):
            pass


@pytest.mark.parametrize("content", ["folder", "large"])
def test_what_is_no_lock_file_is_left_alone(tmp_path: Path, content: str) -> None:
    path = tmp_path / "doctor.lock"
    if content == "folder":
        path.mkdir()
    else:
        path.write_bytes(b"a book" * 1000)
    with pytest.raises(OSError, match=r"doctor\.lock"), doctor_lock(tmp_path):
        pass
    assert path.is_dir() or path.read_bytes() == b"a book" * 1000


def test_a_folder_that_is_not_there_is_an_error_and_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), doctor_lock(tmp_path / "doctor"):
        pass
    assert not (tmp_path / "doctor").exists()


@pytest.mark.parametrize("version", WITH_MAINTENANCE_LOCK)
def test_hermes_and_the_doctor_exclude_each_other(home: Home, version: str) -> None:
    with hermes_at(home, version) as hermes:
        assert hermes.ask("take()") is True
        with pytest.raises(LockTakenError) as taken, upstream_maintenance_lock(home.store):
            pass
        assert f"process {hermes.pid} (" in taken.value.holder
        hermes.ask("release()")
        with upstream_maintenance_lock(home.store):
            assert hermes.ask("take()") is False
        assert hermes.ask("take()") is True
        hermes.ask("release()")


@pytest.mark.parametrize("version", WITH_MAINTENANCE_LOCK)
def test_hermes_reads_our_record(home: Home, version: str) -> None:
    with hermes_at(home, version) as hermes, another_doctor() as doctor:
        doctor.ask(f"take(upstream_maintenance_lock, {str(home.store)!r})")
        assert maintenance_file(home.store).read_bytes() == json.dumps(hermes.ask("record()"), sort_keys=True).encode()
        assert hermes.ask("record()['pid']") == doctor.pid
        assert hermes.ask(f"record()['start_ticks'] == common._proc_start_ticks({doctor.pid})") is True
        assert hermes.ask("holder_is_dead()") is False
        doctor.kill()
        assert hermes.ask("holder_is_dead()") is True
        # The kernel has let go of it all the same.
        assert hermes.ask("take()") is True


def test_our_record_is_the_one_that_hermes_writes(home: Home) -> None:
    """0.22.2 writes its record into its other lock files; ours has the same keys and kinds of values."""
    with hermes_at(home, "0.22.2") as hermes, upstream_maintenance_lock(home.store):
        ours = hermes.ask("record()")
        lock = repr(str(home.path / "their.lock"))
        theirs = hermes.ask(f"[common._write_lock_holder_record(open({lock}, 'w+b')), open({lock}).read()]")
        told = json.loads(theirs[1])
        assert sorted(told) == sorted(ours) == list(ours)
        assert told["pidns"] == ours["pidns"]
        assert {key: type(value) for key, value in told.items()} == {key: type(value) for key, value in ours.items()}


@pytest.mark.parametrize("version", WITH_MAINTENANCE_LOCK)
def test_hermes_prunes_nothing_while_the_doctor_is_at_work(home: Home, version: str) -> None:
    home.run(version, [clock(1.7e9), call("create_session", "old", "cli"), call("end_session", "old", "user_exit")])
    prune = [call("maybe_auto_prune_and_vacuum", retention_days=90)]
    with upstream_maintenance_lock(home.store):
        assert home.run(version, prune)[0]["skipped"] is True
        assert home.session(version, "old") is not None
    assert home.run(version, prune)[0]["pruned"] == 1
    assert home.session(version, "old") is None


def test_without_a_store_nothing_is_made(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), upstream_maintenance_lock(tmp_path / "state.db"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_the_lock_file_of_hermes_is_made_private_and_never_removed(tmp_path: Path) -> None:
    store = tmp_path / "state.db"
    store.touch()
    with upstream_maintenance_lock(store):
        inode = maintenance_file(store).stat().st_ino
    status = maintenance_file(store).stat()
    assert (status.st_ino, status.st_size, status.st_mode & 0o777) == (inode, 0, 0o600)


def test_a_lock_file_that_hermes_made_keeps_its_mode(tmp_path: Path) -> None:
    store = tmp_path / "state.db"
    store.touch()
    maintenance_file(store).touch(mode=0o644)
    with upstream_maintenance_lock(store):
        pass
    assert maintenance_file(store).stat().st_mode & 0o777 == 0o644


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs root to give files away")
def test_a_new_lock_file_belongs_to_the_owner_of_the_store(tmp_path: Path) -> None:
    store = tmp_path / "state.db"
    store.touch()
    os.chown(store, 65534, 65534)
    with upstream_maintenance_lock(store):
        assert maintenance_file(store).stat().st_uid == 65534


def test_a_store_behind_a_link_is_locked_where_either_hermes_looks(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "home").mkdir()
    real, link = tmp_path / "real" / "store.db", tmp_path / "home" / "state.db"
    real.touch()
    link.symlink_to(real)
    with another_doctor() as other, upstream_maintenance_lock(link):
        for path in (real, link):
            refused = other.ask(f"take(upstream_maintenance_lock, {str(path)!r})")
            assert refused[0] == "LockTakenError"


def test_a_store_in_a_linked_folder_does_not_stand_in_its_own_way(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "state.db").touch()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with upstream_maintenance_lock(tmp_path / "link" / "state.db"):
        names = sorted(path.name for path in (tmp_path / "real").iterdir())
    assert names == ["state.db", "state.db.auto-maintenance.lock"]
