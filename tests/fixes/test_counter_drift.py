"""counter-drift mended: recounted as the newest releases count, replayed as before, at rest, and taken back."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace

import pytest

from checks.counter_drift import CHECK
from checks.double_encoded import CHECK as DOUBLE_ENCODED
from fixes.counter_drift import FIX
from fixes.double_encoded import FIX as UNWRAP
from hermes_doctor.engine.cure import Mending, RowMovedError
from hermes_doctor.engine.model import Finding
from hermes_doctor.store.counters import drifts
from tests.checks.ends_and_counts import DRIFT, SHOWN, Scene
from tests.fixes.support import outcome
from tests.oracle.home import Home
from tests.oracle.releases import Release, get
from tests.oracle.steps import call
from tests.whole.identical import difference, image_of

NEW = get("0.22.2")


@pytest.mark.parametrize("release", SHOWN, ids=str)
def test_mended_at_rest_and_taken_back(release: Release, patient: Callable[[Release], Scene]) -> None:
    home = patient(release)
    expected, damaged = home.after(CHECK), image_of(home.home.store)
    mended = home.patient.mend(unsafe=False, checks=[CHECK], fixes=[FIX])
    assert outcome(mended) == ("fixed", 0, None)
    assert home.rows() == expected
    assert home.found(CHECK) == {}
    assert outcome(home.patient.mend(checks=[CHECK], fixes=[FIX])) == ("nothing-to-do", 0, None)
    assert outcome(home.patient.undo(mended.run)) == ("fixed", 0, None)
    assert difference(damaged, image_of(home.home.store)) == []


@pytest.mark.parametrize("release", [get("0.18.2"), NEW], ids=str)
def test_the_release_replays_all_as_before(release: Release, patient: Callable[[Release], Scene]) -> None:
    home = patient(release)
    before = home.home.replay(release)
    assert outcome(home.patient.mend(checks=[CHECK], fixes=[FIX])) == ("fixed", 0, None)
    assert home.home.replay(release) == before


def test_a_full_chat_is_no_longer_taken_for_an_empty_one(patient: Callable[[Release], Scene]) -> None:
    release = get("0.20.0")
    home = patient(release)
    home.patient.mend(checks=[CHECK], fixes=[FIX])
    name = f"{DRIFT}: no messages, it says"
    home.home.run(release, [call("delete_empty_sessions")])
    assert len(home.home.messages(release, name)) == 4


def test_it_counts_what_the_release_itself_recounts(patient: Callable[[Release], Scene]) -> None:
    home = patient(NEW)
    name = f"{DRIFT}: too many messages, too few calls"
    last = home.home.messages(NEW, name)[-1]["id"]
    recounting = [call("rewind_to_message", name, last), call("append_message", name, "user", "thanks")]
    ours, theirs = home, Scene(Home(shutil.copytree(home.home.path, home.home.path.with_name("theirs"))), NEW, home.now)
    theirs.home.run(NEW, recounting)
    ours.patient.mend(checks=[CHECK], fixes=[FIX])
    counted = [ours.rows()[name][column] for column in ("message_count", "tool_call_count")]
    assert counted == [theirs.rows()[name][column] for column in ("message_count", "tool_call_count")]


def test_calls_that_come_out_of_a_string_are_counted_in_the_same_run(patient: Callable[[Release], Scene]) -> None:
    home = patient(NEW)
    name = f"{DRIFT}: a list in a string counts as one"
    both = {"checks": [CHECK, DOUBLE_ENCODED], "fixes": [FIX, UNWRAP]}
    assert outcome(home.patient.mend(**both)) == ("fixed", 0, None)  # type: ignore[arg-type]  # two lists
    assert home.rows()[name]["tool_call_count"] == 2
    assert outcome(home.patient.mend(**both)) == ("nothing-to-do", 0, None)  # type: ignore[arg-type]  # two lists


def test_a_counter_that_somebody_changed_meanwhile_is_left(patient: Callable[[Release], Scene]) -> None:
    home = patient(NEW)
    name = f"{DRIFT}: one call too few"
    finding = home.findings(CHECK)[name]
    with home.mending() as mending:
        # The change is made under the fix's hands: between its look and its write.
        mending.connection.execute(
            "CREATE TEMP TRIGGER meanwhile BEFORE UPDATE OF tool_call_count ON main.sessions"
            " BEGIN SELECT RAISE(IGNORE); END"
        )
        with pytest.raises(RowMovedError):
            FIX.mend(mending, finding)


def _all_rows(mending: Mending, finding: Finding) -> None:
    for drift in drifts(mending.view, [finding.key]):
        for each in drift.miscounts:
            mending.set("sessions", finding.key, to={each.column: each.explained.high}, expects={})


def _both_counters(mending: Mending, finding: Finding) -> None:
    FIX.mend(mending, finding)
    mending.connection.execute("UPDATE sessions SET message_count = 4 WHERE id = ?", (finding.key,))


def _every_row(mending: Mending, _finding: Finding) -> None:
    mending.connection.execute(
        "UPDATE sessions SET message_count = (SELECT count(*) FROM messages WHERE session_id = sessions.id AND active)"
    )


@pytest.mark.parametrize("wrong", [_all_rows, _both_counters, _every_row])
def test_wrong_variants_fail(wrong: Callable[[Mending, Finding], None], patient: Callable[[Release], Scene]) -> None:
    home = patient(get("0.20.0"))
    expected = home.after(CHECK)
    home.patient.mend(checks=[CHECK], fixes=[replace(FIX, mend=wrong)])
    assert home.rows() != expected
