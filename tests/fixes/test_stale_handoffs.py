"""The fix of stale-handoffs: failed with a reason, asked for anew in the release, taken back, nothing else touched."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from checks import open_zombies
from checks.stale_handoffs import CHECK
from fixes import open_zombies as open_zombies_fix
from fixes.stale_handoffs import FIX
from hermes_doctor.engine.cure import Fix, Mending
from hermes_doctor.engine.model import Finding, Safety
from tests.checks.left_behind_cases import LIVES, Planted, Plots
from tests.fixes.support import mend_too_late, mended_and_taken_back, outcome
from tests.oracle.steps import call


def mended(planted: Planted, fix: Fix = FIX) -> str | None:
    """Mend, and hold the store against what it was: returns the run."""
    wanted = {key for _, key in planted.expected(CHECK.name)}
    before = planted.rows("sessions", "id")
    patient = planted.patient
    done = patient.mend(checks=[CHECK], fixes=[fix])
    assert outcome(done) == ("fixed", 0, None)
    assert {change.key for change in done.changes} == wanted
    after = planted.rows("sessions", "id")
    for key, row in before.items():
        told = after[key].pop("handoff_error")
        row["handoff_state"] = "failed" if key in wanted else row["handoff_state"]
        assert told is not None if key in wanted else told == row["handoff_error"]
        assert told is None or 10 < len(told) <= 500 or key not in wanted
        assert after[key] == {column: cell for column, cell in row.items() if column != "handoff_error"}
    assert patient.findings([CHECK]) == []
    return done.run


@pytest.mark.parametrize("life", LIVES, ids="→".join)
def test_failed_and_taken_back(plots: Plots, life: tuple[str, ...]) -> None:
    planted = plots(*life)
    assert mended_and_taken_back(planted.patient, lambda: mended(planted)) == []


@pytest.mark.parametrize("life", LIVES, ids="→".join)
def test_the_release_hands_it_off_again(plots: Plots, life: tuple[str, ...]) -> None:
    planted = plots(*life)
    stuck = [key for _, key in planted.expected(CHECK.name)]
    mended(planted)
    states, asked = (
        [call("get_handoff_state", key) for key in stuck],
        [call("request_handoff", key, "telegram") for key in stuck],
    )
    values = planted.home.run(planted.release, [*states, call("list_pending_handoffs"), *asked])
    assert {value["state"] for value in values[: len(stuck)]} == {"failed"}
    assert all(value["error"] and value["platform"] == "telegram" for value in values[: len(stuck)])
    assert not {row["id"] for row in values[len(stuck)]} & set(stuck)
    assert values[len(stuck) + 1 :] == [True] * len(stuck)


def test_what_the_handoff_had_spared_is_ended_in_the_same_run(plots: Plots) -> None:
    """A session that is being handed off is no zombie; once the handoff has failed it is, and the run sees to both."""
    planted = plots("0.22.2")
    patient = planted.patient
    zombies = [finding.key for finding in patient.findings([open_zombies.CHECK])]
    assert "running, for a month" not in zombies
    both = [open_zombies.CHECK, CHECK]
    done = patient.mend(checks=both, fixes=[open_zombies_fix.FIX, FIX])
    assert outcome(done) == ("fixed", 0, None)
    row = planted.rows("sessions", "id")["running, for a month"]
    assert (row["handoff_state"], row["end_reason"]) == ("failed", "startup_orphan_reap")
    assert [finding for finding in patient.findings(both) if finding.fix is not Safety.NONE] == []


def test_a_row_that_moved_on_meanwhile_is_left(plots: Plots) -> None:
    """Found pending, and claimed before its turn came: the WHERE no longer holds."""
    planted = plots("0.22.2")

    def meanwhile(mending: Mending, finding: Finding) -> None:
        mending.connection.execute("UPDATE sessions SET handoff_state = 'completed' WHERE id = ?", (finding.key,))

    done = mend_too_late(planted.patient, CHECK, FIX, meanwhile)
    assert {change.state for change in done.changes} == {"gone"}


def _set(statement: str) -> Callable[[Mending, Finding], None]:
    def mend(mending: Mending, finding: Finding) -> None:
        mending.connection.execute(statement, (finding.key,))

    return mend


WRONG = {
    "as if it had never been asked for": "UPDATE sessions SET handoff_state = NULL WHERE id = ?",
    "without a reason": "UPDATE sessions SET handoff_state = 'failed' WHERE id = ?",
    "completed": "UPDATE sessions SET handoff_state = 'completed', handoff_error = 'by the doctor' WHERE id = ?",
    "the platform too": (
        "UPDATE sessions SET handoff_state = 'failed', handoff_error = 'by the doctor', handoff_platform = NULL"
        " WHERE id = ?"
    ),
    "all that are under way": (
        "UPDATE sessions SET handoff_state = 'failed', handoff_error = 'by the doctor'"
        " WHERE handoff_state IN ('pending', 'running') AND ? IS NOT NULL"
    ),
    "ended, too": (
        "UPDATE sessions SET handoff_state = 'failed', handoff_error = 'by the doctor', ended_at = 1.79e9 WHERE id = ?"
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_variant_fails(name: str, plots: Plots) -> None:
    planted = plots("0.13.0")
    with pytest.raises(AssertionError):
        mended(planted, replace(FIX, mend=_set(WRONG[name])))
