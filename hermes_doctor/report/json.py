"""Reports as JSON documents (schemas/*.json). Findings are written one by one, so memory does not grow with them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

from hermes_doctor.engine.model import Bucket, Check, Finding
from hermes_doctor.engine.scan import CheckResult, StoreScan
from hermes_doctor.report.document import dump, opened, utc
from hermes_doctor.report.model import OUTCOMES, RunEnd, RunStart
from hermes_doctor.store.cells import json_key

if TYPE_CHECKING:
    from hermes_doctor.report.layout import Look

SCAN_FORMAT = "hermes-doctor.scan"
SCAN_FORMAT_VERSION = 1


class ScanJson:
    """`doctor scan --json`: one document, complete as soon as `end` has been called."""

    def __init__(self, stream: TextIO, _look: Look | None = None) -> None:
        self._write = stream.write
        self._stores = 0

    def begin(self, start: RunStart) -> None:
        """Write the head of the document."""
        head = {
            "format": SCAN_FORMAT,
            "format_version": SCAN_FORMAT_VERSION,
            "tool": {"version": start.version, "sqlite": start.sqlite},
            "started_at": utc(start.started_at),
        }
        self._write(f'{opened(head)}, "databases": [')

    def store(self, scan: StoreScan) -> None:
        """Write one store: what it is, its findings one by one, then what each check came to."""
        self._write(",\n " if self._stores else "\n ")
        self._stores += 1
        self._write(f'{opened(_store_head(scan))}, "findings": [')
        separator = "\n  "
        for finding in scan.findings:
            self._write(separator + dump(_finding(finding)))
            separator = ",\n  "
        tail = {
            "checks": [_check_result(result) for result in scan.checks],
            "since_last": _since_last(scan),
            "stopped": scan.stopped,
            "consistent": scan.consistent,
            "trace": list(scan.trace),
            "seconds": round(scan.seconds, 3),
        }
        self._write(f"], {dump(tail)[1:]}")

    def end(self, end: RunEnd) -> None:
        """Write the totals, which complete the document."""
        tail = {
            "not_scanned": [str(path) for path in end.not_scanned],
            "seconds": round(end.seconds, 3),
            "outcome": OUTCOMES[end.exit_code],
            "exit_code": int(end.exit_code),
        }
        self._write(f"],\n {dump(tail)[1:]}\n")


def checks_json(checks: Sequence[Check]) -> str:
    """Return `doctor checks --json`."""
    listed = [
        {
            "check": check.name,
            "severity": check.severity.label,
            "fix": check.fix.value,
            "summary": check.summary,
        }
        for check in checks
    ]
    return json.dumps({"checks": listed}, indent=1) + "\n"


def _store_head(scan: StoreScan) -> dict[str, object]:
    return {
        "path": scan.ref.path,
        "home": scan.ref.home,
        "profile": scan.ref.profile,
        "condition": scan.condition.value,
        "reason": scan.reason,
        "schema_version": scan.schema_version,
        "journal_mode": scan.journal_mode,
        "bytes": scan.bytes,
        "sessions": scan.sessions,
        "messages": scan.messages,
        "held": scan.held,
        "holders": [{"pid": holder.pid, "name": holder.name} for holder in scan.holders],
    }


def _since_last(scan: StoreScan) -> dict[str, object] | None:
    """Return of how many messages an earlier scan's word was taken; None where that was not asked for."""
    if scan.since_last is None:
        return None
    since = scan.since_last
    return {"messages_known": since.known, "messages_read": since.read, "doubt": since.doubt}


def _finding(finding: Finding) -> dict[str, object]:
    return {
        "check": finding.check,
        "severity": finding.severity.label,
        "table": finding.table,
        "key": json_key(finding.key),
        "session": json_key(finding.session),
        "summary": finding.summary,
        "detail": finding.detail,
        "fix": finding.fix.value,
        "action": finding.action,
        "refusal": finding.refusal,
    }


def _check_result(result: CheckResult) -> dict[str, object]:
    return {
        "check": result.check.name,
        "severity": result.check.severity.label,
        "status": result.status,
        "reason": result.reason,
        "count": result.count,
        "safe": result.buckets[Bucket.SAFE],
        "unsafe": result.buckets[Bucket.UNSAFE],
        "refused": result.buckets[Bucket.REFUSED],
        "report": result.buckets[Bucket.REPORT],
        "seconds": round(result.seconds, 3),
    }
