"""Stretches: whatever happens to a file, those that are said to be unchanged are, to the last byte."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import apsw
import pytest

from hermes_doctor.host.bundle import open_here
from hermes_doctor.store import raw_pages
from hermes_doctor.store import stretches as module
from hermes_doctor.store.reader import Pace, Reader, TimeIsUp
from hermes_doctor.store.shape import Table, read_shape
from hermes_doctor.store.stretches import Recording, Stretch, Unchanged, record, unchanged
from tests.store.writing import make_store, writing

COLUMNS = "rowid, typeof(a), a, typeof(b), b"
Row = tuple[Any, ...]

#: A table like hermes's: rows of very different sizes, the number their key.
TABLE = "CREATE TABLE t(id INTEGER PRIMARY KEY, a, b)"


def connect(path: Path) -> apsw.Connection:
    connection = apsw.Connection(str(path))
    connection.pragma("synchronous", "off")
    connection.set_busy_timeout(2000)
    return connection


@contextmanager
def reading(path: Path, pace: Pace) -> Iterator[tuple[Reader, Table]]:
    """A reader of the table, as a scan has one."""
    connection = connect(path)
    try:
        yield Reader(connection, pace, rests=False), read_shape(connection).tables["t"]
    finally:
        connection.close()


def pace_of(path: Path) -> Pace:
    connection = connect(path)
    mode = connection.pragma("journal_mode")
    connection.close()
    return Pace.SNAPSHOT if mode == "wal" else Pace.SLICED


@dataclass
class Recorded:
    """What was recorded, and the rows that each stretch had then."""

    stretches: list[Stretch] = field(default_factory=list)
    rows: list[list[Row]] = field(default_factory=list)


def rows_of(connection: apsw.Connection, low: int, high: int) -> list[Row]:
    return connection.execute(
        f"SELECT {COLUMNS} FROM t WHERE rowid BETWEEN ? AND ? ORDER BY rowid", (low, high)
    ).fetchall()


def recorded(path: Path, low: int | None = None, high: int | None = None) -> Recorded:
    made = Recorded()
    with reading(path, pace_of(path)) as (reader, table):
        recording = record(reader, table, low, high)
        for stretch in recording:
            made.stretches.append(stretch)
            made.rows.append(rows_of(reader.connection, stretch.low, stretch.high))
        assert recording.doubt is None
    return made


def proven(path: Path, stretches: Sequence[Stretch], threads: int = 1) -> list[Stretch]:
    with reading(path, pace_of(path)) as (reader, table):
        status = path.stat()
        found = unchanged(reader, table, stretches, threads, open_here(status.st_dev, status.st_ino))
    assert found.doubt is None
    return list(found.stretches)


class Life:
    """A store to which things happen by chance."""

    def __init__(self, path: Path, chance: random.Random) -> None:
        self.path = path
        self.chance = chance
        self.page_size = chance.choice([512, 1024, 1024, 4096])
        self.connection = connect(path)
        self.connection.reserve_bytes(reserve=chance.choice([0, 0, 32]))
        self.connection.pragma("page_size", self.page_size)
        self.connection.pragma("auto_vacuum", chance.choice([0, 0, 1, 2]))
        self.connection.pragma("journal_mode", chance.choice(["wal", "delete"]))
        self.connection.pragma("wal_autocheckpoint", chance.choice([0, 10, 1000]))
        self.connection.execute("CREATE TABLE early(x)")
        self.connection.execute(TABLE)
        self.connection.execute("CREATE TABLE late(x)")
        self.older: list[Path] = []

    def cell(self) -> object:
        kind = self.chance.random()
        if kind < 0.1:
            return self.chance.choice([None, 0, -1, 1 << 40, 0.5])
        size = int(self.chance.paretovariate(0.7) * 20) if kind < 0.9 else self.chance.randrange(9 * self.page_size)
        size = min(size, 12 * self.page_size)
        return self.chance.randbytes(size) if self.chance.random() < 0.5 else self.chance.choice("aäx") * size

    def some(self) -> list[int]:
        """Rowids that are there, near one another or not."""
        rowids = [row[0] for row in self.connection.execute("SELECT id FROM t")]
        if not rowids:
            return []
        first = self.chance.randrange(len(rowids))
        near = rowids[first : first + self.chance.randrange(1, 12)]
        return self.chance.choice([near, self.chance.sample(rowids, min(3, len(rowids)))])

    def append(self, count: int | None = None) -> None:
        for _ in range(count or self.chance.randrange(1, 40)):
            self.connection.execute("INSERT INTO t(a, b) VALUES(?, ?)", (self.cell(), self.cell()))

    def insert_between(self) -> None:
        for rowid in self.some():
            key = rowid + self.chance.choice([-1, 1, 7, -(1 << 45), 1 << 20])
            self.connection.execute(
                "INSERT OR IGNORE INTO t(id, a, b) VALUES(?, ?, ?)", (key, self.cell(), self.cell())
            )

    def rewrite(self) -> None:
        for rowid in self.some():
            self.connection.execute("UPDATE t SET b = ? WHERE id = ?", (self.cell(), rowid))

    def rewrite_in_place(self) -> None:
        """The last bytes of a long value: a page that the row goes on in changes, its leaf does not."""
        longest = self.connection.execute(
            "SELECT id, b FROM t WHERE typeof(b) = 'blob' AND length(b) > ? ORDER BY random() LIMIT 1",
            (2 * self.page_size,),
        ).fetchone()
        if longest:
            with self.connection.blob_open("main", "t", "b", longest[0], True) as blob:
                blob.seek(len(longest[1]) - 1)
                blob.write(bytes([longest[1][-1] ^ 1]))

    def delete(self) -> None:
        for rowid in self.some():
            self.connection.execute("DELETE FROM t WHERE id = ?", (rowid,))

    def delete_and_write_again(self) -> None:
        """The same rowids with other values of the same size, in pages that were just freed."""
        rowids = self.some()
        rows = [
            row
            for rowid in rowids
            for row in self.connection.execute("SELECT id, a, b FROM t WHERE id = ?", (rowid,)).fetchall()
        ]
        self.delete_all(rowids)
        for rowid, a, b in self.chance.sample(rows, len(rows)):
            b = bytes(reversed(b)) if isinstance(b, bytes) else b
            self.connection.execute("INSERT INTO t(id, a, b) VALUES(?, ?, ?)", (rowid, a, b))

    def delete_all(self, rowids: Sequence[int]) -> None:
        self.connection.executemany("DELETE FROM t WHERE id = ?", [(rowid,) for rowid in rowids])

    def delete_many(self) -> None:
        rowids = self.some()
        if rowids:
            self.connection.execute("DELETE FROM t WHERE id BETWEEN ? AND ?", (rowids[0], rowids[0] + 40))

    def others(self) -> None:
        """Other tables come, grow and go, so that pages change hands and roots move."""
        what = self.chance.choice(
            [
                "DROP TABLE IF EXISTS early",
                "CREATE TABLE IF NOT EXISTS early(x)",
                "INSERT INTO late SELECT randomblob(900) FROM t",
                "DELETE FROM late",
                "CREATE INDEX IF NOT EXISTS i ON t(a)",
                "DROP INDEX IF EXISTS i",
            ]
        )
        self.connection.execute(what)

    def vacuum(self) -> None:
        self.connection.execute(self.chance.choice(["VACUUM", "PRAGMA incremental_vacuum(5)"])).fetchall()

    def other_page_size(self) -> None:
        if self.connection.pragma("journal_mode") == "delete":
            self.page_size = self.chance.choice([512, 1024, 4096])
            self.connection.pragma("page_size", self.page_size)
            self.connection.execute("VACUUM")

    def new_column(self) -> None:
        names = {row[0] for row in self.connection.execute("SELECT name FROM pragma_table_info('t')")}
        if "c" not in names:
            self.connection.execute("ALTER TABLE t ADD COLUMN c DEFAULT 'c'")

    def moved_to_another_table(self) -> None:
        """The table is made anew from its rows, as hermes does when it changes one."""
        self.connection.execute("BEGIN")
        self.connection.execute("CREATE TABLE made(id INTEGER PRIMARY KEY, a, b)")
        self.connection.execute("INSERT INTO made SELECT id, a, b FROM t")
        self.connection.execute("DROP TABLE t")
        self.connection.execute("ALTER TABLE made RENAME TO t")
        self.connection.execute("COMMIT")

    def carry_over(self) -> None:
        if self.connection.pragma("journal_mode") == "wal":
            self.connection.execute(f"PRAGMA wal_checkpoint({self.chance.choice(['PASSIVE', 'TRUNCATE', 'RESTART'])})")

    def other_mode(self) -> None:
        self.connection.pragma("journal_mode", self.chance.choice(["wal", "delete"]))

    def keep_a_copy(self) -> None:
        self.connection.pragma("wal_checkpoint")
        copy = self.path.with_name(f"older-{len(self.older)}")
        shutil.copyfile(self.path, copy)
        self.older.append(copy)

    def restore(self) -> None:
        if not self.older:
            return
        self.connection.close()
        for suffix in ("-wal", "-shm"):
            with suppress(FileNotFoundError):
                self.path.with_name(self.path.name + suffix).unlink()
        shutil.copyfile(self.chance.choice(self.older), self.path)
        self.connection = connect(self.path)
        self.page_size = int(str(self.connection.pragma("page_size")))

    def step(self) -> None:
        """Something happens, in a transaction as a rule."""
        weights = {
            self.append: 6,
            self.insert_between: 3,
            self.rewrite: 4,
            self.rewrite_in_place: 4,
            self.delete: 3,
            self.delete_many: 2,
            self.delete_and_write_again: 3,
            self.others: 3,
            self.vacuum: 1,
            self.other_page_size: 0.3,
            self.new_column: 0.2,
            self.moved_to_another_table: 0.3,
            self.carry_over: 3,
            self.other_mode: 0.5,
            self.keep_a_copy: 1,
            self.restore: 0.7,
        }
        (what,) = self.chance.choices(list(weights), list(weights.values()))
        what()


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short stretches, so that a small table has many."""
    monkeypatch.setattr(module, "STRETCH_ROWS", 8)
    monkeypatch.setattr(module, "STRETCH_BYTES", 32 << 10)


def live(path: Path, seed: int, steps: int) -> tuple[int, int]:
    """Let a store live and ask about all that was recorded so far after each step.

    Returns how many stretches were the same, and how many of them were proven to be.
    """
    chance = random.Random(seed)
    life = Life(path, chance)
    life.append(120)
    kept = [recorded(path)]
    same = found = 0
    for step in range(steps):
        life.step()
        for old in kept:
            now_proven = {id(stretch) for stretch in proven(path, old.stretches, threads=1 + step % 2)}
            for stretch, rows in zip(old.stretches, old.rows, strict=True):
                is_same = rows_of(life.connection, stretch.low, stretch.high) == rows
                assert is_same or id(stretch) not in now_proven, (seed, stretch)
                same += is_same
                found += id(stretch) in now_proven
        if chance.random() < 0.3:
            kept = [*kept[-1:], recorded(path)]
            covered = [row for rows in kept[-1].rows for row in rows]
            assert covered == rows_of(life.connection, -(1 << 63), (1 << 63) - 1)
    life.connection.close()
    return same, found


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("seed", range(4))
def test_what_is_said_to_be_unchanged_is(tmp_path: Path, seed: int) -> None:
    same = found = 0
    for number in range(3):
        more_same, more_found = live(tmp_path / f"{number}.db", seed * 100 + number, 25)
        same, found = same + more_same, found + more_found
    assert found > same / 2


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("mode", ["wal", "delete"])
def test_it_holds_beside_somebody_who_writes(tmp_path: Path, mode: str) -> None:
    assert stays_true_beside_a_writer(tmp_path, mode) >= 20


def stays_true_beside_a_writer(folder: Path, mode: str) -> int:
    """Record and ask while somebody writes; returns how many stretches were proven."""
    path = folder / "store.db"
    keeper = make_store(path, mode, rows=600)
    pace = Pace.SNAPSHOT if mode == "wal" else Pace.SLICED
    found = looks = 0
    end = time.monotonic() + 60
    with writing(path, mode), reading(path, pace) as (reader, table):
        # In slices, on a busy machine, somebody may have written before each second one.
        while (looks < 5 or found < 20) and time.monotonic() < end:
            looks += 1
            old = Recorded()
            for stretch in record(reader, table):
                old.stretches.append(stretch)
                old.rows.append(rows_of(reader.connection, stretch.low, stretch.high))
            assert len(old.stretches) > 20
            reader.finish()
            # No row is written twice alike: one that is as it was has been so all the while.
            later = rows_of(reader.connection, -(1 << 63), (1 << 63) - 1)
            answer = unchanged(reader, table, old.stretches)
            assert answer.doubt in (None, "somebody writes to it")
            for stretch in answer.stretches:
                then = old.rows[old.stretches.index(stretch)]
                assert [row for row in later if stretch.low <= row[0] <= stretch.high] == then
                found += 1
    keeper.close()
    return found


def plain(path: Path, rows: int = 2000, size: int = 40, mode: str = "delete") -> apsw.Connection:
    """A table of like rows."""
    connection = connect(path)
    connection.pragma("page_size", 1024)
    connection.pragma("journal_mode", mode)
    connection.execute(TABLE)
    fill(connection, 1, rows, size)
    return connection


def fill(connection: apsw.Connection, first: int, last: int, size: int = 40) -> None:
    connection.execute(
        "WITH n(i) AS (SELECT ?1 UNION ALL SELECT i + 1 FROM n WHERE i < ?2)"
        " INSERT INTO t SELECT i, i, randomblob(?3) FROM n",
        (first, last, size),
    )


@pytest.mark.parametrize("mode", ["wal", "delete"])
def test_new_rows_leave_most_of_the_others_proven(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "store.db"
    connection = plain(path, rows=60_000, mode=mode)
    old = recorded(path)
    assert len(old.stretches) > 25
    assert sum(len(rows) for rows in old.rows) == 60_000
    fill(connection, 60_001, 60_600)
    kept = proven(path, old.stretches)
    assert kept == proven(path, old.stretches, threads=2)
    assert kept == old.stretches[: len(kept)]
    assert len(kept) >= len(old.stretches) - 1
    connection.close()


@pytest.mark.usefixtures("short")
def test_a_row_that_changes_where_it_goes_on_is_seen(tmp_path: Path) -> None:
    """Its leaf has the same bytes: only a page of its chain has others."""
    path = tmp_path / "store.db"
    connection = plain(path, rows=60, size=5000)
    old = recorded(path)
    with connection.blob_open("main", "t", "b", 30, True) as blob:
        blob.seek(4990)
        blob.write(b"x")
    kept = proven(path, old.stretches)
    assert len(kept) == len(old.stretches) - 1
    assert not any(stretch.low <= 30 <= stretch.high for stretch in kept)
    connection.close()


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("rows", [4, 15, 2000])
def test_leaves_that_were_freed_with_their_rows_in_them_count_for_nothing(tmp_path: Path, rows: int) -> None:
    path = tmp_path / "store.db"
    connection = plain(path, rows=rows)
    old = recorded(path)
    before = path.read_bytes()
    connection.execute("DELETE FROM t")
    # Where it is more than one page, most still lie there as they were.
    assert rows < 2000 or sum(a == b for a, b in zip(before, path.read_bytes(), strict=True)) > len(before) * 0.9
    assert proven(path, old.stretches) == []
    fill(connection, 1, rows)
    assert proven(path, old.stretches) == []
    connection.close()


@pytest.mark.usefixtures("short")
def test_a_row_that_came_between_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    connection = plain(path, rows=2000)
    connection.execute("DELETE FROM t WHERE id BETWEEN 1000 AND 1400")
    old = recorded(path)
    connection.execute("INSERT INTO t VALUES(1200, 'new', zeroblob(3))")
    kept = proven(path, old.stretches)
    assert not any(stretch.low <= 1200 <= stretch.high for stretch in kept)
    # The leaf beside the gap has one more row, or was divided.
    assert len(old.stretches) - 3 <= len(kept) < len(old.stretches)
    connection.close()


@pytest.mark.usefixtures("short")
def test_a_page_above_that_was_divided_leaves_its_leaves_proven(tmp_path: Path) -> None:
    """Leaves that hang under another page by now, or under two, are found by their rowids."""
    path = tmp_path / "store.db"
    connection = plain(path, rows=1000)
    connection.execute("DELETE FROM t WHERE id BETWEEN 400 AND 600")
    old = recorded(path)
    parents = {stretch.parent for stretch in recorded(path).stretches}
    # So many new leaves that the page above them has no room for all.
    fill(connection, 410, 590, 900)
    assert {stretch.parent for stretch in recorded(path).stretches} != parents
    assert len(proven(path, old.stretches)) >= len(old.stretches) - 4
    connection.close()


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE t ADD COLUMN c DEFAULT 5",
        "ALTER TABLE t RENAME COLUMN a TO b2",
        "PRAGMA writable_schema = on; UPDATE sqlite_schema SET sql = replace(sql, 'id', 'no') WHERE name = 't'",
    ],
)
def test_another_statement_makes_other_rows_of_the_same_bytes(tmp_path: Path, change: str) -> None:
    path = tmp_path / "store.db"
    connection = plain(path)
    old = recorded(path)
    connection.execute(change).fetchall()
    connection.close()
    assert proven(path, old.stretches) == []


@pytest.mark.usefixtures("short")
def test_rowids_from_end_to_end(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    connection = plain(path)
    for rowid in (-(1 << 63), -(1 << 63) + 1, -5, 0, (1 << 31) + 7, (1 << 56) - 1, 1 << 56, (1 << 63) - 1):
        connection.execute("INSERT INTO t VALUES(?, 'far', zeroblob(2000))", (rowid,))
    old = recorded(path)
    assert old.stretches[0].low == -(1 << 63)
    assert old.stretches[-1].high == (1 << 63) - 1
    assert [row for rows in old.rows for row in rows] == rows_of(connection, -(1 << 63), (1 << 63) - 1)
    assert proven(path, old.stretches) == old.stretches
    connection.execute("DELETE FROM t WHERE id = 9223372036854775807")
    assert proven(path, old.stretches) == old.stretches[:-1]
    connection.close()


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(("low", "high"), [(500, 700), (501, 501), (1, 1), (None, 3), (1990, None), (701, 720)])
def test_of_some_rows_only_their_leaves_are_recorded(tmp_path: Path, low: int | None, high: int | None) -> None:
    path = tmp_path / "store.db"
    plain(path).close()
    some = recorded(path, low, high)
    first, last = 1 if low is None else low, 2000 if high is None else high
    assert some.stretches[0].low <= first <= some.stretches[0].high
    assert some.stretches[-1].low <= last <= some.stretches[-1].high
    for one, other in pairwise(some.stretches):
        assert other.low == one.high + 1
    # No more than the leaves at both ends hold besides.
    assert sum(len(rows) for rows in some.rows) <= last - first + 1 + 2 * 25


def test_no_rows_no_stretches(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    connection = plain(path)
    connection.execute("DELETE FROM t WHERE id BETWEEN 500 AND 700")
    assert recorded(path, 560, 600).stretches == []
    assert recorded(path, 2001, None).stretches == []
    connection.execute("DELETE FROM t")
    assert recorded(path).stretches == []
    connection.close()


@pytest.mark.usefixtures("short")
def test_a_long_look_goes_on_at_another_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "store.db"
    connection = plain(path, mode="wal")
    usual = recorded(path).stretches
    monkeypatch.setattr(raw_pages, "SNAPSHOT_SECONDS", 0.0)
    with reading(path, Pace.SNAPSHOT) as (reader, table):
        recording = record(reader, table)
        made = []
        for stretch in recording:
            made.append(stretch)
            if len(made) == 3:
                connection.execute("DELETE FROM t WHERE id > 1000")
        assert recording.doubt is None
        assert reader.moved
        assert made[:3] == usual[:3]
        assert made[-1].high == 1000
        assert list(unchanged(reader, table, made).stretches) == made
    connection.close()


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("threads", [1, 2])
def test_it_stops_when_the_time_is_up(tmp_path: Path, threads: int) -> None:
    path = tmp_path / "store.db"
    plain(path, mode="wal").close()
    old = recorded(path)
    with reading(path, Pace.SNAPSHOT) as (reader, table):
        going_on = iter(record(reader, table))
        assert next(going_on) == old.stretches[0]
        reader.deadline = 0.0
        with pytest.raises(TimeIsUp):
            next(going_on)
        status = path.stat()
        with pytest.raises(TimeIsUp):
            unchanged(reader, table, old.stretches, threads, open_here(status.st_dev, status.st_ino))
        assert not reader.connection.in_transaction


@pytest.mark.usefixtures("short")
def test_slices_that_somebody_writes_between_are_a_doubt_of_what_was_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "store.db"
    connection = plain(path)
    old = recorded(path)
    monkeypatch.setattr(raw_pages, "_SLICE", 0.0)
    # As if between any two pages somebody had written.
    write = "UPDATE t SET b = randomblob(40) WHERE id = 1000"
    monkeypatch.setattr("time.sleep", lambda _: connection.execute(write))
    with reading(path, Pace.SLICED) as (reader, table):
        reader.rests = True
        assert unchanged(reader, table, old.stretches) == Unchanged((), "somebody writes to it")
        recording = record(reader, table)
        assert list(recording) == []
        assert recording.doubt == "somebody writes to it"
    connection.close()


def outcome(path: Path) -> tuple[Recording, list[Stretch]]:
    with reading(path, Pace.SLICED) as (reader, table):
        recording = record(reader, table)
        return recording, list(recording)


def test_a_table_without_rowids_is_a_doubt(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    connection = connect(path)
    connection.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, a) WITHOUT ROWID")
    connection.execute("INSERT INTO t VALUES(1, 2)")
    recording, made = outcome(path)
    assert (recording.doubt, made) == ("the table has no rowids that can be reached", [])
    with reading(path, Pace.SLICED) as (reader, table):
        assert unchanged(reader, table, [Stretch(1, 1, 0, b"", b"", b"", b"")]).doubt == recording.doubt
    connection.close()


def test_another_table_of_the_same_name_is_another(tmp_path: Path) -> None:
    """The old one is still there, in the same page, and the statement is the same."""
    path = tmp_path / "store.db"
    connection = plain(path, rows=10)
    old = recorded(path)
    assert old.stretches[0].parent == 0
    connection.execute("ALTER TABLE t RENAME TO before")
    connection.execute(TABLE)
    fill(connection, 1, 10)
    assert proven(path, old.stretches) == []
    connection.close()


@pytest.mark.usefixtures("short")
def test_each_stretch_is_given_in_a_slice_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "store.db"
    plain(path).close()
    rests: list[float] = []
    monkeypatch.setattr("time.sleep", rests.append)
    with reading(path, Pace.SLICED) as (reader, table):
        reader.rests = True
        for given, _ in enumerate(record(reader, table), 1):
            assert len(rests) == given


class Pages:
    """A store's pages, to be damaged by hand; of 1024 bytes."""

    def __init__(self, path: Path) -> None:
        self.data = bytearray(path.read_bytes())

    def page(self, number: int) -> memoryview:
        return memoryview(self.data)[(number - 1) * 1024 : number * 1024]

    def cell(self, number: int, place: int) -> memoryview:
        page = self.page(number)
        at = (12 if page[0] == 5 else 8) + 2 * place
        return page[int.from_bytes(page[at : at + 2], "big") :]

    def child(self, number: int, place: int) -> int:
        return int.from_bytes(self.cell(number, place)[:4], "big")

    def set_key(self, number: int, place: int, key: int) -> None:
        """Change a number that divides two pages; both it and the old one have two bytes."""
        cell = self.cell(number, place)
        assert cell[4] >= 0x80 > cell[5]
        cell[4], cell[5] = 0x80 | key >> 7, key & 0x7F

    def key(self, number: int, place: int) -> int:
        cell = self.cell(number, place)
        assert cell[4] >= 0x80 > cell[5]
        return (cell[4] & 0x7F) << 7 | cell[5]


def root_of(path: Path) -> int:
    connection = connect(path)
    root = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = 't'").fetchall()[0][0]
    connection.close()
    assert isinstance(root, int)
    return root


def holding(old: Recorded, rowid: int) -> Stretch:
    return next(stretch for stretch in old.stretches if stretch.low <= rowid <= stretch.high)


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("low_or_high", [-1, 1])
@pytest.mark.parametrize("within", [True, False])
@pytest.mark.parametrize("deep", [True, False])
def test_a_number_that_leads_to_the_wrong_leaf_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deep: bool, within: bool, low_or_high: int
) -> None:
    """All leaves are as they were, and a row is not found where the tree says that it is."""
    monkeypatch.setattr(module, "STRETCH_ROWS", 60 if within else 20)
    path = tmp_path / "store.db"
    plain(path, rows=6000 if deep else 1500).close()
    old = recorded(path)
    damaged = Pages(path)
    root = root_of(path)
    assert (damaged.page(damaged.child(root, 0))[0] == 5) is deep
    # Deep, the number between two parents; else one that divides the leaves of a stretch, or two stretches.
    place = 0 if deep else 10
    while not deep and (holding(old, damaged.key(root, place)).high == damaged.key(root, place)) is within:
        place += 1
    key = damaged.key(root, place)
    damaged.set_key(root, place, key + low_or_high)
    path.write_bytes(damaged.data)
    kept = proven(path, old.stretches)
    # Too low a number hides the last row before it, too high a one the first behind it.
    hidden = key if low_or_high < 0 else key + 1
    assert holding(old, hidden) not in kept
    assert len(kept) >= len(old.stretches) - 2
    recording, made = outcome(path)
    assert recording.doubt == "the rowids of the tree are in disorder"
    assert [stretch.digest for stretch in made] == [stretch.digest for stretch in old.stretches[: len(made)]]


@pytest.mark.parametrize("deep", [True, False])
def test_numbers_in_disorder_are_a_doubt(tmp_path: Path, deep: bool) -> None:
    path = tmp_path / "store.db"
    plain(path, rows=6000 if deep else 1500).close()
    old = recorded(path)
    damaged, root = Pages(path), root_of(path)
    damaged.set_key(root, 0 if deep else 10, damaged.key(root, 1 if deep else 20) + 5)
    path.write_bytes(damaged.data)
    with reading(path, Pace.SLICED) as (reader, table):
        assert unchanged(reader, table, old.stretches) == Unchanged((), "the rowids of the tree are in disorder")


@pytest.mark.usefixtures("short")
def test_odd_trees_are_doubts(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    plain(path, rows=60, size=2200).close()
    root = root_of(path)
    whole = path.read_bytes()

    def doubt(damage: Callable[[Pages], None]) -> str | None:
        path.write_bytes(whole)
        damaged = Pages(path)
        damage(damaged)
        path.write_bytes(damaged.data)
        return outcome(path)[0].doubt

    def of_root(at: int, *data: int) -> Callable[[Pages], None]:
        def damage(pages: Pages) -> None:
            pages.page(root)[at : at + len(data)] = bytes(data)

        return damage

    def of_leaf(at: int, *data: int) -> Callable[[Pages], None]:
        def damage(pages: Pages) -> None:
            pages.page(pages.child(root, 3))[at : at + len(data)] = bytes(data)

        return damage

    def of_cell(at: int, *data: int) -> Callable[[Pages], None]:
        def damage(pages: Pages) -> None:
            pages.cell(pages.child(root, 3), 0)[at : at + len(data)] = bytes(data)

        return damage

    def cut(pages: Pages) -> None:
        leaf = pages.page(pages.child(root, 3))
        leaf[8:10], leaf[1023:] = (1023).to_bytes(2, "big"), b"\xff"

    def cut_where_it_goes_on(pages: Pages) -> None:
        leaf = pages.page(pages.child(root, 3))
        leaf[8:10], leaf[1000:1003] = (1000).to_bytes(2, "big"), b"\x91\x1f\x01"

    def chain_of_another(pages: Pages) -> None:
        leaf = pages.child(root, 3)
        most, least = 1024 - 35, (1024 - 12) * 32 // 255 - 23
        one, other = pages.cell(leaf, 0), pages.cell(leaf, 1)
        size = (one[0] & 0x7F) << 7 | one[1]
        here = least + (size - least) % 1020
        assert here <= most
        # Behind the size of two bytes, the rowid of one, and what the leaf has of the row.
        one[3 + here : 7 + here] = other[3 + here : 7 + here]

    def loop(pages: Pages) -> None:
        pages.cell(root, 3)[:4] = root.to_bytes(4, "big")

    assert doubt(lambda _: None) is None
    assert doubt(of_root(0, 2)) == "a page of the tree is none that leads to others"
    assert doubt(of_root(3, 0, 0)) == "a page of the tree is none that leads to others"
    assert doubt(of_root(3, 3, 0)) == "a page of the tree is none that leads to others"
    assert doubt(of_root(8, 0, 9, 0, 0)) == "a page of the tree leads out of the file"
    assert doubt(of_root(12, 4, 0)) == "a page of the tree is cut short"
    assert doubt(loop) == "a leaf of the tree holds no rows"
    assert doubt(of_leaf(0, 2)) == "a leaf of the tree holds no rows"
    assert doubt(of_leaf(3, 3, 0)) == "a leaf of the tree holds no rows"
    assert doubt(cut) == "a leaf of the tree is cut short"
    assert doubt(cut_where_it_goes_on) == "a leaf of the tree is cut short"
    assert doubt(of_cell(0, 0xFF, 0xFF, 0xFF, 0xFF, 0x7F)) == "a row has an absurd size"
    assert doubt(of_cell(0, *[0xFF] * 9)) == "a row has an absurd size"
    assert doubt(chain_of_another) == "a page belongs to two rows"


def flipped(path: Path, chance: random.Random) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(chance.randrange(1, 4)):
        # Heads of pages are hit more often: there the tree is.
        page = chance.randrange(len(data) // 1024)
        at = page * 1024 + chance.randrange(chance.choice([16, 100, 1024]))
        if at >= 100:
            data[at] ^= 1 << chance.randrange(8)
    path.write_bytes(data[: chance.choice([len(data)] * 9 + [len(data) // 2])])


@pytest.mark.usefixtures("short")
def test_damage_ends_in_a_doubt_or_is_elsewhere(tmp_path: Path) -> None:
    path, whole = tmp_path / "store.db", tmp_path / "whole.db"
    connection = plain(whole, rows=300, size=300)
    connection.execute("UPDATE t SET b = randomblob(3000) WHERE id % 20 = 0")
    connection.close()
    old = recorded(whole)
    doubts = set()
    claims = 0
    for seed in range(80):
        shutil.copyfile(whole, path)
        flipped(path, random.Random(seed))
        try:
            recording, _ = outcome(path)
            doubts.add(recording.doubt)
            with reading(path, Pace.SLICED) as (reader, table):
                answer = unchanged(reader, table, old.stretches)
                doubts.add(answer.doubt)
                for stretch in answer.stretches:
                    then = old.rows[old.stretches.index(stretch)]
                    # The last row is found without looking at the leaf behind it, which may be the damaged one.
                    found = reader.connection.execute(
                        f"SELECT {COLUMNS} FROM t WHERE rowid >= ? ORDER BY rowid LIMIT ?", (stretch.low, len(then))
                    )
                    assert found.fetchall() == then, seed
                    claims += 1
        except (apsw.CorruptError, apsw.NotADBError, KeyError):
            continue
    assert claims > 700
    assert len(doubts) > 4, doubts
