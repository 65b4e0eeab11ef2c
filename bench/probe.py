"""Against the health probe that hermes's own doctor runs over ``state.db``: for real, and with our SQLite.

For real: the release's own function, called in a process of the release's own, with Python's SQLite. That one is often
old, so the very statements that the release was seen to make there are also made through APSW, by the SQLite that the
doctor uses: that is the comparison that is promised. (`hermes doctor` does more than its probe, and so is slower.)
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.figures import Figure, unpromised
from bench.measure import Task, compare
from bench.options import Case, Options
from bench.reading import PROMISED_FROM, SCAN, SCAN_IMPORTS, THREADS, TINY, counted, slower, warm_up
from tests.oracle.home import environment
from tests.oracle.releases import get

#: What `hermes doctor` calls on the store, in the last release of each layout.
PROBES = {
    "0.19.0": "from hermes_state import _db_opens_cleanly as probe",
    "0.22.2": """
from functools import partial
from hermes_cli.doctor_state import _write_health_reason
probe = partial(_write_health_reason, should_fix=False)
""",
}

#: Notes each statement of each connection, and when it is closed.
_LISTENING = """
import sqlite3
from pathlib import Path
made = []
connect = sqlite3.connect
def listening(*arguments, factory=sqlite3.Connection, **options):
    class Noting(factory):
        def execute(self, sql, values=(), /):
            made.append([self.number, sql, list(values)])
            return super().execute(sql, values)

        def close(self):
            made.append([self.number, None, None])
            super().close()
    connection = connect(*arguments, factory=Noting, **options)
    listening.number += 1
    connection.number = listening.number
    return connection
listening.number = 0
sqlite3.connect = listening
"""
#: The release's verdict (None: healthy), its SQLite's version, and what was noted.
_REAL = "answer = [probe(Path({path!r})), sqlite3.sqlite_version, made]"

_SAME_STATEMENTS = """
connections = {{}}
for number, sql, values in statements:
    if sql is None:
        connections.pop(number).close()
        continue
    if number not in connections:
        connections[number] = apsw.Connection({path!r})
    try:
        connections[number].execute(sql, values).fetchall()
    except apsw.SQLError as error:
        # An index that this store has not got: the release goes on, too.
        if "no such table" not in str(error):
            raise
"""


def figures(options: Options) -> list[Figure]:
    """How many times as long as a scan the probe of each release takes, on the stores that the release made."""
    found = []
    for case in options.cases:
        if case.release in PROBES:
            found += _figures(options, case)
    return found


def _figures(options: Options, case: Case) -> list[Figure]:
    path, release = options.store(case), case.release
    # The statements are the same on any store of the release, so they are taken from a small one.
    statements = compare({"": _real(options.store(Case(release, TINY, 0.0)), release)}, times=1)[""].answer[2]
    tasks = {
        "real": _real(path, release),
        "same": Task(_SAME_STATEMENTS.format(path=str(path)), f"import apsw\nstatements = {statements!r}"),
    }
    tasks |= {f"{threads}": Task(SCAN.format(path=str(path), threads=threads), SCAN_IMPORTS) for threads in THREADS}
    warm_up(path)
    taken = compare(tasks, times=options.times)
    found = []
    for threads in THREADS:
        scan = taken[f"{threads}"]
        what = f"{release}'s probe / scan, {counted(threads)}"
        same = slower(f"{what}, same SQLite: {case}", taken["same"], scan)
        found.append(same if case.messages >= PROMISED_FROM else unpromised(same))
        verdict, version, _made = taken["real"].answer
        says = "" if verdict is None else f"; it says: {verdict}"
        own = unpromised(slower(f"{what}, for real: {case}", taken["real"], scan))
        found.append(replace(own, note=f"{own.note}, SQLite {version}{says}"))
    return found


def _real(path: Path, release: str) -> Task:
    """The release's own probe, in its own environment; its imports are not counted against it."""
    surroundings: dict[str, Any] = environment(path.parent, get(release))
    return Task(_REAL.format(path=str(path)), f"{_LISTENING}\n{PROBES[release]}", environment=surroundings)
