"""The long form of tests/whole/test_mishaps.py and test_disturbed.py: whatever the machine can do to a doctor at work.

``python -m bench.obstacles [--signals 200] [--seed 1] [--record]`` ends with 1, and says where, when anything is lost:
the store is replaced, deleted, cut off or loses its log at each step of each command; the disk is full from some page
on; rights are lost; signals come at random moments; streams are closed; every two commands meet.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench.kills import where
from bench.results import record
from hermes_doctor.engine.steps import Step
from tests.disks import small_disk
from tests.oracle import wheels
from tests.whole import disturbed, mishaps
from tests.whole.killing import LATER, STORES, Patient, patient
from tests.whole.runner import Doctors

Act = Callable[[Patient], object]
_FULL = (
    ("fix", Step.CHANGESET, LATER),
    ("undo", Step.UNDO_BEGUN, 5),
    ("backup", Step.LOCKED, 1),
    ("compact", Step.COMPACT_CHECKED, 1),
)
_PAGES = (0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89)
_HOW = ("head", "true", "closed", "full", "no input")


def cases() -> list[tuple[str, Act]]:
    """Everything but signals and full disks: its name, and what is done to a fresh patient."""
    found: list[tuple[str, Act]] = []
    for command, steps in mishaps.STEPS.items():
        for step, count in steps:
            for mishap in mishaps.MISHAPS:
                act = partial(mishaps.befall, command=command, step=step, count=count, mishap=mishap)
                found.append((f"{command} {step} {mishap.__name__}", act))
    for step in (Step.LOCKED, Step.BEGUN, Step.PENDING, Step.COMMITTED, Step.APPLIED):
        count = 1 if step is Step.LOCKED else LATER
        found.append((f"fix {step} rights", partial(mishaps.loses_its_rights, command="fix", step=step, count=count)))
    for command in disturbed.CODES:
        found += [(f"{command} {how}", partial(disturbed.closed_output, command=command, how=how)) for how in _HOW]
    for first in disturbed.MIDST:
        for second in ("scan", "fix", "undo", "compact"):
            found.append((f"{first} and {second}", partial(_meet, first=first, second=second)))
    return found


def _meet(sick: Patient, first: str, second: str) -> None:
    code, said = disturbed.two_at_once(sick, first, second)
    # Only those that write send one another away; who only reads may find it locked.
    wanted = {0, 1, 4} if second == "scan" else {0} if first == "scan" else {6}
    assert code in wanted, (code, said)


def main() -> int:
    """Run it all and return the exit code."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--signals", type=int, default=200, help="random signals, over all stores and commands")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--record", action="store_true", help="write the result into bench/RESULTS.md")
    chosen = options.parse_args()
    wheels.ensure()
    lost: list[str] = []
    done: Counter[str] = Counter()
    chance = random.Random(chosen.seed)
    with tempfile.TemporaryDirectory() as folder:
        templates = Path(folder) / "templates"

        def attempt(name: str, store: tuple[str, str], act: Act, place: Path | None = None) -> object:
            begun, result, verdict = time.monotonic(), None, "ok"
            try:
                # Of its own: what went wrong with one may leave it out of step.
                with (
                    tempfile.TemporaryDirectory() as own,
                    Doctors(Path(own)) as doctors,
                    patient(templates, doctors, *store, place) as sick,
                ):
                    result = act(sick)
            except Exception as error:  # whatever it is, the proof failed
                verdict = f"LOST: {where(error)} {str(error)[-300:]}"
                lost.append(f"{'-'.join(store)} {name}")
            done[name.split()[0]] += 1
            print(f"{'-'.join(store):16} {name:44} {time.monotonic() - begun:5.1f} s  {verdict}", flush=True)
            return result

        for store in STORES[:2]:
            for name, act in cases():
                attempt(name, store, act)
            for command, step, count in _FULL:
                for pages in _PAGES:
                    with small_disk(Path(folder) / "disk", 64 << 20) as disk:
                        fills = partial(
                            mishaps.fills_up, disk=disk, command=command, step=step, count=count, pages=pages
                        )
                        attempt(f"{command} {step} full but for {pages}", store, fills, disk)
                    (Path(folder) / "disk").rmdir()
        seconds: dict[str, float] = {}
        ends: Counter[object] = Counter()
        commands = list(disturbed.CODES)
        for number in range(chosen.signals):
            command, store = commands[number % len(commands)], STORES[number % 2]
            if command not in seconds:
                taken = attempt(f"{command} unharmed", store, partial(disturbed.seconds_of, command=command))
                seconds[command] = taken if isinstance(taken, float) else 1.0
            send = partial(disturbed.random_signals, command=command, seconds=seconds[command], chance=chance)
            ends[attempt(f"{command} signal {number + 1}", store, send)] += 1
    ended = ", ".join(f"{end} {count}" for end, count in ends.items())
    told = [
        f"{done.total()} attempts: " + ", ".join(f"{command} {count}" for command, count in done.items()),
        f"{chosen.signals} random signals (seed {chosen.seed}): {ended}",
        f"{len(lost)} attempts lost anything or were told wrongly",
        *(f"LOST: {each}" for each in lost),
    ]
    print("\n".join(told))
    if chosen.record:
        record("obstacles", "Whatever the machine does", [], text="\n".join(f"- {line}" for line in told))
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
