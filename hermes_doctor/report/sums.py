"""What the findings of several stores come to together, and the first few of each check; muted ones do not count."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from hermes_doctor.engine.model import Bucket, Severity
from hermes_doctor.report.words import counted, number

if TYPE_CHECKING:
    from hermes_doctor.engine.model import Finding
    from hermes_doctor.engine.scan import StoreScan


class Sums:
    """The sums, of which a report's closing sentence tells."""

    def __init__(self) -> None:
        self._found: Counter[Severity] = Counter()
        self._buckets: Counter[Bucket] = Counter()

    @property
    def total(self) -> int:
        """All findings so far."""
        return self._found.total()

    def take(self, scan: StoreScan, limit: int) -> dict[str, list[Finding]]:
        """Count what was found in one store, and return the first ``limit`` findings of each check."""
        examples: dict[str, list[Finding]] = {}
        unmuted = {result.check.name for result in scan.checks if result.muted is None}
        for finding in scan.findings:
            if finding.check not in unmuted:
                continue
            self._found[finding.severity] += 1
            kept = examples.setdefault(finding.check, [])
            if len(kept) < limit:
                kept.append(finding)
        for result in scan.checks:
            if result.muted is None:
                self._buckets.update(result.buckets)
        return examples

    def sentence(self) -> str:
        """Return the sums in words: ``3 findings (1 error, 2 warnings), 2 of them mend safely``."""
        return f"{counted(self.total, 'finding')} ({self._severities()}), {self._mendable()}"

    def _severities(self) -> str:
        named = [
            counted(self._found[severity], severity.label)
            if severity is not Severity.INFO
            else f"{number(self._found[severity])} info"
            for severity in sorted(Severity, reverse=True)
            if self._found[severity]
        ]
        return ", ".join(named)

    def _mendable(self) -> str:
        safe = self._buckets[Bucket.SAFE]
        if safe == 0:
            return "none of them mends safely"
        if safe == self.total:
            return "it mends safely" if safe == 1 else "all of them mend safely"
        return f"{number(safe)} of them {'mends' if safe == 1 else 'mend'} safely"
