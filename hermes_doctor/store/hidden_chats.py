"""Chats of a person's that no list of the store's release shows.

Lists show rows without a parent, branches, and (0.20.6 on) reset chats; a continuation through its first row. From
0.17 on they leave out every row with a delegate's mark. That upgrade marked more than delegates: any untitled row
without parent or child, with a tool's message and at most 25 messages (a file below schema 16, opened by 0.17 on).
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hermes_doctor.store.cells import Cell, Key
from hermes_doctor.store.lineage import (
    BRANCH_MARKER,
    DELEGATE_MARKER,
    RESET_MARKER,
    Edge,
    chain_of,
    edge_sql,
    has_lineage,
    marker_sql,
)
from hermes_doctor.store.reader import Values, in_keys
from hermes_doctor.store.shape import Shape
from hermes_doctor.store.sources import WORKERS
from hermes_doctor.store.view import StoreView

#: What the upgrade to schema 16 puts into a delegate's mark where there is no parent to name.
ORPHANED = "__orphaned__"
#: From this schema on (0.17.0) lists leave out rows with a delegate's mark.
HIDES_MARKED = 16

#: Sources of runs, which are no chats of a person's.
_RUNS = tuple(sorted((WORKERS - {"cli"}) | {"recovered", "unknown"}))
#: Columns that only a chat of a person's has: a delegate gets neither title nor routing (all releases).
_PERSONAL = ("title", "user_id", "session_key", "chat_id", "pinned")
_KEYS_AT_ONCE = 300


class Why(enum.StrEnum):
    """Why no list shows a chat."""

    MARKED = "marked-by-upgrade"
    UNJOINED = "child-without-a-mark"


class Hidden(NamedTuple):
    """A chat that no list shows.

    ``said``: messages of a user's, counted up to two. ``certain``: it can be nothing but a chat; a marked row with a
    single message of a user's may be a delegate's run, whose task is just that.
    """

    session: Key
    why: Why
    source: Cell
    said: int
    certain: bool


def hidden_chats(view: StoreView, keys: Sequence[Key] | None) -> Iterator[Hidden]:
    """Give the chats of these sessions, or of all, that no list of the store's release shows."""
    for row in _suspects(view, keys):
        session, source, marked, said, personal = row
        count = said if isinstance(said, int) else 0
        if not marked:
            if count > 1:
                yield Hidden(session, Why.UNJOINED, source, count, certain=True)
        elif count or personal:
            certain = bool(personal) or count > 1
            verdict = _head_is_a_chat(view, session) if not certain else True
            if verdict is not None:
                yield Hidden(session, Why.MARKED, source, count, certain=verdict)


def without_mark(text: str) -> str | None:
    """Return a ``model_config`` without the upgrade's mark, else as it is to the last character; None: cannot be done.

    The answer is "{}" where nothing else was in it.
    """
    try:
        pairs = _pairs(text)
        if not isinstance(pairs, list) or _MEMBER not in pairs:
            return None
        wanted = [pair for pair in pairs if pair != _MEMBER]
        for found in _MARK.finditer(text):
            before, behind = text[: found.start()], text[found.end() :]
            cut = before + behind.lstrip()[1:] if behind.lstrip().startswith(",") else before + behind
            if before.rstrip().endswith(",") and not behind.lstrip().startswith(","):
                cut = before.rstrip()[:-1] + behind
            try:
                if _pairs(cut) == wanted:
                    return cut
            except ValueError:
                continue
    except (ValueError, RecursionError):
        return None
    return None


_MEMBER = (DELEGATE_MARKER, ORPHANED)
_MARK = re.compile(rf'\s*"{DELEGATE_MARKER}"\s*:\s*"{ORPHANED}"')


def _pairs(text: str) -> object:
    """Parse JSON so that nothing is lost: pairs in order, numbers as they are written."""
    return json.loads(text, object_pairs_hook=list, parse_float=str, parse_int=str, parse_constant=str)


def _suspects(view: StoreView, keys: Sequence[Key] | None) -> Iterator[Values]:
    shape = view.shape
    if not has_lineage(shape) or not shape.has("messages", "session_id", "role"):
        return
    marked, unjoined = _marked_sql(shape), _unjoined_sql(shape)
    source = shape.column("sessions", "source", alias="sessions")
    hidden = shape.column("sessions", "hidden", alias="sessions", absent="0")
    runs = ", ".join(f"'{run}'" for run in _RUNS)
    where = (
        f"sessions.id IS NOT NULL AND coalesce({hidden}, 0) = 0"
        f" AND coalesce({source}, '') NOT IN ({runs}) AND (({marked}) OR ({unjoined}))"
    )
    columns = ["sessions.id", source, f"({marked})", _said_sql(shape), _personal_sql(shape)]
    if keys is None:
        yield from view.reader.walk(shape.tables["sessions"], columns, where)
        return
    for start in range(0, len(keys), _KEYS_AT_ONCE):
        among, cells = in_keys("sessions.id", keys[start : start + _KEYS_AT_ONCE])
        yield from view.rows(f"SELECT {', '.join(columns)} FROM sessions WHERE {among} AND ({where})", cells)


def _head_is_a_chat(view: StoreView, session: Key) -> bool | None:
    """Whether a marked row with one message of a user's goes on what was certainly a chat.

    A continuation copies its parent's mark. False: cannot be told; None: it goes on what is no marked chat.
    """
    head = chain_of(view, session).ids[0]
    if head == session:
        return False
    among, cells = in_keys("sessions.id", [head])
    row = view.reader.row(
        f"SELECT {marker_sql(view.shape, DELEGATE_MARKER, 'sessions')}, {_said_sql(view.shape)},"
        f" {_personal_sql(view.shape)} FROM sessions WHERE {among}",
        cells,
    )
    mark, said, personal = row or (None, 0, 0)
    if mark not in (None, ORPHANED):
        return None
    # Without a mark it is listed: the mark that was copied from it has been taken off it since.
    return mark is None or bool(personal) or (isinstance(said, int) and said > 1)


def _marked_sql(shape: Shape) -> str:
    """A row that the upgrade marked, or a continuation that copied the mark."""
    config = shape.column("sessions", "model_config", alias="sessions")
    parent = "sessions.parent_session_id"
    continues = (
        f"EXISTS (SELECT 1 FROM sessions p WHERE p.id = {parent}"
        f" AND {edge_sql(shape, 'sessions', 'p')} = '{Edge.CONTINUATION}')"
    )
    return (
        f"CASE WHEN instr({config}, '{ORPHANED}') > 0"
        f" THEN ({marker_sql(shape, DELEGATE_MARKER, 'sessions')}) = '{ORPHANED}'"
        f" AND ({parent} IS NULL OR {continues}) ELSE 0 END"
    )


def _unjoined_sql(shape: Shape) -> str:
    """A child that neither goes on its parent nor is marked as anything else; lists take it for a delegate."""
    marks = " AND ".join(
        f"({marker_sql(shape, marker, 'sessions')}) IS NULL"
        for marker in (DELEGATE_MARKER, BRANCH_MARKER, RESET_MARKER)
    )
    return (
        "CASE WHEN sessions.parent_session_id IS NOT NULL AND sessions.parent_session_id <> sessions.id"
        f" THEN EXISTS (SELECT 1 FROM sessions p WHERE p.id = sessions.parent_session_id"
        f" AND {edge_sql(shape, 'sessions', 'p')} = '{Edge.SUBAGENT}') AND {marks} ELSE 0 END"
    )


def _said_sql(shape: Shape) -> str:
    """How many messages a user wrote, counted up to two: no summaries, nothing that a program put in."""
    summary = shape.column("messages", "_compressed_summary", alias="m", absent="0")
    kind = shape.column("messages", "display_kind", alias="m")
    return (
        "(SELECT count(*) FROM (SELECT 1 FROM messages m WHERE m.session_id = sessions.id AND m.role = 'user'"
        f" AND coalesce({summary}, 0) = 0 AND coalesce({kind}, '') IN ('', 'steer') LIMIT 2))"
    )


def _personal_sql(shape: Shape) -> str:
    cells = (shape.column("sessions", name, alias="sessions") for name in _PERSONAL)
    return " OR ".join(f"coalesce({cell}, '') NOT IN ('', 0)" for cell in cells)
