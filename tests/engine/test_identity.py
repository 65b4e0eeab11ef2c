"""By what a store is known again, also where a mark of its own or the id of a chat is no text."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import apsw

from hermes_doctor.engine.identity import identify, is_the_same
from hermes_doctor.host.bundle import inspect
from hermes_doctor.store.shape import read_shape


def test_a_chat_whose_id_is_no_text_is_no_mark(tmp_path: Path) -> None:
    store = tmp_path / "state.db"
    with closing(apsw.Connection(str(store))) as connection:
        connection.execute("CREATE TABLE sessions (id TEXT PRIMARY KEY, started_at REAL)")
        connection.execute("CREATE TABLE messages (id INTEGER PRIMARY KEY, session_id TEXT)")
        for number, chat in enumerate((b"a", b"\xff", b"\xed\xa0\x80", "ä".encode())):
            connection.execute("INSERT INTO sessions VALUES (CAST(? AS TEXT), ?)", (chat, 1.5 + number))
            connection.execute("INSERT INTO messages(session_id) VALUES (CAST(? AS TEXT))", (chat,))
        connection.execute("CREATE INDEX by_session ON messages(session_id)")
    bundle = inspect(store)
    with closing(apsw.Connection(str(store))) as connection:
        shape = read_shape(connection)
        known = identify(connection, shape, bundle)
        assert known["chats"] == [["ä", 4.5], ["a", 1.5]]
        assert is_the_same(known, connection, shape, bundle)
        connection.execute("DELETE FROM sessions WHERE started_at IN (1.5, 4.5)")
        assert not is_the_same(known, connection, shape, bundle)


def test_a_mark_that_is_no_text_is_none(tmp_path: Path) -> None:
    store = tmp_path / "state.db"
    with closing(apsw.Connection(str(store))) as connection:
        connection.execute("CREATE TABLE state_meta (key TEXT PRIMARY KEY, value TEXT)")
        marks = {"store_instance_id": b"\xff", "db_file_generation": "ä".encode(), "other": b"\xff"}
        connection.executemany("INSERT INTO state_meta VALUES (?, CAST(? AS TEXT))", marks.items())
    bundle = inspect(store)
    with closing(apsw.Connection(str(store))) as connection:
        shape = read_shape(connection)
        known = identify(connection, shape, bundle)
        assert known == {"device": bundle.device, "inode": bundle.inode, "db_file_generation": "ä"}
        moved = {**known, "inode": None}
        assert is_the_same(moved, connection, shape, bundle)
        connection.execute("DELETE FROM state_meta WHERE key = 'db_file_generation'")
        assert not is_the_same(moved, connection, shape, bundle)
