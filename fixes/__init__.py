"""The cures, one module each, named as the check whose findings they mend."""

from __future__ import annotations

from fixes import (
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
    same_titles,
    stale_handoffs,
    stale_locks,
    stuck_delegations,
    wrongly_ended,
)
from hermes_doctor.engine.cure import Fix

FIXES: tuple[Fix, ...] = (
    orphan_messages.FIX,
    lineage_gaps.FIX,
    hidden_chats.FIX,
    same_titles.FIX,
    double_encoded.FIX,
    lost_identity.FIX,
    wrongly_ended.FIX,
    counter_drift.FIX,
    crossed_ends.FIX,
    stale_handoffs.FIX,
    stale_locks.FIX,
    stuck_delegations.FIX,
    dangling_routes.FIX,
    open_zombies.FIX,
    orphan_stubs.FIX,
)
