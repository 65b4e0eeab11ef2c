"""How much room there is on the file system that a folder lies on."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

#: Where the system keeps temporary files, tried in this order after what the environment names.
_TEMPORARY = ("/tmp", "/var/tmp", "/usr/tmp")
#: The same, as SQLite does it, and where it ends up.
_TEMPORARY_OF_SQLITE = ("/var/tmp", "/usr/tmp", "/tmp", ".")


def free_bytes(folder: Path) -> int:
    """Return how many bytes this user may still write there; of a folder yet to be made: where it would be made.

    A user's quota is not counted. Raises OSError where the file system cannot be asked.
    """
    return shutil.disk_usage(_existing(folder)).free


def temporary_folder() -> Path:
    """Return the folder for temporary files, which may turn out not to be writable.

    tempfile's own choice, but never the working directory, where it ends when the others are full or read-only, and
    which it writes to in order to try it: that may be a Hermes home, in which a scan must leave no trace.
    """
    if sys.platform == "win32":
        return Path(tempfile.gettempdir())
    named = (os.environ.get(name) for name in ("TMPDIR", "TEMP", "TMP"))
    folders = [Path(each).absolute() for each in (*named, *_TEMPORARY) if each]
    # In this order: is_dir() raises where the way to it is closed.
    usable = (folder for folder in folders if os.access(folder, os.W_OK | os.X_OK) and folder.is_dir())
    return next(usable, Path(_TEMPORARY[0]))


def sqlite_temporary_folder() -> Path:
    """Return where SQLite puts its temporary files, such as the copy that a VACUUM makes."""
    if sys.platform == "win32":
        return Path(tempfile.gettempdir())
    named = (os.environ.get(name) for name in ("SQLITE_TMPDIR", "TMPDIR"))
    folders = [Path(each) for each in (*named, *_TEMPORARY_OF_SQLITE) if each]
    # In this order: is_dir() raises where the way to it is closed.
    usable = (folder for folder in folders if os.access(folder, os.W_OK | os.X_OK) and folder.is_dir())
    return next(usable, folders[-1]).absolute()


def same_filesystem(left: Path, right: Path) -> bool:
    """Whether what is written to the two folders fills the same file system. Raises OSError as above."""
    return _existing(left).stat().st_dev == _existing(right).stat().st_dev


def _existing(folder: Path) -> Path:
    """Return the folder, or the nearest one above it that is there."""
    absolute = folder.absolute()
    return next((each for each in (absolute, *absolute.parents) if each.exists()), absolute)
