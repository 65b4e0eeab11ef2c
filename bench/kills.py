"""The long form of tests/whole/test_kills.py: every step, first and later, on every store, and many random kills.

``python -m bench.kills [--random 500] [--seed 1] [--only-random] [--record]`` ends with 1, and says where, when
anything is lost. Random kills come at moments that are alike likely in time, and as many at calls of the system that
are alike likely.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from bench.results import record
from hermes_doctor.engine.steps import Step
from tests.oracle import wheels
from tests.whole import killing
from tests.whole.killing import (
    BACKUP,
    COMMANDS,
    COMPACT,
    EACH,
    LATER,
    ONCE,
    SCAN,
    SETTLE,
    STORES,
    UNDO,
    UNDO_FILE,
    UNDO_ONCE,
    Patient,
    RandomKills,
    Span,
    patient,
)
from tests.whole.runner import Doctors


def cases() -> list[tuple[str, Callable[[Patient], None]]]:
    """Every step, each in its place: its name, and what is done to a fresh patient."""
    found: list[tuple[str, Callable[[Patient], None]]] = []

    def add(name: str, act: Callable[[Patient, Step, int], None], step: Step, count: int) -> None:
        found.append((f"{name} {step}:{count}", lambda sick: act(sick, step, count)))

    for step in SCAN:
        add("scan", killing.kill_in_scan, step, 1)
    for step in BACKUP:
        add("backup", killing.kill_in_backup, step, 1)
    for step in ONCE:
        add("fix", killing.kill_in_fix, step, 1)
    for step in (*UNDO_ONCE, *UNDO_FILE):
        add("undo", killing.kill_in_undo, step, 1)
    for step in COMPACT:
        add("compact", killing.kill_in_compact, step, 1)
    for count in (1, LATER):
        for step in EACH:
            add("fix", killing.kill_in_fix, step, count)
        for step in UNDO:
            add("undo", killing.kill_in_undo, step, count)
    for before in (Step.PENDING, Step.COMMITTED):
        for step in SETTLE:
            found.append(
                (
                    f"settle {step} after {before}",
                    lambda sick, step=step, before=before: killing.kill_in_settling(sick, step, before),  # type: ignore[misc]  # bound now
                )
            )
    return found


def where(error: Exception) -> str:
    """The lines that led to an error: an assertion says little by itself."""
    frames = traceback.extract_tb(error.__traceback__)[1:]
    return " < ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in reversed(frames))


def main() -> int:
    """Run it all and return the exit code."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--random", type=int, default=500, help="random kills, over all stores and commands")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--only-random", action="store_true")
    options.add_argument("--record", action="store_true", help="write the result into bench/RESULTS.md")
    chosen = options.parse_args()
    wheels.ensure()
    lost: list[str] = []
    with tempfile.TemporaryDirectory() as folder, Doctors(Path(folder)) as doctors:
        templates = Path(folder) / "templates"

        def attempt(name: str, store: tuple[str, str], act: Callable[[Patient], object]) -> object:
            begun = time.monotonic()
            result: object = None
            verdict = "ok"
            try:
                with patient(templates, doctors, *store) as sick:
                    result = act(sick)
            except Exception as error:  # whatever it is, the proof failed
                verdict = f"LOST: {where(error)} {str(error)[-300:]}"
                lost.append(f"{'-'.join(store)} {name}")
            print(f"{'-'.join(store):16} {name:34} {time.monotonic() - begun:5.1f} s  {verdict}", flush=True)
            return result

        if not chosen.only_random:
            for store in STORES:
                for name, act in cases():
                    attempt(name, store, act)
        chance = random.Random(chosen.seed)
        measured: dict[tuple[str, str], dict[str, Span]] = {}
        hits: Counter[str] = Counter()
        rounds = 0
        # A kill that comes too late is none; a round has nine.
        while hits.total() < chosen.random and rounds < chosen.random:
            by_time = rounds // len(STORES) % 2 == 0
            store = STORES[rounds % len(STORES)]
            rounds += 1
            if store not in measured:
                found = attempt("unharmed", store, killing.spans)
                if not isinstance(found, dict):
                    break
                measured[store] = found
            kills = RandomKills(chance, measured[store], by_time)
            attempt(f"round {rounds} by {'time' if by_time else 'calls'}", store, kills)
            hits += kills.hits
        if hits.total() < chosen.random:
            lost.append("too few random kills came before the command had ended")
    steps = 0 if chosen.only_random else len(STORES) * len(cases())
    told = [
        f"{steps} kills at numbered steps, each on a store of its own",
        f"{hits.total()} random kills in {rounds} rounds (seed {chosen.seed}): "
        + ", ".join(f"{command} {hits[command]}" for command in COMMANDS),
        f"{len(lost)} attempts lost anything",
        *(f"LOST: {each}" for each in lost),
    ]
    print("\n".join(told))
    if chosen.record:
        record("kills", "Killed at every step, and at random", [], text="\n".join(f"- {line}" for line in told))
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
