"""How many rows one transaction takes, so that the store's write lock is held for about a budget of time."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field

#: Longest that the write lock should be held by one transaction, in seconds.
BUDGET = 0.1
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

    def note(self, rows: int, seconds: float) -> None:
        """Learn from a transaction of that many rows that held the lock that long."""
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

    def rest(self) -> None:
        """Leave the store to others for as long as it was just held."""
        if self.holds:
            time.sleep(min(self.holds[-1], 1.0))

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
