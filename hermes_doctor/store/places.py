"""Whether the folders that sessions worked in are still on this host."""

from __future__ import annotations

import os

from hermes_doctor.host.places import Place, Places, Presence
from hermes_doctor.store.view import StoreView

__all__ = ["Place", "Presence", "is_within", "place_at"]


def place_at(view: StoreView, path: str) -> Place:
    """Return what is at an absolute path of this host; each path is asked about once in a scan."""
    return view.once(_places).at(path)


def is_within(path: str, folder: str) -> bool:
    """Whether a path is a folder, or something in it. Both are absolute and free of links."""
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def _places(view: StoreView) -> Places:
    return Places()
