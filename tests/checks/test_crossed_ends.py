"""crossed-ends on real stores: what it finds and leaves, on single rows, and wrong variants of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from checks.crossed_ends import CHECK
from hermes_doctor.engine.model import RowRule
from hermes_doctor.engine.rows import ask
from hermes_doctor.store import crossed_ends
from hermes_doctor.store.cells import Cell
from hermes_doctor.store.clocks import DAY
from hermes_doctor.store.crossed_ends import Kind, kinds_of
from hermes_doctor.store.lineage import continuations_of
from hermes_doctor.store.shape import Shape
from tests.checks.ends_and_counts import CROSSED, SHOWN, scene
from tests.checks.support import findings_of
from tests.oracle.releases import Release, get
from tests.store.views import view_of

NEW = get("0.22.2")


@pytest.mark.parametrize("release", SHOWN, ids=str)
def test_all_cases(release: Release, oracle: None, shared_folder: Path) -> None:
    home = scene(shared_folder, release)
    assert home.found(CHECK) == home.expected(CHECK)


def test_asked_about_single_rows_it_says_the_same(oracle: None, shared_folder: Path) -> None:
    home = scene(shared_folder, NEW)
    everything = home.findings(CHECK)
    with view_of(home.home.store, home=home.home.path, now=home.now) as view:
        for (key,) in view.rows("SELECT id FROM sessions"):
            assert list(ask(CHECK, [key], view)) == [f for f in everything.values() if f.key == key]


def test_a_finding_says_what_and_why_it_is_left(oracle: None, shared_folder: Path) -> None:
    home = scene(shared_folder, NEW)
    found = home.findings(CHECK)
    both = found[f"{CROSSED}: no reason, and before the start"]
    assert both.summary == "has an end but no reason and ends before it starts"
    assert both.detail == {
        "kinds": ["end-without-reason", "end-before-start"],
        "seconds_before": pytest.approx(50, abs=2),
    }
    assert both.refusal == "who ended it, or when, does not follow from the rest"
    mendable = found[f"{CROSSED}: compressed without an end"]
    assert (mendable.action, mendable.refusal) == ("end it when its continuation began", None)
    assert mendable.detail == {
        "kinds": ["reason-without-end"],
        "ends_at": pytest.approx(home.now - 4 * DAY, abs=2),
        "continuation": f"{CROSSED}: compressed without an end/next",
    }


def test_where_prune_is_known_to_be_off_an_old_one_is_safe(oracle: None, shared_folder: Path, tmp_path: Path) -> None:
    copy = scene(shared_folder, NEW).copy(tmp_path)
    (copy.home.path / "config.yaml").write_text("sessions:\n  auto_prune: false\n")
    assert copy.found(CHECK)[f"{CROSSED}: compressed without an end, past the retention"] == ("warning", "safe")


def test_no_end_follows_from_the_future(oracle: None, shared_folder: Path) -> None:
    home = scene(shared_folder, NEW)
    found = findings_of(home.home.store, CHECK, home=home.home.path, now=home.now - 4.5 * DAY)
    (one,) = (finding for finding in found if finding.key == f"{CROSSED}: compressed without an end")
    assert (one.severity.label, str(one.fix)) == ("warning", "none")


@pytest.mark.parametrize(
    ("started", "ended", "reason", "kinds"),
    [
        (2e9, None, None, ()),
        (2e9, 2e9, "x", ()),
        (2e9, None, b"", (Kind.NO_END,)),
        (2e9, 1e9, "", (Kind.NO_REASON, Kind.BACKWARDS)),
        (None, 0.0, "x", ()),
        (0.0, -1.0, "x", ()),
        (2e9, -1.0, "x", (Kind.BACKWARDS,)),
        (2e9, "1", "x", ()),
    ],
)
def test_what_three_cells_say(started: Cell, ended: Cell, reason: Cell, kinds: tuple[Kind, ...]) -> None:
    assert kinds_of(started, ended, reason) == kinds


def _ends_only(shape: Shape) -> str | None:
    """Takes every row without an end for open."""
    return f"ended_at IS NOT NULL AND ({crossed_ends.crossed_sql(shape)})"


def _null_is_the_only_missing_reason(started_at: Cell, ended_at: Cell, end_reason: Cell) -> tuple[Kind, ...]:
    return kinds_of(started_at, ended_at, "x" if end_reason == "" else end_reason)


def _the_first_will_do(*asked: Any) -> object:
    return continuations_of(*asked)[:1]


def test_a_wrong_condition_fails(oracle: None, shared_folder: Path) -> None:
    home = scene(shared_folder, NEW)
    assert isinstance(CHECK.rule, RowRule)
    wrong = replace(CHECK, rule=replace(CHECK.rule, condition=_ends_only))
    assert home.found(wrong) != home.expected(CHECK)


@pytest.mark.parametrize(
    ("module", "name", "variant"),
    [
        ("checks.crossed_ends", "kinds_of", _null_is_the_only_missing_reason),
        ("checks.crossed_ends", "MINUTE", 0.0),
        ("hermes_doctor.store.crossed_ends", "continuations_of", _the_first_will_do),
        ("hermes_doctor.store.crossed_ends", "_has_messages", lambda *_: True),
        ("hermes_doctor.store.crossed_ends", "_ROTATION_SECONDS", DAY),
        ("hermes_doctor.store.crossed_ends", "_prunable", lambda *_: False),
        ("hermes_doctor.store.crossed_ends", "_prunable", lambda *_: True),
    ],
)
def test_wrong_variants_fail(
    module: str,
    name: str,
    variant: Callable[..., object] | float,
    oracle: None,
    shared_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    home = scene(shared_folder, NEW)
    monkeypatch.setattr(f"{module}.{name}", variant)
    assert home.found(CHECK) != home.expected(CHECK)
