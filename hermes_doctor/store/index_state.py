"""Each search index as a whole: its triggers, and what hermes says of it.

What releases do about missing triggers (executed): 0.13 and 0.15 leave them missing for ever, 0.16 on makes them anew
and fills the whole index when it opens the store. A missing index is made anew by every release, and left empty.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

import apsw

from hermes_doctor.store.search_index import (
    INDEXES,
    Declared,
    Layout,
    declared_by,
    is_detached,
    layouts,
    pending_range,
    tokenizer_missing,
)
from hermes_doctor.store.shape import Shape
from hermes_doctor.store.view import StoreView

_EVENTS = ("insert", "update", "delete")
#: From this schema on (0.20.0) hermes narrows the update triggers at each start; up to 0.19 they are broad.
_NARROWS_SCHEMA = 25
#: An update trigger that no columns narrow.
_BROAD = re.compile(r"\bAFTER\s+UPDATE\s+ON\b", re.IGNORECASE)


class IndexState(NamedTuple):
    """An index that the store has, or that triggers write to.

    ``missing``: of its triggers on inserts, updates and deletes. ``broad``: its update trigger fires with any column,
    though hermes narrows it. ``sourceless``: the view or table of its texts is gone. ``detached``: hermes has
    taken its triggers off and will fill it anew. ``pending``: messages with ids above the first number and up to the
    second are still to be put in by hermes. ``lacks``: the tokenizer that this machine has not got.
    """

    name: str
    layout: Layout
    declared: Declared | None
    missing: tuple[str, ...]
    broad: bool
    sourceless: str | None
    detached: bool
    pending: tuple[int, int] | None
    lacks: str | None
    fails: apsw.Error | None


def index_states(view: StoreView) -> Mapping[str, IndexState]:
    """Return the state of each index that the store has or writes to."""
    found = (_state(view, name, layout) for name, layout in layouts(view.shape).items())
    return {state.name: state for state in found if state is not None}


def comparable(state: IndexState) -> bool:
    """Whether what an index holds can be held against the messages: hermes keeps it in step, and so can we."""
    known = state.layout not in (Layout.ABSENT, Layout.UNKNOWN)
    return known and not (state.missing or state.detached or state.lacks or state.fails or state.sourceless)


def follows_all(state: IndexState) -> bool:
    """Whether an index is to hold every message, whatever its role and session."""
    return state.layout is Layout.INLINE or state.name == INDEXES[0]


def is_trigram(state: IndexState) -> bool:
    """Whether an index is one of all runs of three characters, which not every SQLite cuts alike at a NUL."""
    return state.declared is not None and state.declared.tokenizer == "trigram"


def _state(view: StoreView, name: str, layout: Layout) -> IndexState | None:
    shape = view.shape
    missing = tuple(event for event in _EVENTS if _trigger(shape, name, event) is None)
    if layout is Layout.ABSENT and len(missing) == len(_EVENTS):
        return None
    declared = declared_by(shape, name)
    update = _trigger(shape, name, "update")
    there = layout is not Layout.ABSENT
    lacks, fails = _asked(view.reader.connection, name) if there else (None, None)
    return IndexState(
        name=name,
        layout=layout,
        declared=declared,
        missing=missing if there else (),
        broad=shape.version >= _NARROWS_SCHEMA and update is not None and _BROAD.search(update) is not None,
        sourceless=_sourceless(shape, declared),
        detached=there and is_detached(view.reader.connection, shape, name),
        pending=pending_range(view, name),
        lacks=lacks,
        fails=fails,
    )


def _asked(connection: apsw.Connection, name: str) -> tuple[str | None, apsw.Error | None]:
    """Ask an index something that nothing matches: which tokenizer it lacks, and what that raises otherwise."""
    try:
        return tokenizer_missing(connection, name), None
    except (apsw.SQLError, apsw.CorruptError) as error:
        return None, error


def _trigger(shape: Shape, name: str, event: str) -> str | None:
    wanted = f"{name}_{event}"
    return next((sql for known, sql in shape.triggers.items() if known.lower() == wanted), None)


def _sourceless(shape: Shape, declared: Declared | None) -> str | None:
    if declared is None or not declared.content:
        return None
    known = {*shape.tables, *(name.lower() for name in shape.views)}
    return None if declared.content in known else declared.content
