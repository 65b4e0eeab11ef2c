"""What to tell when the machine ends the work: a full disk, a journal or a store that cannot be written."""

from __future__ import annotations

import errno
import sqlite3
from pathlib import Path

import apsw

from hermes_doctor.engine.model import ExitCode
from hermes_doctor.engine.scan import StoreScan
from hermes_doctor.host.bundle import Condition
from hermes_doctor.host.same_files import SameFiles, StoreMovedError
from hermes_doctor.host.upstream import for_damage, printable

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
_STANDS = "what was committed stands and can be undone"


def halt(error: Exception) -> str:
    """Return one line: what ended the work, what it means, and where something helps, what to do next."""
    if is_full(error):
        return f"the disk is full: {_STANDS}; free some room, then type the same command again"
    if isinstance(error, (OSError, sqlite3.Error)):
        return f"the doctor's records cannot be written ({error}): {_STANDS}"
    return f"SQLite stopped the work ({error}): {_STANDS}"


def halt_of_moved(moved: StoreMovedError, scan: StoreScan) -> tuple[ExitCode, str]:
    """Return the exit code and the line for a store that another file, none, or half of it has taken the place of."""
    path = scan.ref.path
    if not path.exists():
        scan.condition, scan.next_step = Condition.MISSING, "put it back"
        return ExitCode.DAMAGED, str(moved)
    if moved.cut:
        scan.condition, scan.next_step = Condition.DAMAGED, for_damage(path, scan.schema_version, scan.ref.profile)
        return ExitCode.DAMAGED, str(moved)
    return ExitCode.STOPPED, str(moved)


def halt_of_store(error: Exception, scan: StoreScan) -> tuple[ExitCode, str]:
    """Return the exit code and the line of an error; of a store that is damaged or gone by now, the scan notes it."""
    path = scan.ref.path
    if isinstance(error, (apsw.Error, OSError)) and not path.exists():
        scan.condition, scan.next_step = Condition.MISSING, "put it back"
        return ExitCode.DAMAGED, f"{printable(path)} was moved away or deleted meanwhile"
    if isinstance(error, apsw.Error) and scan.bundle is not None:
        try:
            SameFiles(scan.bundle).check_name()
        except StoreMovedError as moved:
            return halt_of_moved(moved, scan)
    if isinstance(error, (apsw.CorruptError, apsw.NotADBError)):
        scan.condition, scan.next_step = Condition.DAMAGED, for_damage(path, scan.schema_version, scan.ref.profile)
        return ExitCode.DAMAGED, f"{printable(path)} is damaged ({error}): {_STANDS}"
    return ExitCode.FAILED, halt(error)


def unreadable_journal(path: Path, error: Exception) -> str:
    """Return one line: the journal of a store cannot be read, so that nothing is changed, and what to do next."""
    return (
        f"the doctor's own journal {printable(path)} cannot be read ({error}): nothing was changed; move it aside, "
        "although what it holds can then not be undone, and type the same command again"
    )


def is_full(error: Exception) -> bool:
    """Whether there was no room left, whichever library says so.

    A full disk can also show as a failed write or a failed growth of the log's index.
    """
    if isinstance(error, OSError):
        return error.errno in _NO_ROOM
    if isinstance(error, sqlite3.Error):
        return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
    return isinstance(error, apsw.FullError) or getattr(error, "extendedresult", None) == apsw.SQLITE_IOERR_SHMSIZE
