"""The prompts of hermes's background reviews where they lie in a chat, and which rows are the review's reply.

After a turn hermes looks back over the chat for what belongs into its memory and its skills: a fork of the agent gets
the chat and one more user message. Up to 0.17.0 the fork had the chat's own id and could write into it; from 0.18.0
on it writes nothing.

All three prompts (0.13.0 to 0.22.2) open alike, say what to answer where there is nothing to save, and are sent with a
last paragraph about the tools that may be called. What stands between changes from release to release, and a person's
own words may stand there (``/refine``, 0.20.6 on). So all marks must be there, the last one at the very end: a person
who quotes a prompt, or asks for the like, has written something else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from hermes_doctor.store.cells import Cell, Key
from hermes_doctor.store.handoffs import is_summary_sql
from hermes_doctor.store.reader import in_keys
from hermes_doctor.store.shape import Shape
from hermes_doctor.store.view import StoreView

#: How every prompt opens, and how it goes on: about skills, about memory, about both (all from 0.13.0 to 0.22.2).
_OPENING = "Review the conversation above and "
_ABOUT = ("update the skill library", "consider saving to memory", "update two things:")
#: What the review is to answer where there is nothing to do (0.13.0 to 0.22.2).
_NOTHING = "'Nothing to save.'"
#: The last paragraph: which tools it may call (0.13.0 on; without memory, and with others named behind, 0.21.5 on).
_LAST_PARAGRAPH = re.compile(
    r"\n\nYou can only call (?:memory and )?skill management tools\.[^\n]*do not attempt them\."
    r"(?: Exception [^\n]+ allowed: [^\n]+\.)?\Z"
)
#: How the prompts end without that paragraph (0.13.0 to 0.22.2).
_BARE_END = re.compile(re.escape(_NOTHING) + r" and stop(?:\.| [^\n]{1,60}\.|\. Otherwise, act\.)\Z")

#: The shortest of all prompts has 456 bytes (0.13.0 to 0.20.6); a person's words in one are not longer than this.
_SHORTEST, _LONGEST = 400, 100_000

#: The neighbours that tell nearly always have ids as near as this, and are among as many rows; so many more are looked
#: at where they do not.
_NEAR, _NEAR_ROWS, _FAR_ROWS = 1_000, 50, 1_000

_ASKING = ("user", "system")


class Leak(NamedTuple):
    """A prompt in a chat: its row, the rows of its reply, and why it cannot be told which these are (None: it can)."""

    prompt: int
    session: Key
    replies: tuple[int, ...] = ()
    in_a_row: bool = False
    doubt: str | None = None


@dataclass(frozen=True)
class _Row:
    id: int
    role: Cell
    live: bool
    calls: bool
    summary: bool
    prompt: bool


class _Before(Enum):
    """What stands before a prompt: a turn that is over, one that is not, or another prompt."""

    FINISHED = 1
    UNDER_WAY = 2
    PROMPT = 3


def is_prompt(content: Cell) -> bool:
    """Whether a content is a review's prompt as hermes sends it."""
    if not isinstance(content, str):
        return False
    text = content.strip()
    if not text.startswith(tuple(_OPENING + about for about in _ABOUT)) or _NOTHING not in text:
        return False
    return bool(_LAST_PARAGRAPH.search(text) or _BARE_END.search(text))


def suspect_sql(shape: Shape) -> str | None:
    """Return SQL for whether a row of messages may be a prompt, live or not; None where the shape cannot tell."""
    if not shape.has("messages", "id", "session_id", "role", "content") or not shape.messages_by_session:
        return None
    # SQLite tells a text's length without reading it.
    return (
        f"CASE WHEN role IN {_ASKING} AND octet_length(content) BETWEEN {_SHORTEST} AND {_LONGEST}"
        f" THEN substr(content, 1, {len(_OPENING)}) = '{_OPENING}' ELSE 0 END"
    )


def live_sql(shape: Shape) -> str:
    """Return SQL for whether a row of messages is replayed; NULL is healed to that by the next open (0.18.2 on)."""
    return f"coalesce({shape.column('messages', 'active', absent='1')}, 1) = 1"


def leak_at(view: StoreView, session: Key, key: Key) -> Leak | None:
    """Return the leak whose prompt is that row, None where it is none: not a live prompt, or not in a chat."""
    if not isinstance(key, int) or suspect_sql(view.shape) is None:
        return None
    content = view.reader.value(f"SELECT content FROM messages WHERE id = ? AND {live_sql(view.shape)}", (key,))
    if not is_prompt(content) or _is_a_reviews_own(view, session):
        return None
    before = _before(_rows(view, session, key, back=True))
    replies, mixed, in_a_row = _replies(_rows(view, session, key))
    if in_a_row or before is _Before.PROMPT:
        # It stands where the reply would: what comes next belongs to the chat (upstream 111566).
        return Leak(key, session, in_a_row=True)
    doubt = None
    if mixed:
        doubt = "the chat went on while the review was answering, and their rows are mixed"
    elif replies and before is _Before.UNDER_WAY:
        doubt = "a turn of the chat was under way when it was written: whose the next reply is cannot be told"
    return Leak(key, session, tuple(row.id for row in replies), doubt=doubt)


def _is_a_reviews_own(view: StoreView, session: Key) -> bool:
    """Whether the session holds a review and nothing else: nobody but reviews ever asked anything in it."""
    among, cells = in_keys("session_id", [session])
    asked = f"FROM messages WHERE {among} AND role = 'user'"
    suspect = suspect_sql(view.shape)
    if view.rows(f"SELECT 1 {asked} AND NOT coalesce({suspect}, 0) LIMIT 1", cells):
        return False
    return all(is_prompt(content) for (content,) in view.rows(f"SELECT content {asked} AND {suspect}", cells))


def _rows(view: StoreView, session: Key, key: int, *, back: bool = False) -> Iterator[_Row]:
    """Give the rows of the session behind a row, live or not, or those before it: the nearest first."""
    shape = view.shape
    columns = ", ".join(
        (
            "id",
            "role",
            live_sql(shape),
            f"coalesce({shape.column('messages', 'tool_calls')}, '') NOT IN ('', '[]', 'null')",
            f"role = 'user' AND {is_summary_sql(shape)}",
            f"CASE WHEN {suspect_sql(shape)} THEN content END",
        )
    )
    beyond, order, edge = ("<", "DESC", key - _NEAR) if back else (">", "ASC", key + _NEAR)
    # The sign keeps SQLite from the session's index, which would have to be sorted by id up to 0.19.0.
    among, cells = in_keys("+session_id", [session])
    near = f"{among} AND id {beyond} ? AND NOT id {beyond} ? ORDER BY id {order} LIMIT {_NEAR_ROWS}"
    found = list(_read(view, f"SELECT {columns} FROM messages WHERE {near}", (*cells, key, edge)))
    yield from found
    among, cells = in_keys("session_id", [session])
    further = f"{among} AND id {beyond} ? ORDER BY id {order} LIMIT {_FAR_ROWS}"
    start = found[-1].id if len(found) == _NEAR_ROWS else edge
    yield from _read(view, f"SELECT {columns} FROM messages WHERE {further}", (*cells, start))


def _read(view: StoreView, sql: str, values: tuple[Cell, ...]) -> Iterator[_Row]:
    for key, role, live, calls, summary, content in view.rows(sql, values):
        assert isinstance(key, int)
        yield _Row(key, role, bool(live), bool(calls), bool(summary), is_prompt(content))


def _before(rows: Iterable[_Row]) -> _Before:
    """Tell what stands before a prompt, from the rows before it, the nearest first.

    A prompt that is hidden still counts, unless its own reply was hidden with it: of two in a row, one may be mended.
    """
    newer: _Row | None = None
    under_way = False
    for row in rows:
        if row.prompt:
            had_a_reply = not row.live and newer is not None and newer.role == "assistant" and not newer.live
            if not had_a_reply and not under_way:
                return _Before.PROMPT
            if row.live:
                # The turn that was broken off is a review's, too.
                return _Before.FINISHED
        newer = row
        if not row.live or row.prompt:
            continue
        if row.role == "user":
            return _Before.FINISHED if row.summary and not under_way else _Before.UNDER_WAY
        if row.role == "assistant" and not row.calls:
            return _Before.UNDER_WAY if under_way else _Before.FINISHED
        if row.role in ("assistant", "tool"):
            under_way = True
    return _Before.UNDER_WAY if under_way else _Before.FINISHED


def _replies(rows: Iterable[_Row]) -> tuple[list[_Row], bool, bool]:
    """Return the rows of a prompt's reply, from the rows behind it; whether it is mixed with others; whether a prompt
    comes first.

    A reply is what the agent writes until it calls no tool any more: its calls, the tools' answers, the last word.
    """
    replies: list[_Row] = []
    ended = False
    for row in rows:
        if row.prompt and not replies:
            return [], False, True
        if not row.live:
            continue
        if ended:
            # Behind somebody's message no tool answers before the agent has called it.
            return replies, row.role == "tool", False
        if row.role == "assistant":
            replies.append(row)
            if not row.calls:
                break
        elif row.role == "tool" and replies:
            replies.append(row)
        elif replies:
            ended = True
        else:
            break
    return replies, False, False
