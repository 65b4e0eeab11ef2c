"""What stands in a doctor's way, by its commands, with real holders, owners, disks and clocks."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

from hermes_doctor.engine.steps import VARIABLE, Step
from tests.disks import small_disk
from tests.oracle.home import Home, environment
from tests.oracle.process import HermesProcess
from tests.oracle.releases import get
from tests.oracle.steps import call, sql, sql_many
from tests.whole.damaged import damaged
from tests.whole.identical import difference, image_of
from tests.whole.killing import LATER, STORES, agreement, journal
from tests.whole.mishaps import wait_until_stopped
from tests.whole.support import doctor, fingerprint

pytestmark = pytest.mark.usefixtures("oracle")

NOBODY = 65534
MINUTE = 60.0

as_root = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs root to give files away and to be another user"
)


@pytest.fixture
def state(tmp_path: Path) -> dict[str, str]:
    return {"XDG_STATE_HOME": str(tmp_path / "state")}


@pytest.fixture
def sick(shared_folder: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Home:
    version, mode = getattr(request, "param", STORES[1])
    return damaged(shared_folder / "damaged", tmp_path / "home", version, mode)


both_modes = pytest.mark.parametrize("sick", STORES[:2], indirect=True, ids="-".join)

APPLY = ("--apply", "--unsafe", "--yes", "--backup", "never", "--json")


def fix(home: Home, state: dict[str, str], *more: str) -> tuple[int, dict[str, Any]]:
    """Mend by the installed command; return its exit code and what it says of the store."""
    done = doctor("fix", home.path, *APPLY, *more, environment=state)
    assert done.stdout, done.stderr
    (database,) = json.loads(done.stdout)["databases"]
    return done.returncode, database


def assert_refused(home: Home, state: dict[str, str], *, code: int = 5) -> str:
    """Refused with one clear line, with nothing made or changed; return the line."""
    before = fingerprint(home.path)
    names = sorted(path.name for path in home.path.rglob("*"))
    exit_code, said = fix(home, state)
    assert (exit_code, said["outcome"], said["run"]) == (code, "refused", None), said
    assert fingerprint(home.path) == before
    assert sorted(path.name for path in home.path.rglob("*")) == names
    reason = said["reason"]
    assert isinstance(reason, str)
    assert "\n" not in reason
    return reason


def take_back_all(home: Home, state: dict[str, str]) -> None:
    for (run,) in journal(home, "SELECT run FROM runs ORDER BY at DESC, run DESC"):
        done = doctor("undo", run, home.path, "--apply", environment=state)
        assert done.returncode == 0, (done.stdout, done.stderr)


@pytest.mark.parametrize("what", ["store", "folder"])
def test_what_is_read_only_is_refused(sick: Home, state: dict[str, str], what: str) -> None:
    place = sick.store if what == "store" else sick.path
    mode = place.stat().st_mode
    place.chmod(mode & ~0o222)
    try:
        reason = assert_refused(sick, state)
        assert f"{place} cannot be written to" in reason
        assert "chmod u+w" in reason
    finally:
        place.chmod(mode)
    assert fix(sick, state)[0] == 0


def test_a_read_only_file_system_is_refused(shared_folder: Path, tmp_path: Path, state: dict[str, str]) -> None:
    with small_disk(tmp_path / "disk", 64 << 20) as disk:
        home = damaged(shared_folder / "damaged", disk / "home", *STORES[1])
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        reason = assert_refused(home, state)
        assert "remount" in reason
        plan = doctor("fix", home.path, environment=state)
        assert plan.returncode == 1
        assert "cannot be written to" in plan.stdout
        subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
        assert fix(home, state)[0] == 0


@as_root
def test_somebody_elses_store_is_refused(sick: Home, state: dict[str, str]) -> None:
    run = fix(sick, state, "--check", "double-encoded")[1]["run"]
    os.chown(sick.store, NOBODY, NOBODY)
    assert "belongs to nobody: run it as nobody: sudo -u nobody doctor fix" in assert_refused(sick, state)
    # Who wants to take a run back is not told to mend.
    undo = doctor("undo", run, sick.path, "--apply", "--json", environment=state)
    [said] = json.loads(undo.stdout)["databases"]
    assert undo.returncode == 5
    assert said["reason"].endswith(f": sudo -u nobody doctor undo {run} {sick.store} --apply")


def as_nobody(*arguments: str, state: dict[str, str]) -> subprocess.CompletedProcess[str] | None:
    """Run this Python as another user; None where that user may not, or cannot import what it should."""
    try:
        done = subprocess.run(
            [sys.executable, "-P", *arguments],
            user=NOBODY,
            group=NOBODY,
            extra_groups=[],
            cwd="/",
            env=os.environ | state,
            capture_output=True,
            text=True,
            check=False,
        )
    except PermissionError:
        return None
    return done if arguments[0] == "-m" or done.returncode == 0 else None


@as_root
def test_the_owner_may_who_is_not_root(shared_folder: Path, state: dict[str, str]) -> None:
    """A process that really is somebody else: what it makes is its own, and private."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        home = damaged(shared_folder / "damaged", Path(folder) / "home", *STORES[0])
        for path in (home.path, *home.path.rglob("*")):
            os.chown(path, NOBODY, NOBODY)
        state_folder = Path(folder) / "state"
        state_folder.mkdir()
        os.chown(state_folder, NOBODY, NOBODY)
        somebody = state | {"XDG_STATE_HOME": str(state_folder), "HOME": folder}
        if as_nobody("-c", "import hermes_doctor.cli.fix, hermes_doctor.engine.apply", state=somebody) is None:
            pytest.skip("needs a Python and packages that another user may read")
        done = as_nobody("-m", "hermes_doctor", "fix", str(home.path), *APPLY, state=somebody)
        assert done is not None
        assert done.returncode == 0, (done.stdout, done.stderr)
        made = [home.path / "doctor", *(home.path / "doctor").rglob("*")]
        assert {path.stat().st_uid for path in made} == {NOBODY}
        assert {path.stat().st_mode & 0o077 for path in made} == {0}


def test_a_newer_schema_is_refused(sick: Home, state: dict[str, str]) -> None:
    connection = apsw.Connection(str(sick.store))
    connection.execute("UPDATE schema_version SET version = 99")
    connection.close()
    reason = assert_refused(sick, state)
    assert "written by a newer hermes (schema 99" in reason
    assert "pipx upgrade hermes-state-doctor" in reason


@both_modes
def test_a_store_that_hermes_has_open_is_refused(sick: Home, state: dict[str, str], request: Any) -> None:
    version, _mode = request.node.callspec.params["sick"]
    with HermesProcess(sick, version) as hermes:
        done = doctor("fix", sick.path, *APPLY, environment=state)
        (said,) = json.loads(done.stdout)["databases"]
        assert (done.returncode, said["run"]) == (5, None)
        assert f"(pid {hermes.pid})" in said["reason"]
        assert not (sick.path / "doctor").exists()
    assert fix(sick, state)[0] == 0


def many_zombies(home: Home, version: str, count: int) -> None:
    """So many open rows of three days ago that mending them takes a while."""
    begun = time.time() - 3 * 86_400
    rows = [[f"many-{n}", "cli", begun] for n in range(count)]
    messages = [[f"many-{n}", "user", "hello", begun] for n in range(count)]
    home.run(
        version,
        [
            sql_many("INSERT INTO sessions (id, source, started_at) VALUES (?, ?, ?)", rows),
            sql_many("INSERT INTO messages (session_id, role, content, timestamp) VALUES (?, ?, ?, ?)", messages),
        ],
    )


class Working:
    """A doctor at work, in a process of its own."""

    def __init__(self, home: Home, state: dict[str, str]) -> None:
        # A file, not a pipe that would have to be emptied meanwhile.
        self._said = home.path.parent / "said"
        command = [sys.executable, "-P", "-m", "hermes_doctor", "fix", str(home.path), *APPLY]
        # Between two transactions, in the midst of the work, it stops itself.
        environment = os.environ | state | {VARIABLE: f"{Step.APPLIED}:{LATER}:STOP"}
        with self._said.open("wb") as said:
            self.process = subprocess.Popen(command, stdout=said, stderr=said, cwd="/", env=environment)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def ended(self) -> tuple[int, dict[str, Any]]:
        """Wait for its end; its exit code and what it says of the store."""
        code = self.process.wait(timeout=120)
        (database,) = json.loads(self._said.read_text())["databases"]
        return code, database


@contextmanager
def working(home: Home, state: dict[str, str]) -> Iterator[Working]:
    """A doctor in the middle of a long repair, stopped by SIGSTOP between two transactions."""
    working = Working(home, state)
    process = working.process
    try:
        wait_until_stopped(process.pid)
        yield working
    finally:
        process.send_signal(signal.SIGCONT)
        process.wait(timeout=120)


@pytest.mark.parametrize("sick", STORES[:2], indirect=True, ids="-".join)
def test_a_hermes_that_comes_midway_stops_the_work(sick: Home, state: dict[str, str], request: Any) -> None:
    version, _mode = request.node.callspec.params["sick"]
    many_zombies(sick, version, 1500)
    before = image_of(sick.store)
    with working(sick, state) as work, HermesProcess(sick, version) as hermes:
        # The doctor looks once a second who is there, and would be done before it looks again.
        time.sleep(1.0)
        work.go_on()
        waits: list[float] = []
        hermes.call("create_session", "guest", "cli")
        while work.process.poll() is None or len(waits) < 5:
            begun = time.monotonic()
            hermes.call("append_message", "guest", "user", f"turn {len(waits)}")
            waits.append(time.monotonic() - begun)
            time.sleep(0.01)
            assert len(waits) < 3000
        code, said = work.ended()
        assert (code, said["outcome"]) == (7, "stopped"), said["reason"]
        assert f"(pid {hermes.pid}) opened the store meanwhile" in said["reason"]
        assert max(waits) < 1.0, waits
    assert said["fixed"] > 0
    assert said["mendable"] > 0
    turns = [message["content"] for message in sick.conversation(version, "guest")]
    assert turns == [f"turn {n}" for n in range(len(waits))]
    assert agreement(sick) == []
    code, rest = fix(sick, state)
    assert (code, rest["mendable"]) == (0, 0)
    assert rest["fixed"] > 0
    take_back_all(sick, state)
    # What the guest wrote stays, and in the index too; nothing else differs.
    rows = [line for line in difference(before, image_of(sick.store)) if "fts" not in line]
    new = [line for line in rows if line.endswith(": the row is new")]
    assert [line for line in rows if line not in new] == []
    assert [line for line in new if line.startswith("sessions ")] == ["sessions b'guest': the row is new"]
    assert sum(line.startswith("messages ") for line in new) == len(waits)


def test_the_second_doctor_is_sent_away(sick: Home, state: dict[str, str]) -> None:
    with working(sick, state) as work:
        code, said = fix(sick, state)
        assert (code, said["outcome"], said["run"]) == (6, "refused", None)
        assert f"process {work.process.pid} (doctor) is at work on this store" in said["reason"]
        (run,) = journal(sick, "SELECT run FROM runs")[0]
        undone = doctor("undo", run, sick.path, "--apply", "--json", environment=state)
        assert undone.returncode == 6, (undone.stdout, undone.stderr)
        plan = doctor("fix", sick.path, "--json", environment=state)
        assert plan.returncode == 1
        assert "is at work on this store" in json.loads(plan.stdout)["databases"][0]["would_be_refused"]
        work.go_on()
        code, said = work.ended()
        assert (code, said["mendable"]) == (0, 0), said["reason"]
    assert fix(sick, state)[1]["outcome"] == "nothing-to-do"


_MAINTENANCE = """
import sys
from pathlib import Path
from hermes_state_repair import _release_auto_maintenance_lock, _try_acquire_auto_maintenance_lock
handle = _try_acquire_auto_maintenance_lock(Path(sys.argv[1]))
print("taken" if handle is not None else "busy", flush=True)
sys.stdin.readline()
if handle is not None:
    _release_auto_maintenance_lock(handle)
"""


@contextmanager
def hermes_maintenance(home: Home) -> Iterator[tuple[int, str]]:
    """The real 0.22.2 at its maintenance lock: its process id, and whether it got the lock."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", _MAINTENANCE, str(home.store)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=home.path,
        env=environment(home.path, get("0.22.2")),
    )
    assert process.stdout is not None
    try:
        yield process.pid, process.stdout.readline().strip()
    finally:
        process.communicate("\n", timeout=60)


def test_the_maintenance_lock_of_hermes_is_kept_and_respected(sick: Home, state: dict[str, str]) -> None:
    lock = sick.store.with_name("state.db.auto-maintenance.lock")
    with hermes_maintenance(sick) as (pid, answer):
        assert answer == "taken"
        inode = lock.stat().st_ino
        code, said = fix(sick, state)
        assert (code, said["outcome"], said["run"]) == (6, "refused", None)
        assert f"process {pid}" in said["reason"]
    assert lock.stat().st_ino == inode
    with working(sick, state), hermes_maintenance(sick) as (_pid, answer):
        assert answer == "busy"
    assert lock.stat().st_ino == inode
    with hermes_maintenance(sick) as (_pid, answer):
        assert answer == "taken"


@pytest.mark.parametrize(("minutes", "doubted"), [(11, True), (9, False)])
def test_a_store_time_ahead_of_the_clock(sick: Home, state: dict[str, str], minutes: int, doubted: bool) -> None:
    """Ends and deletions are refused; what needs no clock is mended."""
    ahead = time.time() + minutes * MINUTE
    sick.run(STORES[1][0], [sql("UPDATE messages SET timestamp = ? WHERE id = (SELECT max(id) FROM messages)", ahead)])
    code, said = fix(sick, state)
    assert (code, said["outcome"]) == ((5, "partly-fixed") if doubted else (0, "fixed"))
    applied = {change["check"] for change in said["changes"] if change["state"] == "applied"}
    doubts = {change["check"] for change in said["changes"] if "clock" in (change["reason"] or "")}
    assert "double-encoded" in applied
    if doubted:
        assert doubts >= {"open-zombies", "orphan-stubs"}
        assert not applied & {"open-zombies", "orphan-stubs"}
        assert sick.ask(
            STORES[1][0], sql("SELECT count(*) FROM sessions WHERE end_reason = 'startup_orphan_reap'")
        ) == [[0]]
    else:
        assert doubts == set()
        assert applied >= {"open-zombies", "orphan-stubs"}


def test_a_clock_before_the_last_run(sick: Home, state: dict[str, str]) -> None:
    assert fix(sick, state, "--check", "double-encoded")[0] == 0
    connection = apsw.Connection(str(sick.path / "doctor" / "doctor.db"))
    connection.execute("UPDATE runs SET at = at + 3600")
    connection.close()
    plan = doctor("fix", sick.path, "--check", "open-zombies", "--json", environment=state)
    [planned] = json.loads(plan.stdout)["databases"]
    assert (plan.returncode, planned["outcome"]) == (0, "nothing-to-do")
    assert "the clock seems to be off" in planned["would_be_refused"]
    code, said = fix(sick, state)
    # Nothing else is left that could be done: all of it is refused, and the clock is the reason. It says what time it
    # is, and a minute may have passed since the plan.
    assert (code, said["outcome"]) == (5, "refused")
    told = r"it shows \d{4}-\d\d-\d\d \d\d:\d\d UTC, .* is \d+ minutes ahead of it"
    assert re.sub(told, "", said["reason"]) == re.sub(told, "", planned["would_be_refused"]) != said["reason"]
    doubts = [change for change in said["changes"] if "last run on this store is" in (change["reason"] or "")]
    assert {change["state"] for change in doubts} == {"refused"}
    assert {change["check"] for change in doubts} >= {"open-zombies", "orphan-stubs"}
    assert said["fixed"] == 0


@pytest.mark.parametrize(
    ("sick", "closed"),
    [(STORES[0], True), (STORES[0], False), (STORES[1], False), (STORES[3], True)],
    indirect=["sick"],
    ids=["0.19.0-wal-closed", "0.19.0-wal-killed", "0.22.2-delete-killed", "0.22.2-wal-closed"],
)
def test_hermes_finds_its_store_well_after_a_run(sick: Home, state: dict[str, str], closed: bool, request: Any) -> None:
    """A log that was there stays; one that was made stays too; and a real hermes opens, writes, reads and closes."""
    version, mode = request.node.callspec.params["sick"]
    if closed:
        sick.run(version, [sql("SELECT 1")])
        assert sick.sidecars() == set()
    chats = [session for (session,) in sick.ask(version, sql("SELECT id FROM sessions WHERE source = 'telegram'"))]
    said_before = sick.conversations(version, chats)
    assert fix(sick, state)[0] == 0
    assert sick.sidecars() == ({"-wal", "-shm"} if mode == "wal" else set())
    assert sick.journal_mode() == mode
    with HermesProcess(sick, version) as hermes:
        hermes.call("create_session", "later", "cli")
        for n in range(3):
            hermes.call("append_message", "later", "user", f"turn {n}")
    assert sick.sidecars() == set()
    assert [message["content"] for message in sick.conversation(version, "later")] == ["turn 0", "turn 1", "turn 2"]
    assert sick.conversations(version, chats) == said_before
    assert sick.ask(version, sql("PRAGMA quick_check")) == [["ok"]]
    sick.run(version, [call("end_session", "later", "cli_close")])
    # Whether hermes keeps a store in WAL mode is its own affair: what counts is that we did not change it.
    take_back_all(sick, state)
