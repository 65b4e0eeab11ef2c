"""Times as the store holds them, and which of them are evidence.

Upstream takes no cell outside 1970 to 2103 for a time (0.21.5); nor do we, and 0 is no time either. A row's age is
known only from a cell that can be trusted, and a time in the future means that the row is not idle.
"""

from __future__ import annotations

from hermes_doctor.store.cells import Cell

#: Seconds since the epoch, early in 2103: times from here on are absurd (0.21.5 and 0.22.2 end there).
LATEST = 4_200_000_000.0

MINUTE = 60.0
HOUR = 3600.0
DAY = 86400.0


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
