"""Which profile a session, a store and a home belong to, and what two stores of one home hold in common.

Every store is one profile's: the root's is ``default``, the others lie in ``profiles/<name>``. The key of a chat that
a gateway brought names a profile, too: ``agent:main:…`` is ``default``'s, ``agent:<name>:…`` that name's, and
``agent:main~:…`` that of a profile called ``main`` (0.21.5 on). A gateway that serves one profile alone writes
``agent:main:`` whatever the profile (0.13.0 to 0.22.2): in a named profile's store that key says nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import apsw

from hermes_doctor.host.bundle import StoreProblem
from hermes_doctor.host.homes import PROFILE_NAME, STORE_NAME, StoreRef, profile_of, real, resolve_targets, root_of
from hermes_doctor.store.cells import Cell, Key
from hermes_doctor.store.opening import open_without_trace
from hermes_doctor.store.reader import Reader, Values, in_keys
from hermes_doctor.store.shape import Shape, read_shape
from hermes_doctor.store.view import StoreView

DEFAULT = "default"
ACTIVE_PROFILE = "active_profile"
_LONGEST_NAME = 4096

#: The first schema of a release that keeps each profile's chats in its own store (0.20.6).
PER_PROFILE = 26
#: So many of the newest sessions of each of two stores are looked for in the other one; with ``--deep`` all.
NEWEST = 500
#: So many other stores of a home are looked into.
MOST_STORES = 16
_AT_ONCE = 500
#: Seconds that a lock on another store is waited for.
_BUSY_SECONDS = 1.0


def owner(view: StoreView) -> str | None:
    """Return the profile that the store is of, None where it stands without its home."""
    return None if view.home is None else profile_of(view.home)


def profile_in_key(session_key: Cell) -> str | None:
    """Return the profile that a gateway's key names; None for any other key, and where no profile can be called so."""
    parts = session_key.split(":") if isinstance(session_key, str) else []
    if len(parts) < 3 or parts[0] != "agent":
        return None
    name = {"main": DEFAULT, "main~": "main"}.get(parts[1], parts[1])
    return name if PROFILE_NAME.fullmatch(name) else None


def label_of(profile_name: Cell) -> str | None:
    """Return the profile that a session is labelled for; None where it is not, which is normal."""
    name = profile_name.strip() if isinstance(profile_name, str) else ""
    return name if PROFILE_NAME.fullmatch(name) else None


def profiles(view: StoreView) -> frozenset[str]:
    """Return the profiles of the store's home, with a store or without; empty where it stands without its home."""
    if view.home is None:
        return frozenset()
    try:
        folders = list((root_of(view.home) / "profiles").iterdir())
    except OSError:
        folders = []
    return frozenset({DEFAULT, *(each.name for each in folders if PROFILE_NAME.fullmatch(each.name) and each.is_dir())})


def missing_active_profile(view: StoreView) -> str | None:
    """Return the name in the root's ``active_profile`` where there is no such profile; None for a profile's own home.

    Read as hermes reads it; what cannot be read counts as not there.
    """
    if view.home is None or owner(view) != DEFAULT:
        return None
    try:
        path = view.home / ACTIVE_PROFILE
        if not path.is_file() or path.stat().st_size > _LONGEST_NAME:
            return None
        name = path.read_text(encoding="utf-8-sig").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return None if not name or name in profiles(view) else name


class Shared(NamedTuple):
    """Sessions that another store of the home has, too. ``name``: its path, relative to this store's folder."""

    profile: str
    name: str
    sessions: tuple[Key, ...]
    sampled: bool


def shared_with_others(view: StoreView) -> Iterator[Shared]:
    """Give the other stores of the home that hold some of this store's sessions: of equal id and equal start.

    Ids that hermes does not draw by chance may be equal, and then begin at other times. A store that cannot be read
    now is left out.
    """
    if view.bundle is None or not view.shape.has("sessions", "id", "started_at"):
        return
    others = other_stores(view)[:MOST_STORES]
    own = _listed(view.reader, view.shape, deep=view.deep) if others else []
    for ref in others:
        with opened(ref) as other:
            if other is None or not other[1].has("sessions", "id", "started_at"):
                continue
            reader, shape = other
            try:
                found = dict.fromkeys(_held(reader, own))
                theirs = [] if view.deep else _listed(reader, shape, deep=False)
            except apsw.Error:
                # Whatever is wrong with it is no damage to this store.
                continue
        found |= dict.fromkeys(_held(view.reader, theirs))
        if found:
            name = Path(os.path.relpath(ref.path.absolute(), view.bundle.real_path.parent)).as_posix()
            yield Shared(ref.profile, name, tuple(found), sampled=not view.deep)


def _listed(reader: Reader, shape: Shape, *, deep: bool) -> list[Values]:
    """Return id and start of the newest sessions of a store, or of all."""
    table = shape.tables["sessions"]
    if deep:
        return list(reader.walk(table, ["id", "started_at"], "id IS NOT NULL"))
    if table.rowid is None:
        return []
    newest = f"SELECT id, started_at FROM sessions WHERE id IS NOT NULL ORDER BY {table.rowid} DESC LIMIT {NEWEST}"
    return list(reader.rows(newest))


def _held(reader: Reader, sessions: Sequence[Values]) -> Iterator[Key]:
    """Give those of the sessions, by id and start, that a store holds."""
    for begin in range(0, len(sessions), _AT_ONCE):
        some = sessions[begin : begin + _AT_ONCE]
        condition, cells = in_keys("id", [session for session, _started in some])
        found = set(reader.rows(f"SELECT id, started_at FROM sessions WHERE {condition}", cells))
        yield from (session for session, started in some if (session, started) in found)


def other_stores(view: StoreView) -> list[StoreRef]:
    """Return the other stores of the store's home, root and profiles; none where it stands without its home."""
    if view.home is None:
        return []
    here = real(view.home / STORE_NAME) if view.bundle is None else view.bundle.real_path
    return [ref for ref in resolve_targets([root_of(view.home)]) if real(ref.path) != here]


@contextmanager
def opened(ref: StoreRef) -> Iterator[tuple[Reader, Shape] | None]:
    """Open another store for reading, without a trace as always; None where that cannot be done now."""
    with ExitStack() as stack:
        other = None
        # RuntimeError: it is one with a store that is open here, by a second name.
        with suppress(StoreProblem, apsw.Error, OSError, RuntimeError):
            store = stack.enter_context(open_without_trace(ref.path, busy_seconds=_BUSY_SECONDS))
            shape = read_shape(store.connection)
            rests = store.holding.state != "no"
            other = Reader(store.connection, store.pace, encoding=shape.encoding, rests=rests), shape
        yield other


def suspects(view: StoreView, keys: Sequence[Key] | None = None) -> Iterator[Values]:
    """Give the sessions (of these ids, or all) whose key or label is not just this store's: id, key and label.

    One walk of the sessions, with nothing in hand of those that are fine. Only where the release keeps each profile's
    chats in its own store: up to 0.20.0 the root's gateway keeps those of all profiles in one.
    """
    shape = view.shape
    if not shape.has("sessions", "id", "session_key", "profile_name") or 0 < shape.version < PER_PROFILE:
        return
    own = owner(view) or DEFAULT
    # A gateway that serves a named profile alone writes the root's key.
    namespaces = dict.fromkeys(["main", {DEFAULT: "main", "main": "main~"}.get(own, own)])
    ours = " OR ".join(_begins("session_key", f"agent:{each}:") for each in namespaces)
    # Cheap comparisons first: most rows are this store's own.
    where = (
        f"(profile_name <> '{own}' AND trim(profile_name) NOT IN ('', '{own}'))"
        f" OR ({_begins('session_key', 'agent:')} AND NOT ({ours}))"
    )
    columns = ["id", "session_key", "profile_name"]
    if keys is None:
        rows = view.reader.walk(shape.tables["sessions"], columns, where)
    else:
        among, cells = in_keys("id", keys)
        rows = iter(view.rows(f"SELECT {', '.join(columns)} FROM sessions WHERE {among} AND ({where})", cells))
    yield from rows


def _begins(column: str, start: str) -> str:
    """Return SQL for a text that begins so; ``start`` ends in a colon. Numbers sort before all text, blobs behind."""
    return f"({column} >= '{start}' AND {column} < '{start[:-1]};')"
