"""Which SQLite hermes writes a WAL store with: found by real processes and a real venv, else nothing is said."""

from __future__ import annotations

import shutil
import sqlite3
import sys
import venv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from checks.sqlite_runtime import CHECK
from hermes_doctor.engine.model import FILES, Finding, Severity
from hermes_doctor.store import hermes_runtime
from tests.checks.support import findings_of
from tests.host.evidence import no_trace_in
from tests.oracle.home import Home
from tests.oracle.process import HermesProcess
from tests.oracle.steps import call, sql

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")

RELEASE = "0.19.0"


def found(home: Home) -> list[Finding]:
    with no_trace_in(home.path):
        return findings_of(home.store, CHECK, home=home.path)


@pytest.fixture(scope="module")
def stores(oracle: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A home in each mode, and a venv."""
    folder = tmp_path_factory.mktemp("stores")
    for mode in ("wal", "delete"):
        made = [call("create_session", "s1", "cli"), sql(f"PRAGMA journal_mode={mode}")]
        Home(folder / mode).run(RELEASE, made)
    venv.create(folder / "venv", symlinks=True)
    return {name: folder / name for name in ("wal", "delete", "venv")}


@pytest.fixture
def home_in(stores: dict[str, Path], tmp_path: Path) -> Callable[..., Home]:
    def make(mode: str, *, installed: bool) -> Home:
        home = Home(tmp_path / f"{mode}-{installed}")
        shutil.copytree(stores[mode], home.path, dirs_exist_ok=True)
        if installed:
            (home.path / "hermes-agent").mkdir()
            (home.path / "hermes-agent" / "venv").symlink_to(stores["venv"])
        return home

    return make


@dataclass(frozen=True)
class Case:
    """A closed home; ``faulty``: whether its Python's SQLite counts as one with the bug."""

    mode: str
    installed: bool
    faulty: bool
    told: bool


CASES = [
    Case("wal", installed=True, faulty=True, told=True),
    Case("wal", installed=True, faulty=False, told=False),
    Case("wal", installed=False, faulty=True, told=False),
    Case("delete", installed=True, faulty=True, told=False),
]


def right(home_in: Callable[..., Home], monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each case whether the check says what it should."""
    verdicts = []
    for case in CASES:
        monkeypatch.setattr(hermes_runtime, "has_wal_reset_bug", lambda version, case=case: case.faulty)
        home = home_in(case.mode, installed=case.installed)
        assert home.journal_mode() == case.mode
        verdicts.append(bool(findings_of(home.store, CHECK, home=home.path)) is case.told)
        shutil.rmtree(home.path)
    return verdicts


def test_only_a_faulty_sqlite_of_a_hermes_that_was_found_is_told(
    home_in: Callable[..., Home], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert all(right(home_in, monkeypatch))


@pytest.mark.parametrize("wrong", ["the mode is not looked at", "the doctor's Python counts", "every version counts"])
def test_a_wrong_check_is_caught(wrong: str, home_in: Callable[..., Home], monkeypatch: pytest.MonkeyPatch) -> None:
    if wrong == "the mode is not looked at":
        monkeypatch.setattr(hermes_runtime, "_is_in_wal_mode", lambda view: True)
    elif wrong == "the doctor's Python counts":
        monkeypatch.setattr(hermes_runtime, "installed_python", lambda home: Path(sys.executable))
    else:
        monkeypatch.setattr(hermes_runtime.Runtime, "faulty", True)
    assert not all(right(home_in, monkeypatch))


def test_the_installed_hermes_is_named_with_what_to_type(
    home_in: Callable[..., Home], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hermes_runtime, "has_wal_reset_bug", lambda version: True)
    home = home_in("wal", installed=True)
    [finding] = found(home)
    python = home.path / "hermes-agent" / "venv" / "bin" / "python"
    assert (finding.table, finding.key, finding.severity) == (FILES, "state.db", Severity.WARNING)
    assert f"{python} -c 'import sqlite3; print(sqlite3.sqlite_version)'" in finding.summary
    assert finding.detail == {"pids": [], "pythons": [str(python)], "sqlite": [sqlite3.sqlite_version]}


@pytest.mark.parametrize("faulty", [True, False])
def test_a_living_hermes_is_told_with_its_pid(
    home_in: Callable[..., Home], monkeypatch: pytest.MonkeyPatch, faulty: bool
) -> None:
    """What it runs in counts, and not what else is installed."""
    judged: list[tuple[int, ...]] = []

    def judge(version: tuple[int, ...]) -> bool:
        judged.append(version)
        return faulty

    monkeypatch.setattr(hermes_runtime, "has_wal_reset_bug", judge)
    monkeypatch.setattr(hermes_runtime, "installed_python", lambda home: pytest.fail("was looked for"))
    home = home_in("wal", installed=False)
    with HermesProcess(home, RELEASE) as process:
        findings = found(home)
        assert [each.detail["pids"] for each in findings] == ([[str(process.pid)]] if faulty else [])
        assert all(f"(pid {process.pid}) runs in " in each.summary for each in findings)
    assert set(judged) == {sqlite3.sqlite_version_info}
