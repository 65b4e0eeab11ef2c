"""How what a scan takes grows with the store: time for each message, against that of the smaller store."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from bench.figures import Figure, at_most, plain, unpromised
from bench.measure import Measured
from bench.options import Case
from bench.reading import PROMISED_FROM, Reading, counted


def growth_of(readings: Sequence[Reading]) -> list[Figure]:
    """Of each kind of store, the largest against each smaller one: 1 is proportional, below 1 is better."""

    def kind(reading: Reading) -> tuple[str, float, float]:
        return reading.case.release, reading.case.faults, reading.case.weight

    found = []
    for _kind, same in groupby(sorted(readings, key=lambda each: (kind(each), each.case.messages)), kind):
        *smaller, largest = same
        for small in smaller:
            found += _against(small, largest)
    return found


def _against(small: Reading, large: Reading) -> list[Figure]:
    figures = [
        plain(_name("bare read", small.case, large.case), _factor(small, large, small.bare, large.bare), "times")
    ]
    for threads, more in large.warm.items():
        less = small.warm[threads]
        name = _name(f"scan, {counted(threads)}", small.case, large.case)
        note = f"{less.seconds:.3f} s to {more.seconds:.3f} s"
        figure = at_most(name, _factor(small, large, less, more), 1.2, "times", note)
        figures.append(figure if large.case.messages >= PROMISED_FROM else unpromised(figure))
    return figures


def _factor(small: Reading, large: Reading, less: Measured, more: Measured) -> float:
    return (more.seconds / large.case.messages) / (less.seconds / small.case.messages)


def _name(what: str, small: Case, large: Case) -> str:
    return f"{what}, time for each message against that of {small.messages:,}: {large}"
