"""Space that a store takes up and does not need: free pages, and a heavy search index.

What it finds
From a mebibyte on: a file of which more than a quarter is free pages; and a search index that is
heavier than it need be for the text that it serves.

Why it matters
Nothing is wrong with such a store: it is large, and so are its backups. SQLite uses free pages
again, but never gives them back by itself. In one store the index was 18 times its text.

How it decides
Free pages by SQLite's own count, the limit is that from which on hermes's own maintenance finds a
VACUUM worth its while. What a VACUUM would give back is told as that many pages, which is the
least: pages that are half empty come on top. The room is what `doctor compact` asks for.

The index's weight, and the length of its text, are estimates (within some ten percent) from a few
records that the index keeps of itself, for to measure it would be to read it. Inline indexes
(files of 0.13 to 0.19) hold two more copies of every text, long tool results included, and are
always told of. Others are told of from ten times their text on: the index of three-letter pieces
normally is two to eight times as heavy as its text, and twice that when its rows were written anew
and it was not merged since. An index that is made anew just now weighs less for a while.

Fix
None here. `doctor compact` gives free pages back. `hermes sessions optimize` (0.16.0 on) merges an
index, `hermes sessions optimize-storage` (0.20.0 on) makes an inline one anew without copies; both
end with a VACUUM, and want hermes stopped.

Fix safety
Nothing is changed.

Upstream
Issues 22478, 55233, 43690, 57761 (weight of the index), 101316 (VACUUM from 25 % on), 72156 (the
room it needs).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hermes_doctor.engine.model import FILES, Check, Detail, Finding, RelationRule, Safety, Severity
from hermes_doctor.store.bloat import compact_command, extent_of, optimize_command, rooms_of
from hermes_doctor.store.cells import Key
from hermes_doctor.store.index_weight import TRIGRAM, weigh_indexes
from hermes_doctor.store.prompts import MEBIBYTE
from hermes_doctor.store.view import StoreView

NAME = "bloat"

#: Less than this, in bytes, is nothing to tell.
WORTH_TELLING = MEBIBYTE
#: The share of free pages that is told of when there are more (upstream 101316).
MOST_FREE = 0.25
#: How many times its text a trigram index may weigh. Measured, of texts of 100 to 100,000 characters, source code,
#: prose and base64: 1.8 to 4.4 times when merged, up to 7.8 as it grows, and up to 18.2 (as in a field report) after
#: every row was written anew three times.
MOST_TIMES = 10


def _free_pages(view: StoreView, keys: Sequence[Key] | None) -> Iterator[Finding]:
    found = extent_of(view)
    if view.bundle is None or found is None:
        return
    name = view.bundle.real_path.name
    if (keys is not None and name not in keys) or found.free_share <= MOST_FREE or found.free_bytes < WORTH_TELLING:
        return
    rooms = rooms_of(view, found.bytes)
    needs = " and ".join(f"{_size(room.needed)} on the disk of {room.folder}" for room in rooms)
    yield _finding(
        FILES,
        name,
        f"{found.free_share:.0%} of its pages are free: {compact_command(view)} gives back {_size(found.free_bytes)}"
        f" or more" + (f", and needs {needs} meanwhile" if needs else ""),
        {
            "pages": found.pages,
            "free_pages": found.free_pages,
            "free_bytes": found.free_bytes,
            "room_needed": sum(room.needed for room in rooms),
            "room_is_there": all(room.is_enough for room in rooms) if rooms else None,
        },
    )


def _heavy_index(view: StoreView, keys: Sequence[Key] | None) -> Iterator[Finding]:
    weight = weigh_indexes(view) if keys is None or None in keys else None
    if weight is None or weight.judged < WORTH_TELLING or not weight.text:
        return
    times = weight.judged / weight.text
    inline = bool(weight.inline)
    if times <= (1 if inline else MOST_TIMES):
        return
    which = "the search index weighs" if inline else f"{TRIGRAM} weighs"
    why = f", {_size(weight.copies)} of it copies of the texts" if inline else ""
    yield _finding(
        "messages",
        None,
        f"{which} about {_size(weight.judged)}, {times:.1f} times the text that it serves{why}:"
        f" {optimize_command(view, inline=inline)}",
        {
            "index_bytes": weight.judged,
            "text_bytes": weight.text,
            "copied_bytes": weight.copies,
            "indexes": list(weight.inline or [TRIGRAM]),
            "estimated": True,
        },
    )


def _finding(table: str, key: Key, summary: str, detail: Detail) -> Finding:
    return Finding(
        check=NAME, severity=Severity.INFO, table=table, key=key, session=None, summary=summary, detail=detail
    )


def _size(count: int) -> str:
    return f"{count / MEBIBYTE:,.1f} MiB"


CHECK = Check(
    name=NAME,
    severity=Severity.INFO,
    summary="free pages in the file, and a search index heavier than its text",
    meaning="space that the file takes up and does not need",
    fix=Safety.NONE,
    page=__doc__ or "",
    rule=(RelationRule(FILES, _free_pages), RelationRule("messages", _heavy_index)),
)
