"""Transactions grow while they are short, shrink when they are long, and leave the store to others as long."""

from __future__ import annotations

import itertools
import time

import pytest

from hermes_doctor.engine.pacing import BUDGET, LIVE_BUDGET, LivePacing, Pacing


def noted(pacing: Pacing, seconds_per_row: float, transactions: int) -> list[int]:
    """Run so many transactions of what pacing asks for; their sizes."""
    sizes = []
    for _ in range(transactions):
        sizes.append(pacing.next_size())
        pacing.note(sizes[-1], sizes[-1] * seconds_per_row)
    return sizes


def test_ten_rows_are_measured_one_by_one() -> None:
    assert noted(Pacing(), 0.0001, 11) == [1] * 10 + [2]


def test_a_size_never_more_than_doubles_and_stays_in_the_budget() -> None:
    sizes = noted(Pacing(), 0.001, 30)
    assert all(after <= 2 * before for before, after in itertools.pairwise(sizes))
    # A hundred rows of a millisecond fill a tenth of a second.
    assert sizes[-1] in (99, 100)
    assert max(sizes) * 0.001 <= BUDGET
    assert max(noted(Pacing(), 0.0, 40)) <= 500


def test_an_overshoot_halves_it_at_once() -> None:
    pacing = Pacing()
    before = noted(pacing, 0.001, 30)[-1]
    pacing.note(before, 2 * BUDGET)
    assert pacing.next_size() == before // 2
    for _ in range(10):
        pacing.note(pacing.next_size(), 2 * BUDGET)
    assert pacing.next_size() == 1


def test_one_slow_row_does_not_stop_the_growth_for_good() -> None:
    pacing = Pacing()
    noted(pacing, 0.001, 30)
    pacing.note(1, 10.0)
    assert noted(pacing, 0.001, 40)[-1] > 50


def test_it_rests_as_long_as_it_held_but_no_longer_than_a_second() -> None:
    pacing = Pacing()
    begun = time.monotonic()
    pacing.rest()
    assert time.monotonic() - begun < 0.05
    pacing.note(1, 0.2)
    begun = time.monotonic()
    pacing.rest()
    assert 0.2 <= time.monotonic() - begun < 0.9
    pacing.note(1, 30.0)
    begun = time.monotonic()
    pacing.rest()
    assert time.monotonic() - begun < 5.0


def test_the_summary_names_median_percentile_and_longest() -> None:
    pacing = Pacing()
    assert pacing.summary() == {"median": 0.0, "p95": 0.0, "longest": 0.0}
    for hundredth in range(1, 101):
        pacing.note(1, hundredth / 100)
    summary = pacing.summary()
    assert summary["longest"] == 1.0
    assert summary["median"] == 0.505
    assert 0.95 <= summary["p95"] <= 0.96


def test_beside_a_living_hermes_no_rest_is_shorter_than_the_budget_or_the_hold() -> None:
    pacing = LivePacing()
    assert pacing.rest_seconds() == LIVE_BUDGET
    pacing.note(1, 0.001)
    assert pacing.rest_seconds() == LIVE_BUDGET
    pacing.note(1, 3.0)
    assert pacing.rest_seconds() == 3.0


def test_beside_a_hermes_that_writes_rests_grow_and_shrink_again() -> None:
    pacing = LivePacing()
    pacing.note(1, 0.01)
    rests = []
    for crowded in (True, True, True, True, True, False, False, False, False, False):
        pacing.crowd(crowded)
        rests.append(round(pacing.rest_seconds() / LIVE_BUDGET))
    assert rests == [2, 4, 8, 16, 16, 8, 4, 2, 1, 1]


@pytest.mark.parametrize(("disk", "rows"), [(0.0, 250), (0.025, 125), (0.2, 62)])
def test_beside_a_living_hermes_rows_get_what_the_disk_leaves_of_the_budget(disk: float, rows: int) -> None:
    pacing = LivePacing()
    # A row takes 0.2 ms; a disk that takes all of the budget leaves a quarter of it to them.
    for _ in range(20):
        size = pacing.next_size()
        pacing.note(size, disk + 0.0002 * size, disk)
    assert rows / 2 <= pacing.next_size() <= rows
    before = pacing.next_size()
    pacing.note(before, disk + 2 * LIVE_BUDGET, disk)
    assert pacing.next_size() == before // 2


def test_a_transaction_with_few_rows_says_nothing_of_larger_ones() -> None:
    pacing = LivePacing()
    for _ in range(4):
        pacing.note(pacing.next_size(), 0.001)
    size = pacing.next_size()
    pacing.note(1, 0.001)
    assert pacing.next_size() == size
