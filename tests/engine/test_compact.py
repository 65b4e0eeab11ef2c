"""Compacting a store: what stands in the way, what ends it half-way, and what would be noticed afterwards."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from hermes_doctor.engine import compact as module
from hermes_doctor.engine.compact import StoreCompact, _Sight, compact_store
from hermes_doctor.engine.model import ExitCode
from hermes_doctor.engine.stopping import Stop
from hermes_doctor.host.bundle import Condition
from hermes_doctor.host.homes import StoreRef
from hermes_doctor.host.locks import doctor_lock, upstream_maintenance_lock
from hermes_doctor.store.compaction import SPARE
from tests.disks import small_disk
from tests.oracle.home import Home
from tests.oracle.process import HermesProcess
from tests.whole.identical import difference, image_of
from tests.whole.support import fingerprint
from tests.whole.thinned import copied

MIB = 1 << 20
Make = Callable[[str], Home]


@pytest.fixture
def make(oracle: None, shared_folder: Path, tmp_path: Path) -> Make:
    """Homes whose stores are full of free pages."""
    return lambda version: copied(shared_folder, tmp_path / version, version)


@pytest.fixture
def thin(make: Make) -> Home:
    return make("0.22.2")


def ref_of(home: Home) -> StoreRef:
    return StoreRef(home.store, home.path, "default")


def applied(home: Home, stop: Stop | None = None, at: str | None = None) -> StoreCompact:
    """Compact it; ``at``: the step at which an end is asked for."""
    asked = stop or Stop()

    def note(_path: Path, step: str, _share: float | None) -> None:
        if step == at:
            asked.ask("somebody asked for it")

    return compact_store(ref_of(home), apply=True, stop=asked, progress=note)


def refused(home: Home, code: ExitCode = ExitCode.REFUSED) -> str:
    """The reason that plan and work agree on; nothing but the doctor's folder is new, and nothing changed."""
    before = fingerprint(home.path)
    plan = compact_store(ref_of(home), apply=False, stop=Stop())
    assert (plan.outcome, plan.exit_code) == ("planned", ExitCode.FINDINGS)
    result = applied(home)
    assert (result.outcome, result.exit_code, result.after) == ("refused", code, None)
    assert fingerprint(home.path) == before
    assert result.reason is not None
    assert plan.would_be_refused == result.reason
    return result.reason


def pages_of(store: Path) -> tuple[int, int]:
    """How many pages a store has, and how many of them are free."""
    with closing(apsw.Connection(str(store), flags=apsw.SQLITE_OPEN_READONLY)) as connection:
        return int(connection.pragma("page_count")), int(connection.pragma("freelist_count"))


def test_a_held_store_is_refused(make: Make) -> None:
    home = make("0.19.0")
    with HermesProcess(home, "0.19.0") as hermes:
        assert isinstance(hermes.call("get_session", "chat-24"), dict)
        before = home.store.read_bytes()
        for result in (applied(home), compact_store(ref_of(home), apply=False, stop=Stop())):
            told = result.reason or result.would_be_refused or ""
            assert f"(pid {hermes.pid}) has {home.store} open: stop it first" in told
        assert home.store.read_bytes() == before
    assert applied(home).outcome == "compacted"


@pytest.mark.parametrize("name", [".state.db-litestream", "state.db-litestream"])
def test_a_replicated_store_is_refused(thin: Home, name: str) -> None:
    (thin.path / name).mkdir()
    reason = refused(thin)
    assert "Litestream" in reason
    assert str(thin.path / name) in reason
    (thin.path / name).rmdir()
    assert applied(thin).outcome == "compacted"


@pytest.mark.parametrize("short", ["beside", "aside"])
def test_too_little_room_is_refused(thin: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, short: str) -> None:
    size = thin.store.stat().st_size
    # With and without room for one more copy and what is to spare.
    beside, aside = size + SPARE // 2, SPARE // 2
    beside, aside = (beside, 4 * SPARE) if short == "beside" else (4 * SPARE, aside)
    with small_disk(tmp_path / "beside", beside) as disk, small_disk(tmp_path / "aside", aside) as temporary:
        monkeypatch.setenv("SQLITE_TMPDIR", str(temporary))
        home = Home(disk / "home")
        shutil.copytree(thin.path, home.path, dirs_exist_ok=True)
        reason = refused(home)
        assert f"{size + SPARE:,} bytes are needed meanwhile" in reason
        assert f"file system of {home.path if short == 'beside' else temporary}" in reason
        assert ("SQLITE_TMPDIR" in reason) == (short == "aside")


def test_on_one_disk_it_needs_twice_the_room(thin: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with small_disk(tmp_path / "disk", 64 * MIB) as disk:
        monkeypatch.setenv("SQLITE_TMPDIR", str(disk))
        home = Home(disk / "home")
        shutil.copytree(thin.path, home.path, dirs_exist_ok=True)
        (room,) = compact_store(ref_of(home), apply=False, stop=Stop()).rooms
        assert (room.folder, room.needed) == (home.path, 2 * home.store.stat().st_size + SPARE)
        assert room.free == os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize


def test_another_at_work_is_busy(thin: Home) -> None:
    (thin.path / "doctor").mkdir(mode=0o700)
    with doctor_lock(thin.path / "doctor"):
        assert "is at work on this store" in refused(thin, ExitCode.BUSY)
    with upstream_maintenance_lock(thin.store):
        result = applied(thin)
        assert (result.outcome, result.exit_code) == ("refused", ExitCode.BUSY)
    assert applied(thin).outcome == "compacted"


def test_a_hermes_that_comes_meanwhile_ends_it(thin: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    look = module._Sight.of
    came: list[HermesProcess] = []

    def meanwhile(connection: apsw.Connection) -> _Sight:
        came.append(HermesProcess(thin, "0.22.2"))
        assert isinstance(came[0].call("get_session", "chat-24"), dict)
        return look(connection)

    before = pages_of(thin.store)
    monkeypatch.setattr(module._Sight, "of", meanwhile)
    result = applied(thin)
    came[0].close()
    assert (result.outcome, result.exit_code, result.after) == ("stopped", ExitCode.STOPPED, None)
    assert f"(pid {came[0].pid}) opened the store meanwhile; the store is as it was before" in str(result.reason)
    assert pages_of(thin.store) == before


@pytest.mark.parametrize("version", ["0.19.0", "0.22.2"])
@pytest.mark.parametrize("at", ["checking", "compacting"])
def test_a_stop_before_the_end_leaves_the_store_as_it_was(
    make: Make, monkeypatch: pytest.MonkeyPatch, version: str, at: str
) -> None:
    monkeypatch.setattr(module, "_STEPS", 20)
    home = make(version)
    before, pages = image_of(home.store), home.store.read_bytes()
    result = applied(home, at=at)
    assert (result.outcome, result.exit_code, result.after) == ("stopped", ExitCode.STOPPED, None)
    assert result.reason == "somebody asked for it; the store is as it was before"
    assert home.store.read_bytes() == pages
    assert difference(before, image_of(home.store)) == []
    assert applied(home).outcome == "compacted"
    assert difference(before, image_of(home.store)) == []


def test_a_stop_behind_the_vacuum_says_that_it_is_done(thin: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_STEPS", 20)
    result = applied(thin, at="verifying")
    assert (result.outcome, result.verified) == ("stopped", None)
    assert result.reason == "somebody asked for it; it is compacted, but not all of it was verified"
    assert result.after is not None
    assert result.after.free_pages == 0


def test_a_damaged_store_is_left(thin: Home) -> None:
    connection = apsw.Connection(str(thin.store))
    with closing(connection):
        root = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'state_meta'").get
    with thin.store.open("r+b") as file:
        file.seek((root - 1) * 4096)
        file.write(b"\xff" * 64)
    broken = thin.store.read_bytes()
    result = applied(thin)
    assert (result.outcome, result.exit_code) == ("failed", ExitCode.DAMAGED)
    assert result.scan.condition is Condition.DAMAGED
    assert "nothing was changed" in str(result.reason)
    assert "doctor rescue " in str(result.scan.next_step)
    assert thin.store.read_bytes() == broken


@pytest.mark.parametrize("version", ["0.19.0", "0.22.2"])
def test_a_tokenizer_that_this_machine_lacks_is_no_obstacle(make: Make, version: str) -> None:
    home = make(version)
    sql = "CREATE VIRTUAL TABLE messages_fts_cjk USING fts5(content, tokenize='cjk_unicode61')"
    connection = apsw.Connection(str(home.store))
    with closing(connection):
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(
            "INSERT INTO sqlite_schema VALUES ('table', 'messages_fts_cjk', 'messages_fts_cjk', 0, ?)", (sql,)
        )
    result = applied(home)
    assert (result.outcome, result.reason) == ("compacted", None)
    with closing(apsw.Connection(str(home.store))) as connection:
        assert connection.execute("SELECT sql FROM sqlite_schema WHERE name = 'messages_fts_cjk'").get == sql


def test_the_files_settings_are_kept(thin: Home) -> None:
    connection = apsw.Connection(str(thin.store))
    with closing(connection):
        connection.execute("PRAGMA application_id = 1212371533")
        connection.execute("PRAGMA user_version = 77")
    header = thin.store.read_bytes()[:100]
    assert applied(thin).outcome == "compacted"
    after = thin.store.read_bytes()[:100]
    # Page size, journal mode, encoding, user version, application id: header, as SQLite documents it.
    for part in (slice(16, 20), slice(56, 64), slice(68, 72), slice(52, 56)):
        assert after[part] == header[part]
    assert (after[68:72], after[60:64]) == ((1212371533).to_bytes(4, "big"), (77).to_bytes(4, "big"))


#: What a wrong VACUUM could do, and what is said of it then.
WRONGS = {
    "loses a row": ("DELETE FROM messages WHERE id = 2", ["the rows of messages"]),
    "loses the newest": ("DELETE FROM messages WHERE id = 3", ["the rows of messages", "the highest id of messages"]),
    "numbers anew": ("UPDATE messages SET id = 9 WHERE id = 3", ["the highest id of messages"]),
    "forgets the counter": ("UPDATE sqlite_sequence SET seq = 0", ["the counters of ids"]),
    "loses a table": ("DROP TABLE sessions", ["the rows of sessions"]),
    "loses the version": ("PRAGMA user_version = 0", ["user_version"]),
    "loses the mark": ("PRAGMA application_id = 0", ["application_id"]),
    "changes the mode": ("PRAGMA journal_mode = wal", ["journal_mode"]),
}


@pytest.mark.parametrize("wrong", WRONGS)
def test_a_wrong_vacuum_would_be_noticed(tmp_path: Path, wrong: str) -> None:
    connection = apsw.Connection(str(tmp_path / "state.db"))
    with closing(connection):
        connection.execute(
            "CREATE TABLE sessions(id TEXT PRIMARY KEY); INSERT INTO sessions VALUES ('a');"
            "CREATE TABLE messages(id INTEGER PRIMARY KEY AUTOINCREMENT, t);"
            "INSERT INTO messages(t) VALUES (1), (2), (3); PRAGMA user_version = 5; PRAGMA application_id = 6"
        )
        before = _Sight.of(connection)
        connection.execute("VACUUM")
        assert before.differences(_Sight.of(connection)) == []
        statement, told = WRONGS[wrong]
        connection.execute(statement)
        assert before.differences(_Sight.of(connection)) == told


def test_what_others_wrote_meanwhile_is_not_held_against_it(tmp_path: Path) -> None:
    with closing(apsw.Connection(str(tmp_path / "state.db"))) as connection:
        connection.execute("CREATE TABLE messages(id INTEGER PRIMARY KEY, t); INSERT INTO messages(t) VALUES (1)")
        before = _Sight.of(connection)
        with closing(apsw.Connection(str(tmp_path / "state.db"))) as other:
            other.execute("INSERT INTO messages(t) VALUES (2)")
        after = _Sight.of(connection)
        assert before.version != after.version
        assert before.differences(after) == []


def test_nothing_to_do_changes_nothing(thin: Home) -> None:
    assert applied(thin).outcome == "compacted"
    before = fingerprint(thin.path)
    result = applied(thin)
    assert (result.outcome, result.exit_code) == ("nothing-to-do", ExitCode.CLEAN)
    assert fingerprint(thin.path) == before
