"""stuck-delegations: what nobody will end or deliver is found; what somebody is at, and what was dropped, is left."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from checks.stuck_delegations import CHECK
from hermes_doctor.engine.model import Check, Safety
from hermes_doctor.engine.rows import ask, find
from hermes_doctor.host.processes import process_exists
from hermes_doctor.store.liveness import FINISHED
from tests.checks.left_behind_cases import DAY, DELEGATIONS, LIVES, UNSAFE, Plots, verdicts
from tests.checks.support import findings_of
from tests.oracle.steps import use
from tests.store.views import view_of


@pytest.mark.parametrize("life", LIVES, ids="→".join)
def test_each_case_gets_its_verdict(plots: Plots, life: tuple[str, ...]) -> None:
    planted = plots(*life)
    assert planted.found(CHECK) == planted.expected(CHECK.name)


def test_asked_about_single_rows_it_says_the_same(plots: Plots) -> None:
    planted = plots("0.19.0")
    with view_of(planted.home.store, home=planted.home.path, now=planted.now) as view:
        everything = {finding.key: finding for finding in find([CHECK], view)}
        for (key,) in view.rows("SELECT delegation_id FROM async_delegations"):
            assert list(ask(CHECK, [key], view)) == ([everything[key]] if key in everything else [])


def test_a_finding_says_what_is_known_and_nothing_private(plots: Plots) -> None:
    planted = plots("0.22.2")
    by_key = {f.key: f for f in findings_of(planted.home.store, CHECK, home=planted.home.path, now=planted.now)}
    lost = by_key["running, its owner is gone"]
    assert lost.summary == "under way, still for 6 minutes, its owner is gone"
    assert lost.session == "parent of running, its owner is gone"
    assert lost.detail == {"still_seconds": 360, "updated_at": pytest.approx(planted.now - 360)}
    old = by_key["delivered a week ago"]
    assert (old.summary, old.action) == ("delivered and kept for 7 days", "delete the delivered delegation")
    assert by_key["running, but delivered"].fix is Safety.NONE
    assert "private" not in str(by_key)


@pytest.mark.parametrize("held", ["yes", "unknown"])
def test_where_somebody_may_have_the_store_open_only_over_age_is_found(plots: Plots, held: str) -> None:
    planted = plots("0.22.2")
    with view_of(planted.home.store, home=planted.home.path, now=planted.now, held=held) as view:
        seen = verdicts(list(find([CHECK], view)))
    assert seen == {row: verdict for row, verdict in planted.expected(CHECK.name).items() if verdict == UNSAFE}


def test_in_a_store_that_stands_alone_no_owner_can_be_looked_for(plots: Plots) -> None:
    planted = plots("0.22.2")
    changed = dict(set(planted.expected(CHECK.name).items()) ^ set(planted.found(CHECK, alone=True).items()))
    assert {key for _, key in changed} == {
        "running, its owner is gone",
        "finalizing, its owner is gone",
        "running, its owner's number is another's",
        "running, its owner lives",
        "running, delivered, its owner lives",
    }


@pytest.mark.parametrize("release", ["0.19.0", "0.22.2"])
def test_the_release_takes_the_same_ones_for_abandoned(plots: Plots, release: str) -> None:
    """The release's own judgement: it marks them as of unknown outcome at its start, delivered ones among them."""
    planted = plots(release)
    before = planted.rows("async_delegations", "delegation_id")
    ours = {key for _, key in planted.found(CHECK) if before[key]["state"] not in FINISHED}
    planted.home.run(planted.release, [use("recover_delegations")])
    after = planted.rows("async_delegations", "delegation_id")
    theirs = {key for key in before if before[key]["state"] not in FINISHED and after[key]["state"] == "unknown"}
    assert ours <= theirs
    # What we leave: an owner that went just now, an owner that was never noted, what was dropped.
    assert theirs - ours == {
        "running, its owner went just now",
        "running, of no owner, for less",
        "running, but dropped",
    }


Patch = Callable[[pytest.MonkeyPatch], Check | None]


def _patch(name: str, value: object) -> Patch:
    return lambda monkeypatch: monkeypatch.setattr(name, value)


WRONG: dict[str, Patch] = {
    "under way is lost": _patch("checks.stuck_delegations.owner_lives", lambda view, pid, began: False),
    "a number is an owner": _patch("hermes_doctor.store.owners.process_began_at", lambda pid, began: True),
    "the start is not compared": _patch(
        "hermes_doctor.store.owners.process_began_at",
        lambda pid, began: process_exists(pid),
    ),
    "finalizing is an end": _patch("checks.stuck_delegations.FINISHED", FINISHED | {"finalizing"}),
    "only completed is an end": _patch("checks.stuck_delegations.FINISHED", frozenset({"completed"})),
    "no retention": _patch("checks.stuck_delegations._RETENTION", DAY / 2),
    "thirty days": _patch("checks.stuck_delegations._RETENTION", 31 * DAY),
    "any pending result is stuck": _patch("checks.stuck_delegations._REPLAYED", 0.0),
    "an owner that went just now": _patch("checks.stuck_delegations._STILL", 0.0),
    "age by dispatch alone": _patch("checks.stuck_delegations._TIMES", ("dispatched_at",)),
    "age by the row's change alone": _patch("checks.stuck_delegations._TIMES", ("updated_at",)),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_variant_fails_a_case(name: str, plots: Plots, monkeypatch: pytest.MonkeyPatch) -> None:
    planted = plots("0.22.2")
    variant = WRONG[name](monkeypatch) or CHECK
    assert planted.found(variant) != planted.expected(CHECK.name)


def test_undelivered_results_are_never_to_be_deleted(plots: Plots) -> None:
    planted = plots("0.22.2")
    undelivered = {case.name for case in DELEGATIONS if case.delivery != "delivered"}
    assert len(undelivered) > 10
    safety = {key: bucket for (_, key), (_, bucket) in planted.found(CHECK).items()}
    assert {safety[key] for key in undelivered & safety.keys()} == {"report"}
