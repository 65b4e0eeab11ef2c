"""What somebody wants to hear no more of for a while. A mute ends by itself: in time, or sooner where it gets worse.

Mutes lie in the user's state folder. What is muted is looked for and counted all the same, and every report says what
is muted and until when; it only counts for nothing.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from hermes_doctor.engine.scan import CheckResult, Muted, ScanOptions, StoreScan
from hermes_doctor.engine.state_file import StateFile, path_cell, state_folder
from hermes_doctor.host.homes import real

if TYPE_CHECKING:
    from sqlite_utils import Database
    from sqlite_utils.db import Table

    from hermes_doctor.nightly.history import Entry

FILE = "mutes.db"

#: Stands for every store where a mute is kept.
_EVERYWHERE = ""
#: Stands for the number beyond which it is worse, on a store on which a mute of every store has ended.
_ENDED = -1

_MUTES = {"name": str, "path": str, "since": float, "until": float, "until_worse": int}
#: How many were found at best on a store since the mute began, by scans with --deep and by others.
_BARS = {"name": str, "path": str, "store": str, "deep": int, "count": int}

_Cell = str | bytes


@dataclass(frozen=True)
class Mute:
    """That a check is muted. ``store``: None for every store. ``since``, ``until``: seconds since the epoch.

    ``until_worse``: on each store it ends sooner, where more are found than at best since it began. ``ended_on``: the
    stores where it has.
    """

    check: str
    store: Path | None
    since: float
    until: float
    until_worse: bool = False
    ended_on: Sequence[Path] = ()

    def holds_on(self, store: Path) -> bool:
        """Whether it stands on a store, whose path has no links."""
        return store not in self.ended_on if self.store is None else self.store == store


@dataclass(frozen=True)
class Worse:
    """That a mute ended on a store since ``count`` were found there, more than ``bar``."""

    check: str
    store: Path
    count: int
    bar: int


def mark(scan: StoreScan, options: ScanOptions) -> list[Worse]:
    """Mark in a scan what the user has muted on its store; return the mutes that it has ended, since it got worse.

    Never raises.
    """
    try:
        return Mutes.of_user().mark(scan, options, time.time())
    except Exception:
        # Whatever is wrong there counts as no mute: the scan itself is well, and tells more.
        return []


class Mutes:
    """The mutes in one folder. What cannot be read counts as none."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self._file = StateFile(self.path)

    @classmethod
    def of_user(cls) -> Mutes:
        """Return those of the user who runs the doctor."""
        return cls(state_folder())

    def standing(self, now: float) -> list[Mute]:
        """Return the mutes that have not ended; ``now`` in seconds since the epoch."""
        ended: dict[tuple[str, _Cell], list[Path]] = {}
        for name, path, store in self._file.rows(
            "SELECT DISTINCT name, path, store FROM bars WHERE count = ? ORDER BY store", _ENDED
        ):
            ended.setdefault((name, path), []).append(_path(store))
        return [
            Mute(
                name,
                None if path == _EVERYWHERE else _path(path),
                since,
                until,
                bool(until_worse),
                tuple(ended.get((name, path), ())),
            )
            for name, path, since, until, until_worse in self._file.rows(
                "SELECT name, path, since, until, until_worse FROM mutes WHERE until > ? ORDER BY name, path", now
            )
        ]

    def add(self, mutes: Sequence[Mute], history: Mapping[Path, Sequence[Entry]], now: float) -> bool:
        """Begin mutes, each in place of the same one, and drop those that have ended; return whether that worked.

        ``history``: what the last scans came to, which says from where on it is worse.
        """

        def change(database: Database) -> None:
            kept, bars = _tables(database)
            for name, path in database.execute("SELECT name, path FROM mutes WHERE until <= ?", (now,)).fetchall():
                _drop(database, name, path)
            for mute in mutes:
                _drop(database, mute.check, _scope(mute))
                kept.insert(
                    {
                        "name": mute.check,
                        "path": _scope(mute),
                        "since": mute.since,
                        "until": mute.until,
                        "until_worse": int(mute.until_worse),
                    }
                )
                bars.insert_all(_bars(mute, history))

        return self._file.write(change)

    def end(self, check: str, stores: Sequence[Path] | None) -> bool:
        """End the mutes of a check, on these stores or on all; return whether that worked."""

        def change(database: Database) -> None:
            _tables(database)
            if stores is None:
                for table in ("mutes", "bars"):
                    database.execute(f"DELETE FROM {table} WHERE name = ?", (check,))
                return
            for store in stores:
                _drop(database, check, path_cell(real(store)))
                _end_on(database.conn, check, _EVERYWHERE, path_cell(real(store)))

        return self._file.write(change)

    def mark(self, scan: StoreScan, options: ScanOptions, now: float) -> list[Worse]:
        """Mark in a scan what is muted on its store; return the mutes that it has ended, since it got worse."""
        store = real(scan.ref.path)
        standing: dict[str, list[Mute]] = {}
        for mute in self.standing(now):
            if mute.holds_on(store):
                # What was said of this store alone counts more than what was said of all.
                standing.setdefault(mute.check, []).insert(0 if mute.store else 1, mute)
        if not standing:
            return []
        cell = path_cell(store)
        bars = {
            (name, path): count
            for name, path, count in self._file.rows(
                "SELECT name, path, count FROM bars WHERE store = ? AND deep = ?", cell, int(options.deep)
            )
        }
        lower: list[tuple[str, _Cell, int]] = []
        worse: list[tuple[_Cell, Worse]] = []
        for result in scan.checks:
            for mute in standing.get(result.check.name, ()):
                key = (mute.check, _scope(mute))
                bar = bars.get(key)
                if mute.until_worse and bar is not None and result.count > bar:
                    worse.append((key[1], Worse(mute.check, store, result.count, bar)))
                    continue
                if mute.until_worse and _tells(result, options) and (bar is None or result.count < bar):
                    bar = result.count
                    lower.append((*key, bar))
                result.muted = Muted(mute.since, mute.until, bar if mute.until_worse else None)
                break
        if lower or worse:

            def change(connection: sqlite3.Connection) -> None:
                for name, path, count in lower:
                    connection.execute(
                        "INSERT OR REPLACE INTO bars (name, path, store, deep, count) VALUES (?, ?, ?, ?, ?)",
                        (name, path, cell, int(options.deep), count),
                    )
                for path, each in worse:
                    _end_on(connection, each.check, path, cell)

            self._file.write_lightly(change)
        return [each for _path, each in worse]


def _tells(result: CheckResult, options: ScanOptions) -> bool:
    """Whether as few as were found is all that there is: the check came to its end, and was not made more patient."""
    return result.status == "ran" and not options.idle_floor


def _tables(database: Database) -> tuple[Table, Table]:
    """Return the two tables, made where they are missing; raises DatabaseError where one is laid out otherwise."""
    mutes, bars = (cast("Table", database[name]) for name in ("mutes", "bars"))
    for table, columns, key in ((mutes, _MUTES, ("name", "path")), (bars, _BARS, ("name", "path", "store", "deep"))):
        if table.exists() and table.columns_dict.keys() != columns.keys():
            raise sqlite3.DatabaseError("it is laid out in another way")
        table.create(columns, pk=key, if_not_exists=True)
    return mutes, bars


def _bars(mute: Mute, history: Mapping[Path, Sequence[Entry]]) -> Iterable[dict[str, object]]:
    """Give how many were last found on each store, by scans with --deep and by others; not by more patient ones."""
    for store, entries in history.items():
        if not mute.until_worse or mute.store not in (None, store):
            continue
        told = [entry for entry in entries if mute.check in entry.counts and not entry.idle]
        last = {entry.deep: entry.counts[mute.check] for entry in told}
        for deep, count in last.items():
            yield {
                "name": mute.check,
                "path": _scope(mute),
                "store": path_cell(store),
                "deep": int(deep),
                "count": count,
            }


def _drop(database: Database, check: str, scope: _Cell) -> None:
    for table in ("mutes", "bars"):
        database.execute(f"DELETE FROM {table} WHERE name = ? AND path = ?", (check, scope))


def _end_on(connection: sqlite3.Connection, check: str, scope: _Cell, store: _Cell) -> None:
    """End a mute on one store: one of this store alone goes, of every store it is noted."""
    if scope != _EVERYWHERE:
        for table in ("mutes", "bars"):
            connection.execute(f"DELETE FROM {table} WHERE name = ? AND path = ?", (check, scope))
        return
    connection.executemany(
        "INSERT OR REPLACE INTO bars (name, path, store, deep, count) SELECT name, path, ?, ?, ? FROM mutes"
        " WHERE name = ? AND path = ?",
        [(store, deep, _ENDED, check, scope) for deep in (0, 1)],
    )


def _scope(mute: Mute) -> _Cell:
    return _EVERYWHERE if mute.store is None else path_cell(mute.store)


def _path(cell: _Cell) -> Path:
    return Path(os.fsdecode(cell))
