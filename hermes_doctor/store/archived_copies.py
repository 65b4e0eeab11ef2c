"""Rows that a compaction put away although the same message stayed in the conversation.

Up to 0.20.6 a compaction put all live rows away and wrote what stays anew, so that the tail of the conversation is
there once more with each compaction; 0.21.5 on marks those rows as superseded (upstream 86366, 99545).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hermes_doctor.store.cells import Key
from hermes_doctor.store.copies import (
    Against,
    Standing,
    crowded_moments,
    crowded_sessions,
    equals,
    equals_live,
    in_pieces,
    rows_between,
    sessions_of,
    weight_of,
)
from hermes_doctor.store.view import StoreView

#: What is mended in one go lies within so many ids: few, because each row that is marked makes the store write to all
#: that are shown for the same message (0.21.5 on).
_PIECE = 64


class Archived(NamedTuple):
    """Archived rows of a session, within a piece of ids, that are the same messages as live ones."""

    session: Key
    ids: tuple[int, ...]
    bytes: int


def archived_copies(view: StoreView, keys: Sequence[Key] | None = None) -> Iterator[Archived]:
    """Give the archived copies: of the whole store, or those that begin with one of these messages."""
    if not view.shape.has("messages", "active", "compacted"):
        return
    if keys is None:
        for session in crowded_sessions(view):
            yield from _of_session(view, session)
        return
    for session, wanted in sessions_of(view, keys).items():
        for piece in sorted({key // _PIECE for key in wanted}):
            found = _in_piece(view, session, piece)
            if found is not None and found.ids[0] in wanted:
                yield found


def _of_session(view: StoreView, session: Key) -> Iterator[Archived]:
    asked: dict[int, Against] = {}
    for moment in crowded_moments(view, session):
        for group in moment.groups:
            live = [row.id for row in group if row.standing is Standing.LIVE]
            archived = [row for row in group if row.standing is Standing.ARCHIVED] if live else []
            asked |= {row.id: Against(live, len(live), row.bytes) for row in archived}
    # The newest first: where releases keep a display order (0.21.5 on), the oldest that is left leads, and whenever
    # another one comes to lead, its order is written to all of them.
    for ids in reversed(list(in_pieces(sorted(equals(view, asked)), _PIECE))):
        yield Archived(session, ids, sum(asked[message].bytes for message in ids))


def _in_piece(view: StoreView, session: Key, piece: int) -> Archived | None:
    rows = rows_between(view, session, piece * _PIECE, (piece + 1) * _PIECE - 1, Standing.ARCHIVED)
    asked = [message for message, _at, _standing in rows]
    ids = tuple(sorted(equals_live(view, asked, earlier=False)))
    return Archived(session, ids, weight_of(view, ids)) if ids else None
