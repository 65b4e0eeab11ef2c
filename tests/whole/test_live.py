"""`doctor fix --live`: beside the real thing, under its conditions, and also when it is killed."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from bench.live import Planted, planted, soak
from checks import CHECKS
from fixes import FIXES
from hermes_doctor.engine import live
from hermes_doctor.engine.apply import apply_store
from hermes_doctor.engine.cure import Fix
from hermes_doctor.engine.gates import Planned, Refusal, refusal
from hermes_doctor.engine.live import LEFT, Beside, GaveWayError, obstacles
from hermes_doctor.engine.model import ExitCode, Finding, Safety, Severity
from hermes_doctor.engine.plan import Chosen
from hermes_doctor.engine.scan import ScanOptions, StoreScan, scan_store
from hermes_doctor.engine.stopping import Stop
from hermes_doctor.host.bundle import inspect
from hermes_doctor.host.homes import StoreRef
from hermes_doctor.host.live_files import generation, strangers
from hermes_doctor.host.wal_files import index_users, read_log
from hermes_doctor.report.page import LIVE
from hermes_doctor.store.library import judge
from hermes_doctor.store.lineage_faults import Kind
from hermes_doctor.store.writing import open_for_writing
from tests.host.evidence import may_unshare
from tests.oracle.home import Home
from tests.oracle.process import HermesProcess
from tests.oracle.steps import call, precreate, sql, sql_many
from tests.whole.identical import difference, image_of
from tests.whole.killing import agreement, journal
from tests.whole.mishaps import wait_until_stopped
from tests.whole.runner import ROOT, Doctors, Ended
from tests.whole.support import doctor

#: Its stores are in WAL mode whatever SQLite it runs on.
VERSION = "0.19.0"
FAULTS = 40
SOME = Planned(rows=FAULTS, bytes=1 << 20, uses_clock=True)

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="--live works on Linux only")
pytestmark = linux


def rows() -> Planted:
    """A few healthy chats, and faults of all kinds that may be mended beside a living hermes."""
    return planted("few", FAULTS, healthy=3)


@pytest.fixture
def sick(oracle: None, shared_folder: Path, tmp_path: Path) -> Home:
    """A home with these rows, and nobody at it."""
    template = shared_folder / "live" / "home"
    template.parent.mkdir(exist_ok=True)
    with FileLock(template.parent / "lock"):
        if not (template / "state.db").exists():
            steps = [sql_many(step["sql"], step["many"]) for step in rows().steps()]
            Home(template).run(VERSION, steps)
    shutil.copytree(template, tmp_path / "home")
    home = Home(tmp_path / "home")
    assert home.journal_mode() == "wal"
    return home


@pytest.fixture
def doctors(tmp_path: Path) -> Iterator[Doctors]:
    with Doctors(tmp_path) as started:
        yield started


def scanned(home: Home) -> StoreScan:
    scan = scan_store(StoreRef(home.store, home.path, "default"), [], ScanOptions())
    scan.findings.close()
    return scan


def refused(home: Home, **more: Any) -> Refusal | None:
    return refusal(scanned(home), SOME, backup="never", live=True, **more)


def why(home: Home) -> str:
    """Why the store is not mended beside whoever has it open."""
    stands = refused(home)
    assert stands is not None
    assert stands.code is ExitCode.REFUSED
    assert "it cannot be mended beside hermes; stop it first" in stands.reason
    return stands.reason


def states(ended: Ended) -> Counter[str]:
    return Counter(change["state"] for change in ended.json()["changes"])


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


# The real thing


@pytest.mark.timeout(180)
@pytest.mark.parametrize("version", ["0.19.0", "0.22.2"])
def test_hermes_at_work_and_a_doctor_that_mends(oracle: None, tmp_path: Path, version: str) -> None:
    came = soak(tmp_path, version, seconds=3, workers=2, faults=60, healthy=60, least=1.5)
    assert came.errors == []
    assert came.lost == []
    assert came.left == 0
    assert len(came.generations) == 1
    # Of what was planted, each double-encoded chat has two such messages.
    assert came.mended == came.faults * 7 // 5
    # It was hermes's store all the time: many writes of theirs, with us as without us.
    assert min(len(came.alone), len(came.beside)) > 50
    assert came.codes[-1] in (0, 1)


# What is done beside an idle one


def test_all_of_it_goes_into_the_log_and_can_be_taken_back(sick: Home, doctors: Doctors) -> None:
    with HermesProcess(sick, VERSION) as hermes:
        hermes.call("create_session", "own", "cli")
        hermes.call("append_message", "own", "user", "before")
        files, store = generation(sick.store), digest(sick.store)
        before = read_log(sick.store)
        plan = doctors.run("fix", "--live", "--json", sick.store)
        assert (plan.code, plan.json()["would_be_refused"], plan.json()["live"]) == (1, None, True)
        without = doctors.run("fix", "--json", sick.store)
        assert f"(pid {hermes.pid}) has" in without.json()["would_be_refused"]
        assert "--live" in without.json()["would_be_refused"]
        assert digest(sick.store) == store

        done = doctors.run("fix", "--apply", "--live", "--json", sick.store)
        assert (done.code, done.json()["outcome"]) == (0, "fixed"), done
        assert states(done) == {"applied": FAULTS * 7 // 5}
        assert (done.json()["live"], done.json()["left_to_hermes"]) == (True, 0)
        # Nothing of it was carried over: the store itself has not changed, and the log only grew.
        assert digest(sick.store) == store
        assert generation(sick.store) == files
        after = read_log(sick.store)
        assert before is not None
        assert after is not None
        assert (after.index.salts, after.index.carried) == (before.index.salts, before.index.carried)
        hermes.call("append_message", "own", "user", "after")
        assert [row["content"] for row in hermes.call("get_messages", "own")] == ["before", "after"]
        held = doctors.run("undo", done.json()["run"], sick.store, "--apply", "--json")
        assert held.code == 5
    assert scan_codes(sick, doctors) == Counter()
    undone = doctors.run("undo", done.json()["run"], sick.store, "--apply", "--json")
    assert (undone.code, undone.json()["fixed"]) == (0, FAULTS * 7 // 5)
    assert scan_codes(sick, doctors).total() == FAULTS * 7 // 5


def scan_codes(home: Home, doctors: Doctors) -> Counter[str]:
    kinds = {"double-encoded", "open-zombies", "counter-drift", "lineage-gaps", "stale-locks"}
    found = doctors.run("scan", "--json", home.store).json()["findings"]
    return Counter(each["check"] for each in found if each["check"] in kinds)


def test_what_hermes_may_be_using_is_left_to_it(sick: Home, doctors: Doctors) -> None:
    now = time.time()
    ill = {kind: f"few-ill-{n}" for n, kind in ((0, "double-encoded"), (8, "open-zombies"), (14, "counter-drift"))}
    # An empty session that only a stopped hermes lets us delete.
    stub = sql("INSERT INTO sessions (id, source, started_at) VALUES ('stub', 'cli', ?)", now - 9 * 86400)
    lock = "INSERT INTO compression_locks (session_id, holder, acquired_at, expires_at) VALUES (?, 'pid=1', ?, ?)"
    say = "INSERT INTO messages (session_id, role, content, timestamp) VALUES (?, 'user', 'just now', ?)"
    with HermesProcess(sick, VERSION) as hermes:
        hermes.step(stub)
        hermes.step(sql(lock, ill["double-encoded"], now, now + 300))
        hermes.step(sql("UPDATE sessions SET handoff_state = 'pending' WHERE id = ?", ill["open-zombies"]))
        # Past the five minutes for which the check itself passes a session over, not past ours.
        hermes.step(sql(say, ill["counter-drift"], now - 400))
        done = doctors.run("fix", "--apply", "--live", "--unsafe", "--yes", "--json", sick.store)
        assert (done.code, done.json()["outcome"]) == (1, "partly-fixed")
        left = {each["key"]: each["reason"] for each in done.json()["changes"] if each["state"] == "refused"}
        encoded = [row[0] for row in hermes.step(sql("SELECT id FROM messages WHERE session_id = ?", "few-ill-0"))]
        assert {encoded[1], encoded[3], "stub", ill["counter-drift"]} == set(left)
        assert [reason for reason in left.values() if not reason.startswith(LEFT)] == []
        assert "compressed" in left[encoded[1]]
        assert "less than 10 minutes ago" in left[ill["counter-drift"]]
        assert "only while nobody has the store open" in left["stub"]
        assert done.json()["left_to_hermes"] == done.json()["mendable"] == 4
        # --idle raises what counts as quiet: nothing that is left was used within 9 days but the stub.
        table = doctors.run("fix", "--live", "--idle", "9d", "--check", "counter-drift", sick.store).out
        assert "left to the living hermes" in table
        assert [row[0] for row in hermes.step(sql("SELECT count(*) FROM sessions WHERE id = 'stub'"))] == [1]


def test_a_session_that_a_process_has_registered_is_left_to_it(sick: Home, doctors: Doctors) -> None:
    registered = sick.path / "runtime" / "active_sessions.json"
    registered.parent.mkdir()
    only = ("--check", "counter-drift", "--live", "--json", sick.store)
    with HermesProcess(sick, VERSION):
        registered.write_text('{"entries": [{"session_id": "few-ill-14", "pid": 1}]}')
        some = doctors.run("fix", *only).json()
        registered.write_text("{")
        none = doctors.run("fix", *only).json()
        applied = doctors.run("fix", "--apply", *only)
    assert [each["key"] for each in some["changes"] if each["state"] == "refused"] == ["few-ill-14"]
    assert {each["state"] for each in none["changes"]} == {"refused"}
    assert (applied.code, applied.json()["outcome"]) == (1, "partly-fixed")


def test_live_is_only_ever_typed(sick: Home) -> None:
    with HermesProcess(sick, VERSION):
        done = doctor("fix", "--apply", "--json", sick.store, environment={"HERMES_DOCTOR_FIX_LIVE": "1"})
    assert done.returncode == 5


def test_a_store_that_nobody_has_open_is_mended_as_ever(sick: Home, doctors: Doctors) -> None:
    done = doctors.run("fix", "--apply", "--live", "--json", sick.store)
    assert (done.code, done.json()["live"]) == (0, False)


# Its conditions


def test_rollback_mode_is_refused(home: Home) -> None:
    home.run("0.22.2", [precreate("delete")])
    with HermesProcess(home, "0.22.2") as hermes:
        hermes.call("create_session", "s1", "cli")
        assert "rollback mode" in why(home)


def test_a_log_that_is_gone_is_refused(sick: Home) -> None:
    with HermesProcess(sick, VERSION) as hermes:
        hermes.call("create_session", "s1", "cli")
        wal = sick.store.with_name("state.db-wal")
        bundle = inspect(sick.store)
        assert list(obstacles(bundle)) == []
        kept = wal.rename(wal.with_name("kept"))
        assert "is not beside it" in " ".join(obstacles(bundle))
        # Another one in its place does not help: hermes writes to the first.
        shutil.copyfile(kept, wal)
        assert "moved, or replaced" in why(sick)
        wal.unlink()
        kept.rename(wal)


def test_a_store_that_was_replaced_is_refused(sick: Home) -> None:
    copy = sick.path / "copy"
    shutil.copyfile(sick.store, copy)
    with HermesProcess(sick, VERSION) as hermes:
        hermes.call("create_session", "s1", "cli")
        bundle = inspect(sick.store)
        copy.replace(sick.store)
        assert "is not beside it" in " ".join(obstacles(bundle))
        assert "moved, or replaced" in " ".join(obstacles(inspect(sick.store)))
        hermes.kill()


def test_who_has_it_open_without_its_lock_is_refused(sick: Home) -> None:
    with HermesProcess(sick, VERSION) as hermes:
        hermes.call("create_session", "s1", "cli")
        hermes.kill()
    hold = "import sys; opened = open(sys.argv[1], 'r+b'); print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", hold, sick.store], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        assert "moved, or replaced" in why(sick)


@pytest.mark.skipif(not may_unshare(), reason="this machine does not let us make a pid namespace (unshare)")
def test_from_another_pid_namespace_it_is_refused(sick: Home) -> None:
    with HermesProcess(sick, VERSION):
        command = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-P", "-m", "hermes_doctor"]
        done = subprocess.run(
            [*command, "fix", "--apply", "--live", sick.store], capture_output=True, text=True, check=False, cwd="/"
        )
    assert done.returncode == 5
    assert "can be seen from here" in " ".join(done.stdout.split())


def test_other_conditions(sick: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    with HermesProcess(sick, VERSION) as hermes:
        hermes.call("create_session", "s1", "cli")
        assert refused(sick) is None
        unfit = refused(sick, fitness=judge("3.51.2", True, ()))
        assert unfit is not None
        assert "is not fit for writing" in unfit.reason
        with monkeypatch.context() as elsewhere:
            elsewhere.setattr(live, "on_local_disk", lambda _path: False)
            assert "this machine's own" in why(sick)
        hermes.step(sql("UPDATE schema_version SET version = 99"))
        newer = refused(sick)
        assert newer is not None
        assert "newer hermes" in newer.reason


# Giving way


def test_a_writer_goes_first(sick: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "PATIENCE_SECONDS", 0.3)
    with HermesProcess(sick, VERSION) as hermes:
        hermes.step(sql("BEGIN IMMEDIATE"))
        chosen = Chosen(CHECKS, {fix.check: fix for fix in FIXES}, unsafe=False)
        ref = StoreRef(sick.store, sick.path, "default")
        came = apply_store(ref, chosen, ScanOptions(), backup="never", stop=Stop(), live=True)
        with came.scan.findings:
            assert (came.outcome, came.exit_code) == ("stopped", ExitCode.STOPPED)
            assert "without a pause; the same command carries on" in (came.reason or "")
            assert came.count("applied") == 0
        stop = Stop()
        stop.ask("enough")
        bundle = inspected(sick)
        connection = open_for_writing(sick.store)
        with pytest.raises(GaveWayError, match="enough"):
            Beside(bundle, stop).begin(connection)
        connection.close()
        hermes.step(sql("ROLLBACK"))
        again = apply_store(ref, chosen, ScanOptions(), backup="never", stop=Stop(), live=True)
        with again.scan.findings:
            assert again.count("applied") == FAULTS * 7 // 5


def inspected(home: Home) -> Any:
    """The store's files, looked at in a process that does not have it open."""
    bundle = scanned(home).bundle
    assert bundle is not None
    return bundle


def test_hermes_begins_its_log_anew_itself(sick: Home) -> None:
    with HermesProcess(sick, VERSION) as hermes:
        hermes.call("create_session", "own", "cli")
        carry_over(hermes)
        bundle = inspected(sick)
        carry_over(hermes)
        connection = open_for_writing(sick.store)
        try:
            beside = Beside(bundle, Stop())
            log = read_log(sick.store)
            assert log is not None
            assert log.index.frames == log.index.carried > 0
            writing = threading.Timer(0.4, lambda: hermes.call("append_message", "own", "user", "hello"))
            writing.start()
            begun = time.monotonic()
            beside.begin(connection)
            writing.join()
            assert 0.3 < time.monotonic() - begun < 2
            connection.execute("ROLLBACK")
            # One that is idle does not: after a while we do.
            carry_over(hermes)
            begun = time.monotonic()
            beside.begin(connection)
            assert time.monotonic() - begun >= 2
            connection.execute("ROLLBACK")
        finally:
            connection.close()


def carry_over(hermes: HermesProcess) -> None:
    [[_busy, frames, carried]] = hermes.step(sql("PRAGMA wal_checkpoint(PASSIVE)"))
    assert frames == carried > 0


def test_no_look_drops_the_locks(sick: Home) -> None:
    with HermesProcess(sick, VERSION) as hermes:
        hermes.call("create_session", "own", "cli")
        bundle = inspected(sick)
        beside = Beside(bundle, Stop())
        connection = open_for_writing(sick.store)
        try:
            beside.begin(connection)
            beside.opened()
            before = own_locks(sick)
            assert before[sick.store.with_name("state.db-shm").stat().st_ino] >= 2
            beside.look_around()
            assert list(obstacles(bundle)) == []
            files = generation(sick.store)
            assert files is not None
            assert list(strangers(bundle, files)) == []
            assert read_log(sick.store) is not None
            assert (hermes.pid, files.index[1]) in index_users()
            assert own_locks(sick) == before
            connection.execute("ROLLBACK")
        finally:
            connection.close()


def own_locks(home: Home) -> Counter[int]:
    """How many locks this process has on which files."""
    found: Counter[int] = Counter()
    for line in Path("/proc/locks").read_text().splitlines():
        fields = line.split()
        if len(fields) == 8 and fields[1] == "POSIX" and int(fields[4]) == os.getpid():
            found[int(fields[5].rpartition(":")[2])] += 1
    return found


# Killed, and replaced meanwhile


@pytest.mark.parametrize("step", ["backed-up", "begun:3", "mended:2", "pending:2", "committed:4"])
def test_a_kill_leaves_hermes_its_store(sick: Home, doctors: Doctors, step: str) -> None:
    with HermesProcess(sick, VERSION) as hermes:
        hermes.call("create_session", "own", "cli")
        files, store = generation(sick.store), digest(sick.store)
        killed = doctors.run("fix", "--apply", "--live", sick.store, kill_at=step)
        assert killed.code == -signal.SIGKILL
        assert generation(sick.store) == files
        assert digest(sick.store) == store
        hermes.call("append_message", "own", "user", "goes on")
        assert hermes.step(sql("PRAGMA integrity_check")) == [["ok"]]
        again = doctors.run("fix", "--apply", "--live", "--json", sick.store)
        assert (again.code, again.json()["outcome"]) == (0, "fixed"), again
        assert digest(sick.store) == store
        runs = hermes.call("get_messages", "own")
    assert [row["content"] for row in runs] == ["goes on"]
    assert scan_codes(sick, doctors) == Counter()


def test_a_commit_that_a_kill_cut_off_does_not_come_to_be_later(sick: Home, doctors: Doctors) -> None:
    """All of it is in the log, and not in the log's index: nobody sees it, until somebody makes that anew."""
    with HermesProcess(sick, VERSION) as hermes:
        hermes.call("create_session", "own", "cli")
        before = image_of(sick.store)
        command = [sys.executable, "-m", "tests.whole.killed_in_commit", "fix", "--apply", "--live", str(sick.store)]
        assert subprocess.run(command, cwd=ROOT, capture_output=True, check=False).returncode == -signal.SIGKILL
        assert journal(sick, "SELECT state FROM changesets") == [("pending",)]
        # A copy without the index shows what is in the log.
        assert difference(before, image_of(sick.store)) != []
        # Settled, and then the next doctor ends as well before it writes.
        settled = doctors.run("fix", "--apply", "--live", sick.store, kill_at="settled:1")
        assert settled.code == -signal.SIGKILL
        assert journal(sick, "SELECT state FROM changesets") == [("not-applied",)]
        hermes.kill()
    assert agreement(sick) == []
    assert difference(before, image_of(sick.store)) == []
    assert scan_codes(sick, doctors) != Counter()
    done = doctors.run("fix", "--apply", "--json", sick.store)
    assert (done.code, done.json()["outcome"]) == (0, "fixed"), done
    for (run,) in journal(sick, "SELECT run FROM runs ORDER BY at DESC"):
        assert doctors.run("undo", "--apply", run, sick.store).code == 0
    assert difference(before, image_of(sick.store)) == []


def test_a_hermes_that_dies_midway_finds_its_log_as_it_left_it(sick: Home, doctors: Doctors) -> None:
    with HermesProcess(sick, VERSION) as hermes:
        hermes.call("create_session", "own", "cli")
        files, store = generation(sick.store), digest(sick.store)

        def kill_hermes(pid: int) -> None:
            wait_until_stopped(pid)
            hermes.kill()
            os.kill(pid, signal.SIGCONT)

        done = doctors.run(
            "fix", "--apply", "--live", "--json", sick.store, kill_at="pending:2:STOP", started=kill_hermes
        )
    assert (done.code, done.json()["outcome"]) == (0, "fixed"), done
    # We were the last to close it, and carried nothing over and deleted nothing.
    assert generation(sick.store) == files
    assert digest(sick.store) == store
    sick.run(VERSION, [call("append_message", "own", "user", "back again")])
    assert scan_codes(sick, doctors) == Counter()


def test_a_log_that_is_replaced_midway_ends_the_work(sick: Home, doctors: Doctors) -> None:
    wal = sick.store.with_name("state.db-wal")

    def replace_it(pid: int) -> None:
        wait_until_stopped(pid)
        wal.rename(wal.with_name("aside"))
        os.kill(pid, signal.SIGCONT)

    with HermesProcess(sick, VERSION) as hermes:
        hermes.call("create_session", "own", "cli")
        done = doctors.run(
            "fix", "--apply", "--live", "--backup=never", sick.store, kill_at="pending:2:STOP", started=replace_it
        )
        assert done.code == 7
        assert "replaced or deleted while the doctor worked" in " ".join(done.out.split())
        wal.with_name("aside").rename(wal)
        first_two = "SELECT state FROM changesets ORDER BY number LIMIT 2"
        assert journal(sick, first_two) == [("applied",), ("pending",)]
        assert agreement(sick, stopped=True) == []
        again = doctors.run("fix", "--apply", "--live", "--backup=never", "--json", sick.store)
        assert (again.code, again.json()["outcome"]) == (0, "fixed"), again
        # The first transaction stands, the second was not committed.
        assert journal(sick, first_two) == [("applied",), ("not-applied",)]
    assert agreement(sick) == []
    assert scan_codes(sick, doctors) == Counter()


# What the fixes say


@pytest.mark.parametrize("fix", FIXES, ids=lambda fix: fix.check)
def test_each_fix_says_whether_it_is_safe_beside_a_living_hermes(fix: Fix) -> None:
    said = fix.page.partition(f"\n{LIVE}\n")[2].strip()
    finding = Finding(fix.check, Severity.ERROR, "sessions", "s", "s", "odd", fix=Safety.SAFE)
    assert said.startswith("Safe" if fix.live(finding) else "No: ")


def test_an_empty_continuation_is_not_deleted_beside_a_living_hermes() -> None:
    lineage = next(fix for fix in FIXES if fix.check == "lineage-gaps")
    kinds = {
        kind: lineage.live(
            Finding("lineage-gaps", Severity.ERROR, "sessions", "s", "s", "odd", {"kind": kind}, Safety.SAFE)
        )
        for kind in Kind
    }
    assert [kind for kind, may in kinds.items() if not may] == [Kind.EMPTY_CONTINUATION]
