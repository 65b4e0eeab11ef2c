"""Messages of a chat that were written to it again and again.

What it finds
Pieces of a conversation that stand in their session more than once: at least two live messages in
a row, each of which an earlier live one equals in role, content, calls, ids, reasoning and all
else, its time included. One finding for each such run of copies; a long one is told in parts.

Why it matters
The model is sent every copy with every turn: one chat came to 15,962 messages of which 468 were
different, and every copy is paid for. A chat that has grown so is compressed too early and loses
what was in it. Lists and limits count the copies as messages.

How it decides
A message that is written again from memory keeps its time, to a millionth of a second. So copies
are looked for only among rows of one session and one moment, and all columns are compared but ids,
display order, token counts and the random uids of 0.22. What proves a replay is two copies in a
row, of different moments, in the order of what they are copies of: time does not pass through the
same moments twice. No proof are a call id that is always the same, short answers that return, a
time that many messages share, a row of another session, and a single copy, or several of one and
the same moment; where nothing else was said in that moment such a copy is noted, and left. Rows
that a rewind or a compaction took out are in nobody's way.

Fix
The copies leave the conversation as a rewind leaves messages (`active` and `compacted` 0); the
first of each stays where it is. No row is deleted. Counters of the session that were right stay
right.

Fix safety
Unsafe: that copies are nobody's words is known from their times only. Left are copies behind the
summary of a compaction, which may be meant to go on from there; a session in which a turn is
running; up to 0.19, copies among which is a picture (its text holds a NUL, and that release would
index it anew); and stores up to 0.15, which know no rewind: open them with a newer release first.

Upstream
Issues 92231, 99477, 111996, 12563 and 19407. The writers were mended; no release takes copies out
that are there (99899 was to, and was closed). 78010 and 88324: equal times and equal call ids are
no proof.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hermes_doctor.engine.model import Check, Finding, RelationRule, Safety, Severity
from hermes_doctor.store.cells import Key
from hermes_doctor.store.nul_texts import NUL_REASON, indexed_with_nul
from hermes_doctor.store.replays import Block, blocks
from hermes_doctor.store.setting_aside import spared
from hermes_doctor.store.view import StoreView

NAME = "replayed-blocks"

#: What the fix writes.
_WRITTEN = ("active", "compacted")

_IN_DOUBT = "one moment proves nothing: read the chat, and rewind it in hermes if the message is there too often"
_BEHIND_A_SUMMARY = "a summary of the chat stands before them: which of the two hermes is to go on from cannot be told"
_NO_REWIND = "this store's release cannot set a message aside: open the store with hermes 0.16 or newer first"


def _find(view: StoreView, keys: Sequence[Key] | None) -> Iterator[Finding]:
    for block in blocks(view, keys):
        refusal = _refusal(view, block)
        count = "1 message" if len(block.ids) == 1 else f"{len(block.ids):,} messages"
        yield Finding(
            check=NAME,
            severity=Severity.WARNING if block.certain else Severity.INFO,
            table="messages",
            key=block.ids[0],
            session=block.session,
            summary=f"{count} written again, the same in all and of the same time"
            if block.certain
            else f"{count} the same as an earlier one, and of the same moment",
            detail={"messages": len(block.ids), "last": block.ids[-1], "copy_of": block.first, "bytes": block.bytes},
            fix=Safety.UNSAFE if refusal is None else Safety.NONE,
            action=f"set {count} aside as a rewind does" if refusal is None else None,
            refusal=refusal,
        )


def _refusal(view: StoreView, block: Block) -> str | None:
    if not block.certain:
        return _IN_DOUBT
    if not view.shape.has("messages", "active"):
        return _NO_REWIND
    if block.summary:
        return _BEHIND_A_SUMMARY
    return spared(view, block.session) or (NUL_REASON if indexed_with_nul(view, block.ids, _WRITTEN) else None)


CHECK = Check(
    name=NAME,
    severity=Severity.WARNING,
    summary="messages of a chat that were written to it again and again",
    meaning="chats that the model is sent several times over, at full price",
    fix=Safety.UNSAFE,
    page=__doc__ or "",
    rule=RelationRule("messages", _find),
)
