"""The doctor's own records that are a help and no more: databases in the user's state folder, never in a Hermes home.

What is missing or broken there counts as empty, and is made anew at the next writing.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from platformdirs import user_state_path
from sqlite_utils import Database

NAME = "hermes-state-doctor"

#: Longest wait for another doctor that writes to the same file, in seconds.
_PATIENCE = 2.0


def state_folder() -> Path:
    """Return the doctor's folder for what is the user's own; it need not exist. ``XDG_STATE_HOME`` is honoured."""
    named = os.environ.get("XDG_STATE_HOME", "").strip()
    return Path(named) / NAME if named and Path(named).is_absolute() else user_state_path(NAME, appauthor=False)


class StateFile:
    """One such database, readable by its user alone."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def reading(self) -> Iterator[Database | None]:
        """Give the database to read, None where there is none. Raises what SQLite and the file system raise."""
        if not self.path.is_file():
            yield None
            return
        with self._open("ro") as database:
            yield database

    def write(self, change: Callable[[Database], None]) -> bool:
        """Change the database in one transaction; return whether that worked. A broken one is made anew.

        ``change`` makes the tables that it needs, and raises sqlite3.DatabaseError where one is laid out otherwise. It
        may be called twice.
        """
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                self._write(change)
            except sqlite3.OperationalError:
                raise
            except sqlite3.DatabaseError:
                self.path.unlink()
                self._write(change)
        except (OSError, sqlite3.Error):
            return False
        return True

    def _write(self, change: Callable[[Database], None]) -> None:
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
        with self._open("rw") as database:
            database.execute("PRAGMA secure_delete = ON")
            with database.atomic():
                change(database)

    @contextmanager
    def _open(self, mode: str) -> Iterator[Database]:
        with contextlib.closing(
            sqlite3.connect(
                f"{self.path.absolute().as_uri()}?mode={mode}", uri=True, timeout=_PATIENCE, isolation_level=None
            )
        ) as connection:
            yield Database(connection)


def path_cell(path: Path) -> str | bytes:
    """Return a path as a cell can hold it: its bytes where it is no text."""
    text = str(path)
    try:
        text.encode()
    except UnicodeEncodeError:
        return os.fsencode(text)
    return text
