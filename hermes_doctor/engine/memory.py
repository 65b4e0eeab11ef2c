"""What a scan keeps for the next one: what each stretch of messages came to, and what proves that it is as it was.

It lies in the user's state folder and holds keys, counts and the ids of sessions, never what anybody said. It is a
help, not a record: where it is missing, broken or of another doctor, everything is read.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from hermes_doctor.engine.state_file import StateFile, path_cell, state_folder
from hermes_doctor.store.file_mark import FileMark
from hermes_doctor.store.reader import Values
from hermes_doctor.store.stretches import Stretch

if TYPE_CHECKING:
    from sqlite_utils import Database
    from sqlite_utils.db import Table

FILE = "last-scans.db"

#: Stands for the digest of the stretch before the first, or behind the last.
NOTHING = b"nothing"

_STORES = {"path": str, "question": str, "mark": str, "at": float}
_STRETCHES = {
    "path": str,
    "low": int,
    "high": int,
    "parent": int,
    "linkage": bytes,
    "leaves": bytes,
    "runs": bytes,
    "digest": bytes,
    "rows": int,
    "before": bytes,
    "behind": bytes,
    "came_to": str,
}


@dataclass(frozen=True, slots=True)
class Kept:
    """What one stretch came to: how many ``rows`` it has, and the ``values`` of its range.

    ``before``, ``behind``: the digests of the stretches next to it when that was asked; `NOTHING` at the ends of the
    table, empty where they are not known to be of the same moment.
    """

    stretch: Stretch
    rows: int
    before: bytes
    behind: bytes
    values: Values


@dataclass(frozen=True)
class Recalled:
    """What is kept of one store, in the order of the keys. ``mark``: its files when all of that was proven, if ever."""

    kept: Sequence[Kept] = ()
    mark: FileMark | None = None


class Memory:
    """What was kept in one folder. Never raises for what is wrong with it: what cannot be read counts as empty."""

    def __init__(self, folder: Path) -> None:
        self._file = StateFile(folder / FILE)

    @classmethod
    def of_user(cls) -> Memory:
        """Return that of the user who runs the doctor."""
        return cls(state_folder())

    def recall(self, store: Path, question: str) -> Recalled | None:
        """Return what is kept of a store for just this question; None where there is nothing of that kind."""
        cell = path_cell(store)
        try:
            with self._file.reading() as database:
                if database is None:
                    return None
                found = database.execute("SELECT question, mark FROM stores WHERE path = ?", (cell,)).fetchone()
                if found is None or found[0] != question:
                    return None
                rows = database.execute(
                    f"SELECT {', '.join(_STRETCHES)} FROM stretches WHERE path = ? ORDER BY low", (cell,)
                ).fetchall()
            mark = json.loads(found[1])
            kept = [
                Kept(Stretch(*stretch), count, before, behind, tuple(json.loads(came_to)))
                for _path, *stretch, count, before, behind, came_to in rows
            ]
            return Recalled(kept, None if mark is None else _mark_of(mark))
        except (OSError, sqlite3.Error, ValueError, TypeError, KeyError):
            return None

    def keep(
        self, store: Path, question: str, mark: FileMark | None, gone: Iterable[Kept], new: Sequence[Kept]
    ) -> bool:
        """Keep what a scan came to, beside what is kept already but for what is ``gone``; return whether that worked.

        ``mark``: the store's files, where all that is kept then is proven to be of that moment.
        """
        cell, keys = path_cell(store), [kept.stretch.low for kept in gone]

        def change(database: Database) -> None:
            stores, stretches = (cast("Table", database[name]) for name in ("stores", "stretches"))
            if (stores.exists() and stores.columns_dict.keys() != _STORES.keys()) or (
                stretches.exists() and stretches.columns_dict.keys() != _STRETCHES.keys()
            ):
                raise sqlite3.DatabaseError("it is laid out in another way")
            stores.create(_STORES, pk="path", if_not_exists=True)
            stretches.create(_STRETCHES, pk=("path", "low"), if_not_exists=True)
            asked = database.execute("SELECT question FROM stores WHERE path = ?", (cell,)).fetchone()
            if asked is None or asked[0] != question:
                database.execute("DELETE FROM stretches WHERE path = ?", (cell,))
            for low in keys:
                database.execute("DELETE FROM stretches WHERE path = ? AND low = ?", (cell, low))
            stores.upsert(
                {
                    "path": cell,
                    "question": question,
                    "mark": json.dumps(None if mark is None else asdict(mark)),
                    "at": time.time(),
                },
                pk="path",
            )
            marks = ", ".join("?" * len(_STRETCHES))
            database.conn.executemany(
                f"INSERT OR REPLACE INTO stretches ({', '.join(_STRETCHES)}) VALUES ({marks})",
                (
                    (cell, *astuple(kept.stretch), kept.rows, kept.before, kept.behind, json.dumps(kept.values))
                    for kept in new
                ),
            )

        return self._file.write(change)


def _mark_of(said: dict[str, object]) -> FileMark:
    lists = {name: tuple(value) if isinstance(value, list) else value for name, value in said.items()}
    return FileMark(**lists)  # type: ignore[arg-type]  # as `asdict` wrote it; what is not raises
