"""The plan: what a scan found, which of it would be mended, and what stands in the way."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from hermes_doctor.engine.backup import AUTO_BYTES, BackupMode, will_back_up
from hermes_doctor.engine.became import Changes
from hermes_doctor.engine.cure import Fix, Phase
from hermes_doctor.engine.findings import Closing
from hermes_doctor.engine.gates import Planned, clock_doubt, refusal
from hermes_doctor.engine.halts import unreadable_journal
from hermes_doctor.engine.journal import FILE, Journal, folder_of
from hermes_doctor.engine.live import is_left_to_hermes, left_to_hermes, used_sessions
from hermes_doctor.engine.model import Check, ExitCode, Finding, Safety
from hermes_doctor.engine.prune_forecast import PruneForecast, prune_forecast
from hermes_doctor.engine.scan import Progress, ScanOptions, StoreScan, scan_store
from hermes_doctor.engine.transaction import NEEDS_UNSAFE as NEEDS_UNSAFE
from hermes_doctor.engine.transaction import PLANNED, REFUSED, Change
from hermes_doctor.host.homes import StoreRef
from hermes_doctor.host.room import free_bytes
from hermes_doctor.store.cells import Key
from hermes_doctor.store.view import StoreView

Outcome = Literal["planned", "fixed", "partly-fixed", "compacted", "nothing-to-do", "refused", "failed", "stopped"]

#: Pages that mending one row is taken to write: its own, and those of the indexes that it stands in.
_PAGES_A_ROW = 4

#: Where a finding is: its check, its table, its key there.
Place = tuple[str, str, Key]


def place_of(finding: Finding) -> Place:
    """Return where a finding is."""
    return finding.check, finding.table, finding.key


@dataclass(frozen=True)
class Chosen:
    """What a run is to mend: the checks with their fixes by the check's name, and whether unsafe ones too.

    ``only``: nothing but what is found at these places; None for no such limit.
    """

    checks: Sequence[Check]
    fixes: Mapping[str, Fix]
    unsafe: bool
    only: frozenset[Place] | None = None

    def means(self, finding: Finding) -> bool:
        """Whether the run is about this finding at all."""
        return finding.check in self.fixes and (self.only is None or place_of(finding) in self.only)

    def mends(self, finding: Finding) -> bool:
        """Whether the run is to mend this finding."""
        if not self.means(finding):
            return False
        return finding.fix is Safety.SAFE or (finding.fix is Safety.UNSAFE and self.unsafe)

    def ends(self, finding: Finding) -> bool:
        """Whether mending this finding ends a session, so that upstream's prune may take it."""
        fix = self.fixes.get(finding.check)
        return fix is not None and fix.phase is Phase.END

    def in_phases(self) -> list[list[Check]]:
        """The checks that have a fix, in groups of one phase, in the order of the phases."""
        phases = sorted({fix.phase for fix in self.fixes.values()})
        return [
            [check for check in self.checks if check.name in self.fixes and self.fixes[check.name].phase is phase]
            for phase in phases
        ]


def planned_change(
    finding: Finding, chosen: Chosen, clock_doubt: str | None, used: Mapping[Key, str] | None = None
) -> Change | None:
    """Return what the plan says of a finding; None where there is nothing that a fix could do.

    ``used``: the sessions that a living hermes may be using, where the work is to be done beside it.
    """
    fix = chosen.fixes.get(finding.check)
    if fix is None or not chosen.means(finding) or (finding.fix is Safety.NONE and finding.refusal is None):
        return None
    state, reason = PLANNED, None
    if finding.fix is Safety.NONE:
        state, reason = REFUSED, finding.refusal
    elif finding.fix is Safety.UNSAFE and not chosen.unsafe:
        state, reason = REFUSED, NEEDS_UNSAFE
    elif fix.uses_clock and clock_doubt is not None:
        state, reason = REFUSED, clock_doubt
    elif used is not None and (left := left_to_hermes(finding, fix, used)) is not None:
        state, reason = REFUSED, left
    return Change.of(finding, state, reason)


def last_run_at(store: Path) -> float | None:
    """When the doctor last changed this store, in seconds since the epoch; None where it never did."""
    journal = Journal.beside(store)
    if journal is None:
        return None
    with journal:
        return max((run.at for run in journal.runs()), default=None)


def planned(scan: StoreScan, chosen: Chosen) -> Planned:
    """Estimate what a run would write: a few pages for each row, for the row itself and its indexes."""
    rows = sum(chosen.mends(finding) for finding in scan.findings)
    page = scan.bundle.page_size if scan.bundle else 4096
    uses_clock = any(fix.uses_clock for fix in chosen.fixes.values())
    return Planned(rows=rows, bytes=rows * page * _PAGES_A_ROW, uses_clock=uses_clock)


@dataclass(frozen=True)
class BackupForecast:
    """Whether there will be a backup, of how many bytes, and if not, why not."""

    made: bool
    bytes: int
    why_not: Literal["never", "too-large", "no-room"] | None = None


def forecast_backup(scan: StoreScan, mode: BackupMode) -> BackupForecast:
    """Say whether a run would begin with a backup, by the rules that it goes by itself."""
    size = scan.bundle.size_with_log if scan.bundle else 0
    if will_back_up(size, free_bytes(folder_of(scan.ref.path)), mode):
        return BackupForecast(True, size)
    if mode == "never":
        return BackupForecast(False, size, "never")
    return BackupForecast(False, size, "too-large" if size > AUTO_BYTES else "no-room")


@dataclass
class StoreFix(Closing):
    """What a plan, or the work of it, came to on one store.

    ``left``: findings that what was chosen could still mend. ``still_found``: all that the last look found, whatever
    could be done about it. ``mending_seconds``: what all transactions took, with finding their rows anew. ``live``: the
    work is done beside a living hermes; ``left_to_hermes``: findings that are not to be mended as long as it lives, or
    uses their session. ``noted``: the run is found from anywhere, without its store being named.
    ``clock_doubt``: why nothing was done that goes by the clock. ``backup_forecast`` and
    ``prune_forecast`` are None where nothing would be changed.
    """

    ref: StoreRef
    scan: StoreScan
    applied: bool
    run: str | None = None
    would_be_refused: str | None = None
    reason: str | None = None
    clock_doubt: str | None = None
    backup: Path | None = None
    backup_forecast: BackupForecast | None = None
    prune_forecast: PruneForecast | None = None
    journal: Path | None = None
    changes: Changes = field(default_factory=Changes)
    transactions: int = 0
    holds: dict[str, float] = field(default_factory=dict)
    mending_seconds: float = 0.0
    left: int = 0
    left_to_hermes: int = 0
    still_found: int = 0
    live: bool = False
    outcome: Outcome = "nothing-to-do"
    exit_code: ExitCode = ExitCode.CLEAN
    noted: bool = False

    def count(self, *states: str) -> int:
        """How many changes are in one of the states."""
        return self.changes.count(*states)

    def close(self) -> None:
        """Let the temporary files go: what was found, and what became of it."""
        self.scan.findings.close()
        self.changes.close()

    @property
    def doubted(self) -> bool:
        """Whether something that was chosen is refused because the clock is off."""
        return self.clock_doubt is not None and any(
            change.state == REFUSED and change.reason == self.clock_doubt for change in self.changes
        )

    def refuse(self, code: ExitCode, reason: str) -> None:
        """Say that the run was refused, by whom or what, and what to type."""
        self.outcome, self.exit_code, self.reason = "refused", code, reason

    def stop(self, reason: str) -> None:
        """Say that the run was stopped part-way, and by what."""
        self.outcome, self.exit_code, self.reason = "stopped", ExitCode.STOPPED, reason

    def fail(self, reason: str, code: ExitCode = ExitCode.FAILED) -> None:
        """Say that the run failed."""
        self.outcome, self.exit_code, self.reason = "failed", code, reason


def plan_store(
    ref: StoreRef,
    chosen: Chosen,
    options: ScanOptions,
    *,
    backup: BackupMode,
    live: bool = False,
    progress: Progress | None = None,
) -> StoreFix:
    """Say what a run would change, and what would stand in its way. Changes nothing, leaves no trace.

    ``live``: a store that somebody has open is to be mended beside them.
    """
    forecast: list[PruneForecast] = []
    used: dict[Key, str] = {}

    def look(scan: StoreScan, view: StoreView) -> None:
        if live and scan.held != "no":
            used.update(used_sessions(view, (finding for finding in scan.findings if chosen.mends(finding))))
        ended = (finding.key for finding in scan.findings if chosen.mends(finding) and chosen.ends(finding))
        told = prune_forecast(view, ended)
        forecast[:] = [] if told is None else [told]

    scan = scan_store(ref, chosen.checks, options, progress, look)
    fix = StoreFix(ref, scan, applied=False, live=live and scan.held != "no")
    code = scan.exit_code(None)
    if code is not ExitCode.CLEAN:
        failed = (result.reason for result in scan.checks if result.status == "failed")
        fix.fail(scan.reason or next(failed, None) or "the store could not be scanned", code)
        return fix
    try:
        last = last_run_at(ref.path)
    except (OSError, sqlite3.Error) as error:
        fix.fail(unreadable_journal(folder_of(ref.path) / FILE, error))
        return fix
    doubt = fix.clock_doubt = clock_doubt(scan, last)
    for finding in scan.findings:
        change = planned_change(finding, chosen, doubt, used if fix.live else None)
        if change is not None:
            fix.changes.add(change)
            fix.left_to_hermes += is_left_to_hermes(change.reason)
    fix.left, fix.still_found = fix.count(PLANNED), len(scan.findings)
    if fix.left:
        fix.prune_forecast = forecast[0] if forecast and doubt is None else None
        fix.backup_forecast = forecast_backup(scan, backup)
        stands = refusal(scan, planned(scan, chosen), backup=backup, live=live)
        fix.would_be_refused = stands.reason if stands else None
        fix.outcome, fix.exit_code = "planned", ExitCode.FINDINGS
    elif fix.doubted:
        fix.would_be_refused = doubt
    return fix
