"""Programs from Debian that tests use as a user would: put there where that is possible, else a skip that says so."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest
from filelock import FileLock


def debian_program(program: str, package: str | None = None) -> str:
    """Return where a program is; install its package where this is root's Debian, else skip the test."""
    found = shutil.which(program) or (_installed(package or program) and shutil.which(program))
    if not found:
        pytest.skip(f"needs {program}: apt-get install {package or program}")
    return found


@cache
def _installed(package: str) -> bool:
    if os.name == "nt" or os.geteuid() != 0 or shutil.which("apt-get") is None:
        return False
    quiet = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    # One at a time: the parallel workers share the package manager.
    with FileLock(Path(tempfile.gettempdir()) / "doctor-tests-apt.lock"):
        for command in (["apt-get", "install"], ["apt-get", "update"], ["apt-get", "install"]):
            words = [*command, "-qq", *(["-y", "--no-install-recommends", package] if command[1] == "install" else [])]
            try:
                done = subprocess.run(words, env=quiet, capture_output=True, check=False, timeout=90)
            except subprocess.TimeoutExpired:
                return False
            if command[1] == "install" and done.returncode == 0:
                return True
    return False
