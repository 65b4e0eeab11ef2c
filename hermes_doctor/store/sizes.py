"""How many messages hermes would load to resume or export a session, counted as the store's release counts them.

What is loaded for a resume is in `resuming.loaded_with`. Of these sessions' rows 0.20.6 counts the active ones, 0.21.5
on also those that a compaction put away; a path that loads the last session alone counts its active rows (all three).
An export counts the session's own rows: the active ones, in 0.22.2 all. Older releases have no limit: they are
answered for as 0.22.2 is.

Cheap where nothing is large: one pass over sessions, each with a bounded count on an index.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import apsw

from hermes_doctor.store.cells import Key
from hermes_doctor.store.lineage import Edge, edge_sql, has_lineage
from hermes_doctor.store.reader import Pace, in_keys
from hermes_doctor.store.resuming import loaded_with, resume_target
from hermes_doctor.store.view import StoreView

#: The limit of every release that has one, where the config says nothing.
DEFAULT_LIMIT = 20_000
#: The first schemas of the releases with a limit (0.20.6), that count compacted rows, too (0.21.5), and that export
#: all rows (0.22.2).
LIMITED, _WITH_COMPACTED, _EXPORTS_ALL = 26, 30, 31

#: Edges to a parent whose messages are not this conversation's, whatever a release would add up.
_RUNS = (Edge.TOOL, Edge.DELEGATE, Edge.SUBAGENT)


class Size(NamedTuple):
    """What a session comes to, in messages: ``resumed`` over ``sessions`` rows, ``alone`` and ``exported`` by itself.

    ``resumed`` is 0 where resuming goes on in another session, which has a size of its own.
    """

    session: Key
    resumed: int
    sessions: int
    alone: int
    exported: int


class _Counted(NamedTuple):
    """What counting all sessions' messages came to.

    ``large``: the sessions whose messages, and those of the rows above, come to more than the smallest limit.
    ``all_belong``: every message belongs to a session that has a row.
    """

    large: tuple[Key, ...]
    all_belong: bool


def limits(view: StoreView) -> tuple[int, int]:
    """Return how many messages hermes resumes and exports at most; 0: no limit."""
    settings = view.settings
    resume, export = settings.max_resume_messages, settings.max_export_messages
    return DEFAULT_LIMIT if resume is None else resume, DEFAULT_LIMIT if export is None else export


def large(view: StoreView, keys: Sequence[Key] | None = None) -> Iterator[Size]:
    """Give the sizes of sessions (of these ids, or of the whole store) that may be over a limit."""
    if not _is_judged(view):
        return
    for session in _suspects(view) if keys is None else dict.fromkeys(keys):
        if session is not None:
            yield size_of(view, session)


def every_message_belongs(view: StoreView) -> bool:
    """Whether it is certain that every message belongs to a session that has a row.

    Told by the counts that are needed to find large sessions, so only of a store that is large enough to have them.
    """
    try:
        counted = view.once(_counted) if _is_judged(view) else None
    except apsw.CorruptError:
        # Whoever asks may get along without the table of sessions.
        return False
    return counted is not None and counted.all_belong


def size_of(view: StoreView, session: Key) -> Size:
    """Return what a session comes to, counted as the store's release counts."""
    alone = _count(view, session, _active(view))
    everything = view.shape.version >= _EXPORTS_ALL or view.shape.version < LIMITED
    exported = _count(view, session, "1") if everything else alone
    if resume_target(view, session) != session:
        return Size(session, 0, 0, 0, exported)
    loaded = [session] if _is_a_run(view, session) else loaded_with(view, session)
    return Size(session, sum(_count(view, each, _loaded(view)) for each in loaded), len(loaded), alone, exported)


def _active(view: StoreView) -> str:
    return f"{view.shape.column('messages', 'active', absent='1')} = 1"


def _loaded(view: StoreView) -> str:
    if view.shape.version in range(LIMITED, _WITH_COMPACTED):
        return _active(view)
    return f"({_active(view)} OR {view.shape.column('messages', 'compacted', absent='0')} = 1)"


def _count(view: StoreView, session: Key, condition: str) -> int:
    among, cells = in_keys("session_id", [session])
    counted = view.reader.value(f"SELECT count(*) FROM messages WHERE {among} AND {condition}", cells)
    return counted if isinstance(counted, int) else 0


def _is_a_run(view: StoreView, session: Key) -> bool:
    among, cells = in_keys("c.id", [session])
    edge = view.reader.value(
        f"SELECT {edge_sql(view.shape)} FROM sessions c JOIN sessions p ON p.id = c.parent_session_id WHERE {among}",
        cells,
    )
    return edge in _RUNS


def _smallest(view: StoreView) -> int:
    return min((limit for limit in limits(view) if limit), default=0)


def _is_judged(view: StoreView) -> bool:
    return bool(_smallest(view)) and has_lineage(view.shape) and view.shape.has("messages", "session_id")


def _suspects(view: StoreView) -> Sequence[Key]:
    """Return the sessions whose rows, all of them, and those of the rows above come to more than the smallest limit."""
    counted = view.once(_counted)
    return () if counted is None else counted.large


def _counted(view: StoreView) -> _Counted | None:
    """Count the messages of every session, on the index by session; None where none can have too many."""
    limit, messages, sessions = _smallest(view), view.shape.tables["messages"], view.shape.tables["sessions"]
    # Without an index each count would read all messages; every release makes it anew when it opens the store.
    if not view.shape.messages_by_session:
        return None
    if messages.rowid is not None:
        low, high = (view.reader.value(f"SELECT {end}({messages.rowid}) FROM messages") for end in ("min", "max"))
        if not isinstance(low, int) or not isinstance(high, int) or high - low < limit:
            return None
    rows = "(SELECT count(*) FROM messages m WHERE m.session_id = sessions.id)"
    with_child = "EXISTS (SELECT 1 FROM sessions c WHERE c.parent_session_id = sessions.id)"
    related = f"(sessions.parent_session_id IS NOT NULL OR {with_child})"
    # Only rows with kin are kept, by id, parent and count; any other is large by itself or not at all.
    kin: dict[Key, tuple[Key, int]] = {}
    large: list[Key] = []
    total = 0
    with _at_one_moment(view) as may_compare:
        for session, parent, count, has_kin in view.reader.walk(
            sessions, ["sessions.id", "sessions.parent_session_id", rows, related]
        ):
            if not isinstance(count, int):
                continue
            total += count
            if has_kin:
                kin[session] = (parent, count)
            elif count > limit:
                large.append(session)
        # An id that several rows have would be counted for each.
        all_belong = may_compare and sessions.primary_key == ("id",) and view.reader.count(messages) == total
    sums: dict[Key, int] = {}
    large += (member for member in kin if _sum_up(member, kin, sums) > limit)
    return _Counted(tuple(large), all_belong)


@contextmanager
def _at_one_moment(view: StoreView) -> Iterator[bool]:
    """Keep to one moment inside, so that numbers can be compared; say whether that is so.

    It is not where somebody would wait for us: nothing that takes so long may be done in one slice then.
    """
    if view.reader.pace is Pace.SLICED and view.reader.rests:
        yield False
        return
    with view.reader.pinned():
        yield True


def _sum_up(session: Key, kin: Mapping[Key, tuple[Key, int]], sums: dict[Key, int]) -> int:
    """Return the count of a session and of all rows above it; a loop is counted once at least."""
    path: dict[Key, None] = {}
    here: Key = session
    while here in kin and here not in sums and here not in path:
        path[here] = None
        here = kin[here][0]
    total = sums.get(here, sum(kin[each][1] for each in path) if here in path else 0)
    for each in reversed(path):
        total += kin[each][1]
        sums[each] = total
    return sums.get(session, 0)
