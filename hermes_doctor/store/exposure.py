"""Which files of a store other people of the machine can read, and which belong to somebody else than the store."""

from __future__ import annotations

import stat
import sys
from collections.abc import Iterator
from os import stat_result
from pathlib import Path
from typing import NamedTuple

from hermes_doctor.host.nearby import Nearby, nearby
from hermes_doctor.store.view import StoreView

_GROUP, _OTHERS = 0o070, 0o007
#: What it takes to reach a file in a folder whose names are known: to go through it.
_THROUGH = {_GROUP: stat.S_IXGRP, _OTHERS: stat.S_IXOTH}
_READ = {_GROUP: stat.S_IRGRP, _OTHERS: stat.S_IROTH}


class Exposed(NamedTuple):
    """A file that others can read. ``mode``: its permission bits; ``to``: those that it should have."""

    file: Nearby
    mode: int
    to: int


def exposed(view: StoreView) -> Iterator[Exposed]:
    """Give the files of the store that group or others can read and reach.

    A folder on the way that nobody else may go through protects what is in it. A store that its group may write to,
    or that lies in a folder which hands its group on (setgid), is shared on purpose: there the group keeps its rights.
    """
    if view.bundle is None or sys.platform == "win32":
        return
    folder = view.bundle.real_path.parent
    for file in nearby(view.bundle):
        mode = stat.S_IMODE(file.status.st_mode)
        inner = file.path.parent
        open_to = sum(
            bits
            for bits, can_read in _READ.items()
            if mode & can_read and _can_reach(inner, bits) and not (bits == _GROUP and _is_shared(folder, view))
        )
        if open_to:
            yield Exposed(file, mode, mode & ~open_to)


def foreign(view: StoreView) -> Iterator[tuple[Nearby, int]]:
    """Give the files of the store that belong to another user than the store itself, and that user's number."""
    if view.bundle is None or sys.platform == "win32":
        return
    for file in nearby(view.bundle):
        if file.status.st_uid != view.bundle.owner:
            yield file, file.status.st_uid


def user_name(number: int) -> str:
    """Return a user's name, or the number where it has none here."""
    if sys.platform == "win32":
        return f"user {number}"
    import pwd

    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"


def _can_reach(folder: Path, bits: int) -> bool:
    """Whether group or others may go through the folder and all that it lies in."""
    for each in (folder, *folder.parents):
        status = _status(each)
        if status is None or not status.st_mode & _THROUGH[bits]:
            return False
    return True


def _is_shared(folder: Path, view: StoreView) -> bool:
    """Whether the store's group is meant to have it."""
    inside, store = _status(folder), _status(view.bundle.real_path) if view.bundle else None
    handed_on = inside is not None and bool(inside.st_mode & stat.S_ISGID)
    return handed_on or (store is not None and bool(store.st_mode & stat.S_IWGRP))


def _status(path: Path) -> stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None
