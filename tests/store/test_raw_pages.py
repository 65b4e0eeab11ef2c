"""Raw pages: those of one moment, whoever writes, carries over or begins the log anew meanwhile."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import pytest

from hermes_doctor.host.wal_files import read_log
from hermes_doctor.store.raw_pages import Doubt, RawPages, runs_of
from hermes_doctor.store.reader import Pace, Reader
from tests.store.writing import make_store, writing


@contextmanager
def reading(path: Path, pace: Pace = Pace.SNAPSHOT, options: str = "mode=ro&readonly_shm=1") -> Iterator[Reader]:
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    connection = apsw.Connection(f"{path.as_uri()}?{options}", flags=flags)
    connection.set_busy_timeout(5000)
    try:
        yield Reader(connection, pace, rests=False)
    finally:
        connection.close()


def as_sqlite_sees_them(reader: Reader, folder: Path) -> bytes:
    """All pages but the first, by SQLite's own copying of the moment that is read."""
    copy = folder / "copy.db"
    copy.unlink(missing_ok=True)
    target = apsw.Connection(str(copy))
    with target.backup("main", reader.connection, "main") as backup:
        backup.step(-1)
    size = int(str(target.pragma("page_size")))
    target.close()
    return copy.read_bytes()[size:]


def as_read_raw(pages: RawPages) -> bytes:
    """The same: one half page by page, the other at once."""
    pieces = [pages.page(number) for number in range(2, pages.count // 2)]
    pages.feed((pages.count // 2, pages.count - pages.count // 2 + 1), pieces.append)
    return b"".join(pieces)


def moments(path: Path, folder: Path, seconds: float, at_least: int) -> dict[str, int]:
    """Look at moments of a store that is written to; says how many were of which kind.

    For so long, and until there were so many that others wrote in, or a minute has passed.
    """
    seen = {"waiting": 0, "carried over": 0, "overtaken": 0}
    began = time.monotonic()
    with reading(path) as reader:
        while (took := time.monotonic() - began) < seconds or (took < 60 and seen["overtaken"] < at_least):
            with RawPages(reader) as pages:
                everything = (2, pages.count - 1)
                seen["carried over" if pages.is_in_file(everything) else "waiting"] += 1
                first, before = as_read_raw(pages), read_log(path)
                time.sleep(0.01)
                second, after = as_read_raw(pages), read_log(path)
                seen["overtaken"] += before is not None and after is not None and before.index != after.index
                assert first == second == as_sqlite_sees_them(reader, folder)
    return seen


def test_a_moment_stands_while_others_write_and_carry_over(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    keeper = make_store(path, "wal")
    with writing(path, "wal"):
        seen = moments(path, tmp_path, seconds=1.5, at_least=5)
    keeper.close()
    assert seen["waiting"], seen
    assert seen["overtaken"] >= 5, seen


def test_a_log_that_is_begun_anew_does_not_show(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    writer = make_store(path, "wal")
    writer.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
    with reading(path) as reader, RawPages(reader) as pages:
        assert pages.is_in_file((2, pages.count - 1))
        wanted = as_read_raw(pages)
        writer.execute("UPDATE t SET b = randomblob(length(b))")
        log = read_log(path)
        assert log is not None
        # Begun anew: it has other frames by now, and none of them can be carried over.
        writer.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        assert log.index.carried == 0
        assert as_read_raw(pages) == wanted == as_sqlite_sees_them(reader, tmp_path)
    with reading(path) as reader, RawPages(reader) as pages:
        assert as_read_raw(pages) != wanted
    writer.close()


def test_what_waits_in_the_log_is_read_from_there(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    writer = make_store(path, "wal")
    writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    writer.execute("UPDATE t SET b = randomblob(length(b)) WHERE id > 150")
    writer.execute("UPDATE t SET b = randomblob(length(b)) WHERE id > 180")
    with reading(path) as reader, RawPages(reader) as pages:
        assert not pages.is_in_file((2, pages.count - 1))
        wanted = as_read_raw(pages)
        writer.execute("UPDATE t SET b = randomblob(length(b))")
        writer.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        log = read_log(path)
        assert log is not None
        # Our frames are in the file by now, the later ones are not.
        assert 0 < log.index.carried < log.index.frames
        assert as_read_raw(pages) == wanted == as_sqlite_sees_them(reader, tmp_path)
    writer.close()


def test_a_private_copy_is_read_with_its_log(tmp_path: Path) -> None:
    path, copy = tmp_path / "store.db", tmp_path / "copy" / "store.db"
    writer = make_store(path, "wal")
    copy.parent.mkdir()
    for suffix in ("", "-wal"):
        shutil.copyfile(f"{path}{suffix}", f"{copy}{suffix}")
    connection = apsw.Connection(str(copy))
    reader = Reader(connection, Pace.FREE)
    reader.value("SELECT count(*) FROM t")
    with RawPages(reader) as pages:
        assert not pages.is_in_file((2, pages.count - 1))
        assert as_read_raw(pages) == as_sqlite_sees_them(reader, tmp_path)
    connection.close()
    writer.close()


def test_a_file_that_nobody_writes_to_needs_no_log(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    make_store(path, "wal").close()
    with reading(path, Pace.FREE, "mode=ro&immutable=1") as reader, RawPages(reader) as pages:
        assert as_read_raw(pages) == as_sqlite_sees_them(reader, tmp_path)


def test_a_slice_that_somebody_wrote_after_ends_the_moment(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    writer = make_store(path, "delete")
    with reading(path, Pace.SLICED) as reader, RawPages(reader) as pages:
        wanted = as_read_raw(pages)
        pages.refresh()
        assert as_read_raw(pages) == wanted
        pages._slice.close()
        writer.execute("DELETE FROM t WHERE id = 5")
        with pytest.raises(Doubt, match="somebody writes"):
            pages.refresh()
    writer.set_busy_timeout(0)
    with reading(path, Pace.SLICED) as reader, RawPages(reader) as pages:
        with pytest.raises(apsw.BusyError):
            writer.execute("DELETE FROM t WHERE id = 6")
        pages.close()
        writer.execute("DELETE FROM t WHERE id = 6")
    writer.close()


def doubt(path: Path, pace: Pace = Pace.SNAPSHOT) -> str:
    with reading(path, pace) as reader, pytest.raises(Doubt) as raised:
        RawPages(reader)
    return str(raised.value)


def test_a_log_that_nobody_has_open_is_a_doubt_unless_it_is_empty(tmp_path: Path) -> None:
    path, copy = tmp_path / "store.db", tmp_path / "copy" / "store.db"
    writer = make_store(path, "wal")
    copy.parent.mkdir()
    for suffix in ("", "-wal", "-shm"):
        shutil.copyfile(f"{path}{suffix}", f"{copy}{suffix}")
    assert doubt(copy) == "nobody has its log open"
    writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    for suffix in ("", "-wal", "-shm"):
        shutil.copyfile(f"{path}{suffix}", f"{copy}{suffix}")
    with reading(copy) as reader, RawPages(reader) as pages:
        assert as_read_raw(pages) == as_sqlite_sees_them(reader, tmp_path)
    writer.close()


def test_a_log_that_was_cut_off_is_a_doubt(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    writer = make_store(path, "wal")
    log = path.with_name("store.db-wal")
    with log.open("r+b") as file:
        file.truncate(log.stat().st_size - 5000)
    assert doubt(path) == "its log is cut short"
    writer.close()


def test_another_index_beside_the_store_is_a_doubt(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    writer = make_store(path, "wal")
    index = path.with_name("store.db-shm")
    copy = path.with_name("copy")
    shutil.copyfile(index, copy)
    copy.replace(index)
    with reading(path) as reader, pytest.raises(Doubt, match="nobody has its log open"):
        RawPages(reader)
    writer.close()


def test_a_store_that_is_being_read_is_a_doubt(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    writer = make_store(path, "wal")
    with reading(path) as reader, reader.pinned():
        reader.value("SELECT count(*) FROM t")
        with pytest.raises(Doubt, match="being read already"):
            RawPages(reader)
    writer.close()


def test_pages_that_cannot_be_are_told(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    make_store(path, "delete").close()
    with reading(path, Pace.SLICED) as reader, RawPages(reader) as pages:
        assert [pages.has(number) for number in (0, 1, 2, pages.count, pages.count + 1)] == [0, 0, 1, 1, 0]
        pages.count = 1 << 21
        assert [number for number in range(2, 1 << 21) if not pages.has(number)] == [(1 << 20) + 1]
        with pytest.raises(Doubt, match="ends before"):
            pages.page(1 << 20)


def test_runs() -> None:
    assert list(runs_of([])) == []
    assert list(runs_of([7])) == [(7, 1)]
    assert list(runs_of([2, 3, 4, 6, 8, 9])) == [(2, 3), (6, 1), (8, 2)]
