"""Rebuild a session that is gone from the messages that it left.

The row is minimal: what only the lost one knew is not made up, and columns that the release lacks are left out. Where
just one session goes on with it after a compression, it is ended so that this one is found again. It is the only row
that is written; the messages stay as they are, and are put into the index that depends on sessions.

Beside a living hermes (--live)
No: a hermes that still has the lost session in memory may make its row anew, and moving its messages into the index
holds the store for too long.
"""

from __future__ import annotations

import apsw

from hermes_doctor.engine.cure import Fix, FixRefusedError, Mending, Phase
from hermes_doctor.engine.model import Finding
from hermes_doctor.store.cells import quote
from hermes_doctor.store.clocks import trusted, trusted_sql
from hermes_doctor.store.handoffs import begins_with_summary_sql
from hermes_doctor.store.lineage import BRANCH_MARKER, COMPRESSION, DELEGATE_MARKER, RESET_MARKER, marker_sql
from hermes_doctor.store.orphans import RECOVERED
from hermes_doctor.store.search_index import kept_in_step
from hermes_doctor.store.shape import Shape

#: Upstream takes no longer title (0.13.0 on).
_LONGEST_TITLE = 100

#: {columns} and {values} are those that the release has; the aggregates are over the messages of the session.
_REBUILD = """
INSERT INTO sessions ({columns})
SELECT {values}
  FROM messages
 WHERE session_id = :session AND NOT EXISTS (SELECT 1 FROM sessions WHERE id = :session)
HAVING min({time}) IS NOT NULL
"""

#: The children of the session that go on with it: they begin with its summary, and were not branched, delegated or
#: reset from it. {source}, {markers} and {summary} are SQL over ``child``.
_GOING_ON = """
SELECT child.started_at
  FROM sessions AS child
 WHERE child.parent_session_id = :session AND child.id <> :session AND {source} IS NOT 'tool'
   AND :session NOT IN ({markers})
   AND {summary}
 LIMIT 2
"""

_END = """
UPDATE sessions SET ended_at = :at, end_reason = :compression
 WHERE id = :session AND ended_at IS NULL AND end_reason IS NULL
"""

#: How many calls a message holds, as releases recount them (0.20.6 on): a list's length, 1 for what is no list.
_CALLS = """
CASE WHEN typeof({cell}) = 'text' AND json_valid({cell}) THEN
    CASE json_type({cell})
        WHEN 'array' THEN json_array_length({cell})
        WHEN 'null' THEN 0
        WHEN 'false' THEN 0
        ELSE 1
    END
ELSE 0 END
"""


def _mend(mending: Mending, finding: Finding) -> None:
    session, shape = finding.session, mending.view.shape
    if not isinstance(session, str):
        raise FixRefusedError("the session's id is no text")
    known = {name: value for name, value in _row(shape).items() if shape.has("sessions", name)}
    sql = _REBUILD.format(
        columns=", ".join(quote(name) for name in known),
        values=", ".join(known.values()),
        time=_time(shape),
    )
    values = {"session": session, "source": RECOVERED, "title": _title(session)}
    try:
        with kept_in_step(mending.connection, mending.view, [session]):
            mending.run(sql, values)
        _end_where_it_goes_on(mending, session)
    except apsw.SQLError as error:
        raise FixRefusedError(f"the search index cannot be kept in step here ({type(error).__name__})") from error


def _end_where_it_goes_on(mending: Mending, session: str) -> None:
    """End the row as `compression` where just one session goes on with it, from the time on when that began.

    Else no list would show the one that goes on: it would be taken for a run of the program's. Where several do,
    nothing tells which is the right one.
    """
    shape = mending.view.shape
    if not shape.has("sessions", "parent_session_id", "ended_at", "end_reason"):
        return
    markers = (marker_sql(shape, marker, "child") for marker in (BRANCH_MARKER, DELEGATE_MARKER, RESET_MARKER))
    sql = _GOING_ON.format(
        source=shape.column("sessions", "source", alias="child"),
        markers=", ".join(f"coalesce({marker}, '')" for marker in markers),
        summary=begins_with_summary_sql(shape, "child.id"),
    )
    began = [trusted(at) for (at,) in mending.view.rows(sql, (session,))]
    if len(began) == 1 and began[0] is not None:
        mending.run(_END, {"session": session, "at": began[0], "compression": COMPRESSION})


def _row(shape: Shape) -> dict[str, str]:
    """Return the columns of a rebuilt row, each as SQL over the session's messages."""
    # Where it is NULL the release makes it 1 when it opens the store (0.18.2 on).
    active = f"coalesce({shape.column('messages', 'active', absent='1')}, 1) = 1"
    calls = _CALLS.format(cell=shape.column("messages", "tool_calls"))
    return {
        "id": ":session",
        "source": ":source",
        "started_at": f"min({_time(shape)})",
        "last_activity_at": f"max({_time(shape)})",
        # Titles are unique: where somebody has this one already, the row goes without.
        "title": "(SELECT :title WHERE NOT EXISTS (SELECT 1 FROM sessions WHERE title = :title))",
        "message_count": f"count(*) FILTER (WHERE {active})",
        "tool_call_count": f"coalesce(sum({calls}) FILTER (WHERE {active}), 0)",
    }


def _time(shape: Shape) -> str:
    return trusted_sql(shape.column("messages", "timestamp"))


def _title(session: str) -> str | None:
    """Return a title that tells what the row is; None where the id cannot be shown, or is too long for one."""
    title = f"Recovered {session}"
    return title if title.isprintable() and len(title) <= _LONGEST_TITLE else None


FIX = Fix(
    check="orphan-messages", phase=Phase.RESTORE, uses_clock=False, page=__doc__ or "", mend=_mend, reindexes=True
)
