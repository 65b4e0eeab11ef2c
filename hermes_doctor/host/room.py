"""How much room there is on the file system that a folder lies on."""

from __future__ import annotations

import shutil
from pathlib import Path


def free_bytes(folder: Path) -> int:
    """Return how many bytes this user may still write there; of a folder yet to be made: where it would be made.

    A user's quota is not counted. Raises OSError where the file system cannot be asked.
    """
    return shutil.disk_usage(_existing(folder)).free


def same_filesystem(left: Path, right: Path) -> bool:
    """Whether what is written to the two folders fills the same file system. Raises OSError as above."""
    return _existing(left).stat().st_dev == _existing(right).stat().st_dev


def _existing(folder: Path) -> Path:
    """Return the folder, or the nearest one above it that is there."""
    absolute = folder.absolute()
    return next((each for each in (absolute, *absolute.parents) if each.exists()), absolute)
