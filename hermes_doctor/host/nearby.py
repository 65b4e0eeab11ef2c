"""The files around a store that belong to it: its sidecars, and what hermes's repairs and the doctor laid beside it.

Only names and stat: nothing is opened, and no link is followed.
"""

from __future__ import annotations

import enum
import re
import stat
from collections.abc import Iterator
from os import stat_result
from pathlib import Path
from typing import NamedTuple

from hermes_doctor.host.bundle import Bundle

#: The doctor's own folder beside a store, and the folder of its backups in it.
DOCTOR_FOLDER, DOCTOR_BACKUPS = "doctor", "backups"


class Kind(enum.StrEnum):
    """What such a file is."""

    STORE = "the store"
    SIDECAR = "a sidecar"
    MALFORMED_BACKUP = "a backup that hermes made before a repair"
    CLEANED_BACKUP = "a backup that hermes made before it cleaned markers"
    ZEROED_BACKUP = "a file of zeros that hermes put aside"
    SCRATCH = "a scratch file of hermes's repair"
    RETIRED_LOG = "a write-ahead log that hermes put aside"
    LEDGER = "hermes's record of repairs"
    DOCTOR_BACKUP = "a backup of the doctor"
    DOCTOR_FILE = "a file of the doctor"


class Nearby(NamedTuple):
    """One file or folder beside a store. ``name``: its path, relative to the store's folder."""

    path: Path
    name: str
    kind: Kind
    status: stat_result

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder."""
        return stat.S_ISDIR(self.status.st_mode)


def _patterns(store: str) -> Iterator[tuple[Kind, re.Pattern[str]]]:
    """Give the names that hermes uses beside a store of that name (0.17 to 0.22.2)."""
    name = re.escape(store)
    tail = r"(?:-wal|-shm|-journal)?"
    yield Kind.SIDECAR, re.compile(rf"{name}(?:-wal|-shm|-journal)")
    # One that is not finished is no backup.
    yield Kind.SCRATCH, re.compile(rf"{name}\.malformed-backup-.*\.incomplete.*")
    yield Kind.MALFORMED_BACKUP, re.compile(rf"{name}\.malformed-backup(?:-\d{{8}}_\d{{6}}(?:_\d+)?)?{tail}")
    yield Kind.CLEANED_BACKUP, re.compile(rf"{name}\.pre-clean-markers-backup-.*")
    yield Kind.ZEROED_BACKUP, re.compile(rf"{name}\.zeroed-.*\.bak")
    yield Kind.SCRATCH, re.compile(rf"{name}\.(?:repair-scratch.*|backup-staging-.*)")
    yield Kind.RETIRED_LOG, re.compile(rf"{name}\.retired-wal-.*")
    yield Kind.LEDGER, re.compile(rf"{name}\.repair-attempts\.json")


def nearby(bundle: Bundle) -> list[Nearby]:
    """Return the store and all that lies around it and belongs to it, by name; what cannot be listed is left out."""
    return around(bundle.real_path)


def around(store: Path) -> list[Nearby]:
    """Return the same for a store that cannot be looked at: of its path, symbolic links followed."""
    folder = store.parent
    patterns = list(_patterns(store.name))
    found: list[Nearby] = []
    for path in _listed(folder):
        kind = next((kind for kind, pattern in patterns if pattern.fullmatch(path.name)), None)
        if path.name == store.name:
            kind = Kind.STORE
        found += [] if kind is None else _looked_at(path, folder, kind)
    for path in _listed(folder / DOCTOR_FOLDER):
        found += _looked_at(path, folder, Kind.DOCTOR_FILE) if path.name != DOCTOR_BACKUPS else []
    for path in _listed(folder / DOCTOR_FOLDER / DOCTOR_BACKUPS):
        found += _looked_at(path, folder, Kind.DOCTOR_BACKUP)
    return found


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _looked_at(path: Path, folder: Path, kind: Kind) -> list[Nearby]:
    try:
        status = path.lstat()
    except OSError:
        return []
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        return []
    return [Nearby(path, path.relative_to(folder).as_posix(), kind, status)]
