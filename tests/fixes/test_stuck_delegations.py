"""The fix of stuck-delegations: delivered ones past the retention go, as in the release; no other result ever does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from checks.stuck_delegations import CHECK
from fixes.stuck_delegations import FIX
from hermes_doctor.engine.cure import Fix, Mending
from hermes_doctor.engine.model import Finding, Safety
from tests.checks.left_behind_cases import UNSAFE, Planted, Plots
from tests.fixes.support import mend_too_late, mended_and_taken_back, outcome
from tests.oracle.steps import clock, use
from tests.whole.identical import difference, image_of

LIVES = [("0.19.0",), ("0.22.2",), ("0.13.0", "0.16.0", "0.19.0", "0.22.2")]


def over_age(planted: Planted) -> set[str]:
    return {key for (_, key), verdict in planted.expected(CHECK.name).items() if verdict == UNSAFE}


def mended(planted: Planted, fix: Fix = FIX) -> str | None:
    """Mend, and hold the store against what it was: returns the run."""
    before = planted.rows("async_delegations", "delegation_id")
    patient = planted.patient
    done = patient.mend(checks=[CHECK], fixes=[fix])
    assert outcome(done) == ("fixed", 0, None)
    assert {change.key for change in done.changes} == over_age(planted)
    kept = {key: row for key, row in before.items() if key not in over_age(planted)}
    assert planted.rows("async_delegations", "delegation_id") == kept
    assert [finding for finding in patient.findings([CHECK]) if finding.fix is not Safety.NONE] == []
    return done.run


@pytest.mark.parametrize("life", LIVES, ids="→".join)
def test_deleted_and_taken_back(plots: Plots, life: tuple[str, ...]) -> None:
    planted = plots(*life)
    assert mended_and_taken_back(planted.patient, lambda: mended(planted)) == []


@pytest.mark.parametrize("release", ["0.19.0", "0.22.2"])
def test_the_release_deletes_the_same_at_its_next_dispatch_and_not_fewer(plots: Plots, release: str) -> None:
    planted = plots(release)
    kept = planted.rows("async_delegations", "delegation_id").keys()
    planted.home.run(
        planted.release,
        [
            clock(planted.now),
            use(
                "running_delegation",
                delegation_id="next",
                parent="parent of dropped a month ago",
                session_key="",
                owner_pid=1,
                dispatched_at=planted.now,
            ),
        ],
    )
    gone = kept - planted.rows("async_delegations", "delegation_id").keys()
    # It goes by `updated_at` alone, so that delivered ones go that are still marked as running.
    assert over_age(planted) <= gone
    assert gone - over_age(planted) == {
        "running, but delivered",
        "running, delivered, its owner lives",
        "delivered beyond all times",
    }


def test_nothing_is_deleted_without_being_told_so(plots: Plots) -> None:
    planted = plots("0.22.2")
    before = image_of(planted.home.store)
    patient = planted.patient
    done = patient.mend(checks=[CHECK], fixes=[FIX], unsafe=False)
    assert done.outcome == "nothing-to-do"
    assert difference(before, image_of(planted.home.store)) == []


@pytest.mark.parametrize("change", ["delivery_state = 'pending'", "state = 'running'", "updated_at = updated_at + 1"])
def test_one_that_changed_meanwhile_is_left(plots: Plots, change: str) -> None:
    planted = plots("0.19.0")

    def meanwhile(mending: Mending, finding: Finding) -> None:
        mending.connection.execute(f"UPDATE async_delegations SET {change} WHERE delegation_id = ?", (finding.key,))

    done = mend_too_late(planted.patient, CHECK, FIX, meanwhile)
    assert {each.state for each in done.changes if each.key in over_age(planted)} == {"gone"}


WRONG = {
    "all that were delivered": "DELETE FROM async_delegations WHERE delivery_state = 'delivered' AND ?1 IS NOT NULL",
    "all that are old": "DELETE FROM async_delegations WHERE updated_at < ?2 AND ?1 IS NOT NULL",
    "as the release does": (
        "DELETE FROM async_delegations WHERE delivery_state = 'delivered' AND updated_at < ?2 AND ?1 IS NOT NULL"
    ),
    "dropped": "UPDATE async_delegations SET delivery_state = 'dropped' WHERE delegation_id = ?1",
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_variant_fails(name: str, plots: Plots) -> None:
    planted = plots("0.22.2")

    def mend(mending: Mending, finding: Finding) -> None:
        values = (finding.key, planted.now - 7 * 86_400.0)
        mending.connection.execute(WRONG[name], values if "?2" in WRONG[name] else values[:1])

    with pytest.raises(AssertionError):
        mended(planted, replace(FIX, mend=mend))
