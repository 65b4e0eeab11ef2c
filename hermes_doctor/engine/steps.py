"""The numbered steps of every repair, at which a test can have the doctor killed.

``HERMES_DOCTOR_KILL_AT=commit:3`` ends the process by SIGKILL when the step ``commit`` is reached the third time.
Without the variable a step costs one dictionary look-up.
"""

from __future__ import annotations

import enum
import os
import signal
from collections import Counter

VARIABLE = "HERMES_DOCTOR_KILL_AT"


class Step(enum.StrEnum):
    """Where a repair, or its being taken back, can be stopped."""

    LOCKED = "locked"
    BACKED_UP = "backed-up"
    BEGUN = "begun"
    MENDED = "mended"
    CHANGESET = "changeset"
    PENDING = "pending"
    COMMITTED = "committed"
    APPLIED = "applied"
    SETTLING = "settling"
    SETTLED = "settled"
    UNDO_BEGUN = "undo-begun"
    UNDO_RESTORED = "undo-restored"
    UNDO_COMMITTED = "undo-committed"
    UNDONE = "undone"


_reached: Counter[str] = Counter()


def reach(step: Step) -> None:
    """Note that a step is reached; does nothing else unless a test asked for the end here."""
    wanted = os.environ.get(VARIABLE)
    if wanted is None:
        return
    _reached[step] += 1
    name, _, count = wanted.partition(":")
    if name == step and _reached[step] == int(count or 1):
        os.kill(os.getpid(), signal.SIGKILL)
