"""What upstream's next prune would take of the sessions that a plan ends.

Prune never takes an open row, so ending one can be what costs it: whoever reads the plan is told before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
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


def prune_forecast(view: StoreView, ended: Iterable[Key]) -> PruneForecast | None:
    """Say what the next prune would delete if these sessions were ended now (store/retention.py: by which clock).

    None where there are none.
    """
    waiting = iter(ended)
    asked = sessions = messages = 0
    while some := list(islice(waiting, _AT_ONCE)):
        asked += len(some)
        taken = [session for session, age in ages_of(view, some).items() if pruned_once_ended(view, age)]
        sessions += len(taken)
        messages += _messages_of(view, taken)
    if not asked:
        return None
    on = view.settings.read and view.settings.auto_prune is True
    pruning: Literal["on", "off", "unknown"] = "on" if on else "off" if prune_is_off(view) else "unknown"
    return PruneForecast(sessions, messages, retention(view) / DAY, pruning)


def _messages_of(view: StoreView, sessions: Sequence[Key]) -> int:
    """How many messages these sessions have."""
    if not sessions or not view.shape.has("messages", "session_id"):
        return 0
    among, cells = in_keys("session_id", sessions)
    counted = view.reader.value(f"SELECT count(*) FROM messages WHERE {among}", cells)
    return counted if isinstance(counted, int) else 0
