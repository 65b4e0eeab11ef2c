"""Rows whose search texts hold a NUL, and what of them may be changed.

Older versions of SQLite stop a text's trigrams at a NUL and newer ones go on behind it (3.46 | 3.48), so what one puts
into the trigram index the other cannot take out. Structured contents (pictures) begin with a NUL in every release.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from functools import lru_cache

from hermes_doctor.store.reader import in_keys
from hermes_doctor.store.search_index import stops_at_nul
from hermes_doctor.store.shape import Shape
from hermes_doctor.store.view import StoreView

#: When an update of a message fires a trigger: of these columns, or (no list) of any.
_UPDATES = re.compile(r"\bUPDATE(?:\s+OF\s+(?P<columns>.+?))?\s+ON\s+[\"'`\[]?messages\b", re.IGNORECASE | re.DOTALL)

#: Why such a row is left as it is.
NUL_REASON = "its text holds a NUL, on which hermes's search index and ours do not agree"

_TEXTS = ("content", "tool_name", "tool_calls")
_AT_ONCE = 500


def indexed_with_nul(view: StoreView, rows: Sequence[int], changed: Collection[str]) -> set[int]:
    """Return those of the messages whose texts hold a NUL and go into the trigram index when ``changed`` are written.

    Empty where no trigger watches these columns.
    """
    return with_nul(view, rows) if rows and goes_into_trigrams(view.shape, changed) else set()


def with_nul(view: StoreView, rows: Sequence[int]) -> set[int]:
    """Return those of the messages whose texts hold a NUL."""
    found: set[int] = set()
    holds = " OR ".join(f"instr({view.shape.column('messages', name)}, char(0))" for name in _TEXTS)
    for start in range(0, len(rows), _AT_ONCE):
        among, cells = in_keys("id", rows[start : start + _AT_ONCE])
        some = view.rows(f"SELECT id FROM messages WHERE {among} AND ({holds})", cells)
        found.update(row[0] for row in some if isinstance(row[0], int))
    return found


def cut_unknown(view: StoreView, rows: Sequence[int]) -> set[int]:
    """Return those of the messages whose texts hold a NUL, where nothing in the trigram index tells how it is cut.

    Hermes's SQLite could then not take out again what ours puts in.
    """
    nul = with_nul(view, rows)
    return nul if nul and stops_at_nul(view.reader.connection, view.shape) is None else set()


def goes_into_trigrams(shape: Shape, columns: Collection[str]) -> bool:
    """Whether updating these columns makes a trigger write to the trigram index."""
    watched = [_watched(sql) for sql in shape.triggers.values() if "messages_fts_trigram" in sql]
    return any(names is None or not names.isdisjoint(columns) for names in watched)


@lru_cache(maxsize=32)
def _watched(trigger: str) -> frozenset[str] | None:
    """Return the columns of messages of which an update fires the trigger, none for a trigger of other events.

    None: whichever column is updated.
    """
    fired = _UPDATES.search(trigger)
    if fired is None:
        return frozenset()
    named = fired["columns"]
    return None if named is None else frozenset(name.strip(" \t\n\"'`[]").lower() for name in named.split(","))
