"""The reader: every row once, at a pace that lets a living hermes write."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import apsw
import pytest

from hermes_doctor.store import reader as module
from hermes_doctor.store.cells import BadText, Cell, Key
from hermes_doctor.store.reader import SLICE_SECONDS, Pace, Reader, in_keys
from hermes_doctor.store.shape import Table, read_shape

LOWEST, HIGHEST = -(2**63), 2**63 - 1
PACES = list(Pace)


class Files:
    """Makes store files, and connections to them that are closed at the end of the test."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: list[apsw.Connection] = []
        self.path = folder / "store.db"

    def connect(self) -> apsw.Connection:
        connection = apsw.Connection(str(self.path))
        self._open.append(connection)
        return connection

    def make(self, *statements: str, mode: str = "delete", encoding: str = "UTF-8") -> apsw.Connection:
        connection = self.connect()
        connection.execute(f"PRAGMA encoding = '{encoding}'")
        connection.pragma("journal_mode", mode)
        connection.pragma("synchronous", "off")
        for statement in statements:
            connection.execute(statement)
        return connection

    def reader(self, pace: Pace, *, rests: bool = False) -> Reader:
        connection = self.connect()
        encoding = str(connection.pragma("encoding"))
        return Reader(connection, pace, encoding=encoding, rests=rests)

    def close(self) -> None:
        for connection in self._open:
            connection.close()


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Files]:
    made = Files(tmp_path)
    yield made
    made.close()


def table_of(reader: Reader, name: str = "t") -> Table:
    return read_shape(reader.connection).tables[name]


def fill(connection: apsw.Connection, ids: Sequence[int]) -> None:
    with connection:
        connection.executemany("INSERT INTO t(id, v) VALUES (?, 'x')", [(number,) for number in ids])


@dataclass
class Clock:
    """Stands for the module `time` in the reader: time passes when the test says so, sleeps are noted."""

    now: float = 1000.0
    slept: list[float] = field(default_factory=list)

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("hermes_doctor.store.reader.time", made)
    return made


@contextmanager
def counted(connection: apsw.Connection) -> Iterator[list[str]]:
    """The statements that are run on the connection inside the block."""
    seen: list[str] = []

    def note(_cursor: apsw.Cursor, sql: str, _values: object) -> bool:
        seen.append(sql)
        return True

    connection.exec_trace = note
    try:
        yield seen
    finally:
        connection.exec_trace = None


# ---- Walking

LAYOUTS: dict[str, Sequence[int]] = {
    "none": (),
    "one": (7,),
    "dense": range(1, 2001),
    "one range exactly": range(1, 257),
    "one row into the second range": range(1, 258),
    "gaps": [*range(1, 300), *range(10**6, 10**6 + 300), 10**12],
    "below zero": range(-700, 5),
    "the lowest and the highest": (LOWEST, LOWEST + 1, -1, 0, 5, HIGHEST - 1, HIGHEST),
    "only the lowest": (LOWEST,),
    "only the highest": (HIGHEST,),
}


@pytest.mark.parametrize("pace", PACES)
@pytest.mark.parametrize("ids", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_a_walk_gives_every_row_once_in_order(files: Files, pace: Pace, ids: Sequence[int]) -> None:
    fill(files.make("CREATE TABLE t(id INTEGER PRIMARY KEY, v)"), ids)
    reader = files.reader(pace)
    assert [row[0] for row in reader.walk(table_of(reader), ["id"])] == sorted(ids)
    reader.finish()
    assert not reader.connection.in_transaction


@pytest.mark.parametrize("pace", PACES)
def test_a_walk_gives_only_what_its_condition_holds_for(files: Files, pace: Pace) -> None:
    """An OR in the condition does not escape the range, and ranges without a hit end no walk."""
    fill(files.make("CREATE TABLE t(id INTEGER PRIMARY KEY, v)"), range(1, 5001))
    reader = files.reader(pace)
    walked = reader.walk(table_of(reader), ["id", "v"], "id = 3 OR id = 4999 OR v = 'y'")
    assert list(walked) == [(3, "x"), (4999, "x")]


def test_a_walk_does_not_count_through_gaps(files: Files) -> None:
    fill(files.make("CREATE TABLE t(id INTEGER PRIMARY KEY, v)"), [1, 10**9, 10**15, 10**18])
    reader = files.reader(Pace.FREE)
    with counted(reader.connection) as statements:
        assert len(list(reader.walk(table_of(reader), ["id"]))) == 4
    assert len(statements) < 40
    with counted(reader.connection) as statements:
        assert list(reader.walk(table_of(reader), ["id"], "0")) == []
    assert len(statements) < 40


def test_a_walk_reports_how_far_it_came(files: Files) -> None:
    fill(files.make("CREATE TABLE t(id INTEGER PRIMARY KEY, v)"), range(1, 3001))
    reader = files.reader(Pace.FREE)
    reached: list[int] = []
    reader.on_range = reached.append
    list(reader.walk(table_of(reader), ["id"]))
    assert reached == sorted(set(reached))
    assert reached[-1] == 3000
    assert len(reached) > 2


@pytest.mark.parametrize(
    ("create", "expected"),
    [
        ("CREATE TABLE t(k TEXT PRIMARY KEY, v) WITHOUT ROWID", ["a", "b", "c"]),
        ("CREATE TABLE t(k TEXT PRIMARY KEY, v, rowid TEXT)", ["c", "a", "b"]),
        ("CREATE TABLE t(k TEXT, v, RowId, _rowid_)", ["c", "a", "b"]),
        ("CREATE TABLE t(k TEXT, v, rowid, _rowid_, oid)", ["c", "a", "b"]),
    ],
)
def test_tables_whose_rowid_is_hard_to_reach(files: Files, create: str, expected: list[str]) -> None:
    connection = files.make(create)
    connection.executemany("INSERT INTO t(k, v) VALUES (?, 1)", [("c",), ("a",), ("b",)])
    reader = files.reader(Pace.SLICED)
    assert [row[0] for row in reader.walk(table_of(reader), ["k"])] == expected


def test_ranges_keep_to_the_slice_when_rows_are_slow(files: Files) -> None:
    """At half a millisecond a row no range may hold more rows than fit into a slice."""
    fill(files.make("CREATE TABLE t(id INTEGER PRIMARY KEY, v)"), range(1, 1501))
    reader = files.reader(Pace.SLICED)
    reader.connection.create_scalar_function("slow", _slow, 1)
    ends: list[int] = [0]
    reader.on_range = ends.append
    assert len(list(reader.walk(table_of(reader), ["id"], "slow(id)"))) == 1500
    widths = [high - low for low, high in pairwise(ends)]
    assert max(widths) <= SLICE_SECONDS / 0.0005
    assert min(widths[1:-1]) < widths[0], "the first range was too wide, so the next ones are narrower"


def _slow(*_values: Cell) -> int:
    time.sleep(0.0005)
    return 1


@pytest.mark.parametrize("pace", PACES)
def test_counting(files: Files, pace: Pace) -> None:
    fill(files.make("CREATE TABLE t(id INTEGER PRIMARY KEY, v)", "CREATE TABLE none(id)"), range(1, 1001, 3))
    reader = files.reader(pace)
    assert reader.count(table_of(reader)) == 334
    assert reader.count(table_of(reader, "none")) == 0
    assert reader.count(None) is None


def test_in_slices_all_is_counted_at_once_where_nobody_waits_and_an_index_tells(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_COUNTED_AT_ONCE", 100)
    made = files.make("CREATE TABLE t(id INTEGER PRIMARY KEY, v, wide, wider, widest)")
    fill(made, range(1, 1001, 3))

    def slices(*, rests: bool) -> int:
        reader = files.reader(Pace.SLICED, rests=rests)
        table = table_of(reader)
        with counted(reader.connection) as statements:
            assert reader.count(table) == 334
        return sum(statement.startswith("SELECT count(*)") for statement in statements)

    assert slices(rests=False) == 4, "without an index the rows themselves are gone through"
    made.execute("CREATE INDEX by_v ON t(v)")
    assert slices(rests=False) == 1
    assert slices(rests=True) == 4
    monkeypatch.setattr(module, "_COUNTED_ALONE", 1000)
    assert slices(rests=False) == 1
    made.execute("INSERT INTO t(id) VALUES (5000)")
    made.execute("DELETE FROM t WHERE id = 1")
    assert slices(rests=False) == 4


# ---- Cells that are no text

BAD = b"caf\xe9"


def _with_bad_rows(files: Files, encoding: str = "UTF-8") -> None:
    connection = files.make("CREATE TABLE t(id INTEGER PRIMARY KEY, v, w)", encoding=encoding)
    connection.executemany("INSERT INTO t VALUES (?, ?, ?)", [(n, f"é{n}", b"\xff") for n in range(1, 11)])
    for number in (3, 7):
        connection.execute("UPDATE t SET v = CAST(? AS TEXT) WHERE id = ?", (BAD, number))
    connection.execute("UPDATE t SET v = NULL WHERE id = 9")


@pytest.mark.parametrize("pace", PACES)
def test_text_that_is_no_text_costs_no_other_cell(files: Files, pace: Pace) -> None:
    _with_bad_rows(files)
    reader = files.reader(pace)
    expected: list[tuple[Cell, ...]] = [(n, f"é{n}", b"\xff") for n in range(1, 11)]
    expected[2], expected[6], expected[8] = (3, BadText(BAD), b"\xff"), (7, BadText(BAD), b"\xff"), (9, None, b"\xff")
    for rows in (
        list(reader.walk(table_of(reader), ["id", "v", "w"])),
        list(reader.rows("SELECT id, v, w FROM t WHERE id > ?1 ORDER BY id", (0,))),
    ):
        assert rows == expected
        assert [type(row[1]) for row in rows if row[0] in (3, 7)] == [BadText, BadText]
        assert type(rows[0][2]) is bytes, "a blob is no text"
    backwards = reader.rows("SELECT id, v FROM t ORDER BY id DESC LIMIT 9")
    assert [row[0] for row in backwards] == list(range(10, 1, -1))
    assert reader.row("SELECT v, v FROM t WHERE id = 3") == (BadText(BAD), BadText(BAD))
    assert reader.value("SELECT v FROM t WHERE id = 7") == BadText(BAD)
    assert reader.value("SELECT v FROM t WHERE id = 70") is None
    assert reader.row("SELECT v FROM t WHERE id = 70") is None


def test_bad_text_behind_a_join_and_a_clause_keeps_its_order(files: Files) -> None:
    _with_bad_rows(files)
    reader = files.reader(Pace.FREE)
    sql = "SELECT a.id, b.v FROM t AS a JOIN t AS b ON b.id = a.id WHERE a.id IN (?, ?, ?) ORDER BY a.id * -1"
    assert list(reader.rows(sql, (2, 3, 7))) == [(7, BadText(BAD)), (3, BadText(BAD)), (2, "é2")]


def test_rows_that_vanish_while_bad_text_is_read_again(files: Files) -> None:
    """A slice is one moment: whoever deletes between the two readings comes before or after it."""
    _with_bad_rows(files)
    other = files.connect()
    reader = files.reader(Pace.SLICED)
    refused: list[str] = []

    def meddle(_cursor: apsw.Cursor, sql: str, _values: object) -> bool:
        if sql.startswith("WITH guarded"):
            try:
                other.execute("DELETE FROM t")
            except apsw.BusyError:
                refused.append(sql)
        return True

    reader.connection.exec_trace = meddle
    assert [row[0] for row in reader.rows("SELECT id, v FROM t ORDER BY id")] == list(range(1, 11))
    assert len(refused) == 1


def test_utf_16_stores(files: Files) -> None:
    connection = files.make("CREATE TABLE t(id INTEGER PRIMARY KEY, v)", encoding="UTF-16le")
    connection.execute("INSERT INTO t VALUES (1, 'é😀')")
    reader = files.reader(Pace.FREE)
    assert reader.encoding == "UTF-16le"
    assert reader.value("SELECT v FROM t") == "é😀"


# ---- Pace


@pytest.mark.parametrize(("pace", "renews"), [(Pace.SNAPSHOT, True), (Pace.FREE, False)])
def test_a_snapshot_is_kept_and_then_renewed(files: Files, pace: Pace, renews: bool, clock: Clock) -> None:
    writer = files.make("CREATE TABLE t(id INTEGER PRIMARY KEY, v)", mode="wal")
    reader = files.reader(pace)
    assert reader.value("SELECT count(*) FROM t") == 0
    fill(writer, [1])
    clock.now += module.SNAPSHOT_SECONDS - 0.1
    assert reader.value("SELECT count(*) FROM t") == 0
    assert not reader.moved
    clock.now += 0.2
    assert reader.value("SELECT count(*) FROM t") == (1 if renews else 0)
    assert reader.moved is renews


def test_no_snapshot_lives_for_30_seconds() -> None:
    assert module.SNAPSHOT_SECONDS + 2 * module._RANGE_TARGET["snapshot"] < 30


def test_a_snapshot_is_not_renewed_under_rows_that_are_being_given(files: Files, clock: Clock) -> None:
    """It could not be: SQLite keeps it. But the first statement behind them gets a new one."""
    writer = files.make("CREATE TABLE t(id INTEGER PRIMARY KEY, v)", mode="wal")
    fill(writer, range(1, 11))
    reader = files.reader(Pace.SNAPSHOT)
    outer = reader.rows("SELECT id FROM t")
    next(outer)
    fill(writer, range(11, 21))
    clock.now += 100
    assert reader.value("SELECT count(*) FROM t") == 10
    assert len(list(outer)) == 9
    assert reader.value("SELECT count(*) FROM t") == 20
    assert reader.moved


def test_rows_that_are_not_fetched_to_the_end_do_not_stop_the_renewal(files: Files, clock: Clock) -> None:
    writer = files.make("CREATE TABLE t(id INTEGER PRIMARY KEY, v)", mode="wal")
    fill(writer, range(1, 11))
    reader = files.reader(Pace.SNAPSHOT)
    assert reader.row("SELECT id FROM t ORDER BY id") == (1,)
    fill(writer, [11])
    clock.now += 100
    assert reader.value("SELECT count(*) FROM t") == 11


def test_after_finish_the_log_can_be_reset(files: Files) -> None:
    writer = files.make("CREATE TABLE t(id INTEGER PRIMARY KEY, v)", mode="wal")
    fill(writer, range(1, 11))
    reader = files.reader(Pace.SNAPSHOT)
    assert reader.value("SELECT count(*) FROM t") == 10
    fill(writer, [11])
    busy = writer.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()[0][0]
    reader.finish()
    assert (busy, writer.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()[0][0]) == (1, 0)
    assert reader.moved


def test_between_slices_a_writer_finds_no_lock(files: Files) -> None:
    writer = files.make("CREATE TABLE t(id INTEGER PRIMARY KEY, v)")
    fill(writer, range(1, 601))
    reader = files.reader(Pace.SLICED)
    walked = reader.walk(table_of(reader), ["id"])
    next(walked)
    # No busy timeout: any lock would raise here.
    writer.execute("UPDATE t SET v = 'y' WHERE id = 600")
    rest = list(walked)
    reader.finish()
    assert len(rest) == 599
    assert reader.moved, "what was read is of two moments"


@pytest.mark.parametrize("pace", PACES)
def test_a_store_that_stands_still_has_not_moved(files: Files, pace: Pace) -> None:
    fill(files.make("CREATE TABLE t(id INTEGER PRIMARY KEY, v)"), range(1, 601))
    reader = files.reader(pace)
    list(reader.walk(table_of(reader), ["id"]))
    reader.finish()
    assert not reader.moved


@pytest.mark.parametrize(("took", "pause"), [(0.1, 0.1), (3.0, SLICE_SECONDS)])
def test_a_slice_is_followed_by_a_pause(files: Files, clock: Clock, took: float, pause: float) -> None:
    files.make("CREATE TABLE t(id INTEGER PRIMARY KEY, v)")

    def work(*_values: Cell) -> int:
        clock.now += took
        return 1

    for rests in (True, False):
        reader = files.reader(Pace.SLICED, rests=rests)
        reader.connection.create_scalar_function("work", work, 0)
        clock.slept.clear()
        assert reader.value("SELECT work()") == 1
        assert clock.slept == ([pytest.approx(pause)] if rests else [])
        clock.slept.clear()
        with reader.pinned():
            reader.value("SELECT work()")
        assert clock.slept == [], "no pause while the lock is held"


# ---- One moment


def test_pinned_is_one_moment_in_wal_mode(files: Files, clock: Clock) -> None:
    writer = files.make("CREATE TABLE t(id INTEGER PRIMARY KEY, v)", mode="wal")
    reader = files.reader(Pace.SNAPSHOT)
    with reader.pinned():
        assert reader.value("SELECT count(*) FROM t") == 0
        fill(writer, [1])
        clock.now += 1000
        assert reader.value("SELECT count(*) FROM t") == 0
    assert not reader.connection.in_transaction
    assert reader.value("SELECT count(*) FROM t") == 1


def test_pinned_is_one_moment_in_rollback_mode(files: Files) -> None:
    writer = files.make("CREATE TABLE t(id INTEGER PRIMARY KEY, v)")
    reader = files.reader(Pace.SLICED)
    with reader.pinned():
        assert reader.value("SELECT count(*) FROM t") == 0
        with pytest.raises(apsw.BusyError):
            fill(writer, [1])
        with reader.pinned():
            assert reader.value("SELECT count(*) FROM t") == 0
        assert reader.connection.in_transaction, "the inner block does not end the outer one"
    fill(writer, [1])
    assert reader.value("SELECT count(*) FROM t") == 1


@pytest.mark.parametrize("pace", PACES)
def test_pinned_ends_with_an_error_inside(files: Files, pace: Pace) -> None:
    files.make("CREATE TABLE t(id INTEGER PRIMARY KEY, v)")
    reader = files.reader(pace)
    with pytest.raises(ZeroDivisionError), reader.pinned():
        raise ZeroDivisionError
    assert not reader.connection.in_transaction
    assert reader.value("SELECT count(*) FROM t") == 0


@pytest.mark.parametrize("pace", PACES)
@pytest.mark.parametrize("pinned", [True, False], ids=["pinned", "not pinned"])
def test_a_transaction_of_the_caller_is_left_open(files: Files, pace: Pace, pinned: bool) -> None:
    """A fix looks through the reader inside its own write transaction, and may yet take it back."""
    files.make("CREATE TABLE t(id INTEGER PRIMARY KEY, v)")
    reader = files.reader(pace)
    reader.connection.execute("BEGIN IMMEDIATE")
    fill(reader.connection, [1])
    if pinned:
        with reader.pinned():
            assert reader.value("SELECT count(*) FROM t") == 1
    else:
        assert reader.value("SELECT count(*) FROM t") == 1
    reader.finish()
    assert reader.connection.in_transaction
    reader.connection.execute("ROLLBACK")
    assert reader.value("SELECT count(*) FROM t") == 0


# ---- Keys

STORED: dict[str, Cell] = {
    "text": "s1",
    "a number as text": "5",
    "empty": "",
    "with a NUL": "a\x00b",
    "not ASCII": "é😀",
    "blob": b"s1",
    "bad text": BadText(BAD),
}


@pytest.mark.parametrize("make", [str, lambda column: f"t.{column}"], ids=["plain", "qualified"])
def test_keys_of_every_kind_are_found_as_they_were_stored(files: Files, make: Callable[[str], str]) -> None:
    connection = files.make("CREATE TABLE t(id TEXT PRIMARY KEY, name)")
    for name, cell in STORED.items():
        marks = "CAST(? AS TEXT), ?" if isinstance(cell, BadText) else "?, ?"
        connection.execute(f"INSERT INTO t VALUES ({marks})", (cell, name))
    reader = files.reader(Pace.FREE)
    for name, cell in STORED.items():
        among, values = in_keys(make("id"), [cell])
        assert list(reader.rows(f"SELECT name FROM t WHERE {among}", values)) == [(name,)]
    keys: list[Key] = list(STORED.values())
    among, values = in_keys(make("id"), [*keys, "nobody", None])
    found = {row[0] for row in reader.rows(f"SELECT name FROM t WHERE {among} AND 1", values)}
    assert found == set(STORED)
    among, values = in_keys(make("id"), [])
    assert list(reader.rows(f"SELECT name FROM t WHERE {among}", values)) == []


def test_a_composite_key_is_no_value_of_one_column() -> None:
    with pytest.raises(TypeError, match="composite"):
        in_keys("id", [("s1", "m")])
