"""Other processes that do something and then wait: holders, readers, Pythons to look at."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def waiting(code: str, *arguments: object, python: str | Path = sys.executable) -> Iterator[int]:
    """A process that has run the code (``sys`` is imported) and then waits; gives its id."""
    command = [python, "-c", f"import sys\n{code}\nprint(flush=True); sys.stdin.read()", *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"\n", "the other process failed"
        yield process.pid
        process.communicate()
