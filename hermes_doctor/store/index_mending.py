"""Bringing a search index back in step with the messages: single entries, or all of it; and proof that it works.

Entries are put in and taken out with the statements that the layout's triggers have. An external index forgets an entry
only by the very text that it was given, so an entry of which that text is not known stays until the whole index is
rebuilt. Messages that a deferred rebuild of hermes's has not come to are left to it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import apsw

from hermes_doctor.host.locks import LockTakenError, upstream_rebuild_lock
from hermes_doctor.store.cells import quote
from hermes_doctor.store.index_drift import Comparison, comparison, drift_in
from hermes_doctor.store.index_faults import IndexFault
from hermes_doctor.store.index_probe import SearchFailedError, answers, fits, probe, texts_of
from hermes_doctor.store.index_state import IndexState, comparable, index_states, is_trigram
from hermes_doctor.store.nul_texts import NUL_REASON, cut_unknown
from hermes_doctor.store.search_index import Layout, inline_texts, stops_at_nul
from hermes_doctor.store.view import StoreView

_AT_ONCE = 500
_PROBE = "hermes doctor write probe"


class NotMendedError(Exception):
    """An index could not be brought in step, and why: one plain sentence."""


def mend_range(connection: apsw.Connection, view: StoreView, fault: IndexFault) -> None:
    """Bring the entries of a range of messages in step. Raises NotMendedError, with the transaction to be undone."""
    drift, state = fault.drift, fault.state
    assert drift is not None, "a fault of a range of messages tells of which"
    how = comparison(view.shape, state)
    with _damage_as_words():
        missing = how.missing.ids(view, drift.low, drift.high)
        waiting = cut_unknown(view, missing) if is_trigram(state) else set()
        missing = [key for key in missing if key not in waiting]
        surplus = how.surplus.ids(view, drift.low, drift.high)
        if how.other is not None:
            other = how.other.ids(view, drift.low, drift.high)
            _replace_inline(connection, view, state, sorted({*missing, *surplus, *other}))
        else:
            _take_out(connection, view, state, surplus)
            _put_in(connection, state, how, missing)
        left = drift_in(view, state, drift.low, drift.high)
        if replace(left, missing=left.missing - len(waiting)):
            raise NotMendedError("the index is not in step even so")
        for key in missing[-1:]:
            if answers(view, state, key) is False:
                raise NotMendedError("the index does not find what was put into it")
        prove_writing(connection, view)


def rebuild(connection: apsw.Connection, view: StoreView, state: IndexState) -> None:
    """Let FTS5 make an index anew from its texts, under hermes's own lock for that.

    Raises NotMendedError, with the transaction to be undone. An inline index is made anew from texts of its own: where
    these are not the messages', that shows afterwards, message by message.
    """
    if state.pending is not None:
        # Every message would be in the index then, and hermes would put the rest in a second time.
        raise NotMendedError("hermes is still rebuilding it")
    if view.bundle is None:
        raise NotMendedError("it is not known where the store's lock files are")
    try:
        with upstream_rebuild_lock(view.bundle.path), _damage_as_words():
            if is_trigram(state) and _is_cut_unknown(connection, view):
                raise NotMendedError(NUL_REASON)
            name, external = quote(state.name), int(state.layout is not Layout.INLINE)
            connection.execute(f"INSERT INTO {name}({name}) VALUES ('rebuild')")
            connection.execute(f"INSERT INTO {name}({name}, rank) VALUES ('integrity-check', ?)", (external,))
            sample = probe(view, state)
            if sample.lost:
                raise NotMendedError(f"{sample.lost} of {sample.asked} messages are not found even so")
            prove_writing(connection, view)
    except LockTakenError as taken:
        raise NotMendedError(f"{taken.holder} is rebuilding the index: wait until it is done") from taken
    except OSError as error:
        raise NotMendedError(f"hermes's lock for rebuilding it cannot be had ({error.strerror})") from error


def prove_writing(connection: apsw.Connection, view: StoreView) -> None:
    """Store a message, find it, change it and delete it, and take all of that back. Raises NotMendedError.

    Where a trigger needs a tokenizer that this machine lacks, no message can be stored from here, and nothing is done.
    """
    states = index_states(view).values()
    if any(state.lacks is not None and len(state.missing) < 3 for state in states):
        return
    if not (view.shape.has("messages", "timestamp") and view.shape.has("sessions", "started_at")):
        return
    connection.execute("SAVEPOINT write_probe")
    try:
        _store_and_delete(connection, view, [state for state in states if comparable(state)])
    except apsw.Error as error:
        raise NotMendedError(f"a message cannot be stored even so ({error})") from error
    finally:
        # A statement that fails in the middle of it may have ended it.
        with contextlib.suppress(apsw.SQLError):
            connection.execute("ROLLBACK TO write_probe")
            connection.execute("RELEASE write_probe")


def _is_cut_unknown(connection: apsw.Connection, view: StoreView) -> bool:
    """Whether a message's text holds a NUL, and nothing in the index that is there tells how it is cut."""
    if stops_at_nul(connection, view.shape) is not None:
        return False
    return connection.execute("SELECT 1 FROM messages WHERE instr(content, char(0)) LIMIT 1").fetchone() is not None


def _store_and_delete(connection: apsw.Connection, view: StoreView, states: Sequence[IndexState]) -> None:
    connection.execute("INSERT INTO sessions(id, source, started_at) VALUES (?, 'cli', ?)", (_PROBE, view.now))
    connection.execute(
        "INSERT INTO messages(session_id, role, content, timestamp) VALUES (?1, 'user', ?1, ?2)", (_PROBE, view.now)
    )
    # Triggers write to other tables, so that the last rowid need not be the message's.
    (key,) = connection.execute("SELECT id FROM messages WHERE session_id = ?", (_PROBE,)).fetchall()[0]
    for state in states:
        name = quote(state.name)
        found = f"SELECT 1 FROM {name} WHERE {name} MATCH ?1 AND rowid = ?2"
        if not connection.execute(found, (f'"{_PROBE}"', key)).fetchall():
            raise NotMendedError(f"a new message does not get into {state.name} even so")
    connection.execute("UPDATE messages SET content = 'something else' WHERE id = ?", (key,))
    connection.execute("DELETE FROM messages WHERE id = ?", (key,))
    for state in states:
        connection.execute(f"INSERT INTO {quote(state.name)}({quote(state.name)}) VALUES ('flush')")


def _replace_inline(connection: apsw.Connection, view: StoreView, state: IndexState, keys: Sequence[int]) -> None:
    """Take the entries out and put in those of the messages that there are, whole."""
    name, (whole, _short) = quote(state.name), inline_texts(view.shape)
    for some in _in_portions(keys):
        among = f"IN ({', '.join('?' for _ in some)})"
        connection.execute(f"DELETE FROM {name} WHERE rowid {among}", some)
        connection.execute(
            f"INSERT INTO {name}(rowid, content) SELECT m.id, {whole} FROM messages AS m WHERE m.id {among}", some
        )


def _take_out(connection: apsw.Connection, view: StoreView, state: IndexState, keys: Sequence[int]) -> None:
    """Take entries out by the texts of their messages, if it was these that were put in."""
    name, columns = quote(state.name), _columns(state)
    for key in keys:
        texts = texts_of(view, state, key, "messages")
        if texts is None or fits(view, state, key, texts, exactly=True) is not True:
            raise NotMendedError(
                "an entry that is to go holds another text than its message, or none that can be told:"
                " the whole index has to be rebuilt"
            )
        connection.execute(
            f"INSERT INTO {name}({name}, rowid, {columns}) SELECT 'delete', id, {columns} FROM messages WHERE id = ?",
            (key,),
        )


def _put_in(connection: apsw.Connection, state: IndexState, how: Comparison, keys: Sequence[int]) -> None:
    columns = _columns(state)
    for some in _in_portions(keys):
        connection.execute(
            f"INSERT INTO {quote(state.name)}(rowid, {columns}) SELECT id, {columns} FROM {quote(how.source)}"
            f" WHERE id IN ({', '.join('?' for _ in some)})",
            some,
        )


def _columns(state: IndexState) -> str:
    assert state.declared is not None, "the layout was read from what it declares"
    return ", ".join(quote(column) for column in state.declared.columns)


def _in_portions(keys: Sequence[int]) -> Iterator[Sequence[int]]:
    for start in range(0, len(keys), _AT_ONCE):
        yield keys[start : start + _AT_ONCE]


@contextmanager
def _damage_as_words() -> Iterator[None]:
    """Let what FTS5 finds wrong with its own tables be a reason; damage of the file itself stays what it is."""
    try:
        yield
    except (SearchFailedError, apsw.CorruptError) as raised:
        failed = raised if isinstance(raised, SearchFailedError) else SearchFailedError(raised)
        if failed.structural:
            raise failed.error from raised
        raise NotMendedError(f"the index does not answer even so ({failed})") from raised
