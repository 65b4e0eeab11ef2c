"""Running something in a process of its own and taking its time and its peak memory."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class Measured:
    """Median seconds and highest peak memory (bytes) of several runs."""

    seconds: float
    peak_bytes: int


_RUNNER = """
import json, resource, sys, time
started = time.perf_counter()
exec(sys.argv[1])
taken = time.perf_counter() - started
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
json.dump([taken, peak], sys.stderr)
"""


def measure(code: str, *, times: int = 5) -> Measured:
    """Run Python code in a fresh process that many times; imports count, the interpreter's own start does not."""
    taken: list[tuple[float, int]] = []
    for _ in range(times):
        done = subprocess.run(
            [sys.executable, "-c", _RUNNER, code],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            check=True,
            text=True,
            env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
        )
        seconds, peak = json.loads(done.stderr.splitlines()[-1])
        taken.append((seconds, peak))
    return Measured(statistics.median(t for t, _ in taken), max(p for _, p in taken))
