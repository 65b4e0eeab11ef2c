"""Rows of a chat that were copied from another's, laid over these.

Copies are found by order, never by search: row by row from the first, each copy is a row of the parent with the same
role and content, behind the one before it. In between there may only be rows of the parent that it has put away itself
(rewound, compacted). The first row that has no such partner ends the copy. Where equal rows leave more than one way to
lay the copy over the parent, all ways are kept.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from hermes_doctor.store.cells import CODECS, Cell, Key
from hermes_doctor.store.clocks import trusted
from hermes_doctor.store.reader import in_keys
from hermes_doctor.store.view import StoreView

#: The columns of a tool's call and its answer.
CALLS = ("tool_calls", "tool_call_id", "tool_name")
#: Reasoning that the CLI's /branch left out up to 0.20.0.
UNREAD = ("reasoning_details", "codex_reasoning_items", "codex_message_items")
#: Left out by it up to 0.21.5.
LATE = "reasoning_content"
#: What a replay needs. Not `api_content` (the wording that warmed a cache: no terminal branch has it, in any release)
#: nor `finish_reason` (taken off before a row is sent, 0.13.0 to 0.22.2).
COLUMNS = (*CALLS, "reasoning", LATE, *UNREAD)
#: Sets of columns are numbers: one bit for each.
BIT = {column: 1 << place for place, column in enumerate(COLUMNS)}

#: A copy that was not given its row's time was written when the branch was, within so many seconds.
COPYING_SECONDS = 300.0
#: What was written to the parent so much later than the branch began was not there to be copied, in seconds.
SLACK_SECONDS = 1.0

#: Rows of a conversation; others (session_meta, system) are in no copy.
ROLES = frozenset({"user", "assistant", "tool"})
_AT_ONCE = 500
#: How many equal rows are compared, at most, until the copy is taken to end.
_MOST_STEPS = 2_000_000


class BareRow(NamedTuple):
    """A row without its texts. ``lacks`` and ``has`` are sets of `BIT`: what is NULL, what holds text."""

    id: int
    role: Cell
    live: bool
    at: float | None
    call: Cell
    length: Cell
    lacks: int
    has: int


class Laid:
    """A branch's rows and its parent's, and the ways to lay the one over the other."""

    def __init__(
        self, own: list[BareRow], its: list[BareRow], started: float | None, *, dialogue: bool = False
    ) -> None:
        """``dialogue``: the copy has only what was said (the terminal UI's from 0.20.6 on)."""
        self.own = own
        self.its = its
        self._started = started
        latest = None if started is None else started + SLACK_SECONDS
        self._there = [row.role in ROLES and not is_after(row.at, latest) for row in its]
        # Up to which row one may go from each: the next that was not put away.
        self._reach = [len(its)] * (len(its) + 1)
        for place in range(len(its) - 1, -1, -1):
            stays = its[place].live and self._there[place] and (not dialogue or is_said(its[place]))
            self._reach[place] = place if stays else self._reach[place + 1]

    def over(self, own_texts: Sequence[Cell], its_texts: Sequence[Cell]) -> list[list[int]]:
        """Return, for each row that is a copy, the places of the parent's rows that it may be a copy of."""
        equal: dict[tuple[Cell, Cell], list[int]] = {}
        for place, (row, text) in enumerate(zip(self.its, its_texts, strict=True)):
            if self._there[place]:
                equal.setdefault((row.role, text), []).append(place)
        ways: list[list[int]] = []
        before, steps = [-1], 0
        for row, text in zip(self.own, own_texts, strict=True):
            among = equal.get((row.role, text), [])
            first = bisect_right(among, before[0])
            last = bisect_right(among, self._reach[before[-1] + 1])
            steps += last - first
            found = [place for place in among[first:last] if self._follows(before, place) and self._fits(row, place)]
            if not found or steps > _MOST_STEPS:
                break
            ways.append(found)
            before = found
        # What leads nowhere is no way.
        for number in range(len(ways) - 2, -1, -1):
            behind = ways[number + 1]
            ways[number] = [place for place in ways[number] if self._leads(place, behind)]
        return ways

    def kept(self, places: Sequence[Sequence[int]]) -> int:
        """Return the columns that a copy has as its parent's row has them: those were not left out."""
        return union(
            ~row.lacks & self.its[among[0]].has for row, among in zip(self.own, places, strict=False) if len(among) == 1
        )

    def behind(self, place: int) -> list[BareRow]:
        """Return the parent's rows behind a place that were there when the branch began."""
        return [row for row, there in zip(self.its[place + 1 :], self._there[place + 1 :], strict=True) if there]

    def _follows(self, before: Sequence[int], place: int) -> bool:
        nearest = bisect_left(before, place) - 1
        return nearest >= 0 and place <= self._reach[before[nearest] + 1]

    def _leads(self, place: int, behind: Sequence[int]) -> bool:
        nearest = bisect_right(behind, place)
        return nearest < len(behind) and behind[nearest] <= self._reach[place + 1]

    def _fits(self, row: BareRow, place: int) -> bool:
        """Whether nothing else tells the two apart: the call that they answer, and when they were written."""
        other = self.its[place]
        if row.call is not None and other.call is not None and row.call != other.call:
            return False
        if row.at is None or self._started is None or row.at == other.at:
            return True
        return self._started - SLACK_SECONDS <= row.at <= self._started + COPYING_SECONDS


def read_rows(view: StoreView, session: Key, *, most: int | None = None) -> list[BareRow]:
    """Read a session's rows in order, or the first of them, without their texts.

    NULLs, types and lengths stand in a record's head.
    """
    shape = view.shape
    among, cells = in_keys("session_id", [session])
    ids = sorted(
        row[0] for row in view.rows(f"SELECT id FROM messages WHERE {among}", cells) if isinstance(row[0], int)
    )
    columns = {column: shape.column("messages", column) for column in COLUMNS}
    lacks = " + ".join(f"({BIT[c]} * ({sql} IS NULL))" for c, sql in columns.items() if shape.has("messages", c))
    # Only the empty text of reasoning_content says something (from 0.13.0 on).
    has = " + ".join(
        f"({BIT[c]} * (typeof({sql}) = 'text'{'' if c == LATE else f' AND octet_length({sql}) > 0'}))"
        for c, sql in columns.items()
    )
    active = shape.column("messages", "active", absent="1")
    at, call = shape.column("messages", "timestamp"), columns["tool_call_id"]
    sql = (
        f"SELECT id, role, coalesce({active}, 1) = 1, {at}, {call}, octet_length(content), {lacks or '0'}, {has}"
        " FROM messages WHERE "
    )
    found: list[BareRow] = []
    for some in in_pieces(ids[:most]):
        among, cells = in_keys("id", some)
        for number, role, live, time, answers, length, nulls, texts in view.rows(f"{sql}{among} ORDER BY id", cells):
            assert isinstance(number, int)
            assert isinstance(nulls, int)
            assert isinstance(texts, int)
            found.append(BareRow(number, role, bool(live), trusted(time), answers, length, nulls, texts))
    return found


def digests(view: StoreView, rows: Sequence[BareRow]) -> list[Cell]:
    """Return what stands for each row's content: equal for equal contents.

    Blanks around what a user or an assistant said do not count: every release takes them off when it loads a chat.
    """
    view.reader.connection.create_scalar_function(
        "doctor_text_digest", _digest_of(view.shape.encoding), 2, deterministic=True
    )
    found: dict[Cell, Cell] = {}
    for some in in_pieces([row.id for row in rows]):
        among, cells = in_keys("id", some)
        found.update(
            (row[0], row[1])
            for row in view.rows(
                "SELECT id, CASE WHEN content IS NULL THEN NULL"
                " ELSE doctor_text_digest(CAST(content AS BLOB), typeof(content) = 'text' AND role <> 'tool') END"
                f" FROM messages WHERE {among}",
                cells,
            )
        )
    return [found.get(row.id) for row in rows]


def _digest_of(encoding: str) -> Callable[..., bytes]:
    # Here, and not with the others: OpenSSL comes with it, and few stores have branches to lay.
    import hashlib

    codec = CODECS.get(encoding, "utf-8")

    def digest(content: bytes, said: int) -> bytes:
        if said:
            with contextlib.suppress(UnicodeDecodeError):
                content = content.decode(codec).strip().encode(codec)
        return hashlib.blake2b(content, digest_size=16).digest()

    return digest


def is_said(row: BareRow) -> bool:
    """Whether every path copies the row: what a user or an assistant said."""
    return row.role != "tool" and bool(row.length)


def is_after(at: float | None, latest: float | None) -> bool:
    """Whether a time is later than a limit; where either is not known it is not."""
    return at is not None and latest is not None and at > latest


def union(sets: Iterable[int]) -> int:
    """Return all columns of several sets."""
    found = 0
    for each in sets:
        found |= each
    return found


def named(bits: int) -> tuple[str, ...]:
    """Return the names of a set of columns, in their order."""
    return tuple(column for column in COLUMNS if bits & BIT[column])


def in_pieces(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    """Give ids in pieces that one statement can bind, and that are read in a short time."""
    for start in range(0, len(ids), _AT_ONCE):
        yield ids[start : start + _AT_ONCE]
