"""Piles and shelves that do not grow in memory: past a few thousand, what they hold lies in a temporary file."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from hermes_doctor.engine.model import Finding

if TYPE_CHECKING:
    import apsw

#: What a pile or a shelf holds; it can be pickled.
HeldT = TypeVar("HeldT")
OtherT = TypeVar("OtherT")

#: Bytes that are kept in memory before they go to a temporary file (mode 0600, unnamed).
_IN_MEMORY = 1 << 20
#: Things of a pile that are pickled together: what they share is written once, and most of them share most of it.
_AT_ONCE = 64


class Closing:
    """What holds temporary files until it is closed; a context manager."""

    def close(self) -> None:
        """Let the temporary files go."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


class Pile(Closing, Generic[HeldT]):
    """Things in the order in which they were added; may be gone through any number of times, also at once."""

    def __init__(self, things: Iterable[HeldT] = ()) -> None:
        # Closed by close(); the pile outlives any one block.
        self._file = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115
        self._waiting: list[HeldT] = []
        self._count = 0
        self._end = 0
        for thing in things:
            self.add(thing)

    def add(self, thing: HeldT) -> None:
        """Put one thing on the pile; whoever is going through it does not see it any more."""
        self._waiting.append(thing)
        self._count += 1
        if len(self._waiting) == _AT_ONCE:
            self._write()

    def _write(self) -> None:
        """Write what waits for that."""
        if self._waiting:
            self._file.seek(self._end)
            pickle.dump(self._waiting, self._file, protocol=pickle.HIGHEST_PROTOCOL)
            self._end = self._file.tell()
            self._waiting.clear()

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[HeldT]:
        self._write()
        place, end = 0, self._end
        while place < end:
            # Whoever takes the things may add some meanwhile, or go through them a second time.
            self._file.seek(place)
            things: list[HeldT] = pickle.load(self._file)
            place = self._file.tell()
            yield from things

    def close(self) -> None:
        """Let the temporary file go."""
        self._file.close()


class Findings(Pile[Finding]):
    """What a scan found."""


class Shelf(Closing, Generic[HeldT]):
    """Things by name, in the order in which the names were first put; a later thing takes an earlier one's place."""

    def __init__(self) -> None:
        import apsw

        # Without a name it is a temporary file of SQLite's own, which no other process can open.
        self._connection: apsw.Connection = apsw.Connection("")
        self._connection.pragma("journal_mode", "off")
        self._connection.pragma("cache_size", -(_IN_MEMORY >> 10))
        self._connection.execute("CREATE TABLE shelf (place INTEGER PRIMARY KEY, name TEXT UNIQUE, thing BLOB)")

    def put(self, name: str, thing: HeldT) -> None:
        """Put a thing under a name, in the place of what was there."""
        self._connection.execute(
            "INSERT INTO shelf (name, thing) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET thing = excluded.thing",
            (name, pickle.dumps(thing, protocol=pickle.HIGHEST_PROTOCOL)),
        )

    def get(self, name: str, default: OtherT) -> HeldT | OtherT:
        """Return what is under that name, or ``default`` where there is nothing."""
        found = self._connection.execute("SELECT thing FROM shelf WHERE name = ?", (name,)).fetchone()
        if found is None:
            return default
        thing: HeldT = pickle.loads(found[0])
        return thing

    def __iter__(self) -> Iterator[HeldT]:
        for (held,) in self._connection.execute("SELECT thing FROM shelf ORDER BY place"):
            thing: HeldT = pickle.loads(held)
            yield thing

    def close(self) -> None:
        """Let the temporary file go."""
        self._connection.close()
