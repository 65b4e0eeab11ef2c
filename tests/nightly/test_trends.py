"""What the history tells of a check: new, grown, fewer, gone, the same, and since when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from hermes_doctor.nightly.history import DAY, Entry
from hermes_doctor.nightly.trends import Became, Trend, trends

NOW = 1_796_072_400.0
WEEK = 7 * DAY


def nights(*counts: int | None, deep: bool = False, check: str = "a", last: float = 0.0) -> list[Entry]:
    """A scan every night, the last so many days ago; None: it could not be read."""
    return [
        Entry(
            Path("/one/state.db"),
            NOW - (len(counts) - 1 - place + last) * DAY,
            "readable" if count is not None else "damaged",
            deep=deep,
            counts={} if count is None else {check: count},
        )
        for place, count in enumerate(counts)
    ]


def told(entries: Sequence[Entry]) -> Trend | None:
    found = trends(sorted(entries, key=lambda entry: entry.at), NOW, WEEK)
    assert len(found) <= 1
    return found[0] if found else None


@pytest.mark.parametrize(
    ("counts", "became", "count", "before", "days", "known"),
    [
        ([0] * 10 + [2], Became.NEW, 2, 0, 0, True),
        ([0] * 10 + [2, 3, 3], Became.NEW, 3, 0, 2, True),
        ([0, 0, 5, 5, 5, 5, 5, 5, 5, 5, 5, 6], Became.GROWS, 6, 5, 9, True),
        ([0, 0, 5, 5, 5, 5, 5, 5, 5, 5, 5, 4], Became.SHRINKS, 4, 5, 9, True),
        ([0, 0, 5, 9, 5, 5, 5, 5, 5, 5, 5, 5], Became.SAME, 5, 5, 9, True),
        ([5] * 10, Became.SAME, 5, 5, 9, False),
        ([5], Became.SAME, 5, None, 0, False),
        ([3, 5], Became.GROWS, 5, 3, 1, False),
        ([5] * 9 + [0, 0], Became.GONE, 0, 5, 1, True),
        # It came back: what is new is the present run of it.
        ([5] * 9 + [0, 5], Became.NEW, 5, 5, 0, True),
        # A night on which the store could not be read says nothing.
        ([0] * 9 + [None, 2, None, 2, None], Became.NEW, 2, 0, 3, True),
    ],
)
def test_of_nightly_scans(
    counts: list[int | None], became: Became, count: int, before: int | None, days: int, known: bool
) -> None:
    trend = told(nights(*counts))
    assert trend is not None
    assert (trend.became, trend.count, trend.before) == (became, count, before)
    assert (trend.since, trend.since_known) == (NOW - days * DAY, known)
    assert [number for _at, number in trend.points] == [number for number in counts if number is not None]


@pytest.mark.parametrize("counts", [[0], [0] * 20, [5] + [0] * 9, [None]])
def test_what_is_not_there_is_not_told(counts: list[int | None]) -> None:
    assert told(nights(*counts)) is None


def test_the_news_come_first() -> None:
    entries = [
        replace(entry, counts={"a": 1, "b": place, "c": int(place < 9), "d": int(place > 8), "e": 9 - place // 2})
        for place, entry in enumerate(nights(*[0] * 10))
    ]
    assert [(trend.check, trend.became.value) for trend in trends(entries, NOW, WEEK)] == [
        ("d", "new"),
        ("b", "grows"),
        ("e", "shrinks"),
        ("c", "gone"),
        ("a", "same"),
    ]


def test_a_check_that_was_left_out_last_is_told_by_the_scan_that_had_it() -> None:
    entries = [*nights(*[4] * 10, last=1), *nights(0, check="b")]
    trend = told(entries)
    assert trend is not None
    assert (trend.count, trend.seen) == (4, NOW - DAY)


# Scans with --deep find more of the same; like is compared with like.


def test_what_only_deep_scans_see_does_not_come_and_go() -> None:
    weekly = [entry for place, entry in enumerate(nights(*[3] * 22, deep=True, last=2)) if place % 7 == 0]
    nightly = nights(*[0] * 24)
    trend = told([*nightly, *weekly])
    assert trend is not None
    assert (trend.became, trend.count, trend.before, trend.deep) == (Became.SAME, 3, 3, True)
    assert trend.seen == weekly[-1].at
    # On the night of the deep scan too.
    trend = told([*nightly, *nights(*[3], deep=True), *weekly])
    assert trend is not None
    assert (trend.became, trend.count, trend.deep) == (Became.SAME, 3, True)


def test_what_both_see_is_told_by_the_newest() -> None:
    # Seen by the night before, found by the deep scan too, and mended since.
    nightly = nights(0, 0, 0, 2, 2, 0)
    trend = told([*nightly, replace(nightly[4], deep=True)])
    assert trend is not None
    assert (trend.became, trend.count, trend.deep, trend.since) == (Became.GONE, 0, False, NOW)


def test_what_others_saw_before_is_not_new_on_the_night_of_a_deep_scan() -> None:
    nightly = nights(*[2] * 12, last=1)
    deep = [*nights(0, deep=True, last=11.5), *nights(5, deep=True)]
    trend = told([*nightly, *deep])
    assert trend is not None
    assert (trend.became, trend.count, trend.since_known) == (Became.SAME, 5, False)
    assert trend.since == nightly[0].at


def test_more_patient_scans_are_not_compared_with_others() -> None:
    entries = [*nights(*[9] * 10, last=1), replace(nights(4)[0], idle=DAY)]
    trend = told(entries)
    assert trend is not None
    assert (trend.became, trend.count, trend.before) == (Became.SAME, 4, None)
