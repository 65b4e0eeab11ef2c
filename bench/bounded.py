"""The peak memory of every command over stores with few and with many faults: ``python -m bench.bounded``.

Each command runs in a process of its own, over stores of the same size: what a command takes more where ten times as
much is found is what grows with the findings.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from bench.figures import Figure, at_most, plain
from bench.measure import Task, compare
from bench.options import Case, Options
from bench.results import ROOT, machine, record, table, versions

#: What is promised at 1,000,000 messages with 200,000 findings, in MB.
LIMIT = 100
#: Shares of faulty messages, of which one is ten times the other.
FEW, MANY = 0.02, 0.2

_RUN = """
import sys
own, sys.argv = sys.argv, ["doctor", *{arguments!r}]
from hermes_doctor.__main__ import main
answer = main()
sys.argv = own
"""


@dataclass(frozen=True)
class Peak:
    """What one command took over one store. ``rows``: those that the store's fix mends. ``bytes``: at its peak."""

    command: str
    rows: int
    bytes: int


def figures(options: Options) -> list[Figure]:
    """Measure every command over the largest store, with few and with many faults."""
    newest = options.cases[-1].release
    found = [
        measure_case(options.store(Case(newest, options.largest.messages, share)), options.stores)
        for share in (FEW, MANY)
    ]
    return figures_of(*found)


def figures_of(few: Sequence[Peak], many: Sequence[Peak]) -> list[Figure]:
    """Return what was measured over two stores, command by command, beside what was promised."""
    told: list[Figure] = []
    for less, more in zip(few, many, strict=True):
        name = f"{more.command}, {more.rows:,} rows to mend"
        told.append(at_most(name, more.bytes / 1e6, LIMIT, "MB"))
        grown = (more.bytes - less.bytes) / 1e6
        told.append(plain(f"{more.command}: more than with {less.rows:,} rows", grown, "MB"))
    return told


def measure_case(store: Path, scratch: Path) -> list[Peak]:
    """Run every command over the store, those that change something over a copy of it in ``scratch``."""
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        state = Path(folder) / "state"
        copy = Path(folder) / "home" / "state.db"
        copy.parent.mkdir()
        shutil.copyfile(store, copy)
        peaks = {command: _peak(arguments, code, state) for command, arguments, code in _commands(copy)}
        rows = _mended(copy)
        return [Peak(command, rows, peak) for command, peak in peaks.items()]


def _commands(store: Path) -> Iterator[tuple[str, Sequence[str], int]]:
    """Give the commands in the order in which they are run, with what is typed and the exit code.

    What goes by the clock is not chosen: a small store's last chat may end in the future.
    """
    by_clock = ("--skip", "open-zombies")
    yield "scan", ["scan", str(store)], 1
    yield "scan --json", ["scan", "--json", str(store)], 1
    yield "fix", ["fix", *by_clock, str(store)], 1
    yield "fix --json", ["fix", "--json", *by_clock, str(store)], 1
    yield "fix --apply", ["fix", "--apply", "--backup", "never", *by_clock, str(store)], 0
    yield "runs", ["runs", str(store)], 0
    run = _run_of(store)
    yield "undo", ["undo", run, str(store)], 1
    yield "undo --json", ["undo", "--json", run, str(store)], 1
    yield "undo --apply", ["undo", "--apply", "--json", run, str(store)], 0


def _peak(arguments: Sequence[str], code: int, state: Path) -> int:
    environment: Mapping[str, str] = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(state)}
    task = Task(_RUN.format(arguments=list(arguments)), environment=environment)
    measured = compare({"": task}, times=1)[""]
    if measured.answer != code:
        raise RuntimeError(f"doctor {' '.join(arguments)} ended with {measured.answer}")
    return measured.peak_bytes


def _asked(store: Path, sql: str) -> Any:
    with closing(sqlite3.connect(store.parent / "doctor" / "doctor.db")) as journal:
        return journal.execute(sql).fetchone()[0]


def _run_of(store: Path) -> str:
    return str(_asked(store, "SELECT run FROM runs"))


def _mended(store: Path) -> int:
    return int(_asked(store, "SELECT count(*) FROM receipts WHERE state = 'applied'"))


@click.command()
@click.option("--messages", default=1_000_000, show_default=True, help="Messages in each of the two stores.")
@click.option("--release", default="0.22.2", show_default=True, help="The release that makes them.")
@click.option("--stores", type=click.Path(path_type=Path, file_okay=False), help="Where made stores are kept.")
@click.option("--record", "to_record", is_flag=True, help="Write what came of it into bench/RESULTS.md.")
def main(messages: int, release: str, stores: Path | None, to_record: bool) -> None:
    """Print the peak memory of every command over a store with few and one with many faults."""
    with tempfile.TemporaryDirectory() as folder:
        told = figures(Options(stores or Path(folder), 1, (Case(release, messages, MANY),)))
    print(f"{machine()}\n{versions()}\n\n{table(told)}")
    if to_record:
        record("bounded", "When every row is faulty", told)


if __name__ == "__main__":
    main()
