"""Mending, against one big transaction that does the same UPDATEs: ``python -m bench.fixing``.

Three processes in turns, each over a fresh copy of a store with many double-encoded rows, with the same SQLite and
synchronous level. *The fix*: `doctor fix --apply` without a backup; of it counts what lies between its two scans: the
faults are found anew, decided on, recorded in the journal and mended, in small transactions. *One big transaction*: the
very same UPDATEs, whose rows and values are known beforehand. *A script*: it reads the rows, decodes them, and does the
same UPDATEs in one transaction, recording nothing.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click

from bench.figures import Figure, at_least, plain
from bench.measure import Measured, Task, compare
from bench.options import Case, Options
from bench.results import ROOT, machine, record, table, versions

#: The share of the big transaction's throughput that is promised.
SHARE = 0.6
#: Share of faulty messages.
FAULTS = 0.2

_IMPORTS = """
from pathlib import Path
from bench import fixing
from checks import CHECKS
from fixes import FIXES
"""


@dataclass(frozen=True)
class Fixed:
    """What mending a store came to. ``seconds``: of the mending alone; ``whole``: with the scans before and after.

    ``cpu``: seconds of the processor, for the whole.
    """

    rows: int
    transactions: int
    seconds: float
    whole: float
    cpu: float
    longest_hold: float
    undo_seconds: float


def figures(options: Options) -> list[Figure]:
    """Measure the fix of the newest release's stores with 2,000 faults for each 10,000 messages."""
    newest = options.cases[-1].release
    sizes = sorted({case.messages for case in options.cases})
    told: list[Figure] = []
    for messages in sizes:
        case = Case(newest, messages, FAULTS)
        told += measure_case(options.store(case), options.stores, options.times)
    return told


def measure_case(store: Path, scratch: Path, times: int) -> list[Figure]:
    """Measure one store."""
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        environment: Mapping[str, str] = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "XDG_STATE_HOME": str(Path(folder) / "state"),
        }
        fixed, big, script = (Path(folder) / name / "state.db" for name in ("fixed", "big", "script"))
        fresh = {path: partial(_copy, store, path) for path in (fixed, big, script)}
        fix = Task(f"answer = fixing.fix(Path({str(fixed)!r}))", _IMPORTS, environment, fresh[fixed])
        known = f"updates = fixing.updates_of(Path({str(fixed)!r}))"
        done = compare(
            {
                "fix": fix,
                "big": Task(
                    f"answer = fixing.one_transaction(Path({str(big)!r}), updates)",
                    f"{_IMPORTS}\n{known}",
                    environment,
                    fresh[big],
                ),
                "script": Task(f"answer = fixing.script(Path({str(script)!r}))", _IMPORTS, environment, fresh[script]),
            },
            times=times,
        )
        return _figures(Fixed(**done["fix"].answer), done["big"], done["script"])


def _figures(fixed: Fixed, big: Measured, script: Measured) -> list[Figure]:
    rows = f"{fixed.rows:,} rows"
    if not fixed.rows == big.answer == script.answer:
        raise RuntimeError(f"not the same rows: {fixed.rows}, {big.answer}, {script.answer}")
    note = f"{fixed.rows / fixed.seconds:,.0f} against {fixed.rows / big.seconds:,.0f} rows a second"
    return [
        at_least(f"throughput of one big transaction, {rows}", big.seconds / fixed.seconds, SHARE, "times", note),
        plain(f"throughput of a script, {rows}", script.seconds / fixed.seconds, "times"),
        plain(f"with the scans before and after, {rows}", fixed.whole, "s"),
        plain(f"CPU, {rows}", fixed.cpu / fixed.rows * 1e6, "µs a row", "with both scans"),
        plain(f"CPU of the big transaction, {rows}", big.cpu_seconds / fixed.rows * 1e6, "µs a row"),
        plain(f"CPU of the script, {rows}", script.cpu_seconds / fixed.rows * 1e6, "µs a row"),
        plain(f"longest hold of the write lock, {rows}", fixed.longest_hold * 1000, "ms"),
        plain(f"mending, {rows}", fixed.seconds / fixed.rows * 1e6, "µs a row"),
        plain(f"taking it back, {rows}", fixed.undo_seconds / fixed.rows * 1e6, "µs a row"),
    ]


def _copy(store: Path, copy: Path) -> None:
    shutil.rmtree(copy.parent, ignore_errors=True)
    copy.parent.mkdir()
    shutil.copyfile(store, copy)


def fix(store: Path) -> dict[str, float]:
    """Mend the double-encoded rows of a store, and take the run back; called in a process of its own.

    The journal of the run stays beside the store.
    """
    import time

    from checks.double_encoded import CHECK
    from fixes.double_encoded import FIX
    from hermes_doctor.engine.apply import apply_store
    from hermes_doctor.engine.journal import Journal
    from hermes_doctor.engine.plan import Chosen
    from hermes_doctor.engine.scan import ScanOptions
    from hermes_doctor.engine.stopping import Stop
    from hermes_doctor.engine.undo import undo_store
    from hermes_doctor.host.homes import StoreRef

    ref = StoreRef(store, None, "default")
    begun, busy = time.perf_counter(), time.process_time()
    done = apply_store(ref, Chosen([CHECK], {CHECK.name: FIX}, False), ScanOptions(), backup="never", stop=Stop())
    whole, cpu = time.perf_counter() - begun, time.process_time() - busy
    if done.outcome != "fixed":
        raise RuntimeError(f"{done.outcome}: {done.reason}")
    journal = Journal.beside(store)
    assert journal is not None, "it has just been written"
    with journal:
        run = journal.runs()[0]
    begun = time.perf_counter()
    undone = undo_store(ref, run, ScanOptions(), apply=True, stop=Stop())
    undo_seconds = time.perf_counter() - begun
    if undone.outcome != "fixed":
        raise RuntimeError(f"{undone.outcome}: {undone.reason}")
    return {
        "rows": done.count("applied"),
        "transactions": done.transactions,
        "seconds": done.mending_seconds,
        "whole": whole,
        "cpu": cpu,
        "longest_hold": done.holds["longest"],
        "undo_seconds": undo_seconds,
    }


def updates_of(mended: Path) -> list[tuple[str, tuple[object, ...]]]:
    """Return the UPDATEs that a run did, from the journal beside the store."""
    from hermes_doctor.engine.changes import changes_of
    from hermes_doctor.engine.journal import Journal
    from hermes_doctor.store.cells import quote

    updates: list[tuple[str, tuple[object, ...]]] = []
    journal = Journal.beside(mended)
    assert journal is not None, "the store was mended just before"
    with journal:
        for entry in journal.entries(newest_first=False):
            for change in changes_of(entry.changeset or b"", entry.columns):
                assigned = ", ".join(f"{quote(name)} = ?" for name in change.after)
                found = " AND ".join(f"{quote(name)} IS ?" for name in (*change.key, *change.before))
                values = (*change.after.values(), *change.key.values(), *change.before.values())
                updates.append((f"UPDATE {quote(change.table)} SET {assigned} WHERE {found}", values))
    return updates


def one_transaction(store: Path, updates: list[tuple[str, tuple[object, ...]]]) -> int:
    """Do these UPDATEs in one transaction; return how many rows they changed."""
    from hermes_doctor.store.writing import open_for_writing

    connection = open_for_writing(store)
    before = connection.total_changes()
    connection.execute("BEGIN IMMEDIATE")
    for sql, values in updates:
        connection.execute(sql, values)
    connection.execute("COMMIT")
    changed = connection.total_changes() - before
    connection.close()
    return changed


def script(store: Path) -> int:
    """Decode what is double-encoded, as a script of a few lines would, in one transaction; return how many rows."""
    import json

    from hermes_doctor.store.writing import open_for_writing

    connection = open_for_writing(store)
    before = connection.total_changes()
    connection.execute("BEGIN IMMEDIATE")
    columns = ("tool_calls", "reasoning_details", "codex_reasoning_items", "codex_message_items")
    suspected = " OR ".join(f"substr({column}, 1, 1) = '\"'" for column in columns)
    rows = connection.execute(f"SELECT id, {', '.join(columns)} FROM messages WHERE {suspected}").fetchall()
    for key, *cells in rows:
        good = {
            column: json.loads(cell)
            for column, cell in zip(columns, cells, strict=True)
            if isinstance(cell, str) and cell.startswith('"')
        }
        assigned = ", ".join(f"{column} = ?" for column in good)
        connection.execute(f"UPDATE messages SET {assigned} WHERE id = ?", (*good.values(), key))
    connection.execute("COMMIT")
    changed = connection.total_changes() - before
    connection.close()
    return changed


@click.command()
@click.option("--messages", multiple=True, default=(10_000, 100_000, 1_000_000), show_default=True)
@click.option("--release", default="0.22.2", show_default=True, help="The release that makes the stores.")
@click.option("--times", default=3, show_default=True, help="Runs of each; the median counts.")
@click.option("--stores", type=click.Path(path_type=Path, file_okay=False), help="Where made stores are kept.")
@click.option("--record", "to_record", is_flag=True, help="Write what came of it into bench/RESULTS.md.")
def main(messages: tuple[int, ...], release: str, times: int, stores: Path | None, to_record: bool) -> None:
    """Print how fast rows are mended, as a share of one big transaction's throughput."""
    with tempfile.TemporaryDirectory() as folder:
        cases = tuple(Case(release, each, FAULTS) for each in messages)
        told = figures(Options(stores or Path(folder), times, cases))
    print(f"{machine()}\n{versions()}\n\n{table(told)}")
    if to_record:
        record("fixing", "Fixing, against one big transaction", told)


if __name__ == "__main__":
    main()
