"""The faults that the doctor knows, one module each, in the order in which reports show them."""

from __future__ import annotations

from checks import (
    counter_drift,
    crossed_ends,
    dangling_routes,
    double_encoded,
    hidden_chats,
    lineage_gaps,
    lost_identity,
    open_zombies,
    orphan_messages,
    orphan_stubs,
    oversize_chats,
    prompt_weight,
    same_titles,
    stale_handoffs,
    stale_locks,
    stale_places,
    stuck_delegations,
    wrongly_ended,
)
from hermes_doctor.engine.model import Check

CHECKS: tuple[Check, ...] = (
    orphan_messages.CHECK,
    lineage_gaps.CHECK,
    hidden_chats.CHECK,
    same_titles.CHECK,
    double_encoded.CHECK,
    lost_identity.CHECK,
    wrongly_ended.CHECK,
    oversize_chats.CHECK,
    counter_drift.CHECK,
    crossed_ends.CHECK,
    stale_handoffs.CHECK,
    stale_locks.CHECK,
    stuck_delegations.CHECK,
    dangling_routes.CHECK,
    open_zombies.CHECK,
    orphan_stubs.CHECK,
    stale_places.CHECK,
    prompt_weight.CHECK,
)
