"""Whether a package that is installed here may declare entry points of a group, told by looking into a few files.

`importlib.metadata` knows for certain, but to import it (it brings along all that reads mail and zip files) and to have
it read what every package declares takes longer than to scan a small store; and as a rule nobody declares the group.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder


def may_be_declared(group: str) -> bool:
    """Return False where it is certain that no package on Python's path declares an entry point of the group.

    Looked at is what `importlib.metadata.entry_points` would read; what cannot be looked into so simply, a zip file or
    another way of finding packages, may always declare some.
    """
    if any(hasattr(finder, "find_distributions") for finder in sys.meta_path if finder is not PathFinder):
        return True
    wanted = group.encode()
    for folder in sys.path:
        try:
            names = os.listdir(folder or ".")  # noqa: PTH208  (as the path has it: no Path for each name)
        except NotADirectoryError:
            return True
        except OSError:
            continue
        for name in names:
            about = name.lower().endswith((".dist-info", ".egg-info")) or name.lower() == "egg-info"
            if about and wanted in _declared(os.path.join(folder, name, "entry_points.txt")):  # noqa: PTH118  (as above)
                return True
    return False


def _declared(file: str) -> bytes:
    try:
        with open(file, "rb") as declaring:  # noqa: PTH123  (as above)
            return declaring.read()
    except OSError:
        return b""
