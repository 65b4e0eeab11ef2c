"""What stands in the way of a repair, on real stores, with real holders, owners and disks."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import apsw
import pytest

from hermes_doctor.engine.gates import MARGIN, BackupMode, Planned, Refusal, clock_doubt, refusal
from hermes_doctor.engine.model import ExitCode
from hermes_doctor.engine.scan import ScanOptions, StoreScan, scan_store
from hermes_doctor.host.bundle import Condition
from hermes_doctor.host.homes import StoreRef
from hermes_doctor.store.clocks import newest_time
from hermes_doctor.store.library import judge
from hermes_doctor.store.writing import open_for_writing
from tests.disks import small_disk
from tests.oracle.home import Home
from tests.oracle.process import HermesProcess
from tests.oracle.releases import Release
from tests.oracle.steps import call, clock, die_in_transaction, sql
from tests.oracle.templates import LivedIn
from tests.store.views import view_of

MIB = 1 << 20
NOBODY = 65534
SOME = Planned(rows=10, bytes=160_000, uses_clock=True)
NOW = 1_790_000_000.0

as_root = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs root to give files away and to be another user"
)


def scanned(path: Path, *, now: float | None = None) -> StoreScan:
    scan = scan_store(StoreRef(path, path.parent, "default"), [], ScanOptions(now=now))
    scan.findings.close()
    return scan


def refused(path: Path, planned: Planned = SOME, *, backup: BackupMode = "auto") -> Refusal | None:
    return refusal(scanned(path), planned, backup=backup)


@contextmanager
def as_user(user: int) -> Iterator[None]:
    """This process as another user, as far as files and gates are concerned."""
    os.seteuid(user)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def lived(lived_in: LivedIn) -> Home:
    """A store of the newest release that was lived in, and nobody at it."""
    return lived_in("0.22.2").home


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users can reach: pytest's own cannot be."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_nothing_stands_in_the_way_of_a_store_that_nobody_has_open(lived_in: LivedIn, release: Release) -> None:
    assert refused(lived_in(release).home.store) is None


@pytest.mark.parametrize("version", ["0.19.0", "0.22.2"])
def test_a_holder_is_named_with_what_to_do(home: Home, version: str) -> None:
    with HermesProcess(home, version) as hermes:
        hermes.call("create_session", "s1", "cli")
        stands = refused(home.store)
        assert stands is not None
        assert stands.code is ExitCode.REFUSED
        assert f"(pid {hermes.pid}) has {home.store} open: stop it first" in stands.reason
        assert "hermes gateway stop" in stands.reason
        assert "\n" not in stands.reason
    assert refused(home.store) is None


def test_two_holders_are_both_named(lived: Home) -> None:
    with HermesProcess(lived, "0.22.2") as first, HermesProcess(lived, "0.22.2") as second:
        stands = refused(lived.store)
        assert stands is not None
        assert f"(pid {first.pid})" in stands.reason
        assert f"(pid {second.pid}) have " in stands.reason


@pytest.mark.parametrize(("held", "says"), [("yes", "cannot be seen from here"), ("unknown", "where hermes runs")])
def test_a_holder_that_cannot_be_named_stands_in_the_way_too(lived: Home, held: str, says: str) -> None:
    scan = scanned(lived.store)
    scan.held, scan.holders = held, ()
    stands = refusal(scan, SOME, backup="auto")
    assert stands is not None
    assert stands.code is ExitCode.REFUSED
    assert says in stands.reason


def test_a_store_of_another_encoding_is_not_mended(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    connection = apsw.Connection(str(path))
    connection.execute(
        "PRAGMA encoding = 'UTF-16le'; CREATE TABLE sessions(id TEXT PRIMARY KEY, source, started_at);"
        "CREATE TABLE messages(id INTEGER PRIMARY KEY, session_id, role)"
    )
    connection.close()
    found = refused(path)
    assert found is not None
    assert found.code is ExitCode.REFUSED
    assert "keeps its text as UTF-16le, as no hermes does: it is scanned, but not mended" in found.reason


def test_a_newer_schema_asks_for_a_newer_doctor(lived: Home) -> None:
    lived.run("0.22.2", [sql("UPDATE schema_version SET version = 32")])
    stands = refused(lived.store)
    assert stands is not None
    assert stands.code is ExitCode.REFUSED
    assert "schema 32, this doctor knows up to 31" in stands.reason
    assert "pipx upgrade hermes-state-doctor" in stands.reason


def test_the_newest_known_schema_is_no_obstacle(lived: Home) -> None:
    scan = scanned(lived.store)
    assert scan.schema_version == 31
    assert refusal(scan, SOME, backup="auto") is None


@pytest.mark.parametrize("what", ["truncated", "missing", "not hermes's", "zeros"])
def test_what_cannot_be_read_is_damage_with_the_next_step(lived: Home, what: str) -> None:
    store = lived.store
    if what == "truncated":
        os.truncate(store, 20_000)
    elif what == "zeros":
        store.write_bytes(bytes(8192))
    else:
        store.unlink()
        if what == "not hermes's":
            connection = apsw.Connection(str(store))
            connection.execute("CREATE TABLE other(x)")
            connection.close()
    scan = scanned(store)
    assert scan.reason is not None
    assert scan.next_step is not None
    stands = refusal(scan, SOME, backup="auto")
    assert stands == Refusal(ExitCode.DAMAGED, f"{scan.reason}: {scan.next_step}")


def test_a_store_that_needs_recovery_is_recovered_by_the_work_itself(lived: Home) -> None:
    """Of a hermes that was killed in the middle of a commit; the same for a doctor that was."""
    with view_of(lived.store) as view:
        before = view.rows("SELECT id, content FROM messages ORDER BY id")
    lived.run("0.22.2", [die_in_transaction(("UPDATE messages SET content = zeroblob(100000)",))])
    scan = scanned(lived.store)
    assert scan.condition is Condition.NEEDS_RECOVERY
    assert refusal(scan, SOME, backup="auto") is None
    connection = open_for_writing(lived.store)
    try:
        assert connection.execute("SELECT id, content FROM messages ORDER BY id").fetchall() == before
    finally:
        connection.close()
    assert scanned(lived.store).condition is Condition.READABLE


@as_root
def test_root_does_not_write_to_somebody_elses_store(lived: Home) -> None:
    os.chown(lived.store, NOBODY, NOBODY)
    stands = refused(lived.store)
    assert stands == Refusal(
        ExitCode.REFUSED,
        f"{lived.store} belongs to nobody: run it as nobody: sudo -u nobody doctor fix {lived.store} --apply",
    )
    undo = refusal(scanned(lived.store), SOME, backup="never", command=("undo", "20261129-1"))
    assert undo is not None
    assert undo.reason.endswith(f": sudo -u nobody doctor undo 20261129-1 {lived.store} --apply")


@as_root
def test_an_owner_without_a_name_is_told_by_number(lived: Home) -> None:
    os.chown(lived.store, 54321, 54321)
    stands = refused(lived.store)
    assert stands is not None
    assert "belongs to user 54321" in stands.reason
    assert "sudo -u '#54321' doctor fix" in stands.reason


@as_root
def test_another_user_does_not_write_to_roots_store(lived: Home) -> None:
    scan = scanned(lived.store)
    with as_user(NOBODY):
        stands = refusal(scan, SOME, backup="auto")
    assert stands is not None
    assert "belongs to root: run it as root: sudo -u root doctor fix" in stands.reason


@as_root
def test_the_owner_who_is_not_root_may_write(oracle: None, open_folder: Path) -> None:
    home = Home(open_folder / "home")
    home.run("0.22.2", [call("create_session", "s1", "cli")])
    for path in (home.path, *home.path.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    scan = scanned(home.store)
    with as_user(NOBODY):
        assert refusal(scan, SOME, backup="auto") is None


@as_root
@pytest.mark.parametrize("name", ["state.db", "", "doctor"])
def test_a_place_that_the_owner_cannot_write_to_is_named(oracle: None, open_folder: Path, name: str) -> None:
    home = Home(open_folder / "home")
    home.run("0.22.2", [call("create_session", "s1", "cli")])
    (home.path / "doctor").mkdir(mode=0o700)
    for path in (home.path, *home.path.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    scan = scanned(home.store)
    place = home.path / name
    place.chmod(0o444 if place.is_file() else 0o555)
    with as_user(NOBODY):
        stands = refusal(scan, SOME, backup="auto")
    assert stands is not None
    assert stands.code is ExitCode.REFUSED
    assert f"{place} cannot be written to" in stands.reason
    assert f"chmod u+w {place}" in stands.reason


@as_root
@pytest.mark.parametrize("name", ["state.db", ""])
def test_root_too_keeps_to_what_was_made_read_only(lived: Home, name: str) -> None:
    place = lived.path / name
    place.chmod(0o444 if place.is_file() else 0o555)
    stands = refused(lived.store)
    assert stands is not None
    assert f"{place} cannot be written to" in stands.reason


def test_a_read_only_file_system(oracle: None, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 64 * MIB) as disk:
        home = Home(disk / "home")
        home.run("0.22.2", [call("create_session", "s1", "cli")])
        assert refused(home.store) is None
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        stands = refused(home.store)
        assert stands is not None
        assert stands.code is ExitCode.REFUSED
        assert "cannot be written to" in stands.reason
        assert "remount" in stands.reason


def test_a_file_where_the_doctors_folder_should_be(lived: Home) -> None:
    (lived.path / "doctor").write_text("mine")
    stands = refused(lived.store)
    assert stands is not None
    assert f"{lived.path / 'doctor'}, where the doctor keeps its journal, is not a folder" in stands.reason


def test_an_unfit_sqlite_is_refused_with_what_to_install(lived: Home) -> None:
    scan = scanned(lived.store)
    stands = refusal(scan, SOME, backup="auto", fitness=judge("3.51.2", True, ()))
    assert stands is not None
    assert stands.code is ExitCode.REFUSED
    assert "SQLite 3.51.2" in stands.reason
    assert "pip install --upgrade" in stands.reason
    assert refusal(scan, SOME, backup="auto", fitness=judge("3.51.3", True, ())) is None


def test_the_room_that_is_needed_to_the_byte(lived: Home) -> None:
    """Journal, twice the pages for the log, a margin; and the backup where there will be one."""
    scan = scanned(lived.store)
    size = lived.store.stat().st_size
    without = 3 * SOME.bytes + MARGIN
    assert refusal(scan, SOME, backup="never", free=without) is None
    assert refusal(scan, SOME, backup="always", free=without + size) is None
    for backup, enough in (("never", without), ("always", without + size)):
        stands = refusal(scan, SOME, backup=backup, free=enough - 1)  # type: ignore[arg-type]  # plain text
        assert stands is not None
        assert stands.code is ExitCode.REFUSED
        assert f"{enough:,} bytes are needed, {enough - 1:,} are free" in stands.reason
        assert ("--backup never" in stands.reason) is (backup == "always")


def test_without_room_for_a_backup_auto_goes_without_one(lived: Home) -> None:
    scan = replace(scanned(lived.store))
    assert scan.bundle is not None
    scan.bundle = replace(scan.bundle, size=500 * MIB)
    assert refusal(scan, SOME, backup="auto", free=600 * MIB) is None
    assert refusal(scan, SOME, backup="auto", free=2000 * MIB) is None
    assert refusal(scan, SOME, backup="always", free=501 * MIB) is not None


def test_a_backup_that_leaves_too_little_room_for_the_work(lived: Home) -> None:
    scan = scanned(lived.store)
    assert scan.bundle is not None
    scan.bundle = replace(scan.bundle, size=500 * MIB)
    much = Planned(rows=100_000, bytes=400 * MIB, uses_clock=False)
    stands = refusal(scan, much, backup="auto", free=1300 * MIB)
    assert stands is not None
    assert "--backup never" in stands.reason
    assert refusal(scan, much, backup="never", free=1300 * MIB) is None


def test_what_the_log_still_holds_is_part_of_the_backup(home: Home) -> None:
    home.use_wal("0.19.0")
    with HermesProcess(home, "0.19.0") as hermes:
        hermes.call("create_session", "s1", "cli")
        hermes.kill()
    scan = scanned(home.store)
    assert scan.bundle is not None
    assert scan.bundle.wal_bytes
    enough = 3 * SOME.bytes + MARGIN + scan.bundle.size + scan.bundle.wal_bytes
    assert refusal(scan, SOME, backup="always", free=enough) is None
    assert refusal(scan, SOME, backup="always", free=enough - 1) is not None


def test_a_small_disk_is_seen(oracle: None, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 12 * MIB) as disk:
        home = Home(disk / "home")
        home.run("0.22.2", [call("create_session", "s1", "cli")])
        stands = refused(home.store)
        assert stands is not None
        assert f"too little room on the file system of {home.path}" in stands.reason


def test_a_doctors_folder_on_a_disk_of_its_own_needs_its_own_room(oracle: None, lived: Home, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 12 * MIB) as disk:
        (lived.path / "doctor").symlink_to(disk)
        stands = refused(lived.store)
        assert stands is not None
        assert f"too little room on the file system of {lived.path / 'doctor'}" in stands.reason


def test_the_plan_and_the_work_get_the_same_words(lived: Home) -> None:
    with HermesProcess(lived, "0.22.2"):
        assert refused(lived.store) == refused(lived.store)


def test_nothing_is_made_by_asking(lived: Home) -> None:
    before = sorted(path.name for path in lived.path.rglob("*"))
    assert refused(lived.store) is None
    assert sorted(path.name for path in lived.path.rglob("*")) == before


@pytest.mark.parametrize(
    ("newest", "last_run", "doubted"),
    [
        (None, None, False),
        (NOW, NOW, False),
        (NOW + 600, None, False),
        (NOW + 601, None, True),
        (NOW - 1e6, NOW + 1, True),
        (NOW - 1e6, NOW - 1, False),
    ],
)
def test_when_the_clock_is_doubted(lived: Home, newest: float | None, last_run: float | None, doubted: bool) -> None:
    scan = scanned(lived.store, now=NOW)
    scan.newest_time = newest
    assert (clock_doubt(scan, last_run) is not None) is doubted


def test_a_doubt_says_how_far_off_the_clock_is(lived: Home) -> None:
    scan = scanned(lived.store, now=NOW)
    scan.newest_time = NOW + 3 * 86400 + 5
    assert clock_doubt(scan, None) == (
        "the clock seems to be off: it shows 2026-09-21 14:13 UTC, but the store has a time 3 days ahead of it; "
        "set the clock, then type the same command again"
    )
    scan.newest_time = None
    said = clock_doubt(scan, NOW + 3600)
    assert said is not None
    assert "the doctor's last run on this store is 1 hour ahead of it" in said


def test_a_store_written_by_a_clock_ahead_is_seen(home: Home) -> None:
    home.run("0.22.2", [clock(NOW), call("create_session", "s1", "cli"), call("append_message", "s1", "user", "hi")])
    assert clock_doubt(scanned(home.store, now=NOW + 60), None) is None
    assert clock_doubt(scanned(home.store, now=NOW - 590), None) is None
    said = clock_doubt(scanned(home.store, now=NOW - 7300), None)
    assert said is not None
    assert "2 hours ahead" in said


def newest_of(home: Home) -> float | None:
    with view_of(home.store) as view:
        return newest_time(view)


def test_the_newest_time_of_each_release(home: Home, release: Release) -> None:
    """A message in a chat, a new chat, the end of the first: whichever is newest."""
    acts = [
        call("create_session", "s1", "cli"),
        call("append_message", "s1", "user", "hi"),
        call("create_session", "s2", "cli"),
        call("end_session", "s1", "user_exit"),
    ]
    with HermesProcess(home, release) as hermes:
        for number, act in enumerate(acts):
            at = NOW + 100 * number
            hermes.step(clock(at))
            hermes.step(act)
            newest = newest_of(home)
            assert newest is not None
            assert 0 <= newest - at < 50, act


@pytest.mark.parametrize("version", ["0.13.0", "0.22.2"])
def test_what_can_be_no_time_is_not_the_newest(home: Home, version: str) -> None:
    absurd = ("5e246", "'tomorrow'", "x'ff'", "-1.0", "0")
    steps = [clock(NOW), *(call("create_session", f"s{n}", "cli") for n in range(len(absurd)))]
    steps += [
        sql(f"UPDATE sessions SET started_at = {value}, ended_at = {value} WHERE id = 's{n}'")
        for n, value in enumerate(absurd)
    ]
    home.run(version, steps)
    assert newest_of(home) is None
    home.run(version, [clock(NOW + 50), call("create_session", "sane", "cli")])
    newest = newest_of(home)
    assert newest is not None
    assert 0 <= newest - (NOW + 50) < 50


def test_the_newest_start_is_found_among_many_old_rows(home: Home) -> None:
    """Not only the last rows: an index finds a start or an activity anywhere in the table."""
    with HermesProcess(home, "0.22.2") as hermes:
        hermes.step(clock(NOW))
        for n in range(300):
            hermes.call("create_session", f"s{n}", "cli")
        hermes.step(sql("UPDATE sessions SET started_at = ? WHERE id = 's1'", NOW + 1000))
        assert newest_of(home) == NOW + 1000
        hermes.step(sql("UPDATE sessions SET last_activity_at = ? WHERE id = 's2'", NOW + 2000))
        assert newest_of(home) == NOW + 2000


def test_an_empty_store_has_no_newest_time(home: Home) -> None:
    home.run("0.22.2", [sql("SELECT 1")])
    assert newest_of(home) is None
