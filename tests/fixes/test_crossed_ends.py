"""crossed-ends mended: the end that follows and nothing else, at rest, and taken back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from checks.crossed_ends import CHECK
from fixes.crossed_ends import FIX
from hermes_doctor.engine.cure import FixRefusedError, Mending
from hermes_doctor.engine.model import Finding
from tests.checks.ends_and_counts import CROSSED, SHOWN, Scene
from tests.fixes.support import change_meanwhile, mend_with_all, outcome
from tests.oracle.releases import Release, get
from tests.whole.identical import difference, image_of

NEW = get("0.22.2")
NAME = f"{CROSSED}: compressed without an end"


@pytest.mark.parametrize("release", SHOWN, ids=str)
def test_mended_at_rest_and_taken_back(release: Release, patient: Callable[[Release], Scene]) -> None:
    home = patient(release)
    expected, damaged = home.after(CHECK), image_of(home.home.store)
    safely = home.patient.mend(unsafe=False, checks=[CHECK], fixes=[FIX])
    assert [key for key, verdict in home.found(CHECK).items() if verdict and verdict[1] != "none"] == [
        f"{NAME}, past the retention"
    ]
    wholly = home.patient.mend(checks=[CHECK], fixes=[FIX])
    assert home.rows() == expected
    assert {verdict and verdict[1] for verdict in home.found(CHECK).values()} == {"none"}
    assert outcome(home.patient.mend(checks=[CHECK], fixes=[FIX])) == ("nothing-to-do", 0, None)
    for run in (wholly.run, safely.run):
        assert outcome(home.patient.undo(run)) == ("fixed", 0, None)
    assert difference(damaged, image_of(home.home.store)) == []


@pytest.mark.parametrize("release", [get("0.13.0"), NEW], ids=str)
def test_a_run_with_the_other_checks_comes_to_rest(release: Release, patient: Callable[[Release], Scene]) -> None:
    """Rows with a reason and no end are open to open-zombies, ended ones compressed to lineage-gaps."""
    home = patient(release)
    assert outcome(mend_with_all(home.patient, CHECK, FIX)) == ("fixed", 0, None)
    assert outcome(mend_with_all(home.patient, CHECK, FIX)) == ("nothing-to-do", 0, None)


@pytest.mark.parametrize("release", [get("0.13.0"), NEW], ids=str)
def test_all_conversations_replay_and_the_compressed_one_is_followed(
    release: Release, patient: Callable[[Release], Scene]
) -> None:
    home = patient(release)
    before = home.home.replay(release)
    home.patient.mend(checks=[CHECK], fixes=[FIX])
    after = home.home.replay(release)
    assert after["conversations"] == before["conversations"]
    assert after["tips"][NAME] == f"{NAME}/next"
    # 0.13 compares the two times, and did not get there without the end.
    assert (before["tips"][NAME] == NAME) == (release is not NEW)


@pytest.mark.parametrize(
    "meanwhile",
    [
        "UPDATE sessions SET end_reason = 'cli_close' WHERE id = ?",
        "UPDATE sessions SET ended_at = started_at + 1 WHERE id = ?",
        "UPDATE sessions SET started_at = started_at + 1e8 WHERE id = ?",
        "DELETE FROM sessions WHERE id = ?",
    ],
)
def test_a_row_that_somebody_changed_meanwhile_is_left(meanwhile: str, patient: Callable[[Release], Scene]) -> None:
    home = patient(NEW)
    changes = (("PRAGMA foreign_keys = OFF", ()), (meanwhile, (NAME,)))
    assert change_meanwhile(home.patient, FIX, home.findings(CHECK)[NAME], *changes) == "RowMovedError"


def test_what_does_not_follow_is_refused(patient: Callable[[Release], Scene]) -> None:
    home = patient(NEW)
    finding = home.findings(CHECK)[f"{CROSSED}: a reason without an end"]
    with home.mending() as mending, pytest.raises(FixRefusedError, match="does not follow"):
        FIX.mend(mending, finding)


def _now(mending: Mending, finding: Finding) -> None:
    FIX.mend(mending, replace(finding, detail={**finding.detail, "ends_at": mending.view.now}))


def _open_again(mending: Mending, finding: Finding) -> None:
    mending.connection.execute("UPDATE sessions SET end_reason = NULL WHERE id = ?", (finding.key,))


def _child_too(mending: Mending, finding: Finding) -> None:
    FIX.mend(mending, finding)
    mending.connection.execute("UPDATE sessions SET ended_at = 1.0 WHERE parent_session_id = ?", (finding.key,))


@pytest.mark.parametrize("wrong", [_now, _open_again, _child_too])
def test_wrong_variants_fail(wrong: Callable[[Mending, Finding], None], patient: Callable[[Release], Scene]) -> None:
    home = patient(NEW)
    expected = home.after(CHECK)
    home.patient.mend(checks=[CHECK], fixes=[replace(FIX, mend=wrong)])
    assert home.rows() != expected
