"""``doctor scan --since-last`` after one per cent of new messages, against the full scan of the same store."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from bench.figures import Figure, at_most, unpromised
from bench.kept import copy_of
from bench.measure import Task, compare
from bench.options import Case, Options
from bench.reading import PROMISED_FROM, TINY, said, warm_up
from bench.stores import grow

SHARE = 0.01

#: The command, in a process that has scanned a tiny store before and so has loaded what is loaded late.
_BEFORE = """
import os
os.environ["XDG_STATE_HOME"] = {other_state!r}
from hermes_doctor.cli.run import run
run(["scan", {tiny!r}, "--json"], [])
os.environ["XDG_STATE_HOME"] = {state!r}
"""
_SCAN = """
answer = run(["scan", {path!r}, "--json", *{options!r}], [])
assert answer in (0, 1), answer
"""


def figures(options: Options) -> list[Figure]:
    """How much of a full scan's time it takes, on the largest store of each release."""
    releases = {case.release: case for case in sorted(options.cases, key=lambda case: case.messages)}
    return [_figure(options, case) for case in releases.values()]


def _figure(options: Options, case: Case) -> Figure:
    work = options.stores / "since-last"
    shutil.rmtree(work, ignore_errors=True)
    store = copy_of(options.store(case), work / "home")
    state, kept, other = work / "state", work / "kept", work / "other"
    tiny = options.store(Case(case.release, TINY, 0.0))
    before = _BEFORE.format(other_state=str(other), tiny=str(tiny), state=str(state))
    scan = {"path": str(store)}
    since_last = Task(_SCAN.format(options=["--since-last"], **scan), before)
    compare({"first": since_last}, times=1)
    if not state.is_dir():
        raise RuntimeError("a scan with --since-last left nothing in the user's state folder to go on from")
    shutil.copytree(state, kept)
    grow(store, max(round(case.messages * SHARE), 2), faults=case.faults, weight=case.weight)
    warm_up(store)
    again = _restore(kept, state)
    taken = compare(
        {
            "full": Task(_SCAN.format(options=[], **scan), before, prepare=again),
            "since": Task(_SCAN.format(options=["--since-last"], **scan), before, prepare=again),
        },
        times=options.times,
    )
    shutil.rmtree(work)
    share = 100 * taken["since"].seconds / taken["full"].seconds
    name = f"--since-last after 1% new rows / full scan: {case}"
    figure = at_most(name, share, 5, "%", f"{said(taken['since'])} / {said(taken['full'])}")
    return figure if case.messages >= PROMISED_FROM else unpromised(figure)


def _restore(kept: Path, state: Path) -> Callable[[], None]:
    """Return what puts the state folder back as it was after the first scan."""

    def restore() -> None:
        shutil.rmtree(state, ignore_errors=True)
        shutil.copytree(kept, state)

    return restore
