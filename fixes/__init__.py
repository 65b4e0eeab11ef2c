"""The cures, one module each, named as the check whose findings they mend."""

from __future__ import annotations

from fixes import (
    amputated_branches,
    archived_copies,
    broken_json,
    counter_drift,
    crossed_ends,
    dangling_routes,
    double_encoded,
    hidden_by_null,
    hidden_chats,
    leaked_prompts,
    lineage_gaps,
    lost_identity,
    open_zombies,
    orphan_messages,
    orphan_stubs,
    permissions,
    replayed_blocks,
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
    amputated_branches.FIX,
    broken_json.FIX,
    hidden_by_null.FIX,
    lost_identity.FIX,
    wrongly_ended.FIX,
    counter_drift.FIX,
    replayed_blocks.FIX,
    leaked_prompts.FIX,
    crossed_ends.FIX,
    stale_handoffs.FIX,
    stale_locks.FIX,
    stuck_delegations.FIX,
    dangling_routes.FIX,
    permissions.FIX,
    open_zombies.FIX,
    orphan_stubs.FIX,
    archived_copies.FIX,
)
