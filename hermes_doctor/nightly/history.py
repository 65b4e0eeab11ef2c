"""What earlier scans came to: counts for each check and store, in the user's state folder; never what was found.

Every scan adds an entry, and the entries thin out by themselves. The history is a help and no more: where it is broken
it counts as empty, and where it cannot be written the scan goes on without it.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hermes_doctor import __version__
from hermes_doctor.engine.scan import ScanOptions, StoreScan
from hermes_doctor.engine.state_file import StateFile, path_cell, state_folder
from hermes_doctor.host.bundle import Condition
from hermes_doctor.host.homes import default_home, real, root_of

FILE = "history.db"

HOUR, DAY = 3600.0, 86400.0

#: How long entries are kept how densely, in seconds: within that age, the last one of every so many seconds.
THINNING = ((DAY, 0.0), (30 * DAY, HOUR), (365 * DAY, 7 * DAY), (float("inf"), 30 * DAY))
#: A store that was not looked at for so long is forgotten, in seconds.
FORGOTTEN_AFTER = 400 * DAY

#: What says that a store could not be read at all.
UNREAD = frozenset(
    condition.value for condition in (Condition.DAMAGED, Condition.UNREADABLE, Condition.MISSING, Condition.NOT_HERMES)
)
#: What may be no store at all, but a name that was typed wrong: of these only known ones are noted.
_PERHAPS_NONE = frozenset((Condition.MISSING.value, Condition.NOT_HERMES.value))

_COLUMNS = {
    "path": "TEXT",
    "at": "REAL",
    "condition": "TEXT",
    "stopped": "INTEGER",
    "deep": "INTEGER",
    "idle": "REAL",
    "version": "TEXT",
    "schema_version": "INTEGER",
    "sessions": "INTEGER",
    "messages": "INTEGER",
    "bytes": "INTEGER",
    "seconds": "REAL",
    "counts": "TEXT",
    "failed": "TEXT",
}


@dataclass(frozen=True)
class Entry:
    """What one scan of one store came to.

    ``at``: seconds since the epoch. ``condition``: as a scan calls it. ``deep``, ``idle``: how it was asked, the latter
    in seconds. ``counts``: what each check found that came to its end. ``failed``: the checks that did not.
    """

    store: Path
    at: float
    condition: str = Condition.READABLE.value
    stopped: bool = False
    deep: bool = False
    idle: float = 0.0
    version: str = __version__
    schema_version: int | None = None
    sessions: int | None = None
    messages: int | None = None
    bytes: int | None = None
    seconds: float = 0.0
    counts: Mapping[str, int] = field(default_factory=dict)
    failed: Sequence[str] = ()

    @property
    def read(self) -> bool:
        """Whether the store could be read."""
        return self.condition not in UNREAD


def entry_of(scan: StoreScan, options: ScanOptions) -> Entry:
    """Return what is kept of a scan that has just ended."""
    return Entry(
        store=real(scan.ref.path),
        at=time.time(),
        condition=scan.condition.value,
        stopped=scan.stopped is not None,
        deep=options.deep,
        idle=options.idle_floor,
        schema_version=scan.schema_version,
        sessions=scan.sessions,
        messages=scan.messages,
        bytes=scan.bytes,
        seconds=round(scan.seconds, 3),
        counts={result.check.name: result.count for result in scan.checks if result.status == "ran"},
        failed=[result.check.name for result in scan.checks if result.status == "failed"],
    )


def note(scan: StoreScan, options: ScanOptions) -> bool:
    """Keep what a scan came to in the user's history, if that is possible; return whether it was.

    Never raises, and never writes into a Hermes home, should the state folder lie in one.
    """
    try:
        folder = state_folder()
        return not _lies_in_a_home(folder, scan) and History(folder).keep([entry_of(scan, options)])
    except Exception:
        # Whatever is wrong with what is only a help: the scan itself is well.
        return False


class History:
    """The history in one folder. Never raises for what is wrong with it: what cannot be read counts as empty."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self._file = StateFile(self.path)

    @classmethod
    def of_user(cls) -> History:
        """Return that of the user who runs the doctor."""
        return cls(state_folder())

    def keep(self, entries: Iterable[Entry]) -> bool:
        """Add entries, and thin out what is kept of their stores; return whether that worked."""
        rows = [(path_cell(entry.store), entry.condition, _row(entry)) for entry in entries]

        def change(connection: sqlite3.Connection) -> None:
            _make(connection)
            for cell, condition, row in rows:
                known = connection.execute("SELECT 1 FROM scans WHERE path = ?", (cell,)).fetchone()
                if condition in _PERHAPS_NONE and not known:
                    continue
                connection.execute(f"INSERT INTO scans VALUES (NULL{', ?' * len(_COLUMNS)})", row)
                _thin_out(connection, cell, time.time())

        return self._file.write_lightly(change)

    def entries(self) -> dict[Path, list[Entry]]:
        """Return what is kept, store by store: the one that was scanned last comes first, its oldest entry first."""
        found: dict[Path, list[Entry]] = {}
        for entry in self._read(f"SELECT {', '.join(_COLUMNS)} FROM scans ORDER BY at, id"):
            found.setdefault(entry.store, []).append(entry)
        return dict(sorted(found.items(), key=lambda each: -each[1][-1].at))

    def of_store(self, store: Path) -> list[Entry]:
        """Return what is kept of one store, whose path has no links: its oldest entry first."""
        question = f"SELECT {', '.join(_COLUMNS)} FROM scans WHERE path = ? ORDER BY at, id"
        return list(self._read(question, path_cell(store)))

    def _read(self, question: str, *values: object) -> Iterator[Entry]:
        """Give the entries of a question that are such."""
        for row in self._file.rows(question, *values):
            entry = _entry(row)
            if entry is not None:
                yield entry


def _lies_in_a_home(folder: Path, scan: StoreScan) -> bool:
    homes = [default_home()] if scan.ref.home is None else [default_home(), root_of(scan.ref.home)]
    return any(real(folder).is_relative_to(real(home)) for home in homes)


def _make(connection: sqlite3.Connection) -> None:
    """Make the table; raises DatabaseError where it is laid out in another way."""
    there = [name for (name,) in connection.execute("SELECT name FROM pragma_table_info('scans')")]
    if there and there != ["id", *_COLUMNS]:
        raise sqlite3.DatabaseError("it is laid out in another way")
    if not there:
        columns = ", ".join(f"{name} {kind}" for name, kind in _COLUMNS.items())
        connection.execute(f"CREATE TABLE scans (id INTEGER PRIMARY KEY, {columns})")
        connection.execute("CREATE INDEX scans_by_store ON scans (path, at)")


def _thin_out(connection: sqlite3.Connection, cell: str | bytes, now: float) -> None:
    kept = connection.execute("SELECT id, at, deep FROM scans WHERE path = ? ORDER BY at, id", (cell,)).fetchall()
    for number in surplus(kept, now):
        connection.execute("DELETE FROM scans WHERE id = ?", (number,))
    connection.execute(
        "DELETE FROM scans WHERE path IN (SELECT path FROM scans GROUP BY path HAVING max(at) < ?)",
        (now - FORGOTTEN_AFTER,),
    )


def surplus(kept: Sequence[tuple[int, float, int]], now: float) -> list[int]:
    """Return the numbers of the entries that may go, of (number, time, whether deep) in the order of the times.

    All of a day stay, then the last of each hour for 30 days, of each week for a year, of each 30 days for ever; of
    deep scans and of others each.
    """
    gone: list[int] = []
    last: dict[tuple[int, float, float], int] = {}
    for number, at, deep in kept:
        _age, width = next(step for step in THINNING if now - at <= step[0])
        if not width:
            continue
        # By the calendar, not by the age: what stays today is not what would go tomorrow.
        place = (deep, width, at // width)
        if place in last:
            gone.append(last[place])
        last[place] = number
    return gone


def _row(entry: Entry) -> tuple[str | bytes | int | float | None, ...]:
    return (
        path_cell(entry.store),
        entry.at,
        entry.condition,
        int(entry.stopped),
        int(entry.deep),
        entry.idle,
        entry.version,
        entry.schema_version,
        entry.sessions,
        entry.messages,
        entry.bytes,
        entry.seconds,
        json.dumps(dict(entry.counts)),
        json.dumps(list(entry.failed)),
    )


def _entry(row: Sequence[Any]) -> Entry | None:
    """Return an entry as it was kept, None for one that is none."""
    path, at, condition, stopped, deep, idle, version, schema_version, sessions, messages, size, seconds, *lists = row
    try:
        counts, failed = (json.loads(text) for text in lists)
        return Entry(
            Path(os.fsdecode(path)),
            float(at),
            str(condition),
            bool(stopped),
            bool(deep),
            float(idle),
            str(version),
            schema_version,
            sessions,
            messages,
            size,
            float(seconds),
            {str(check): int(count) for check, count in counts.items()},
            [str(check) for check in failed],
        )
    except (TypeError, ValueError, AttributeError):
        return None
