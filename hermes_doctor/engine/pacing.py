"""How many rows one transaction takes, so that the store's write lock is held for about a budget of time.

Beside a living hermes the budget is smaller, no rest is shorter than it, and rests grow while hermes writes, too.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field

#: Longest that the write lock should be held by one transaction, in seconds.
BUDGET = 0.1
#: The same beside a living hermes, and the shortest rest there.
LIVE_BUDGET = 0.05
#: Longest rest between two transactions, in seconds.
_LONGEST_REST = 1.0
#: A rest is stretched to so many times its length at most, beside a hermes that writes all the time.
_MOST_STRETCHED = 16.0
_LONGEST_LIVE_REST = 2.0
#: A transaction that took no more than this share of its time may be followed by a larger one.
_ROOMY = 0.5
#: The share of the budget that is left to the rows where the disk takes all of it.
_LEAST_SHARE = 0.25
#: Rows that are measured one by one before several share a transaction.
_SINGLE_ROWS = 10
#: Weight of the newest measurement in the running average of seconds per row.
_WEIGHT = 0.3
#: Most rows in one transaction, whatever the average says (keeps IN-lists under SQLite's limits).
_MOST = 500


@dataclass
class Pacing:
    """Sizes transactions by what the last ones took, and rests between them as long as they held the lock."""

    budget: float = BUDGET
    holds: list[float] = field(default_factory=list)
    _seconds_per_row: float | None = field(default=None, init=False)
    _measured: int = field(default=0, init=False)
    _size: int = field(default=1, init=False)

    def next_size(self) -> int:
        """How many rows the next transaction may take."""
        return self._size

    def note(self, rows: int, seconds: float, disk: float = 0.0) -> None:
        """Learn from a transaction of that many rows that held the lock that long.

        ``disk``: how much of that went into putting it on the disk.
        """
        self.holds.append(seconds)
        each = seconds / max(rows, 1)
        average = self._seconds_per_row
        self._seconds_per_row = each if average is None else average + _WEIGHT * (each - average)
        self._measured += 1
        if self._measured < _SINGLE_ROWS:
            self._size = 1
        elif seconds > self.budget:
            self._size = max(1, self._size // 2)
        else:
            fitting = int(self.budget / max(self._seconds_per_row, 1e-9))
            self._size = max(1, min(fitting, self._size * 2, _MOST))

    def crowd(self, crowded: bool) -> None:
        """Learn whether somebody else was writing at the same time; where nobody else is, it makes no difference."""

    def rest(self) -> None:
        """Leave the store to others for as long as it was just held."""
        time.sleep(self.rest_seconds())

    def rest_seconds(self) -> float:
        """How long the store is to be left to others now."""
        return min(self.holds[-1], _LONGEST_REST) if self.holds else 0.0

    def summary(self) -> dict[str, float]:
        """The median, 95th percentile and longest hold, in seconds; zeros where nothing was held."""
        if not self.holds:
            return {"median": 0.0, "p95": 0.0, "longest": 0.0}
        ordered = sorted(self.holds)
        return {
            "median": statistics.median(ordered),
            "p95": ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))],
            "longest": ordered[-1],
        }


@dataclass
class LivePacing(Pacing):
    """The same beside a living hermes, which must not wait: what it has been told of being crowded stretches rests.

    Putting a record and the log on the disk takes as long for one row as for many, and long where somebody else does
    the same. What it took of late is taken off the budget, and rows get the rest, or a quarter: with fewer of them at a
    time hermes would be kept waiting more often, and not shorter.
    """

    budget: float = LIVE_BUDGET
    _stretch: float = field(default=1.0, init=False)
    _disk: float | None = field(default=None, init=False)

    def note(self, rows: int, seconds: float, disk: float = 0.0) -> None:
        """Learn from a transaction of that many rows that held the lock that long, of that so long for the disk."""
        self.holds.append(seconds)
        self._disk = disk if self._disk is None else self._disk + _WEIGHT * (disk - self._disk)
        room = max(self.budget - self._disk, _LEAST_SHARE * self.budget)
        if seconds - disk > room:
            self._size = max(1, self._size // 2)
        elif seconds - disk <= _ROOMY * room and rows >= self._size:
            self._size = min(2 * self._size, _MOST)

    def crowd(self, crowded: bool) -> None:
        """Learn whether somebody else was writing at the same time."""
        self._stretch = min(2 * self._stretch, _MOST_STRETCHED) if crowded else max(self._stretch / 2, 1.0)

    def rest_seconds(self) -> float:
        """Never shorter than the budget, nor than the last hold."""
        held = self.holds[-1] if self.holds else 0.0
        return max(held, min(max(held, LIVE_BUDGET) * self._stretch, _LONGEST_LIVE_REST))
