"""Examines odd stores in worker processes, with limits of time and memory, so that a hang or a crash is caught."""

from __future__ import annotations

import multiprocessing
import os
import resource
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from tests.whole import odd_files, odd_stores
from tests.whole.odd_examining import Verdict, examine, settle_in
from tests.whole.odd_stores import Odd

#: Seconds that one store may take, and bytes of address space that its process may use.
LIMIT = 120.0
MEMORY = 3 << 30
Job = tuple[str, int]


class Maker:
    """Makes the store of a job; the sources are made once, in ``folder``."""

    def __init__(self, folder: Path, templates: Path | None = None) -> None:
        self.schemas = odd_stores.schemas(folder / "schemas")
        self.sources = odd_files.sources(folder / "sources", templates)

    def make(self, folder: Path, job: Job) -> Odd:
        """Make a store in a folder that is not there yet."""
        kind, seed = job
        if kind == "store":
            return odd_stores.make(folder, self.schemas, seed)
        return odd_files.make(folder, self.sources, seed)


def one(maker: Maker, job: Job, aside: Path, share: float, *, brief: bool = False) -> tuple[Odd, Verdict]:
    """Make the store of a job, examine it, and take it away again. ``share``: of how many all fixes are tried.

    ``brief``: as `examine` takes it.
    """
    folder = aside / f"{job[0]}-{job[1]}"
    try:
        folder.mkdir(parents=True)
        odd = maker.make(folder / "home", job)
        return odd, examine(odd.store, aside, job[1], share=share, brief=brief)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def work(maker: Maker, aside: Path, share: float, brief: bool, channel: Connection) -> None:
    """Be a worker: take jobs and answer each, until there are no more."""
    aside.mkdir(parents=True, exist_ok=True)
    settle_in(aside)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    ours = os.getppid()
    while True:
        # A worker has the ends of other pipes, too, so that it would not hear of the end of who gives the jobs.
        while not channel.poll(2.0):
            if os.getppid() != ours:
                return
        job = channel.recv()
        if job is None:
            return
        try:
            odd, verdict = one(maker, job, aside, share, brief=brief)
            notes = odd.notes
        except BaseException as error:  # whatever got through is what is looked for
            verdict, notes = Verdict(wrong=[f"raised {type(error).__name__}: {error}"]), []
        channel.send((asdict(verdict), notes))


class Worker:
    """A worker process: one job at a time, and a new process for one that hung or died."""

    def __init__(self, maker: Maker, aside: Path, share: float, *, brief: bool) -> None:
        self.maker, self.aside, self.share, self.brief = maker, aside, share, brief
        self.job: Job | None = None
        self.since = 0.0
        self._start()

    def _start(self) -> None:
        self.channel, other = multiprocessing.Pipe()
        self.process = multiprocessing.get_context("fork").Process(
            target=work, args=(self.maker, self.aside, self.share, self.brief, other)
        )
        self.process.start()
        other.close()

    def give(self, job: Job) -> None:
        """Hand out a job."""
        self.job, self.since = job, time.monotonic()
        self.channel.send(job)

    def answer(self) -> tuple[dict[str, Any], list[str]] | None:
        """What became of the job, None while it is at work."""
        if self.channel.poll():
            try:
                answered: tuple[dict[str, Any], list[str]] = self.channel.recv()
                return answered
            except EOFError:
                self.process.join()
                return self._lost(f"the process died with {self.process.exitcode}")
        if time.monotonic() - self.since > LIMIT:
            self.process.kill()
            self.process.join()
            return self._lost(f"hung: no end after {LIMIT:.0f} s")
        return None

    def _lost(self, what: str) -> tuple[dict[str, Any], list[str]]:
        shutil.rmtree(self.aside, ignore_errors=True)
        self._start()
        return asdict(Verdict(wrong=[what])), []

    def stop(self) -> None:
        """Let the process end."""
        self.channel.send(None)
        self.process.join()


def run(
    jobs: Iterator[Job], maker: Maker, folder: Path, *, workers: int, share: float, brief: bool = False
) -> Iterator[tuple[Job, dict[str, Any], list[str]]]:
    """Give what became of each job, in the order in which they are done."""
    hands = [Worker(maker, folder / f"worker-{n}", share, brief=brief) for n in range(workers)]
    try:
        for hand in hands:
            if (job := next(jobs, None)) is not None:
                hand.give(job)
        while busy := [hand for hand in hands if hand.job is not None]:
            wait([hand.channel for hand in busy], timeout=1.0)
            for hand in busy:
                answered = hand.answer()
                if answered is None or hand.job is None:
                    continue
                done, hand.job = hand.job, None
                if (job := next(jobs, None)) is not None:
                    hand.give(job)
                yield done, *answered
    finally:
        for hand in hands:
            hand.stop()
