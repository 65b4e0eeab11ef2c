"""The rows around a row, for a person who has to decide about it: ids, roles, times, sizes and flags, never text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hermes_doctor.store.cells import Cell, Key, as_text
from hermes_doctor.store.clocks import trusted
from hermes_doctor.store.reader import in_keys
from hermes_doctor.store.view import StoreView

#: Messages before and behind the one in question.
_EACH_SIDE = 4
#: Children of a session that are shown.
_MOST_CHILDREN = 8

#: What hermes itself calls roles; what else stands there might be anything.
_ROLES = frozenset({"user", "assistant", "tool", "system", "developer", "function", "session_meta"})

#: Columns that hold 0 or 1, and what 1, or 0, means.
_FLAGS = (("active", 0, "not active"), ("compacted", 1, "compacted"), ("observed", 1, "observed"))
#: Columns of which only is told that something stands there.
_PARTS = ("tool_calls", "reasoning", "reasoning_content", "reasoning_details", "codex_reasoning_items")

#: A session's own columns that are shown, as far as the store has them.
_OF_SESSION = ("source", "started_at", "ended_at", "end_reason", "parent_session_id", "message_count")


@dataclass(frozen=True)
class Message:
    """One message: ``bytes`` of its content, None where there is none; ``marks``: what else is so of it."""

    id: Key
    here: bool
    role: str
    at: float | None
    bytes: int | None
    marks: Sequence[str]


@dataclass(frozen=True)
class Session:
    """One session: ``place`` says what it is to the one in question; its times in seconds since the epoch."""

    id: Key
    place: str
    source: str | None
    started_at: float | None
    ended_at: float | None
    end_reason: str | None
    messages: int | None


@dataclass(frozen=True)
class Around:
    """The sessions, and the messages of the one in question, of which there are ``count``."""

    sessions: Sequence[Session]
    messages: Sequence[Message]
    count: int


def rows_around(view: StoreView, table: str, key: Key, session: Key) -> Around:
    """Return what lies around a row: its session with parent and children, and the messages next to it.

    Of a row that is no message, the session's last messages. Empty where the row belongs to no session.
    """
    if session is None or isinstance(session, tuple):
        return Around((), (), 0)
    with view.reader.pinned():
        return Around(_sessions(view, session), *_messages(view, session, key if table == "messages" else None))


def _sessions(view: StoreView, session: Key) -> list[Session]:
    if not view.shape.has("sessions", "id"):
        return []
    own = _read(view, "id", session, "this one", 1)
    found = list(own)
    if view.shape.has("sessions", "parent_session_id"):
        among, cells = in_keys("id", [session])
        parent = view.reader.value(f"SELECT parent_session_id FROM sessions WHERE {among}", cells)
        if parent is not None:
            found = [*_read(view, "id", parent, "its parent", 1), *found]
        found += _read(view, "parent_session_id", session, "its child", _MOST_CHILDREN)
    return found


def _read(view: StoreView, column: str, key: Key, place: str, most: int) -> list[Session]:
    shape = view.shape
    listed = ", ".join(["id", *(shape.column("sessions", name) for name in _OF_SESSION)])
    among, cells = in_keys(column, [key])
    rows = view.rows(f"SELECT {listed} FROM sessions WHERE {among} ORDER BY id LIMIT {most}", cells)
    return [
        Session(
            id=row[0],
            place=place,
            source=as_text(row[1]),
            started_at=trusted(row[2]),
            ended_at=trusted(row[3]),
            end_reason=as_text(row[4]),
            messages=row[6] if isinstance(row[6], int) else None,
        )
        for row in rows
    ]


def _messages(view: StoreView, session: Key, key: Key) -> tuple[list[Message], int]:
    shape = view.shape
    if not shape.has("messages", "id", "session_id"):
        return [], 0
    flags = [flag for flag in _FLAGS if shape.has("messages", flag[0])]
    parts = [part for part in _PARTS if shape.has("messages", part)]
    listed = [
        "id",
        *(shape.column("messages", name) for name in ("role", "timestamp")),
        f"octet_length({shape.column('messages', 'content')})",
        *(shape.column("messages", flag[0]) for flag in flags),
        *(f"{shape.column('messages', part)} IS NOT NULL" for part in parts),
    ]
    among, cells = in_keys("session_id", [session])
    select = f"SELECT {', '.join(listed)} FROM messages WHERE {among}"
    if isinstance(key, int):
        before = view.rows(f"{select} AND id < ? ORDER BY id DESC LIMIT {_EACH_SIDE}", (*cells, key))
        rows = [
            *reversed(before),
            *view.rows(f"{select} AND id >= ? ORDER BY id LIMIT {_EACH_SIDE + 1}", (*cells, key)),
        ]
    else:
        rows = view.rows(f"{select} ORDER BY id DESC LIMIT {2 * _EACH_SIDE}", cells)[::-1]
    count = view.reader.value(f"SELECT count(*) FROM messages WHERE {among}", cells)

    def marks(values: Sequence[Cell]) -> list[str]:
        told = [word for (_, holds, word), value in zip(flags, values, strict=False) if value == holds]
        told += [f"{column} is NULL" for (column, _, _), value in zip(flags, values, strict=False) if value is None]
        return told + [part for part, there in zip(parts, values[len(flags) :], strict=True) if there]

    found = [
        Message(
            id=row[0],
            here=row[0] == key,
            role=row[1] if isinstance(row[1], str) and row[1] in _ROLES else "another role",
            at=trusted(row[2]),
            bytes=row[3] if isinstance(row[3], int) else None,
            marks=marks(row[4:]),
        )
        for row in rows
    ]
    return found, count if isinstance(count, int) else 0
