"""The rows around a row: which, in which order, and nothing of what anybody said."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from hermes_doctor.demo.home import make_demo_home
from hermes_doctor.store.around import Around, rows_around
from hermes_doctor.store.cells import BadText, Key
from hermes_doctor.store.reader import Pace, Reader
from hermes_doctor.store.shape import read_shape
from hermes_doctor.store.view import StoreView

PRIVATE = "hush-hush"


@pytest.fixture
def connection(tmp_path: Path) -> apsw.Connection:
    """A chat of twenty messages with a parent and two children, among others, and no rule that it keeps."""
    connection = apsw.Connection(str(make_demo_home(tmp_path / "home")))
    connection.execute("DELETE FROM messages")
    family = [("above", None), ("chat", "above"), ("below-1", "chat"), ("below-2", "chat"), ("apart", "above")]
    connection.executemany(
        "INSERT INTO sessions(id, parent_session_id, source, started_at, ended_at, end_reason, title, message_count)"
        f" VALUES (?, ?, 'telegram', 1790000000.0, 1790000060.0, 'compression', '{PRIVATE}', 20)",
        family,
    )
    connection.executemany(
        "INSERT INTO messages(id, session_id, role, content, timestamp, reasoning) VALUES (?, ?, ?, ?, ?, ?)",
        [
            (
                2 * n + other,
                ("chat", "apart")[other],
                ("user", "assistant")[n % 2],
                PRIVATE * n,
                1790000000.0 + n,
                PRIVATE,
            )
            for n in range(1, 21)
            for other in (0, 1)
        ],
    )
    return connection


def around(connection: apsw.Connection, table: str, key: Key, session: Key) -> Around:
    shape = read_shape(connection)
    view = StoreView(Reader(connection, Pace.FREE, encoding=shape.encoding), shape, time.time())
    found = rows_around(view, table, key, session)
    assert PRIVATE not in repr(found)
    return found


def ids(found: Around) -> Sequence[Key]:
    return [message.id for message in found.messages]


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (20, [12, 14, 16, 18, 20, 22, 24, 26, 28]),
        (4, [2, 4, 6, 8, 10, 12]),
        (40, [32, 34, 36, 38, 40]),
        (21, [14, 16, 18, 20, 22, 24, 26, 28, 30]),  # it is not of this chat, and may be gone
    ],
)
def test_the_messages_next_to_one_are_those_of_its_chat(
    connection: apsw.Connection, key: int, expected: list[int]
) -> None:
    with closing(connection):
        found = around(connection, "messages", key, "chat")
    assert (ids(found), found.count) == (expected, 20)
    assert [message.id for message in found.messages if message.here] == [key] * (key in expected)


def test_of_a_session_it_is_the_last_ones(connection: apsw.Connection) -> None:
    with closing(connection):
        found = around(connection, "sessions", "chat", "chat")
        assert ids(found) == [26, 28, 30, 32, 34, 36, 38, 40]
        assert not any(message.here for message in found.messages)
        places = [(session.id, session.place) for session in found.sessions]
        assert places == [
            ("above", "its parent"),
            ("chat", "this one"),
            ("below-1", "its child"),
            ("below-2", "its child"),
        ]
        own = found.sessions[1]
        assert (own.source, own.started_at, own.ended_at) == ("telegram", 1790000000.0, 1790000060.0)
        assert (own.end_reason, own.messages) == ("compression", 20)


def test_a_message_tells_its_size_and_its_marks(connection: apsw.Connection) -> None:
    with closing(connection):
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(
            "UPDATE sqlite_schema SET sql = replace(replace(sql, 'NOT NULL DEFAULT 1', ''), 'role TEXT NOT NULL',"
            " 'role TEXT') WHERE name = 'messages'"
        )
        connection.execute("PRAGMA writable_schema = RESET")
        connection.execute("UPDATE messages SET active = 0, compacted = 1, tool_calls = '[]' WHERE id = 20")
        connection.execute("UPDATE messages SET active = NULL, content = NULL, reasoning = NULL WHERE id = 22")
        connection.execute("UPDATE messages SET role = ?, timestamp = ? WHERE id = 24", (PRIVATE, PRIVATE))
        connection.execute("UPDATE messages SET content = 'ä' WHERE id = 26")
        found = around(connection, "messages", 22, "chat")
    told = {message.id: message for message in found.messages}
    assert (told[20].bytes, told[20].marks) == (90, ["not active", "compacted", "tool_calls", "reasoning"])
    assert (told[22].bytes, told[22].marks) == (None, ["active is NULL"])
    assert (told[24].role, told[24].at) == ("another role", None)
    assert told[26].bytes == 2
    assert told[18].marks == ["reasoning"]


def test_what_an_older_store_lacks_is_left_out() -> None:
    with closing(apsw.Connection(":memory:")) as connection:
        connection.execute("CREATE TABLE sessions (id TEXT PRIMARY KEY, source TEXT, started_at REAL)")
        connection.execute("CREATE TABLE messages (id INTEGER PRIMARY KEY, session_id TEXT, role TEXT)")
        connection.execute("INSERT INTO sessions VALUES ('s', 'cli', 5.0)")
        connection.execute("INSERT INTO messages VALUES (1, 's', 'user')")
        found = around(connection, "messages", 1, "s")
        assert [(session.id, session.end_reason, session.messages) for session in found.sessions] == [("s", None, None)]
        assert [(message.id, message.bytes, message.marks) for message in found.messages] == [(1, None, [])]
        connection.execute("DROP TABLE sessions")
        assert around(connection, "messages", 1, "s").sessions == []
        connection.execute("DROP TABLE messages")
        assert around(connection, "messages", 1, "s") == Around([], [], 0)


@pytest.mark.parametrize("session", [None, ("a", "b")])
def test_a_row_of_no_session_has_nothing_around_it(connection: apsw.Connection, session: Key) -> None:
    with closing(connection):
        assert around(connection, "(files)", "state.db.old", session) == Around((), (), 0)


def test_a_session_whose_id_is_no_text_is_found_by_its_bytes(connection: apsw.Connection) -> None:
    with closing(connection):
        connection.execute("UPDATE sessions SET id = CAST(x'ff' AS TEXT) WHERE id = 'below-1'")
        found = around(connection, "sessions", BadText(b"\xff"), BadText(b"\xff"))
    assert [session.place for session in found.sessions] == ["its parent", "this one"]
