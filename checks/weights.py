"""What takes the space in a large store.

What it finds
From a mebibyte on, one finding each: images that stand in messages, and how many of them are exact
copies; messages that a compaction put away, and messages that were rewound; results of background
delegations that were not delivered; and what hermes's own prune would free.

Why it matters
Nothing is wrong with such a store: it is large, and so are its backups. In one store images made
521 of 616 MB, and 398 MB of them were exact copies.

How it decides
By the length of the cells, in bytes; the search index, which holds the text once more, is not
added. Images are `data:image/...;base64` in structured content of 4 KiB and more, and in texts of
32 KiB and more; copies are rows of equal content, told apart for the first 100,000 different ones:
beyond, "at least". Prune's clock is that of the store's release, its retention
`sessions.retention_days`, 90 where the config does not say; what that release spares is left out:
pinned rows (0.20.6 on), and beginnings of chats that go on (0.22.2). What it would free is an
estimate, by the number of messages; it is not told where the config says that hermes prunes by
itself.

Fix
None. `hermes sessions prune` deletes sessions past an age for good (see `--help`, and `--dry-run`
where the release has it); the file gets smaller with the VACUUM that `hermes sessions optimize`
(0.16.0 on) does. Pending results are delivered when hermes is started. For images, copies of them,
and messages that were put away or rewound there is no command: they go with their session.

Fix safety
Nothing is changed.

Upstream
Issue 69672 (images in messages), 54189 and 100108 (how stores grow), 101316 (pruning and VACUUM).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hermes_doctor.engine.model import Check, Detail, Finding, Fold, FoldRule, RelationRule, Safety, Severity, Told
from hermes_doctor.engine.weighing import in_mebibytes, is_asked, weighed
from hermes_doctor.store.cells import Cell, Key
from hermes_doctor.store.clocks import DAY
from hermes_doctor.store.hermes_command import hermes
from hermes_doctor.store.retention import retention
from hermes_doctor.store.shape import Shape
from hermes_doctor.store.view import StoreView
from hermes_doctor.store.weights import (
    MessageLoads,
    dead_totals,
    image_rows,
    prunable,
    waiting_results,
    weigh_messages,
)

NAME = "weights"


@dataclass
class _Messages(Fold):
    """The fold over messages."""

    loads: MessageLoads

    def see(self, *cells: Cell) -> None:
        self.loads.see(*cells)

    def add(self, *totals: Cell) -> None:
        self.loads.add(*totals)

    def findings(self) -> Iterator[Finding]:
        yield from _of_messages(self.loads)


def _told(shape: Shape) -> Told | None:
    if not shape.has("messages", "content"):
        return None
    where, content = image_rows(shape)
    return Told(where, (content,), totals=dead_totals(shape))


def _start(view: StoreView) -> _Messages:
    # Findings are confirmed by the same sums: to read all messages again, in one moment, would hold the store up.
    return _Messages(view.keep(weigh_messages, MessageLoads()))


def _again(view: StoreView, keys: Sequence[Key]) -> Iterator[Finding]:
    if is_asked(keys):
        yield from _of_messages(view.once(weigh_messages))


def _of_messages(loads: MessageLoads) -> Iterator[Finding]:
    images, copies = loads.images, loads.copies
    many = "1 message holds" if images.rows == 1 else f"{images.rows:,} messages hold"
    least = "" if loads.all_copies_known else "at least "
    copied = f", {least}{in_mebibytes(copies.bytes)} of them in {copies.rows:,} exact copies" if copies.rows else ""
    summary = f"{many} images: {in_mebibytes(images.bytes)}{copied}"
    detail: Detail = {"column": "content", "copied_rows": copies.rows, "copied_bytes": copies.bytes}
    yield from weighed(NAME, "messages", images.rows, images.bytes, summary, detail)
    for load, what in ((loads.compacted, "were put away by compactions"), (loads.rewound, "were rewound")):
        summary = f"{load.rows:,} messages {what}: {in_mebibytes(load.bytes)}"
        yield from weighed(NAME, "messages", load.rows, load.bytes, summary, {})


def _waiting(view: StoreView, keys: Sequence[Key] | None) -> Iterator[Finding]:
    if not is_asked(keys):
        return
    loads = waiting_results(view)
    rows, size = sum(load.rows for load in loads.values()), sum(load.bytes for load in loads.values())
    summary = f"{rows:,} results of delegations were not delivered: {in_mebibytes(size)}"
    if loads["pending"].rows:
        summary += f"; {hermes(view)} delivers what is pending when it starts"
    yield from weighed(
        NAME, "async_delegations", rows, size, summary, {state: load.rows for state, load in loads.items()}
    )


def _retained(view: StoreView, keys: Sequence[Key] | None) -> Iterator[Finding]:
    if not is_asked(keys) or (view.settings.read and view.settings.auto_prune):
        return
    found, days = prunable(view), retention(view) / DAY
    summary = (
        f"{found.sessions:,} ended sessions with {found.messages:,} messages are past {days:g} days:"
        f" {hermes(view)} sessions prune would delete them, about {in_mebibytes(found.bytes)}"
    )
    detail = {"messages": found.messages, "retention_days": days, "estimated": True}
    yield from weighed(NAME, "sessions", found.sessions, found.bytes, summary, detail)


CHECK = Check(
    name=NAME,
    severity=Severity.INFO,
    summary="what takes the space: images, dead rows, old sessions",
    meaning="space that images, their copies, dead rows and old sessions take up",
    fix=Safety.NONE,
    page=__doc__ or "",
    rule=(
        FoldRule("messages", "messages", _told, _start, _again),
        RelationRule("async_delegations", _waiting),
        RelationRule("sessions", _retained),
    ),
)
