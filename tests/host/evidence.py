"""What a folder looks like before and after, so that a trace would show."""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Entry:
    """One file or folder: everything about it that a reader must leave alone."""

    kind: int
    mode: int
    size: int
    mtime_ns: int
    content: str


def everything_in(folder: Path) -> dict[str, Entry]:
    """The folder itself and all that is below it. Reads raw files: only while this process has none open."""
    return {str(path.relative_to(folder)): _entry(path) for path in (folder, *folder.rglob("*"))}


def _entry(path: Path) -> Entry:
    status = path.lstat()
    content = hashlib.sha256(path.read_bytes()).hexdigest() if stat.S_ISREG(status.st_mode) else ""
    size = status.st_size if stat.S_ISREG(status.st_mode) else 0
    return Entry(stat.S_IFMT(status.st_mode), stat.S_IMODE(status.st_mode), size, status.st_mtime_ns, content)


@contextmanager
def no_trace_in(folder: Path) -> Iterator[None]:
    """Fails where anything in the folder was made, changed or removed meanwhile."""
    before = everything_in(folder)
    yield
    assert everything_in(folder) == before


def run_python(code: str, *arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    """Runs code with our packages in another process; fails the test where it fails."""
    root = Path(__file__).parents[2]
    done = subprocess.run(  # type: ignore[call-overload]  # options are subprocess.run's own
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"},
        **options,
    )
    assert done.returncode == 0, done.stderr
    result: subprocess.CompletedProcess[str] = done
    return result


def may_unshare() -> bool:
    """Whether this machine lets the tests make a pid namespace."""
    try:
        done = subprocess.run(["unshare", "--pid", "--fork", "--mount-proc", "true"], capture_output=True, timeout=20)
    except OSError:
        return False
    return done.returncode == 0
