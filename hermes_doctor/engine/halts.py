"""What to tell when the machine ends the work: a full disk, a journal or a store that cannot be written."""

from __future__ import annotations

import errno
import sqlite3
from pathlib import Path

import apsw

from hermes_doctor.host.upstream import printable

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
_STANDS = "what was committed stands and can be undone"


def halt(error: Exception) -> str:
    """Return one line: what ended the work, what it means, and where something helps, what to do next."""
    if _is_full(error):
        return f"the disk is full: {_STANDS}; free some room, then type the same command again"
    if isinstance(error, (OSError, sqlite3.Error)):
        return f"the doctor's records cannot be written ({error}): {_STANDS}"
    return f"SQLite stopped the work ({error}): {_STANDS}"


def unreadable_journal(path: Path, error: Exception) -> str:
    """Return one line: the journal of a store cannot be read, so that nothing is changed, and what to do next."""
    return (
        f"the doctor's own journal {printable(path)} cannot be read ({error}): nothing was changed; move it aside, "
        "although what it holds can then not be undone, and type the same command again"
    )


def _is_full(error: Exception) -> bool:
    """Whether there was no room left, whichever library says so.

    A full disk can also show as a failed write or a failed growth of the log's index.
    """
    if isinstance(error, OSError):
        return error.errno in _NO_ROOM
    if isinstance(error, sqlite3.Error):
        return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
    return isinstance(error, apsw.FullError) or getattr(error, "extendedresult", None) == apsw.SQLITE_IOERR_SHMSIZE
