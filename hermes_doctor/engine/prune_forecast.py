"""What upstream's next prune would take of the sessions that a plan ends.

Prune never takes an open row, so ending one can be what costs it: whoever reads the plan is told before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hermes_doctor.store.ages import ages_of
from hermes_doctor.store.cells import Key
from hermes_doctor.store.clocks import DAY
from hermes_doctor.store.reader import in_keys
from hermes_doctor.store.retention import prune_is_off, pruned_once_ended, retention
from hermes_doctor.store.view import StoreView

#: Sessions that are asked about in one statement.
_AT_ONCE = 500


@dataclass(frozen=True)
class PruneForecast:
    """How many sessions that are to be ended are past the retention by their release's clock, and their messages.

    ``retention_days``: how long this home keeps ended sessions. ``pruning``: whether hermes prunes by itself at its
    start, by this home's config: ``on``, ``off``, or ``unknown`` where the config does not say or cannot be read.
    """

    sessions: int
    messages: int
    retention_days: float
    pruning: Literal["on", "off", "unknown"]


def prune_forecast(view: StoreView, ended: Sequence[Key]) -> PruneForecast:
    """Say what the next prune would delete if these sessions were ended now (store/retention.py: by which clock)."""
    taken = [session for session, age in ages_of(view, ended).items() if pruned_once_ended(view, age)]
    messages = 0
    if view.shape.has("messages", "session_id"):
        for start in range(0, len(taken), _AT_ONCE):
            among, cells = in_keys("session_id", taken[start : start + _AT_ONCE])
            counted = view.reader.value(f"SELECT count(*) FROM messages WHERE {among}", cells)
            messages += counted if isinstance(counted, int) else 0
    on = view.settings.read and view.settings.auto_prune is True
    pruning: Literal["on", "off", "unknown"] = "on" if on else "off" if prune_is_off(view) else "unknown"
    return PruneForecast(len(taken), messages, retention(view) / DAY, pruning)
