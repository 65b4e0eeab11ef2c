"""Reading a store without making a living hermes wait.

Three paces. FREE: nobody can be waiting (a lease proves it, or this is a private copy): one read transaction.
SNAPSHOT: WAL mode, where a reader blocks nobody but keeps the log from being reset: one snapshot, renewed after
25 s. SLICED: rollback mode, where a reader blocks the writer's commit (a 70 s read made 0.22.2 lose a turn): every
statement is a short one, followed by a pause as long, and tables are walked by key.
"""

from __future__ import annotations

import enum
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import apsw

from hermes_doctor.store.cells import BadText, Cell, Key, decoded, quote
from hermes_doctor.store.shape import Table

#: Age at which a snapshot is renewed, in seconds: what is under way then ends first, and none may reach 30.
SNAPSHOT_SECONDS = 25.0
#: Longest that one slice may hold the shared lock, in seconds.
SLICE_SECONDS = 0.25

#: What one range of a walk aims at, in seconds: well under the limit, since rows differ.
_RANGE_TARGET = {"free": 1.0, "snapshot": 1.0, "sliced": SLICE_SECONDS / 4}
FIRST_WIDTH = 256
_WIDEST = 1 << 20
#: How often several connections are tried to be brought to one moment, and what makes each see one.
_TRIES = 3
_TOUCH = "SELECT 1 FROM sqlite_schema LIMIT 1"
#: Rows that are counted in one slice; a b-tree's leaves hold the keys of a few dozen rows each.
_COUNTED_AT_ONCE = 20_000
#: Up to so many ids a table is counted in one statement where nobody has the store open: some milliseconds.
_COUNTED_ALONE = 2_000_000

Values = tuple[Cell, ...]


def _unknown() -> bool:
    return False


class TimeIsUp(BaseException):  # no error: nobody who catches errors may swallow it
    """What was to be read was not read in the time that there was for it."""


class Pace(enum.StrEnum):
    """How fast a store may be read; see the module."""

    FREE = "free"
    SNAPSHOT = "snapshot"
    SLICED = "sliced"


@dataclass
class Reader:
    """Queries on one store at one pace.

    ``rests``: whether a slice is followed by a pause as long (somebody may be waiting). ``moved`` turns True when
    somebody else wrote to the store between two slices or snapshots: what was read then is of different moments,
    and findings need to be confirmed. ``threads``: how many may read at once, each by a connection that ``another``
    gives (to be closed by whoever gave it). ``undisturbed``: whether it is proven that nobody has written so far.
    ``deadline``: when to stop with `TimeIsUp`, by the monotonic clock in seconds. ``on_range`` is told the last rowid
    of each range that was read; ``on_share`` how much of a long piece of work is done, 0 to 1, by whoever does one.
    """

    connection: apsw.Connection
    pace: Pace
    encoding: str = "UTF-8"
    rests: bool = True
    moved: bool = False
    on_range: Callable[[int], None] | None = None
    on_share: Callable[[float], None] | None = None
    threads: int = 1
    another: Callable[[], apsw.Connection] | None = None
    undisturbed: Callable[[], bool] = _unknown
    deadline: float | None = None
    _others: list[apsw.Connection] = field(default_factory=list, init=False)
    _functions: dict[str, Callable[..., Any]] = field(default_factory=dict, init=False)
    _version: int | None = field(default=None, init=False)
    _snapshot_since: float | None = field(default=None, init=False)
    _pinned: int = field(default=0, init=False)
    _open: int = field(default=0, init=False)

    def rows(self, sql: str, values: Sequence[Cell] = ()) -> Iterator[Values]:
        """Run one statement and give its rows; text that is no text comes as BadText.

        In the sliced pace the rows are fetched before the first is given, so that the lock is held no longer than
        the statement runs.
        """
        self.check_time()
        self._renew()
        if self.pace is not Pace.SLICED:
            self._open += 1
            try:
                yield from self._decoded(sql, values)
            except apsw.InterruptError:
                self.check_time()
                raise
            finally:
                self._open -= 1
            return
        started = time.monotonic()
        with self.pinned():
            fetched = list(self._decoded(sql, values))
        self._rest(time.monotonic() - started)
        yield from fetched

    def check_time(self) -> None:
        """Raise TimeIsUp past the deadline."""
        if self.deadline is not None and time.monotonic() >= self.deadline:
            raise TimeIsUp

    @contextmanager
    def until(self, deadline: float | None) -> Iterator[None]:
        """Let nothing read past a deadline inside, however long its statement is."""
        if deadline is None:
            yield
            return
        timer = threading.Timer(max(deadline - time.monotonic(), 0), self._interrupt)
        timer.daemon = True
        self.deadline = deadline
        timer.start()
        try:
            yield
        except apsw.InterruptError:
            self.check_time()
            raise
        finally:
            timer.cancel()
            self.deadline = None

    def _interrupt(self) -> None:
        for connection in (self.connection, *self._others):
            connection.interrupt()

    def row(self, sql: str, values: Sequence[Cell] = ()) -> Values | None:
        """Run one statement and give its first row, or None."""
        return next(iter(self.rows(sql, values)), None)

    def value(self, sql: str, values: Sequence[Cell] = ()) -> Cell:
        """Run one statement and give the first value of its first row, or None."""
        first = self.row(sql, values)
        return first[0] if first else None

    def walk(
        self, table: Table, columns: Sequence[str], where: str = "1", *, key: str | None = None
    ) -> Iterator[Values]:
        """Give the rows of a table for which ``where`` holds, in rowid order, reading it in ranges of its rowid.

        ``columns`` and ``where`` are SQL over the table, which is not aliased. A range's width follows the time
        that the last ones took, so that none holds the store longer than the pace allows. A table without a
        reachable rowid is read in one statement. ``key`` overrides the rowid's name.
        """
        listed = ", ".join(columns)
        rowid = key or table.rowid
        if rowid is None:
            yield from self.rows(f"SELECT {listed} FROM {quote(table.name)} WHERE ({where})")
            return
        source = quote(table.name)
        # Both ends inclusive: the smallest rowid has none below it that could be bound.
        ranged = f"SELECT {listed} FROM {source} WHERE {rowid} >= ?1 AND {rowid} <= ?2 AND ({where})"
        following = f"SELECT min({rowid}) FROM {source} WHERE {rowid} > ?1"
        last = self.value(f"SELECT max({rowid}) FROM {source}")
        first = self.value(f"SELECT min({rowid}) FROM {source}")
        if not isinstance(first, int) or not isinstance(last, int):
            return
        low, width = first, FIRST_WIDTH
        while low <= last:
            high = min(low + width - 1, last)
            started = time.monotonic()
            yielded = 0
            for values in self.rows(ranged, (low, high)):
                yielded += 1
                yield values
            took = time.monotonic() - started
            if self.on_range is not None:
                self.on_range(high)
            low = high + 1
            width = next_width(width, took, self.pace)
            if not yielded and low <= last:
                # Ids can be sparse: never count through a gap.
                next_id = self.value(following, (high,))
                if not isinstance(next_id, int):
                    return
                low = next_id

    def count(self, table: Table | None) -> int | None:
        """Return how many rows a table has, None where there is no table."""
        if table is None:
            return None
        if self.pace is Pace.SLICED and table.rowid is not None and not self._counts_at_once(table, table.rowid):
            return self._count_in_slices(table, table.rowid)
        counted = self.value(f"SELECT count(*) FROM {quote(table.name)}")
        return counted if isinstance(counted, int) else None

    def _counts_at_once(self, table: Table, rowid: str) -> bool:
        """Whether nobody can be waiting, and an index tells: slices go through the rows themselves."""
        if self.rests:
            return False
        source = quote(table.name)
        first, last = (self.value(f"SELECT {end}({rowid}) FROM {source}") for end in ("min", "max"))
        if not isinstance(first, int) or not isinstance(last, int) or last - first >= _COUNTED_ALONE:
            return False
        plan = self.rows(f"EXPLAIN QUERY PLAN SELECT count(*) FROM {source}")
        return any("COVERING INDEX" in str(step[-1]) for step in plan)

    def _count_in_slices(self, table: Table, rowid: str) -> int:
        following = (
            f"SELECT count(*), max(key) FROM (SELECT {rowid} AS key FROM {quote(table.name)}"
            f" WHERE {rowid} > ?1 ORDER BY {rowid} LIMIT {_COUNTED_AT_ONCE})"
        )
        total, last = 0, -(1 << 63)
        while True:
            counted, key = self.row(following, (last,)) or (0, None)
            total += counted if isinstance(counted, int) else 0
            if not isinstance(key, int) or counted != _COUNTED_AT_ONCE:
                return total
            last = key

    @contextmanager
    def pinned(self) -> Iterator[None]:
        """Keep everything inside to one moment of the store: no renewal, no pause. For short work only."""
        self._pinned += 1
        opened = self.connection.in_transaction is False
        if opened:
            self.connection.execute("BEGIN")
        try:
            yield
        finally:
            self._pinned -= 1
            if opened and self.connection.in_transaction:
                self.connection.execute("COMMIT")

    def define(self, name: str, called: Callable[..., Any]) -> None:
        """Let SQL call a function of one argument by a name, in every connection that reads for this reader.

        It must give the same for the same argument.
        """
        self._functions[name] = called
        for connection in (self.connection, *self._others):
            connection.create_scalar_function(name, called, 1, deterministic=True)

    @contextmanager
    def together(self, count: int) -> Iterator[Sequence[apsw.Connection]]:
        """Let so many more connections read the same moment as this one, and keep to that moment inside.

        Gives none where one reads as well, or where that cannot be had: somebody keeps writing, or would wait for us.
        Inside, `expired` says when the moment has to be let go.
        """
        connections = self._more(count) if count > 1 and not self._open and not self._pinned else []
        if not connections or not self._begin_together(connections):
            yield ()
            return
        self._pinned += 1
        try:
            yield connections
        finally:
            self._pinned -= 1
            for connection in connections:
                if connection.in_transaction:
                    connection.execute("COMMIT")

    @property
    def expired(self) -> bool:
        """Whether the snapshot is so old that it has to be renewed before anything more is read."""
        since = self._snapshot_since
        return self.pace is Pace.SNAPSHOT and since is not None and time.monotonic() - since >= SNAPSHOT_SECONDS

    @property
    def moment(self) -> int | None:
        """A number that is the same as long as nobody else writes to the store; None where nobody can by proof."""
        return None if self.pace is Pace.FREE or self.undisturbed() else self._data_version()

    def _more(self, count: int) -> list[apsw.Connection]:
        # In slices with rests the point is that nobody waits; two readers at once would leave no rest.
        if self.another is None or (self.pace is Pace.SLICED and self.rests):
            return []
        while len(self._others) < count:
            connection = self.another()
            self._others.append(connection)
            for name, called in self._functions.items():
                connection.create_scalar_function(name, called, 1, deterministic=True)
        return self._others[:count]

    def _begin_together(self, connections: Sequence[apsw.Connection]) -> bool:
        """Begin to read on all connections at one moment; tell whether it is one.

        Slices begin and end by themselves: whether somebody wrote meanwhile shows in `moved`.
        """
        if self.pace is Pace.SLICED:
            self._look()
            return True
        if self.pace is Pace.FREE:
            self._renew()
        for _ in range(_TRIES):
            if self.pace is Pace.SNAPSHOT and self.connection.in_transaction:
                if self._snapshot_since is None:
                    return False  # a transaction of the caller's
                self.connection.execute("COMMIT")
                self._snapshot_since = None
            before = self._data_version()
            for connection in connections:
                connection.execute("BEGIN")
                connection.execute(_TOUCH).fetchall()
            self._renew()
            self.connection.execute(_TOUCH).fetchall()
            if self.pace is Pace.FREE or self._data_version() == before or self.undisturbed():
                return True
            for connection in connections:
                connection.execute("COMMIT")
        return False

    def finish(self) -> None:
        """End the snapshot, if there is one, and note whether the store moved since the last look."""
        if self._snapshot_since is not None and self.connection.in_transaction:
            self.connection.execute("COMMIT")
        self._snapshot_since = None
        if self.pace is not Pace.FREE:
            self._look()

    def _decoded(self, sql: str, values: Sequence[Cell]) -> Iterator[Values]:
        given = 0
        cursor = self.connection.execute(sql, tuple(values))
        try:
            for row in cursor:
                yield row
                given += 1
        except UnicodeDecodeError:
            # The width from the row that failed: asked anew, there might be no row any more.
            width = len(cursor.get_description())
            cursor.close(True)
            for position, row in enumerate(self.connection.execute(_guarded(sql, width), tuple(values))):
                if position >= given:
                    yield tuple(_decode(row[i], row[i + 1], self.encoding) for i in range(0, len(row), 2))

    def _renew(self) -> None:
        """Begin, keep or renew the snapshot, as the pace asks."""
        # While a statement's rows are still being given, its snapshot cannot be let go: the next one renews it.
        if self._pinned or self._open:
            return
        if self.pace is Pace.SLICED:
            self._look()
            return
        now = time.monotonic()
        if self._snapshot_since is None:
            if self.connection.in_transaction:
                # A transaction of the caller's, which is not ours to end.
                return
        elif self.pace is Pace.FREE or now - self._snapshot_since < SNAPSHOT_SECONDS:
            return
        elif self.connection.in_transaction:
            self.connection.execute("COMMIT")
        self.connection.execute("BEGIN")
        self._snapshot_since = now
        self._look()

    def _look(self) -> None:
        version = self._data_version()
        if self._version is not None and version != self._version:
            self.moved = True
        self._version = version

    def _data_version(self) -> int:
        return int(str(self.connection.pragma("data_version")))

    def _rest(self, seconds: float) -> None:
        if self.rests and not self._pinned:
            time.sleep(min(seconds, SLICE_SECONDS))


def in_keys(column: str, keys: Sequence[Key]) -> tuple[str, tuple[Cell, ...]]:
    """Return an SQL condition, and its values, that a column is one of the keys. Keep it under 900 keys.

    Text that is no text is compared as text all the same; NULL is found by no condition of this kind. Raises
    TypeError for a composite key: it is no value of one column.
    """
    values: list[Cell] = []
    for key in keys:
        if isinstance(key, tuple):
            raise TypeError(f"{column} is one column, and a composite key has several")
        values.append(key)
    marks = ", ".join("CAST(? AS TEXT)" if isinstance(value, BadText) else "?" for value in values)
    return f"{column} IN ({marks})", tuple(values)


def next_width(width: int, took: float, pace: Pace) -> int:
    """Return how wide the next range may be, by what the last one of this ``width`` took, in seconds.

    Twice as wide while they stay well under the target, half after one that went over it.
    """
    target = _RANGE_TARGET[pace]
    if took > target:
        return max(1, width // 2)
    return min(width * 2, _WIDEST) if took < target / 2 else width


def _guarded(sql: str, count: int) -> str:
    """Wrap a query so that text comes as its bytes, with its type beside it."""
    names = [f"c{i}" for i in range(count)]
    pairs = ", ".join(
        f"typeof({name}), CASE typeof({name}) WHEN 'text' THEN CAST({name} AS BLOB) ELSE {name} END" for name in names
    )
    return f"WITH guarded({', '.join(names)}) AS ({sql}) SELECT {pairs} FROM guarded"


def _decode(kind: Cell, cell: Cell, encoding: str) -> Cell:
    return decoded(cell, encoding) if kind == "text" and isinstance(cell, bytes) else cell
