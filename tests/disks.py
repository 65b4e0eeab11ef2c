"""Small disks for tests of what happens when one is full, read-only, or another one."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(point: Path, size: int) -> Iterator[Path]:
    """A file system of that many bytes, mounted at a new folder. Skips the test where that is not permitted."""
    point.mkdir()
    if shutil.which("mount") is None:
        pytest.skip("needs mount(8)")
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "tmpfs", str(point)], capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(f"needs the right to mount a file system: {done.stderr.strip()}")
    try:
        yield point
    finally:
        subprocess.run(["umount", str(point)], check=True)
