"""Rebuild a session that is gone from the messages that it left.

The row is minimal: what only the lost one knew is not made up, and columns that the release lacks are left out. It is
the only row that is written; the messages stay as they are, and are put into the index that depends on sessions.
"""

from __future__ import annotations

import apsw

from hermes_doctor.engine.cure import Fix, FixRefusedError, Mending, Phase
from hermes_doctor.engine.model import Finding
from hermes_doctor.store.cells import quote
from hermes_doctor.store.clocks import trusted_sql
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
    except apsw.SQLError as error:
        raise FixRefusedError(f"the search index cannot be kept in step here ({type(error).__name__})") from error


def _row(shape: Shape) -> dict[str, str]:
    """Return the columns of a rebuilt row, each as SQL over the session's messages."""
    active = f"{shape.column('messages', 'active', absent='1')} IS 1"
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


FIX = Fix(check="orphan-messages", phase=Phase.RESTORE, uses_clock=False, page=__doc__ or "", mend=_mend)
