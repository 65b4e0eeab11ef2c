"""What became of findings, however many there are: in the order of a report, and by row while a run is at work."""

from __future__ import annotations

import json
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator

from hermes_doctor.engine.findings import Closing, Pile, Shelf
from hermes_doctor.engine.model import Finding
from hermes_doctor.engine.transaction import FAILED, REFUSED, Change
from hermes_doctor.store.cells import json_key


class Changes(Pile[Change]):
    """Changes in their order, counted by state as they come. The file goes with the last who knows them."""

    def __init__(self, changes: Iterable[Change] = ()) -> None:
        self._states: Counter[str] = Counter()
        super().__init__(changes)
        weakref.finalize(self, self._file.close)

    def add(self, change: Change) -> None:
        """Put one change on the pile."""
        self._states[change.state] += 1
        super().add(change)

    def count(self, *states: str) -> int:
        """How many changes are in one of the states."""
        return sum(self._states[state] for state in states)


class Became(Closing):
    """What became of each finding of a run: a later round's word replaces an earlier one's."""

    def __init__(self, planned: Iterable[Change]) -> None:
        self._words: Shelf[tuple[Change, bool]] = Shelf()
        for change in planned:
            self._words.put(_name(change), (change, False))
        #: Whether any finding was tried in vain: where none was, as a rule, none has to be looked up.
        self._any_in_vain = False

    def note(self, change: Change) -> None:
        """Say what a transaction made of a finding."""
        in_vain = change.state in (REFUSED, FAILED)
        self._any_in_vain |= in_vain
        self._words.put(_name(change), (change, in_vain))

    def in_vain(self, finding: Finding) -> bool:
        """Whether this run has tried to mend the finding in vain."""
        word = self._words.get(_name(finding), None) if self._any_in_vain else None
        return word is not None and word[1]

    def __iter__(self) -> Iterator[Change]:
        for change, _in_vain in self._words:
            yield change

    def close(self) -> None:
        """Let the temporary file go."""
        self._words.close()


def _name(one: Change | Finding) -> str:
    return json.dumps((one.check, one.table, json_key(one.key)))
