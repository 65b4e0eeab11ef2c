"""Sessions in which nobody has spoken but a compaction: its summary, in a user's name, is all that asks for anything.

A summary is a handoff: for the model to know, not to act upon. Hermes itself takes care that a user's message stays
beside it (0.18.2 on), and from 0.20.6 on calls no model right after a compaction where none has
(`reference_handoff_would_drive_next_model_call`). The same is asked here of the rows that are replayed.

A summary may carry a user's words: before it, up to a line that ends the prior context (0.18.0 on), or behind the line
that ends the summary (0.13.0 on). Such a row is a user's message.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hermes_doctor.store.ages import ages_of
from hermes_doctor.store.cells import Key, quote
from hermes_doctor.store.clocks import DAY
from hermes_doctor.store.lineage import COMPRESSION, RECOVERABLE_REASONS
from hermes_doctor.store.liveness import live_work
from hermes_doctor.store.reader import in_keys
from hermes_doctor.store.shape import Shape
from hermes_doctor.store.turns import ends_of
from hermes_doctor.store.view import StoreView

#: How the summaries of all releases begin: 0.13.0 to 0.22.2 (the sentences behind differ), and those before.
OPENINGS = ("[CONTEXT COMPACTION — REFERENCE ONLY]", "[CONTEXT SUMMARY]:")
#: Behind this a row goes on with what the user said (0.13.0 on).
END_OF_SUMMARY = "--- END OF CONTEXT SUMMARY — respond to the message below, not the summary above ---"
#: A row that begins so had words of its own before the summary came into it (0.18.0 on).
_PRIOR_CONTEXT = "[PRIOR CONTEXT — for reference only; not a new message]"
#: What a compaction puts in a user's place where the chat never had one (0.20.0 on), as far as all spell it alike.
_PLACEHOLDER = "Continue from the compressed conversation context above. This marker exists because"
#: A user's words to a running turn: the one kind of row with a kind that is a user's own (0.21.5 on).
_STEER = "steer"

#: A chat that was used within this, in seconds, is being used: its user will speak next.
IN_USE = DAY

_SPACE = "char(9, 10, 11, 12, 13, 32)"


class LoneHandoff(NamedTuple):
    """A session that only a summary asks anything of. ``taken_up``: it is open, or is opened again by itself."""

    session: Key
    handoff: Key
    answer: Key
    taken_up: bool


def told_sql(shape: Shape) -> tuple[str, str] | None:
    """Return SQL over messages: a bare summary in a user's name; and that its session has no user's own message.

    None where the store lacks a column, or an index from a session to its messages.
    """
    needed = shape.has("messages", "id", "session_id", "role", "content", "tool_calls") and shape.has("sessions", "id")
    if not needed or not shape.messages_by_session:
        return None
    table = quote(shape.tables["messages"].name)
    own = f"SELECT 1 FROM {table} m WHERE m.session_id = {table}.session_id AND {_own_sql(shape, 'm')}"
    # Nested: SQLite may take the operands of AND in any order.
    bare = (
        f"CASE role WHEN 'user' THEN CASE WHEN {_may_open_sql(shape, table)} THEN"
        f" {_live(shape, table)} AND {_bare_sql(shape, table)} END END"
    )
    return bare, f"NOT EXISTS ({own})"


def lone_handoffs(view: StoreView, sessions: Sequence[Key]) -> Iterator[LoneHandoff]:
    """Give those of the sessions that a finished answer leaves with nothing but a summary to go on from."""
    for session, ended, reason in ends_of(view, sessions):
        # After a compression the chat goes on elsewhere.
        if (ended and reason == COMPRESSION) or _in_use(view, session):
            continue
        with view.reader.pinned():
            found = _left_with(view, session)
        if found is not None:
            yield LoneHandoff(session, *found, not ended or reason in RECOVERABLE_REASONS)


def _in_use(view: StoreView, session: Key) -> bool:
    """Whether somebody uses the session, or may: right after a compaction a chat may look so."""
    age = ages_of(view, [session]).get(session)
    if age is None or age.newest is None or view.now - age.newest < view.idle_limit(IN_USE):
        return True
    return live_work(view, session) is not None


def _left_with(view: StoreView, session: Key) -> tuple[Key, Key] | None:
    """Return the ids of the last summary and of the finished answer that a session ends with."""
    shape = view.shape
    among, cells = in_keys("session_id", [session])
    live = f"FROM messages WHERE {among} AND {_live(shape, 'messages')}"
    if view.reader.value(f"SELECT 1 {live} AND {_own_sql(shape, 'messages')} LIMIT 1", cells) is not None:
        return None
    handoff = view.reader.value(f"SELECT max(id) {live} AND {_bare_sql(shape, 'messages')}", cells)
    if handoff is None:
        return None
    # Calls and answers behind it are work under way, which the summary itself tells the model to finish.
    at_work = (
        f"{live} AND id > ? AND (role = 'tool' OR role = 'assistant' AND coalesce(tool_calls, '') NOT IN ('', '[]'))"
    )
    if view.reader.value(f"SELECT 1 {at_work} LIMIT 1", (*cells, handoff)) is not None:
        return None
    finish = shape.column("messages", "finish_reason")
    last = view.reader.row(
        f"SELECT id, {finish} = 'stop' AND coalesce(tool_calls, '') IN ('', '[]')"
        f" {live} AND role = 'assistant' ORDER BY id DESC LIMIT 1",
        cells,
    )
    return (handoff, last[0]) if last and last[1] else None


def _live(shape: Shape, alias: str) -> str:
    return f"{shape.column('messages', 'active', alias=alias, absent='1')} = 1"


def _may_open_sql(shape: Shape, alias: str) -> str:
    """Return cheap SQL that holds wherever `_opens_sql` does: by the first character, or the mark."""
    marked = shape.column("messages", "_compressed_summary", alias=alias, absent="0")
    first = f"substr({alias}.content, 1, 1)"
    return f"({first} = '[' OR instr({_SPACE}, {first}) OR {marked} = 1)"


def _opens_sql(shape: Shape, alias: str) -> str:
    """Return SQL: the row's content begins as a summary does, or the row is marked as one (0.20.6 on)."""
    marked = shape.column("messages", "_compressed_summary", alias=alias, absent="0")
    text = f"ltrim({alias}.content, {_SPACE})"
    opens = " OR ".join(f"substr({text}, 1, {len(opening)}) = '{opening}'" for opening in OPENINGS)
    return f"({opens} OR {marked} = 1)"


def _bare_sql(shape: Shape, alias: str) -> str:
    """Return SQL: the row is a summary in a user's name, and no more than that."""
    content = f"{alias}.content"
    behind = f"substr({content}, instr({content}, '{END_OF_SUMMARY}') + {len(END_OF_SUMMARY)})"
    return (
        f"({alias}.role = 'user' AND typeof({content}) = 'text' AND {_opens_sql(shape, alias)}"
        f" AND substr({content}, 1, 1) <> char(0) AND instr({content}, '{_PRIOR_CONTEXT}') <> 1"
        f" AND (instr({content}, '{END_OF_SUMMARY}') = 0 OR trim({behind}, {_SPACE}) = ''))"
    )


def _own_sql(shape: Shape, alias: str) -> str:
    """Return SQL: the row is replayed, and is what a user said, to the agent or to others."""
    kind = shape.column("messages", "display_kind", alias=alias)
    content = f"{alias}.content"
    return (
        f"({alias}.role = 'user' AND {_live(shape, alias)} AND coalesce({kind}, '') IN ('', '{_STEER}')"
        f" AND coalesce({content}, '') <> '' AND substr({content}, 1, {len(_PLACEHOLDER)}) <> '{_PLACEHOLDER}'"
        f" AND NOT {_bare_sql(shape, alias)})"
    )
