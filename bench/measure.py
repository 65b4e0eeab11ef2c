"""Running things in processes of their own, in turns, and taking their time and their peak memory."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: What takes longer than this in all is not run as often as asked, but for these times at least.
_ENOUGH_SECONDS = 90.0
_LEAST_TIMES = 3

_ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Task:
    """Python code that is timed in a fresh interpreter.

    ``before``: code that is timed by itself (imports, as a rule). ``work``: what is measured; what it leaves in
    ``answer`` is handed back. ``environment``: the whole of it; None for ours, in which this checkout is what is
    imported. ``prepare`` is called here before each run, untimed.
    """

    work: str
    before: str = ""
    environment: Mapping[str, str] | None = None
    prepare: Callable[[], None] | None = None


@dataclass(frozen=True)
class Measured:
    """Of several runs: median seconds of the work, and of what came before it; median CPU seconds of the work
    (all threads); highest peak memory in bytes, the interpreter's own included; the answer of the last run.
    """

    seconds: float
    peak_bytes: int
    before_seconds: float = 0.0
    cpu_seconds: float = 0.0
    times: int = 1
    answer: Any = None

    @property
    def whole_seconds(self) -> float:
        """The work and what came before it."""
        return self.before_seconds + self.seconds


@dataclass
class _Runs:
    """What the runs of one task came to so far."""

    seconds: list[float] = field(default_factory=list)
    before: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    peak: int = 0
    answer: Any = None

    @property
    def enough(self) -> bool:
        """Whether it has taken so long that it need not be run again."""
        return len(self.seconds) >= _LEAST_TIMES and sum(self.seconds) + sum(self.before) > _ENOUGH_SECONDS


#: What is measured may use any other name, and put what it likes into sys.argv.
_RUNNER = """
import json as _json, sys as _sys, time as _time
answer, _told = None, {}
_before, _work, _file = _sys.argv[1:]
_begun = _time.perf_counter()
exec(_before)
_told["before"] = _time.perf_counter() - _begun
_begun, _busy = _time.perf_counter(), _time.process_time()
exec(_work)
_told["seconds"], _told["cpu"] = _time.perf_counter() - _begun, _time.process_time() - _busy
try:
    # Not ru_maxrss: on Linux it begins with what the parent took.
    with open("/proc/self/status") as _status:
        _told["peak"] = next(int(_line.split()[1]) * 1024 for _line in _status if _line.startswith("VmHWM"))
except OSError:
    import resource as _resource
    _told["peak"] = _resource.getrusage(_resource.RUSAGE_SELF).ru_maxrss * (1 if _sys.platform == "darwin" else 1024)
_told["answer"] = answer
with open(_file, "w") as _out:
    _json.dump(_told, _out)
"""


def measure(code: str, *, times: int = 5) -> Measured:
    """Run Python code in a fresh process that many times; imports count, the interpreter's own start does not."""
    return compare({"": Task(code)}, times=times)[""]


def compare(tasks: Mapping[str, Task], *, times: int = 5) -> dict[str, Measured]:
    """Run tasks in turns, so that all of them meet the same machine.

    What takes minutes is run three times, however often is asked. Raises RuntimeError where a task fails.
    """
    runs = {name: _Runs() for name in tasks}
    for _ in range(times):
        for name, task in tasks.items():
            if not runs[name].enough:
                _note(runs[name], _run(task))
    return {name: _measured(each) for name, each in runs.items()}


def _run(task: Task) -> dict[str, Any]:
    if task.prepare is not None:
        task.prepare()
    environment = dict(os.environ if task.environment is None else task.environment)
    with tempfile.NamedTemporaryFile(suffix=".json") as told:
        # In an environment of somebody else's, nothing of ours lies in the way of what is imported.
        alone = [] if task.environment is None else ["-P"]
        command = [sys.executable, *alone, "-c", _RUNNER, task.before, task.work, told.name]
        done = subprocess.run(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            check=False,
            text=True,
            env=environment,
            cwd=_ROOT,
        )
        if done.returncode != 0:
            raise RuntimeError(f"what was to be measured ended with {done.returncode}: {done.stderr[-2000:]}")
        values: dict[str, Any] = json.loads(Path(told.name).read_text(encoding="utf-8"))
    return values


def _note(runs: _Runs, told: dict[str, Any]) -> None:
    runs.seconds.append(told["seconds"])
    runs.before.append(told["before"])
    runs.cpu.append(told["cpu"])
    runs.peak = max(runs.peak, told["peak"])
    runs.answer = told["answer"]


def _measured(runs: _Runs) -> Measured:
    median = statistics.median
    return Measured(
        median(runs.seconds), runs.peak, median(runs.before), median(runs.cpu), len(runs.seconds), runs.answer
    )
