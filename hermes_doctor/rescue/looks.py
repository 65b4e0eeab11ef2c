"""What values look like in the columns of releases: what tells rows from others whose values are of the same kinds."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hermes_doctor.store.cells import Cell

#: What texts look like in columns that can be told by it.
_LOOKS: dict[str, re.Pattern[str]] = {
    name: re.compile(pattern, re.S)
    for pattern, names in (
        (
            r"[\w.:\-]{0,60}\Z",
            "role source created_source chat_type end_reason finish_reason title_source display_kind",
        ),
        (r"[\w.:\-]{0,60}\Z", "handoff_state handoff_platform state delivery_state effect_disposition billing_mode"),
        (r"[\w.:\-]{0,60}\Z", "last_activity_provenance cost_status cost_source billing_provider pricing_version"),
        (r"\s*[{\[\"]", "model_config origin_json entry_json event_json result_json task_json display_metadata"),
        (r"\s*[{\[\"]", "tool_calls reasoning_details codex_reasoning_items codex_message_items"),
        (r"\s*[{\[\"]", "absorbed_message_uids tool_call_uids"),
        (r"[0-9a-f]{32,128}\Z", "hash system_prompt_hash message_uid tool_call_uid"),
        (r"\S{0,300}\Z", "id session_id parent_session_id conversation_id delegation_id tool_call_id"),
        (r"\S{0,300}\Z", "platform_message_id user_id chat_id thread_id session_key model git_branch"),
        (r"(?![0-9a-f]{32,}\Z)\S{0,300}\Z", "key"),
        (r"[\w.\-]{0,80}\Z", "profile_name transport_profile"),
        (r"(https?:|\Z)", "billing_base_url"),
        (r"(/|~|\\|[A-Za-z]:|\Z)", "cwd git_repo_root"),
        (r"[^\n]{0,300}\Z", "title display_name tool_name"),
    )
    for name in names.split()
}
#: What tells one table from another whose rows look the same otherwise.
_HOLDERS = {"compression_locks": re.compile(r".*:tid="), "session_turn_leases": re.compile(r".*:turn=")}
_TIMES = {
    *("timestamp", "started_at", "ended_at", "updated_at", "acquired_at", "expires_at", "last_heartbeat"),
    *("dispatched_at", "completed_at", "delivered_at", "delivery_claimed_at", "first_seen", "last_seen"),
    *("last_activity_at", "last_read_at", "compression_failure_cooldown_until", "compression_recovery_deadline"),
}
_FLAGS = {
    *("observed", "active", "compacted", "_compressed_summary", "archived", "auto_archived", "pinned", "hidden"),
    "expiry_finalized",
}
_EARLIEST = 1e9


def oddities(table: str, names: Sequence[str], row: Sequence[Cell]) -> int:
    """Return how many values of a row, in columns of those names, do not look like what releases write there."""
    return sum(_is_odd(table, name, value) for name, value in zip(names, row, strict=False))


def _is_odd(table: str, name: str, value: Cell) -> bool:
    """Whether a value does not look like what releases write into its column."""
    if isinstance(value, str):
        pattern = _HOLDERS.get(table) if name == "holder" else _LOOKS.get(name)
        return pattern is not None and pattern.match(value) is None
    if isinstance(value, int | float):
        if name in _FLAGS:
            return value not in (0, 1)
        return (name in _TIMES) != (value > _EARLIEST)
    return False
