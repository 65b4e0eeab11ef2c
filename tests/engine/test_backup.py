"""Backups of real stores: whole, of one moment, private, and never at the cost of the last good one."""

from __future__ import annotations

import calendar
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import apsw
import pytest

from hermes_doctor.engine.backup import BackupError, make_backup, will_back_up
from hermes_doctor.store.cells import Cell, quote
from hermes_doctor.store.shape import read_shape
from tests.disks import small_disk
from tests.oracle.home import Home
from tests.oracle.process import HermesProcess
from tests.oracle.releases import CHAINS, RELEASES, Chain
from tests.oracle.steps import call, die_in_transaction, sql
from tests.oracle.templates import LivedIn

README = Path(__file__).parents[2] / "README.md"
MIB = 1 << 20
GIB = 1 << 30
STORIES: tuple[Chain, ...] = (*((release.version,) for release in RELEASES), *CHAINS)


@contextmanager
def opened(path: Path, *, immutable: bool = False) -> Iterator[apsw.Connection]:
    """Any database, for looking at it; ``immutable``: the file alone, whatever lies beside it."""
    options = "mode=ro&immutable=1" if immutable else "mode=rw"
    connection = apsw.Connection(
        f"{path.as_uri()}?{options}",
        flags=apsw.SQLITE_OPEN_URI | (apsw.SQLITE_OPEN_READONLY if immutable else apsw.SQLITE_OPEN_READWRITE),
    )
    try:
        yield connection
    finally:
        connection.close()


def contents(path: Path, *, immutable: bool = False) -> dict[str, list[tuple[Cell, ...]]]:
    """All rows of all ordinary tables, typed, and the schema's text."""
    with opened(path, immutable=immutable) as connection:
        found: dict[str, list[tuple[Cell, ...]]] = {
            "sqlite_schema": connection.execute("SELECT type, name, sql FROM sqlite_schema ORDER BY name").fetchall()
        }
        for table in read_shape(connection).tables.values():
            columns = ", ".join(f"{quote(c)}, typeof({quote(c)})" for c in table.columns)
            found[table.name] = connection.execute(f"SELECT {columns} FROM {quote(table.name)} ORDER BY 1").fetchall()
    return found


def backups(doctor: Path) -> list[str]:
    return sorted(path.name for path in (doctor / "backups").iterdir())


@pytest.fixture
def doctor(tmp_path: Path) -> Path:
    """The folder that holds the doctor's records."""
    folder = tmp_path / "doctor"
    folder.mkdir(mode=0o700)
    return folder


@pytest.fixture
def lived(lived_in: LivedIn) -> Home:
    """A store of the newest release that was lived in."""
    return lived_in("0.22.2").home


@pytest.mark.parametrize("story", STORIES, ids="+".join)
def test_a_backup_holds_what_the_store_holds(lived_in: LivedIn, doctor: Path, story: Chain) -> None:
    home = lived_in(*story).home
    before = contents(home.store)
    backup = make_backup(home.store, doctor)
    assert contents(backup, immutable=True) == before
    assert len(before["messages"]) > 10


@pytest.mark.parametrize(("version", "mode"), [("0.19.0", "wal"), ("0.22.2", "delete")])
def test_a_backup_put_back_is_the_store_again(lived_in: LivedIn, doctor: Path, version: str, mode: str) -> None:
    home = lived_in(version).home
    before, files = home.replay(version), contents(home.store)
    backup = make_backup(home.store, doctor)
    home.run(version, [sql("DELETE FROM messages"), sql("UPDATE sessions SET title = NULL")])
    assert home.replay(version) != before
    # What hermes was killed over lies beside the store, and SQLite would play it into whatever is put there.
    home.run(version, [die_in_transaction(("UPDATE sessions SET system_prompt = hex(randomblob(50000))",))])
    assert home.journal_mode() == mode
    assert home.sidecars() == ({"-wal", "-shm"} if mode == "wal" else {"-journal"})
    # What the README says: hermes stopped, these files aside, the backup in their place.
    [told] = re.findall(r"To put a backup back: .*?\saside", README.read_text(encoding="utf-8"), re.DOTALL)
    for name in re.findall(r"`(state\.db[-a-z]*)`", told):
        home.store.with_name(name).unlink(missing_ok=True)
    shutil.copy(backup, home.store)
    assert contents(home.store) == files
    assert home.replay(version) == before
    assert home.journal_mode() == mode


def test_what_only_the_log_holds_is_in_the_backup(home: Home, doctor: Path) -> None:
    home.use_wal("0.19.0")
    with HermesProcess(home, "0.19.0") as hermes:
        hermes.call("create_session", "s1", "cli")
        hermes.call("append_message", "s1", "user", "only in the log")
        hermes.kill()
    assert "-wal" in home.sidecars()
    backup = make_backup(home.store, doctor)
    with opened(backup, immutable=True) as connection:
        assert connection.execute("SELECT content FROM messages").fetchall() == [("only in the log",)]


def test_a_log_without_its_index_is_recovered_first(home: Home, doctor: Path) -> None:
    home.use_wal("0.19.0")
    with HermesProcess(home, "0.19.0") as hermes:
        hermes.call("create_session", "s1", "cli")
        hermes.kill()
    home.store.with_name("state.db-shm").unlink()
    backup = make_backup(home.store, doctor)
    with opened(backup, immutable=True) as connection:
        assert connection.execute("SELECT id FROM sessions").fetchall() == [("s1",)]


def test_a_transaction_that_broke_off_is_rolled_back_first(lived: Home, doctor: Path) -> None:
    before = contents(lived.store)
    lived.run("0.22.2", [die_in_transaction(("UPDATE messages SET content = zeroblob(100000)",))])
    assert "-journal" in lived.sidecars()
    backup = make_backup(lived.store, doctor)
    assert contents(backup, immutable=True) == before
    assert contents(lived.store) == before


def test_a_backup_is_of_one_moment_although_hermes_goes_on_writing(home: Home, doctor: Path) -> None:
    """The store takes several steps; after each, a living 0.19.0 appends, and no append waits for the backup."""
    home.use_wal("0.19.0")
    with HermesProcess(home, "0.19.0") as hermes:
        hermes.call("create_session", "s1", "cli")
        for _ in range(12):
            hermes.call("append_message", "s1", "user", "x" * 2 * MIB)
        shares: list[float] = []
        waits: list[float] = []

        def progress(share: float) -> None:
            started = time.monotonic()
            hermes.call("append_message", "s1", "user", "meanwhile")
            waits.append(time.monotonic() - started)
            shares.append(share)

        backup = make_backup(home.store, doctor, progress)
        assert len(shares) >= 3
        assert shares == sorted(shares)
        assert shares[-1] == 1.0
        assert max(waits) < 1
        assert len(hermes.call("get_messages", "s1")) == 12 + len(shares)
    with opened(backup, immutable=True) as connection:
        assert connection.execute("SELECT count(*) FROM messages").get == 12
        assert connection.execute("SELECT count(*) FROM messages WHERE content = 'meanwhile'").get == 0


def test_backups_are_the_owners_alone(lived: Home, doctor: Path) -> None:
    lived.store.chmod(0o644)
    before = os.umask(0)
    try:
        backup = make_backup(lived.store, doctor)
    finally:
        os.umask(before)
    assert backup.stat().st_mode & 0o777 == 0o600
    assert backup.parent.stat().st_mode & 0o777 == 0o700
    assert backup.parent == doctor / "backups"


def test_a_backup_leaves_nothing_else(lived: Home, doctor: Path) -> None:
    backup = make_backup(lived.store, doctor)
    assert backups(doctor) == [backup.name]
    stamp = backup.name.removeprefix("state-").removesuffix(".db")
    assert abs(time.time() - calendar.timegm(time.strptime(stamp, "%Y%m%d-%H%M%S"))) < 60


def test_the_newest_three_are_kept(lived: Home, doctor: Path) -> None:
    made = [make_backup(lived.store, doctor).name for _ in range(6)]
    assert len(set(made)) == 6
    assert set(backups(doctor)) == set(made[-3:])


def test_a_copy_beside_the_store_has_backups_of_its_own(lived: Home, doctor: Path) -> None:
    """They share a folder: neither may push out the other's, and a person must be able to tell them apart."""
    copy = lived.store.with_name("state-20260101-000000.db")
    shutil.copy(lived.store, copy)
    ours = make_backup(lived.store, doctor)
    others = [make_backup(copy, doctor).name for _ in range(4)]
    assert all(re.fullmatch(r"state-20260101-000000-\d{8}-\d{6}(-\d+)?\.db", name) for name in others)
    assert re.fullmatch(r"state-\d{8}-\d{6}\.db", ours.name)
    assert backups(doctor) == sorted([ours.name, *others[-3:]])
    alias = lived.store.with_name("alias.db")
    alias.symlink_to(lived.store)
    assert re.fullmatch(r"state-\d{8}-\d{6}(-\d+)?\.db", make_backup(alias, doctor).name)


def test_a_backup_made_while_the_clock_is_behind_is_not_taken_for_the_oldest(lived: Home, doctor: Path) -> None:
    place = doctor / "backups"
    place.mkdir()
    future = [f"state-2099010{day}-000000.db" for day in range(1, 5)]
    for name in future:
        (place / name).write_bytes(b"")
    backup = make_backup(lived.store, doctor)
    assert backups(doctor) == sorted([backup.name, *future[-2:]])


def test_files_that_are_no_backups_stay(lived: Home, doctor: Path) -> None:
    place = doctor / "backups"
    place.mkdir()
    others = ["state.db", "state-20200101-000000.db.mine", "notes.txt", "state-mine.db"]
    for name in others:
        (place / name).write_bytes(b"")
    made = [make_backup(lived.store, doctor).name for _ in range(4)]
    assert backups(doctor) == sorted(others + made[-3:])


def test_what_a_killed_run_left_is_cleared_away(lived: Home, doctor: Path) -> None:
    place = doctor / "backups"
    place.mkdir()
    (place / "state-20200101-000000.db.partial").write_bytes(b"half")
    backup = make_backup(lived.store, doctor)
    assert backups(doctor) == [backup.name]


def test_being_stopped_leaves_the_older_backups_and_nothing_half_done(lived: Home, doctor: Path) -> None:
    older = [make_backup(lived.store, doctor).name for _ in range(3)]

    def stop(_share: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_backup(lived.store, doctor, stop)
    assert set(backups(doctor)) == set(older)


def test_a_damaged_store_costs_no_older_backup(lived: Home, doctor: Path) -> None:
    older = [make_backup(lived.store, doctor).name for _ in range(3)]
    with opened(lived.store) as connection:
        page = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'messages'").get
        size = connection.pragma("page_size")
    with lived.store.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * size)
    with pytest.raises(BackupError) as error:
        make_backup(lived.store, doctor)
    assert "\n" not in str(error.value)
    assert set(backups(doctor)) == set(older)


def test_damage_that_counting_does_not_see_is_found(lived: Home, doctor: Path) -> None:
    """A leaf of an index: no table is harmed, and the copy is as bad as the store."""
    with opened(lived.store) as connection:
        page = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'idx_messages_session'").get
        size = connection.pragma("page_size")
    with lived.store.open("r+b") as file:
        file.seek((page - 1) * size + 12)
        file.write(b"\xff" * 64)
    with pytest.raises(BackupError, match="does not pass its check"):
        make_backup(lived.store, doctor)
    assert backups(doctor) == []


def test_faults_of_the_content_are_backed_up_as_they_are(lived: Home, doctor: Path) -> None:
    """Rows that break a constraint are what the doctor mends, some day; they make no bad copy."""
    with opened(lived.store) as connection:
        connection.pragma("writable_schema", True)
        connection.execute(
            "UPDATE sqlite_schema SET sql = replace(sql, 'title TEXT', 'title TEXT NOT NULL') WHERE name = 'sessions'"
        )
        connection.pragma("writable_schema", False)
    with opened(lived.store) as connection:
        said = set(connection.execute("PRAGMA quick_check(sessions)").fetchall())
        assert said == {("NULL value in sessions.title",)}
    assert contents(make_backup(lived.store, doctor), immutable=True) == contents(lived.store)


def test_a_disk_that_is_full_from_the_start(lived: Home, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", lived.store.stat().st_size // 2) as disk:
        with pytest.raises(BackupError, match=r"no room .* bytes are needed: free some") as error:
            make_backup(lived.store, disk / "doctor")
        assert "\n" not in str(error.value)
        assert backups(disk / "doctor") == []


def test_a_disk_that_fills_up_meanwhile(home: Home, tmp_path: Path) -> None:
    steps = [call("append_message", "s1", "user", "x" * 2 * MIB) for _ in range(12)]
    home.run("0.22.2", [call("create_session", "small", "cli")])
    with small_disk(tmp_path / "disk", 80 * MIB) as disk:
        doctor = disk / "doctor"
        older = make_backup(home.store, doctor)
        home.run("0.22.2", [call("create_session", "s1", "cli"), *steps])

        def fill(_share: float) -> None:
            with suppress(OSError), (disk / "filler").open("wb", buffering=0) as file:
                while True:
                    file.write(b"x" * MIB)

        with pytest.raises(BackupError, match="no room") as error:
            make_backup(home.store, doctor, fill)
        assert "\n" not in str(error.value)
        assert backups(doctor) == [older.name]
        with opened(older, immutable=True) as connection:
            assert connection.execute("SELECT id FROM sessions").fetchall() == [("small",)]


def test_a_disk_without_room_for_the_index_of_the_log(home: Home, tmp_path: Path) -> None:
    """A store in WAL mode cannot even be read then, and SQLite calls that a disk I/O error."""
    home.run("0.19.0", [call("create_session", "s1", "cli")])
    with opened(home.store) as connection:
        assert connection.pragma("journal_mode") == "wal"
    with small_disk(tmp_path / "disk", 16 * MIB) as disk:
        store = Path(shutil.copy(home.store, disk))
        with suppress(OSError), (disk / "filler").open("wb", buffering=0) as file:
            while True:
                file.write(b"x" * 4096)
        # A little is left, for the folders; an index takes 32 KiB.
        os.truncate(disk / "filler", (disk / "filler").stat().st_size - 4 * 4096)
        with pytest.raises(BackupError, match=r"no room for it on the file system of \S+: free some"):
            make_backup(store, disk / "doctor")
        assert backups(disk / "doctor") == []


def test_a_folder_that_cannot_be_written_to(lived: Home, doctor: Path) -> None:
    (doctor / "backups").write_bytes(b"a file in its place")
    with pytest.raises(BackupError, match="backups: file exists"):
        make_backup(lived.store, doctor)


def test_a_store_that_is_gone(doctor: Path, tmp_path: Path) -> None:
    with pytest.raises(BackupError, match="could not copy the store"):
        make_backup(tmp_path / "state.db", doctor)
    assert not (tmp_path / "state.db").exists()
    assert backups(doctor) == []


@pytest.mark.parametrize("version", ["0.19.0", "0.22.2"])
def test_a_path_with_odd_characters(oracle: None, tmp_path: Path, version: str) -> None:
    home = Home(tmp_path / "what? 100% #1 & more")
    home.run(version, [call("create_session", "s1", "cli")])
    backup = make_backup(home.store, home.path / "doctor")
    with opened(backup, immutable=True) as connection:
        assert connection.execute("SELECT id FROM sessions").fetchall() == [("s1",)]
    assert [path.name for path in tmp_path.iterdir()] == [home.path.name]


@pytest.mark.parametrize(
    ("store_bytes", "free", "mode", "made"),
    [
        (GIB, 100 * GIB, "auto", True),
        (GIB + 1, 100 * GIB, "auto", False),
        (100 * MIB, 216 * MIB, "auto", True),
        (100 * MIB, 216 * MIB - 1, "auto", False),
        (100 * GIB, 0, "always", True),
        (MIB, 100 * GIB, "never", False),
    ],
)
def test_when_a_backup_is_made(store_bytes: int, free: int, mode: str, made: bool) -> None:
    assert will_back_up(store_bytes, free, mode) is made  # type: ignore[arg-type]  # the table holds plain text
