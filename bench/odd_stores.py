"""Thousands of generated and broken stores, each held to all that a store of whatever kind is promised.

``python -m bench.odd_stores --stores 20000 --files 5000 --seed 1`` runs them all, in worker processes with a time limit
for each store, so that a hang or a crash is caught and told; it ends with 1 when a promise was broken. ``--jobs``: how
many of these, by default one for each core. ``--state FILE`` remembers what is done, and the same command carries on.
One seed is run again, and what is odd about its store is told, by ``python -m bench.odd_stores --store SEED`` or
``--file SEED``; ``--keep FOLDER`` leaves a copy there.

What is promised stands in tests/whole/odd_examining.py, what is made in odd_stores.py and odd_files.py beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.figures import Figure, at_least, at_most, plain
from bench.results import record
from tests.oracle import wheels
from tests.whole.odd_examining import settle_in
from tests.whole.odd_work import LIMIT, MEMORY, Job, Maker, one, run

#: On this share of the stores all fixes are tried.
SHARE = 0.25


class Tally:
    """What it all came to, kept in a file so that a run can be carried on."""

    def __init__(self, file: Path | None) -> None:
        self.file = file
        self.done: dict[str, int] = {"store": 0, "file": 0}
        self.totals = {"found": 0, "mended": 0, "changed": 0}
        self.codes: dict[str, int] = {}
        self.slowest = self.largest = self.seconds = 0.0
        self.wrong: list[dict[str, Any]] = []
        self.seen: set[Job] = set()
        if file is not None and file.exists():
            for line in file.read_text("utf-8").splitlines():
                self._add(json.loads(line))

    def note(self, job: Job, verdict: dict[str, Any], notes: list[str]) -> None:
        """Take in what became of a job."""
        line = {"job": list(job), **verdict, "notes": notes if verdict["wrong"] else []}
        self._add(line)
        if self.file is not None:
            with self.file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")

    def _add(self, line: dict[str, Any]) -> None:
        kind, seed = line["job"]
        self.seen.add((kind, seed))
        self.done[kind] += 1
        self.totals["found"] += line["found"]
        self.totals["mended"] += line["mended"]
        self.totals["changed"] += len(line["codes"]) > 2
        for code in line["codes"][:1]:
            self.codes[str(code)] = self.codes.get(str(code), 0) + 1
        self.slowest = max(self.slowest, line["seconds"])
        self.largest = max(self.largest, line["peak_megabytes"])
        self.seconds += line["seconds"]
        if line["wrong"]:
            self.wrong.append(line)

    def figures(self) -> list[Figure]:
        """What is to be told."""
        codes = ", ".join(f"{count:,} ended with {code}" for code, count in sorted(self.codes.items()))
        return [
            at_least("generated stores", self.done["store"], 20_000, "stores", codes),
            at_least("broken files", self.done["file"], 5_000, "files"),
            at_most("of these broke a promise", len(self.wrong), 0, "stores"),
            plain("faults found", self.totals["found"], note="by the scans that spoke JSON"),
            plain("stores mended with --unsafe, twice, and undone", self.totals["changed"], "stores"),
            plain("rows mended", self.totals["mended"], "rows"),
            at_most("slowest store, processor time", self.slowest, LIMIT, "s"),
            plain("peak memory of a worker", self.largest, "MB", f"at most {MEMORY >> 30} GB is allowed"),
        ]


def _again(maker: Maker, job: Job, folder: Path, keep: Path | None) -> int:
    """Run one job in this process, and tell all."""
    if keep is not None:
        maker.make(keep / f"{job[0]}-{job[1]}", job)
    settle_in(folder)
    # All fixes are tried, whatever the seed would say: that comes last.
    odd, verdict = one(maker, job, folder, 1.0)
    for note in odd.notes:
        print(f"  {note!r}")
    print(f"ended with {verdict.codes}, {verdict.found} found, {verdict.mended} mended, {verdict.seconds:.1f} s")
    for line in verdict.wrong:
        print(f"WRONG: {line}")
    return 1 if verdict.wrong else 0


def main() -> int:
    """Run it all and return the exit code."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--stores", type=int, default=20_000)
    options.add_argument("--files", type=int, default=5_000)
    options.add_argument("--seed", type=int, default=1, help="of the first store and of the first file")
    options.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes at a time")
    options.add_argument("--state", type=Path, help="a file that remembers what is done")
    options.add_argument("--store", type=int, help="run just the store of this seed, and tell what is odd about it")
    options.add_argument("--file", type=int, help="the same for the broken file of this seed")
    options.add_argument("--keep", type=Path, help="with --store or --file: leave a copy of it in this folder")
    options.add_argument("--record", action="store_true", help="write the figures into bench/RESULTS.md")
    chosen = options.parse_args()
    wheels.ensure()
    with tempfile.TemporaryDirectory(prefix="odd-stores-") as name:
        folder = Path(name)
        maker = Maker(folder)
        for kind, seed in (("store", chosen.store), ("file", chosen.file)):
            if seed is not None:
                return _again(maker, (kind, seed), folder, chosen.keep)
        tally = Tally(chosen.state)
        wanted = [("store", chosen.seed + n) for n in range(chosen.stores)]
        wanted += [("file", chosen.seed + n) for n in range(chosen.files)]
        # Side by side, so that a run which is stopped has seen some of both.
        wanted.sort(key=lambda job: (job[1] - chosen.seed) / (chosen.stores if job[0] == "store" else chosen.files))
        jobs = (job for job in wanted if job not in tally.seen)
        begun = last = time.monotonic()
        for job, verdict, notes in run(jobs, maker, folder, workers=chosen.jobs, share=SHARE):
            tally.note(job, verdict, notes)
            for line in verdict["wrong"]:
                print(f"WRONG: {job[0]} {job[1]}: {line[:400]}  (again: --{job[0]} {job[1]})", flush=True)
            if time.monotonic() - last > 30:
                last = time.monotonic()
                print(f"{len(tally.seen):,} of {len(wanted):,}, {len(tally.wrong)} wrong", file=sys.stderr, flush=True)
        print(f"seed {chosen.seed}, {time.monotonic() - begun:,.0f} s, {tally.seconds:,.0f} s of them the doctor's")
        for figure in tally.figures():
            print(f"{figure.name}: {figure.shown}  {figure.note}")
        if chosen.record:
            record("odd-stores", "Generated and broken stores", tally.figures())
    return 1 if tally.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
