"""Triggers that no release of hermes makes: a change by the doctor must not set one off.

SQLite runs the triggers of a table whatever they do, and a store is a file that anybody may have had in hands: one
may delete other rows, never end, or log what is none of its business. So a statement that would set off a stranger's
trigger is refused before it begins. SQLite itself says which those are: while it compiles a statement, it names the
trigger that each action is for.

Hermes's own triggers keep the search indexes, the order and identity of the display (0.21.5 on) and the message's uid
(0.22.2); each is known by its name, by the few tables and columns that it writes to, and by the words that it is made
of, which cannot say anything endless.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import apsw

from hermes_doctor.host.upstream import printable
from hermes_doctor.store.shape import Shape

#: The triggers of 0.21.5 and 0.22.2 beside those of the indexes, and the columns of ``messages`` that each may set.
_OF_MESSAGES: Mapping[str, frozenset[str]] = {
    "messages_display_order_insert": frozenset({"display_order"}),
    "messages_display_visibility_update": frozenset({"display_order"}),
    "messages_display_identity_update": frozenset({"display_identity", "display_order"}),
    "messages_display_identity_delete": frozenset({"display_order"}),
    "messages_message_uid_insert": frozenset({"message_uid"}),
}
#: Those of 0.13 on, for each index that there can be.
_OF_INDEX = re.compile(r"(messages_fts(?:_trigram|_cjk)?)_(?:insert|delete|update)")

#: What the statements of all of them are made of: no recursion, no second table
#: beside another, nothing that ends the transaction.
_WORDS = re.compile(
    r"create|trigger|if|not|exists|after|insert|update|delete|of|on|when|begin|end|select|from|into|values|set|where"
    r"|and|or|is|null|in|case|then|else|as|order|by|limit|cast|integer|coalesce|substr|min|lower|hex|randomblob"
    r"|json_extract|json_valid|json_object|new|old|peer|rowid"
    r"|messages|sessions|state_meta|id|key|value|role|content|tool_name|tool_calls|tool_call_id|timestamp|session_id"
    r"|source|model_config|active|compacted|display_kind|display_identity|display_order|message_uid"
)
_COMMENTS_AND_TEXTS = re.compile(r"--[^\n]*|/\*.*?\*/|'(?:[^']|'')*'", re.S)
#: A list of tables: each row of one with each of the other.
_CROSSED = re.compile(r"\bFROM\s+\w+(?:\s+AS\s+\w+)?\s*,", re.I)
_WRITES = frozenset({apsw.SQLITE_INSERT, apsw.SQLITE_UPDATE, apsw.SQLITE_DELETE})

#: How SQLite begins to say that a table, column or function is not as the statement needs it.
_LAID_OUT_OTHERWISE = (
    "no such column",
    "no such table",
    "no such collation sequence",
    "no such function",
    "no such module",
    "unsafe use of",
    "cannot UPDATE generated column",
    "cannot INSERT into generated column",
    "cannot modify",
    "malformed JSON",
)


class StrangersTriggerError(Exception):
    """A change would set off a trigger that is not hermes's: one plain sentence."""

    def __init__(self, trigger: str) -> None:
        super().__init__(
            f"it would set off a trigger of this store that is not hermes's ({printable(trigger)}):"
            " look at what that is for, and drop it first"
        )


def refuse_strangers(connection: apsw.Connection, shape: Shape) -> None:
    """Let no statement of a connection set off a trigger that is not hermes's.

    Such a statement raises StrangersTriggerError instead, before it has begun.
    """
    known = {name for name, sql in shape.triggers.items() if _is_hermes_own(name, sql)}
    strangers = shape.triggers.keys() - known
    if not shape.triggers:
        return

    def judge(action: int, first: str | None, second: str | None, _database: str | None, within: str | None) -> int:
        # Named within is the innermost trigger, view or subquery; what a trigger writes is named by itself.
        if within in strangers:
            raise StrangersTriggerError(within)
        if within in known and action in _WRITES and not _may_write(within, action, first or "", second or ""):
            raise StrangersTriggerError(within)
        return apsw.SQLITE_OK

    connection.authorizer = judge


def laid_out_otherwise(error: apsw.SQLError) -> str | None:
    """Return in words that a statement failed because the store is not made as hermes makes it; else None."""
    said = str(error)
    if not any(begin in said for begin in _LAID_OUT_OTHERWISE):
        return None
    return f"the store is not laid out as hermes lays it out ({printable(said)})"


def _is_hermes_own(name: str, sql: str) -> bool:
    """Whether a trigger has the name of one that a release makes, and is made of nothing else than they are."""
    own = name.lower()
    index = _OF_INDEX.fullmatch(own)
    if index is None and own not in _OF_MESSAGES:
        return False
    plain = _COMMENTS_AND_TEXTS.sub(" ", sql)
    words = set(re.findall(r"[^\W\d]\w*", plain.lower())) - {own, index[1] if index else ""}
    return all(_WORDS.fullmatch(word) for word in words) and _CROSSED.search(plain) is None


def _may_write(trigger: str, action: int, table: str, column: str) -> bool:
    """Whether that is the trigger's own bookkeeping."""
    own = trigger.lower()
    index = _OF_INDEX.fullmatch(own)
    if index is not None:
        return table.lower() == index[1]
    return action == apsw.SQLITE_UPDATE and table.lower() == "messages" and column.lower() in _OF_MESSAGES[own]


__all__ = ["StrangersTriggerError", "laid_out_otherwise", "refuse_strangers"]
