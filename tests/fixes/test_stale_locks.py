"""The fix of stale-locks: what is stale is gone, what may be somebody's stays, and the release takes locks as ever."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from checks.stale_locks import CHECK
from fixes.stale_locks import FIX
from hermes_doctor.engine.cure import Fix, Mending
from hermes_doctor.engine.model import Finding, Safety
from tests.checks.left_behind_cases import LIVES, Planted, Plots
from tests.checks.support import findings_of
from tests.fixes.support import mend_too_late, mended_and_taken_back, outcome
from tests.oracle.steps import call, clock

TABLES = {
    "compression_locks": "session_id",
    "session_turn_leases": "conversation_id",
    "gateway_heartbeats": "backend_id",
}
SHOWN = [life for life in LIVES if life != ("0.13.0",)]


def stale(planted: Planted) -> set[tuple[str, str]]:
    return {row for row in planted.expected(CHECK.name) if row[0] != "gateway_heartbeats"}


def mended(planted: Planted, fix: Fix = FIX) -> str | None:
    """Mend, and hold the store against what it was: returns the run."""
    before = {table: planted.rows(table, key) for table, key in TABLES.items()}
    sessions = planted.rows("sessions", "id")
    patient = planted.patient
    done = patient.mend(checks=[CHECK], fixes=[fix])
    assert outcome(done) == ("fixed", 0, None)
    assert {change.row for change in done.changes} == stale(planted)
    for table, key in TABLES.items():
        kept = {name: row for name, row in before[table].items() if (table, name) not in stale(planted)}
        assert planted.rows(table, key) == kept
    assert planted.rows("sessions", "id") == sessions
    found = findings_of(planted.home.store, CHECK, home=planted.home.path, now=planted.now)
    assert [finding for finding in found if finding.fix is not Safety.NONE] == []
    return done.run


@pytest.mark.parametrize("life", SHOWN, ids="→".join)
def test_deleted_and_taken_back(plots: Plots, life: tuple[str, ...]) -> None:
    planted = plots(*life)
    assert mended_and_taken_back(planted.patient, lambda: mended(planted)) == []


@pytest.mark.parametrize("life", SHOWN, ids="→".join)
def test_the_release_takes_the_locks_anew(plots: Plots, life: tuple[str, ...]) -> None:
    planted = plots(*life)
    mended(planted)
    free = [key for table, key in stale(planted) if table == "compression_locks"]
    taken = ["not yet expired, its holder lives"]
    values = planted.home.run(
        planted.release,
        [
            clock(planted.now),
            *(call("try_acquire_compression_lock", key, "pid=1:tid=1", ttl_seconds=300.0) for key in (*free, *taken)),
        ],
    )
    assert values[1:] == [True] * len(free) + [False] * len(taken)


def test_one_that_was_renewed_meanwhile_is_left(plots: Plots) -> None:
    planted = plots("0.22.2")

    def meanwhile(mending: Mending, finding: Finding) -> None:
        column = TABLES[finding.table]
        mending.connection.execute(
            f"UPDATE {finding.table} SET expires_at = expires_at + 300 WHERE {column} = ?", (finding.key,)
        )

    done = mend_too_late(planted.patient, CHECK, FIX, meanwhile)
    assert {change.state for change in done.changes} == {"gone"}


def _all_expired(mending: Mending, finding: Finding) -> None:
    mending.connection.execute(f"DELETE FROM {finding.table} WHERE expires_at < ?", (mending.view.now,))


def _in_both_tables(mending: Mending, finding: Finding) -> None:
    mending.connection.execute("DELETE FROM compression_locks WHERE session_id = ?", (finding.key,))
    mending.connection.execute("DELETE FROM session_turn_leases WHERE conversation_id = ?", (finding.key,))
    mending.connection.execute("DELETE FROM sessions WHERE id = ?", (finding.key,))


def _put_off(mending: Mending, finding: Finding) -> None:
    key = TABLES[finding.table]
    mending.connection.execute(f"UPDATE {finding.table} SET expires_at = 1 WHERE {key} = ?", (finding.key,))


WRONG: dict[str, Callable[[Mending, Finding], None]] = {
    "all that expired": _all_expired,
    "whatever has the key": _in_both_tables,
    "ended long ago": _put_off,
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_variant_fails(name: str, plots: Plots) -> None:
    planted = plots("0.20.6")
    with pytest.raises(AssertionError):
        mended(planted, replace(FIX, mend=WRONG[name]))
