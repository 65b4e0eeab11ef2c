"""The store is replaced or cut off, the disk fills up or is slow, rights are lost, the clock goes back: one line."""

from __future__ import annotations

import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import time_machine

from checks import CHECKS
from fixes import FIXES
from hermes_doctor.engine.apply import apply_store
from hermes_doctor.engine.journal import Journal
from hermes_doctor.engine.model import ExitCode
from hermes_doctor.engine.plan import Chosen, StoreFix
from hermes_doctor.engine.scan import ScanOptions
from hermes_doctor.engine.steps import Step
from hermes_doctor.engine.stopping import Stop
from hermes_doctor.engine.undo import undo_store
from hermes_doctor.host.homes import StoreRef
from tests.disks import small_disk
from tests.whole import mishaps
from tests.whole.damaged import damaged
from tests.whole.identical import difference, image_of
from tests.whole.killing import LATER, STORES, agreement, patient
from tests.whole.mishaps import MISHAPS, STEPS, befall
from tests.whole.runner import ROOT, Doctors
from tests.whole.test_obstacles import as_root

pytestmark = pytest.mark.usefixtures("oracle")

OLD, NEW = STORES[:2]

#: Each mishap at one step of each command that writes, as few as will do; the long form (bench/obstacles.py) has all.
CASES = [
    (OLD, "fix", Step.PENDING, LATER, mishaps.replaced),
    (NEW, "fix", Step.BEGUN, LATER, mishaps.replaced),
    (OLD, "fix", Step.MENDED, LATER, mishaps.without_log),
    (OLD, "fix", Step.LOCKED, 1, mishaps.emptied),
    (NEW, "undo", Step.UNDO_BEGUN, 5, mishaps.deleted),
    (OLD, "undo", Step.UNDO_RESTORED, 5, mishaps.halved),
    (NEW, "backup", Step.BACKING_UP, 1, mishaps.replaced),
    (NEW, "compact", Step.COMPACT_CHECKED, 1, mishaps.halved),
    (OLD, "compact", Step.COMPACTED, 1, mishaps.replaced),
    (NEW, "scan", Step.SCANNING, 1, mishaps.deleted),
    (NEW, "scan", Step.SCANNING, 1, mishaps.emptied),
    (NEW, "scan", Step.SCANNED, 1, mishaps.halved),
]


@pytest.fixture(scope="module")
def doctors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doctors]:
    with Doctors(tmp_path_factory.mktemp("doctors")) as running:
        yield running


@pytest.fixture
def templates(shared_folder: Path) -> Path:
    return shared_folder / "damaged"


def test_every_mishap_and_every_command_comes() -> None:
    assert {mishap for *_, mishap in CASES} == set(MISHAPS)
    assert {command for _, command, *_ in CASES} == set(STEPS)
    assert all((step, count) in STEPS[command] for _, command, step, count, _ in CASES)


@pytest.mark.parametrize(("store", "command", "step", "count", "mishap"), CASES)
def test_a_mishap_is_told_and_nothing_is_lost(
    doctors: Doctors,
    templates: Path,
    store: tuple[str, str],
    command: str,
    step: Step,
    count: int,
    mishap: Callable[[Path], None],
) -> None:
    with patient(templates, doctors, *store) as sick:
        befall(sick, command, step, count, mishap)


@pytest.mark.parametrize(
    ("store", "command", "step", "count", "pages"),
    [(NEW, "fix", Step.CHANGESET, LATER, 3), (OLD, "undo", Step.UNDO_BEGUN, 5, 1)],
)
def test_a_disk_that_is_full_at_some_write(
    doctors: Doctors,
    templates: Path,
    tmp_path: Path,
    store: tuple[str, str],
    command: str,
    step: Step,
    count: int,
    pages: int,
) -> None:
    with small_disk(tmp_path / "disk", 64 << 20) as disk, patient(templates, doctors, *store, disk) as sick:
        assert mishaps.fills_up(sick, disk, command, step, count, pages) == 3


@as_root
def test_rights_that_are_lost_midway(doctors: Doctors, templates: Path) -> None:
    with patient(templates, doctors, *NEW) as sick:
        mishaps.loses_its_rights(sick, "fix", Step.APPLIED, LATER)


def test_a_slow_disk_costs_time_and_nothing_else(templates: Path, tmp_path: Path) -> None:
    """Each read takes a millisecond and each sync twenty; a signal is heard within a transaction or two."""
    home = damaged(templates, tmp_path / "home", *NEW)
    before = image_of(home.store)

    def slow_doctor(*how: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.whole.slow_disk", str(home.path), *how]
        return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    working = slow_doctor("signal")
    out, err = working.communicate(timeout=120)
    outcome, transactions, longest = out.split()
    assert (working.returncode, outcome, err) == (int(ExitCode.STOPPED), "stopped", "")
    assert agreement(home) == []
    # Twenty syncs would not fit into it, as many as there are in a handful of transactions.
    assert int(transactions) > 0
    assert float(longest) < 2
    done = slow_doctor()
    out, err = done.communicate(timeout=120)
    assert (done.returncode, out.split()[0], err) == (0, "fixed", "")
    assert agreement(home) == []
    journal = Journal.beside(home.store)
    assert journal is not None
    with journal:
        runs = journal.runs()
    for run in runs:
        undone = undo_store(StoreRef(home.store, home.path, "default"), run, ScanOptions(), apply=True, stop=Stop())
        undone.scan.findings.close()
        assert undone.exit_code is ExitCode.CLEAN
    assert difference(before, image_of(home.store)) == []


def test_a_clock_that_goes_backwards_while_the_doctor_works(templates: Path, tmp_path: Path) -> None:
    """Durations do not come from it; what goes by the clock is refused from then on, and undoing is not."""
    home = damaged(templates, tmp_path / "home", *NEW)
    before = image_of(home.store)
    ref = StoreRef(home.store, home.path, "default")
    started = time.time()

    def fix(name: str, progress: Callable[[Path, str, float | None], None] | None) -> StoreFix:
        checks = [check for check in CHECKS if check.name == name]
        chosen = Chosen(checks, {fix.check: fix for fix in FIXES if fix.check == name}, True)
        done = apply_store(ref, chosen, ScanOptions(), backup="never", stop=Stop(), progress=progress)
        done.close()
        return done

    with time_machine.travel(started, tick=True) as clock:
        done = fix("double-encoded", lambda *_: clock.move_to(started - 86_400, tick=True))
        assert (done.exit_code, done.outcome) == (ExitCode.CLEAN, "fixed")
        assert 0 <= done.holds["median"] <= done.holds["longest"] < 60
        assert 0 <= done.scan.seconds < 60
        refused = fix("lineage-gaps", None)
        assert refused.exit_code is ExitCode.REFUSED
        assert refused.reason is not None
        assert "the clock seems to be off" in refused.reason
        journal = Journal.beside(home.store)
        assert journal is not None
        with journal:
            [run] = journal.runs()
        undone = undo_store(ref, run, ScanOptions(), apply=True, stop=Stop())
        undone.scan.findings.close()
    assert undone.exit_code is ExitCode.CLEAN
    assert difference(before, image_of(home.store)) == []


def test_runs_have_names_of_their_own_and_an_order_whatever_the_clock_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, chances = secrets.token_hex, iter(["aaaa", "aaaa", "aaaa", "bbbb", "cccc"])
    # Others ask for longer ones.
    monkeypatch.setattr(secrets, "token_hex", lambda size: next(chances) if size == 2 else real(size))
    with time_machine.travel(1_790_000_000, tick=False) as clock, Journal(tmp_path) as journal:
        names = [journal.start_run(tmp_path / "state.db", {}, 31, None) for _ in range(2)]
        clock.move_to(1_789_000_000)
        names.append(journal.start_run(tmp_path / "state.db", {}, 31, None))
        assert [name[-4:] for name in names] == ["aaaa", "bbbb", "cccc"]
        assert [run.run for run in journal.runs()] == names[::-1]
