"""Setting messages aside: when that has to wait, and what the session's counters become."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from hermes_doctor.store.cells import Key
from hermes_doctor.store.counters import CALLS, MESSAGES, busy, length_sql
from hermes_doctor.store.liveness import live_work
from hermes_doctor.store.reader import in_keys
from hermes_doctor.store.view import StoreView


@dataclass(frozen=True)
class Counted:
    """Counters of a session by column: what they hold, and what they come to without some of its messages."""

    before: dict[str, int] = field(default_factory=dict)
    after: dict[str, int] = field(default_factory=dict)


def counted_without(view: StoreView, session: Key, messages: Sequence[int]) -> Counted:
    """Return the counters that are to be lowered when these live messages are set aside.

    Only those that count just the live rows, as hermes does (its rewind recounts both from 0.20.6 on): any other is a
    fault of its own, or one that an earlier rewind explains. The store has `messages.active`.
    """
    # Beside each counter: what a row adds to it, and which rows do.
    adds = {MESSAGES: ("1", "1")}
    if view.shape.has("messages", "tool_calls"):
        adds[CALLS] = (length_sql("tool_calls"), "role = 'assistant' AND tool_calls IS NOT NULL")
    ours, cells = in_keys("session_id", [session])
    own, _cells = in_keys("id", [session])
    counted = Counted()
    for column, (each, of_these) in adds.items():
        if not view.shape.has("sessions", column):
            continue
        held = view.reader.value(f"SELECT {column} FROM sessions WHERE {own}", cells)
        live, leaving = view.reader.row(
            f"SELECT sum({each}), sum({each}) FILTER (WHERE id IN (SELECT value FROM json_each(?))) FROM messages"
            f" WHERE {ours} AND active = 1 AND {of_these}",
            (json.dumps(list(messages)), *cells),
        ) or (None, None)
        if isinstance(held, int) and held == live and isinstance(leaving, int) and leaving:
            counted.before[column], counted.after[column] = held, held - leaving
    return counted


def spared(view: StoreView, session: Key) -> str | None:
    """Return why the session's messages are left as they are for now, None where nothing speaks against it."""
    sign = live_work(view, session)
    if sign is not None:
        return f"spared: {sign}"
    if busy(view, [session]):
        return "spared: it was used within five minutes, and somebody has the store open"
    return None
