"""Connecting to a store's file with every guard on: the one way in which the doctor reads one.

What may be opened how, so that no trace is left, is `opening.open_without_trace`'s to choose; here is what any such
connection has in common with those that look at a damaged file, or at a copy beside a store.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import apsw

#: Seconds that a lock is waited for, and between two tries of it.
BUSY_SECONDS = 5.0
_BUSY_PAUSE = 0.01


def connect(file: Path, options: str, busy_seconds: float = BUSY_SECONDS) -> apsw.Connection:
    """Connect, read-only but for a private copy (``mode=rw``). SQLite touches the file at the first read only.

    ``options``: those of SQLite's URI. ``busy_seconds``: how long a lock is waited for.
    """
    private = options == "mode=rw"
    flags = apsw.SQLITE_OPEN_READWRITE if private else apsw.SQLITE_OPEN_READONLY
    connection = apsw.Connection(f"{file.as_uri()}?{options}", flags=flags | apsw.SQLITE_OPEN_URI)
    try:
        connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
        connection.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_LOAD_EXTENSION, 0)
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        connection.set_busy_handler(_patience(busy_seconds))
        connection.execute("PRAGMA query_only=1")
    except BaseException:
        connection.close()
        raise
    return connection


def _patience(seconds: float) -> Callable[[int], bool]:
    """Return a busy handler that gives up after about that long; in Python, so that Ctrl-C is heard meanwhile."""

    def wait(calls_before: int) -> bool:
        if calls_before * _BUSY_PAUSE >= seconds:
            return False
        time.sleep(_BUSY_PAUSE)
        return True

    return wait
