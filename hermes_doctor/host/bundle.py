"""The files of one store, looked at with stat and header bytes only, before SQLite has it open.

POSIX drops all locks that a process holds on a file as soon as it closes *any* descriptor of it. So nothing here
may read a store that this process has open through SQLite: `inspect` and `copy_file` refuse to.
"""

from __future__ import annotations

import enum
import errno
import os
import stat
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hermes_doctor.host.homes import STORE_NAME, default_home
from hermes_doctor.host.upstream import for_damage, printable, quoted, rescue_inspection

_MAGIC = b"SQLite format 3\x00"
_HEADER_BYTES = 100
#: How much of a file that begins with zeros is read to say that all of it is zeros.
_ZEROS_LOOKED_AT = 256 * 1024 * 1024
_CHUNK = 4 * 1024 * 1024
#: The size of a page where a header that is damaged does not say it (SQLite's own choice).
_DEFAULT_PAGE = 4096
#: A file that looks truncated may be one that somebody is just writing: looks, and seconds between them.
_TRUNCATED_LOOKS = 4
_TRUNCATED_PAUSE = 0.05

#: Descriptors looked at where the system does not list them.
_DESCRIPTORS_LOOKED_AT = 1024


class Condition(enum.StrEnum):
    """What a store is like, as the JSON report says it."""

    READABLE = "readable"
    NEEDS_RECOVERY = "needs-recovery"
    DAMAGED = "damaged"
    UNREADABLE = "unreadable"
    MISSING = "missing"
    NOT_HERMES = "not-hermes"
    NEWER_SCHEMA = "newer-schema"


class StoreProblem(Exception):  # noqa: N818  # it describes the store, not an error of the program
    """A store that cannot be read: its condition, one line for a person, and what to type next."""

    def __init__(self, condition: Condition, reason: str, next_step: str | None = None) -> None:
        super().__init__(reason)
        self.condition = condition
        self.reason = reason
        self.next_step = next_step


@dataclass(frozen=True)
class Bundle:
    """One store and its sidecars, at one moment.

    ``path`` is as the user gave it; ``real_path`` is where SQLite looks, symbolic links followed: the sidecars
    lie beside that. Sizes are bytes, None where the file is absent. ``journal_hot``: the rollback journal is not
    empty and its header is not zeroed, so SQLite may have to roll it back. ``owner``: the owning user's id.
    """

    path: Path
    real_path: Path
    device: int
    inode: int
    owner: int
    size: int
    mtime_ns: int
    wal_bytes: int | None
    wal_inode: int | None
    shm: bool
    journal_bytes: int | None
    journal_hot: bool
    journal_mode: Literal["wal", "rollback"]
    page_size: int

    @property
    def size_with_log(self) -> int:
        """Bytes of the store and of its write-ahead log, in which all of a small store may still lie."""
        return self.size + (self.wal_bytes or 0)

    @property
    def wal_path(self) -> Path:
        """Where SQLite keeps the write-ahead log."""
        return sidecar(self.real_path, "-wal")

    @property
    def shm_path(self) -> Path:
        """Where SQLite keeps the index of the write-ahead log."""
        return sidecar(self.real_path, "-shm")

    @property
    def journal_path(self) -> Path:
        """Where SQLite keeps the rollback journal."""
        return sidecar(self.real_path, "-journal")


def sidecar(path: Path, suffix: Literal["-wal", "-shm", "-journal"]) -> Path:
    """Return the path of one of SQLite's sidecars of a store."""
    return path.with_name(path.name + suffix)


def refuse_if_open_here(device: int, inode: int) -> None:
    """Raise RuntimeError where reading the raw file would drop the locks of a connection of this process.

    POSIX locks belong to the process, not to a descriptor; Windows has no such rule.
    """
    if sys.platform != "win32" and open_here(device, inode) is not None:
        raise RuntimeError("this process has the store open: close that before its raw file is looked at")


def open_here(device: int, inode: int) -> int | None:
    """Return a descriptor by which this process has a file open, None where it has none."""
    try:
        descriptors = [int(entry.name) for entry in Path("/dev/fd").iterdir()]
    except OSError:
        descriptors = list(range(_DESCRIPTORS_LOOKED_AT))
    for descriptor in descriptors:
        try:
            status = os.fstat(descriptor)
        except OSError:
            continue
        if (status.st_dev, status.st_ino) == (device, inode):
            return descriptor
    return None


def inspect(path: Path) -> Bundle:
    """Look at a store's files without opening them through SQLite.

    Raises StoreProblem for what is missing, a folder or other non-file, not permitted, zero bytes, all zeros, not
    a database, or truncated; RuntimeError where this process has the file open.
    """
    for _ in range(_TRUNCATED_LOOKS - 1):
        bundle, pages = _look(path)
        if pages is None or bundle.size >= pages * bundle.page_size:
            return bundle
        time.sleep(_TRUNCATED_PAUSE)
    bundle, pages = _look(path)
    if pages is not None and bundle.size < pages * bundle.page_size:
        raise StoreProblem(
            Condition.DAMAGED,
            f"{printable(path)} is truncated: its header says {pages * bundle.page_size:,} bytes, it has "
            f"{bundle.size:,}",
            for_damage(path),
        )
    return bundle


def inspect_damaged(path: Path) -> Bundle:
    """Look at a store's files, damaged as they may be, so that they can be copied.

    Raises StoreProblem where there is no file that can be read, or what lies beside it is none; RuntimeError where this
    process has the file open.
    """
    try:
        return inspect(path)
    except StoreProblem as problem:
        try:
            real_path = path.resolve(strict=True)
            status = real_path.stat()
        except (OSError, RuntimeError, ValueError):
            raise problem from None
        if not stat.S_ISREG(status.st_mode) or not os.access(real_path, os.R_OK):
            raise
    return _bundle_of(path, real_path, status, None)


def _look(path: Path) -> tuple[Bundle, int | None]:
    """Look once; also give the number of pages that the header promises, None where nothing can be told."""
    try:
        real_path = path.resolve()
        status = real_path.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):
        raise _missing(path) from None
    except (OSError, RuntimeError) as error:
        # What follows links finds out (Python up to 3.12), or what asks for the file behind them (3.13 on).
        if isinstance(error, RuntimeError) or error.errno == errno.ELOOP:
            loop = f"{printable(path)} is a symbolic link that leads to itself"
            raise StoreProblem(Condition.UNREADABLE, loop) from None
        raise unreadable(path, error) from None
    _require_file(path, status)
    if status.st_size == 0:
        raise _zeroed(path, real_path, "has no bytes", empty=True)
    refuse_if_open_here(status.st_dev, status.st_ino)
    try:
        # A file that was put in its place meanwhile is looked at as what it is.
        descriptor = os.open(real_path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except FileNotFoundError:
        raise _missing(path) from None
    except OSError as error:
        raise unreadable(path, error) from None
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        try:
            status = os.fstat(descriptor)
            _require_file(path, status)
            header = file.read(_HEADER_BYTES) or b""
            if not header.strip(b"\x00"):
                _say_zeroed(path, real_path, len(header), file.read)
        except OSError as error:
            raise unreadable(path, error) from None
    bundle = _bundle_of(path, real_path, status, header)
    # A log or a hot journal may hold the pages that the file lacks: SQLite decides then.
    by_header = not (bundle.wal_bytes or bundle.journal_hot)
    return bundle, _promised_pages(header, status.st_size, bundle.page_size) if by_header else None


def _bundle_of(path: Path, real_path: Path, status: os.stat_result, header: bytes | None) -> Bundle:
    """Look at what lies beside a store's file, and put all of it together. ``header``: None where it tells nothing."""
    page_size = _DEFAULT_PAGE if header is None else _page_size(path, header)
    log = _sidecar_status(path, sidecar(real_path, "-wal"))
    # Of a store that is only copied, nobody reads it.
    log_index = (_status_of if header is None else _sidecar_status)(path, sidecar(real_path, "-shm"))
    journal_path = sidecar(real_path, "-journal")
    journal = _sidecar_status(path, journal_path)
    journal_bytes = journal.st_size if journal else None
    in_wal_mode = log is not None if header is None else header[19] == 2
    return Bundle(
        path=path,
        real_path=real_path,
        device=status.st_dev,
        inode=status.st_ino,
        owner=status.st_uid,
        size=status.st_size,
        mtime_ns=status.st_mtime_ns,
        wal_bytes=log.st_size if log else None,
        wal_inode=log.st_ino if log else None,
        shm=log_index is not None,
        journal_bytes=journal_bytes,
        journal_hot=bool(journal_bytes) and _first_byte(path, journal_path) not in (b"", b"\x00"),
        journal_mode="wal" if in_wal_mode else "rollback",
        page_size=page_size,
    )


def _promised_pages(header: bytes, size: int, page_size: int) -> int:
    """Return how many pages the file must have: the header's count where it is in force, else whole pages."""
    # Releases of SQLite before 3.7.0 leave the count stale; then the two counters differ.
    count = int.from_bytes(header[28:32], "big")
    if count and header[24:28] == header[92:96]:
        return count
    return -(-size // page_size)


def _page_size(path: Path, header: bytes) -> int:
    in_home = path.name == "state.db"
    if len(header) < _HEADER_BYTES or not header.startswith(_MAGIC):
        if in_home:
            raise StoreProblem(
                Condition.DAMAGED,
                f"{printable(path)} does not begin like a SQLite database: its first bytes were overwritten",
                for_damage(path),
            )
        raise StoreProblem(
            Condition.NOT_HERMES,
            f"{printable(path)} is not a SQLite database",
            "name a state.db, or the Hermes home that holds it",
        )
    raw = int.from_bytes(header[16:18], "big")
    page_size = 65536 if raw == 1 else raw
    if page_size < 512 or page_size & (page_size - 1):
        raise StoreProblem(
            Condition.DAMAGED,
            f"the header of {printable(path)} is damaged: it gives {raw} as the size of a page",
            for_damage(path),
        )
    return page_size


def _say_zeroed(path: Path, real_path: Path, looked_at: int, read: Callable[[int], bytes | None]) -> None:
    """Raise for a file whose header is all zeros, saying whether the rest is, too."""
    while looked_at < _ZEROS_LOOKED_AT:
        chunk = read(_CHUNK)
        if not chunk:
            raise _zeroed(path, real_path, f"holds nothing but zeros ({looked_at:,} bytes)", empty=True)
        if chunk.strip(b"\x00"):
            raise _zeroed(path, real_path, "begins with zeros where a database has its header")
        looked_at += len(chunk)
    raise _zeroed(path, real_path, f"holds nothing but zeros as far as it was read ({looked_at:,} bytes)")


def _zeroed(path: Path, real_path: Path, what: str, *, empty: bool = False) -> StoreProblem:
    """Never "a new install": 97568 is a store that was zeroed and stayed unnoticed for a week.

    ``empty``: nothing can be saved of the file itself.
    """
    log = _size_of(path, sidecar(real_path, "-wal"))
    beside = f"; its -wal still holds {log:,} bytes" if log else ""
    rescue = "" if empty and not log else f"; where there is none: {rescue_inspection(path)}"
    return StoreProblem(
        Condition.DAMAGED,
        f"{printable(path)} {what}: it was wiped, or never written{beside}",
        "keep it as it is and do not start hermes; look for a copy in state-snapshots/ and in your backups "
        f"(doctor scan COPY says whether it is sound){rescue}",
    )


def _missing(path: Path) -> StoreProblem:
    try:
        log = _size_of(path, sidecar(path, "-wal"))
    except (StoreProblem, ValueError):
        log = None
    if log:
        return StoreProblem(
            Condition.DAMAGED,
            f"{printable(path)} is gone, but its -wal is still there with {log:,} bytes",
            "keep the -wal and do not start hermes; look for the file, for state-snapshots/ and for your backups",
        )
    elsewhere = "name the state.db or the Hermes home that you mean (doctor scan PATH)"
    if path.absolute() != default_home().absolute() / STORE_NAME:
        return StoreProblem(Condition.MISSING, f"there is no {printable(path)}", elsewhere)
    named = "is set to its folder" if os.environ.get("HERMES_HOME", "").strip() else "is not set, so this is its place"
    return StoreProblem(
        Condition.MISSING,
        f"there is no {printable(path)}: hermes makes it when it first runs here (HERMES_HOME {named})",
        f"{elsewhere}, or see the doctor at work first (doctor demo)",
    )


def unreadable(path: Path, error: OSError) -> StoreProblem:
    """Return the StoreProblem for a file that the system does not let us read."""
    if error.errno in (errno.EACCES, errno.EPERM):
        owner = _owner_name(path)
        as_owner = f"run the doctor as the user who owns it: sudo -u {owner} doctor scan {quoted(path)}"
        return StoreProblem(
            Condition.UNREADABLE,
            f"there is no permission to read {printable(path)}",
            as_owner if owner else "run the doctor as the user who runs hermes",
        )
    said = (error.strerror or type(error).__name__).lower()
    return StoreProblem(Condition.UNREADABLE, f"{printable(path)} cannot be read: {said}", "check the disk it is on")


def _owner_name(path: Path) -> str | None:
    """Return the owner of the file, or of the nearest folder that can be seen, unless that is ourselves."""
    for candidate in (path, *path.absolute().parents):
        try:
            uid = candidate.stat().st_uid
            return candidate.owner() if uid != os.geteuid() else None
        except (OSError, KeyError, NotImplementedError, AttributeError):
            continue
    return None


def _require_file(path: Path, status: os.stat_result) -> None:
    if stat.S_ISREG(status.st_mode):
        return
    if not stat.S_ISDIR(status.st_mode):
        raise StoreProblem(Condition.UNREADABLE, f"{printable(path)} is not a file")
    if not os.access(path, os.R_OK | os.X_OK):
        raise StoreProblem(
            Condition.UNREADABLE,
            f"there is no permission to look into the folder {printable(path)}",
            "run the doctor as the user who runs hermes",
        )
    raise StoreProblem(
        Condition.UNREADABLE,
        f"{printable(path)} is a folder, where a store's file should be",
        "find out what made it; hermes cannot start with it",
    )


def _sidecar_status(path: Path, file: Path) -> os.stat_result | None:
    """Look at a sidecar. What is no file is refused: opening a pipe waits for ever, and a device has no end."""
    status = _status_of(path, file)
    if status is not None and not stat.S_ISREG(status.st_mode):
        raise StoreProblem(
            Condition.UNREADABLE,
            f"{printable(file)} is no file, and SQLite needs one there to read {printable(path)}",
            "find out what made it and move it aside; hermes cannot work with it either",
        )
    return status


def _size_of(path: Path, file: Path) -> int | None:
    status = _status_of(path, file)
    return status.st_size if status else None


def _status_of(path: Path, file: Path) -> os.stat_result | None:
    try:
        return file.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise unreadable(path, error) from None


def _first_byte(path: Path, file: Path) -> bytes:
    try:
        with file.open("rb", buffering=0) as opened:
            return opened.read(1) or b""
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise unreadable(path, error) from None


def copy_file(source: Path, target: Path, told: Callable[[int], object] | None = None) -> None:
    """Copy a store's file in chunks into a new file of mode 0600.

    ``told`` hears of the bytes of each chunk that was copied; what it raises ends the copying. Raises OSError, and
    RuntimeError where this process has the source open.
    """
    status = source.stat()
    refuse_if_open_here(status.st_dev, status.st_ino)
    with source.open("rb", buffering=0) as reading:
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600)
        with os.fdopen(descriptor, "wb", buffering=0) as writing:
            while chunk := reading.read(_CHUNK):
                view = memoryview(chunk)
                while view:
                    view = view[writing.write(view) :]
                if told is not None:
                    told(len(chunk))
