"""Starting up: whose code runs, what is loaded, and streams that are closed or full."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from hermes_doctor import __version__
from tests.cli.support import ROOT, doctor, environment

_SCRIPTS = [name for name in ("doctor", "hermes-state-doctor") if Path(sys.executable).with_name(name).exists()]

_HEAVY = ("apsw", "psutil", "tabulate", "yaml", "sqlite_utils", "checks", "fixes")

#: What `--version` has no need of beside these, and what a scan has none of: each takes milliseconds to import.
_NOT_TO_START = (*_HEAVY, "dataclasses", "difflib", "hashlib", "importlib.metadata", "json", "subprocess", "traceback")
_NOT_TO_SCAN = (
    *("difflib", "email", "fixes", "hashlib", "importlib.metadata", "logging"),
    *("psutil", "sqlite_utils", "tabulate", "traceback"),
    *("hermes_doctor.store.wreck", "hermes_doctor.engine.apply", "hermes_doctor.engine.journal"),
)

_LOADED = f"""
import sys
sys.argv[1:] = sys.argv[1:] or ["--version"]
from hermes_doctor.__main__ import main
code = main()
loaded = [name for name in {_HEAVY!r} if name in sys.modules]
sys.exit(f"loaded: {{loaded}}" if loaded else code)
"""

_HOSTILE = "raise SystemExit('a stranger ran')\n"


@pytest.mark.parametrize("option", ["--version", "--help"])
def test_version_and_help_load_nothing_heavy(tmp_path: Path, option: str) -> None:
    done = doctor(tmp_path, option, command=(sys.executable, "-c", _LOADED))
    assert (done.returncode, done.stderr) == (0, "")
    assert __version__ in done.stdout or "scan" in done.stdout


def test_the_list_of_heavy_modules_is_no_dead_letter(tmp_path: Path) -> None:
    done = doctor(tmp_path, "checks", command=(sys.executable, "-c", _LOADED))
    assert done.returncode == 1
    assert "'apsw', 'tabulate', 'checks'" in done.stderr


def test_a_scan_loads_no_fix(tmp_path: Path, damaged: Path) -> None:
    done = doctor(tmp_path, "scan", damaged, command=(sys.executable, "-c", _LOADED))
    assert "'checks'" in done.stderr
    assert "'fixes'" not in done.stderr


_LOADED_NEEDLESSLY = """
import sys
needless = sys.argv.pop(1).split(",")
from hermes_doctor.__main__ import main
code = main()
sys.exit(", ".join(name for name in needless if name in sys.modules))
"""


def loaded(folder: Path, names: Sequence[str], *arguments: str | Path) -> list[str]:
    """Those of the modules that are loaded once a command has ended."""
    command = (sys.executable, "-c", _LOADED_NEEDLESSLY)
    done = doctor(folder, ",".join(names), *arguments, command=command)
    return done.stderr.strip().split(", ") if done.stderr.strip() else []


def test_a_start_is_quick_since_it_loads_little(tmp_path: Path) -> None:
    assert loaded(tmp_path, _NOT_TO_START, "--version") == []


def test_a_scan_is_quick_since_it_loads_little(tmp_path: Path, damaged: Path) -> None:
    # JSON: for a table tabulate is needed, which brings importlib.metadata along.
    assert loaded(tmp_path, [*_NOT_TO_SCAN, "apsw"], "scan", "--json", damaged) == ["apsw"]


@pytest.mark.skipif(not _SCRIPTS, reason="the doctor is not installed into this environment")
@pytest.mark.parametrize("script", _SCRIPTS)
def test_both_installed_names_run_the_same(tmp_path: Path, damaged: Path, script: str) -> None:
    installed = str(Path(sys.executable).with_name(script))
    done = doctor(tmp_path, "--version", command=(installed,))
    assert done.stdout == f"hermes-state-doctor {__version__}\n"
    assert doctor(tmp_path, "scan", damaged, command=(installed,)).returncode == 1


def _hostile(folder: Path) -> None:
    for package in ("checks", "fixes"):
        (folder / package).mkdir(parents=True)
        (folder / package / "__init__.py").write_text(_HOSTILE)
    for module in ("click", "apsw", "tabulate", "json", "typing", "pathlib", "__future__", "signal", "checks_"):
        (folder / f"{module}.py").write_text(_HOSTILE)


def test_nothing_is_imported_from_the_working_directory(tmp_path: Path, damaged: Path) -> None:
    hostile = tmp_path / "hostile"
    _hostile(hostile)
    done = doctor(tmp_path, "scan", damaged, cwd=hostile)
    assert "a stranger ran" not in done.stderr
    assert done.returncode == 1
    assert "double-encoded" in done.stdout


def test_an_empty_part_of_pythonpath_is_the_working_directory_too(tmp_path: Path, damaged: Path) -> None:
    hostile = tmp_path / "hostile"
    (hostile / "checks").mkdir(parents=True)
    (hostile / "checks" / "__init__.py").write_text(_HOSTILE)
    done = doctor(tmp_path, "scan", damaged, cwd=hostile, extra={"PYTHONPATH": f"{os.pathsep}{ROOT}"})
    assert "a stranger ran" not in done.stderr
    assert done.returncode == 1


def test_its_own_root_may_be_the_working_directory(tmp_path: Path) -> None:
    done = doctor(tmp_path, "checks", cwd=ROOT, extra={"PYTHONPATH": ""})
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("package", ["checks", "fixes"])
def test_an_intruder_is_named_and_not_run(tmp_path: Path, package: str) -> None:
    intruder = tmp_path / "site" / package
    intruder.mkdir(parents=True)
    (intruder / "__init__.py").write_text(_HOSTILE)
    path = os.pathsep.join([str(intruder.parent), str(ROOT)])
    done = doctor(tmp_path, "scan", extra={"PYTHONPATH": path})
    assert done.returncode == 3
    assert done.stdout == ""
    assert str(intruder) in done.stderr
    assert "a stranger ran" not in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_folder_without_init_before_ours_is_no_intruder(tmp_path: Path) -> None:
    # Python prefers a package with an __init__ anywhere on the path to a bare folder.
    (tmp_path / "site" / "checks").mkdir(parents=True)
    path = os.pathsep.join([str(tmp_path / "site"), str(ROOT)])
    assert doctor(tmp_path, "checks", extra={"PYTHONPATH": path}).returncode == 0


def test_a_missing_package_of_ours_is_named(tmp_path: Path) -> None:
    copied = tmp_path / "copied"
    for package in ("hermes_doctor", "checks"):
        shutil.copytree(ROOT / package, copied / package, ignore=shutil.ignore_patterns("__pycache__"))
    # -S: an installed doctor would be found as well.
    command = (sys.executable, "-S", "-m", "hermes_doctor")
    done = doctor(tmp_path, "scan", command=command, extra={"PYTHONPATH": str(copied)})
    assert done.returncode == 3
    assert "'fixes' is missing" in done.stderr
    assert "pip install" in done.stderr


def test_a_package_that_cannot_be_loaded_is_named(tmp_path: Path, damaged: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "apsw.py").write_text("raise ImportError('no such symbol', name='apsw')\n")
    path = os.pathsep.join([str(broken), str(ROOT)])
    done = doctor(tmp_path, "scan", damaged, extra={"PYTHONPATH": path})
    assert done.returncode == 3
    assert "Traceback" not in done.stderr
    assert "apsw" in done.stderr
    assert "pip install" in done.stderr


@pytest.mark.parametrize("option", [[], ["--json"]], ids=["table", "json"])
def test_a_reader_that_goes_away_is_no_defect(tmp_path: Path, damaged: Path, option: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = doctor(tmp_path, "scan", damaged, *option, capture_output=False, stdout=writing, stderr=subprocess.PIPE)
    finally:
        os.close(writing)
    assert done.stderr == ""
    assert done.returncode == 7


def test_a_closed_standard_output_leaves_the_exit_code(tmp_path: Path, damaged: Path) -> None:
    shell = ("sh", "-c", f'exec "{sys.executable}" -m hermes_doctor "$@" >&-', "sh")
    done = doctor(tmp_path, "scan", damaged, command=shell)
    assert (done.returncode, done.stderr) == (1, "")


def test_nothing_is_written_into_what_takes_a_closed_streams_number(tmp_path: Path, damaged: Path) -> None:
    before = damaged.read_bytes()
    shell = ("sh", "-c", f'exec "{sys.executable}" -m hermes_doctor "$@" <&- >&- 2>&-', "sh")
    assert doctor(tmp_path, "scan", damaged, "--json", command=shell).returncode == 1
    assert damaged.read_bytes() == before


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_full_disk_is_the_machines_failure(tmp_path: Path, damaged: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = doctor(tmp_path, "scan", damaged, capture_output=False, stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 3
    assert "no room left" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_an_encoding_without_the_signs_is_survived(tmp_path: Path, damaged: Path) -> None:
    done = doctor(tmp_path, "scan", damaged, "--limit", "1", extra={"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 1
    assert "schema 31 - 18 sessions - " in done.stdout
    assert "... and " in done.stdout
    folder = tmp_path / "漢"
    shutil.copytree(damaged.parent, folder)
    assert "\\u6f22" in doctor(tmp_path, "scan", folder, extra={"PYTHONIOENCODING": "ascii"}).stdout


def test_an_argument_that_is_no_text_is_survived(tmp_path: Path) -> None:
    done = doctor(tmp_path, "scan", "--check", os.fsdecode(b"caf\xe9"))
    assert done.returncode == 2
    assert "there is no check 'caf\\udce9'" in done.stderr


def test_the_tests_environment_hides_the_testers_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERMES_DOCTOR_SCAN_FORMAT", "json")
    assert "HERMES_DOCTOR_SCAN_FORMAT" not in environment(tmp_path)
