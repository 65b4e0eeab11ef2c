"""Runs of live messages that stand in their session a second time.

A row is a copy if an earlier live row of its session is the same message (`copies`). Copies that follow each other, at
least two of different moments and in the order in which their first ones stand, were written by somebody who wrote a
piece of the conversation again: time does not run through the same moments twice. Nothing less is proof. Rows of one
moment may be equal because a clock was coarse or an import gave all of them one time (upstream 78010), and a single
row may be a model's that called with one constant id (88324).

Copies that were put aside already count on as part of their run, so that what is left of it is judged as before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

from hermes_doctor.store.cells import Cell, Key
from hermes_doctor.store.copies import (
    Against,
    Standing,
    against_live,
    crowded_moments,
    crowded_sessions,
    equals,
    equals_live,
    in_pieces,
    moments,
    rows_between,
    sessions_of,
    weight_of,
)
from hermes_doctor.store.handoffs import is_summary_sql
from hermes_doctor.store.reader import in_keys
from hermes_doctor.store.view import StoreView

#: What is mended in one go lies within so many ids.
_PIECE = 256
#: So many ids before and behind a row are looked at first for the run that it is in.
_AROUND = 2 * _PIECE


class Block(NamedTuple):
    """Live copies that follow each other, within a piece of ids; ``first``: what the first of them is a copy of.

    ``certain``: they are proof that a piece of the conversation was written again. ``summary``: a summary of the
    conversation stands between them and what they are copies of.
    """

    session: Key
    ids: tuple[int, ...]
    first: int
    bytes: int
    certain: bool
    summary: bool = False


class _Suspect(NamedTuple):
    """A row that may be a copy, its time, and whether it is live."""

    id: int
    time: Cell
    live: bool


#: Tells which of some suspects are copies, and of what.
_Firsts = Callable[[Sequence[_Suspect]], dict[int, int]]


def blocks(view: StoreView, keys: Sequence[Key] | None = None) -> Iterator[Block]:
    """Give the blocks of copies: of the whole store, or those that begin with one of these messages."""
    if keys is None:
        for session in crowded_sessions(view):
            yield from _blocks_of(view, session)
        return
    for session, wanted in sessions_of(view, keys).items():
        seen: set[int] = set()
        for key in sorted(wanted):
            found = [] if key in seen else list(_blocks_around(view, session, key))
            yield from (block for block in found if block.ids[0] in wanted - seen)
            seen.update(*(block.ids for block in found))


def _blocks_of(view: StoreView, session: Key) -> Iterator[Block]:
    """Give all blocks of a session, from all that was said at the times that several of its rows share."""
    suspects: dict[int, _Suspect] = {}
    against: dict[int, Against] = {}
    for moment in crowded_moments(view, session):
        for group in moment.groups:
            live = [row.id for row in group if row.standing is Standing.LIVE]
            earlier = 0
            for row in group:
                if earlier and row.standing in (Standing.LIVE, Standing.ASIDE):
                    suspects[row.id] = _Suspect(row.id, moment.time, row.standing is Standing.LIVE)
                    against[row.id] = Against(live, earlier, row.bytes)
                earlier += row.standing is Standing.LIVE
    if not any(suspect.live for suspect in suspects.values()):
        return
    among, cells = in_keys("session_id", [session])
    live_ids = view.rows(f"SELECT id FROM messages WHERE {among} AND {_live(view)}", cells)
    sequence = sorted({row[0] for row in live_ids if isinstance(row[0], int)} | suspects.keys())

    def firsts(asked: Sequence[_Suspect]) -> dict[int, int]:
        return equals(view, {each.id: against[each.id] for each in asked if each.id in against})

    for run in _runs(sequence, suspects):
        yield from _blocks_in(view, session, run, firsts)


def _blocks_around(view: StoreView, session: Key, key: int) -> Iterator[Block]:
    """Give the blocks of the run that a message is in, looking no farther than that run goes."""

    def firsts(asked: Sequence[_Suspect]) -> dict[int, int]:
        return equals_live(view, [each.id for each in asked], earlier=True)

    low, high = key - _AROUND, key + _AROUND
    while True:
        rows = [
            _Suspect(message, at, standing is Standing.LIVE)
            for message, at, standing in rows_between(view, session, low, high, Standing.LIVE, Standing.ASIDE)
        ]
        may_be = against_live(view, [row.id for row in rows], earlier=True, most=1)
        suspects = {row.id: row for row in rows if row.id in may_be}
        sequence = [row.id for row in rows if row.live or row.id in suspects]
        run = next((run for run in _runs(sequence, suspects) if any(each.id == key for each in run)), None)
        if run is None:
            return
        # A run that begins or ends with the window may go on outside.
        before, behind = run[0].id == sequence[0], run[-1].id == sequence[-1]
        before, behind = before and _goes_on(view, session, "<", low), behind and _goes_on(view, session, ">", high)
        if not before and not behind:
            yield from _blocks_in(view, session, run, firsts)
            return
        width = high - low
        low, high = low - width * before, high + width * behind


def _goes_on(view: StoreView, session: Key, beyond: str, end: int) -> bool:
    """Whether the session has rows beyond an id."""
    among, cells = in_keys("session_id", [session])
    return bool(view.rows(f"SELECT 1 FROM messages WHERE {among} AND id {beyond} ? LIMIT 1", (*cells, end)))


def _live(view: StoreView) -> str:
    return f"{view.shape.column('messages', 'active', absent='1')} = 1"


def _runs(sequence: Sequence[int], suspects: Mapping[int, _Suspect]) -> Iterator[list[_Suspect]]:
    for may_be, run in groupby(sequence, key=lambda message: message in suspects):
        if may_be:
            yield [suspects[message] for message in run]


def _blocks_in(view: StoreView, session: Key, run: Sequence[_Suspect], find_firsts: _Firsts) -> Iterator[Block]:
    firsts = find_firsts(run)
    for copies in _copies_in(run, firsts):
        certain = _is_proof(copies, firsts)
        # In doubt only what shares its moment with nothing else is worth telling.
        live = [each for each in copies if each.live and (certain or _is_alone(view, session, each))]
        if not live:
            continue
        summaries = _summaries(view, session, min(firsts[each.id] for each in copies), copies[-1].id) if certain else []
        ids_of_live = [each.id for each in live]
        for ids in in_pieces(ids_of_live, _PIECE) if certain else [tuple(ids_of_live)]:
            behind = any(firsts[each] < summary < each for each in ids for summary in summaries)
            yield Block(session, ids, firsts[ids[0]], weight_of(view, ids), certain, behind)


def _copies_in(run: Sequence[_Suspect], firsts: Mapping[int, int]) -> Iterator[list[_Suspect]]:
    """Give the parts of a run that are copies; a row put aside that is none is no part of the conversation."""
    part: list[_Suspect] = []
    for suspect in run:
        if suspect.id in firsts:
            part.append(suspect)
        elif suspect.live:
            yield part
            part = []
    yield part


def _is_proof(copies: Sequence[_Suspect], firsts: Mapping[int, int]) -> bool:
    """Whether two that follow each other are of different moments, and in the order of what they are copies of."""
    return any(firsts[one.id] < firsts[other.id] and one.time != other.time for one, other in pairwise(copies))


def _is_alone(view: StoreView, session: Key, suspect: _Suspect) -> bool:
    """Whether all live rows of its moment say the same."""
    for moment in moments(view, session, [suspect.time]):
        live = [row for group in moment.groups for row in group if row.standing is Standing.LIVE]
        first, *others = [row.id for row in live]
        same = equals(view, {each: Against([first], 1, 0) for each in others})
        return len(live) == moment.live and len(same) == len(others)
    return False


def _summaries(view: StoreView, session: Key, low: int, high: int) -> list[int]:
    """Return the live summaries between two ids that are no copies themselves."""
    among, cells = in_keys("session_id", [session])
    rows = view.rows(
        f"SELECT id FROM messages WHERE {among} AND id > ? AND id < ? AND {_live(view)}"
        f" AND role IN ('user', 'assistant') AND {is_summary_sql(view.shape)}",
        (*cells, low, high),
    )
    ids = [message for (message,) in rows if isinstance(message, int)]
    copied = equals_live(view, ids, earlier=True)
    return [message for message in ids if message not in copied]
