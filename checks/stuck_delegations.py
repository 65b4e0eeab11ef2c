"""Background delegations that will never end, or whose result nobody took.

What it finds
Rows of `async_delegations` that are under way although their owner is gone; finished ones whose
result has waited for two days to be delivered; delivered ones that are kept for longer than hermes
keeps them; and delivered ones that still say they are running.

Why it matters
A delegation whose process died stays `running` until hermes starts again; then it is told to the
chat as of unknown outcome, with what its children had finished. A result that waits is delivered
at the next start, but from 0.20.6 on one older than 48 hours is dropped there: it stays readable,
and nobody is told. A row that was delivered and says `running` is not lost, but the next start
takes it for lost and tells the chat so once more.

How it decides
Nobody may have the store open. Gone is an owner whose process is not on this host, or began at
another time than noted, while the row has been still for 5 minutes. In a store that stands alone
or on a network's disk, and where no owner is noted, it takes a day. Age counts from the newest of
the row's times; a time that cannot be makes it unknown, and then there is no finding. Only states
that releases know as ends count as ends. Delivered rows are over-age after 7 days, hermes's own
retention. Dropped ones are kept for reading and are no fault.

Fix
A delivered row past the retention is deleted, as hermes does at its next delegation. Nothing else:
an undelivered result is never deleted, and one that was left behind is announced by hermes itself
when it is started (`hermes` or `hermes gateway`): start it within 48 hours if the result matters.

Fix safety
Unsafe: the result and the task's text go with the row.

Upstream
Issues 79829, 65955 and 112277 (undelivered results lost to a pruner), 94858 (all rows deleted by
hand), 72122 (delivered rows called lost), 97202 (results that wait for a start). The table exists
from 0.19.0 on.
"""

from __future__ import annotations

from hermes_doctor.engine.model import Check, Finding, Row, RowRule, Safety, Severity
from hermes_doctor.store.ages import EARLIEST
from hermes_doctor.store.clocks import DAY, HOUR, MINUTE, trusted
from hermes_doctor.store.liveness import FINISHED
from hermes_doctor.store.owners import owner_lives
from hermes_doctor.store.shape import Shape
from hermes_doctor.store.spans import in_words
from hermes_doctor.store.view import StoreView

NAME = "stuck-delegations"
_TABLE = "async_delegations"

#: Hermes keeps delivered rows for so long, in seconds (0.19.0 on).
_RETENTION = 7 * DAY
#: From 0.20.6 on a start drops results that have waited for longer, in seconds.
_REPLAYED = 48 * HOUR
#: How long a row whose owner is gone must have been still, and one whose owner cannot be looked for, in seconds.
_STILL, _STILL_UNSEEN = 5 * MINUTE, DAY

_TIMES = ("dispatched_at", "completed_at", "updated_at", "delivered_at")
_NAMES = ("delegation_id", "parent_session_id", "state", "delivery_state", "owner_pid", "owner_started_at")


def _condition(shape: Shape) -> str | None:
    if not shape.has(_TABLE, "delegation_id", "state", "delivery_state", "updated_at"):
        return None
    return f"{shape.column(_TABLE, 'delivery_state')} IN ('pending', 'delivered')"


def _judge(row: Row, view: StoreView) -> Finding | None:
    still = _still(row, view)
    if still is None:
        return None
    ended, delivered = row["state"] in FINISHED, row["delivery_state"] == "delivered"
    if delivered and ended:
        if still < view.idle_limit(_RETENTION):
            return None
        told = f"delivered and kept for {in_words(still)}"
        return _finding(row, still, Severity.INFO, told, Safety.UNSAFE, "delete the delivered delegation")
    if view.held != "no":
        return None
    if ended:
        waited = f"finished, and its result has waited for {in_words(still)} to be delivered"
        return _finding(row, still, Severity.INFO, waited) if still >= view.idle_limit(_REPLAYED) else None
    if not _abandoned(row, view, still):
        return None
    if delivered:
        told = "delivered, but still marked as under way: hermes will call its outcome unknown"
        return _finding(row, still, Severity.INFO, told)
    return _finding(row, still, Severity.WARNING, f"under way, still for {in_words(still)}, its owner is gone")


def _still(row: Row, view: StoreView) -> float | None:
    """Seconds since the newest of the row's times; None where one of them cannot be."""
    times = [trusted(row[column]) for column in _TIMES if row[column] is not None]
    known = [at for at in times if at is not None and at >= EARLIEST]
    return view.now - max(known) if known and len(known) == len(times) else None


def _abandoned(row: Row, view: StoreView, still: float) -> bool:
    """Whether nobody is at work on a delegation that is under way."""
    lives = owner_lives(view, row["owner_pid"], row["owner_started_at"])
    if lives:
        return False
    return still >= view.idle_limit(_STILL_UNSEEN if lives is None else _STILL)


def _finding(
    row: Row,
    still: float,
    severity: Severity,
    summary: str,
    fix: Safety = Safety.NONE,
    action: str | None = None,
) -> Finding:
    return Finding(
        check=NAME,
        severity=severity,
        table=_TABLE,
        key=row["delegation_id"],
        session=row["parent_session_id"],
        summary=summary,
        detail={"still_seconds": round(still), "updated_at": trusted(row["updated_at"])},
        fix=fix,
        action=action,
    )


CHECK = Check(
    name=NAME,
    severity=Severity.WARNING,
    summary="background delegations that will never end or were never delivered",
    meaning="work given to the background that nobody will report on",
    fix=Safety.UNSAFE,
    page=__doc__ or "",
    rule=RowRule(_TABLE, (*_NAMES, *_TIMES), _condition, _judge),
)
