"""Where a release goes on when a session is resumed, and what it loads for that.

Read from `get_compression_tip`, `resolve_resume_session_id` and the walks up of the eleven releases, and compared with
what they answer (tests/store/test_resuming.py):

==============  ========  ==============================================================================================
release         schema    resuming a session
==============  ========  ==============================================================================================
0.13.0-0.16.0   11 to 14  stays where there are messages; else down the newest children to the first that has some
0.17.0          16        first to the tip: the newest children that began after their parent's end by compression
0.18.0-0.20.0   17 to 25  first to the tip, by marks and ends; then on to the deepest newest child with messages
0.20.6          26        the same, but reset children are no way on
0.21.5, 0.22.2  30, 31    the same, and reset children are no tip either; 0.22.2 follows 1,000 links, all others 100
==============  ========  ==============================================================================================

A mark counts here whomever it names: that is how these two walks of the releases read it. Up to 0.20.6 a child whose
``model_config`` is no JSON makes both walks give up; here it is a child without marks.
"""

from __future__ import annotations

from collections.abc import Callable

from hermes_doctor.store.cells import Cell, Key
from hermes_doctor.store.lineage import (
    BRANCH_MARKER,
    COMPRESSION,
    DELEGATE_MARKER,
    RESET_MARKER,
    RESET_REASONS,
    has_lineage,
    marker_sql,
    parent_of,
)
from hermes_doctor.store.reader import in_keys
from hermes_doctor.store.shape import Shape
from hermes_doctor.store.view import StoreView

#: The first schemas of the releases at which the walks changed (0.17.0, 0.18.0, 0.20.6, 0.21.5, 0.22.2).
_TIP_FIRST, _BY_MARKS, _PAST_RESETS, _NO_RESET_TIP, _BOUND_TO_PARENT = 16, 17, 26, 30, 31
#: Links that a walk follows: to a tip, to a tip in 0.22.2, down from it, and up from it.
_TIP_LINKS, _LONG_TIP_LINKS, _DOWN_LINKS, _UP_LINKS = 100, 1000, 32, 100

_Step = Callable[[StoreView, Key], Key]


def resume_target(view: StoreView, session: Key) -> Key:
    """Return the session that the store's release opens when this one is resumed; itself where it goes nowhere else."""
    if not _can_go_on(view.shape) or not view.shape.has("messages", "session_id"):
        return session
    tip = compression_tip(view, session) if view.shape.version >= _TIP_FIRST else session
    if view.shape.version < _BY_MARKS:
        return _first_with_messages(view, tip)
    deepest: Key = None
    for here in _walked(view, tip, _newest_plain_child, _DOWN_LINKS - 1):
        if has_messages(view, here):
            deepest = here
    return tip if deepest is None else deepest


def compression_tip(view: StoreView, session: Key) -> Key:
    """Return where the compression chain below a session ends, as the store's release walks it."""
    if not _can_go_on(view.shape):
        return session
    step = _next_by_marks if view.shape.version >= _BY_MARKS else _next_by_time
    links = _LONG_TIP_LINKS if view.shape.version >= _BOUND_TO_PARENT else _TIP_LINKS
    return _walked(view, session, step, links)[-1]


def loaded_with(view: StoreView, session: Key) -> list[Key]:
    """Return the sessions whose messages are loaded when this one is opened, itself first.

    0.20.6: every row above it, by any edge. 0.21.5: the same, but of a branch itself only. 0.22.2: only what it
    continues. Older releases are answered for as 0.22.2 is: they count nothing.
    """
    if not _can_go_on(view.shape):
        return [session]
    if view.shape.version in range(_PAST_RESETS, _BOUND_TO_PARENT):
        if view.shape.version >= _NO_RESET_TIP and _mark(view, session, BRANCH_MARKER):
            return [session]
        return _walked(view, session, parent_of, _UP_LINKS - 1)
    return _walked(view, session, _continued_parent, _UP_LINKS - 1)


def _can_go_on(shape: Shape) -> bool:
    """Whether the store can say that a session goes on in another: a hand may have taken one of these columns away."""
    return has_lineage(shape) and shape.has("sessions", "started_at", "ended_at", "end_reason")


def has_messages(view: StoreView, session: Key) -> bool:
    """Whether a session has message rows, of any kind."""
    among, cells = in_keys("session_id", [session])
    return view.reader.value(f"SELECT 1 FROM messages WHERE {among} LIMIT 1", cells) is not None


def _walked(view: StoreView, start: Key, step: _Step, links: int) -> list[Key]:
    """Return the session and those that follow it, at most so many, none twice."""
    path = [start]
    for _ in range(links):
        following = step(view, path[-1])
        if following is None or following in path:
            break
        path.append(following)
    return path


def _first_with_messages(view: StoreView, session: Key) -> Key:
    """Return the first row with messages down the newest children, whatever they are; itself where there is none."""
    for here in _walked(view, session, _newest_child, _DOWN_LINKS):
        if has_messages(view, here):
            return here
    return session


def _newest_child(view: StoreView, parent: Key) -> Key:
    among, cells = in_keys("c.parent_session_id", [parent])
    return view.reader.value(
        f"SELECT c.id FROM sessions c WHERE {among} ORDER BY c.started_at DESC, c.id DESC LIMIT 1", cells
    )


def _newest_plain_child(view: StoreView, parent: Key) -> Key:
    among, cells = in_keys("c.parent_session_id", [parent])
    resets = view.shape.version >= _PAST_RESETS
    return view.reader.value(
        f"""SELECT c.id FROM sessions c JOIN sessions p ON p.id = c.parent_session_id
        WHERE {among} AND {_plain_sql(view.shape, resets=resets)}
        ORDER BY c.started_at DESC, c.id DESC LIMIT 1""",
        cells,
    )


def _next_by_time(view: StoreView, parent: Key) -> Key:
    among, cells = in_keys("p.id", [parent])
    return view.reader.value(
        f"""SELECT c.id FROM sessions p JOIN sessions c ON c.parent_session_id = p.id
        WHERE {among} AND p.end_reason = '{COMPRESSION}' AND c.started_at >= p.ended_at
        ORDER BY c.started_at DESC LIMIT 1""",
        cells,
    )


def _next_by_marks(view: StoreView, parent: Key) -> Key:
    among, cells = in_keys("p.id", [parent])
    resets = view.shape.version >= _NO_RESET_TIP
    return view.reader.value(
        f"""SELECT c.id FROM sessions p JOIN sessions c ON c.parent_session_id = p.id
        WHERE {among} AND p.end_reason = '{COMPRESSION}' AND {_plain_sql(view.shape, resets=resets)}
        ORDER BY
            CASE WHEN c.end_reason = '{COMPRESSION}' THEN 0 WHEN c.ended_at IS NULL THEN 1 ELSE 2 END,
            {_last_active_sql(view.shape)} DESC, c.started_at DESC, c.id DESC
        LIMIT 1""",
        cells,
    )


def _continued_parent(view: StoreView, session: Key) -> Key:
    """Return the parent whose conversation goes on in a session: 0.22.2 binds marks to the parent that they name."""
    among, cells = in_keys("c.id", [session])
    bound = " AND ".join(
        f"({marker_sql(view.shape, marker, 'c')}) IS NOT c.parent_session_id"
        for marker in (BRANCH_MARKER, DELEGATE_MARKER, RESET_MARKER)
    )
    source = view.shape.column("sessions", "source", alias="c")
    return view.reader.value(
        f"""SELECT p.id FROM sessions c JOIN sessions p ON p.id = c.parent_session_id
        WHERE {among} AND p.end_reason = '{COMPRESSION}' AND coalesce({source}, '') <> 'tool' AND {bound}""",
        cells,
    )


def _mark(view: StoreView, session: Key, marker: str) -> Cell:
    among, cells = in_keys("s.id", [session])
    return view.reader.value(f"SELECT {marker_sql(view.shape, marker, 's')} FROM sessions s WHERE {among}", cells)


def _plain_sql(shape: Shape, *, resets: bool) -> str:
    """Return SQL: the child ``c`` of ``p`` bears no mark and is no tool's; with ``resets`` it was not reset either."""
    markers = [BRANCH_MARKER, DELEGATE_MARKER, *([RESET_MARKER] if resets else [])]
    conditions = [f"({marker_sql(shape, marker, 'c')}) IS NULL" for marker in markers]
    conditions.append(f"coalesce({shape.column('sessions', 'source', alias='c')}, '') <> 'tool'")
    own, its = (shape.column("sessions", "session_key", alias=alias) for alias in ("c", "p"))
    if resets and shape.has("sessions", "session_key"):
        reasons = ", ".join(f"'{reason}'" for reason in sorted(RESET_REASONS))
        conditions.append(f"NOT coalesce(p.end_reason IN ({reasons}) AND {own} <> '' AND {own} = {its}, 0)")
    return " AND ".join(conditions)


def _last_active_sql(shape: Shape) -> str:
    """Return SQL for the last use of the child ``c``: its newest message or activity, else its start."""
    newest = "(SELECT max(m.timestamp) FROM messages m WHERE m.session_id = c.id)"
    if not shape.has("messages", "session_id", "timestamp"):
        newest = "NULL"
    activity = shape.column("sessions", "last_activity_at", alias="c")
    # max() of two arguments is NULL where one is.
    return f"coalesce(max({newest}, {activity}), {newest}, {activity}, c.started_at)"
