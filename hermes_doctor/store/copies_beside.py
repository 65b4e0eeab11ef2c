"""Copies of a damaged store that lie beside it: which of them have damage, too, and which look sound."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import apsw

from hermes_doctor.host.bundle import refuse_if_open_here, sidecar
from hermes_doctor.host.nearby import Kind, Nearby, around
from hermes_doctor.store.connecting import connect
from hermes_doctor.store.integrity import after, ask

_COPIES = frozenset({Kind.MALFORMED_BACKUP, Kind.CLEANED_BACKUP, Kind.DOCTOR_BACKUP})
_SIDECARS = ("-wal", "-shm", "-journal")
#: How many of the newest are looked at, and the seconds for each.
_NEWEST = 3
_SECONDS = 1.0
_LINES = 20


class Copies(NamedTuple):
    """Names of copies, relative to the store's folder; a copy that could not be looked at in time is in neither."""

    damaged: tuple[str, ...] = ()
    sound: tuple[str, ...] = ()


def copies_beside(store: Path) -> Copies:
    """Look at the newest copies beside a store. They are read as they lie there, and nothing is left beside them."""
    files = [file for file in around(store.resolve()) if file.kind in _COPIES and not file.is_folder]
    files = [file for file in files if not file.name.endswith(_SIDECARS) and not _has_log(file)]
    files.sort(key=lambda file: file.status.st_mtime_ns, reverse=True)
    answers = {file.name: _is_sound(file) for file in files[:_NEWEST]}
    return Copies(
        damaged=tuple(name for name, sound in answers.items() if sound is False),
        sound=tuple(name for name, sound in answers.items() if sound is True),
    )


def _has_log(file: Nearby) -> bool:
    log = sidecar(file.path, "-wal")
    return log.exists() and log.stat().st_size > 0


def _is_sound(file: Nearby) -> bool | None:
    """Whether a copy is sound, None where that cannot be told now."""
    try:
        # A copy may be no more than a second name of the store itself.
        refuse_if_open_here(file.status.st_dev, file.status.st_ino)
        with closing(connect(file.path, "mode=ro&immutable=1")) as connection:
            connection.drop_modules(None)
            answer = ask(connection, _LINES, stop=after(_SECONDS))
    except (apsw.Error, RuntimeError):
        return None
    if answer.problems:
        return False
    return True if answer.finished else None
