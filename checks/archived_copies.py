"""Messages that a compaction put away although they stayed in the chat.

What it finds
Archived messages (`active` 0, `compacted` 1) that a live message of the same session equals in
role, content, calls, ids, reasoning and time; how many there are, and what they weigh. A long
session is told in parts, one finding each.

Why it matters
Up to 0.20.6 each compaction in place puts all messages away and writes the last ones, which stay,
anew. A long chat then holds its last messages once for every compaction: one store of 12 GB had
189,158 rows, of which 81 were live. A search finds each of them as often, and so does a history
that shows what was put away (0.20.6). Nothing is lost, and the model is sent each message once.

How it decides
As replayed-blocks compares: all columns but ids, display order, token counts and uids, and the time
must be the same. What equals no live message is the only copy of what was said and is left, and so
are rows that were rewound. It is how those releases work, so it is never more than a note.

Fix
They are marked as 0.21.5 and newer mark such messages (`compacted` 0): superseded, and found no
more. The live ones are searched and shown as before; from 0.21.5 on a history shows them behind the
summary, where they stand. No row is deleted, and the file does not become smaller.

Fix safety
Unsafe: should the live message be taken back one day, the archived one is not found in its place.
A session in which a turn is running or that is being compressed is left, and up to 0.19 copies
among which is a picture (its text holds a NUL, and that release would index it anew).

Upstream
Issues 86366 and 99545: newer releases mark the rows as they compact, and none goes over older ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hermes_doctor.engine.model import Check, Finding, RelationRule, Safety, Severity
from hermes_doctor.store.archived_copies import archived_copies
from hermes_doctor.store.cells import Key
from hermes_doctor.store.nul_texts import NUL_REASON, indexed_with_nul
from hermes_doctor.store.setting_aside import spared
from hermes_doctor.store.view import StoreView

NAME = "archived-copies"

_UNITS = (("MiB", 1 << 20), ("KiB", 1 << 10))


def _find(view: StoreView, keys: Sequence[Key] | None) -> Iterator[Finding]:
    for copies in archived_copies(view, keys):
        refusal = spared(view, copies.session)
        if refusal is None and indexed_with_nul(view, copies.ids, ("compacted",)):
            refusal = NUL_REASON
        count = "1 archived message is a copy" if len(copies.ids) == 1 else f"{len(copies.ids):,} archived copies"
        yield Finding(
            check=NAME,
            severity=Severity.INFO,
            table="messages",
            key=copies.ids[0],
            session=copies.session,
            summary=f"{count} of messages that are still live ({_size(copies.bytes)})",
            detail={"messages": len(copies.ids), "last": copies.ids[-1], "bytes": copies.bytes},
            fix=Safety.UNSAFE if refusal is None else Safety.NONE,
            action="mark as superseded, as 0.21.5 does" if refusal is None else None,
            refusal=refusal,
        )


def _size(size: int) -> str:
    for unit, worth in _UNITS:
        if size >= worth:
            return f"{size / worth:,.1f} {unit}"
    return f"{size} bytes"


CHECK = Check(
    name=NAME,
    severity=Severity.INFO,
    summary="messages that compactions put away although they stayed in the chat",
    meaning="copies in the archive that a search finds once more each",
    fix=Safety.UNSAFE,
    page=__doc__ or "",
    rule=RelationRule("messages", _find),
)
