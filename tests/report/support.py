"""Stores as a scan hands them to a reporter."""

from __future__ import annotations

import io
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

from hermes_doctor.engine.findings import Findings
from hermes_doctor.engine.model import Check, ExitCode, Finding, RowRule, Safety, Severity
from hermes_doctor.engine.scan import CheckResult, StoreScan
from hermes_doctor.host.homes import StoreRef
from hermes_doctor.report.model import RunEnd, RunStart, ScanReporter


def make_check(name: str = "odd-rows", severity: Severity = Severity.WARNING, page: str = "") -> Check:
    return Check(
        name=name,
        severity=severity,
        summary=f"what {name} finds",
        meaning="rows that are odd in a way that takes more than one line of a narrow table to be told",
        fix=Safety.SAFE,
        page=page,
        rule=RowRule("sessions", (), lambda shape: None, lambda row, view: None),
    )


def make_finding(check: str = "odd-rows", **changes: object) -> Finding:
    settings: dict[str, object] = {
        "check": check,
        "severity": Severity.WARNING,
        "table": "sessions",
        "key": "s1",
        "session": "s1",
        "summary": "it is odd",
        "detail": {},
        "fix": Safety.SAFE,
        "action": "make it even",
    }
    return Finding(**(settings | changes))  # type: ignore[arg-type]  # the keywords are Finding's own


def make_scan(found: Sequence[Finding] = (), checks: Sequence[Check] = (), **changes: object) -> StoreScan:
    """A scan of a readable store; whoever prints it closes its findings."""
    checks = checks or [make_check(name) for name in dict.fromkeys(f.check for f in found)] or [make_check()]
    results = {check.name: CheckResult(check) for check in checks}
    for finding in found:
        results[finding.check].note(finding)
    settings: dict[str, object] = {
        "ref": StoreRef(Path("/srv/hermes/state.db"), Path("/srv/hermes"), "default"),
        "schema_version": 22,
        "journal_mode": "wal",
        "bytes": 1503238553,
        "sessions": 3049,
        "messages": 61465,
        "held": "no",
        "checks": list(results.values()),
    }
    settings["findings"] = changes.pop("findings", None) or Findings(found)
    return StoreScan(**(settings | changes))  # type: ignore[arg-type]  # the keywords are StoreScan's own


def report_on(
    report: ScanReporter, *scans: StoreScan, start: RunStart | None = None, end: RunEnd | None = None
) -> None:
    """Tells a report of a whole run, and closes the findings."""
    report.begin(start or RunStart("0.1.0", "3.54.1", 1796072400.9))
    for scan in scans:
        with scan.findings:
            report.store(scan)
    report.end(end or RunEnd(0.4142, ExitCode.FINDINGS))


class Discarding(io.StringIO):
    """A stream that keeps nothing."""

    def write(self, text: str) -> int:
        return len(text)


def peak_of(report: ScanReporter, count: int) -> int:
    """The most memory, in bytes, that a report takes meanwhile of a store with that many findings."""
    scan = make_scan(checks=[make_check()], findings=Findings(make_finding(key=f"session-{n}") for n in range(count)))
    tracemalloc.start()
    report.store(scan)
    reached = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    scan.findings.close()
    return reached
