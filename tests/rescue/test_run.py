"""The whole of a rescue: what stands in its way, what it leaves behind, and that it never raises."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hermes_doctor.engine.stopping import Stop
from hermes_doctor.host.bundle import Condition
from hermes_doctor.host.homes import StoreRef
from hermes_doctor.rescue.account import Rescue
from hermes_doctor.rescue.run import rescue_store
from tests.disks import small_disk
from tests.rescue.lab import (
    account,
    ask,
    chosen,
    hermes,
    hold,
    make,
    pages_of,
    put,
    rescue,
    root_of,
    rows_of,
    run,
    size_of_page,
    zero,
)


@pytest.fixture
def damaged(store: Path) -> Path:
    """A store that has lost a page of messages, and messages that have lost their session."""
    hermes(
        store,
        "INSERT INTO messages(session_id, role, content, timestamp) VALUES ('gone', 'user', 'x', 5)",
        "CREATE VIRTUAL TABLE messages_fts USING fts5(content, content='messages', content_rowid='id')",
        messages=600,
    )
    zero(store, pages_of(store, "messages", "leaf")[2])
    return store


def told(result: Rescue) -> tuple[str, int]:
    return result.outcome, int(result.exit_code)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to somebody")
def test_the_new_store_is_its_owners_also_where_root_saves_it(damaged: Path, new: Path) -> None:
    os.chown(damaged, 12345, -1)
    rescue(damaged, new)
    assert (new.stat().st_uid, new.stat().st_mode & 0o777) == (12345, 0o600)


def test_what_is_saved_is_a_store_that_is_healthy(damaged: Path, new: Path) -> None:
    result = rescue(damaged, new)
    assert told(result) == ("partly-rescued", 1)
    assert result.output == new
    assert (result.condition, result.sessions_given) == (Condition.DAMAGED, 1)
    assert new.stat().st_mode & 0o777 == 0o600
    assert ask(new, "PRAGMA integrity_check") == [("ok",)]
    assert ask(new, "SELECT count(*) FROM messages_fts WHERE messages_fts MATCH 'message'")[0][0] > 400
    assert told(rescue(new, new.with_name("again.db"))) == ("rescued", 0)


def test_an_inspection_tells_the_same(damaged: Path, new: Path) -> None:
    looked = rescue(damaged)
    assert (looked.output, looked.inspect_only) == (None, True)
    assert rescue(damaged, new, inspect_only=True).tables == looked.tables
    assert not names_in(new.parent)
    written = rescue(damaged, new)
    assert (looked.tables, told(looked)) == (written.tables, told(written))
    assert looked.sessions_given == written.sessions_given == 1


def a_file(new: Path, _store: Path) -> None:
    new.write_text("mine")


def a_folder(new: Path, _store: Path) -> None:
    new.mkdir()


def a_link_to_nothing(new: Path, _store: Path) -> None:
    new.symlink_to("nothing")


def a_sidecar(new: Path, _store: Path) -> None:
    new.with_name(new.name + "-wal").write_text("mine")


def a_link_to_the_store(new: Path, store: Path) -> None:
    new.hardlink_to(store)


def no_folder(new: Path, _store: Path) -> None:
    new.parent.rmdir()


def a_file_for_a_folder(new: Path, _store: Path) -> None:
    new.parent.rmdir()
    new.parent.write_text("no folder")


@pytest.mark.parametrize(
    "there", [a_file, a_folder, a_link_to_nothing, a_sidecar, a_link_to_the_store, no_folder, a_file_for_a_folder]
)
def test_nothing_is_ever_replaced(damaged: Path, new: Path, there: Callable[[Path, Path], None]) -> None:
    there(new, damaged)
    result = rescue(damaged, new)
    assert told(result) == ("refused", 5)
    assert str(new.parent) in (result.reason or "")
    assert result.next_step


@pytest.mark.parametrize("output", [".", "/", "..", ""])
def test_a_folder_is_no_output(damaged: Path, output: str) -> None:
    ref = StoreRef(damaged, None, "default")
    result = rescue_store(ref, Path(output), inspect_only=False, chosen=chosen(), stop=Stop())
    assert told(result) == ("refused", 5)


def test_the_store_itself_is_no_output(damaged: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.db"
    link.symlink_to(damaged)
    for output in (damaged, link, damaged.parent / ".." / "home" / damaged.name):
        assert told(rescue(damaged, output)) == ("refused", 5)


def test_a_link_to_a_store_is_followed(damaged: Path, new: Path, tmp_path: Path) -> None:
    (tmp_path / "links").mkdir()
    link = tmp_path / "links" / "link.db"
    link.symlink_to(damaged)
    assert told(rescue(link, new)) == ("partly-rescued", 1)


def test_whoever_takes_the_name_meanwhile_keeps_it(damaged: Path, new: Path) -> None:
    def take(_path: Path, step: str, _share: float | None) -> None:
        if step == "proving" and not new.exists():
            new.write_text("mine")

    result = rescue_store(
        StoreRef(damaged, None, "default"), new, inspect_only=False, chosen=chosen(), stop=Stop(), progress=take
    )
    assert told(result) == ("refused", 5)
    assert result.output is None
    assert new.read_text() == "mine"
    assert names_in(new.parent) == [new.name]


@pytest.mark.parametrize("links", [True, False])
def test_a_disk_that_knows_no_links(damaged: Path, new: Path, links: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_paths: object) -> None:
        raise PermissionError(1, "no links here")

    if not links:
        monkeypatch.setattr(os, "link", refused)
    assert told(rescue(damaged, new)) == ("partly-rescued", 1)
    assert names_in(new.parent) == [new.name]
    assert new.stat().st_mode & 0o777 == 0o600


@contextmanager
def somebody_with(store: Path) -> Iterator[None]:
    program = (
        "import apsw, sys\n"
        "c = apsw.Connection(sys.argv[1])\n"
        "try: c.execute('BEGIN IMMEDIATE')\n"
        "except apsw.Error: pass\n"
        "print('open', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(store)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        try:
            yield
        finally:
            process.communicate()


def test_a_store_that_somebody_has_open_is_left_alone(damaged: Path, new: Path) -> None:
    with somebody_with(damaged):
        result = rescue(damaged, new)
        assert told(result) == ("refused", 5)
        assert "stop hermes" in (result.next_step or "")
    assert told(rescue(damaged, new)) == ("partly-rescued", 1)


def as_another_user(work: Callable[[], Rescue]) -> tuple[str, int]:
    """What somebody gets who may not do all."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            if os.geteuid() == 0:
                os.setuid(65534)
            result = work()
            os.write(writer, f"{result.outcome} {int(result.exit_code)}".encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    outcome, code = text.split()
    return outcome, int(code)


def test_without_permission(damaged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # pytest's own folders are closed to everybody else.
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        home, place = Path(folder) / "home", Path(folder) / "new"
        home.mkdir()
        place.mkdir()
        monkeypatch.setenv("TMPDIR", "/tmp")
        store = Path(shutil.copyfile(damaged, home / "state.db"))
        store.chmod(0)
        for closed in (home, place):
            closed.chmod(0o555)
        Path(folder).chmod(0o755)
        ref = StoreRef(store, None, "default")

        def work() -> Rescue:
            return rescue_store(ref, place / "new.db", inspect_only=False, chosen=chosen(), stop=Stop())

        assert as_another_user(work) == ("nothing-saved", 4)
        store.chmod(0o444)
        assert as_another_user(work) == ("failed", 3)
        assert (names_in(place), names_in(home)) == ([], ["state.db"])


def test_a_disk_that_is_full(damaged: Path, tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", 30 << 20) as disk:
        (disk / "filling").write_bytes(bytes(20 << 20))
        result = rescue(damaged, disk / "rescued.db")
        assert told(result) == ("refused", 5)
        assert "too little room" in (result.reason or "")
        assert names_in(disk) == ["filling"]


@pytest.mark.parametrize("step", ["copying", "reading messages", "indexing", "mending", "proving"])
def test_a_disk_that_fills_up_meanwhile(store: Path, tmp_path: Path, step: str) -> None:
    hermes(store, messages=3000, length=200)
    zero(store, pages_of(store, "messages", "leaf")[2])
    with small_disk(tmp_path / "small", 60 << 20) as disk:

        def fill(_path: Path, now: str, _share: float | None) -> None:
            if now.startswith(step) and not (disk / "filling").exists():
                with (disk / "filling").open("wb", buffering=0) as file:
                    try:
                        while file.write(bytes(1 << 20)):
                            pass
                    except OSError:
                        pass

        result = rescue_store(
            StoreRef(store, None, "default"),
            disk / "rescued.db",
            inspect_only=False,
            chosen=chosen(),
            stop=Stop(),
            progress=fill,
        )
        # What is done in memory by then may come to its end.
        if result.output is None:
            assert told(result) == ("failed", 3)
            assert names_in(disk) == ["filling"]
        else:
            assert ask(result.output, "PRAGMA integrity_check") == [("ok",)]
        assert (disk / "filling").exists()
        if step in ("copying", "reading messages"):
            assert result.output is None


class After(Stop):
    """Asks for an end when it has been asked itself so many times."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.left = times

    def __bool__(self) -> bool:
        self.left -= 1
        if self.left < 0:
            self.ask("the test wants it")
        return super().__bool__()


def test_wherever_it_is_broken_off_nothing_is_left(damaged: Path, new: Path) -> None:
    """By a signal, or when the time is up."""
    times, ends = 0, set()
    while "partly-rescued" not in ends:
        result = rescue(damaged, new, stop=After(times))
        ends.add(result.outcome)
        if result.output is None:
            assert told(result) == ("stopped", 7)
            assert "the test wants it" in (result.reason or "")
            assert names_in(new.parent) == []
        times = times * 4 // 3 + 1
    assert ends == {"stopped", "partly-rescued"}


@pytest.mark.parametrize("step", ["copying", "reading sessions", "reading messages", "indexing", "mending", "proving"])
def test_time_that_is_up_at_any_step(damaged: Path, new: Path, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    real, late = time.monotonic, [0.0]
    monkeypatch.setattr("hermes_doctor.rescue.run.time.monotonic", lambda: real() + late[0])

    def wait(_path: Path, now: str, _share: float | None) -> None:
        if now.startswith(step):
            late[0] = 1000.0

    result = rescue(damaged, new, seconds=500, progress=wait)
    assert told(result) == ("stopped", 7)
    assert "--max-duration" in (result.reason or "")
    assert names_in(new.parent) == []


def test_no_time_at_all(damaged: Path, new: Path) -> None:
    assert told(rescue(damaged, new, seconds=0)) == ("stopped", 7)
    assert names_in(new.parent) == []


def test_two_at_once_into_one_folder(damaged: Path, new: Path) -> None:
    outputs = [new.with_name(f"{n}.db") for n in range(2)]
    results: list[Rescue] = []

    def work(output: Path) -> None:
        ref = StoreRef(damaged, None, "default")
        results.append(rescue_store(ref, output, inspect_only=False, chosen=chosen(), stop=Stop()))

    threads = [threading.Thread(target=work, args=(output,)) for output in outputs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [told(result) for result in results] == [("partly-rescued", 1)] * 2
    assert names_in(new.parent) == ["0.db", "1.db"]
    assert rows_of(outputs[0], "messages") == rows_of(outputs[1], "messages")


@pytest.mark.parametrize("name", ["state.db", "any.db"])
@pytest.mark.parametrize(
    "data",
    [b"", b"\0", bytes(4096), bytes(99_999), b"SQLite format 3\0", b"SQLite format 3\0" + bytes(84), b"text\n" * 999],
    ids=["empty", "a zero", "a page of zeros", "zeros", "a magic", "a header of zeros", "text"],
)
def test_what_is_no_store(tmp_path: Path, new: Path, data: bytes, name: str) -> None:
    (tmp_path / "home").mkdir()
    file = tmp_path / "home" / name
    file.write_bytes(data)
    result = rescue(file, new)
    assert told(result) == ("nothing-saved", 4)
    assert result.reason
    assert names_in(new.parent) == []


def test_a_database_that_is_not_hermess(store: Path, new: Path) -> None:
    make(store, "CREATE TABLE notes(a)", "INSERT INTO notes VALUES (1)")
    result = rescue(store, new)
    assert told(result) == ("nothing-saved", 4)
    assert result.condition is Condition.NOT_HERMES
    assert result.next_step
    zero(store, root_of(store, "notes"))
    assert told(rescue(store, new)) == ("nothing-saved", 4)
    assert names_in(new.parent) == []


def test_nothing_there_at_all(tmp_path: Path, new: Path) -> None:
    result = rescue(new.parent / "state.db", new)
    assert told(result) == ("nothing-saved", 4)
    assert result.condition is Condition.MISSING
    folder = tmp_path / "folder.db"
    folder.mkdir()
    assert told(rescue(folder, new)) == ("nothing-saved", 4)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("make_it", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/zero")])
@pytest.mark.parametrize("suffix", ["-wal", "-journal", "-shm"])
def test_what_lies_beside_a_store_and_is_no_file(
    store: Path, new: Path, suffix: str, make_it: Callable[[Path], None], cut: bool
) -> None:
    """Opening a pipe waits for ever, and a device has no end. The log's index is nothing that a copy needs."""
    hermes(store, messages=300)
    if cut:
        with store.open("r+b") as file:
            file.truncate(store.stat().st_size - size_of_page(store))
    make_it(store.with_name(store.name + suffix))
    result = rescue(store, new)
    if suffix == "-shm":
        assert told(result) == (("partly-rescued", 1) if cut else ("rescued", 0))
    else:
        assert told(result) == ("nothing-saved", 4)
        assert f"{store}{suffix} is no file" in (result.reason or "")
        assert result.condition is Condition.UNREADABLE
        assert names_in(new.parent) == []


def test_a_newer_schema_than_is_known(store: Path, new: Path) -> None:
    hermes(
        store,
        "CREATE TABLE schema_version(version INTEGER NOT NULL)",
        "INSERT INTO schema_version VALUES (999)",
        "ALTER TABLE messages ADD COLUMN of_the_future TEXT",
        "CREATE TABLE things_to_come(id INTEGER PRIMARY KEY, what TEXT)",
        "INSERT INTO things_to_come VALUES (7, 'x')",
        messages=300,
    )
    before = rows_of(store, "messages")
    zero(store, pages_of(store, "messages", "leaf")[1])
    result = rescue(store, new)
    assert told(result) == ("partly-rescued", 1)
    assert hold(before, result)
    assert ask(new, "SELECT * FROM things_to_come") == [(7, "x")]
    assert result.schema_version == 999


def test_a_store_without_a_row(store: Path, new: Path) -> None:
    hermes(store, "DELETE FROM sessions", messages=0)
    assert rescue(store, new).exit_code in (0, 4)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=9000), magic=st.booleans(), leaf=st.booleans())
def test_whatever_the_file_holds_nothing_is_raised(tmp_path: Path, data: bytes, magic: bool, leaf: bool) -> None:
    home = tmp_path / "random"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir()
    head = b"SQLite format 3\0\x02\x00\x01\x01\x00\x40\x20\x20" if magic else b""
    (home / "state.db").write_bytes(head + (b"\x0d" if leaf else b"") + data)
    result = rescue(home / "state.db")
    assert told(result) == ("nothing-saved", 4)


@pytest.mark.parametrize("seed", range(16))
def test_whatever_becomes_of_the_first_page_and_the_schema_nothing_is_raised(store: Path, new: Path, seed: int) -> None:
    chance = random.Random(seed)
    hermes(
        store, "CREATE INDEX m ON messages(session_id, timestamp)", "DELETE FROM messages WHERE id > 150", messages=200
    )
    before = rows_of(store, "messages")
    for _ in range(chance.randint(1, 6)):
        at = chance.choice((chance.randrange(16, 100), chance.randrange(100, 4096)))
        put(store, 1, chance.choice((b"\0", b"\xff", chance.randbytes(1), chance.randbytes(4))), at)
    result = rescue(store, new)
    assert told(result) in (("rescued", 0), ("partly-rescued", 1), ("nothing-saved", 4))
    if result.output is None or account(result, "messages").failed is not None:
        return
    after, doubtful = rows_of(new, "messages"), account(result, "messages").doubtful
    for number, row in after.items():
        assert before.get(number) == row or any(low <= number <= high for low, high in doubtful)


def test_the_memory_it_takes_does_not_grow_with_the_store(store: Path, tmp_path: Path) -> None:
    """Many rows, many of them in pages that were given back, and some long ones."""
    hermes(store, "CREATE INDEX m ON messages(session_id)", messages=40_000, length=10)
    run(
        store,
        "PRAGMA secure_delete = 0",
        "UPDATE messages SET content = hex(zeroblob(2000000)) WHERE id < 4",
        "DELETE FROM messages WHERE id > 4000",
    )
    zero(store, root_of(store, "messages"))
    program = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from tests.rescue.lab import *\n"
        "used = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10\n"
        "small = Path(sys.argv[1]).with_name('small.db')\n"
        "hermes(small, messages=300)\n"
        "zero(small, root_of(small, 'messages'))\n"
        "rescue_store(StoreRef(small, None, 'd'), None, inspect_only=True, chosen=chosen(), stop=Stop())\n"
        "before = used()\n"
        "ref = StoreRef(Path(sys.argv[1]), None, 'd')\n"
        "r = rescue_store(ref, None, inspect_only=True, chosen=chosen(), stop=Stop())\n"
        "print(r.table('messages').rows, used() - before)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(store)], capture_output=True, text=True, check=True, cwd=Path.cwd()
    )
    rows, megabytes = map(int, done.stdout.split())
    assert rows > 30_000
    assert megabytes < 12


def test_sqlite_says_no_word_of_what_a_row_holds(damaged: Path, new: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What SQLite raises out of the ordinary ends the work, and is said."""

    def fail(*_args: object) -> None:
        raise apsw.MisuseError("something is wrong")

    monkeypatch.setattr("hermes_doctor.rescue.run.Reading.read", fail)
    result = rescue(damaged, new)
    assert told(result) == ("failed", 3)
    assert "something is wrong" in (result.reason or "")
    assert names_in(new.parent) == []
