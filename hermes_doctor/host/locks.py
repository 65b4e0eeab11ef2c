"""Lock files: one doctor at a time on a store, and no maintenance of hermes's own meanwhile.

A lock is the kernel's (flock; one byte through msvcrt on Windows), so it ends with its process whatever happens. The
file itself means nothing and is never deleted: somebody who deletes a lock file makes two holders possible. While a
lock is held, the file tells who holds it, in the record that hermes keeps in its own lock files (0.21.5, 0.22.2).
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hermes_doctor.host.processes import pid_namespace

DOCTOR_LOCK = "doctor.lock"
#: Taken by hermes from 0.21.5 on for its own pruning and vacuuming, without waiting.
MAINTENANCE_SUFFIX = ".auto-maintenance.lock"
#: Taken by hermes from 0.20.6 on for filling the whole search index anew; it waits two minutes for it.
REBUILD_SUFFIX = ".fts_rebuild.lock"

#: A record is some hundred bytes; a file that holds more than this is none of these lock files.
_MOST_BYTES = 4096
#: How often a lock file is opened anew that was replaced between opening and locking it.
_TRIES = 5
#: What "somebody else has it" looks like: EWOULDBLOCK of flock, EACCES and EDEADLK of msvcrt.
_TAKEN = frozenset({errno.EAGAIN, errno.EWOULDBLOCK, errno.EACCES, errno.EDEADLK})


class LockTakenError(Exception):
    """Somebody else has the lock; ``holder`` is who, such as "process 4711 (doctor)", as far as can be seen."""

    def __init__(self, holder: str) -> None:
        super().__init__(f"{holder} has the lock")
        self.holder = holder


@contextmanager
def doctor_lock(folder: Path) -> Iterator[None]:
    """Be the only doctor at work on a store; ``folder`` is its ``doctor`` folder, which must be there.

    Raises LockTakenError where another one is, OSError where the lock file cannot be opened or locked at all.
    """
    with _locked(folder / DOCTOR_LOCK, "doctor", "another doctor"):
        yield


def doctor_at_work(folder: Path) -> str | None:
    """Return which doctor has the lock of that ``doctor`` folder, None where none has, or none can be seen.

    Nothing is written, and nothing made.
    """
    try:
        descriptor = os.open(folder / DOCTOR_LOCK, os.O_RDWR | getattr(os, "O_BINARY", 0))
    except OSError:
        return None
    try:
        _lock(descriptor)
        _unlock(descriptor)
    except OSError as error:
        return _holder(descriptor, "doctor", "another doctor") if error.errno in _TAKEN else None
    finally:
        os.close(descriptor)
    return None


@contextmanager
def upstream_maintenance_lock(store: Path) -> Iterator[None]:
    """Keep hermes (0.21.5 on) from maintaining the store meanwhile, as one hermes keeps another.

    hermes puts the lock beside the path by which it knows the store, so a store behind a symbolic link is locked
    beside the link and beside the file. Raises LockTakenError where a hermes is at it, OSError as `doctor_lock`.
    """
    with _upstream_lock(store, MAINTENANCE_SUFFIX):
        yield


@contextmanager
def upstream_rebuild_lock(store: Path) -> Iterator[None]:
    """Keep hermes (0.20.6 on) from rebuilding the store's search index meanwhile, without waiting for one that does.

    The places and what is raised are those of `upstream_maintenance_lock`.
    """
    with _upstream_lock(store, REBUILD_SUFFIX):
        yield


def holder_record() -> dict[str, object]:
    """Return what this process writes into a lock file that it holds: hermes's own record (0.22.2).

    ``start_ticks`` tells a process from a later one with the same id, ``pidns`` one with that id elsewhere.
    """
    return {
        "acquired_at": time.time(),
        "pid": os.getpid(),
        "pidns": pid_namespace(),
        "start_ticks": _start_ticks(os.getpid()),
    }


@contextmanager
def _upstream_lock(store: Path, suffix: str) -> Iterator[None]:
    """Hold hermes's own lock of that name on a store, wherever a hermes would look for it."""
    real = store.resolve()
    places = dict.fromkeys(path.with_name(path.name + suffix) for path in (store, real))
    with contextlib.ExitStack() as held:
        inodes: set[tuple[int, int]] = set()
        for place in places:
            # The same file by another way round: the lock is ours already.
            with contextlib.suppress(FileNotFoundError):
                if _inode(place.stat()) in inodes:
                    continue
            held.enter_context(_locked(place, "hermes", "hermes", owner=real))
            inodes.add(_inode(place.stat()))
        yield


@contextmanager
def _locked(path: Path, who: str, somebody: str, *, owner: Path | None = None) -> Iterator[None]:
    """Hold the lock on that file. ``who``: what its holder is called; ``somebody``: the same where it is unknown."""
    descriptor = _take(path, who, somebody, owner)
    try:
        _write(descriptor, json.dumps(holder_record(), sort_keys=True).encode())
        yield
    finally:
        with contextlib.suppress(OSError):
            _write(descriptor, b"")
        with contextlib.suppress(OSError):
            _unlock(descriptor)
        os.close(descriptor)


def _take(path: Path, who: str, somebody: str, owner: Path | None) -> int:
    for _ in range(_TRIES):
        descriptor = _open(path, owner)
        try:
            _lock(descriptor)
        except OSError as error:
            taken = LockTakenError(_holder(descriptor, who, somebody)) if error.errno in _TAKEN else None
            os.close(descriptor)
            if taken is None:
                raise
            raise taken from None
        # A breaker of stale locks may have replaced the file since: a lock on an unlinked one excludes nobody.
        if _still_named(descriptor, path):
            return descriptor
        os.close(descriptor)
    raise LockTakenError(somebody)


def _open(path: Path, owner: Path | None) -> int:
    """Open a lock file, made with mode 0600 and the owner of the file ``owner`` where it is not there."""
    flags = os.O_RDWR | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
    model = owner.stat() if owner is not None else None
    try:
        descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        descriptor = os.open(path, flags)
    else:
        if model is not None and sys.platform != "win32" and model.st_uid != os.geteuid():
            with contextlib.suppress(OSError):
                os.fchown(descriptor, model.st_uid, model.st_gid)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_size > _MOST_BYTES:
        os.close(descriptor)
        raise OSError(errno.EINVAL, "this is no lock file", str(path))
    return descriptor


def _still_named(descriptor: int, path: Path) -> bool:
    try:
        return _inode(os.fstat(descriptor)) == _inode(path.stat())
    except OSError:
        return False


def _inode(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _write(descriptor: int, record: bytes) -> None:
    os.ftruncate(descriptor, 0)
    os.lseek(descriptor, 0, os.SEEK_SET)
    if record:
        os.write(descriptor, record)


def _holder(descriptor: int, who: str, somebody: str) -> str:
    """Say who has the lock: by the kernel's list of locks, else by the record, which a killed holder leaves behind."""
    pid = _locker(os.fstat(descriptor))
    if pid is None:
        record = _read(descriptor)
        recorded, namespace = record.get("pid"), record.get("pidns")
        if not isinstance(recorded, int):
            return somebody
        if namespace is not None and namespace != pid_namespace():
            return f"{somebody} (process {recorded} of another container)"
        pid = recorded
    return f"process {pid} ({who if who == 'doctor' else _name(pid)})"


def _read(descriptor: int) -> dict[str, object]:
    """Read the record; Windows does not let others read the locked byte."""
    try:
        os.lseek(descriptor, 0, os.SEEK_SET)
        record = json.loads(os.read(descriptor, _MOST_BYTES) or b"null")
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def _locker(status: os.stat_result) -> int | None:
    """Return which process has a flock on a file, from /proc/locks; None where that is not told."""
    if sys.platform == "win32":
        return None
    place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    try:
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        match = re.match(r"\d+: FLOCK +\S+ +WRITE +(\d+) +(\S+) ", line)
        if match and match.group(2) == place and int(match.group(1)) > 0:
            return int(match.group(1))
    return None


def _name(pid: int) -> str:
    try:
        name = Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return "hermes"
    return "".join(c if c.isprintable() else "?" for c in name) or "hermes"


def _start_ticks(pid: int) -> int | None:
    """Return when a process started, in clock ticks since the machine did: field 22 of its stat."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2]
        return int(after_name.split()[19])
    except (OSError, ValueError, IndexError):
        return None


if sys.platform == "win32":
    import msvcrt

    def _lock(descriptor: int) -> None:
        os.lseek(descriptor, 0, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)

    def _unlock(descriptor: int) -> None:
        os.lseek(descriptor, 0, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _lock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _unlock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
