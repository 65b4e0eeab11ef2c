"""A folder of made stores, so that those that take minutes are made once."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from filelock import FileLock

from bench import stores, words
from bench.stores import make_store

_FILES = (stores.__file__, words.__file__)
#: How stores are made.
_WAY = hashlib.sha256(b"".join(Path(file).read_bytes() for file in _FILES)).hexdigest()[:8]


def kept_store(
    folder: Path, release: str, messages: int, *, faults: float = 0.0, seed: int = 1, weight: float = 1.0
) -> Path:
    """Return such a store from a folder of stores, making it where it is not there yet.

    Whoever writes to it takes a :func:`copy_of` it. A store that was made in another way is not taken for this one.
    """
    kept = folder / f"{release}-{messages}-{faults:g}-{seed}-{weight:g}-{_WAY}"
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / f"{kept.name}.lock"):
        if not kept.exists():
            being_made = folder / f"{kept.name}.part"
            shutil.rmtree(being_made, ignore_errors=True)
            make_store(being_made, release, messages, faults=faults, seed=seed, weight=weight)
            # Renamed at the end, so that a folder of that name is always complete.
            being_made.rename(kept)
    return kept / "state.db"


def copy_of(store: Path, folder: Path) -> Path:
    """Copy a store that nobody has open into a new home in ``folder``, and return it."""
    folder.mkdir(parents=True)
    return Path(shutil.copy2(store, folder / "state.db"))
