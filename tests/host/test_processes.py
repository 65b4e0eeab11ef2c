"""Whether a process lives: real ones, of this user and of another, and numbers that no process has."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from hermes_doctor.host.processes import host_name, pid_namespace, process_began_at, process_exists

TICKS = 100


def test_a_living_process_exists_until_it_is_gone() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert process_exists(process.pid)
        process.kill()
        process.wait()
        assert not process_exists(process.pid)
        assert not process_began_at(process.pid, 0)


@pytest.mark.parametrize("pid", [0, -1, -(2**40), 2**40, 2**70])
def test_what_is_no_process_number_proves_nothing(pid: int) -> None:
    assert process_exists(pid)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs root to be another user")
def test_a_process_of_another_user_lives() -> None:
    ours = os.getpid()
    script = (
        "import os, sys; os.setuid(65534)\n"
        "from hermes_doctor.host.processes import process_exists\n"
        f"sys.exit(0 if process_exists({ours}) else 1)"
    )
    done = subprocess.run([sys.executable, "-c", "import hermes_doctor.host.processes\n" + script], check=False)
    assert done.returncode == 0


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the start is noted in ticks on Linux")
def test_the_start_tells_a_process_from_a_later_one_of_its_number() -> None:
    fields = Path(f"/proc/{os.getpid()}/stat").read_text().rpartition(")")[2].split()
    began = int(fields[19])
    # Another witness for which field it is.
    assert began / TICKS == pytest.approx(psutil.Process().create_time() - psutil.boot_time(), abs=5)
    assert process_began_at(os.getpid(), began)
    assert process_began_at(os.getpid(), began + 2 * TICKS)
    assert not process_began_at(os.getpid(), began - 3 * TICKS)
    assert not process_began_at(os.getpid(), began + 3 * TICKS)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux has pid namespaces")
def test_the_namespace_is_the_inode() -> None:
    assert pid_namespace() == str(Path("/proc/self/ns/pid").stat().st_ino)


def test_the_host_has_its_name() -> None:
    assert host_name() == subprocess.run(["uname", "-n"], capture_output=True, text=True, check=True).stdout.strip()
