"""How much room system prompts take up that a release which shares them would not need (0.20.0 on, schema 25).

Shared prompts are keyed by their hash. A session names its prompt by ``system_prompt_hash``, and from 0.21.5 on its
tools by ``tool_names``, which holds a hash of the same table (or, in older rows, a list).
"""

from __future__ import annotations

from dataclasses import dataclass

from hermes_doctor.store.view import StoreView

MEBIBYTE = 1 << 20
#: So much is read to tell how many prompts are different.
_READ_AT_MOST = 64 * MEBIBYTE

#: The columns of sessions that name a shared prompt.
_NAMING = ("system_prompt_hash", "tool_names")


@dataclass(frozen=True, slots=True)
class Weight:
    """Some prompts: how many, and their size. ``distinct``: how many are different, None where that was not read."""

    count: int = 0
    bytes: int = 0
    distinct: int | None = None


def inline_prompts(view: StoreView) -> Weight:
    """Weigh the prompts in rows of sessions; nothing where the release does not share them."""
    if not view.shape.has("system_prompts", "hash", "prompt") or not view.shape.has("sessions", "system_prompt"):
        return Weight()
    prompt = view.shape.column("sessions", "system_prompt")
    table, there = view.shape.tables["sessions"], f"octet_length({prompt}) > 0"
    # SQLite tells a text's length in bytes without reading it.
    sizes = [size for (size,) in view.reader.walk(table, [f"octet_length({prompt})"], there) if isinstance(size, int)]
    total = sum(sizes)
    if not MEBIBYTE <= total <= _READ_AT_MOST:
        return Weight(len(sizes), total)
    # Here, and not with the others: OpenSSL comes with it, and few stores have so many prompts.
    import hashlib

    digests = {
        hashlib.sha256(cell if isinstance(cell, bytes) else str(cell).encode("utf-8", "surrogatepass")).digest()
        for (cell,) in view.reader.walk(table, [prompt], there)
    }
    return Weight(len(sizes), total, len(digests))


def unused_prompts(view: StoreView) -> Weight:
    """Weigh the shared prompts that no session names."""
    if not view.shape.has("system_prompts", "hash", "prompt") or not view.shape.has("sessions"):
        return Weight()
    # The indexes over these columns hold all that is asked (0.20.0, and 0.21.5 for tool_names).
    unnamed = " AND ".join(
        f"hash NOT IN (SELECT {name} FROM sessions WHERE {name} IS NOT NULL)"
        for name in _NAMING
        if view.shape.has("sessions", name)
    )
    if not unnamed:
        return Weight()
    counted = view.reader.row(
        f"SELECT count(*), coalesce(sum(octet_length(prompt)), 0) FROM system_prompts WHERE {unnamed}"
    )
    count, size = counted or (0, 0)
    return Weight(count if isinstance(count, int) else 0, size if isinstance(size, int) else 0)
