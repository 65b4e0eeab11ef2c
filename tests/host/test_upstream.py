"""The commands of hermes that a person is told to type."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from hermes_doctor.host.upstream import for_damage, hermes_command, printable, quoted


@pytest.mark.parametrize(
    "name", ["plain", "with space", "it's", "a$(reboot)b", "new\nline", "\udcff\udcfe", "глава", "\x1b[2J"]
)
def test_what_is_quoted_a_shell_takes_back(name: str) -> None:
    line = quoted(name)
    assert line.isprintable()
    said = subprocess.run(["bash", "-c", f"printf %s {line}"], capture_output=True, check=True).stdout
    assert said == name.encode("utf-8", "surrogateescape")


@pytest.mark.parametrize("name", ["new\nline", "\udcff", "\x1b[2J", "\u202e"])
def test_what_is_shown_is_one_harmless_line(name: str) -> None:
    assert printable("a" + name + "b").isprintable()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "home"
    (path / "profiles" / "work").mkdir(parents=True)
    monkeypatch.setenv("HERMES_HOME", str(path))
    return path


def test_hermes_is_called_so_that_it_means_that_store(home: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    (other / "sessions").mkdir(parents=True)
    assert hermes_command(home / "state.db") == "hermes"
    assert hermes_command(home / "profiles" / "work" / "state.db") == "hermes -p work"
    assert hermes_command(other / "state.db") == f"HERMES_HOME={other} hermes"
    assert hermes_command(home / "state.db.malformed-backup-20260101_000000") is None


@pytest.mark.parametrize(
    ("schema", "upgrade", "repair"),
    [(11, True, True), (14, True, True), (16, True, True), (22, True, True), (25, False, True), (None, False, True)],
)
def test_an_old_hermes_is_upgraded_first(home: Path, schema: int | None, upgrade: bool, repair: bool) -> None:
    """0.13 to 0.16 know neither command, 0.17 to 0.19 (schema 16 to 22) only the first."""
    line = for_damage(home / "state.db", schema)
    assert ("upgrade hermes" in line) == upgrade
    assert ("hermes sessions repair --check-only" in line) == repair
    assert f"hermes sessions recover --source {home / 'state.db'} --inspect-only" in line
    assert line.startswith("upgrade") == (schema in (11, 14))


def test_a_lone_file_is_only_recovered(tmp_path: Path) -> None:
    line = for_damage(tmp_path / "backup.db")
    assert "repair" not in line
    assert "recover --source" in line
