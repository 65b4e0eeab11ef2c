"""Times as the store holds them, and which of them are evidence.

Upstream takes no cell outside 1970 to 2103 for a time (0.21.5); nor do we, and 0 is no time either. A row's age is
known only from a cell that can be trusted, and a time in the future means that the row is not idle.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from hermes_doctor.store.cells import Cell

if TYPE_CHECKING:
    from hermes_doctor.store.shape import Shape
    from hermes_doctor.store.view import StoreView

#: Seconds since the epoch, early in 2103: times from here on are absurd (0.21.5 and 0.22.2 end there).
LATEST = 4_200_000_000.0

MINUTE = 60.0
HOUR = 3600.0
DAY = 86400.0

#: How many of the last rows of a table are looked at for the newest time.
_LAST_ROWS = 200


def trusted(cell: Cell) -> float | None:
    """Return the cell in seconds since the epoch if it can be a time, else None."""
    if isinstance(cell, bool) or not isinstance(cell, int | float):
        return None
    return float(cell) if 0 < cell < LATEST else None


def trusted_sql(expression: str) -> str:
    """Return SQL that gives the expression's value if it can be a time, else NULL."""
    return (
        f"CASE WHEN typeof({expression}) IN ('integer', 'real')"
        f" AND {expression} > 0 AND {expression} < {LATEST} THEN {expression} END"
    )


def newest_time(view: StoreView) -> float | None:
    """Return the newest time in the store that can be a time: of sessions, and of the messages that came last.

    Seconds since the epoch; None where there is none. Only index seeks and the last rows: a store whose times run
    ahead of the clock shows it there.
    """
    found = [trusted(cell) for rows in _newest(view) for row in rows for cell in row]
    return max((time for time in found if time is not None), default=None)


def _newest(view: StoreView) -> Iterator[Sequence[tuple[Cell, ...]]]:
    shape = view.shape
    activity = "COALESCE(last_activity_at, started_at)"
    # Bounded, so that the seek ends at the newest cell that can be a time: absurd numbers, text and blobs sort later.
    for expression, columns in (("started_at", ("started_at",)), (activity, ("last_activity_at", "started_at"))):
        if shape.has("sessions", *columns) and _leads_an_index(shape, expression):
            yield view.rows(
                f"SELECT {expression} FROM sessions WHERE {expression} > 0 AND {expression} < {LATEST}"
                f" ORDER BY {expression} DESC LIMIT 1"
            )
    for name, timed in (("sessions", ("started_at", "ended_at", "last_activity_at")), ("messages", ("timestamp",))):
        table = shape.tables.get(name)
        if table is not None and table.rowid is not None:
            listed = ", ".join(shape.column(name, column) for column in timed)
            yield view.rows(f"SELECT {listed} FROM {name} ORDER BY {table.rowid} DESC LIMIT {_LAST_ROWS}")


def _leads_an_index(shape: Shape, expression: str) -> bool:
    """Whether an index of sessions, over all its rows, begins with the expression."""
    start = re.compile(rf"\bON\s+\"?sessions\"?\s*\(\s*{re.escape(expression)}(?!\w)", re.I)
    return any(start.search(sql) and not re.search(r"\bWHERE\b", sql, re.I) for sql in shape.indexes.values())
