"""What takes the space in a store: images, rows that nothing replays, results nobody took, what prune would free.

Hermes keeps an image in the content of its message (``data:image/png;base64,...``, inside structured content or in
a long text), once for every copy of the message: 521 of 616 MB in one store, 398 MB of them exact copies (upstream
69672). What a compaction put away (``compacted``) stays for history and search, what was rewound (neither active nor
compacted) for nothing that is shown. Sizes are those of the cells, in bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hermes_doctor.store.ages import age_columns, age_from
from hermes_doctor.store.cells import Cell, Key
from hermes_doctor.store.liveness import FINISHED
from hermes_doctor.store.pruning import is_due
from hermes_doctor.store.reader import in_keys
from hermes_doctor.store.retention import retention
from hermes_doctor.store.shape import Shape
from hermes_doctor.store.sifting import Sifter, sift
from hermes_doctor.store.view import StoreView

#: Text as long as this, in bytes, is searched for images; structured content from `_SMALLEST` on: less is an icon.
LONG = 32 << 10
_SMALLEST = 4 << 10
_IMAGE = b"data:image/"
_ENCODED = b";base64,"
#: So far behind the beginning of an image stands how it is encoded, in bytes.
_HEADER = 128

#: So many different contents are told apart; copies of further ones are not noticed.
DISTINCT_AT_MOST = 100_000

_AT_ONCE = 500

#: The columns of messages that weigh something.
_HEAVY = (
    *("content", "api_content", "tool_calls", "tool_name", "reasoning", "reasoning_content", "reasoning_details"),
    *("codex_reasoning_items", "codex_message_items", "display_metadata"),
)
#: From these schemas on prune spares beginnings of chats that go on (0.22.2), and pinned rows (0.20.6).
_SPARES_LINEAGES, _SPARES_PINNED = 31, 26


@dataclass(slots=True)
class Load:
    """Some rows and what they come to, in bytes."""

    rows: int = 0
    bytes: int = 0

    def add(self, size: int, rows: int = 1) -> None:
        """Count one more row, or several that come to ``size`` together."""
        self.rows += rows
        self.bytes += size


@dataclass
class MessageLoads:
    """What message rows come to, as `image_rows` and `dead_totals` tell it.

    ``copies``: images in rows equal to earlier ones.
    """

    images: Load = field(default_factory=Load)
    copies: Load = field(default_factory=Load)
    rewound: Load = field(default_factory=Load)
    compacted: Load = field(default_factory=Load)
    _seen: set[int] = field(default_factory=set)

    @property
    def all_copies_known(self) -> bool:
        """Whether all contents could be told apart."""
        return len(self._seen) < DISTINCT_AT_MOST

    def see(self, content: Cell) -> None:
        """Take in a row that may hold an image: its content, as bytes."""
        if isinstance(content, bytes) and _holds_image(content):
            self._see_image(content)

    def add(self, *totals: Cell) -> None:
        """Take in what the rows that are put away come to: how many, and bytes, of the compacted and of the rewound."""
        compacted, compacted_bytes, rewound, rewound_bytes = (_number(total) for total in totals)
        self.compacted.add(compacted_bytes, compacted)
        self.rewound.add(rewound_bytes, rewound)

    def _see_image(self, content: bytes) -> None:
        self.images.add(len(content))
        # Python's own hash: twice as fast as any of hashlib, and keyed anew in each process.
        digest = hash(content)
        if digest in self._seen:
            self.copies.add(len(content))
        elif self.all_copies_known:
            self._seen.add(digest)


def _holds_image(content: bytes) -> bool:
    start = content.find(_IMAGE)
    while start >= 0:
        if content.find(_ENCODED, start, start + _HEADER) >= 0:
            return True
        start = content.find(_IMAGE, start + 1)
    return False


def image_rows(shape: Shape) -> tuple[str, str]:
    """Return SQL for the rows of messages that may hold an image, and for what `MessageLoads.see` is told of them."""
    content = shape.column("messages", "content")
    # Structured content begins with NUL, where GLOB ends. Of other text GLOB only looks at the semicolons.
    image = (
        f"CASE WHEN octet_length({content}) < {_SMALLEST} OR typeof({content}) <> 'text' THEN 0"
        f" WHEN {content} < char(1) THEN 1"
        f" WHEN octet_length({content}) >= {LONG} THEN {content} GLOB '*;base64,*' ELSE 0 END"
    )
    return image, f"CAST({content} AS BLOB)"


def dead_totals(shape: Shape) -> tuple[str, ...]:
    """Return aggregate SQL for what `MessageLoads.add` is told of the rows that are put away."""
    dead = f"{shape.column('messages', 'active', absent='1')} = 0"
    compacted = f"({shape.column('messages', 'compacted', absent='0')} = 1)"
    size = " + ".join(f"coalesce(octet_length({shape.column('messages', column)}), 0)" for column in _HEAVY)
    filters = (f"FILTER (WHERE {dead} AND {compacted} IS {kind})" for kind in ("TRUE", "NOT TRUE"))
    return tuple(total for some in filters for total in (f"count(*) {some}", f"sum({size}) {some}"))


def weigh_messages(view: StoreView) -> MessageLoads:
    """Read all messages once and return what they come to."""
    loads, table = MessageLoads(), view.shape.tables["messages"]
    where, content = image_rows(view.shape)
    for (cell,) in view.reader.walk(table, [content], where):
        loads.see(cell)
    for sifted in sift(view.reader, Sifter(table, dead_totals(view.shape))):
        loads.add(*sifted.values)
    return loads


def waiting_results(view: StoreView) -> dict[str, Load]:
    """Weigh the results of delegations that were not delivered, by state of delivery: ``pending``, ``dropped``."""
    table, loads = "async_delegations", {"pending": Load(), "dropped": Load()}
    if not view.shape.has(table, "state", "delivery_state"):
        return loads
    size = " + ".join(
        f"coalesce(octet_length({view.shape.column(table, column)}), 0)"
        for column in ("event_json", "result_json", "task_json")
    )
    ended = ", ".join(f"'{state}'" for state in sorted(FINISHED))
    where = f"delivery_state IN ('pending', 'dropped') AND state IN ({ended})"
    for state, bytes_ in view.reader.walk(view.shape.tables[table], ["delivery_state", size], where):
        if isinstance(bytes_, int):
            loads[str(state)].add(bytes_)
    return loads


class Prunable(NamedTuple):
    """Ended sessions that are past the retention by their release's clock, their messages, and their share of the file.

    ``bytes`` is an estimate: that share of the file which their messages are of all messages.
    """

    sessions: int
    messages: int
    bytes: int


def prunable(view: StoreView) -> Prunable:
    """Weigh what hermes's prune would delete now, by clocks: what is open, pinned or goes on is kept."""
    ids = _past_retention(view)
    if not ids or not view.shape.messages_by_session:
        return Prunable(len(ids), 0, 0)
    messages = 0
    for start in range(0, len(ids), _AT_ONCE):
        among, cells = in_keys("session_id", ids[start : start + _AT_ONCE])
        messages += _number(view.reader.value(f"SELECT count(*) FROM messages WHERE {among}", cells))
    everything = view.reader.count(view.shape.tables["messages"]) or 0
    pages = "(SELECT page_count FROM pragma_page_count) - (SELECT freelist_count FROM pragma_freelist_count)"
    used = _number(view.reader.value(f"SELECT ({pages}) * (SELECT page_size FROM pragma_page_size)"))
    return Prunable(len(ids), messages, used * messages // max(everything, 1))


def _past_retention(view: StoreView) -> list[Key]:
    shape, limit = view.shape, view.now - retention(view)
    if not shape.has("sessions", "id", "started_at", "ended_at"):
        return []
    pinned = shape.column("sessions", "pinned", absent="0") if shape.version >= _SPARES_PINNED else "0"
    # Hardly a session was used only before it began: an index seek less for each of all the others.
    where = f"ended_at IS NOT NULL AND started_at < {limit!r} AND coalesce({pinned}, 0) = 0"
    columns = ["sessions.id", "sessions.ended_at", shape.column("sessions", "end_reason"), *age_columns(shape)]
    found: dict[Key, Cell] = {}
    for session, ended_at, end_reason, *times in view.reader.walk(shape.tables["sessions"], columns, where):
        if is_due(view, age_from(times), ended_at, end_reason, limit):
            found[session] = end_reason
    if shape.version >= _SPARES_LINEAGES and shape.has("sessions", "parent_session_id"):
        _keep_what_goes_on(view, found)
    return list(found)


def _keep_what_goes_on(view: StoreView, found: dict[Key, Cell]) -> None:
    """Leave out the beginnings of chats of which a later part stays."""
    kept: Sequence[Key] = [""]
    while kept:
        beginnings = [session for session, reason in found.items() if reason == "compression"]
        kept = [parent for parent, child in _children(view, beginnings) if child not in found]
        for session in kept:
            found.pop(session, None)


def _children(view: StoreView, parents: Sequence[Key]) -> list[tuple[Key, Key]]:
    found: list[tuple[Key, Key]] = []
    for start in range(0, len(parents), _AT_ONCE):
        among, cells = in_keys("parent_session_id", parents[start : start + _AT_ONCE])
        for parent, child in view.rows(f"SELECT parent_session_id, id FROM sessions WHERE {among}", cells):
            found.append((parent, child))
    return found


def _number(cell: Cell) -> int:
    return cell if isinstance(cell, int) else 0
