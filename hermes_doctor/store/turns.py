"""Whether the turns of a session follow one another as the providers want them, and as hermes repairs them at load.

``repair_message_sequence`` of the releases (0.13.0 on; for every replay from 0.19.0 on) joins what a person said twice
in a row, drops answers to no call, and takes away calls that no answer follows. The same rules are counted here, by
the newest release. What is no turn by itself is passed over: notices (``display_kind``, a person's words to a running
turn among them), what was overheard in a group (``observed``), rows of other roles. A compaction's summary begins anew:
behind it anything may come.

All rows of a store are looked at by SQL alone, each with its neighbours in the table (`doubtful_sql`). Where a turn is
whole, its rows stand side by side. Sessions of which some row has other neighbours are read again, row by row.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from hermes_doctor.store.cells import Cell, Key, decoded, quote
from hermes_doctor.store.handoffs import is_summary_sql
from hermes_doctor.store.lineage import COMPRESSION
from hermes_doctor.store.reader import Pace, in_keys
from hermes_doctor.store.shape import Shape
from hermes_doctor.store.sifting import REACH
from hermes_doctor.store.view import StoreView

#: Sessions that are remembered to be read again; beyond that, all sessions are.
REMEMBERED = 20_000

_AT_ONCE = 500
#: Rows of one session that are read in one statement where statements must be short.
_SLICE = 2_000

_NEEDED = ("id", "session_id", "role", "content", "tool_calls", "tool_call_id")

#: Between two calls in a list as `json.dumps` writes it. Inside a string there would be a backslash. GLOB goes from
#: brace to brace, where instr() would go from letter to letter.
_NEXT_CALL = '}, {"'


class _Row(enum.IntEnum):
    """What a row is to the turns."""

    OTHER = 0
    USER = 1
    ASSISTANT = 2
    TOOL = 3
    SUMMARY = 4


@dataclass(frozen=True)
class BrokenTurns:
    """What is broken in the turns of a session, and how often. ``ended``: nobody will write the rest."""

    session: Key
    ended: bool
    users_in_a_row: int
    replies_missing: int
    calls_unanswered: int
    answers_to_no_call: int


@dataclass
class Turns:
    """The rows of one session, taken in one after the other."""

    users_in_a_row: int = 0
    replies_missing: int = 0
    calls_unanswered: int = 0
    answers_to_no_call: int = 0
    _before: _Row = _Row.OTHER
    #: Of each call that waits for its answer, all ids by which that may name it; None: there are calls, unreadable.
    _waiting: list[frozenset[str] | None] = field(default_factory=list)

    def take(self, row: int, calls: Cell, answers: Cell) -> None:
        """Take in one row: its kind, its ``tool_calls``, its ``tool_call_id``."""
        if row == _Row.TOOL:
            self._answer(answers)
            return
        if row == _Row.OTHER:
            return
        # Assistant rows that follow one another are one turn: its calls are answered behind the last of them.
        if row != _Row.ASSISTANT or self._before == _Row.TOOL:
            self._close()
        if row == _Row.USER:
            self.users_in_a_row += self._before == _Row.USER
            self.replies_missing += self._before == _Row.TOOL
        elif row == _Row.ASSISTANT:
            self._waiting += ids_of_calls(calls)
        self._before = _Row(row)

    def end(self) -> None:
        """Say that no row will follow: whoever has not been answered will not be."""
        self._close()
        self.replies_missing += self._before in (_Row.USER, _Row.TOOL)

    @property
    def broken(self) -> bool:
        """Whether anything was found."""
        return bool(self.users_in_a_row or self.replies_missing or self.calls_unanswered or self.answers_to_no_call)

    def _answer(self, cell: Cell) -> None:
        ids = _variants(cell)
        # One id may name several calls, of one row or of many: each answer is for the first that still waits.
        for place, call in enumerate(self._waiting):
            if call is None or ids & call:
                if call is not None:
                    del self._waiting[place]
                self._before = _Row.TOOL
                return
        self.answers_to_no_call += 1

    def _close(self) -> None:
        self.calls_unanswered += sum(call is not None for call in self._waiting)
        self._waiting.clear()


def ids_of_calls(cell: Cell) -> list[frozenset[str] | None]:
    """Return the ids of each call of a cell; a single None where the calls cannot be read, and so not be judged."""
    if cell is None:
        return []
    try:
        calls = json.loads(cell) if isinstance(cell, str) else 0
    except (ValueError, RecursionError):
        return [None]
    if calls is None:
        return []
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        return [None]
    names = ("call_id", "id", "response_item_id")
    return [frozenset().union(*(_variants(call.get(name)) for name in names)) for call in calls]


def _variants(cell: object) -> frozenset[str]:
    """Return an id and, where two are written as one with a bar between, each of the two."""
    if not isinstance(cell, str):
        return frozenset()
    return frozenset(part.strip() for part in (cell, *cell.split("|"))) - {""}


def judgeable(shape: Shape) -> bool:
    """Whether the store has what it takes: the columns, and an index from a session to its messages."""
    has_keys = shape.has("messages", *_NEEDED) and shape.tables["messages"].rowid is not None
    return has_keys and shape.has("sessions", "id") and shape.messages_by_session


def session_sql() -> str:
    """Return SQL for the session that a fold is told of: its bytes, NULL where it is no text."""
    return "CASE typeof(session_id) WHEN 'text' THEN CAST(session_id AS BLOB) END"


#: What is looked at of the rows before and behind one in the table.
NEIGHBOURS = ("role", "session_id", "active", "tool_calls")


def doubtful_sql(shape: Shape) -> str:
    """Return SQL over messages, with `NEIGHBOURS` beside each: they are not what makes a whole turn.

    Behind a user stands an assistant, behind calls an answer to each and an assistant again, before an answer a call or
    another answer; all of the same session.
    """
    table, rowid = quote(shape.tables["messages"].name), shape.tables["messages"].rowid
    active = shape.column("messages", "active", absent="1")
    here = "session_id = session_id_{0} AND active_{0} = 1" if active != "1" else "session_id = session_id_{0}"

    def live(other: str) -> str:
        return f"{other}.active = 1" if active != "1" else "1"

    def follows(*roles: str) -> str:
        return f"role_behind IN ({_listed(roles)}) AND {here.format('behind')}"

    # In quotes, lest call_1 be found in call_10.
    names = f"""instr({table}.tool_calls, '"' || n.tool_call_id || '"') > 0"""
    length = f"json_array_length({table}.tool_calls)"
    all_answered = (
        f"CASE typeof(tool_calls) WHEN 'text' THEN CASE json_valid(tool_calls) WHEN 1 THEN"
        f" CASE WHEN {length} < {REACH} THEN (SELECT count(DISTINCT n.tool_call_id) FROM {table} n"
        f" WHERE n.{rowid} > {table}.{rowid} AND n.{rowid} <= {table}.{rowid} + {length}"
        f" AND n.role = 'tool' AND n.session_id = {table}.session_id"
        f" AND {live('n')} AND {names}) = {length}"
        f" AND (SELECT a.role = 'assistant' AND a.session_id = {table}.session_id AND {live('a')}"
        f" FROM {table} a WHERE a.{rowid} = {table}.{rowid} + {length} + 1)"
        f" END END END"
    )
    # Of several answers in a row the calls are asked for; behind the only one the assistant goes on.
    answer = (
        f"CASE role_before WHEN 'tool' THEN {here.format('before')} AND {follows('tool', 'assistant')}"
        f" WHEN 'assistant' THEN {here.format('before')}"
        f""" AND instr(tool_calls_before, '"' || {table}.tool_call_id || '"') > 0"""
        f" AND CASE WHEN tool_calls_before GLOB '*{_NEXT_CALL}*' THEN {follows('tool', 'assistant')}"
        f" ELSE {follows('assistant')} END END"
    )
    said = f"{_said_sql(shape)} AND {shape.column('messages', 'content')} NOT GLOB '[[]CONTEXT *'"
    # Nested: SQLite may take the operands of AND in any order, and the look-ups are what costs.
    return (
        f"CASE WHEN {active} = 1 THEN CASE role"
        f" WHEN 'user' THEN CASE WHEN {said} THEN ({follows('assistant')}) IS NOT 1 END"
        f" WHEN 'assistant' THEN CASE WHEN tool_calls IS NOT NULL THEN"
        f" CASE WHEN tool_calls GLOB '*{_NEXT_CALL}*' THEN {all_answered} ELSE {follows('tool')} END IS NOT 1 END"
        f" WHEN 'tool' THEN {answer} IS NOT 1 END END"
    )


def _listed(words: Sequence[str]) -> str:
    return ", ".join(f"'{word}'" for word in words)


class Doubtful:
    """The sessions of which a row was doubtful, at most so many."""

    def __init__(self) -> None:
        self._sessions: set[bytes] = set()
        self.all = False

    def see(self, session: Cell) -> None:
        """Remember the session of a doubtful row."""
        if self.all or not isinstance(session, bytes):
            return
        self._sessions.add(session)
        if len(self._sessions) > REMEMBERED:
            self.all = True
            self._sessions.clear()

    def sessions(self, view: StoreView) -> Iterator[Key]:
        """Give the sessions that are to be read: those that were remembered, or all if there were too many."""
        if self.all:
            yield from (key for (key,) in view.reader.walk(view.shape.tables["sessions"], ["id"], "id IS NOT NULL"))
            return
        yield from (decoded(session, view.reader.encoding) for session in self._sessions)


def broken_turns(view: StoreView, sessions: Sequence[Key]) -> Iterator[BrokenTurns]:
    """Give what is broken in each of these sessions, read by index; sessions that have no row are left out."""
    for session, ended, reason in ends_of(view, sessions):
        turns = Turns()
        for row, calls, answers in _rows(view, session):
            if isinstance(row, int):
                turns.take(row, calls, answers)
        # What a compression cut off goes on in another session.
        over = ended and reason != COMPRESSION
        if over:
            turns.end()
        if turns.broken:
            yield BrokenTurns(
                session,
                over,
                turns.users_in_a_row,
                turns.replies_missing,
                turns.calls_unanswered,
                turns.answers_to_no_call,
            )


def ends_of(view: StoreView, sessions: Sequence[Key]) -> Iterator[tuple[Key, bool, Cell]]:
    """Give those of the sessions that have a row, each with whether it has ended, and why."""
    ended = view.shape.column("sessions", "ended_at")
    reason = view.shape.column("sessions", "end_reason")
    asked = [key for key in sessions if key is not None]
    for start in range(0, len(asked), _AT_ONCE):
        among, cells = in_keys("id", asked[start : start + _AT_ONCE])
        for session, at, why in view.rows(f"SELECT id, {ended}, {reason} FROM sessions WHERE {among}", cells):
            yield session, at is not None, why


def _rows(view: StoreView, session: Key) -> Iterator[tuple[Cell, Cell, Cell]]:
    """Give what `Turns.take` wants of the rows that are replayed, in the order of their ids."""
    shape = view.shape
    active = shape.column("messages", "active", absent="1")
    among, cells = in_keys("session_id", [session])
    kind = (
        f"CASE role WHEN 'assistant' THEN {_Row.ASSISTANT:d} WHEN 'tool' THEN {_Row.TOOL:d} WHEN 'user' THEN"
        f" CASE WHEN {is_summary_sql(shape)} THEN {_Row.SUMMARY:d} WHEN {_said_sql(shape)} THEN {_Row.USER:d} END END"
    )
    calls = "CASE role WHEN 'assistant' THEN nullif(tool_calls, '') END"
    sql = (
        f"SELECT id, {kind}, {calls}, tool_call_id FROM messages"
        f" WHERE {among} AND {active} = 1 AND id > ? ORDER BY id LIMIT ?"
    )
    limit = _SLICE if view.reader.pace is Pace.SLICED else -1
    last: Cell = -(1 << 63)
    while True:
        count = 0
        for place, row, called, answers in view.reader.rows(sql, (*cells, last, limit)):
            count, last = count + 1, place
            yield row, called, answers
        if count != limit:
            return


def _said_sql(shape: Shape) -> str:
    """Return SQL: a user's row is what the user said to the agent, no notice, and not overheard."""
    kind = shape.column("messages", "display_kind")
    observed = shape.column("messages", "observed", absent="0")
    return f"coalesce({kind}, '') = '' AND {observed} IS NOT 1"
