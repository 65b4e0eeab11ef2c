"""Fixtures that run the real releases, and the guard over Python's own sqlite3."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from tests.bytecode import keep_bytecode
from tests.oracle import wheels
from tests.oracle.home import Home
from tests.oracle.releases import RELEASES, Release
from tests.oracle.templates import LivedIn
from tests.places import ON_DISK, choose_memory

NOT_RUN = "needs the released wheels of hermes-agent"

# Before pytest makes its first folder and starts its parallel workers, who inherit both.
choose_memory()
keep_bytecode()

_opened_by_sqlite3: list[str] = []


def _watch(event: str, args: tuple[Any, ...]) -> None:
    """Audit hook: a state.db is opened through APSW, never through Python's sqlite3 (an older SQLite)."""
    if event != "sqlite3.connect":
        return
    text = os.fsdecode(args[0]) if isinstance(args[0], (str, bytes, os.PathLike)) else ""
    if Path(text.removeprefix("file:").split("?")[0]).name == "state.db":
        _opened_by_sqlite3.append(text)


sys.addaudithook(_watch)


@pytest.fixture(autouse=True)
def _python_sqlite3_stays_away() -> Iterator[None]:
    """Fails a test in whose process Python's sqlite3 opened a state.db, errors swallowed or not."""
    _opened_by_sqlite3.clear()
    yield
    assert not _opened_by_sqlite3, f"Python's own sqlite3 opened {_opened_by_sqlite3}"


@pytest.fixture(autouse=True)
def _signals_are_heard_again() -> Iterator[None]:
    """A command that ends takes no notice of further signals; programs started by later tests would inherit that."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="session", autouse=True)
def _testers_state_folder_stays_as_it_is(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Every scan is kept in the state folder of the user who runs the doctor: not in the tester's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """The test's own folder: in memory as a rule, on the disk where that is what is looked at."""
    if request.path.stem not in ON_DISK:
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="doctor-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of this test run that all its parallel workers share."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session")
def oracle(shared_folder: Path) -> None:
    """The released wheels are there. Without a network: a loud skip, in CI a failure."""
    verdict = shared_folder / "wheels.txt"
    with FileLock(shared_folder / "wheels.lock"):
        # Asked once per run: every worker trying anew would only repeat the timeouts.
        if not verdict.exists():
            try:
                wheels.ensure()
                verdict.write_text("")
            except wheels.WheelsUnavailableError as error:
                verdict.write_text(str(error))
    if reason := verdict.read_text():
        if os.environ.get("CI"):
            pytest.fail(f"CI {NOT_RUN}: {reason}")
        pytest.skip(f"{NOT_RUN}: {reason}")


@pytest.fixture(params=RELEASES, ids=str)
def release(request: pytest.FixtureRequest, oracle: None) -> Release:
    """Each of the eleven releases in turn; narrow it with ``@pytest.mark.parametrize("release", ...)``."""
    chosen: Release = request.param
    return chosen


@pytest.fixture
def home(oracle: None, tmp_path: Path) -> Home:
    """A fresh, empty Hermes home."""
    return Home(tmp_path / "home")


@pytest.fixture
def make_home(oracle: None, tmp_path: Path) -> Callable[[str], Home]:
    """Makes as many fresh homes as a test wants, by name."""
    return lambda name: Home(tmp_path / name)


@pytest.fixture
def lived_in(oracle: None, shared_folder: Path, tmp_path: Path) -> LivedIn:
    """Private copies of homes that were lived in: ``lived_in("0.19.0")``, ``lived_in(*CHAINS[0])``."""
    return LivedIn(shared_folder / "lived-in", tmp_path)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begins with the tests that mostly wait, so that others fill the time."""
    waiting = ("test_living_hermes", "test_debians_cron_runs_it")
    items.sort(key=lambda item: not any(name in item.nodeid for name in waiting))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says how many tests did not run for want of the real releases."""
    skipped = [report for report in terminalreporter.stats.get("skipped", ()) if NOT_RUN in str(report.longrepr)]
    if skipped:
        terminalreporter.write_line(
            f"NOT RUN: {len(skipped)} tests against real releases of hermes-agent (no wheels)",
            red=True,
            bold=True,
        )
