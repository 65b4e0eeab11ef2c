"""Temporary folders for private copies, which do not outlive their doctor for long: the next one sweeps up.

A folder is locked (flock) for as long as its process lives, so that whatever ends that process, even SIGKILL, gives
the lock back. Whoever gets the lock of a folder first may have it: a doctor that has just made it, or one that sweeps.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import sys
import weakref
from pathlib import Path

PREFIX = "hermes-doctor-"
_NAME = re.compile(PREFIX + "[0-9a-f]{16}")
#: How often another name is taken, where a sweeping doctor was quicker with the lock.
_TRIES = 5


class PrivateFolder:
    """A new folder, mode 0700, that goes with all it holds when it is closed; a context manager that gives its path."""

    def __init__(self, place: Path) -> None:
        """Make it in that folder. Raises OSError where it cannot be made."""
        self._lock: int | None = None
        for _ in range(_TRIES):
            self.path = place / f"{PREFIX}{os.urandom(8).hex()}"
            # Before it is there: a Ctrl-C may come at any moment.
            self._end = weakref.finalize(self, _remove, self.path)
            try:
                self.path.mkdir(mode=0o700)
            except BaseException:
                self._end.detach()
                raise
            try:
                self._lock = _lock(self.path)
                return
            except (BlockingIOError, FileNotFoundError):
                # Somebody who sweeps was quicker: it goes.
                continue
            except OSError:
                # No locks on this file system: nobody can sweep here either.
                return
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(place))

    def close(self) -> None:
        """Remove it. May be called more than once."""
        self._end()
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_exc: object) -> None:
        self.close()


def sweep(place: Path) -> None:
    """Remove the folders that this user's doctors left there when they were killed. Never raises.

    A folder whose doctor lives is locked, and stays; so does all that is another user's or merely named alike.
    """
    with contextlib.suppress(OSError):
        with os.scandir(place) as entries:
            left = [Path(entry.path) for entry in entries if _NAME.fullmatch(entry.name)]
        for folder in left:
            with contextlib.suppress(OSError):
                lock = _lock(folder)
                _remove(folder)
                os.close(lock)


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


if sys.platform == "win32":

    def _lock(folder: Path) -> int:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP), str(folder))

else:
    import fcntl

    def _lock(folder: Path) -> int:
        """Return a descriptor that holds the lock of a folder of ours.

        Raises BlockingIOError where somebody else has it, FileNotFoundError where the folder is gone by now, another
        OSError where it is not ours, or cannot be locked at all.
        """
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held, named = os.fstat(descriptor), folder.lstat()
            if (held.st_dev, held.st_ino) != (named.st_dev, named.st_ino):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder))
            if held.st_uid != os.geteuid() or held.st_mode & 0o777 != 0o700:
                raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(folder))
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor
