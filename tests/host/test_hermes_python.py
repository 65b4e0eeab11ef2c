"""Which Python hermes runs in, by its processes and its installations; which SQLite that has; whom the doctor runs."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from hermes_doctor.host import hermes_python
from hermes_doctor.host.hermes_python import (
    has_wal_reset_bug,
    installed_python,
    is_trusted,
    linked_by,
    linked_by_process,
    python_of_process,
)
from tests.host.waiting import waiting

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


@pytest.mark.parametrize(
    ("version", "faulty"),
    [
        ("3.6.23", False),
        ("3.7.0", True),
        ("3.40.1", True),
        ("3.44.5", True),
        ("3.44.6", False),
        ("3.45.0", True),
        ("3.50.6", True),
        ("3.50.7", False),
        ("3.51.0", True),
        ("3.51.2", True),
        ("3.51.3", False),
        ("3.52.0", False),
        ("4.0.0", False),
    ],
)
def test_which_versions_have_the_bug(version: str, faulty: bool) -> None:
    assert has_wal_reset_bug(tuple(map(int, version.split(".")))) is faulty


# --- asking a Python -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def linked_venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A venv whose python is a link, as hermes's installers make it."""
    folder = tmp_path_factory.mktemp("linked") / "venv"
    venv.create(folder, symlinks=True)
    return folder


@pytest.fixture(scope="module")
def copied_venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A venv with a Python of its own, whose bits can be changed."""
    folder = tmp_path_factory.mktemp("copied") / "venv"
    venv.create(folder, symlinks=False)
    return folder


def test_a_python_is_asked_itself(linked_venv: Path) -> None:
    python = linked_venv / "bin" / "python"
    assert python.is_symlink()
    linked = linked_by(python)
    assert linked is not None
    assert linked.version == sqlite3.sqlite_version_info
    assert linked.text == sqlite3.sqlite_version


def test_its_packages_are_not_run(linked_venv: Path, tmp_path: Path) -> None:
    [packages] = linked_venv.glob("lib/python*/site-packages")
    (packages / "hook.pth").write_text(f"import pathlib; pathlib.Path({str(tmp_path / 'ran')!r}).touch()\n")
    subprocess.run([linked_venv / "bin" / "python", "-c", ""], check=True)
    assert (tmp_path / "ran").exists(), "the trap works"
    (tmp_path / "ran").unlink()
    hermes_python._ask.cache_clear()
    assert linked_by(linked_venv / "bin" / "python") is not None
    assert not (tmp_path / "ran").exists()
    (packages / "hook.pth").unlink()


@pytest.mark.parametrize(
    ("where", "mode", "asked"),
    [
        ("bin/python", 0o755, True),
        ("bin/python", 0o757, False),
        ("bin", 0o757, False),
        ("bin", 0o1777, True),
        (".", 0o757, False),
    ],
)
def test_what_others_can_change_is_not_run(copied_venv: Path, where: str, mode: int, asked: bool) -> None:
    hermes_python._ask.cache_clear()
    python = copied_venv / "bin" / "python"
    assert not python.is_symlink()
    place = copied_venv / where
    before = place.stat().st_mode
    place.chmod(mode)
    try:
        assert (linked_by(python) is not None) is asked
    finally:
        place.chmod(before)


def test_what_a_strange_group_can_change_is_not_trusted(tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.touch(0o700)
    program.chmod(0o775)
    assert is_trusted(program)
    if os.geteuid() == 0:
        os.chown(program, -1, 54321)
        assert not is_trusted(program)
        os.chown(program, 54321, 0)
        assert not is_trusted(program)


def test_what_is_no_python_is_not_run(tmp_path: Path) -> None:
    script = tmp_path / "python"
    script.write_text(f"#!/bin/sh\ntouch {tmp_path / 'ran'}\necho 3.40.1\n")
    script.chmod(0o755)
    assert linked_by(script) is None
    assert not (tmp_path / "ran").exists()
    assert linked_by(tmp_path / "missing") is None
    assert linked_by(Path(shutil.which("true") or "/bin/true")) is None


# --- processes -----------------------------------------------------------------------------------------------------


def test_a_process_is_known_by_what_it_has_mapped(linked_venv: Path) -> None:
    with waiting("import sqlite3", python=linked_venv / "bin" / "python") as pid:
        answer = linked_by_process(pid)
        assert answer is not None
        python, linked = answer
        assert python.samefile(sys.executable)
        assert linked.version == sqlite3.sqlite_version_info


def test_another_sqlite_than_its_pythons_is_not_judged_by_that() -> None:
    with waiting("import apsw") as pid:
        assert python_of_process(pid) is not None
        assert linked_by_process(pid) is None


def test_a_process_that_is_no_python_or_one_that_was_replaced_is_left(copied_venv: Path, tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        assert linked_by_process(process.pid) is None
        process.kill()
    assert linked_by_process(process.pid) is None
    folder = tmp_path / "venv"
    shutil.copytree(copied_venv, folder, symlinks=True)
    python = folder / "bin" / "python"
    with waiting("import sqlite3", python=python) as pid:
        assert linked_by_process(pid) is not None
        shutil.copy(python, folder / "new")
        (folder / "new").rename(python)
        assert python_of_process(pid) is None
        assert linked_by_process(pid) is None


# --- installations -------------------------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This host's home, and an empty folder on the PATH."""
    home = tmp_path / "home"
    (home / "profiles" / "work").mkdir(parents=True)
    (tmp_path / "path").mkdir()
    monkeypatch.setenv("HERMES_HOME", str(home))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    return home


def launcher(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    file.chmod(0o755)
    return file


PYTHON = "/opt/tools/hermes agent/bin/python3"
LAUNCHERS = {
    "pip": ("#!/opt/hermes/bin/python\nimport sys\n", "/opt/hermes/bin/python"),
    "pip, with options": ("#!/opt/hermes/bin/python3.11 -I\n", "/opt/hermes/bin/python3.11"),
    "pip, a path with spaces": (f"#!/bin/sh\n'''exec' \"{PYTHON}\" \"$0\" \"$@\"\n' '''\nimport sys\n", PYTHON),
    "uv": (f"#!/bin/sh\n'''exec' '{PYTHON}' \"$0\" \"$@\"\n' '''\nimport sys\n", PYTHON),
    "hermes's own": (f"#!/bin/sh\n# starts it\nexec '{PYTHON}' -I -c 'import os' \"$@\"\n", PYTHON),
    "bash by env": (f"#!/usr/bin/env bash\nunset PYTHONPATH\nexec '{PYTHON}' \"$@\"\n", PYTHON),
    "python by env": ("#!/usr/bin/env python3\n", None),
    "by a variable": ('#!/bin/sh\nexec "$PYTHON" -m hermes\n', None),
    "a program": ("\x7fELF", None),
    "nothing": ("", None),
    "unbalanced": ("#!/bin/sh\nexec 'python\n", None),
}


@pytest.mark.parametrize(("text", "python"), LAUNCHERS.values(), ids=LAUNCHERS)
def test_a_launcher_says_its_python(home: Path, tmp_path: Path, text: str, python: str | None) -> None:
    launcher(tmp_path / "path" / "hermes", text)
    expected = None if python is None else Path(python)
    assert installed_python(home) == expected
    assert installed_python(home / "profiles" / "work") == expected


def test_launchers_are_followed_and_links_too(home: Path, tmp_path: Path) -> None:
    inner = launcher(tmp_path / "inner" / "hermes", f"#!/bin/sh\nexec '{PYTHON}' \"$@\"\n")
    outer = launcher(tmp_path / "outer" / "hermes", f'#!/bin/sh\nexec {inner} "$@"\n')
    (tmp_path / "path" / "hermes").symlink_to(outer)
    assert installed_python(home) == Path(PYTHON)
    launcher(inner, f'#!/bin/sh\nexec {outer} "$@"\n')
    assert installed_python(home) is None


@pytest.mark.parametrize("name", ["venv", ".venv"])
def test_the_installers_venv_is_found(home: Path, linked_venv: Path, name: str) -> None:
    assert installed_python(home) is None
    (home / "hermes-agent").mkdir()
    (home / "hermes-agent" / name).symlink_to(linked_venv)
    assert installed_python(home) == home / "hermes-agent" / name / "bin" / "python"
    assert installed_python(home / "profiles" / "work") == installed_python(home)


def test_the_command_on_the_path_is_not_another_homes(home: Path, tmp_path: Path) -> None:
    launcher(tmp_path / "path" / "hermes", "#!/opt/hermes/bin/python\n")
    other = tmp_path / "other"
    other.mkdir()
    assert installed_python(other) is None
    assert installed_python(home) is not None
