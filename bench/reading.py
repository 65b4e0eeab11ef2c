"""The whole catalogue against one bare read of ``messages``, and against ``PRAGMA integrity_check`` by our SQLite.

Warm caches, one process for each run, in turns. Imports are taken by themselves: what a scan costs without them is
taken after a scan of a tiny store in the same process, which has loaded whatever is loaded late.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.figures import Figure, at_least, at_most, plain, unpromised
from bench.measure import Measured, Task, compare
from bench.options import Case, Options

#: Below so many messages the fixed costs of a scan are most of it, and no ratio is promised.
PROMISED_FROM = 100_000
#: Messages of a store that is scanned so that what is loaded late is loaded.
TINY = 100
THREADS = (1, 2)

BARE_READ = """
connection = apsw.Connection({path!r}, flags=apsw.SQLITE_OPEN_READONLY)
for row in connection.execute("SELECT * FROM messages"):
    pass
"""
INTEGRITY = """
connection = apsw.Connection({path!r}, flags=apsw.SQLITE_OPEN_READONLY)
answer = connection.execute("PRAGMA integrity_check").fetchall()
"""
SCAN_IMPORTS = """
from pathlib import Path
from checks import CHECKS
from hermes_doctor.engine.scan import ScanOptions, scan_store
from hermes_doctor.host.homes import resolve_targets

def scan(path, **options):
    found = 0
    for ref in resolve_targets([Path(path)]):
        scan = scan_store(ref, CHECKS, ScanOptions(**options))
        assert scan.condition == "readable", scan.reason
        failed = [result for result in scan.checks if result.status == "failed"]
        assert not failed, failed
        found += sum(result.count for result in scan.checks)
        scan.findings.close()
    return found
"""
SCAN = "answer = scan({path!r}, threads={threads})"


@dataclass(frozen=True)
class Reading:
    """What was measured on one store, scans by the number of their threads.

    ``warm``: a scan in a process that had scanned before. ``whole``: imports and all.
    """

    case: Case
    bare: Measured
    warm: Mapping[int, Measured]
    whole: Mapping[int, Measured]
    integrity: Measured


def measure_case(options: Options, case: Case) -> Reading:
    """Measure one store."""
    path, tiny = str(options.store(case)), str(options.store(Case(case.release, TINY, 0.0)))
    tasks = {
        "bare": Task(BARE_READ.format(path=path), "import apsw"),
        "integrity": Task(INTEGRITY.format(path=path), "import apsw"),
    }
    for threads in THREADS:
        scan = SCAN.format(path=path, threads=threads)
        tasks[f"whole {threads}"] = Task(scan, SCAN_IMPORTS)
        tasks[f"warm {threads}"] = Task(scan, f"{SCAN_IMPORTS}\n{SCAN.format(path=tiny, threads=threads)}")
    warm_up(Path(path))
    taken = compare(tasks, times=options.times)
    warm, whole = ({threads: taken[f"{name} {threads}"] for threads in THREADS} for name in ("warm", "whole"))
    return Reading(case, taken["bare"], warm, whole, taken["integrity"])


def figures_of(reading: Reading) -> list[Figure]:
    """The ratios of one store, and the peak memory of its scan."""
    case, bare = reading.case, reading.bare
    found: list[Figure] = []
    for threads, most in ((1, 1.3), (2, 0.8)):
        scan, whole = reading.warm[threads], reading.whole[threads]
        name = f"scan / bare read, {counted(threads)}"
        found.append(
            at_most(f"{name}: {case}", scan.seconds / bare.seconds, most, "times", f"{said(scan)} / {said(bare)}")
        )
        note = f"{whole.whole_seconds:.2f} s / {bare.whole_seconds:.2f} s"
        found.append(plain(f"{name}, with imports: {case}", whole.whole_seconds / bare.whole_seconds, "times", note))
        note = f"{whole.answer:,} findings"
        found.append(at_most(f"peak of a scan, {counted(threads)}: {case}", whole.peak_bytes / 1e6, 100, "MB", note))
        found.append(slower(f"integrity_check / scan, {counted(threads)}: {case}", reading.integrity, whole))
    return found if case.messages >= PROMISED_FROM else [unpromised(each) for each in found]


def slower(name: str, other: Measured, scan: Measured) -> Figure:
    """How many times as long something else takes; the scan's imports count, the other's do not."""
    note = f"{said(other)} / {scan.whole_seconds:.2f} s with imports"
    return at_least(name, other.seconds / scan.whole_seconds, 10, "times", note)


def counted(threads: int) -> str:
    """So many threads, in words."""
    return "1 thread" if threads == 1 else f"{threads} threads"


def said(measured: Measured) -> str:
    """Seconds and memory in a few words."""
    return f"{measured.seconds:.3f} s ({measured.cpu_seconds:.3f} s of CPU, {measured.peak_bytes / 1e6:.0f} MB)"


def warm_up(path: Path) -> None:
    """Read a file once, so that it is in memory for all that follows, as far as it fits."""
    with path.open("rb", buffering=0) as file:
        while file.read(1 << 20):
            pass
