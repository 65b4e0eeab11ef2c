"""Reports as JSON documents (schemas/*.json). Findings are written one by one, so memory does not grow with them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from hermes_doctor.engine.model import Bucket, Check, Finding
from hermes_doctor.engine.scan import CheckResult, StoreScan
from hermes_doctor.report.model import OUTCOMES, RunEnd, RunStart
from hermes_doctor.store.cells import json_key

SCAN_FORMAT = "hermes-doctor.scan"
SCAN_FORMAT_VERSION = 1


class ScanJson:
    """`doctor scan --json`: one document, complete as soon as `end` has been called."""

    def __init__(self, stream: TextIO) -> None:
        self._write = stream.write
        self._stores = 0

    def begin(self, start: RunStart) -> None:
        """Write the head of the document."""
        head = {
            "format": SCAN_FORMAT,
            "format_version": SCAN_FORMAT_VERSION,
            "tool": {"version": start.version, "sqlite": start.sqlite},
            "started_at": datetime.fromtimestamp(start.started_at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        self._write(f'{_open(head)}, "databases": [')

    def store(self, scan: StoreScan) -> None:
        """Write one store: what it is, its findings one by one, then what each check came to."""
        self._write(",\n " if self._stores else "\n ")
        self._stores += 1
        self._write(f'{_open(_store_head(scan))}, "findings": [')
        separator = "\n  "
        for finding in scan.findings:
            self._write(separator + _dump(_finding(finding)))
            separator = ",\n  "
        tail = {
            "checks": [_check_result(result) for result in scan.checks],
            "consistent": scan.consistent,
            "trace": list(scan.trace),
            "seconds": round(scan.seconds, 3),
        }
        self._write(f"], {_dump(tail)[1:]}")

    def end(self, end: RunEnd) -> None:
        """Write the totals, which complete the document."""
        tail = {
            "not_scanned": [str(path) for path in end.not_scanned],
            "seconds": round(end.seconds, 3),
            "outcome": OUTCOMES[end.exit_code],
            "exit_code": int(end.exit_code),
        }
        self._write(f"],\n {_dump(tail)[1:]}\n")


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


def _open(value: Mapping[str, object]) -> str:
    """Return an object as JSON without its closing brace, to be carried on."""
    return _dump(value)[:-1]


def _dump(value: Mapping[str, object]) -> str:
    # ASCII only: the document reads the same whatever the encoding of the stream is.
    return json.dumps(_plain(value), ensure_ascii=True, allow_nan=False)


def _plain(value: Any) -> object:
    """Return the value as strict JSON can hold it: no infinite numbers, no half characters."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bytes):
        return {"blob": value.hex()}
    if isinstance(value, Path):
        return _plain(str(value))
    if isinstance(value, Mapping):
        return {str(name): _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value
