"""What hermes wrote to its log behind a frame that is broken, where SQLite does not go."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import apsw
import pytest

from hermes_doctor.rescue.account import Source
from tests.rescue.lab import account, hermes, rescue, rows_of

_FRAME = 24 + 4096


def _write(connection: apsw.Connection, count: int) -> None:
    for _ in range(count):
        connection.execute(
            "INSERT INTO messages(session_id, role, content, timestamp) VALUES ('s', 'user', 'new', 2.5)"
        )


def _leave_log(store: Path, *, written: int, crash: bool = False) -> tuple[bytes, int]:
    """Leaves a log of several transactions; returns its bytes, and how many frames it had after half of them."""
    log = store.with_name("state.db-wal")
    with closing(apsw.Connection(str(store))) as connection:
        connection.pragma("journal_mode", "wal")
        connection.wal_autocheckpoint(0)
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        _write(connection, written // 2)
        half = (log.stat().st_size - 32) // _FRAME
        _write(connection, written - written // 2)
        if crash:
            # Larger than what SQLite keeps in memory: a part of it is in the log before its end.
            connection.execute("PRAGMA cache_size = 1")
            connection.execute("BEGIN")
            for _ in range(200):
                connection.execute(
                    "INSERT INTO messages(session_id, role, content, timestamp) VALUES ('s', 'user', ?, 3)",
                    ("x" * 3000,),
                )
            data = log.read_bytes()
            connection.execute("ROLLBACK")
            return data, half
    return log.read_bytes(), half


def _break(store: Path, data: bytes, frame: int) -> None:
    log = store.with_name("state.db-wal")
    log.write_bytes(data[: 32 + frame * _FRAME + 100] + b"\xff" + data[32 + frame * _FRAME + 101 :])
    store.with_name("state.db-shm").unlink(missing_ok=True)


def test_new_rows_behind_a_broken_frame_are_saved_and_named(store: Path, new: Path) -> None:
    hermes(store, messages=40, length=200)
    data, half = _leave_log(store, written=20)
    before = rows_of(store, "messages")
    assert len(before) == 60
    _break(store, data, half)
    result = rescue(store, new)
    after = rows_of(new, "messages")
    assert after == before
    messages = account(result, "messages")
    assert messages.saved[Source.IN_PLACE] == 50
    named = {number for low, high in messages.doubtful for number in range(low, high + 1)}
    assert named == set(range(51, 61))
    assert result.exit_code == 1
    assert any("broken in its midst" in note for note in result.notes)


@pytest.mark.parametrize("crash", [False, True])
def test_what_was_never_committed_stays_out(store: Path, new: Path, crash: bool) -> None:
    hermes(store, messages=40, length=200)
    data, _half = _leave_log(store, written=20, crash=crash)
    store.with_name("state.db-wal").write_bytes(data)
    store.with_name("state.db-shm").unlink(missing_ok=True)
    result = rescue(store, new)
    assert set(rows_of(new, "messages")) == set(range(1, 61))
    assert (result.exit_code, result.notes) == (0, [])


def test_rows_that_were_deleted_before_do_not_come_back(store: Path, new: Path) -> None:
    hermes(store, "DELETE FROM messages WHERE id > 30", messages=40, length=200)
    data, half = _leave_log(store, written=20)
    _break(store, data, half)
    rescue(store, new)
    assert not set(rows_of(new, "messages")) & set(range(31, 41))
