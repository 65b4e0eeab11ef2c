"""What tests of checks share: scan one real store with one check."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hermes_doctor.engine.model import Check, Finding
from hermes_doctor.engine.scan import ScanOptions, scan_store
from hermes_doctor.host.homes import StoreRef


def findings_of(
    path: Path,
    check: Check | Sequence[Check],
    *,
    home: Path | None = None,
    now: float | None = None,
    idle_floor: float = 0.0,
) -> list[Finding]:
    """Scan the store with the check(s) and return all findings; fails where a check could not do its work.

    ``now``: seconds since the epoch, for thresholds. ``home``: the Hermes home that the store belongs to.
    """
    chosen = [check] if isinstance(check, Check) else list(check)
    scan = scan_store(StoreRef(path, home, "default"), chosen, ScanOptions(now=now, idle_floor=idle_floor))
    try:
        failed = {r.check.name: r.reason for r in scan.checks if r.status == "failed"}
        assert not failed, failed
        assert scan.reason is None, (scan.condition, scan.reason)
        return list(scan.findings)
    finally:
        scan.findings.close()
