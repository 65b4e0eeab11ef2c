"""Which pages are right: with a log or without it, with a journal or without it; and what is told of the choice."""

from __future__ import annotations

import random
import shutil
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from hermes_doctor.rescue.copying import proved_frames
from tests.rescue.lab import Row, account, ask, hermes, hold, pages_of, put, rescue, rows_of, run, size_of_page, zero

_HEADER, _FRAME_HEADER = 32, 24


def sidecar(store: Path, suffix: str) -> Path:
    return store.with_name(store.name + suffix)


def log_of(store: Path, *statements: str) -> Path:
    """Leaves what is written in a log beside the store, nothing of it in its file."""
    with closing(apsw.Connection(str(store))) as connection:
        connection.pragma("journal_mode", "wal")
        connection.wal_autocheckpoint(0)
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        for statement in statements:
            connection.execute(statement)
    sidecar(store, "-shm").unlink()
    return sidecar(store, "-wal")


SAY = "INSERT INTO messages(session_id, role, content, timestamp) VALUES ('s', 'user', '{}', 5)"


def seen(store: Path) -> dict[int, Row]:
    """The messages as SQLite has them, without leaving a trace."""
    copy = store.with_name("copy.db")
    for suffix in ("", "-wal", "-journal"):
        if sidecar(store, suffix).exists():
            shutil.copyfile(sidecar(store, suffix), sidecar(copy, suffix))
    rows = rows_of(copy, "messages")
    for suffix in ("", "-wal", "-shm", "-journal"):
        sidecar(copy, suffix).unlink(missing_ok=True)
    return rows


@pytest.mark.parametrize("size", [512, 4096, 65536])
@pytest.mark.parametrize("hit", [False, True])
def test_what_is_in_the_log_counts(store: Path, new: Path, size: int, hit: bool) -> None:
    hermes(store, messages=2000, page_size=size)
    leaf = pages_of(store, "messages", "leaf")[0]
    log_of(
        store, *(SAY.format(f"new {n}") for n in range(30)), "UPDATE messages SET content = 'changed' WHERE id = 1999"
    )
    before = seen(store)
    if hit:
        zero(store, leaf)
    result = rescue(store, new)
    assert result.notes == []
    assert result.exit_code == (1 if hit else 0)
    after = hold(before, result)
    assert {n for n in before if n > 1990} <= after.keys()


def test_a_page_is_read_from_the_log_where_the_file_has_lost_it(store: Path, new: Path) -> None:
    hermes(store, messages=2000)
    leaf = pages_of(store, "messages", "leaf")[-1]
    log_of(store, SAY.format("new"))
    before = seen(store)
    zero(store, leaf)
    assert rows_of_rescued(store, new) == before


def rows_of_rescued(store: Path, new: Path) -> dict[int, Row]:
    rescue(store, new)
    return dict(rows_of(new, "messages"))


def test_a_torn_last_frame_does_not_count(store: Path, new: Path) -> None:
    hermes(store)
    log = log_of(store, SAY.format("first"), SAY.format("second"))
    with log.open("r+b") as file:
        file.truncate(log.stat().st_size - 7)
    before = seen(store)
    assert len(before) == 4
    result = rescue(store, new)
    assert rows_of(new, "messages") == before
    assert result.exit_code == 0


def test_a_log_of_another_store_is_left_aside(store: Path, new: Path, tmp_path: Path) -> None:
    hermes(store, messages=3000)
    before = rows_of(store, "messages")
    other = hermes(
        tmp_path / "other.db", "CREATE TABLE first_of_all(a)", "CREATE INDEX x ON messages(role)", messages=900
    )
    log = log_of(other, "UPDATE messages SET content = 'of another store'", SAY.format("of another store"))
    run(store, "PRAGMA journal_mode = wal")
    shutil.copyfile(log, sidecar(store, "-wal"))
    result = rescue(store, new)
    assert rows_of(new, "messages") == before
    assert any("not of this file" in note for note in result.notes)
    assert result.exit_code == 1


@pytest.mark.parametrize("encoding", ["UTF-16le", "UTF-16be"])
def test_the_logs_own_first_page_says_how_texts_are_kept(store: Path, new: Path, encoding: str) -> None:
    hermes(store, messages=300, encoding=encoding)
    # A change of the schema writes the first page anew.
    log_of(store, "CREATE TABLE another(a)")
    before = seen(store)
    zero(store, 1)
    after = hold(before, rescue(store, new))
    assert after == before


def test_a_log_beside_a_lost_first_page_counts_as_far_as_its_sums_hold(store: Path, new: Path) -> None:
    hermes(store, messages=1000)
    log = log_of(store, *(SAY.format(f"new {n}") for n in range(10)))
    size = size_of_page(store)
    whole = proved_frames(log, size)
    assert whole == (log.stat().st_size - _HEADER) // (_FRAME_HEADER + size)
    broken = whole // 2
    with log.open("r+b") as file:
        # The number of a page is far beyond all there are.
        file.seek(_HEADER + broken * (_FRAME_HEADER + size))
        file.write(b"\xff\xff\xff\x01")
    assert proved_frames(log, size) == broken
    zero(store, 1)
    # All of the schema is lost, and these are no tables that a release makes.
    assert rescue(store, new).exit_code == 4


def test_a_frame_whose_page_has_no_such_number(store: Path, new: Path) -> None:
    hermes(store, messages=1000)
    log = log_of(store, *(SAY.format(f"new {n}") for n in range(10)))
    before = seen(store)
    size = size_of_page(store)
    with log.open("r+b") as file:
        # The number of a page is far beyond all there are.
        file.seek(_HEADER + 10 * (_FRAME_HEADER + size))
        file.write(b"\xff\xff\xff\x01")
    result = rescue(store, new)
    assert len(rows_of(new, "messages")) > 1000
    hold(before, result)


@pytest.mark.parametrize("seed", range(6))
def test_frames_are_proved_as_sqlite_does(store: Path, seed: int) -> None:
    hermes(store, messages=100)
    log = log_of(store, *(SAY.format(f"new {n}") for n in range(10)))
    size = size_of_page(store)
    frames = (log.stat().st_size - _HEADER) // (_FRAME_HEADER + size)
    chance = random.Random(seed)
    frame = chance.randrange(frames)
    at = _HEADER + frame * (_FRAME_HEADER + size) + chance.randrange(_FRAME_HEADER + size)
    data = bytearray(log.read_bytes())
    data[at] ^= 1 << chance.randrange(8)
    log.write_bytes(bytes(data))
    assert proved_frames(log, size) == frame
    log.write_bytes(b"\0" + bytes(data[1:]))
    assert proved_frames(log, size) == 0


def hot(store: Path, *statements: str) -> None:
    """Leaves a transaction half done: a part of it in the file, and what was there before in the journal."""
    with closing(apsw.Connection(str(store))) as connection:
        connection.execute("PRAGMA cache_size = 1")
        connection.execute("BEGIN IMMEDIATE")
        for statement in statements:
            connection.execute(statement)
        for suffix in ("", "-journal"):
            shutil.copyfile(sidecar(store, suffix), sidecar(store, suffix + ".aside"))
        connection.execute("ROLLBACK")
    for suffix in ("", "-journal"):
        sidecar(store, suffix + ".aside").replace(sidecar(store, suffix))


@pytest.mark.parametrize("hit", [False, True])
def test_what_was_half_done_is_undone(store: Path, new: Path, hit: bool) -> None:
    hermes(store, messages=3000)
    before = rows_of(store, "messages")
    leaf = pages_of(store, "messages", "leaf")[20]
    hot(store, "UPDATE messages SET content = 'half done' WHERE id > 1500")
    if hit:
        zero(store, leaf)
    result = rescue(store, new)
    after = hold(before, result)
    assert after == before if not hit else len(before) > len(after) > 2000


def test_a_journal_of_another_store_is_left_aside(store: Path, new: Path, tmp_path: Path) -> None:
    hermes(store, messages=3000)
    before = rows_of(store, "messages")
    other = hermes(tmp_path / "other.db", "CREATE TABLE first_of_all(a)", messages=900, length=90)
    hot(other, "UPDATE messages SET content = 'half done'")
    shutil.copyfile(sidecar(other, "-journal"), sidecar(store, "-journal"))
    result = rescue(store, new)
    assert rows_of(new, "messages") == before
    assert any("journal beside the store does not fit" in note for note in result.notes)


@pytest.mark.parametrize("suffix", ["-wal", "-journal"])
@pytest.mark.parametrize("data", [b"", b"\0", b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7", b"nonsense" * 999, bytes(9999)])
def test_sidecars_that_are_nothing(store: Path, new: Path, suffix: str, data: bytes) -> None:
    hermes(store, messages=300)
    before = rows_of(store, "messages")
    sidecar(store, suffix).write_bytes(data)
    rescue(store, new)
    assert rows_of(new, "messages") == before


@pytest.mark.parametrize("size", [512, 1024, 4096, 65536])
def test_the_size_of_a_page_is_told_by_the_pages(store: Path, new: Path, size: int) -> None:
    hermes(store, messages=3000, page_size=size)
    before = rows_of(store, "messages")
    put(store, 1, bytes(100))
    result = rescue(store, new)
    after = hold(before, result)
    assert after == before
    assert ask(new, "PRAGMA page_size") == [(size,)]
    assert account(result, "messages").rows == 3000
