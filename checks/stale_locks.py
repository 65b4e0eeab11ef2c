"""Compression locks and turn leases that were left behind, and backends that no longer answer.

What it finds
Rows of `compression_locks` and `session_turn_leases` that have expired and that nobody will renew.
Beside these, as a note only, rows of `gateway_heartbeats` whose backend has been silent for long.

Why it matters
A lock is to be given back by the process that took it; after a kill or a crash it stays. Hermes
takes an expired one over when it next wants that very conversation. Until then it stands for work
that is not going on, also for people and tools that look at the table, and the rows of deleted
sessions stay for ever. A heartbeat that stopped costs nothing: from 12 hours on hermes's own sweep
does not count it any more.

How it decides
A lock is stale if its end (`expires_at`) is past, and either its holder is proven dead or the end
is a day past. Proven dead means: the holder gives a process number and its pid namespace, the
namespace is the one that the doctor runs in, and no process has that number. A holder without a
namespace (before 0.22.2), of another namespace (a container), or of a store that stands alone or
on a network's disk is judged by the day only. An end in the future is never touched, and neither
is one that cannot be a time: text, 0, before 2020, beyond 2103. A backend is noted after 12 hours
without a beat, unless a process of that number lives on this host: one whose refresh is switched
off beats once.

Fix
The row of the lock or lease is deleted, if it still ends when it did. Heartbeats are left to
hermes.

Fix safety
Safe: it is what hermes does itself with an expired lock that is in its way. A process that was
asleep for a day and wakes up finds its lock gone and takes a new one, or lets the turn go.

Upstream
Issues 74568 and 71790 (locks of dead processes block writes), 94971 (heartbeats). Locks exist from
0.16.0 on, leases from 0.20.6 on, heartbeats from 0.21.5 on. Newer releases sweep leases a day past
their end when they take the next one.
"""

from __future__ import annotations

from functools import partial

from hermes_doctor.engine.model import Check, Finding, Row, RowRule, Safety, Severity
from hermes_doctor.store.ages import EARLIEST
from hermes_doctor.store.cells import Cell
from hermes_doctor.store.clocks import DAY, trusted, trusted_sql
from hermes_doctor.store.liveness import OWNERSHIP_GRACE
from hermes_doctor.store.owners import backend_may_live, holder_is_dead
from hermes_doctor.store.shape import Shape
from hermes_doctor.store.spans import in_words
from hermes_doctor.store.view import StoreView

NAME = "stale-locks"

#: The tables of locks: the column that says whose it is, and how a person calls it.
_LOCKS = {
    "compression_locks": ("session_id", "compression lock"),
    "session_turn_leases": ("conversation_id", "turn lease"),
}
_BEATS = ("backend_id", "pid", "host", "last_heartbeat")


def _is_time(shape: Shape, *, table: str, column: str) -> str | None:
    if not shape.has(table, column):
        return None
    return f"{trusted_sql(shape.column(table, column))} IS NOT NULL"


def _since(cell: Cell, view: StoreView) -> float | None:
    """Seconds since that time; None where it is no time, or from a clock that was not set yet."""
    at = trusted(cell)
    return None if at is None or at < EARLIEST else view.now - at


def _judge_lock(row: Row, view: StoreView, *, table: str) -> Finding | None:
    column, name = _LOCKS[table]
    past = _since(row["expires_at"], view)
    if past is None or past < 0:
        return None
    dead = holder_is_dead(view, row["holder"])
    if not dead and past < view.idle_limit(DAY):
        return None
    why = "its holder is gone" if dead else "nobody has renewed or released it"
    return Finding(
        check=NAME,
        severity=Severity.WARNING,
        table=table,
        key=row[column],
        session=row[column],
        summary=f"{name} that ended {in_words(past)} ago, {why}",
        detail={"expired_seconds": round(past), "expires_at": trusted(row["expires_at"]), "holder_is_gone": dead},
        fix=Safety.SAFE,
        action=f"delete the {name}",
    )


def _judge_beat(row: Row, view: StoreView) -> Finding | None:
    silent = _since(row["last_heartbeat"], view)
    if silent is None or silent < view.idle_limit(OWNERSHIP_GRACE) or backend_may_live(view, row["host"], row["pid"]):
        return None
    return Finding(
        check=NAME,
        severity=Severity.INFO,
        table="gateway_heartbeats",
        key=row["backend_id"],
        session=None,
        summary=f"a backend that has been silent for {in_words(silent)}",
        detail={"silent_seconds": round(silent)},
    )


def _lock_rule(table: str) -> RowRule:
    return RowRule(
        table,
        (_LOCKS[table][0], "holder", "expires_at"),
        partial(_is_time, table=table, column="expires_at"),
        partial(_judge_lock, table=table),
    )


CHECK = Check(
    name=NAME,
    severity=Severity.WARNING,
    summary="locks and leases whose holder is gone",
    meaning="conversations that look as if somebody were at work on them",
    fix=Safety.SAFE,
    page=__doc__ or "",
    rule=(
        _lock_rule("compression_locks"),
        _lock_rule("session_turn_leases"),
        RowRule(
            "gateway_heartbeats",
            _BEATS,
            partial(_is_time, table="gateway_heartbeats", column="last_heartbeat"),
            _judge_beat,
        ),
    ),
)
