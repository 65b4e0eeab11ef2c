"""Opening a store for writing, in the one way that does no harm beside a living hermes.

The journal mode stays what it is. Nothing is ever checkpointed by the way and no write-ahead log is removed at close:
a last closer that does either can take the log from under a process that still uses it (upstream #109966).
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from urllib.parse import quote as percent_encoded

import apsw

#: Longest wait for hermes's own write lock, in milliseconds; upstream's writers wait 15 to 20 s for ours.
BUSY_MILLISECONDS = 5000


def open_for_writing(path: Path) -> apsw.Connection:
    """Open an existing store for writing.

    Raises apsw.Error where it cannot be opened. Foreign keys are on, the schema is not trusted, the shadow tables of
    the search index cannot be written directly, and no checkpoint happens unless it is asked for.
    """
    connection = apsw.Connection(
        f"file:{percent_encoded(str(path))}?mode=rw",
        flags=apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_URI,
    )
    connection.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
    connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_FKEY, 1)
    connection.set_busy_timeout(BUSY_MILLISECONDS)
    connection.pragma("wal_autocheckpoint", 0)
    keep_log(connection, keep=True)
    return connection


def keep_log(connection: apsw.Connection, *, keep: bool) -> None:
    """Say whether the write-ahead log outlives its last connection, or is checkpointed and removed with it."""
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, int(keep))
    # Without a checkpoint at close nothing is deleted either; said once more to the file system's side of SQLite.
    persist = ctypes.c_int(keep)
    connection.file_control("main", apsw.SQLITE_FCNTL_PERSIST_WAL, ctypes.addressof(persist))
