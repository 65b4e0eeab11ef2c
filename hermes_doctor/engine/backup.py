"""The backup before the first write: made through SQLite, checked, and never at the cost of the last good one.

It holds all private text of the store, so folder and file are the owner's alone. The copy is of one moment: a read
transaction of one connection gives the row counts and feeds the copying.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal
from urllib.parse import quote as percent_encoded

import apsw

from hermes_doctor.engine.halts import is_full
from hermes_doctor.engine.steps import Step, reach
from hermes_doctor.host.room import free_bytes
from hermes_doctor.host.upstream import for_damage, printable
from hermes_doctor.store.cells import quote
from hermes_doctor.store.shape import Shape, read_shape

BackupMode = Literal["always", "auto", "never"]

FOLDER = "backups"
#: How many backups of a store are kept, the new one included.
KEPT = 3
#: Up to this size ``auto`` makes one.
AUTO_BYTES = 1 << 30
#: Free bytes that ``auto`` leaves beside a backup, and beside as much again as the store has.
AUTO_SPARE_BYTES = 16 << 20
#: Up to this size the structure of every page is checked, too.
_QUICK_CHECK_BYTES = 64 << 20
#: Pages that one step copies: about 8 MiB, between two calls of the progress function.
_STEP_PAGES = 2048
#: Longest wait for a writer, in milliseconds.
_BUSY_MILLISECONDS = 5000

#: Of which store it is, when it was made, in UTC, and which one of that second it is.
_NAME = re.compile(r"(.+)-(\d{8}-\d{6})(?:-(\d+))?\.db", re.DOTALL)
_PARTIAL = ".partial"
#: What a check says of rows that break a constraint: faults of the content, which a backup is to keep as they are.
_CONTENT = re.compile(r"(NULL value in|CHECK constraint failed in|(TEXT|NUMERIC|non-\w+) value in) ")

#: Called with the share that is done, 0 to 1; what it raises stops the backup.
BackupProgress = Callable[[float], None]


class BackupError(Exception):
    """No backup could be made; the text is one line for a person. Older backups are as they were."""


def will_back_up(store_bytes: int, free: int, mode: BackupMode) -> bool:
    """Whether a store of that size gets a backup, with that many bytes free where backups go.

    ``auto``: up to 1 GiB, where twice the store's size and some more is free, so that the work itself finds room.
    """
    if mode == "auto":
        return store_bytes <= AUTO_BYTES and free >= 2 * store_bytes + AUTO_SPARE_BYTES
    return mode == "always"


def make_backup(store: Path, folder: Path, progress: BackupProgress | None = None) -> Path:
    """Copy a store to ``<folder>/backups/state-<utc>.db`` and return that path; ``folder`` is its ``doctor`` folder.

    The name begins as that of the store's own file does. The caller holds the doctor's lock, so whatever
    ``*.partial`` lies there was left by one that was stopped. Where the store needs recovery, SQLite recovers it
    first, as it would for whoever opened it next. In rollback mode a writer has to wait meanwhile. Raises
    BackupError, and whatever ``progress`` raises; nothing of a backup that came to nothing is left.
    """
    try:
        place = _prepared(folder)
        final = _free_name(place, store.resolve().name.removesuffix(".db"))
        partial = final.with_name(final.name + _PARTIAL)
        try:
            _copy(store, partial, progress)
            _put_on_disk(partial)
            partial.rename(final)
            reach(Step.BACKUP_NAMED)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        _put_on_disk(place)
    except (apsw.Error, OSError) as error:
        raise BackupError(_obstacle(error, folder)) from None
    _prune(place, final)
    return final


def _prepared(folder: Path) -> Path:
    """Return the folder of the backups, made where it is not there, rid of what a stopped run left."""
    place = folder / FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    place.mkdir(mode=0o700, exist_ok=True)
    sweep_unfinished(folder)
    return place


def sweep_unfinished(folder: Path) -> None:
    """Remove what a doctor that was killed left of a backup: a copy of private text that nobody knows of.

    The caller holds the doctor's lock. Raises OSError.
    """
    place = folder / FOLDER
    if not place.is_dir():
        return
    for entry in place.iterdir():
        if entry.name.endswith(_PARTIAL) and _NAME.fullmatch(entry.name.removesuffix(_PARTIAL)):
            entry.unlink()


def _free_name(place: Path, store: str) -> Path:
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    numbers = [number for made, number in map(_order, _backups_of(store, place)) if made == stamp]
    return place / (f"{store}-{stamp}-{max(numbers) + 1}.db" if numbers else f"{store}-{stamp}.db")


def _backups_of(store: str, place: Path) -> list[Path]:
    """Return the backups of that store: copies that were laid beside it and mended have theirs in the same folder."""
    matches = ((entry, _NAME.fullmatch(entry.name)) for entry in place.iterdir())
    return [entry for entry, match in matches if match and match.group(1) == store]


def _order(backup: Path) -> tuple[str, int]:
    """When a backup was made, and which one of that second it is: backups sort by it. Other files sort first."""
    match = _NAME.fullmatch(backup.name)
    return (match.group(2), int(match.group(3) or 1)) if match else ("", 0)


def _copy(store: Path, partial: Path, progress: BackupProgress | None) -> None:
    """Copy one moment of the store to a new file and read it back."""
    with _source(store.resolve()) as source:
        shape = read_shape(source)
        counts = _counts(source, shape)
        size = _pragma(source, "page_count") * _pragma(source, "page_size")
        if free_bytes(partial.parent) < size:
            raise BackupError(_full(partial.parent, size))
        os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        target = _connect(partial, "mode=rw", apsw.SQLITE_OPEN_READWRITE)
        try:
            # A copy that breaks off is thrown away, and it is put on the disk as a whole at the end.
            target.pragma("journal_mode", "memory")
            target.pragma("synchronous", "off")
            with target.backup("main", source, "main") as copying:
                while not copying.done:
                    copying.step(_STEP_PAGES)
                    reach(Step.BACKING_UP)
                    if progress is not None:
                        progress(1 - copying.remaining / max(copying.page_count, 1))
        finally:
            target.close()
        reach(Step.BACKUP_COPIED)
    problem = _problem_of(partial, shape, counts, thorough=size <= _QUICK_CHECK_BYTES)
    if problem is not None:
        raise BackupError(f"the copy does not pass its check ({problem}): look at the store first: {for_damage(store)}")


@contextmanager
def _source(store: Path) -> Iterator[apsw.Connection]:
    """Open a store for reading, inside a read transaction that has begun; recovered where it needs that."""
    with contextlib.ExitStack() as stack:
        try:
            source = _reading(store, "mode=ro", apsw.SQLITE_OPEN_READONLY)
        except (apsw.ReadOnlyError, apsw.CantOpenError):
            # A hot journal, or a log without its index: only a connection that may write can recover it.
            source = _reading(store, "mode=rw", apsw.SQLITE_OPEN_READWRITE)
        stack.callback(source.close)
        yield source


def _reading(store: Path, options: str, flags: int) -> apsw.Connection:
    connection = _connect(store, options, flags)
    try:
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        connection.pragma("query_only", True)
        connection.execute("BEGIN")
        connection.execute("SELECT count(*) FROM sqlite_schema")
    except BaseException:
        connection.close()
        raise
    return connection


def _connect(file: Path, options: str, flags: int) -> apsw.Connection:
    connection = apsw.Connection(f"file:{percent_encoded(str(file))}?{options}", flags=flags | apsw.SQLITE_OPEN_URI)
    connection.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
    connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
    connection.set_busy_timeout(_BUSY_MILLISECONDS)
    return connection


def _counts(connection: apsw.Connection, shape: Shape) -> dict[str, int]:
    """Count the rows of every ordinary table by reading the table itself, never an index of it."""
    return {
        table.name: int(connection.execute(f"SELECT count(*) FROM {quote(table.name)} NOT INDEXED").get)
        for table in shape.tables.values()
    }


def _problem_of(copy: Path, shape: Shape, counts: dict[str, int], *, thorough: bool) -> str | None:
    """Say what is wrong with a copy, None where nothing is; it is read as it lies there, without a log or an index."""
    connection = _connect(copy, "mode=ro&immutable=1", apsw.SQLITE_OPEN_READONLY)
    try:
        found = read_shape(connection)
        if found != shape:
            return "its schema is another one"
        for name, rows in _counts(connection, found).items():
            if rows != counts[name]:
                return f"table {name} has {rows:,} rows instead of {counts[name]:,}"
        for name in counts if thorough else ():
            for (said,) in connection.execute(f"PRAGMA quick_check({quote(name)})"):
                if said != "ok" and not _CONTENT.match(str(said)):
                    return f"table {name}: {' '.join(str(said).split())}"
    except apsw.Error as error:
        return " ".join(str(error).split())
    finally:
        connection.close()
    return None


def _pragma(connection: apsw.Connection, name: str) -> int:
    return int(str(connection.pragma(name)))


def _put_on_disk(path: Path) -> None:
    """Have the system put a file, or a folder's entries, on the disk."""
    if os.name == "nt" and path.is_dir():
        # Windows does not open folders.
        return
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _prune(place: Path, newest: Path) -> None:
    """Remove a store's oldest backups beyond those that are kept; never the one just made, whatever the clock."""
    named = _NAME.fullmatch(newest.name)
    assert named is not None, "a backup has just been given its name"
    backups = (entry for entry in _backups_of(named.group(1), place) if entry.is_file())
    older = sorted((entry for entry in backups if entry != newest), key=_order)
    for entry in older[: -(KEPT - 1)]:
        # One that cannot be removed costs room, no more.
        with contextlib.suppress(OSError):
            entry.unlink()


def _obstacle(error: apsw.Error | OSError, folder: Path) -> str:
    if is_full(error):
        return _full(folder)
    if isinstance(error, OSError):
        said = (error.strerror or type(error).__name__).lower()
        return f"{printable(error.filename or folder)}: {said}"
    return f"SQLite could not copy the store: {' '.join(str(error).split())}"


def _full(folder: Path, needed: int | None = None) -> str:
    wanted = f"; {needed:,} bytes are needed" if needed is not None else ""
    return (
        f"there is no room for it on the file system of {printable(folder)}{wanted}: free some, or go without: "
        "--backup never"
    )
