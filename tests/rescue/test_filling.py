"""Rows that are cut: what is left of them is saved where it says what the row was, and nothing is made up."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from hermes_doctor.rescue.filling import MARK, belongs, completed
from hermes_doctor.rescue.forms import read_form
from hermes_doctor.rescue.records import Record, layout_of, read_record
from hermes_doctor.store.cells import Cell
from tests.rescue.lab import account, ask, hermes, hold, pages_of, rescue, rows_of, run, zero

MESSAGES = (
    "CREATE TABLE messages (id INTEGER PRIMARY KEY, session_id TEXT NOT NULL, role TEXT NOT NULL, content TEXT,"
    " timestamp REAL NOT NULL, active INTEGER NOT NULL DEFAULT 1)"
)
SESSIONS = "CREATE TABLE sessions (id TEXT PRIMARY KEY, source TEXT NOT NULL, title TEXT, started_at REAL NOT NULL)"


@pytest.fixture
def connection() -> apsw.Connection:
    connection = apsw.Connection(":memory:")
    connection.execute(f"{MESSAGES}; {SESSIONS}; CREATE TABLE other(a, b)")
    return connection


def cut(held: int, *values: str | None) -> Record:
    """A record of texts, behind a rowid, of which so many bytes of values are there."""
    texts = [None if value is None else value.encode() for value in values]
    kinds = bytes([0, *(0 if text is None else 13 + 2 * len(text) for text in texts), 7, 9])
    header = bytes([len(kinds) + 1]) + kinds
    payload = header + b"".join(text or b"" for text in texts)
    layout = layout_of(payload)
    assert layout is not None
    record = read_record(payload[: len(header) + held], layout, "UTF-8")
    assert record.is_cut
    return record


def left(connection: apsw.Connection, record: Record, table: str = "messages") -> dict[str, Cell] | None:
    return completed(connection, read_form(connection, table), 5, record)


def test_the_beginning_of_a_text_says_that_it_is_only_that(connection: apsw.Connection) -> None:
    connection.execute("INSERT INTO messages VALUES (4, 's', 'user', 'x', 40.5, 1), (6, 's', 'user', 'x', 60.5, 1)")
    values = left(connection, cut(9, "s", "user", "the whole text"))
    assert values == {"id": None, "session_id": "s", "role": "user", "content": "the " + MARK, "timestamp": 40.5}


@pytest.mark.parametrize(
    ("content", "held", "kept"),
    [
        ("said\0\x07\0\0 and more", 14, "said"),
        ("\0json:[1, 2]\0\0 and more", 20, "\0json:[1, 2]"),
        ("\0\0\0\0 and more", 9, "\0"),
    ],
)
def test_what_follows_a_nul_is_no_text_of_the_message(
    connection: apsw.Connection, content: str, held: int, kept: str
) -> None:
    connection.execute("INSERT INTO messages VALUES (4, 's', 'user', 'x', 40.5, 1)")
    values = left(connection, cut(held, "s", "user", content))
    assert values is not None
    assert values["content"] == kept + MARK


def test_the_time_is_that_of_a_message_nearby(connection: apsw.Connection) -> None:
    record = cut(9, "s", "user", "the whole text")
    assert left(connection, record) is None, "there is none"
    times = [("(9, 'other', 'user', 'x', 90.5, 1)", 90.5), ("(3, 'other', 'user', 'x', 30.5, 1)", 30.5)]
    times += [("(8, 's', 'user', 'x', 80.5, 1)", 80.5), ("(2, 's', 'user', 'x', 20.5, 1)", 20.5)]
    for row, expected in times:
        connection.execute(f"INSERT INTO messages VALUES {row}")
        values = left(connection, record)
        assert values is not None
        assert values["timestamp"] == expected


@pytest.mark.parametrize("held", [0, 1, 3])
def test_where_it_is_not_clear_what_it_was_nothing_is_saved(connection: apsw.Connection, held: int) -> None:
    connection.execute("INSERT INTO messages VALUES (4, 's', 'user', 'before', 40.5, 1)")
    assert left(connection, cut(held, "s", "user", "text")) is None
    assert left(connection, cut(5, None, "user", "text")) is None


def test_a_session_begins_with_its_first_message(connection: apsw.Connection) -> None:
    header = bytes([5, 13 + 2, 13 + 6, 13 + 20, 7])
    layout = layout_of(header + bytes(40))
    assert layout is not None
    record = read_record(header + b"scli" + b"tit", layout, "UTF-8")
    assert left(connection, record, "sessions") is None
    connection.execute("INSERT INTO messages VALUES (4, 's', 'user', 'x', 40.5, 1), (6, 's', 'user', 'x', 30.5, 1)")
    # The beginning of a title is no title.
    assert left(connection, record, "sessions") == {"id": "s", "source": "cli", "started_at": 30.5}


def test_of_other_tables_no_row_is_saved_that_is_cut(connection: apsw.Connection) -> None:
    layout = layout_of(bytes([3, 15, 33]) + bytes(20))
    assert layout is not None
    assert left(connection, read_record(bytes([3, 15, 33]) + b"abc", layout, "UTF-8"), "other") is None


@pytest.mark.parametrize("encoding", ["UTF-8", "UTF-16le"])
def test_long_messages_that_lost_a_page(store: Path, new: Path, encoding: str) -> None:
    hermes(store, "CREATE TABLE t(a)", "INSERT INTO t VALUES (hex(zeroblob(9000)))", encoding=encoding, messages=40)
    run(store, "UPDATE messages SET content = id || ' ä€😀' || hex(zeroblob(9000)) WHERE id IN (7, 11)")
    before = {table: rows_of(store, table) for table in ("messages", "t")}
    zero(store, pages_of(store, "messages", "overflow")[0], pages_of(store, "t", "overflow")[1])
    result = rescue(store, new)
    for table in before:
        hold(before[table], result, table)
    told = account(result, "messages")
    assert (told.cut, told.rows, told.cut_rows) == (1, 40, [(7, 7)])
    [(content,)] = ask(new, "SELECT content FROM messages WHERE id = 7")
    assert content.startswith("7 ä€😀0000")
    assert content.endswith(MARK)
    [(text, time)] = ask(new, "SELECT content, timestamp FROM messages WHERE id = 11")
    assert (len(text), time) == (18_000 + 6, 1011.0)
    assert rows_of(new, "t") == {}
    assert [(each.low, each.high) for each in account(result, "t").lost] == [(1, 1)]


@pytest.mark.parametrize(
    ("session", "role", "clear", "clear_if_torn"),
    [
        (b"s", b"user", True, True),
        (b"s\xff", b"user", True, False),
        (b"s\0\0", b"user", False, False),
        (b"s", b"\0\0\0\0", False, False),
    ],
)
def test_a_row_belongs_where_its_session_and_role_are_texts(
    connection: apsw.Connection, session: bytes, role: bytes, clear: bool, clear_if_torn: bool
) -> None:
    header = bytes([6, 0, 13 + 2 * len(session), 13 + 2 * len(role), 0, 9])
    payload = header + session + role
    layout = layout_of(payload)
    assert layout is not None
    record = read_record(payload, layout, "UTF-8")
    assert not record.is_cut
    form = read_form(connection, "messages")
    assert (belongs(form, record, torn=False), belongs(form, record, torn=True)) == (clear, clear_if_torn)
    # Of other tables nothing is known.
    assert belongs(read_form(connection, "other"), record, torn=True)
