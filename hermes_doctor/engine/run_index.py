"""Which store a run belongs to, so that `doctor runs` and `doctor undo` find it without being told.

The index lies in the user's state folder and holds names and paths only. It is a help, not a record: the journal
beside each store is the truth, and an index that is missing or broken costs nothing but a TARGET to be typed.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from platformdirs import user_state_path
from sqlite_utils import Database
from sqlite_utils.db import Table

from hermes_doctor.engine.journal import Run

NAME = "hermes-state-doctor"
FILE = "runs.db"

_COLUMNS = {"run": str, "path": str, "at": float}

#: Longest wait for another doctor that writes to the index, in seconds.
_PATIENCE = 2.0


def state_folder() -> Path:
    """Return the doctor's folder for what is the user's own; it need not exist. ``XDG_STATE_HOME`` is honoured."""
    named = os.environ.get("XDG_STATE_HOME", "").strip()
    return Path(named) / NAME if named and Path(named).is_absolute() else user_state_path(NAME, appauthor=False)


class RunIndex:
    """The index in one folder. Never raises for what is wrong with it: what cannot be read counts as empty."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE

    @classmethod
    def of_user(cls) -> RunIndex:
        """Return the index of the user who runs the doctor."""
        return cls(state_folder())

    def note(self, store: Path, runs: Sequence[Run]) -> bool:
        """Put a store's runs into the index; return whether that worked.

        A broken index is made anew, with these runs in it.
        """
        rows: list[dict[str, Any]] = [{"run": run.run, "path": _cell(store.absolute()), "at": run.at} for run in runs]
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                self._write(rows)
            except sqlite3.OperationalError:
                raise
            except sqlite3.DatabaseError:
                self.path.unlink()
                self._write(rows)
        except (OSError, sqlite3.Error):
            return False
        return True

    def stores(self) -> list[Path]:
        """The stores that have runs, the one with the newest run first; whether they are still there is not asked."""
        if not self.path.is_file():
            return []
        try:
            with self._open("ro") as database:
                found = database.execute("SELECT path FROM runs GROUP BY path ORDER BY max(at) DESC").fetchall()
        except (OSError, sqlite3.Error):
            return []
        return [Path(os.fsdecode(path)) for (path,) in found if isinstance(path, str | bytes)]

    def _write(self, rows: Sequence[dict[str, Any]]) -> None:
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
        with self._open("rw") as database:
            database.execute("PRAGMA secure_delete = ON")
            with database.atomic():
                runs = cast(Table, database["runs"])
                if runs.exists() and runs.columns_dict.keys() != _COLUMNS.keys():
                    raise sqlite3.DatabaseError("it is laid out in another way")
                runs.create(_COLUMNS, pk=("run", "path"), if_not_exists=True)
                runs.upsert_all(rows, pk=("run", "path"))

    @contextmanager
    def _open(self, mode: str) -> Iterator[Database]:
        with contextlib.closing(
            sqlite3.connect(
                f"{self.path.absolute().as_uri()}?mode={mode}", uri=True, timeout=_PATIENCE, isolation_level=None
            )
        ) as connection:
            yield Database(connection)


def _cell(path: Path) -> str | bytes:
    """Return a path as a cell can hold it: its bytes where it is no text."""
    text = str(path)
    try:
        text.encode()
    except UnicodeEncodeError:
        return os.fsencode(text)
    return text
