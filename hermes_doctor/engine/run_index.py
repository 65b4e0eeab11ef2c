"""Which store a run belongs to, so that `doctor runs` and `doctor undo` find it without being told.

The index lies in the user's state folder and holds names and paths only. It is a help, not a record: the journal
beside each store is the truth, and an index that is missing or broken costs nothing but a TARGET to be typed.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from hermes_doctor.engine.journal import Run
from hermes_doctor.engine.state_file import StateFile, path_cell, state_folder

if TYPE_CHECKING:
    from sqlite_utils import Database
    from sqlite_utils.db import Table

FILE = "runs.db"

_COLUMNS = {"run": str, "path": str, "at": float}


class RunIndex:
    """The index in one folder. Never raises for what is wrong with it: what cannot be read counts as empty."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self._file = StateFile(self.path)

    @classmethod
    def of_user(cls) -> RunIndex:
        """Return the index of the user who runs the doctor."""
        return cls(state_folder())

    def note(self, store: Path, runs: Sequence[Run]) -> bool:
        """Put a store's runs into the index; return whether that worked.

        A broken index is made anew, with these runs in it.
        """
        rows: list[dict[str, Any]] = [
            {"run": run.run, "path": path_cell(store.absolute()), "at": run.at} for run in runs
        ]

        def change(database: Database) -> None:
            table = cast("Table", database["runs"])
            if table.exists() and table.columns_dict.keys() != _COLUMNS.keys():
                raise sqlite3.DatabaseError("it is laid out in another way")
            table.create(_COLUMNS, pk=("run", "path"), if_not_exists=True)
            table.upsert_all(rows, pk=("run", "path"))

        return self._file.write(change)

    def stores(self) -> list[Path]:
        """The stores that have runs, the one with the newest run first; whether they are still there is not asked."""
        try:
            with self._file.reading() as database:
                if database is None:
                    return []
                found = database.execute("SELECT path FROM runs GROUP BY path ORDER BY max(at) DESC").fetchall()
        except (OSError, sqlite3.Error):
            return []
        return [Path(os.fsdecode(path)) for (path,) in found if isinstance(path, str | bytes)]
