"""By what a store is known again: a run may only be taken back in the store that it changed, or in what became of it.

A path says nothing, and neither do device and inode alone: a store is recovered into a fresh file and moved into
place, or another one is copied into the same file. Row by row it cannot be told either: that a deleted row is not
there is true of every other store, and messages are numbered from 1 in all of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import apsw

from hermes_doctor.host.bundle import Bundle
from hermes_doctor.store.cells import decoded
from hermes_doctor.store.shape import Shape

#: Keys of state_meta by which releases from 0.21.5 on tell one file from another; a recovery gives new ones.
_KEYS = ("store_instance_id", "db_file_generation")

_GENERATIONS = """
SELECT CAST(value AS BLOB), key FROM state_meta
 WHERE key IN (SELECT value FROM json_each(?)) AND typeof(value) = 'text'
"""

#: The newest chats that hold messages: no repair deletes them, and a prune begins with the oldest.
_CHATS = """
SELECT CAST(id AS BLOB), started_at FROM sessions
 WHERE typeof(id) = 'text' AND typeof(started_at) = 'real' AND instr(CAST(id AS BLOB), x'00') = 0
   AND EXISTS (SELECT 1 FROM messages WHERE messages.session_id = sessions.id)
 ORDER BY started_at DESC LIMIT 32
"""

_CHAT_IS_THERE = "SELECT 1 FROM sessions WHERE id = ? AND started_at IS ?"


def identify(connection: apsw.Connection, shape: Shape, bundle: Bundle) -> dict[str, Any]:
    """Return by what the store can be known again, as JSON can hold it."""
    known: dict[str, Any] = {"device": bundle.device, "inode": bundle.inode} | _generations(connection, shape)
    if _has_chats(shape):
        known["chats"] = [[chat, float(at)] for chat, at in _texts(connection, shape, _CHATS)]
    return known


def is_the_same(known: Mapping[str, Any], connection: apsw.Connection, shape: Shape, bundle: Bundle) -> bool:
    """Whether this store is the one that was identified, or what became of it: upgraded, recovered, moved.

    A store whose chats are all gone, and which has no mark of its own, is not known again.
    """
    now = _generations(connection, shape)
    if any(known.get(key) == value for key, value in now.items()):
        return True
    chats = known.get("chats", [])
    if chats:
        return _has_chats(shape) and any(
            connection.execute(_CHAT_IS_THERE, (chat, at)).fetchone() is not None for chat, at in chats
        )
    return (known.get("device"), known.get("inode")) == (bundle.device, bundle.inode)


def _generations(connection: apsw.Connection, shape: Shape) -> dict[str, str]:
    if not shape.has("state_meta", "key", "value"):
        return {}
    return {key: value for value, key in _texts(connection, shape, _GENERATIONS, json.dumps(_KEYS))}


def _texts(connection: apsw.Connection, shape: Shape, sql: str, *values: str) -> Iterator[tuple[str, Any]]:
    """Give the rows of a query whose first cell, a blob, is text: what is none could not be looked for again."""
    for raw, other in connection.execute(sql, values):
        text = decoded(bytes(raw), shape.encoding)
        if isinstance(text, str):
            yield text, other


def _has_chats(shape: Shape) -> bool:
    return shape.has("sessions", "id", "started_at") and shape.has("messages", "session_id")
