"""What a start costs: a bare Python, `doctor --version`, and `doctor scan` of a small store: ``python -m bench.start``.

All are run in turns, each in a process of its own. What is promised are differences to the bare Python of the same
run. Where other work is going on beside, wall-clock times say more of that work; the processor's are printed, too.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click

from bench.figures import Figure, at_most, plain
from bench.options import Case, Options
from bench.results import ROOT, machine, record, table, versions

#: A start takes so little that it can be run more often than anything else.
TIMES_AS_OFTEN = 5
#: The store that is scanned.
SMALL = Case("0.22.2", 100, 0.0)
#: What is promised beyond a bare Python, in milliseconds.
VERSION_MS, SCAN_MS = 60, 250

_BARE = "python -c pass"


@dataclass
class _Runs:
    """What the runs of one command took, in milliseconds: by the clock, and of the processor."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)


def figures(options: Options) -> list[Figure]:
    """Measure the starts; the bare Python comes first."""
    with tempfile.TemporaryDirectory() as folder:
        return _figures(options.store(SMALL), options.times * TIMES_AS_OFTEN, Path(folder))


def _figures(store: Path, times: int, folder: Path) -> list[Figure]:
    runs = _in_turns(_commands(store), times, folder)
    bare = runs.pop(_BARE)
    told = [plain(_BARE, statistics.median(bare.wall), "ms", f"{statistics.median(bare.cpu):.0f} ms of CPU")]
    for name, taken in runs.items():
        more = statistics.median(taken.wall) - statistics.median(bare.wall)
        cpu = statistics.median(taken.cpu) - statistics.median(bare.cpu)
        limit = VERSION_MS if "--version" in name else SCAN_MS
        told.append(at_most(f"{name}, beyond a bare Python", more, limit, "ms", f"{cpu:.0f} ms of CPU"))
    return told


def _commands(store: Path) -> Mapping[str, Sequence[str]]:
    """Return what is run, by what it is called; the installed command only where there is one."""
    commands: dict[str, Sequence[str]] = {_BARE: (sys.executable, "-c", "pass")}
    module, script = (sys.executable, "-m", "hermes_doctor"), Path(sys.executable).with_name("doctor")
    ways: dict[str, Sequence[str]] = {"python -m hermes_doctor": module}
    if script.exists():
        ways["doctor"] = (str(script),)
    for way, command in ways.items():
        commands[f"{way} --version"] = (*command, "--version")
        commands[f"{way} scan"] = (*command, "scan", str(store))
        commands[f"{way} scan --json"] = (*command, "scan", "--json", str(store))
    return commands


def _in_turns(commands: Mapping[str, Sequence[str]], times: int, folder: Path) -> dict[str, _Runs]:
    # What is compiled is kept, as it is for every user; nothing else of ours is imported than this checkout.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPATH"] = str(ROOT)
    runs = {name: _Runs() for name in commands}
    for turn in range(times + 1):
        for name, command in commands.items():
            wall, cpu = _run(command, environment, folder)
            # The first turn compiles, and fills the caches.
            if turn:
                runs[name].wall.append(wall)
                runs[name].cpu.append(cpu)
    return runs


def _run(command: Sequence[str], environment: Mapping[str, str], folder: Path) -> tuple[float, float]:
    """Run a command to its end; return what it took, with what it started, in milliseconds."""
    cpu, began = _of_children(), time.perf_counter()
    done = subprocess.run(
        command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False, text=True
    )
    wall = time.perf_counter() - began
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{command[-1]} ended with {done.returncode}: {done.stderr[-2000:]}")
    return wall * 1000, (_of_children() - cpu) * 1000


def _of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@click.command()
@click.option("--times", default=25, show_default=True, help="Runs of each; the median counts.")
@click.option("--record", "to_record", is_flag=True, help="Write what came of it into bench/RESULTS.md.")
def main(times: int, to_record: bool) -> None:
    """Print what a start of the doctor costs, beside a bare Python's."""
    with tempfile.TemporaryDirectory() as folder:
        store = Options(Path(folder) / "stores", 1, (SMALL,)).store(SMALL)
        told = _figures(store, times, Path(folder))
    print(f"{machine()}\n{versions()}\n\n{table(told)}")
    if to_record:
        record("start", "Starting up", told)


if __name__ == "__main__":
    main()
