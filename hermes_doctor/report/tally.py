"""What a table tells of many changes: their counts, and the first few of each kind. Gone through once, however many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from hermes_doctor.engine.plan import NEEDS_UNSAFE
from hermes_doctor.engine.transaction import Change
from hermes_doctor.report.layout import row_name
from hermes_doctor.report.words import number, visible

#: Reasons of one kind that are told apart; rows with further ones are only counted.
_MOST_REASONS = 20


@dataclass
class _Group:
    """Rows that are left for one reason: how many, and the names of the first."""

    count: int = 0
    names: list[str] = field(default_factory=list)


class Tally:
    """The changes of one store. ``kept``: how many examples of each kind are kept."""

    def __init__(self, changes: Iterable[Change], kept: int, left: Collection[str]) -> None:
        """``left``: the states of rows that are left as they are, for a reason."""
        self._kept = kept
        self._counts: dict[str, Counter[str]] = {}
        self._examples: dict[tuple[str, str], list[Change]] = {}
        self._left: dict[tuple[str, str, str], _Group] = {}
        self._reasons: Counter[tuple[str, str]] = Counter()
        self._further: Counter[str] = Counter()
        #: How many changes of each check wait for --unsafe.
        self.waiting: Counter[str] = Counter()
        for change in changes:
            self._counts.setdefault(change.check, Counter())[change.state] += 1
            if change.state in left:
                self._note_left(change)
            else:
                examples = self._examples.setdefault((change.check, change.state), [])
                if len(examples) < kept:
                    examples.append(change)

    @property
    def checks(self) -> Iterable[str]:
        """The checks that changes are of, in the order of their first."""
        return self._counts

    def of(self, check: str) -> Counter[str]:
        """How many changes of the check are in which state."""
        return self._counts.get(check, Counter())

    def examples(self, check: str, state: str) -> list[Change]:
        """The first changes of the check that are in that state."""
        return self._examples.get((check, state), [])

    def more(self, check: str, state: str) -> Iterator[str]:
        """Give the line that says how many more there are than the examples, none where these are all."""
        rest = self.of(check)[state] - len(self.examples(check, state))
        if rest:
            yield f"  … and {number(rest)} more"

    def left(self) -> Iterator[str]:
        """Tell of the rows that are left as they are, grouped by the reason."""
        for (_state, check, reason), group in self._left.items():
            rest = group.count - len(group.names)
            names = ", ".join(group.names) + (f" and {number(rest)} more" if rest else "")
            which = f" ({names})" if group.names else ""
            yield f"{number(group.count)} of {check}: {visible(reason)}{which}"
        for check, further in self._further.items():
            yield f"{number(further)} of {check}: for further reasons (--json tells them row by row)"

    def _note_left(self, change: Change) -> None:
        self.waiting[change.check] += change.reason == NEEDS_UNSAFE
        name = change.state, change.check, change.reason or "no reason is known"
        group = self._left.get(name)
        if group is None:
            if self._reasons[name[:2]] == _MOST_REASONS:
                self._further[change.check] += 1
                return
            self._reasons[name[:2]] += 1
            group = self._left[name] = _Group()
        group.count += 1
        if len(group.names) < self._kept:
            group.names.append(row_name(change.table, change.key))
