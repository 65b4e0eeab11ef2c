"""What became of what the checks find, as the history tells it: what is new, what grows, what is gone, since when."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from hermes_doctor.nightly.history import Entry

#: A time in seconds since the epoch, and how many were found at it.
Point = tuple[float, int]


class Became(enum.StrEnum):
    """What became of a check's findings on a store within the time that is looked at."""

    NEW = "new"
    GROWS = "grows"
    SHRINKS = "shrinks"
    GONE = "gone"
    SAME = "same"


@dataclass(frozen=True)
class Trend:
    """What became of what one check finds on one store.

    ``count``: at the last scan that tells, which was at ``seen``. ``before``: at the scan nearest to the beginning of
    the time that is looked at, None where there is none but the last. ``since``: when the findings began, or were gone;
    it may be longer where ``since_known`` is not set: the history begins there. ``deep``: only scans with --deep tell.
    """

    check: str
    became: Became
    count: int
    before: int | None
    since: float
    since_known: bool
    seen: float
    deep: bool
    points: Sequence[Point]


def trends(entries: Sequence[Entry], now: float, period: float) -> list[Trend]:
    """Return what became of one store's findings in the last ``period`` seconds, the news first.

    Like is compared with like: scans with --deep, or with another --idle, find another number of the same faults.
    """
    checks = sorted({check for entry in entries for check in entry.counts})
    found = [trend for check in checks for trend in _of_check(check, entries, now, period)]
    return sorted(found, key=lambda trend: list(Became).index(trend.became))


def _of_check(check: str, entries: Sequence[Entry], now: float, period: float) -> Iterable[Trend]:
    told = [entry for entry in entries if check in entry.counts]
    newest = told[-1]
    deep = _points(check, told, newest, deep=True)
    plain = _points(check, told, newest, deep=False)
    trend = _trend(check, deep if newest.deep else plain, now, period, deep=newest.deep)
    if newest.deep and trend.count and plain and plain[-1][1]:
        # What a scan without --deep saw already did not begin at the one with it.
        earlier = _trend(check, plain, now, period, deep=False)
        if earlier.since < trend.since:
            became = earlier.became if trend.became is Became.NEW else trend.became
            trend = replace(trend, became=became, since=earlier.since, since_known=earlier.since_known)
    elif not newest.deep and not trend.count and deep and deep[-1][1]:
        # What only a scan with --deep sees is not gone since the others do not see it.
        unseen = _trend(check, deep, now, period, deep=True)
        if all(count == 0 for at, count in plain if at >= unseen.since):
            trend = unseen
    if trend.count or trend.became is Became.GONE:
        yield trend


def _points(check: str, told: Sequence[Entry], like: Entry, *, deep: bool) -> list[Point]:
    return [(entry.at, entry.counts[check]) for entry in told if entry.deep == deep and entry.idle == like.idle]


def _begin(points: Sequence[Point]) -> int:
    """Return the place where the last run of points begins that are all of findings, or all of none."""
    place = len(points) - 1
    while place > 0 and (points[place - 1][1] > 0) == (points[-1][1] > 0):
        place -= 1
    return place


def _trend(check: str, points: Sequence[Point], now: float, period: float, *, deep: bool) -> Trend:
    begin = _begin(points)
    (since, _), (seen, count) = points[begin], points[-1]
    earlier = points[:-1]
    before = min(earlier, key=lambda point: abs(point[0] - (now - period)))[1] if earlier else None
    recent = begin > 0 and since >= now - period
    if not count:
        became = Became.GONE if recent else Became.SAME
    elif recent:
        became = Became.NEW
    elif before is None or before == count:
        became = Became.SAME
    else:
        became = Became.GROWS if count > before else Became.SHRINKS
    return Trend(check, became, count, before, since, begin > 0, seen, deep, tuple(points))
