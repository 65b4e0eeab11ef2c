"""What the parts of the bench are told: which stores, and how often."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bench.kept import kept_store


@dataclass(frozen=True)
class Case:
    """One store: the release that made it (and so its index's layout), its messages, the share of faulty ones.

    ``weight``: how many times as long as in the other stores its texts are.
    """

    release: str
    messages: int
    faults: float
    weight: float = 1.0

    @property
    def layout(self) -> str:
        """How the release lays out the search index: 0.20.0 on keep no texts in it."""
        return "inline" if tuple(map(int, self.release.split("."))) < (0, 20, 0) else "external"

    def __str__(self) -> str:
        heavy = "" if self.weight == 1 else f", {self.weight:g} times as heavy"
        return f"{self.messages:,} messages, {self.release} ({self.layout} index), {self.faults:.0%} faulty{heavy}"


@dataclass(frozen=True)
class Options:
    """What a part is told: ``figures(options) -> list[Figure]`` is all that a part has to have.

    ``stores``: a folder of kept stores, for scratch files too. ``times``: how often each thing is run; the median
    counts. ``cases``: which stores, from the smallest.
    """

    stores: Path
    times: int
    cases: tuple[Case, ...]

    @property
    def largest(self) -> Case:
        """The case with the most messages."""
        return max(self.cases, key=lambda case: case.messages)

    def store(self, case: Case) -> Path:
        """Where the case's store is, made now where it is not there yet; never write to it: take a copy."""
        return kept_store(self.stores, case.release, case.messages, faults=case.faults, weight=case.weight)
