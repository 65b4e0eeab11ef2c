"""Logs and journals as real releases leave them, hold them and lose them: what is told of them, and what is not."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import apsw
import pytest

from checks.wal_health import CHECK
from hermes_doctor.engine.model import FILES, Finding, Severity
from hermes_doctor.engine.scan import ScanOptions, scan_store
from hermes_doctor.host import wal_files
from hermes_doctor.host.bundle import Condition
from hermes_doctor.host.homes import StoreRef
from hermes_doctor.host.shared_disks import SharedDisk, Trust
from hermes_doctor.store import wal_state
from tests.host.evidence import no_trace_in
from tests.host.waiting import waiting
from tests.oracle.home import CallError, Home, environment
from tests.oracle.process import HermesProcess
from tests.oracle.releases import get
from tests.oracle.steps import Step, call, die_in_transaction, kill, sql

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc, and tells by it")

#: The last release that makes WAL stores on any SQLite, and one that refuses to write to a deleted log.
WAL, REFUSES = "0.19.0", "0.22.2"
ROLLBACK = sql("PRAGMA journal_mode=DELETE")

#: The first half is in the store's file when the second goes to the log.
TALK: list[Step] = [
    call("create_session", "s1", "cli"),
    *(call("append_message", "s1", "user", f"message {number} " + "x" * 300) for number in range(10)),
    sql("PRAGMA wal_checkpoint(PASSIVE)"),
    *(call("append_message", "s1", "user", f"message {number} " + "x" * 300) for number in range(10, 30)),
]


def found(home: Home) -> list[Finding]:
    """What the check finds, whatever the store is like; the files stay as they are."""
    with no_trace_in(home.path):
        scan = scan_store(StoreRef(home.store, home.path, "default"), [CHECK], ScanOptions())
        with scan.findings as findings:
            assert [result.status for result in scan.checks] == ["ran"], scan.reason
            return list(findings)


def told(home: Home) -> dict[object, tuple[str, object]]:
    """The same as severity and fault of each file."""
    findings = found(home)
    assert {each.table for each in findings} <= {FILES}
    return {each.key: (each.severity.label, each.detail["fault"]) for each in findings}


def messages(home: Home) -> list[str]:
    """Each message that the release finds in a copy of the home, and whether the file is sound, last."""
    copy = Home(home.path.with_name(home.path.name + "-read"))
    shutil.copytree(home.path, copy.path, dirs_exist_ok=True)
    rows, sound = copy.run(WAL, [call("get_messages", "s1"), sql("PRAGMA integrity_check")])
    shutil.rmtree(copy.path)
    return [str(row["content"]) for row in rows] + [str(cell) for (cell,) in sound]


def beside(home: Home, suffix: str) -> Path:
    return home.path / f"state.db{suffix}"


# --- nobody has it open --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def templates(oracle: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Homes that a release left in one way each, made once."""
    folder = tmp_path_factory.mktemp("templates")
    after: dict[str, tuple[str, list[Step]]] = {
        "closed": (WAL, TALK),
        "killed": (WAL, [*TALK, kill()]),
        "carried over": (WAL, [*TALK, sql("PRAGMA wal_checkpoint(PASSIVE)"), kill()]),
        "truncated": (WAL, [*TALK, sql("PRAGMA wal_checkpoint(TRUNCATE)"), kill()]),
        "in rollback mode": (WAL, [*TALK, ROLLBACK, die_in_transaction(("UPDATE messages SET content = 'never'",))]),
    }
    for name, (release, steps) in after.items():
        Home(folder / name).run(release, steps)
    return {name: folder / name for name in after}


def as_it_is(home: Home) -> None:
    pass


def without(suffix: str) -> Callable[[Home], None]:
    return lambda home: beside(home, suffix).unlink()


def cut_to(frames: int) -> Callable[[Home], None]:
    return lambda home: os.truncate(beside(home, "-wal"), frames and 32 + frames * (24 + 4096))


def of_another_generation(home: Home) -> None:
    """The log begins with other salts than its index names: SQLite makes the index anew."""
    with beside(home, "-wal").open("r+b") as log:
        log.seek(16)
        log.write(b"otherone")


def with_a_spoilt_index(home: Home) -> None:
    """As after a loss of power: what was written to it last did not reach the disk."""
    with beside(home, "-shm").open("r+b") as index:
        index.seek(16)
        index.write(b"\x01")


def store_restored_over_its_log(home: Home) -> None:
    """A backup in rollback mode is put in the store's place, and the log of the old one stays."""
    home.store.unlink()
    with apsw.Connection(str(home.path / "backup.db")) as backup:
        backup.execute("CREATE TABLE sessions(id, source, started_at); CREATE TABLE messages(id, session_id, role)")
    backup.close()
    (home.path / "backup.db").rename(home.store)


def of_a_store_that_was_converted(home: Home) -> None:
    """The log of before the store went back to rollback mode: every page of it is in the store as it is."""
    log = beside(home, "-wal").read_bytes()
    connection = apsw.Connection(str(home.store))
    connection.pragma("journal_mode", "delete")
    connection.close()
    beside(home, "-wal").write_bytes(log)


def wiped(home: Home) -> None:
    home.store.write_bytes(b"")


def overwritten(home: Home) -> None:
    with home.store.open("r+b") as store:
        store.write(b"\x00" * 4096)


def put_aside(name: str) -> Callable[[Home], None]:
    """The log is in a capture as 0.21.5 makes them, and the store is closed."""

    def plant(home: Home) -> None:
        folder = home.path / f"state.db.retired-wal-20261129-120000-4711{name}"
        folder.mkdir()
        for suffix in ("", "-wal", "-shm"):
            shutil.copy(beside(home, suffix), folder)
        for suffix in ("-wal", "-shm"):
            beside(home, suffix).unlink()
        if name == "-large":
            (folder / "state.db").rename(folder / "state.db.header")

    return plant


@dataclass(frozen=True)
class Case:
    """``left``: the template that it begins with; ``told``: severity and fault of each file."""

    name: str
    left: str
    plant: Callable[[Home], None]
    told: dict[str, tuple[str, str]]


CAPTURE = "state.db.retired-wal-20261129-120000-4711"
CASES = [
    Case("closed", "closed", as_it_is, {}),
    Case("killed", "killed", as_it_is, {"state.db-wal": ("info", "waiting")}),
    Case("a large log that is carried over", "carried over", as_it_is, {}),
    Case("an empty log", "truncated", as_it_is, {}),
    Case("without its index", "killed", without("-shm"), {"state.db-wal": ("info", "waiting")}),
    Case("the log is taken away", "killed", without("-wal"), {"state.db-wal": ("error", "taken-away")}),
    Case("carried over and taken away", "carried over", without("-wal"), {}),
    Case("emptied and taken away", "truncated", without("-wal"), {}),
    Case("the log is emptied", "killed", cut_to(0), {"state.db-wal": ("error", "taken-away")}),
    Case("the log is cut off", "killed", cut_to(50), {"state.db-wal": ("warning", "cut-off")}),
    Case("carried over and cut off", "carried over", cut_to(50), {}),
    Case("another generation", "killed", of_another_generation, {}),
    Case("a spoilt index", "killed", with_a_spoilt_index, {}),
    Case("a backup over its log", "killed", store_restored_over_its_log, {"state.db-wal": ("error", "foreign")}),
    Case("converted", "killed", of_a_store_that_was_converted, {"state.db-wal": ("error", "foreign")}),
    Case("the store is gone", "killed", without(""), {"state.db-wal": ("error", "orphaned")}),
    Case("the store is wiped", "killed", wiped, {"state.db-wal": ("error", "orphaned")}),
    Case("the store is overwritten", "killed", overwritten, {"state.db-wal": ("error", "wiped")}),
    Case("a hot journal", "in rollback mode", as_it_is, {"state.db-journal": ("info", "hot-journal")}),
    Case("put aside", "killed", put_aside(""), {CAPTURE: ("warning", "put-aside")}),
    Case("put aside, without the store", "killed", put_aside("-large"), {f"{CAPTURE}-large": ("warning", "put-aside")}),
    Case("put aside, carried over", "carried over", put_aside(""), {CAPTURE: ("info", "put-aside-carried")}),
]


def planted(case: Case, templates: dict[str, Path], folder: Path) -> Home:
    home = Home(folder / "home")
    shutil.copytree(templates[case.left], home.path, dirs_exist_ok=True)
    case.plant(home)
    return home


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_is_left_is_told(case: Case, templates: dict[str, Path], tmp_path: Path) -> None:
    assert told(planted(case, templates, tmp_path)) == case.told


def test_frames_are_counted(templates: dict[str, Path], tmp_path: Path) -> None:
    by_name = {case.name: case for case in CASES}
    home = planted(by_name["killed"], templates, tmp_path)
    index = wal_files.parse_index(beside(home, "-shm").read_bytes())
    assert index is not None
    assert index.frames > 50
    [finding] = found(home)
    assert (finding.detail["frames"], finding.detail["bytes"]) == (index.frames, index.frames * 4096)
    cut_to(50)(home)
    [finding] = found(home)
    assert finding.detail["frames"] == index.frames - 50
    assert "carried over" not in finding.summary


def _bytes_count(store: Path) -> wal_files.Log | None:
    log = wal_files.read_log(store)
    return log and replace(log, index=replace(log.index, frames=log.present, carried=0))


def _index_is_believed(store: Path) -> wal_files.Log | None:
    log = wal_files.read_log(store)
    return log and replace(log, present=log.index.frames)


def _every_store_has_its_index(store: Path) -> wal_files.Log | None:
    return wal_files.read_log(store) if store.parent.name == "home" else None


#: What a wrong check has in the place of a name of `wal_state`.
WRONG: list[tuple[str, str, object]] = [
    ("bytes are frames", "read_log", _bytes_count),
    ("the index is believed", "read_log", _index_is_believed),
    ("no copy is asked", "read_log", _every_store_has_its_index),
    ("every log is the store's", "_is_foreign", lambda bundle: False),
]


@pytest.mark.parametrize(("place", "wrong"), [each[1:] for each in WRONG], ids=[each[0] for each in WRONG])
def test_a_wrong_check_is_caught(
    place: str, wrong: object, templates: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wal_state, place, wrong)
    homes = ((case, planted(case, templates, tmp_path / str(number))) for number, case in enumerate(CASES))
    assert any(told(home) != case.told for case, home in homes)


@pytest.mark.parametrize(
    ("disk", "expected"),
    [
        (SharedDisk("nfs4", Trust.SERVED), {"state.db": ("warning", "served-disk")}),
        (SharedDisk("fuse.mergerfs", Trust.LAID), {"state.db": ("info", "laid-disk")}),
        (None, {}),
    ],
)
def test_only_a_log_is_told_of_its_disk(
    disk: SharedDisk | None,
    expected: dict[str, tuple[str, str]],
    templates: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wal_state, "shared_disk", lambda path: disk)
    home = planted(next(case for case in CASES if case.name == "closed"), templates, tmp_path)
    assert told(home) == expected
    connection = apsw.Connection(str(home.store))
    connection.pragma("journal_mode", "delete")
    connection.close()
    assert told(home) == {}


def test_a_log_of_another_store_is_moved_aside_as_the_steps_say(templates: dict[str, Path], tmp_path: Path) -> None:
    """With it the store cannot be read at all; without it is as sound as the backup was."""
    home = planted(next(case for case in CASES if case.name == "a backup over its log"), templates, tmp_path)
    scan = scan_store(StoreRef(home.store, home.path, "default"), [CHECK], ScanOptions())
    scan.findings.close()
    assert scan.condition is Condition.DAMAGED
    [finding] = found(home)
    carry_out(steps_of(finding)[1:2])
    assert told(home) == {}
    assert sorted(each.name for each in (home.path / "state.db.saved-log").iterdir()) == [
        "state.db-shm",
        "state.db-wal",
    ]


def test_a_log_without_its_store_is_lost_by_starting_hermes(templates: dict[str, Path], tmp_path: Path) -> None:
    """Why the first step is not to start it, and that the steps save the log and read it with its store."""
    case = next(case for case in CASES if case.name == "the store is wiped")
    home = planted(case, templates, tmp_path)
    store = templates[case.left] / "state.db"
    [finding] = found(home)
    carry_out(steps_of(finding)[1:2])
    home.run(WAL, [call("session_count")])
    assert told(home) == {}
    assert not beside(home, "-wal").exists()
    saved = home.path / "state.db.saved-log"
    shutil.copy(store, saved)
    assert rows_seen_by_recover(steps_of(finding)[3]) == 30


# --- a living hermes -----------------------------------------------------------------------------------------------


def steps_of(finding: Finding) -> list[str]:
    steps = finding.detail["steps"]
    assert not isinstance(steps, (str, int, float, type(None)))
    return list(steps)


def carry_out(steps: list[str]) -> None:
    """Types steps into a shell as they stand, without the words behind a command."""
    for step in steps:
        subprocess.run(["bash", "-c", re.split(r", and stop| \(", step)[0]], check=True)


def rows_seen_by_recover(step: str) -> int:
    """Messages that the command of a step, `sessions recover --inspect-only`, finds, run as the release has it."""
    typed = r"(?:HERMES_HOME=\S+ )?hermes sessions recover --source (\S+) --inspect-only \(hermes 0\.20 or newer\)"
    source = re.fullmatch(typed, step)
    assert source is not None
    code = (
        "import sys; from pathlib import Path; from hermes_cli.session_recovery import inspect_session_database\n"
        "print(inspect_session_database(Path(sys.argv[1]))['tables']['messages']['rows'])"
    )
    store = Path(source[1])
    done = subprocess.run(
        [sys.executable, "-c", code, str(store)],
        capture_output=True,
        text=True,
        check=True,
        env=environment(store.parent, get("0.20.0")),
    )
    return int(done.stdout)


def unlink(home: Home, *suffixes: str) -> None:
    for suffix in suffixes:
        beside(home, suffix).unlink()


def say(process: HermesProcess, what: str) -> None:
    for number in range(10):
        process.call("append_message", "s1", "user", f"{what} {number} " + "y" * 300)


def lose_the_log(home: Home, process: HermesProcess) -> None:
    """Its log is deleted while it writes: half of 20 messages before, half after."""
    say(process, "before")
    unlink(home, "-wal", "-shm")
    say(process, "after")


@pytest.fixture
def lived(templates: dict[str, Path], tmp_path: Path) -> Home:
    """A home that a hermes lived in and closed: 30 messages."""
    home = Home(tmp_path / "home")
    shutil.copytree(templates["closed"], home.path, dirs_exist_ok=True)
    return home


def test_a_store_in_use_is_silent(lived: Home, templates: dict[str, Path], tmp_path: Path) -> None:
    with HermesProcess(lived, WAL) as process:
        say(process, "waits")
        assert told(lived) == {}
        process.step(sql("BEGIN IMMEDIATE"))
        process.step(sql("UPDATE messages SET content = 'not yet'"))
        assert told(lived) == {}
        process.step(sql("ROLLBACK"))
    assert told(lived) == {}
    rollback = Home(tmp_path / "rollback")
    shutil.copytree(templates["in rollback mode"], rollback.path, dirs_exist_ok=True)
    with HermesProcess(rollback, WAL) as process:
        process.step(ROLLBACK)
        process.step(sql("BEGIN IMMEDIATE"))
        process.step(sql("UPDATE messages SET content = content || 'z'"))
        assert beside(rollback, "-journal").stat().st_size > 0
        assert told(rollback) == {}


def test_one_generation_is_saved_as_the_steps_say(lived: Home) -> None:
    with HermesProcess(lived, WAL) as process:
        lose_the_log(lived, process)
        [finding] = found(lived)
        assert (finding.key, finding.severity, finding.detail["fault"]) == (
            "state.db-wal",
            Severity.ERROR,
            "writes-to-deleted",
        )
        assert finding.detail["pids"] == [str(process.pid)]
        stop, save, go_on, look, _ = steps_of(finding)
        assert stop == f"kill -STOP {process.pid}"
        carry_out([stop, save, go_on])
        process.close()
    assert len(messages(lived)) == 50 + 1
    assert rows_seen_by_recover(look) == 50
    assert told(lived) == {}


def test_two_generations_are_saved_as_the_steps_say(lived: Home) -> None:
    """Closed in good order, the older one makes the store malformed; killed as the steps say, it does not."""
    with HermesProcess(lived, WAL) as old:
        lose_the_log(lived, old)
        with HermesProcess(lived, WAL) as new:
            for number in range(30):
                new.call("append_message", "s1", "user", f"new {number} " + "z" * 3000)
            [finding] = found(lived)
            assert finding.detail["pids"] == [str(old.pid), str(new.pid)]
            assert finding.summary.startswith("two generations of the store: ")
            stop, save_old, save_new, end, go_on, look_old, look_new, _ = steps_of(finding)
            assert stop == f"kill -STOP {old.pid} {new.pid}"
            carry_out([stop, save_old, save_new, end, go_on])
            old.kill()
            new.call("append_message", "s1", "user", "goes on")
    assert messages(lived)[-2:] == ["goes on", "ok"]
    assert (rows_seen_by_recover(look_old), rows_seen_by_recover(look_new)) == (50, 60)
    assert told(lived) == {}


def test_a_store_that_cannot_be_read_without_its_log_is_told_too(home: Home) -> None:
    """A young one has all of its tables in the log, and is no store of hermes's without it."""
    with HermesProcess(home, WAL) as process:
        process.step(TALK[0])
        unlink(home, "-wal")
        [finding] = CHECK.wreck(home.store) if CHECK.wreck else []
        assert (finding.key, finding.detail["fault"]) == ("state.db-wal", "writes-to-deleted")
        assert finding.detail["pids"] == [str(process.pid)]
        process.kill()
    [finding] = CHECK.wreck(home.store) if CHECK.wreck else []
    assert finding.detail["fault"] == "taken-away"


def test_a_store_that_was_replaced_under_hermes_is_told(lived: Home) -> None:
    """Nobody has the new file open, and all that hermes writes is lost with the old one."""
    shutil.copy(lived.store, lived.path / "backup.db")
    with HermesProcess(lived, WAL) as process:
        (lived.path / "backup.db").rename(lived.store)
        say(process, "lost")
        [finding] = found(lived)
        assert (finding.key, finding.detail["fault"]) == ("state.db", "writes-to-deleted")
        stop, save, _, end, look, _, _ = steps_of(finding)
        carry_out([stop, save, end])
        process.kill()
    assert rows_seen_by_recover(look) == 40


#: Reads one moment of the store.
READER = (
    "import apsw; c = apsw.Connection(f'file:{sys.argv[1]}?mode=ro', flags=apsw.SQLITE_OPEN_READONLY | "
    "apsw.SQLITE_OPEN_URI); c.execute('BEGIN'); c.execute('SELECT count(*) FROM messages').get"
)


def test_who_only_reads_a_deleted_log_is_to_be_restarted(lived: Home) -> None:
    with HermesProcess(lived, WAL) as process:
        say(process, "before")
        process.kill()
    with waiting(READER, lived.store) as pid:
        unlink(lived, "-wal", "-shm")
        [finding] = found(lived)
        assert (finding.severity, finding.detail["fault"]) == (Severity.WARNING, "reads-deleted")
        assert finding.summary.endswith(f"restart it (pid {pid})")


def test_frames_that_nobody_carries_over_are_told_with_who_is_in_the_way(
    lived: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert wal_state.MANY_FRAMES * 4096 == 64 * 1024 * 1024
    with HermesProcess(lived, WAL) as process:
        say(process, "first")
        with waiting(READER, lived.store) as pid:
            say(process, "later")
            process.step(sql("PRAGMA wal_checkpoint(PASSIVE)"))
            index = wal_files.parse_index(beside(lived, "-shm").read_bytes())
            assert index is not None
            wait = index.frames - index.carried
            assert wait > 20
            for many, expected in ((wait + 1, {}), (wait, {"state.db-wal": ("warning", "stuck")})):
                monkeypatch.setattr(wal_state, "MANY_FRAMES", many)
                assert told(lived) == expected
            [finding] = found(lived)
            assert (finding.detail["frames"], finding.detail["pids"]) == (wait, [str(pid)])
            assert f"python (pid {pid}) reads an older moment" in finding.summary
        [finding] = found(lived)
        assert "nobody carries them over" in finding.summary
        process.step(sql("PRAGMA wal_checkpoint(PASSIVE)"))
        assert told(lived) == {}


def test_a_log_that_hermes_itself_put_aside_is_told(make_home: Callable[[str], Home]) -> None:
    home = make_home("home")
    home.use_wal(REFUSES)
    with HermesProcess(home, REFUSES) as process:
        for step in TALK:
            process.step(step)
        unlink(home, "-wal", "-shm")
        refused = process.step(call("append_message", "s1", "user", "refused"), check=False)
        assert isinstance(refused, CallError)
        assert set(told(home).values()) == {("error", "writes-to-deleted"), ("warning", "put-aside")}
    [finding] = found(home)
    assert finding.detail["fault"] == "put-aside"
    assert rows_seen_by_recover(steps_of(finding)[0]) == 30
