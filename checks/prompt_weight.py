"""System prompts that are stored more often than they need be.

What it finds
In a store whose release shares system prompts (0.20.0 on): prompts that still stand in the rows of
sessions, one copy each, and shared prompts that no session uses. One finding for each of the two,
from a mebibyte on.

Why it matters
A system prompt is some 30 kB long, and most sessions have the same. 4,778 of them once made 138 of
the 146 MB of a table of sessions. Nothing is wrong with such a store: it is large, and its backups
are.

How it decides
By size: what stands in `sessions.system_prompt`, and what of `system_prompts` is named neither by a
session's `system_prompt_hash` nor, from 0.21.5 on, by its `tool_names`. How many different prompts
there are is told where they can be read within 64 MiB.

Fix
None. Hermes shares prompts when it first opens an older store, and not again: a 0.19 that opened
the store since then has left copies. It reads them as before. What no session uses goes with the
next session that hermes deletes or prunes.

Fix safety
Nothing is changed.

Upstream
Issues 57153 and 77755 (prompts are shared, schema 25), 122822 (stored prompts are reported).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hermes_doctor.engine.model import Check, Finding, RelationRule, Safety, Severity
from hermes_doctor.engine.weighing import in_mebibytes, is_asked, weighed
from hermes_doctor.store.cells import Key
from hermes_doctor.store.prompts import inline_prompts, unused_prompts
from hermes_doctor.store.view import StoreView

NAME = "prompt-weight"


def _inline(view: StoreView, keys: Sequence[Key] | None) -> Iterator[Finding]:
    if not is_asked(keys):
        return
    weight = inline_prompts(view)
    holders = "1 session holds" if weight.count == 1 else f"{weight.count:,} sessions hold"
    summary = f"{holders} {in_mebibytes(weight.bytes)} of system prompts that the release would share"
    detail = {"column": "system_prompt", "distinct": weight.distinct}
    yield from weighed(NAME, "sessions", weight.count, weight.bytes, summary, detail)


def _unused(view: StoreView, keys: Sequence[Key] | None) -> Iterator[Finding]:
    if not is_asked(keys):
        return
    weight = unused_prompts(view)
    summary = f"no session uses {weight.count:,} of the shared system prompts ({in_mebibytes(weight.bytes)})"
    yield from weighed(NAME, "system_prompts", weight.count, weight.bytes, summary, {"column": "prompt"})


CHECK = Check(
    name=NAME,
    severity=Severity.INFO,
    summary="system prompts stored more often than they need be",
    meaning="space that copies of system prompts take up",
    fix=Safety.NONE,
    page=__doc__ or "",
    rule=(RelationRule("sessions", _inline), RelationRule("system_prompts", _unused)),
)
