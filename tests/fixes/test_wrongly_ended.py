"""wrongly-ended mended: the gateways go on in the chat; at rest, and taken back."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from checks.wrongly_ended import CHECK
from fixes.wrongly_ended import FIX
from hermes_doctor.engine.cure import FixRefusedError, Mending
from hermes_doctor.engine.model import Finding
from tests.checks.ends_and_counts import SHOWN, WRONG, Scene, key_of, peer
from tests.checks.zombie_cases import MINUTE, Plot
from tests.fixes.support import Patient, change_meanwhile, mend_with_all, outcome
from tests.oracle.home import Home
from tests.oracle.releases import Release, get
from tests.oracle.steps import Step, use
from tests.whole.identical import difference, image_of

NEW = get("0.22.2")
NAME = f"{WRONG}: tui_shutdown, and no gateway mends it"
ENDS = ("tui_shutdown", "agent_close", "ws_orphan_reap", "startup_orphan_reap", "cli_close")


@pytest.mark.parametrize("release", SHOWN, ids=str)
def test_mended_at_rest_and_taken_back(release: Release, patient: Callable[[Release], Scene]) -> None:
    home = patient(release)
    expected, damaged = home.after(CHECK), image_of(home.home.store)
    assert outcome(home.patient.mend(unsafe=False, checks=[CHECK], fixes=[FIX])) == ("nothing-to-do", 0, None)
    mended = home.patient.mend(checks=[CHECK], fixes=[FIX])
    assert outcome(mended) == ("fixed", 0, None)
    assert home.rows() == expected
    assert {verdict and verdict[1] for verdict in home.found(CHECK).values()} <= {"none"}
    assert outcome(home.patient.mend(checks=[CHECK], fixes=[FIX])) == ("nothing-to-do", 0, None)
    assert outcome(home.patient.undo(mended.run)) == ("fixed", 0, None)
    assert difference(damaged, image_of(home.home.store)) == []


def test_a_run_with_the_other_checks_comes_to_rest(patient: Callable[[Release], Scene]) -> None:
    """A chat that is open again is no zombie: its route keeps it."""
    home = patient(get("0.18.2"))
    assert outcome(mend_with_all(home.patient, CHECK, FIX)) == ("fixed", 0, None)
    assert home.rows()[NAME]["ended_at"] is None
    assert outcome(mend_with_all(home.patient, CHECK, FIX)) == ("nothing-to-do", 0, None)


def chats(release: Release, part: str) -> list[Step]:
    """One chat for each end: twenty minutes old, ended ten minutes ago, used since."""
    steps: list[Step] = []
    for reason in ENDS:
        p = Plot(f"{part} {reason}", release, time.time())
        p.row("", "telegram", ago=20 * MINUTE)
        p.say("", ago=20 * MINUTE)
        p.steps.append(use("gateway_message", keep=f"{p.case} route", **peer(p.case)))
        p.steps.append(use("gateway_switch", session_key=key_of(p.case), session_id=p.id()))
        if reason == "cli_close":
            p.set("", "handoff_state", "completed")
        p.end("", reason, ago=10 * MINUTE)
        p.say("", ago=5 * MINUTE)
        if release.since("0.20.0"):
            p.do("touch_session_activity", p.id())
        p.at(0)
        steps += p.steps
    return steps


@pytest.mark.parametrize("release", [get("0.13.0"), get("0.18.2"), NEW], ids=str)
def test_the_gateway_goes_on_in_what_heals_itself_and_in_what_is_mended(
    release: Release, make_home: Callable[[str], Home]
) -> None:
    # Two homes: where a gateway starts, it drops the routes to what it does not heal.
    left, mended = make_home("left"), make_home("mended")
    for home, part in ((left, "left"), (mended, "mended")):
        home.run(release, chats(release, part))
    found = {str(f.key): f for f in Patient(left.store, left.path).findings([CHECK])}
    assert found.keys() == _all("left")
    heals = {key for key, finding in found.items() if finding.severity.label == "info"}
    # Before 0.18.0 a gateway does not look for an end.
    assert _reached(left, release, "left") == (heals if release.since("0.18.0") else _all("left"))
    assert outcome(Patient(mended.store, mended.path).mend(checks=[CHECK], fixes=[FIX])) == ("fixed", 0, None)
    assert _reached(mended, release, "mended") == _all("mended")


def _all(part: str) -> set[str]:
    return {f"{part} {reason}" for reason in ENDS}


def _reached(home: Home, release: Release, part: str) -> set[str]:
    """The chats in which the next message from their peer arrives."""
    names = sorted(_all(part))
    entries = home.run(release, [use("gateway_message", **peer(name)) for name in names])
    return {name for name, entry in zip(names, entries, strict=True) if entry["session_id"] == name}


@pytest.mark.parametrize(
    "meanwhile",
    [
        "UPDATE sessions SET end_reason = 'session_reset' WHERE id = ?",
        "UPDATE sessions SET ended_at = ended_at + 1 WHERE id = ?",
        "UPDATE sessions SET ended_at = NULL, end_reason = NULL WHERE id = ?",
        "DELETE FROM sessions WHERE id = ?",
    ],
)
def test_a_row_that_somebody_changed_meanwhile_is_left(meanwhile: str, patient: Callable[[Release], Scene]) -> None:
    home = patient(NEW)
    changes = (("PRAGMA foreign_keys = OFF", ()), (meanwhile, (NAME,)))
    assert change_meanwhile(home.patient, FIX, home.findings(CHECK)[NAME], *changes) == "RowMovedError"


def test_an_end_that_is_not_known_is_refused(patient: Callable[[Release], Scene]) -> None:
    home = patient(NEW)
    finding = replace(home.findings(CHECK)[NAME], detail={})
    with home.mending() as mending, pytest.raises(FixRefusedError, match="not known"):
        FIX.mend(mending, finding)


def _the_time_alone(mending: Mending, finding: Finding) -> None:
    mending.connection.execute("UPDATE sessions SET ended_at = NULL WHERE id = ?", (finding.key,))


def _the_handoff_too(mending: Mending, finding: Finding) -> None:
    FIX.mend(mending, finding)
    mending.connection.execute("UPDATE sessions SET handoff_state = NULL WHERE id = ?", (finding.key,))


def _children_too(mending: Mending, finding: Finding) -> None:
    FIX.mend(mending, finding)
    mending.connection.execute(
        "UPDATE sessions SET parent_session_id = NULL WHERE parent_session_id = ?", (finding.key,)
    )


@pytest.mark.parametrize("wrong", [_the_time_alone, _the_handoff_too, _children_too])
def test_wrong_variants_fail(wrong: Callable[[Mending, Finding], None], patient: Callable[[Release], Scene]) -> None:
    home = patient(get("0.18.2"))
    expected = home.after(CHECK)
    home.patient.mend(checks=[CHECK], fixes=[replace(FIX, mend=wrong)])
    assert home.rows() != expected
