"""The long form of tests/whole/test_kills.py: every step, first and later, on every store, and many random kills.

``python -m bench.kills [--random 30] [--seed 1] [--only-random]`` ends with 1, and says where, when anything is lost.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from hermes_doctor.engine.steps import Step
from tests.oracle import wheels
from tests.whole import killing
from tests.whole.killing import EACH, LATER, ONCE, SETTLE, STORES, UNDO, Patient, patient
from tests.whole.runner import Doctors


def cases() -> list[tuple[str, Callable[[Patient], None]]]:
    """Every step, each in its place: its name, and what is done to a fresh patient."""
    found: list[tuple[str, Callable[[Patient], None]]] = []

    def add(name: str, act: Callable[[Patient, Step, int], None], step: Step, count: int) -> None:
        found.append((f"{name} {step}:{count}", lambda sick: act(sick, step, count)))

    for step in ONCE:
        add("fix", killing.kill_in_fix, step, 1)
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


def main() -> int:
    """Run it all and return the exit code."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--random", type=int, default=30, help="kills that must hit the work, over all stores")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--only-random", action="store_true")
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
            except AssertionError as error:
                verdict = f"LOST: {error}"
                lost.append(f"{'-'.join(store)} {name}")
            print(f"{'-'.join(store):16} {name:34} {time.monotonic() - begun:5.1f} s  {verdict}", flush=True)
            return result

        if not chosen.only_random:
            for store in STORES:
                for name, act in cases():
                    attempt(name, store, act)
        chance = random.Random(chosen.seed)
        timings: dict[tuple[str, str], killing.Timing] = {}
        hits = tries = 0
        while hits < chosen.random and tries < 4 * chosen.random:
            store = STORES[tries % len(STORES)]
            tries += 1
            if store not in timings:
                taken = attempt("unharmed", store, killing.timing)
                if not isinstance(taken, killing.Timing):
                    break
                timings[store] = taken
            hit = attempt(
                f"random {tries}",
                store,
                lambda sick, store=store: killing.kill_at_random(sick, chance, timings[store]),  # type: ignore[misc]  # bound now
            )
            hits += hit if isinstance(hit, int) else 0
        print(f"{hits} of {2 * tries} random kills came in the middle of the work (seed {chosen.seed})")
        if hits < chosen.random:
            lost.append("too few random kills came in the middle of the work")
    for each in lost:
        print(f"LOST: {each}")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
