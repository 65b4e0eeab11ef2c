"""Runs of tools that ended long ago and still stand among the conversations.

What it finds
Ended sessions of the source `tool` that nobody has archived or pinned, and whose end is more than
90 days ago.

Why it matters
Nobody reads them again, and every search goes through them.

How it decides
By the row alone: its source, its end (where that can be a time), its marks.

Fix
Marks the session as archived, as hermes does by itself where `sessions.auto_archive` is on.

Fix safety
Unsafe, as every fix that another package brings: it asks for --unsafe. `doctor undo` takes it back.

Upstream
The column `archived` comes with schema 14 (0.16.0); an older store cannot show the fault.
"""

from __future__ import annotations

from hermes_doctor.plugin import (
    Check,
    Finding,
    Fix,
    Mending,
    Phase,
    Row,
    RowRule,
    Safety,
    Severity,
    Shape,
    StoreView,
    trusted,
    trusted_sql,
)

NAME = "example/old-tool-runs"

DAY = 86400.0
OLD_SECONDS = 90 * DAY


def _condition(shape: Shape) -> str | None:
    """SQL over the columns of `sessions` that suspects a row; None where the store cannot show the fault."""
    if not shape.has("sessions", "archived", "ended_at"):
        return None
    pinned = shape.column("sessions", "pinned", absent="0")
    return f"source = 'tool' AND archived = 0 AND {pinned} = 0 AND {trusted_sql('ended_at')} IS NOT NULL"


def _judge(row: Row, view: StoreView) -> Finding | None:
    """Decide about a suspect: what is not certain is no finding."""
    ended = trusted(row["ended_at"])
    if ended is None or view.now - ended < view.idle_limit(OLD_SECONDS):
        return None
    return Finding(
        check=NAME,
        severity=Severity.INFO,
        table="sessions",
        key=row["id"],
        session=row["id"],
        summary=f"ended {int((view.now - ended) / DAY):,} days ago and not archived",
        detail={"ended_seconds_ago": int(view.now - ended)},
        fix=Safety.UNSAFE,
        action="archive it",
    )


def _mend(mending: Mending, finding: Finding) -> None:
    """Change just this row, if it still holds what it is expected to hold."""
    mending.set("sessions", finding.key, to={"archived": 1}, expects={"archived": 0, "source": "tool"})


CHECK = Check(
    name=NAME,
    severity=Severity.INFO,
    summary="runs of tools that ended long ago and are not archived",
    meaning="old runs that every list and search goes through",
    fix=Safety.UNSAFE,
    page=__doc__ or "",
    rule=RowRule("sessions", ("id", "ended_at"), _condition, _judge),
)

FIX = Fix(check=NAME, phase=Phase.TAKE, uses_clock=True, page="", mend=_mend)

#: What the entry point leads to.
BROUGHT = (CHECK, FIX)
