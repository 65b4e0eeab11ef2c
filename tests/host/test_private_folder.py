"""Private copies go with their doctor, whatever ends it; nothing else that is named alike does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hermes_doctor.host.private_folder import PREFIX, PrivateFolder, sweep
from tests.whole.runner import ROOT

_KILLED = """
import os, signal, sys
from pathlib import Path
from hermes_doctor.host.private_folder import PrivateFolder
folder = PrivateFolder(Path(sys.argv[1]))
(folder.path / "state.db").write_text("private")
(folder.path / "deeper").mkdir()
if sys.argv[2:]:
    print(folder.path, flush=True)
    sys.stdin.readline()
os.kill(os.getpid(), signal.SIGKILL)
"""


def _doctor(place: Path, *how: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _KILLED, str(place), *how]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_it_is_private_and_goes_when_it_is_closed(tmp_path: Path) -> None:
    with PrivateFolder(tmp_path) as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "state.db").write_text("private")
        sweep(tmp_path)
        assert (folder / "state.db").exists()
    assert list(tmp_path.iterdir()) == []


def test_it_goes_with_a_process_that_never_closes_it(tmp_path: Path) -> None:
    command = f"from pathlib import Path\nfrom {PrivateFolder.__module__} import PrivateFolder\n"
    command += f"folder = PrivateFolder(Path({str(tmp_path)!r}))\n(folder.path / 'x').touch()\nprint(folder.path.name)"
    done = subprocess.run([sys.executable, "-c", command], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(PREFIX)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="folders cannot be locked there, and nothing is swept")
def test_what_a_killed_doctor_left_is_swept_and_what_a_living_one_has_stays(tmp_path: Path) -> None:
    _doctor(tmp_path).communicate(timeout=60)
    (dead,) = tmp_path.iterdir()
    living = _doctor(tmp_path, "waits")
    try:
        assert living.stdout is not None
        held = Path(living.stdout.readline().strip())
        sweep(tmp_path)
        assert set(tmp_path.iterdir()) == {held} != {dead}
        assert (held / "state.db").exists()
    finally:
        living.communicate("\n", timeout=60)
    sweep(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="folders cannot be locked there, and nothing is swept")
def test_what_is_only_named_alike_stays(tmp_path: Path) -> None:
    number = "0123456789abcdef"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    (elsewhere / "mine").touch()
    place = tmp_path / "place"
    place.mkdir()
    (place / f"{PREFIX}notes").mkdir(mode=0o700)
    (place / f"{PREFIX}{number}").symlink_to(elsewhere)
    (place / f"{PREFIX}{number[::-1]}").touch()
    (place / f"{PREFIX}{'1' * 16}").mkdir()
    (place / f"{PREFIX}{'1' * 16}").chmod(0o755)
    names = sorted(path.name for path in place.iterdir())
    sweep(place)
    assert sorted(path.name for path in place.iterdir()) == names
    assert (elsewhere / "mine").exists()
    sweep(tmp_path / "nowhere")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs root to give a folder away")
def test_what_is_somebody_elses_stays(tmp_path: Path) -> None:
    _doctor(tmp_path).communicate(timeout=60)
    (dead,) = tmp_path.iterdir()
    os.chown(dead, 65534, 65534)
    sweep(tmp_path)
    assert (dead / "state.db").exists()
