"""stale-handoffs: handoffs that nobody is at are found, those that somebody may still carry out are left."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from checks.stale_handoffs import CHECK
from hermes_doctor.engine.model import Check, RowRule
from hermes_doctor.engine.rows import ask, find
from hermes_doctor.store.ages import Age
from tests.checks.left_behind_cases import LIVES, Plots
from tests.checks.support import findings_of
from tests.oracle.process import HermesProcess
from tests.oracle.steps import call
from tests.store.views import view_of


@pytest.mark.parametrize("life", LIVES, ids="→".join)
def test_each_case_gets_its_verdict(plots: Plots, life: tuple[str, ...]) -> None:
    planted = plots(*life)
    assert planted.found(CHECK) == planted.expected(CHECK.name)


def test_asked_about_single_rows_it_says_the_same(plots: Plots) -> None:
    planted = plots("0.22.2")
    with view_of(planted.home.store, home=planted.home.path, now=planted.now) as view:
        everything = {finding.key: finding for finding in find([CHECK], view)}
        keys = [row[0] for row in view.rows("SELECT id FROM sessions")]
        assert {finding.key: finding for finding in ask(CHECK, keys, view)} == everything
        for key in keys[:30]:
            assert list(ask(CHECK, [key], view)) == ([everything[key]] if key in everything else [])


def test_a_finding_says_since_when(plots: Plots) -> None:
    planted = plots("0.22.2")
    by_key = {f.key: f for f in findings_of(planted.home.store, CHECK, now=planted.now)}
    one = by_key["running, 16 minutes by message"]
    assert one.summary == "is stuck in a handoff that nobody is at, last used 16 minutes ago"
    assert one.detail == {
        "handoff_state": "running",
        "idle_seconds": pytest.approx(16 * 60, abs=3),
        "clock": "messages.timestamp",
    }
    assert (one.session, one.action) == (one.key, "mark the handoff as failed")
    assert by_key["pending, 6 minutes by start"].summary.startswith("waits for a handoff that nobody is at")


@pytest.mark.parametrize("held", ["yes", "unknown"])
def test_nothing_is_found_where_somebody_may_have_the_store_open(plots: Plots, held: str) -> None:
    planted = plots("0.13.0")
    with view_of(planted.home.store, now=planted.now, held=held) as view:
        assert list(find([CHECK], view)) == []
    with view_of(planted.home.store, now=planted.now, held="no") as view:
        assert list(find([CHECK], view)) != []


def test_the_command_that_waits_for_the_gateway_is_left_in_peace(plots: Plots) -> None:
    planted = plots("0.20.6")
    with HermesProcess(planted.home, planted.release) as hermes:
        hermes.call("request_handoff", "never handed off", "telegram")
        assert planted.found(CHECK) == {}
    assert ("sessions", "never handed off") in planted.found(CHECK)


def test_idle_only_raises_the_threshold(plots: Plots) -> None:
    planted = plots("0.22.2")
    assert set(planted.found(CHECK, idle_floor=60.0)) == set(planted.found(CHECK))
    assert set(planted.found(CHECK, idle_floor=86_400.0 * 7)) == {("sessions", "running, for a month")}


@pytest.mark.parametrize("release", ["0.13.0", "0.20.6", "0.22.2"])
def test_such_a_session_refuses_to_be_handed_off(plots: Plots, release: str) -> None:
    """Why it is a fault, and why the look-alikes are none: the release's own answer."""
    planted = plots(release)
    stuck = [key for _, key in planted.expected(CHECK.name)]
    free = ["completed", "failed", "never handed off"]
    values = planted.home.run(release, [call("request_handoff", key, "telegram") for key in (*stuck, *free)])
    assert values == [False] * len(stuck) + [True] * len(free)


Patch = Callable[[pytest.MonkeyPatch], Check | None]


def _patch(name: str, value: object) -> Patch:
    return lambda monkeypatch: monkeypatch.setattr(name, value)


def _by_start(view: Any, sessions: list[Any]) -> dict[Any, Age]:
    """As if the start alone counted."""
    started = view.rows("SELECT started_at FROM sessions WHERE id = ?", tuple(sessions))[0][0]
    return {sessions[0]: Age(started if isinstance(started, float) else 1.6e9, "started_at")}


[_RULE] = (rule for rule in CHECK.rules if isinstance(rule, RowRule))
WRONG: dict[str, Patch] = {
    "five minutes for both": _patch("checks.stale_handoffs._LIMITS", {"pending": 300.0, "running": 300.0}),
    "fifteen minutes for both": _patch("checks.stale_handoffs._LIMITS", {"pending": 900.0, "running": 900.0}),
    "running only": _patch("checks.stale_handoffs._LIMITS", {"running": 900.0}),
    "an hour": _patch("checks.stale_handoffs._LIMITS", {"pending": 3600.0, "running": 3600.0}),
    "the start alone counts": _patch("checks.stale_handoffs.ages_of", _by_start),
    "any state": _patch(
        "checks.stale_handoffs._LIMITS",
        dict.fromkeys(("pending", "running", "completed", "failed", "queued"), 300.0),
    ),
    "open rows only": lambda _: replace(
        CHECK,
        rule=replace(_RULE, condition=lambda shape: "handoff_state IN ('pending', 'running') AND ended_at IS NULL"),
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_variant_fails_a_case(name: str, plots: Plots, monkeypatch: pytest.MonkeyPatch) -> None:
    planted = plots("0.22.2")
    variant = WRONG[name](monkeypatch) or CHECK
    assert planted.found(variant) != planted.expected(CHECK.name)
