"""`doctor scan --format prometheus`: figures for the textfile collector of Prometheus's node_exporter.

Everything is a gauge of the last scan. Sizes are in bytes, times in seconds. What is not known has no sample, and so
has a check that did not look. Findings of a muted check are counted in a family of their own, so that an alert on
``hermes_doctor_findings`` says nothing of them. Findings are counted, never kept; no id of a store's row is told.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, TextIO

from hermes_doctor.engine.model import Bucket, Severity
from hermes_doctor.host.bundle import Condition
from hermes_doctor.report.words import visible

if TYPE_CHECKING:
    from hermes_doctor.engine.scan import CheckResult, StoreScan
    from hermes_doctor.report.layout import Look
    from hermes_doctor.report.model import RunEnd, RunStart

_PREFIX = "hermes_doctor_"

#: Every family in the order in which they are written, and what it is.
FAMILIES = {
    "info": "The doctor that scanned, and the SQLite that it read with.",
    "scan_timestamp_seconds": "When the last scan began, in seconds since the epoch.",
    "scan_duration_seconds": "How long the last scan took.",
    "scan_exit_code": "How it ended: 0 clean, 1 findings, 3 the doctor failed, 4 a store is damaged, 7 stopped.",
    "scan_stores": "How many stores it was to look at.",
    "scan_stores_unread": "How many of them it did not come to, because it was stopped.",
    "store_condition": "What the store is like: 1 for the condition that it is in, 0 for all others.",
    "store_schema_version": "The version of the store's schema.",
    "store_size_bytes": "The size of the store with its write-ahead log.",
    "store_sessions": "How many sessions the store holds.",
    "store_messages": "How many messages the store holds.",
    "store_held": "Whether somebody had the store open: 1 yes, 0 no.",
    "store_scan_stopped": "Whether the scan was stopped before the end of the store: 1 yes, 0 no.",
    "store_scan_duration_seconds": "How long the scan of the store took.",
    "store_findings": "Findings by what can be done: safe and unsafe mend, refused does not here, none never does.",
    "findings": "Findings by check and severity, without those of muted checks.",
    "check_failed": "Whether the check could not do its work, or not on every row: 1 yes, 0 no.",
    "check_duration_seconds": "How long the check took; checks that read a table together share that time.",
    "check_muted_until_timestamp_seconds": "Until when the check is muted, in seconds since the epoch.",
    "check_muted_findings": "Findings of checks that are muted, by severity.",
}

#: What `Bucket` is called in the label ``remedy``.
_REMEDIES = {Bucket.SAFE: "safe", Bucket.UNSAFE: "unsafe", Bucket.REFUSED: "refused", Bucket.REPORT: "none"}

Labels = dict[str, str]


class ScanMetrics:
    """The figures; they are written when all is counted, for those of one family have to stand together."""

    def __init__(self, stream: TextIO, _look: Look | None = None) -> None:
        self._stream = stream
        self._encoding = getattr(stream, "encoding", None) or "utf-8"
        self._samples: dict[str, list[str]] = {name: [] for name in FAMILIES}
        self._stores: set[str] = set()

    def begin(self, start: RunStart) -> None:
        """Note who scans, and since when."""
        self._add("info", 1, {"version": start.version, "sqlite": start.sqlite})
        self._add("scan_timestamp_seconds", start.started_at)

    def store(self, scan: StoreScan) -> None:
        """Count one store."""
        store = {"store": self._name(str(scan.ref.path)), "profile": scan.ref.profile}
        for condition in Condition:
            self._add("store_condition", scan.condition is condition, store | {"condition": condition.value})
        for family, value in (
            ("store_schema_version", scan.schema_version),
            ("store_size_bytes", scan.bytes),
            ("store_sessions", scan.sessions),
            ("store_messages", scan.messages),
            ("store_held", {"yes": True, "no": False}.get(scan.held)),
            ("store_scan_stopped", scan.stopped is not None),
            ("store_scan_duration_seconds", scan.seconds),
        ):
            self._add(family, value, store)
        remedies: Counter[Bucket] = Counter()
        for result in scan.checks:
            remedies.update(result.buckets if result.muted is None else {})
        for bucket, remedy in _REMEDIES.items():
            self._add("store_findings", remedies[bucket], store | {"remedy": remedy})
        found = Counter((finding.check, finding.severity) for finding in scan.findings)
        for result in scan.checks:
            if result.status != "skipped" or result.count:
                self._check(result, found, store | {"check": result.check.name})

    def end(self, end: RunEnd) -> None:
        """Write everything."""
        self._add("scan_duration_seconds", end.seconds)
        self._add("scan_exit_code", int(end.exit_code))
        self._add("scan_stores", len(self._stores) + len(end.not_scanned))
        self._add("scan_stores_unread", len(end.not_scanned))
        for family, samples in self._samples.items():
            if samples:
                name = _PREFIX + family
                self._stream.write(f"# HELP {name} {FAMILIES[family]}\n# TYPE {name} gauge\n")
                self._stream.writelines(samples)

    def _check(self, result: CheckResult, found: Counter[tuple[str, Severity]], labels: Labels) -> None:
        self._add("check_failed", result.status == "failed", labels)
        self._add("check_duration_seconds", result.seconds, labels)
        for severity in Severity:
            count = found[result.check.name, severity]
            # Always of the check's own severity: a series that comes and goes is hard to compare with.
            if count or severity is result.check.severity:
                each = labels | {"severity": severity.label}
                self._add("findings", count if result.muted is None else 0, each)
                self._add("check_muted_findings", count if result.muted is not None else None, each)
        if result.muted is not None:
            self._add("check_muted_until_timestamp_seconds", result.muted.until, labels)

    def _add(self, family: str, value: float | None, labels: Labels | None = None) -> None:
        """Add a sample; None means that there is none."""
        if value is None:
            return
        told = ",".join(f'{name}="{self._quoted(text)}"' for name, text in (labels or {}).items())
        series = f"{_PREFIX}{family}{{{told}}}" if told else f"{_PREFIX}{family}"
        self._samples[family].append(f"{series} {value:.3f}\n" if isinstance(value, float) else f"{series} {value:d}\n")

    def _name(self, path: str) -> str:
        """Return a store's path as its name; two that look alike once they are made visible get different ones."""
        name = visible(path)
        while name in self._stores:
            name += "'"
        self._stores.add(name)
        return name

    def _quoted(self, text: str) -> str:
        """Return a label's value. A backslash is escaped last: what an old encoding lacks is shown by one too."""
        shown = visible(text).encode(self._encoding, "backslashreplace").decode(self._encoding)
        return shown.replace("\\", "\\\\").replace('"', '\\"')
