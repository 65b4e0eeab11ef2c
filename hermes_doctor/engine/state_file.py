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
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sqlite_utils import Database

NAME = "hermes-state-doctor"

#: Longest wait for another doctor that writes to the same file, in seconds.
_PATIENCE = 2.0
#: The same where what is written is not worth waiting for.
_LITTLE_PATIENCE = 0.2


def state_folder() -> Path:
    """Return the doctor's folder for what is the user's own; it need not exist. ``XDG_STATE_HOME`` is honoured."""
    named = os.environ.get("XDG_STATE_HOME", "").strip()
    if named and Path(named).is_absolute():
        return Path(named) / NAME
    from platformdirs import user_state_path

    return user_state_path(NAME, appauthor=False)


class StateFile:
    """One such database, readable by its user alone.

    `rows`, `write_plainly` and `write_lightly` do without sqlite_utils: to load it takes longer than many a scan.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def reading(self) -> Iterator[Database | None]:
        """Give the database to read, None where there is none. Raises what SQLite and the file system raise."""
        if not self.path.is_file():
            yield None
            return
        with self._open("ro") as connection:
            yield _database(connection)

    def rows(self, question: str, *values: object) -> list[tuple[Any, ...]]:
        """Return what a question gives; nothing where the database or its table is missing, or broken."""
        if not self.path.is_file():
            return []
        try:
            with self._open("ro") as connection:
                return connection.execute(question, values).fetchall()
        except (OSError, sqlite3.Error):
            return []

    def write(self, change: Callable[[Database], None]) -> bool:
        """Change the database in one transaction; return whether that worked. A broken one is made anew.

        ``change`` makes the tables that it needs, and raises sqlite3.DatabaseError where one is laid out otherwise. It
        may be called twice.
        """

        def with_utilities(connection: sqlite3.Connection) -> None:
            database = _database(connection)
            with database.atomic():
                change(database)

        return self._write(with_utilities, _PATIENCE)

    def write_plainly(self, change: Callable[[sqlite3.Connection], None]) -> bool:
        """Do the same without sqlite_utils."""
        return self._write(lambda connection: _in_one(connection, change), _PATIENCE)

    def write_lightly(self, change: Callable[[sqlite3.Connection], None]) -> bool:
        """Do the same with little patience, and without waiting for the disk: a power failure may cost the file."""

        def lightly(connection: sqlite3.Connection) -> None:
            connection.execute("PRAGMA synchronous = OFF")
            _in_one(connection, change)

        return self._write(lightly, _LITTLE_PATIENCE)

    def _write(self, work: Callable[[sqlite3.Connection], None], patience: float) -> bool:
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                self._try(work, patience)
            except sqlite3.OperationalError:
                raise
            except sqlite3.DatabaseError:
                self.path.unlink()
                self._try(work, patience)
        except (OSError, sqlite3.Error):
            return False
        return True

    def _try(self, work: Callable[[sqlite3.Connection], None], patience: float) -> None:
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
        with self._open("rw", patience) as connection:
            connection.execute("PRAGMA secure_delete = ON")
            work(connection)

    @contextmanager
    def _open(self, mode: str, patience: float = _PATIENCE) -> Iterator[sqlite3.Connection]:
        with contextlib.closing(
            sqlite3.connect(
                f"{self.path.absolute().as_uri()}?mode={mode}", uri=True, timeout=patience, isolation_level=None
            )
        ) as connection:
            yield connection


def _in_one(connection: sqlite3.Connection, change: Callable[[sqlite3.Connection], None]) -> None:
    """Change a database in one transaction."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        change(connection)
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _database(connection: sqlite3.Connection) -> Database:
    from sqlite_utils import Database

    return Database(connection)


def path_cell(path: Path) -> str | bytes:
    """Return a path as a cell can hold it: its bytes where it is no text."""
    text = str(path)
    try:
        text.encode()
    except UnicodeEncodeError:
        return os.fsencode(text)
    return text
