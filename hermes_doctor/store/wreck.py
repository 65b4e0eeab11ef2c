"""What can be told of a damaged store that SQLite does not open as it is.

It is read as it lies there, as `immutable`, which leaves nothing beside it, and with a schema that is wrong; where a
log or a hot journal belongs to it, a private copy is, for SQLite has to bring the two together.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import apsw

from hermes_doctor.host.bundle import copy_file, refuse_if_open_here, sidecar
from hermes_doctor.host.lease import Lease, LeaseRefusal, take_lease
from hermes_doctor.host.private_folder import PrivateFolder
from hermes_doctor.host.wal_files import size_of
from hermes_doctor.store.cells import CODECS
from hermes_doctor.store.connecting import connect
from hermes_doctor.store.damage import Damage
from hermes_doctor.store.file_damage import examine_trees
from hermes_doctor.store.placing import NEEDED_MODULE

_MAGIC = b"SQLite format 3\x00"
_HEADER_BYTES = 100
#: Seconds that one table is looked at.
_SECONDS = 2.0
#: The largest store that is copied to be looked at, in bytes, and what a copy leaves free.
_COPIED_BYTES, _SPARE_BYTES = 2 << 30, 16 << 20


@dataclass
class Wreck:
    """What can be told.

    ``no_header``: the first page is gone, and with it the list of what the file holds. ``missing``: pages that the
    header promises and the file has not; ``torn``: it ends in the midst of a page. ``twice``: names that the schema
    lists more than once. ``unreadable``: the schema cannot be read. ``damage``: None where the trees were not looked
    at, because somebody may be writing to them, or for want of room.
    """

    no_header: bool = False
    missing: int = 0
    torn: bool = False
    twice: list[str] = field(default_factory=list)
    unreadable: bool = False
    damage: Damage | None = None
    schema_version: int | None = None


def look_at_wreck(path: Path) -> Wreck:
    """Look at a store that cannot be opened. Raises OSError where it cannot be read at all."""
    real_path = path.resolve()
    wreck = Wreck()
    with ExitStack() as stack:
        # While it stands nobody can write to the file.
        answer = take_lease(real_path)
        if isinstance(answer, Lease):
            stack.callback(answer.release)
        page_size = _read_header(real_path, wreck)
        if page_size is None:
            return wreck
        place = _place(real_path, stack)
        if place is None:
            return wreck
        with _opened(place, in_place=place == real_path) as connection:
            try:
                _read_schema(connection, wreck)
                # What somebody is writing at this moment looks like damage in a file that is read without locks.
                if place != real_path or answer is not LeaseRefusal.HELD:
                    wreck.damage = examine_trees(connection, _SECONDS)
            except (apsw.CorruptError, apsw.NotADBError, apsw.SQLError):
                wreck.unreadable = True
    return wreck


def _read_header(path: Path, wreck: Wreck) -> int | None:
    """Note what the header says; return the size of a page, None where there is no header."""
    status = path.stat()
    refuse_if_open_here(status.st_dev, status.st_ino)
    with path.open("rb", buffering=0) as file:
        header = file.read(_HEADER_BYTES) or b""
    raw = int.from_bytes(header[16:18], "big")
    page_size = 65536 if raw == 1 else raw
    sound = len(header) == _HEADER_BYTES and page_size >= 512 and not page_size & (page_size - 1)
    if not sound or not header.startswith(_MAGIC):
        wreck.no_header = True
        return None
    # The count is in force where the two counters agree.
    if header[24:28] == header[92:96] and not size_of(sidecar(path, "-wal")):
        wreck.missing = max(0, int.from_bytes(header[28:32], "big") - status.st_size // page_size)
    wreck.torn = status.st_size % page_size != 0
    return page_size


def _place(path: Path, stack: ExitStack) -> Path | None:
    """Return where the store can be read: where it is, or in a private copy; None where there is no room for one."""
    beside = [file for file in (sidecar(path, "-wal"), sidecar(path, "-journal")) if size_of(file)]
    if not beside:
        return path
    needed = sum(size_of(file) or 0 for file in (path, *beside))
    with suppress(OSError):
        if needed <= min(_COPIED_BYTES, shutil.disk_usage(tempfile.gettempdir()).free - _SPARE_BYTES):
            folder = Path(stack.enter_context(PrivateFolder(Path(tempfile.gettempdir()))))
            for file in (path, *beside):
                copy_file(file, folder / f"state.db{file.name.removeprefix(path.name)}")
            return folder / "state.db"
    return None


@contextmanager
def _opened(path: Path, *, in_place: bool) -> Iterator[apsw.Connection]:
    connection = connect(path, "mode=ro&immutable=1" if in_place else "mode=rw")
    try:
        connection.drop_modules([NEEDED_MODULE])
        # A file that is too short, and a schema that names something twice, are read all the same.
        connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 0)
        connection.pragma("writable_schema", True)
        yield connection
    finally:
        connection.close()


def _read_schema(connection: apsw.Connection, wreck: Wreck) -> None:
    codec = CODECS.get(str(connection.pragma("encoding")), "utf-8")
    wreck.twice = [
        bytes(name).decode(codec, "backslashreplace")
        for (name,) in connection.execute(
            "SELECT CAST(name AS BLOB) FROM sqlite_schema WHERE name IS NOT NULL"
            " GROUP BY type, name HAVING count(*) > 1"
        )
    ]
    with suppress(apsw.Error):
        version = connection.execute("SELECT max(version) FROM schema_version").fetchall()[0][0]
        wreck.schema_version = version if isinstance(version, int) else None
