"""Sifting: every row in one range, the same by one thread and by several, of one moment, and no waiting for a stop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import apsw
import pytest

from hermes_doctor.store import sifting
from hermes_doctor.store.reader import Pace, Reader
from hermes_doctor.store.shape import Table, read_shape
from hermes_doctor.store.sifting import Sifter, sift

LOWEST, HIGHEST = -(2**63), 2**63 - 1

LAYOUTS: dict[str, Sequence[int]] = {
    "none": (),
    "one": (7,),
    "dense": range(1, 6001),
    "one range exactly": range(1, sifting.RANGE + 1),
    "gaps": [*range(1, 300), *range(10**6, 10**6 + 300), 10**12],
    "below zero": range(-700, 5),
    "the lowest and the highest": (LOWEST, LOWEST + 1, -1, 0, 5, HIGHEST - 1, HIGHEST),
}


class Store:
    """A file with a table t, a reader on it, and more connections for it."""

    def __init__(self, path: Path, ids: Sequence[int], mode: str) -> None:
        self.path = path
        self.writer = self.connect()
        self.writer.pragma("journal_mode", mode)
        self.writer.pragma("synchronous", "off")
        self.writer.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, v)")
        with self.writer:
            self.writer.executemany("INSERT INTO t VALUES (?1, ?1 % 7)", [(number,) for number in ids])

    def connect(self) -> apsw.Connection:
        connection = apsw.Connection(str(self.path))
        connection.set_busy_timeout(5000)
        return connection

    def reader(self, pace: Pace, threads: int, *, rests: bool = False) -> Reader:
        return Reader(self.connect(), pace, rests=rests, threads=threads, another=self.connect)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Store]]:
    made: list[Store] = []

    def make(ids: Sequence[int], mode: str = "wal") -> Store:
        made.append(Store(tmp_path / f"{len(made)}.db", ids, mode))
        return made[-1]

    yield make
    for store in made:
        store.writer.close()


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let threads read what is too small for them to be worth it."""
    monkeypatch.setattr(sifting, "_WORTH_THREADS", 0)
    monkeypatch.setattr(sifting, "RANGE", 64)
    monkeypatch.setattr(sifting, "_BLOCK", 256)


def table_of(reader: Reader) -> Table:
    return read_shape(reader.connection).tables["t"]


def keys_of(reader: Reader, *, where: str = "1") -> list[int]:
    """The keys that all ranges come to, in their order."""
    keys: list[int] = []
    before = None
    for sifted in sift(reader, Sifter(table_of(reader), [f"group_concat(id) FILTER (WHERE {where})"])):
        assert sifted.low <= sifted.high
        assert before is None or sifted.low > before
        before = sifted.high
        (some,) = sifted.values
        keys += [int(key) for key in str(some or "").split(",") if key]
        assert not keys or keys[-1] <= sifted.high
    return keys


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("pace", Pace)
@pytest.mark.parametrize("ids", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_every_row_is_in_one_range(
    make: Callable[..., Store], eager: None, ids: Sequence[int], pace: Pace, threads: int
) -> None:
    reader = make(ids).reader(pace, threads)
    assert keys_of(reader) == sorted(ids)
    assert keys_of(reader, where="v = 3") == [key for key in sorted(ids) if key > 0 and key % 7 == 3]
    reader.finish()
    assert not reader.connection.in_transaction
    assert not reader.moved


def test_neighbours_are_those_in_the_table_across_ranges(make: Callable[..., Store], eager: None) -> None:
    ids = [*range(1, 500), *range(600, 700)]
    reader = make(ids).reader(Pace.FREE, 2)
    alone = {
        "id_before IS NULL": [1, 600],
        "id_behind IS NULL": [499, 699],
        "id_before = id - 1 AND id_behind = id + 1": [*range(2, 499), *range(601, 699)],
    }
    for condition, expected in alone.items():
        totals = [f"group_concat(t.id) FILTER (WHERE {condition})"]
        found = [sifted.values[0] for sifted in sift(reader, Sifter(table_of(reader), totals, neighbours={"id": "id"}))]
        assert [int(key) for some in found if some for key in str(some).split(",")] == expected


def test_what_a_range_comes_to_is_made_less_of_where_it_is_read(make: Callable[..., Store], eager: None) -> None:
    readers: set[str] = set()

    def condense(values: tuple[object, ...]) -> tuple[int]:
        readers.add(threading.current_thread().name)
        return (len(str(values[0]).split(",")),)

    reader = make(range(1, 2001)).reader(Pace.FREE, 2)
    assert sum(s.values[0] for s in sift(reader, Sifter(table_of(reader), ["group_concat(v)"], condense))) == 2000  # type: ignore[misc]  # condensed to a number
    assert threading.current_thread().name not in readers


def test_several_threads_read_one_moment_beside_a_writer(make: Callable[..., Store], eager: None) -> None:
    """Each transaction moves one row from the last range to the first: no moment has fewer rows, or more."""
    store = make(range(1, 3001))
    stop = threading.Event()
    moves = 0

    def write() -> None:
        nonlocal moves
        with store.connect() as writer:
            pass
        writer.pragma("synchronous", "off")
        while not stop.is_set():
            moves += 1
            writer.execute("UPDATE t SET id = -id WHERE id = (SELECT max(id) FROM t)")
            writer.execute("UPDATE t SET id = -id WHERE id = (SELECT min(id) FROM t)")
            time.sleep(0.002)
        writer.close()

    writing = threading.Thread(target=write)
    writing.start()
    try:
        together = 0
        while moves < 20:
            reader = store.reader(Pace.SNAPSHOT, 2)
            assert len(keys_of(reader)) == 3000
            together += len(reader._others)
            reader.finish()
            reader.connection.close()
    finally:
        stop.set()
        writing.join()
    assert together > 0, "each time but one thread read: the test shows nothing"


def test_a_moment_that_is_over_is_let_go(
    make: Callable[..., Store], eager: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that are written meanwhile are seen then, and it is known that the store moved."""
    store = make(range(1, 5001))
    reader = store.reader(Pace.SNAPSHOT, 2)
    seen = rewritten = 0
    for sifted in sift(reader, Sifter(table_of(reader), ["count(*) FILTER (WHERE v = 'new')"])):
        seen += sifted.rows
        rewritten += int(str(sifted.values[0]))
        if sifted.high == 64:
            store.writer.execute("INSERT INTO t SELECT 5000 + id, 1 FROM t WHERE id <= 10")
            store.writer.execute("UPDATE t SET v = 'new' WHERE id > 4990")
            monkeypatch.setattr("hermes_doctor.store.reader.SNAPSHOT_SECONDS", 0.0)
            # Renewed at each block from here on; what was the last row when it began is the last that is read.
    assert (seen, rewritten) == (5000, 10)
    assert reader.moved
    reader.finish()
    # Nobody keeps to any moment by then: the log can be begun anew.
    assert store.writer.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()[0][0] == 0


@pytest.mark.parametrize("threads", [1, 2])
def test_rows_that_come_behind_the_last_meanwhile_are_not_waited_for(
    make: Callable[..., Store], eager: None, threads: int
) -> None:
    store = make(range(1, 1001), "delete")
    reader = store.reader(Pace.SLICED, threads)
    seen = 0
    for sifted in sift(reader, Sifter(table_of(reader), ["NULL"])):
        seen += sifted.rows
        store.writer.execute("INSERT INTO t SELECT max(id) + 1, 1 FROM t")
    assert seen == 1000
    reader.finish()
    assert reader.moved


def test_a_reader_that_must_rest_is_alone(make: Callable[..., Store], eager: None) -> None:
    """In slices with rests somebody may wait: two readers in turn would leave no rest."""
    reader = make(range(1, 2001), "delete").reader(Pace.SLICED, 2, rests=True)
    assert keys_of(reader) == list(range(1, 2001))
    assert reader._others == []


def test_damage_in_one_range_is_told_when_its_turn_comes(make: Callable[..., Store], eager: None) -> None:
    store = make(range(1, 3001))

    def fail(key: int) -> int:
        if key == 2000:
            raise apsw.CorruptError("as if")
        return 1

    reader = store.reader(Pace.FREE, 2)
    reader.define("touch", fail)
    highs: list[int] = []
    ranges = (sifted.high for sifted in sift(reader, Sifter(table_of(reader), ["sum(touch(id))"])))
    with pytest.raises(apsw.CorruptError):
        highs.extend(ranges)
    assert highs
    assert max(highs) < 2000


def test_whoever_stops_early_waits_for_nobody(make: Callable[..., Store], eager: None) -> None:
    reader = make(range(1, 3001)).reader(Pace.FREE, 2)

    def slow(key: int) -> int:
        if key > 256:
            time.sleep(0.02)
        return key

    reader.define("slow", slow)
    ranges = sift(reader, Sifter(table_of(reader), ["sum(slow(id))"]))
    next(ranges)
    begun = time.monotonic()
    ranges.close()  # type: ignore[attr-defined]  # a generator
    # A range of 64 rows at 20 ms each may have begun just then; sixteen are ahead.
    assert time.monotonic() - begun < 5
