"""What is wrong with a file before SQLite sees it: one clear line each, and nothing is touched."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from hermes_doctor.host.bundle import Condition, StoreProblem, copy_file, inspect
from tests.host.evidence import no_trace_in

PAGE = 4096


def database(path: Path, *, pages: int = 8, wal: bool = False, page_size: int = PAGE) -> None:
    """A database of some pages; nobody has it open."""
    connection = apsw.Connection(str(path))
    connection.pragma("page_size", page_size)
    connection.pragma("journal_mode", "wal" if wal else "delete")
    connection.execute("CREATE TABLE t(x)")
    connection.execute("INSERT INTO t VALUES (zeroblob(?))", (page_size * (pages - 2),))
    connection.close()


def write(data: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(data)


def cut(left: int) -> Callable[[Path], object]:
    def make(path: Path) -> None:
        database(path)
        os.truncate(path, left)

    return make


def cut_in_wal_mode(path: Path) -> None:
    database(path, wal=True)
    os.truncate(path, PAGE * 3)


def gone_but_for_its_log(path: Path) -> None:
    path.with_name(path.name + "-wal").write_bytes(b"x" * 4152)


def link_to_itself(path: Path) -> None:
    path.symlink_to(path)


def overwritten(path: Path) -> None:
    database(path)
    with path.open("r+b") as file:
        file.write(b"\xde\xad\xbe\xef" * 25)


def odd_page_size(path: Path) -> None:
    database(path)
    with path.open("r+b") as file:
        file.seek(16)
        file.write(b"\x12\x34")


def header_zeroed(path: Path) -> None:
    database(path)
    with path.open("r+b") as file:
        file.write(bytes(100))


BAD: dict[str, tuple[Callable[[Path], object], Condition, str]] = {
    "missing": (lambda path: None, Condition.MISSING, "there is no"),
    "gone-but-for-its-log": (gone_but_for_its_log, Condition.DAMAGED, "-wal is still there with 4,152 bytes"),
    "dangling-link": (lambda path: path.symlink_to("nowhere"), Condition.MISSING, "there is no"),
    "link-to-itself": (link_to_itself, Condition.UNREADABLE, "leads to itself"),
    "folder": (lambda path: path.mkdir(), Condition.UNREADABLE, "is a folder"),
    "pipe": (os.mkfifo, Condition.UNREADABLE, "is not a file"),
    "zero-bytes": (write(b""), Condition.DAMAGED, "no bytes"),
    "all-zeros": (write(bytes(3 * PAGE)), Condition.DAMAGED, "nothing but zeros (12,288 bytes)"),
    "few-zeros": (write(bytes(7)), Condition.DAMAGED, "nothing but zeros (7 bytes)"),
    "header-zeroed": (header_zeroed, Condition.DAMAGED, "begins with zeros"),
    "text": (write(b"dear diary\n" * 100), Condition.DAMAGED, "does not begin like a SQLite database"),
    "overwritten": (overwritten, Condition.DAMAGED, "does not begin like a SQLite database"),
    "page-size": (odd_page_size, Condition.DAMAGED, "4660"),
    "cut-to-a-page": (cut(PAGE), Condition.DAMAGED, "is truncated"),
    "cut-inside-a-page": (cut(PAGE * 7 + 100), Condition.DAMAGED, "is truncated"),
    "cut-inside-the-first-page": (cut(300), Condition.DAMAGED, "is truncated"),
    "cut-inside-the-header": (cut(50), Condition.DAMAGED, "does not begin like a SQLite database"),
    "cut-in-wal-mode": (cut_in_wal_mode, Condition.DAMAGED, "is truncated"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_each_is_one_clear_line_and_a_next_step(tmp_path: Path, case: str) -> None:
    make, condition, said = BAD[case]
    path = tmp_path / "state.db"
    make(path)
    if case == "pipe":
        with pytest.raises(StoreProblem) as caught:
            inspect(path)
    else:
        with no_trace_in(tmp_path), pytest.raises(StoreProblem) as caught:
            inspect(path)
    assert caught.value.condition is condition
    assert said in caught.value.reason
    assert str(path) in caught.value.reason
    assert "\n" not in caught.value.reason
    if condition in (Condition.DAMAGED, Condition.MISSING):
        assert caught.value.next_step


def test_a_wiped_store_is_never_called_new(tmp_path: Path) -> None:
    for data in (b"", bytes(PAGE)):
        path = tmp_path / "state.db"
        path.write_bytes(data)
        with pytest.raises(StoreProblem) as caught:
            inspect(path)
        assert "new" not in caught.value.reason
        assert "do not start hermes" in (caught.value.next_step or "")


def test_where_something_is_left_of_a_wiped_store_it_can_be_rescued(tmp_path: Path) -> None:
    path, rescue = tmp_path / "state.db", f"doctor rescue {tmp_path / 'state.db'} "
    for data, log, left in ((b"", b"", False), (b"", b"a log", True), (bytes(PAGE), b"", False), (None, b"", True)):
        header_zeroed(path) if data is None else path.write_bytes(data)
        Path(f"{path}-wal").write_bytes(log)
        with pytest.raises(StoreProblem) as caught:
            inspect(path)
        step = caught.value.next_step or ""
        assert step.index("look for a copy") > 0
        assert (rescue in step) == left
        path.unlink()


@pytest.mark.parametrize("data", [b"dear diary\n" * 100, b"\x7fELF" + bytes(200)])
def test_another_file_is_not_hermes(tmp_path: Path, data: bytes) -> None:
    """Under a name of its own it is somebody's file, not a damaged store."""
    path = tmp_path / "notes.txt"
    path.write_bytes(data)
    with pytest.raises(StoreProblem) as caught:
        inspect(path)
    assert caught.value.condition is Condition.NOT_HERMES


def test_below_a_file_there_is_nothing(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    path.touch()
    for odd in (path / "state.db", tmp_path / "a\x00b"):
        with pytest.raises(StoreProblem) as caught:
            inspect(odd)
        assert caught.value.condition is Condition.MISSING
        assert "\x00" not in caught.value.reason


def test_a_name_too_long(tmp_path: Path) -> None:
    with pytest.raises(StoreProblem) as caught:
        inspect(tmp_path / ("x" * 5000))
    assert caught.value.condition is Condition.UNREADABLE


@pytest.mark.parametrize("page_size", [512, 4096, 65536])
@pytest.mark.parametrize("wal", [False, True])
def test_a_good_one(tmp_path: Path, page_size: int, wal: bool) -> None:
    path = tmp_path / "state.db"
    database(path, page_size=page_size, wal=wal)
    with no_trace_in(tmp_path):
        bundle = inspect(path)
    assert bundle.page_size == page_size
    assert bundle.journal_mode == ("wal" if wal else "rollback")
    assert bundle.size == path.stat().st_size
    assert (bundle.wal_bytes, bundle.shm, bundle.journal_bytes, bundle.journal_hot) == (None, False, None, False)


def test_bytes_behind_the_last_page_are_no_damage(tmp_path: Path) -> None:
    """A crash while the file grew leaves them; SQLite does not look at them."""
    path = tmp_path / "state.db"
    database(path)
    with path.open("ab") as file:
        file.write(b"left over")
    assert inspect(path).size == PAGE * 8 + 9


def test_a_file_shorter_than_its_header_says_is_sqlites_to_judge_while_a_log_is_there(tmp_path: Path) -> None:
    """A checkpoint that was stopped half-way leaves the first page ahead of the others: the log has the rest."""
    path = tmp_path / "state.db"
    cut_in_wal_mode(path)
    path.with_name("state.db-wal").write_bytes(b"x" * 4152)
    bundle = inspect(path)
    assert (bundle.wal_bytes, bundle.size) == (4152, PAGE * 3)


def folder(path: Path) -> None:
    path.mkdir()


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.timeout(20)
@pytest.mark.parametrize("make", [os.mkfifo, folder, endless])
@pytest.mark.parametrize("suffix", ["-wal", "-shm", "-journal"])
@pytest.mark.parametrize("wal", [False, True])
def test_a_sidecar_that_is_no_file_is_refused_and_never_waited_for(
    tmp_path: Path, wal: bool, suffix: str, make: Callable[[Path], object]
) -> None:
    database(tmp_path / "state.db", wal=wal)
    make(tmp_path / f"state.db{suffix}")
    with no_trace_in(tmp_path), pytest.raises(StoreProblem) as caught:
        inspect(tmp_path / "state.db")
    assert caught.value.condition is Condition.UNREADABLE
    assert f"state.db{suffix} is no file" in caught.value.reason
    assert caught.value.next_step


@pytest.mark.parametrize(("first", "hot"), [(b"\xd9\xd5\x05\xf9", True), (b"\x00\x00\x00\x00", False), (b"", False)])
def test_a_journal_is_hot_unless_its_header_is_zeroed(tmp_path: Path, first: bytes, hot: bool) -> None:
    path = tmp_path / "state.db"
    database(path)
    journal = path.with_name("state.db-journal")
    journal.write_bytes(first + b"x" * 600 * bool(first))
    bundle = inspect(path)
    assert (bundle.journal_bytes, bundle.journal_hot) == (journal.stat().st_size, hot)


def test_what_this_process_has_open_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    database(path)
    connection = apsw.Connection(str(path))
    with pytest.raises(RuntimeError, match="has the store open"):
        inspect(path)
    with pytest.raises(RuntimeError, match="has the store open"):
        copy_file(path, tmp_path / "copy")
    connection.close()
    inspect(path)


def test_a_copy_is_the_same_bytes_for_nobody_else(tmp_path: Path) -> None:
    path, copy = tmp_path / "state.db", tmp_path / "copy"
    database(path, pages=3000)
    path.chmod(0o644)
    copy_file(path, copy)
    assert copy.read_bytes() == path.read_bytes()
    assert copy.stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        copy_file(path, copy)
