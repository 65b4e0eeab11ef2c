"""Reading a whole table once, as what each range of its rows comes to, by several threads where that pays.

SQLite adds up a range by itself: no row becomes an object of Python's, nothing of Python's is called, and while SQLite
steps, other threads go on. So two threads read nearly twice as fast as one. Which rows are worth a closer look comes
out of each range as a list of their keys, and those few are read by whoever asked.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING

from hermes_doctor.store.cells import quote
from hermes_doctor.store.reader import FIRST_WIDTH, Pace, Reader, Values, next_width

if TYPE_CHECKING:
    from concurrent.futures import Future

    import apsw

    from hermes_doctor.store.shape import Table

_NONE: Mapping[str, str] = {}

#: Rowids in a range: what is gathered of its rows must fit into memory, for each thread, and what it costs to begin one
#: must not tell.
RANGE = 512
#: What is asked of a row may look at rows so many rowids away, and no farther: what a range comes to is kept for the
#: next scan, and is right there as long as the rows so near are the same.
REACH = 64
#: Rowids that one thread takes at once.
_BLOCK = 32 * RANGE
#: Fewer rowids than this are read by one thread: more connections would cost more than they save.
_WORTH_THREADS = 4 * _BLOCK


@dataclass(frozen=True, slots=True)
class Sifted:
    """How many ``rows`` have the rowids ``low`` to ``high``, and what they come to."""

    low: int
    high: int
    rows: int
    values: Values


#: Makes less of the values of one range, in the thread that read it.
Condense = Callable[[Values], Values]


class Sifter:
    """What is asked of each range of a table with a rowid.

    ``totals``: aggregate expressions of SQL over the table, which is not aliased; ``condense`` makes less of their
    values. ``neighbours``: names, and expressions over a row, of what they may name as ``name_before`` and
    ``name_behind``: of the rows with the next rowids.
    """

    def __init__(
        self, table: Table, totals: Sequence[str], condense: Condense = tuple, neighbours: Mapping[str, str] = _NONE
    ) -> None:
        rowid, source = table.rowid, quote(table.name)
        assert rowid is not None, "only for tables with a rowid"
        beside = "".join(_join(table, neighbours, side) for side in ("before", "behind")) if neighbours else ""
        where = f"{source}.{rowid} >= ?1 AND {source}.{rowid} <= ?2"
        self.condense = condense
        self.totals_sql = f"SELECT count(*), {', '.join(totals)} FROM {source}{beside} WHERE {where}"
        self._following_sql = f"SELECT min({rowid}) FROM {source} WHERE {rowid} > ?1"
        # One statement for each end: SQLite looks up one of them, and reads all rows for both.
        self._first_sql, self._last_sql = (f"SELECT {end}({rowid}) FROM {source}" for end in ("min", "max"))

    def ends(self, reader: Reader) -> tuple[int, int] | None:
        """Return the first and the last rowid, None where there are no rows."""
        first, last = reader.value(self._first_sql), reader.value(self._last_sql)
        return (first, last) if isinstance(first, int) and isinstance(last, int) else None

    def following(self, reader: Reader, key: int) -> int | None:
        """Return the rowid of the row behind a key, None where there is none."""
        following = reader.value(self._following_sql, (key,))
        return following if isinstance(following, int) else None

    def one(self, reader: Reader, low: int, high: int) -> tuple[int, Values]:
        """Return how many rows one range has, and what they come to."""
        count, *values = reader.row(self.totals_sql, (low, high)) or (0,)
        return (count, self.condense(tuple(values))) if isinstance(count, int) and count else (0, ())


def sift(reader: Reader, sifter: Sifter, low: int | None = None, high: int | None = None) -> Iterator[Sifted]:
    """Give what the rows from ``low`` to ``high`` come to, range after range in the order of their keys.

    Ranges without a row are left out.
    """
    bounds = _bounds(reader, sifter, low, high)
    if bounds is None:
        return
    several = reader.threads if bounds[1] - bounds[0] >= _WORTH_THREADS else 1
    begin: int | None = None
    while True:
        with reader.together(several) as connections:
            if not connections:
                yield from _by_one(reader, sifter, bounds[0] if begin is None else begin, bounds[1])
                return
            if begin is None:
                # Anew, where all threads see one moment: it may be another than when that was decided.
                bounds = _bounds(reader, sifter, low, high)
                if bounds is None:
                    return
                begin = bounds[0]
            begin = yield from _by_threads(reader, connections, sifter, begin, bounds[1])
        if begin is None:
            return


def _bounds(reader: Reader, sifter: Sifter, low: int | None, high: int | None) -> tuple[int, int] | None:
    """Return the first and the last rowid that are meant, None where there are no such rows."""
    ends = sifter.ends(reader)
    if ends is None:
        return None
    first, last = ends[0] if low is None else max(low, ends[0]), ends[1] if high is None else min(high, ends[1])
    return (first, last) if first <= last else None


def _join(table: Table, columns: Mapping[str, str], side: str) -> str:
    """Join the row before or behind each. Its table is walked beside the other, so that no row is looked up anew."""
    named = "".join(f", {expression} AS {name}_{side}" for name, expression in columns.items())
    key, step = f"doctor_key_{side}", "- 1" if side == "before" else "+ 1"
    source = quote(table.name)
    return f" LEFT JOIN (SELECT {table.rowid} AS {key}{named} FROM {source}) ON {key} = {source}.{table.rowid} {step}"


def _by_one(reader: Reader, sifter: Sifter, first: int, last: int) -> Iterator[Sifted]:
    low: int | None = first
    width = FIRST_WIDTH if reader.pace is Pace.SLICED else RANGE
    while low is not None and low <= last:
        high = min(low + width - 1, last)
        started = time.monotonic()
        count, values = sifter.one(reader, low, high)
        took = time.monotonic() - started
        if reader.pace is Pace.SLICED:
            width = min(RANGE, next_width(width, took, reader.pace))
        if count:
            yield Sifted(low, high, count, values)
            low = high + 1
        else:
            # Ids can be sparse: never count through a gap.
            low = sifter.following(reader, high)


def _by_threads(
    reader: Reader, connections: Sequence[apsw.Connection], sifter: Sifter, first: int, last: int
) -> Generator[Sifted, None, int | None]:
    """Read blocks of ranges by a thread for each connection; return where to go on once the moment is over."""
    # Here, and not with the others: it brings logging along, and small stores are read by one thread.
    from concurrent.futures import ThreadPoolExecutor

    idle: queue.SimpleQueue[apsw.Connection] = queue.SimpleQueue()
    for connection in connections:
        idle.put(connection)

    def read(low: int, high: int) -> list[Sifted]:
        connection = idle.get()
        try:
            return list(takewhile(lambda _: not stopped.is_set(), _read_block(connection, sifter, low, high)))
        finally:
            idle.put(connection)

    stopped = threading.Event()
    low: int | None = first
    ahead: deque[Future[list[Sifted]]] = deque()
    with ThreadPoolExecutor(len(connections)) as threads:
        try:
            while True:
                # At least one block of each moment, however short that is.
                while low is not None and len(ahead) < 2 * len(connections) and (low == first or not reader.expired):
                    high = min(low + _BLOCK - 1, last)
                    ahead.append(threads.submit(read, low, high))
                    low = sifter.following(reader, high) if high < last else None
                if not ahead:
                    return low
                yield from _result(reader, ahead.popleft())
        finally:
            # Whoever stops early must not wait for what nobody wants any more.
            stopped.set()
            threads.shutdown(wait=False, cancel_futures=True)
            if ahead:
                for connection in connections:
                    connection.interrupt()


def _result(reader: Reader, block: Future[list[Sifted]]) -> list[Sifted]:
    try:
        return block.result()
    except BaseException:
        # It may have been interrupted because of that.
        reader.check_time()
        raise


def _read_block(connection: apsw.Connection, sifter: Sifter, first: int, last: int) -> Iterator[Sifted]:
    for low in range(first, last + 1, RANGE):
        high = min(low + RANGE - 1, last)
        for count, *values in connection.execute(sifter.totals_sql, (low, high)):
            if isinstance(count, int) and count:
                yield Sifted(low, high, count, sifter.condense(tuple(values)))
