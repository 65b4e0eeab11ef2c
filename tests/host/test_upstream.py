"""The commands that a person is told to type."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from hermes_doctor.host.upstream import for_damage, hermes_command, printable, quoted, rescue_inspection


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
    ("schema", "knows"), [(11, False), (14, False), (16, False), (22, False), (25, True), (31, True), (None, True)]
)
def test_a_backup_comes_first_then_a_rescue(home: Path, schema: int | None, knows: bool) -> None:
    """Hermes's own command beside it came with 0.20 (schema 25)."""
    store = home / "state.db"
    rescue = f"doctor rescue {store} {store}.rescued --inspect-only"
    recover = f", or hermes sessions recover --source {store} --inspect-only (hermes 0.20 or newer)"
    line = for_damage(store, schema)
    assert line == f"look for a sound backup first (doctor scan BACKUP); else: {rescue}{recover if knows else ''}"


@pytest.mark.parametrize("name", ["backup.db", "it's a copy"])
def test_what_is_said_of_a_rescue_a_shell_can_take(tmp_path: Path, name: str) -> None:
    said = f"set -- {rescue_inspection(tmp_path / name)}; printf '%s\\n' \"$@\""
    words = subprocess.run(["bash", "-c", said], capture_output=True, text=True, check=True).stdout.splitlines()
    assert words == ["doctor", "rescue", f"{tmp_path / name}", f"{tmp_path / name}.rescued", "--inspect-only"]
