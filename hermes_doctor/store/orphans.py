"""Rows that belong to a session which has no row: the family in one table, and how its members are found.

Foreign keys keep such rows from coming about, where they are switched on. They come from tools that had them off, from
releases that delete a session and leave what is not declared to go with it, and from files of which the sessions were
lost (upstream 71803, 87928, 100960).
"""

from __future__ import annotations

import enum
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from hermes_doctor.store.cells import BadText, Cell, Key
from hermes_doctor.store.reader import in_keys
from hermes_doctor.store.shape import Shape
from hermes_doctor.store.sizes import every_message_belongs
from hermes_doctor.store.view import StoreView


class Remedy(enum.StrEnum):
    """What is to be done with rows whose session is gone."""

    REBUILD = "rebuild"
    DELETE = "delete"
    REPORT = "report"


class Link(NamedTuple):
    """How the rows of a table name their session: in ``column``, or in a JSON document there, under ``inside``."""

    table: str
    column: str
    remedy: Remedy
    inside: str | None = None


MESSAGES = Link("messages", "session_id", Remedy.REBUILD)
USAGE = Link("session_model_usage", "session_id", Remedy.DELETE)
ROUTE = Link("gateway_routing", "entry_json", Remedy.REPORT, inside="session_id")
TOPIC = Link("telegram_dm_topic_bindings", "session_id", Remedy.REPORT)
DELEGATION = Link("async_delegations", "parent_session_id", Remedy.REPORT)

#: All that can be left behind. Not in it: parents (they are of the lineage) and locks and leases (they expire).
FAMILY = (MESSAGES, USAGE, ROUTE, TOPIC, DELEGATION)

#: The source of rows that were rebuilt from what was left of a session, by upstream's recovery too (0.20.0 on).
RECOVERED = "recovered"

#: How many sessions are gone through in one statement: each is one or two seeks.
_AT_ONCE = 1000
#: So many sessions are no lost table, whatever else is missing.
_MANY = 1000
#: The table is lost where this many sessions are missing for each that is there.
_MISSING_FOR_EACH = 10


class Missing(NamedTuple):
    """A session that has messages and no row. ``first``: its smallest message id; ``messages``: how many it has."""

    id: Cell
    first: int
    messages: int


def names_session(shape: Shape, link: Link) -> str:
    """Return SQL for the session that a row of the link's table (not aliased) names, NULL where it names none."""
    column = shape.column(link.table, link.column, alias=link.table)
    if link.inside is None:
        return f"nullif({column}, '')"
    return (
        f"CASE WHEN typeof({column}) = 'text' AND json_valid({column})"
        f" THEN nullif(json_extract({column}, '$.{link.inside}'), '') END"
    )


def is_orphan(link: Link) -> Callable[[Shape], str | None]:
    """Return what gives SQL that a row of the link's table names a session that has no row; None where none can."""

    def condition(shape: Shape) -> str | None:
        if not shape.has(link.table, link.column) or not shape.has("sessions", "id"):
            return None
        named = names_session(shape, link)
        return f"{named} IS NOT NULL AND NOT EXISTS (SELECT 1 FROM sessions WHERE sessions.id = {named})"

    return condition


def named_in(row: Mapping[str, Cell], link: Link) -> Key:
    """Return the session that a row of the link's table names, None where that cannot be read."""
    cell = row[link.column]
    if link.inside is None:
        return cell
    try:
        document = json.loads(cell if isinstance(cell, str) else "")
    except (ValueError, RecursionError):
        return None
    session = document.get(link.inside) if isinstance(document, dict) else None
    return session if isinstance(session, str | int | float) else None


def has_messages(view: StoreView, session: Key) -> bool:
    """Whether the store has messages of that session, whether or not it has the session."""
    if not view.shape.has("messages", "session_id"):
        return False
    among, cells = in_keys("session_id", [session])
    return bool(view.rows(f"SELECT 1 FROM messages WHERE {among} LIMIT 1", cells))


def missing_sessions(view: StoreView, keys: Sequence[Key] | None = None) -> Iterator[Missing]:
    """Give the sessions that have messages and no row, each once, in the order of their ids.

    ``keys``: only those whose smallest message id is one of these. The index over ``session_id`` is jumped through
    from one session to the next, so that messages of sessions that are there cost nothing.
    """
    if not view.shape.has("messages", "id", "session_id"):
        return
    if keys is not None:
        yield from _asked(view, keys)
    elif every_message_belongs(view):
        return
    elif _is_indexed(view):
        yield from _jumping(view)
    else:
        yield from _one_by_one(view)


def sessions_are_lost(view: StoreView) -> bool:
    """Whether the table of sessions is lost or nearly so, rather than that a few sessions were deleted.

    So it is where ten sessions are missing for each that is there. What was rebuilt last counts as missing still:
    the answer stays the same until all are rebuilt. A thousand sessions are no lost table. Only to be asked where a
    session is missing.
    """
    return view.once(_are_lost)


def _are_lost(view: StoreView) -> bool:
    if not view.shape.has("sessions", "id"):
        return True
    table = view.shape.tables["sessions"]
    source = view.shape.column("sessions", "source", absent="''")
    there = _number(
        view.reader.value(
            f"SELECT count(*) FROM (SELECT 1 FROM sessions WHERE {source} IS NOT ? LIMIT {_MANY + 1})", (RECOVERED,)
        )
    )
    if there > _MANY:
        return False
    missing = 0
    if table.rowid is not None:
        # Rebuilt rows come last. Those that stand before others are of an earlier loss.
        missing = _number(
            view.reader.value(
                f"SELECT count(*) FROM sessions WHERE {table.rowid} >"
                f" coalesce((SELECT max({table.rowid}) FROM sessions WHERE {source} IS NOT ?), 0)",
                (RECOVERED,),
            )
        )
    needed = max(1, there * _MISSING_FOR_EACH)
    for _session in missing_sessions(view):
        if missing >= needed:
            break
        missing += 1
    return missing >= needed


def _number(cell: Cell) -> int:
    return cell if isinstance(cell, int) else 0


def _has_row(view: StoreView, session: str) -> str:
    """Return SQL for whether a session has a row."""
    if not view.shape.has("sessions", "id"):
        return "0"
    return f"EXISTS (SELECT 1 FROM sessions WHERE sessions.id = {session})"


def _asked(view: StoreView, keys: Sequence[Key]) -> Iterator[Missing]:
    for start in range(0, len(keys), _AT_ONCE // 2):
        among, cells = in_keys("asked.id", keys[start : start + _AT_ONCE // 2])
        for key, session, first, count in view.rows(
            f"""SELECT asked.id, asked.session_id,
                   (SELECT min(id) FROM messages WHERE session_id = asked.session_id),
                   (SELECT count(*) FROM messages WHERE session_id = asked.session_id)
              FROM messages AS asked
             WHERE {among} AND asked.session_id IS NOT NULL AND NOT {_has_row(view, "asked.session_id")}""",
            cells,
        ):
            if first == key and isinstance(first, int) and isinstance(count, int):
                yield Missing(session, first, count)


#: The next sessions that messages name, from one on: a seek for each. {after} is where to begin, {has_row} SQL.
_NEXT_NAMED = """
WITH RECURSIVE named(id) AS (
    SELECT (SELECT min(session_id) FROM messages{after})
     UNION ALL
    SELECT (SELECT min(session_id) FROM messages WHERE session_id > named.id) FROM named WHERE named.id IS NOT NULL
     LIMIT {limit}
)
SELECT id,
       CASE WHEN NOT {has_row} THEN (SELECT min(messages.id) FROM messages WHERE session_id = named.id) END,
       CASE WHEN NOT {has_row} THEN (SELECT count(*) FROM messages WHERE session_id = named.id) END
  FROM named
 WHERE id IS NOT NULL
"""


def _jumping(view: StoreView) -> Iterator[Missing]:
    after, values = "", tuple[Cell, ...]()
    while True:
        sql = _NEXT_NAMED.format(after=after, has_row=_has_row(view, "named.id"), limit=_AT_ONCE)
        found = view.rows(sql, values)
        for session, first, count in found:
            if isinstance(first, int) and isinstance(count, int):
                yield Missing(session, first, count)
        if len(found) < _AT_ONCE:
            return
        last = found[-1][0]
        after = f" WHERE session_id > {'CAST(? AS TEXT)' if isinstance(last, BadText) else '?'}"
        values = (last,)


def _is_indexed(view: StoreView) -> bool:
    """Whether SQLite finds the next session by an index: every release has one, but an index can be dropped."""
    plan = view.rows("EXPLAIN QUERY PLAN SELECT min(session_id) FROM messages WHERE session_id > 'x'")
    return any(isinstance(step[-1], str) and "(session_id>" in step[-1] for step in plan)


def _one_by_one(view: StoreView) -> Iterator[Missing]:
    """Without an index: one walk of the messages, which keeps the missing sessions only."""
    found: dict[Cell, tuple[int, int]] = {}
    condition = f"session_id IS NOT NULL AND NOT {_has_row(view, 'messages.session_id')}"
    for key, session in view.reader.walk(view.shape.tables["messages"], ("id", "session_id"), condition):
        if isinstance(key, int):
            first, count = found.get(session, (key, 0))
            found[session] = (min(first, key), count + 1)
    for session, (first, count) in found.items():
        yield Missing(session, first, count)
