"""Rows of one session that are the same message: of one moment, and equal in all that was said.

A message that is written again from memory keeps its time, and hermes takes times with a fraction of a second. So
whoever looks for copies need only look where a session has several rows of one moment; in a store that is well there
are hardly any, and one narrow index tells.

Contents are compared by SQLite, and only those of rows whose cells are all equally long. A store without an index from
a session to its messages is not judged: every release makes that index anew when it opens the store.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from hermes_doctor.store.cells import Cell, Key, quote
from hermes_doctor.store.reader import in_keys
from hermes_doctor.store.shape import Shape
from hermes_doctor.store.view import StoreView

#: What two rows of one message may differ in: where they stand, and what was counted or given to each row by itself
#: (uids: rows that are older than 0.22 get one each, at random). Their session and time are compared before.
_OWN = frozenset(
    {
        *("id", "session_id", "timestamp", "active", "compacted", "token_count", "display_identity", "display_order"),
        *("message_uid", "absorbed_message_uids", "tool_call_uids", "tool_call_uid"),
    }
)
#: With so many other rows a row is compared at most: enough for any that are equally long by chance.
_TRIES = 32
#: Rows, and bytes, that are compared in one statement.
_PAIRS_AT_ONCE = 500
_BYTES_AT_ONCE = 8 << 20
_MOMENTS_AT_ONCE = 300


class Standing(enum.IntEnum):
    """Where a row stands: in the conversation, rewound or superseded, or put away by a compaction."""

    LIVE = 1
    ASIDE = 2
    ARCHIVED = 3
    OTHER = 4


class Row(NamedTuple):
    """A row of a moment: its id, where it stands, and how many bytes its cells come to."""

    id: int
    standing: Standing
    bytes: int


class Moment(NamedTuple):
    """The rows of a session that share a time, those with equally long cells together, in the order of their ids."""

    time: Cell
    live: int
    groups: tuple[tuple[Row, ...], ...]


def _is_judged(shape: Shape) -> bool:
    """Whether the store has what is needed to look for copies."""
    if not shape.messages_by_session or not shape.has("messages", "id", "timestamp", "role", "content"):
        return False
    return shape.has("sessions", "id") and shape.tables["messages"].primary_key == ("id",)


def crowded_sessions(view: StoreView) -> Sequence[Key]:
    """Return the sessions that have several rows of one moment; none of a store that is not judged."""
    return view.once(_crowded)


def _crowded(view: StoreView) -> Sequence[Key]:
    if not _is_judged(view.shape):
        return ()
    several = "SELECT 1 FROM messages m WHERE m.session_id = sessions.id GROUP BY m.timestamp HAVING count(*) > 1"
    return [row[0] for row in view.reader.walk(view.shape.tables["sessions"], ["sessions.id"], f"EXISTS ({several})")]


def sessions_of(view: StoreView, keys: Sequence[Key]) -> dict[Key, set[int]]:
    """Return these messages' ids by session; those of missing sessions, or of a store not judged, are left out."""
    found: dict[Key, set[int]] = {}
    asked = [key for key in keys if isinstance(key, int)] if _is_judged(view.shape) else []
    for start in range(0, len(asked), _PAIRS_AT_ONCE):
        among, cells = in_keys("m.id", asked[start : start + _PAIRS_AT_ONCE])
        sql = f"SELECT m.id, m.session_id FROM messages m JOIN sessions s ON s.id = m.session_id WHERE {among}"
        for message, session in view.rows(sql, cells):
            if isinstance(message, int):
                found.setdefault(session, set()).add(message)
    return found


def crowded_moments(view: StoreView, session: Key) -> Iterator[Moment]:
    """Give the session's rows of all times that several of its rows share, time by time."""
    among, cells = in_keys("session_id", [session])
    sql = f"SELECT timestamp FROM messages WHERE {among} GROUP BY timestamp HAVING count(*) > 1"
    return moments(view, session, [row[0] for row in view.rows(sql, cells)])


def moments(view: StoreView, session: Key, times: Sequence[Cell]) -> Iterator[Moment]:
    """Give the session's rows of these times, time by time."""
    alike, weight = _lengths(view.shape, "messages"), _weight(view.shape, "messages")
    for start in range(0, len(times), _MOMENTS_AT_ONCE):
        ours, session_cells = in_keys("session_id", [session])
        then, time_cells = in_keys("timestamp", times[start : start + _MOMENTS_AT_ONCE])
        rows = view.rows(
            f"SELECT timestamp, {alike}, id, {_standing(view.shape)}, {weight} FROM messages"
            f" WHERE {ours} AND {then} ORDER BY timestamp, id",
            (*session_cells, *time_cells),
        )
        for time, together in groupby(rows, key=lambda row: row[0]):
            by_length: dict[Cell, list[Row]] = {}
            for _at, length, message, standing, size in together:
                if isinstance(message, int) and isinstance(standing, int) and isinstance(size, int):
                    by_length.setdefault(length, []).append(Row(message, Standing(standing), size))
            groups = tuple(tuple(group) for group in by_length.values() if len(group) > 1)
            live = sum(row.standing is Standing.LIVE for group in by_length.values() for row in group)
            yield Moment(time, live, groups)


def rows_between(
    view: StoreView, session: Key, low: int, high: int, *standings: Standing
) -> list[tuple[int, Cell, Standing]]:
    """Return the session's rows of these ids, both ends among them, that stand so: id, time, standing, in order."""
    among, cells = in_keys("session_id", [session])
    standing = _standing(view.shape)
    # By the ids: an index over the session would lead through all of its rows.
    rows = view.rows(
        f"SELECT id, timestamp, {standing} FROM messages NOT INDEXED WHERE id >= ? AND id <= ? AND {among}"
        f" AND {standing} IN ({', '.join(f'{each:d}' for each in standings)}) ORDER BY id",
        (low, high, *cells),
    )
    return [(row, at, Standing(stands)) for row, at, stands in rows if isinstance(row, int) and isinstance(stands, int)]


def _standing(shape: Shape) -> str:
    """Return SQL for the `Standing` of a row of messages; without `active` (up to 0.15) every row is live."""
    active = shape.column("messages", "active", absent="1")
    compacted = shape.column("messages", "compacted", absent="0")
    return (
        f"CASE WHEN {active} = 1 THEN {Standing.LIVE:d} WHEN {active} = 0 THEN"
        f" CASE coalesce({compacted}, 0) WHEN 0 THEN {Standing.ASIDE:d} WHEN 1 THEN {Standing.ARCHIVED:d}"
        f" ELSE {Standing.OTHER:d} END ELSE {Standing.OTHER:d} END"
    )


@dataclass(frozen=True, slots=True)
class Against:
    """What a row is to be compared with: the first ``count`` of these ids, in their order. ``bytes``: its size."""

    ids: Sequence[int]
    count: int
    bytes: int


def equals(view: StoreView, asked: Mapping[int, Against]) -> dict[int, int]:
    """Return for each message the first of those it was compared with that says the same; without such, nothing."""
    found: dict[int, int] = {}
    waiting = dict(asked)
    for attempt in range(_TRIES):
        waiting = {message: against for message, against in waiting.items() if attempt < against.count}
        if not waiting:
            break
        for pairs in list(_batches(waiting, attempt)):
            for message, other in _equal(view, pairs):
                found[message] = other
                del waiting[message]
    return found


def against_live(view: StoreView, ids: Sequence[int], *, earlier: bool, most: int = _TRIES) -> dict[int, Against]:
    """Return for each of these messages the live ones of its session that it may equal, the first ``most`` of them.

    Those of its moment that are as long, in the order of their ids; with ``earlier`` only those before it. Found one by
    one, where `moments` would go through all that was said at those times.
    """
    live = view.shape.column("messages", "active", alias="b", absent="1")
    before = "b.id < a.id" if earlier else "b.id <> a.id"
    candidates = (
        "SELECT b.id FROM messages b WHERE b.session_id = a.session_id AND b.timestamp = a.timestamp"
        f" AND {live} = 1 AND {before} AND {_lengths(view.shape, 'b')} = {_lengths(view.shape, 'a')}"
        f" ORDER BY b.id LIMIT {most}"
    )
    found: dict[int, Against] = {}
    for start in range(0, len(ids), _PAIRS_AT_ONCE):
        for message, others, size in view.rows(
            f"SELECT a.id, (SELECT json_group_array(id) FROM ({candidates})), {_weight(view.shape, 'a')}"
            " FROM json_each(?) asked CROSS JOIN messages a ON a.id = asked.value",
            (json.dumps(ids[start : start + _PAIRS_AT_ONCE]),),
        ):
            listed = json.loads(str(others))
            if listed and isinstance(message, int) and isinstance(size, int):
                found[message] = Against(listed, len(listed), size)
    return found


def equals_live(view: StoreView, ids: Sequence[int], *, earlier: bool) -> dict[int, int]:
    """Return for each of these messages the first live one that says the same: as `equals`, without `moments`."""
    # As a rule it is the first that there is.
    found = equals(view, against_live(view, ids, earlier=earlier, most=1))
    others = [message for message in ids if message not in found]
    return found | equals(view, against_live(view, others, earlier=earlier))


def in_pieces(ids: Iterable[int], size: int) -> Iterator[tuple[int, ...]]:
    """Divide ascending ids into pieces that lie within so many ids each.

    Bounds that go by ids alone stay where they are while other pieces are mended, whatever the order.
    """
    for _piece, part in groupby(ids, key=lambda message: message // size):
        yield tuple(part)


def weight_of(view: StoreView, ids: Sequence[int]) -> int:
    """Return how many bytes the cells of these messages come to."""
    listed = "SELECT value FROM json_each(?)"
    sql = f"SELECT sum({_weight(view.shape, 'messages')}) FROM messages WHERE id IN ({listed})"
    weight = view.reader.value(sql, (json.dumps(ids),))
    return weight if isinstance(weight, int) else 0


def _batches(waiting: Mapping[int, Against], attempt: int) -> Iterator[list[tuple[int, int]]]:
    pairs: list[tuple[int, int]] = []
    size = 0
    for message, against in waiting.items():
        if pairs and (len(pairs) == _PAIRS_AT_ONCE or size + against.bytes > _BYTES_AT_ONCE):
            yield pairs
            pairs, size = [], 0
        pairs.append((message, against.ids[attempt]))
        size += against.bytes
    if pairs:
        yield pairs


def _equal(view: StoreView, pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    same = " AND ".join(f"a.{column} IS b.{column}" for column in _said(view.shape))
    # In this order: each pair leads to its two rows.
    rows = view.rows(
        f"SELECT a.id, b.id FROM json_each(?) p CROSS JOIN messages a ON a.id = json_extract(p.value, '$[0]')"
        f" CROSS JOIN messages b ON b.id = json_extract(p.value, '$[1]') WHERE {same}",
        (json.dumps(pairs),),
    )
    return [(message, other) for message, other in rows if isinstance(message, int) and isinstance(other, int)]


def _lengths(shape: Shape, alias: str) -> str:
    """Return SQL for how long each of a row's cells is, as one text; SQLite tells that without reading the cells."""
    return " || ' ' || ".join(f"coalesce(octet_length({alias}.{column}), -1)" for column in _said(shape))


def _weight(shape: Shape, alias: str) -> str:
    """Return SQL for how many bytes a row's cells come to."""
    return " + ".join(f"coalesce(octet_length({alias}.{column}), 0)" for column in _said(shape))


def _said(shape: Shape) -> list[str]:
    """Return the columns that make a message what it is, also those that a later or another release added."""
    columns = shape.tables["messages"].columns
    return [quote(column.name) for name, column in columns.items() if name not in _OWN]
