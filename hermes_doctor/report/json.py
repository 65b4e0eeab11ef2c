"""Reports as JSON documents (schemas/*.json). Findings are written one by one, so memory does not grow with them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

from hermes_doctor.engine.model import Bucket, Check, Finding
from hermes_doctor.engine.scan import CheckResult, Muted, StoreScan
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
        head = run_head(start, SCAN_FORMAT, SCAN_FORMAT_VERSION)
        self._write(f'{opened(head)}, "databases": [')

    def store(self, scan: StoreScan) -> None:
        """Write one store: what it is, its findings one by one, then what each check came to."""
        self._write(",\n " if self._stores else "\n ")
        self._stores += 1
        self._write(f'{opened(store_head(scan))}, "findings": [')
        separator = "\n  "
        for finding in scan.findings:
            self._write(separator + dump(finding_fields(finding)))
            separator = ",\n  "
        tail = {"checks": [check_fields(result) for result in scan.checks], **store_tail(scan)}
        self._write(f"], {dump(tail)[1:]}")

    def end(self, end: RunEnd) -> None:
        """Write the totals, which complete the document."""
        self._write(f"],\n {dump(run_tail(end))[1:]}\n")


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


def run_head(start: RunStart, name: str, version: int) -> dict[str, object]:
    """Return what is told of the beginning of a run, in the format of that name."""
    return {
        "format": name,
        "format_version": version,
        "tool": {"version": start.version, "sqlite": start.sqlite},
        "started_at": utc(start.started_at),
    }


def run_tail(end: RunEnd) -> dict[str, object]:
    """Return what is told of the end of a run."""
    return {
        "not_scanned": [str(path) for path in end.not_scanned],
        "seconds": round(end.seconds, 3),
        "outcome": OUTCOMES[end.exit_code],
        "exit_code": int(end.exit_code),
    }


def store_head(scan: StoreScan) -> dict[str, object]:
    """Return what is told of a store before its findings."""
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


def store_tail(scan: StoreScan) -> dict[str, object]:
    """Return what is told of a store after its findings and checks."""
    return {
        "since_last": _since_last(scan),
        "stopped": scan.stopped,
        "consistent": scan.consistent,
        "trace": list(scan.trace),
        "seconds": round(scan.seconds, 3),
    }


def _since_last(scan: StoreScan) -> dict[str, object] | None:
    """Return of how many messages an earlier scan's word was taken; None where that was not asked for."""
    if scan.since_last is None:
        return None
    since = scan.since_last
    return {"messages_known": since.known, "messages_read": since.read, "doubt": since.doubt}


def finding_fields(finding: Finding) -> dict[str, object]:
    """Return what is told of a finding."""
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


def check_fields(result: CheckResult) -> dict[str, object]:
    """Return what is told of what a check came to on a store."""
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
        "muted": muted(result.muted),
        "seconds": round(result.seconds, 3),
    }


def muted(mute: Muted | None) -> dict[str, object] | None:
    """Return the muting of a check as documents show it, None where it is not muted."""
    if mute is None:
        return None
    return {"since": utc(mute.since), "until": utc(mute.until), "worse_than": mute.worse_than}
