"""wrongly-ended on real stores: what it finds and leaves, what the gateways do, and wrong variants of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from checks.wrongly_ended import CHECK
from hermes_doctor.store import wrong_ends
from hermes_doctor.store.lineage import AUTOMATIC_REASONS, RESET_REASONS
from hermes_doctor.store.liveness import routes
from hermes_doctor.store.shape import Shape
from hermes_doctor.store.view import StoreView
from tests.checks.ends_and_counts import SHOWN, WRONG, scene
from tests.checks.support import findings_of
from tests.oracle.releases import Release, get

OLD, NEW = get("0.18.2"), get("0.22.2")


@pytest.mark.parametrize("release", SHOWN, ids=str)
def test_all_cases(release: Release, oracle: None, shared_folder: Path) -> None:
    home = scene(shared_folder, release)
    assert home.found(CHECK) == home.expected(CHECK)


@pytest.mark.parametrize("release", [get("0.13.0"), NEW], ids=str)
def test_asked_about_single_rows_it_says_the_same(release: Release, oracle: None, shared_folder: Path) -> None:
    assert scene(shared_folder, release).judged_otherwise_alone(CHECK) == []


def test_a_finding_says_what_and_why_it_is_left(oracle: None, shared_folder: Path) -> None:
    found = scene(shared_folder, NEW).findings(CHECK)
    one = found[f"{WRONG}: tui_close after a handoff, without a key"]
    assert one.summary == "was ended as tui_close after it was handed over, but its chat goes on"
    assert (one.action, one.refusal) == ("clear its end", None)
    assert one.detail.keys() == {"end_reason", "ended_at", "handed_over"}
    for name, words in (
        ("agent_close, keyed", "the gateway opens it again by itself at the next message"),
        ("another has its chat", "another session of the same chat has begun or was ended on purpose since"),
        ("a turn is running in it", "a turn is running in its lineage: look again when that is over"),
    ):
        assert (found[f"{WRONG}: {name}"].refusal, found[f"{WRONG}: {name}"].action) == (words, None)


def test_alone_the_table_of_routes_is_enough(oracle: None, shared_folder: Path) -> None:
    home = scene(shared_folder, NEW)
    found = findings_of(home.home.store, CHECK, now=home.now)
    assert {str(finding.key) for finding in found} == home.expected(CHECK).keys()


def _mentioned(view: StoreView) -> object:
    """Takes whatever a routing entry mentions for what it leads to."""
    return routes(view).ids


def _no_edges(_shape: Shape, _child: str, _parent: str) -> str:
    return "'tool'"


def _all_edges(_shape: Shape, _child: str, _parent: str) -> str:
    return "'subagent'"


@pytest.mark.parametrize(
    ("name", "variant", "release"),
    [
        ("AUTOMATIC_REASONS", AUTOMATIC_REASONS | RESET_REASONS, OLD),
        ("AUTOMATIC_REASONS", AUTOMATIC_REASONS | wrong_ends.EXPLICIT_CLOSES, OLD),
        ("AUTOMATIC_REASONS", AUTOMATIC_REASONS - {"lru_evict"}, OLD),
        ("EXPLICIT_CLOSES", wrong_ends.EXPLICIT_CLOSES | {"new_session"}, OLD),
        ("_led_to", _mentioned, NEW),
        ("_REOPENED_FROM", {}, OLD),
        ("_HANDED_OVER_REOPENED_FROM", 11, OLD),
        ("_is_taken_over", lambda *_: False, OLD),
        ("RESET_REASONS", frozenset({"none"}), OLD),
        ("live_work", lambda *_: None, NEW),
        ("edge_sql", _no_edges, OLD),
        ("edge_sql", _all_edges, OLD),
    ],
)
def test_wrong_variants_fail(
    name: str,
    variant: Callable[..., object] | object,
    release: Release,
    oracle: None,
    shared_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    home = scene(shared_folder, release)
    monkeypatch.setattr(wrong_ends, name, variant)
    assert home.found(CHECK) != home.expected(CHECK)
