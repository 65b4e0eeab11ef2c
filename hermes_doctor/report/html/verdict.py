"""What all stores come to together, and the sentence with which the page begins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from hermes_doctor.engine.model import Bucket, Check, Severity
from hermes_doctor.engine.scan import CheckResult, StoreScan
from hermes_doctor.report.html.markup import Markup, join, tag
from hermes_doctor.report.table import CLOSED, CONDITION_WORDS
from hermes_doctor.report.words import counted, number, short_path


class Verdict:
    """What all stores come to together, and what is said of that in a sentence."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, str, str]] = []
        self._stores = 0
        self._closed: list[str] = []
        self._unfinished = 0
        self._muted = 0
        self._faults: Counter[Bucket] = Counter()
        #: What is only good to know.
        self._notes = 0
        self._worst: tuple[Severity, Check] | None = None

    def add(self, scan: StoreScan, found: Sequence[CheckResult]) -> None:
        """Take in one store."""
        self._stores += 1
        self._unfinished += scan.stopped is not None or any(result.status == "failed" for result in scan.checks)
        if scan.condition in CLOSED:
            self._closed.append(CONDITION_WORDS[scan.condition])
            if scan.next_step:
                self.steps.append((short_path(scan.ref.path), CONDITION_WORDS[scan.condition], scan.next_step))
        for result in found:
            if result.muted is not None:
                self._muted += result.count
                continue
            severity = result.worst or result.check.severity
            if severity is Severity.INFO:
                self._notes += result.count
                continue
            self._faults.update(result.buckets)
            if self._worst is None or severity > self._worst[0]:
                self._worst = severity, result.check

    @property
    def _total(self) -> int:
        return self._faults.total()

    def sentence(self) -> str:
        """Say in one sentence what is wrong."""
        one = self._stores == 1
        if self._closed and one:
            word = self._closed[0]
            return f"This store {word}." if word.startswith("cannot") else f"This store is {word}."
        if self._closed:
            words = " or ".join(dict.fromkeys(self._closed))
            verb = "" if words.startswith("cannot") else "is " if len(self._closed) == 1 else "are "
            return f"{number(len(self._closed))} of {counted(self._stores, 'store')} {verb}{words}."
        where = "in this store" if one else f"in {number(self._stores)} stores"
        if not self._total:
            if self._unfinished:
                return "Nothing wrong was found, but not everything could be looked at."
            if self._notes:
                return f"Nothing is broken {where}; {counted(self._notes, 'thing')} may be good to know."
            which = "this store" if one else f"{number(self._stores)} stores"
            return f"Nothing is wrong with {which} but what is muted." if self._muted else f"All is well with {which}."
        return f"{counted(self._total, 'fault')} {where}, and {self._mendable()}."

    def _mendable(self) -> str:
        safe = self._faults[Bucket.SAFE]
        if not safe:
            return "it needs you" if self._total == 1 else "all of them need you"
        if safe == self._total:
            return "it mends safely" if safe == 1 else "all of them mend safely"
        return "one of them mends safely" if safe == 1 else f"{number(safe)} of them mend safely"

    def lede(self) -> Iterator[Markup]:
        """Say what is worst, and what is not in the sum."""
        if not (self._total or self._notes or self._closed or self._unfinished or self._muted):
            yield join(["Every check ran, and there is nothing to do."])
        if self._worst is not None:
            severity, check = self._worst
            what = "Something is lost, hidden or refused now" if severity is Severity.ERROR else "The most serious"
            yield join([f"{what}: {check.meaning} (", tag("b", check.name), ")."])
        if self._unfinished and self._total:
            yield join(["Not everything could be looked at; see below."])
        if self._muted:
            verb = "is" if self._muted == 1 else "are"
            yield join([f"{counted(self._muted, 'finding')} {verb} muted and not counted here."])

    def figures(self) -> Markup:
        """Return the sums as figures."""
        safe = self._faults[Bucket.SAFE]
        shown = [("found", self._total), ("mend safely", safe), ("need you", self._total - safe)]
        if self._notes:
            shown.append(("good to know", self._notes))
        if self._stores > 1:
            shown.append(("stores", self._stores))
        if not self._total:
            return Markup("")
        return tag(
            "dl", *(tag("div", tag("dt", word), tag("dd", number(count))) for word, count in shown), class_="sums"
        )
