"""What tests of checks share: scan one real store with one check."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Generic, TypeVar

import pytest
from filelock import FileLock

from hermes_doctor.engine.model import FILES, Check, Finding
from hermes_doctor.engine.rows import ask
from hermes_doctor.engine.scan import ScanOptions, scan_store
from hermes_doctor.host.homes import StoreRef
from tests.oracle.home import Home
from tests.store.views import view_of

CaseT = TypeVar("CaseT")
PlantedT = TypeVar("PlantedT")


@dataclass(frozen=True)
class Planted(Generic[CaseT]):
    """A store with all the cases that its release can show, and what the check found in it at ``now``."""

    home: Home
    now: float
    cases: tuple[CaseT, ...]
    findings: tuple[Finding, ...]

    def asked_one_by_one(self, check: Check) -> list[Finding]:
        """What the check says of each session when it is asked about that one alone, in the order of the keys."""
        with view_of(self.home.store, home=self.home.path, now=self.now) as view:
            ids = [row[0] for row in view.rows("SELECT id FROM sessions")]
            return by_key([finding for key in ids for finding in ask(check, [key], view)])


def by_key(findings: Sequence[Finding]) -> list[Finding]:
    """The findings in the order of their keys."""
    return sorted(findings, key=lambda finding: str(finding.key))


def built_once(folder: Path, build: Callable[[Home], float]) -> tuple[Home, float]:
    """The home in that folder, built by whichever parallel worker asks first, and the moment that ``build`` returned.

    Whoever changes it, changes a copy.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path, stamp = folder / "home", folder / "now"
    with FileLock(folder / "lock"):
        if not stamp.exists():
            # A build that failed half-way is no home.
            shutil.rmtree(path, ignore_errors=True)
            stamp.write_text(repr(build(Home(path))))
    return Home(path), float(stamp.read_text())


def once_a_release(
    plant: Callable[[Home, str], PlantedT], folders: pytest.TempPathFactory
) -> Callable[[str], PlantedT]:
    """A home for each release that is asked for, planted when it is asked for first."""
    return cache(lambda version: plant(Home(folders.mktemp("planted") / "home"), version))


def findings_of(
    path: Path,
    check: Check | Sequence[Check],
    *,
    home: Path | None = None,
    now: float | None = None,
    idle_floor: float = 0.0,
) -> list[Finding]:
    """Scan the store with the check(s) and return all findings; fails where a check could not do its work.

    Fails, too, where a check finds one row twice; of a file, or of the whole store, it may have several things to say.

    ``now``: seconds since the epoch, for thresholds. ``home``: the Hermes home that the store belongs to.
    """
    chosen = [check] if isinstance(check, Check) else list(check)
    scan = scan_store(StoreRef(path, home, "default"), chosen, ScanOptions(now=now, idle_floor=idle_floor))
    try:
        failed = {r.check.name: r.reason for r in scan.checks if r.status == "failed"}
        assert not failed, failed
        assert scan.reason is None, (scan.condition, scan.reason)
        findings = list(scan.findings)
        rows = Counter((each.check, each.row) for each in findings if each.table != FILES and each.key is not None)
        assert [row for row, times in rows.items() if times > 1] == []
        return findings
    finally:
        scan.findings.close()
