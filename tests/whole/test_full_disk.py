"""A disk that fills up while a doctor works: one clear line, nothing lost, and with room the same command finishes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import apsw
import pytest

from checks import CHECKS
from fixes import FIXES
from hermes_doctor.engine.apply import apply_store
from hermes_doctor.engine.backup import BackupMode
from hermes_doctor.engine.cure import Fix, Mending
from hermes_doctor.engine.journal import Journal
from hermes_doctor.engine.model import ExitCode, Finding
from hermes_doctor.engine.plan import Chosen, StoreFix
from hermes_doctor.engine.scan import ScanOptions
from hermes_doctor.engine.stopping import Stop
from hermes_doctor.engine.undo import StoreUndo, undo_store
from hermes_doctor.host.homes import StoreRef
from tests.disks import small_disk
from tests.oracle.home import Home
from tests.oracle.steps import sql
from tests.whole.damaged import damaged
from tests.whole.identical import difference, image_of
from tests.whole.killing import STORES, agreement, journal, soundness
from tests.whole.support import doctor, fingerprint

pytestmark = pytest.mark.usefixtures("oracle")

MIB = 1 << 20
ROOM = 64 * MIB
#: The row at whose mending the disk is found full: in the middle of a run, among several of one transaction.
FATEFUL = 14


@dataclass
class Sick:
    """A damaged home on a small disk, the doctor's folder on another one."""

    home: Home
    store_disk: Path
    records_disk: Path

    @property
    def ref(self) -> StoreRef:
        return StoreRef(self.home.store, self.home.path, "default")

    def fix(
        self,
        *,
        at_row: Callable[[], None] | None = None,
        at_backup: Callable[[float], None] | None = None,
        backup: BackupMode = "never",
    ) -> StoreFix:
        """Mend all of it; ``at_row`` is called at the fateful row, ``at_backup`` while the backup is made."""
        seen = 0

        def counting(fix: Fix) -> Fix:
            def mend(mending: Mending, finding: Finding) -> None:
                nonlocal seen
                seen += 1
                if seen == FATEFUL and at_row is not None:
                    at_row()
                fix.mend(mending, finding)

            return replace(fix, mend=mend)

        def progress(_path: Path, step: str, share: float | None) -> None:
            if step == "backing up" and at_backup is not None:
                at_backup(share or 0.0)

        chosen = Chosen(CHECKS, {fix.check: counting(fix) for fix in FIXES}, True)
        done = apply_store(self.ref, chosen, ScanOptions(), backup=backup, stop=Stop(), progress=progress)
        done.scan.findings.close()
        return done

    def undo(self, run: str) -> StoreUndo:
        records = Journal.beside(self.home.store)
        assert records is not None
        with records:
            past = records.run(run)
        assert past is not None
        undone = undo_store(self.ref, past, ScanOptions(), apply=True, stop=Stop())
        undone.scan.findings.close()
        return undone

    def finish_and_take_back(self, before: object) -> None:
        """With room again, the same command does the rest, and all of it can be taken back."""
        done = self.fix()
        assert (done.outcome, done.exit_code, done.left) == ("fixed", ExitCode.CLEAN, 0)
        assert agreement(self.home) == []
        for (run,) in journal(self.home, "SELECT run FROM runs ORDER BY at DESC, run DESC"):
            assert self.undo(run).exit_code is ExitCode.CLEAN
        assert difference(before, image_of(self.home.store)) == []  # type: ignore[arg-type]  # an Image


def fill(disk: Path) -> None:
    """Use up the last byte of a disk."""
    with (disk / "filler").open("ab", buffering=0) as filler:
        while (free := os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize) > 0:
            os.posix_fallocate(filler.fileno(), filler.seek(0, os.SEEK_END), free)


def free(*disks: Path) -> None:
    """Take away what filled them."""
    for disk in disks:
        (disk / "filler").unlink(missing_ok=True)


@pytest.fixture
def sick(tmp_path: Path, shared_folder: Path, request: pytest.FixtureRequest) -> Iterator[Sick]:
    version, mode = request.param
    with ExitStack() as disks:
        store_disk = disks.enter_context(small_disk(tmp_path / "store", ROOM))
        records_disk = disks.enter_context(small_disk(tmp_path / "records", ROOM))
        made = damaged(shared_folder / "damaged", tmp_path / "made", version, mode)
        # Closed in good order: the log that a killed process left would have room for what the doctor writes.
        made.run(version, [sql("SELECT 1")])
        assert made.sidecars() == set()
        shutil.copytree(made.path, store_disk / "home", symlinks=True)
        home = Home(store_disk / "home")
        (records_disk / "doctor").mkdir(mode=0o700)
        (home.path / "doctor").symlink_to(records_disk / "doctor")
        yield Sick(home, store_disk, records_disk)
        free(store_disk, records_disk)


both_modes = pytest.mark.parametrize("sick", STORES[:2], indirect=True, ids="-".join)


def assert_one_line(reason: str | None) -> str:
    assert reason is not None
    assert "\n" not in reason
    return reason


@both_modes
@pytest.mark.parametrize("which", ["journal", "store"])
def test_full_in_the_middle_of_the_work(sick: Sick, which: str) -> None:
    before, sound = image_of(sick.home.store), soundness(sick.home)
    disk = sick.records_disk if which == "journal" else sick.store_disk
    broken = sick.fix(at_row=lambda: fill(disk))
    assert (broken.outcome, broken.exit_code) == ("failed", ExitCode.FAILED)
    said = assert_one_line(broken.reason)
    assert said.startswith("the disk is full: what was committed stands and can be undone; free some room")
    free(disk)
    assert soundness(sick.home) == sound
    assert agreement(sick.home, stopped=True) == []
    applied = journal(sick.home, "SELECT count(*) FROM changesets WHERE state = 'applied'")
    assert applied[0][0] >= 5
    # Nothing of the transaction that found no room is in the store: it holds just what the journal says.
    assert difference(before, image_of(sick.home.store)) != []
    sick.finish_and_take_back(before)


@both_modes
def test_what_was_committed_can_be_undone_without_finishing(sick: Sick) -> None:
    before = image_of(sick.home.store)
    broken = sick.fix(at_row=lambda: fill(sick.store_disk))
    assert broken.exit_code is ExitCode.FAILED
    assert broken.run is not None
    free(sick.store_disk)
    assert sick.undo(broken.run).exit_code is ExitCode.CLEAN
    assert difference(before, image_of(sick.home.store)) == []


@both_modes
def test_full_before_undoing_is_seen_beforehand(sick: Sick) -> None:
    done = sick.fix()
    assert done.run is not None
    fill(sick.store_disk)
    after = image_of(sick.home.store)
    refused = sick.undo(done.run)
    assert refused.exit_code is ExitCode.REFUSED
    assert "too little room" in assert_one_line(refused.reason)
    assert difference(after, image_of(sick.home.store)) == []


@both_modes
def test_full_when_the_first_record_is_written(sick: Sick) -> None:
    """The journal has been made, the backup too; then there is no room for a single row of it."""
    before = image_of(sick.home.store)
    broken = sick.fix(backup="always", at_backup=lambda share: fill(sick.records_disk) if share == 1 else None)
    assert (broken.outcome, broken.exit_code, broken.run) == ("failed", ExitCode.FAILED, None)
    assert assert_one_line(broken.reason).startswith("the disk is full: ")
    assert difference(before, image_of(sick.home.store)) == []
    free(sick.records_disk)
    sick.finish_and_take_back(before)


@both_modes
def test_full_when_the_first_transaction_is_committed(sick: Sick) -> None:
    """The journal has it as pending; the store has nothing of it, and so says the next run."""
    before = image_of(sick.home.store)
    broken = sick.fix(backup="always", at_backup=lambda share: fill(sick.store_disk) if share == 1 else None)
    assert (broken.outcome, broken.exit_code) == ("failed", ExitCode.FAILED)
    assert assert_one_line(broken.reason).startswith("the disk is full: ")
    assert broken.count("applied") == 0
    free(sick.store_disk)
    assert difference(before, image_of(sick.home.store)) == []
    assert journal(sick.home, "SELECT count(*) FROM changesets WHERE state = 'applied'") in ([], [(0,)])
    sick.finish_and_take_back(before)


@both_modes
def test_full_in_the_middle_of_the_backup(sick: Sick) -> None:
    connection = apsw.Connection(str(sick.home.store))
    connection.execute("CREATE TABLE ballast(id INTEGER PRIMARY KEY, content BLOB)")
    for _ in range(4):
        connection.execute("INSERT INTO ballast(content) VALUES (zeroblob(4000000))")
    connection.close()
    before = image_of(sick.home.store)
    shares: list[float] = []

    def fill_once(share: float) -> None:
        shares.append(share)
        if len(shares) == 1:
            fill(sick.records_disk)

    broken = sick.fix(backup="always", at_backup=fill_once)
    assert 0 < shares[0] < 1
    assert (broken.outcome, broken.exit_code, broken.run) == ("refused", ExitCode.REFUSED, None)
    said = assert_one_line(broken.reason)
    assert "no backup could be made" in said
    assert "nothing was changed" in said
    assert list((sick.home.path / "doctor" / "backups").iterdir()) == []
    assert difference(before, image_of(sick.home.store)) == []
    free(sick.records_disk)
    done = sick.fix(backup="always")
    assert (done.outcome, done.exit_code) == ("fixed", ExitCode.CLEAN)
    assert done.backup is not None
    assert done.backup.exists()


@both_modes
@pytest.mark.parametrize("which", ["journal", "store"])
def test_too_little_room_is_seen_beforehand(sick: Sick, which: str, tmp_path: Path) -> None:
    """By the installed command: exit 5 before anything is written, and the plan says so, too."""
    fill(sick.records_disk if which == "journal" else sick.store_disk)
    before = fingerprint(sick.home.path), fingerprint(sick.records_disk)
    state = {"XDG_STATE_HOME": str(tmp_path / "state")}
    command = ("fix", sick.home.path, "--unsafe", "--backup", "never")
    refused = doctor(*command, "--apply", "--yes", environment=state)
    assert refused.returncode == 5, (refused.stdout, refused.stderr)
    assert "too little room" in refused.stdout + refused.stderr
    plan = doctor(*command, environment=state)
    assert plan.returncode == 1
    assert "too little room" in plan.stdout
    assert (fingerprint(sick.home.path), fingerprint(sick.records_disk)) == before
    free(sick.records_disk, sick.store_disk)
    done = doctor(*command, "--apply", "--yes", environment=state)
    assert done.returncode == 0, (done.stdout, done.stderr)
