"""The numbered steps of every command that reads or writes a store, at which a test can have something happen to it.

``HERMES_DOCTOR_KILL_AT=committed:3`` sends the process SIGKILL when the step ``committed`` is reached the third time,
``committed:3:STOP`` another signal. Without the variable a step costs one dictionary look-up.
"""

from __future__ import annotations

import enum
import os
import signal
from collections import Counter

VARIABLE = "HERMES_DOCTOR_KILL_AT"


class Step(enum.StrEnum):
    """Where a command can be stopped; several of them scan, back up or settle on their way."""

    # Reading a store.
    SCANNING = "scanning"
    SCANNED = "scanned"
    # Backing it up.
    BACKING_UP = "backing-up"
    BACKUP_COPIED = "backup-copied"
    BACKUP_NAMED = "backup-named"
    # Mending.
    LOCKED = "locked"
    BACKED_UP = "backed-up"
    BEGUN = "begun"
    MENDED = "mended"
    CHANGESET = "changeset"
    PENDING = "pending"
    COMMITTED = "committed"
    APPLIED = "applied"
    FINISHED = "finished"
    # Finding out what became of a transaction before a stop.
    SETTLING = "settling"
    SETTLED = "settled"
    # Taking back.
    UNDO_LOCKED = "undo-locked"
    UNDO_BEGUN = "undo-begun"
    UNDO_COPIED = "undo-copied"
    UNDO_RESTORED = "undo-restored"
    UNDO_COMMITTED = "undo-committed"
    UNDONE = "undone"
    UNDO_MARKED = "undo-marked"
    # Compacting.
    COMPACT_LOCKED = "compact-locked"
    COMPACT_CHECKED = "compact-checked"
    COMPACTED = "compacted"
    COMPACT_CUT = "compact-cut"
    COMPACT_VERIFIED = "compact-verified"


_reached: Counter[str] = Counter()


def reach(step: Step) -> None:
    """Note that a step is reached; does nothing else unless a test asked for a signal here."""
    wanted = os.environ.get(VARIABLE)
    if wanted is None:
        return
    _reached[step] += 1
    name, count, sent = (*wanted.split(":"), "", "")[:3]
    if name == step and _reached[step] == int(count or 1):
        os.kill(os.getpid(), getattr(signal, f"SIG{sent or 'KILL'}"))
