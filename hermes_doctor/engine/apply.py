"""`doctor fix --apply`: gates, locks, backup, phases of small journaled transactions, and a last look."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from itertools import chain, islice
from pathlib import Path

import apsw

from hermes_doctor.engine.backup import BackupError, make_backup, sweep_unfinished
from hermes_doctor.engine.became import Became, Changes
from hermes_doctor.engine.findings import Findings
from hermes_doctor.engine.forgetting import forget_old_runs
from hermes_doctor.engine.gates import BackupMode, another_doctor, busy, refusal
from hermes_doctor.engine.halts import halt_of_moved, halt_of_store
from hermes_doctor.engine.journal import Journal, folder_of
from hermes_doctor.engine.live import Beside, GaveWayError, left_to_hermes, used_sessions
from hermes_doctor.engine.model import Check, ExitCode, Finding
from hermes_doctor.engine.pacing import LivePacing, Pacing
from hermes_doctor.engine.plan import Chosen, StoreFix, forecast_backup, plan_store, planned
from hermes_doctor.engine.rows import find
from hermes_doctor.engine.scan import Progress, ScanOptions, StoreScan, scan_store
from hermes_doctor.engine.settle import settle_pending
from hermes_doctor.engine.steps import Step, reach
from hermes_doctor.engine.stopping import Stop, Stopped
from hermes_doctor.engine.transaction import (
    DONE,
    FAILED,
    GONE,
    NO_FAULT,
    PLANNED,
    REFUSED,
    Change,
    UncoveredError,
    change_files,
    mend_rows,
)
from hermes_doctor.engine.writer import Writer, checkpoint_if_alone, open_writer
from hermes_doctor.host.homes import StoreRef
from hermes_doctor.host.locks import LockTakenError, doctor_lock, upstream_maintenance_lock
from hermes_doctor.host.same_files import StoreMovedError
from hermes_doctor.store.cells import Key, quote
from hermes_doctor.store.reader import in_keys
from hermes_doctor.store.search_index import match_trigrams
from hermes_doctor.store.view import StoreView

#: A run comes to rest in at most this many rounds over the phases: one phase's cure can show the next one's fault.
_ROUNDS = 3
#: Rows whose size is asked in one statement.
_SIZED_AT_ONCE = 500
#: Bytes from which on a row has a transaction of its own: the write lock is held for as long as it takes to copy.
_LARGE_ROW = 1 << 20


def apply_store(
    ref: StoreRef,
    chosen: Chosen,
    options: ScanOptions,
    *,
    backup: BackupMode,
    stop: Stop,
    live: bool = False,
    progress: Progress | None = None,
) -> StoreFix:
    """Mend what is chosen, in journaled transactions, and look again.

    ``live``: also while somebody has the store open, as far as that can be done beside them. Never raises for what
    stands in the way: the outcome, the exit code and the reason say it.
    """
    another = another_doctor(ref.path)
    if another is not None:
        # What it has not come to yet would be found, or not found because it has the store open.
        fix = StoreFix(ref, StoreScan(ref), applied=True)
        fix.refuse(another.code, another.reason)
        return fix
    try:
        told = _until_stopped(stop, progress)
        fix = plan_store(ref, chosen, options, backup=backup, live=live, progress=told)
    except Stopped as stopped:
        fix = StoreFix(ref, StoreScan(ref), applied=True)
        fix.stop(str(stopped))
        return fix
    fix.applied = True
    if fix.outcome != "planned":
        if fix.doubted:
            fix.refuse(ExitCode.REFUSED, fix.clock_doubt or "")
        elif fix.left_to_hermes:
            fix.left = fix.left_to_hermes
            fix.outcome, fix.exit_code = "partly-fixed", ExitCode.FINDINGS
        return fix
    stands = refusal(fix.scan, planned(fix.scan, chosen), backup=backup, live=live)
    if stands is not None:
        fix.refuse(stands.code, stands.reason)
        return fix
    folder = folder_of(ref.path)
    try:
        with ExitStack() as locks:
            folder.mkdir(mode=0o700, exist_ok=True)
            locks.enter_context(doctor_lock(folder))
            locks.enter_context(upstream_maintenance_lock(ref.path))
            reach(Step.LOCKED)
            with Journal(folder) as journal, Became(fix.changes) as became:
                _Run(fix, journal, became, chosen, options, stop, progress).work(folder, backup)
    except LockTakenError as taken:
        fix.refuse(ExitCode.BUSY, busy(taken.holder))
    except (Stopped, GaveWayError) as stopped:
        fix.stop(str(stopped))
    except BackupError as error:
        fix.refuse(ExitCode.REFUSED, f"no backup could be made ({error}): nothing was changed")
    except (OSError, sqlite3.Error, apsw.Error, UncoveredError) as error:
        code, reason = halt_of_store(error, fix.scan)
        if code is ExitCode.STOPPED:
            fix.stop(reason)
        else:
            fix.fail(reason, code)
    except BaseException:
        fix.close()
        raise
    return fix


class _Run:
    """One run over one store, under its locks."""

    def __init__(
        self,
        fix: StoreFix,
        journal: Journal,
        became: Became,
        chosen: Chosen,
        options: ScanOptions,
        stop: Stop,
        progress: Progress | None,
    ) -> None:
        self.fix = fix
        self.journal = journal
        self.chosen = chosen
        self.options = options
        self.stop = stop
        self.progress = progress
        self.pacing = LivePacing() if fix.live else Pacing()
        self.became = became
        #: Whether another file, or none, lies there by now.
        self.moved: StoreMovedError | None = None
        #: Whether every row that was to be mended had its turn.
        self.came_through = False
        #: Findings that the plan names, and those that had their turn.
        self.to_mend, self.had_their_turn = 0, 0

    def work(self, folder: Path, backup: BackupMode) -> None:
        """Settle what an earlier stop left, back up, mend, and look again."""
        path = self.fix.ref.path
        # Also where no backup is made this time.
        with suppress(OSError):
            sweep_unfinished(folder)
        beside = self._beside()
        self.to_mend = self.fix.count(PLANNED)
        if forecast_backup(self.fix.scan, backup).made:
            self.fix.backup = make_backup(path, folder, self._backing_up)
            reach(Step.BACKED_UP)
        self.fix.journal = self.journal.path
        try:
            with open_writer(self.fix.scan, self.journal, self.options, beside) as writer:
                settle_pending(writer)
                self._close_killed_runs()
                if any(self.chosen.fixes[c.check].reindexes for c in self.fix.changes if c.state == PLANNED):
                    match_trigrams(writer.connection, writer.view.shape)
                writer.run = self.journal.start_run(
                    path, writer.identity(), self.fix.scan.schema_version, self.fix.backup
                )
                self.fix.run = writer.run
                begun = time.monotonic()
                try:
                    self._rounds(writer)
                finally:
                    writer.settle()
                    self.fix.mending_seconds = time.monotonic() - begun
        except apsw.BusyError:
            self.stop.ask("somebody else holds the store's write lock")
        except GaveWayError as gave_way:
            self.stop.ask(str(gave_way))
        except StoreMovedError as moved:
            self.moved = moved
            self.stop.ask(str(moved))
        finally:
            self._conclude()

    def _beside(self) -> Beside | None:
        """Return our place beside a living hermes, None where nobody has the store open. Raises GaveWayError."""
        if not self.fix.live:
            return None
        assert self.fix.scan.bundle is not None, "what stands in the way was looked at"
        return Beside(self.fix.scan.bundle, self.stop)

    def _close_killed_runs(self) -> None:
        """Note of this store's runs that never told their end that they were stopped: this one carries on."""
        for run in self.journal.runs():
            mine = Path(run.path).name == self.fix.ref.path.name
            if mine and run.finished_at is None and not self.journal.discard_if_empty(run.run):
                self.journal.finish_run(run.run, "stopped")

    def _backing_up(self, share: float) -> None:
        """Tell how far the backup is, and break it off where an end was asked for: nothing is written yet."""
        self.stop.check()
        self._tell("backing up", share)
        if share >= 1:
            self._tell("checking the backup")

    def _tell(self, step: str, share: float | None = None) -> None:
        if self.progress is not None:
            self.progress(self.fix.ref.path, step, share)

    def _rounds(self, writer: Writer) -> None:
        """Go through the phases until nothing more comes of it."""
        planned = {change.check for change in self.fix.changes if change.state == PLANNED}
        for number in range(_ROUNDS):
            if number and not self._shows_more(writer):
                break
            mended = 0
            for checks in self.chosen.in_phases():
                # As long as nothing is changed there is nothing else to be found than what the plan names.
                if number or mended:
                    mended += self._phase(writer, checks)
                elif not planned.isdisjoint(check.name for check in checks):
                    mended += self._phase(writer, checks, self.fix.scan.findings)
            if not mended or self.stop:
                break
        self.came_through = not self.stop

    def _shows_more(self, writer: Writer) -> bool:
        """Whether what was mended brought to light what is to be mended, too: in one reading for all phases."""
        if self.stop:
            return False
        checks = [check for phase in self.chosen.in_phases() for check in phase]
        with writer.looking():
            writer.view.forget()
            found = find(checks, writer.view)
            return any(self.chosen.mends(finding) and not self._given_up(finding) for finding in found)

    def _phase(self, writer: Writer, checks: Sequence[Check], known: Iterable[Finding] | None = None) -> int:
        """Mend what is chosen of what these checks find, check by check; return how many rows were mended.

        ``known``: what a scan has found already, among other things; None to scan anew. Each row is found anew in the
        transaction that mends it, one way or the other.
        """
        if self.stop:
            return 0
        mended = 0
        with ExitStack() as piles:
            found = {check.name: piles.enter_context(Findings()) for check in checks}
            self._tell("finding what to mend")
            with writer.looking():
                writer.view.forget()
                for finding in find(checks, writer.view) if known is None else known:
                    if finding.check in found and self.chosen.mends(finding) and not self._given_up(finding):
                        found[finding.check].add(finding)
                used = used_sessions(writer.view, chain.from_iterable(found.values())) if self.fix.live else {}
            for check in checks:
                for together in self._shared_out(_with_size(writer, found[check.name]), used):
                    mended += self._mend(writer, check, together)
                    if self.stop:
                        return mended
        return mended

    def _shared_out(self, findings: Iterable[tuple[Finding, bool]], used: Mapping[Key, str]) -> Iterator[list[Finding]]:
        """Give what each transaction is to mend: as many findings as go together, or one alone."""
        together: list[Finding] = []
        for finding, alone in findings:
            if self._leave_to_hermes(finding, used):
                continue
            if together and (alone or len(together) >= self.pacing.next_size()):
                yield together
                together = []
            together.append(finding)
            if alone:
                yield together
                together = []
        if together:
            yield together

    def _leave_to_hermes(self, finding: Finding, used: Mapping[Key, str]) -> bool:
        """Note that a row is left to a living hermes; False where it may be mended, as far as it was seen so far."""
        if not self.fix.live:
            return False
        why = left_to_hermes(finding, self.chosen.fixes[finding.check], used)
        if why is not None:
            self.became.note(Change.of(finding, REFUSED, why))
        return why is not None

    def _given_up(self, finding: Finding) -> bool:
        """Whether this run has tried the row in vain, or must not try it."""
        return self._is_doubted(finding) or self.became.in_vain(finding)

    def _is_doubted(self, finding: Finding) -> bool:
        """Whether the row must be left because its fix goes by a clock that is in doubt."""
        return self.fix.clock_doubt is not None and self.chosen.fixes[finding.check].uses_clock

    def _mend(self, writer: Writer, check: Check, findings: Sequence[Finding]) -> int:
        """Mend a few rows in one transaction; where that cannot be recorded whole, each in one of its own."""
        writer.watch_for_others(self.stop)
        if self.stop:
            return 0
        self._tell("mending", min(self.had_their_turn / max(self.to_mend, 1), 1.0))
        fix = self.chosen.fixes[check.name]
        try:
            mend = mend_rows if fix.files is None else change_files
            changes, held = mend(writer, check, fix, findings, unsafe=self.chosen.unsafe)
        except UncoveredError as error:
            if len(findings) > 1:
                return sum(self._mend(writer, check, [finding]) for finding in findings)
            changes, held = [Change.of(findings[0], REFUSED, str(error))], 0.0
        self.had_their_turn += len(findings)
        self.pacing.note(len(findings), held, writer.disk_seconds)
        self.fix.transactions += 1
        for change in changes:
            self.became.note(change)
        if writer.beside is not None:
            writer.beside.wrote(writer.connection)
            self.pacing.crowd(writer.beside.crowded or writer.beside.somebody_waited(writer.connection))
        # Where nobody else has the store open nobody waits, and whoever comes is seen at the next look.
        if self.fix.live:
            self.pacing.rest()
        return sum(change.state == DONE for change in changes)

    def _conclude(self) -> None:
        """Note how the run ended, leave the store tidy, and look at what is left."""
        fix = self.fix
        fix.changes.close()
        fix.changes = Changes(self._outcomes())
        fix.holds = self.pacing.summary()
        # Beside a living hermes that is hermes's own to do, even if it has gone by now.
        if fix.scan.bundle is not None and not fix.live and self.moved is None:
            checkpoint_if_alone(fix.scan.bundle)
        told = None if self.progress is None else _looking_again(self.progress)
        after = scan_store(fix.ref, self.chosen.checks, self.options, told, self._look_what_is_left)
        fix.still_found = len(after.findings)
        fix.left = sum(self._could_be_mended(finding) for finding in after.findings)
        after.findings.close()
        if self.moved is not None and (halted := halt_of_moved(self.moved, fix.scan))[0] is ExitCode.DAMAGED:
            fix.fail(halted[1], halted[0])
        elif after.exit_code(None) is ExitCode.DAMAGED:
            fix.scan.condition, fix.scan.next_step = after.condition, after.next_step
            fix.fail(after.reason or "the store is damaged", ExitCode.DAMAGED)
        elif self.stop:
            fix.stop(self.stop.reason or "")
        elif fix.doubted:
            fix.outcome, fix.exit_code = "partly-fixed", ExitCode.REFUSED
        elif fix.left or fix.count(FAILED):
            fix.outcome, fix.exit_code = "partly-fixed", ExitCode.FINDINGS
        else:
            fix.outcome, fix.exit_code = "fixed", ExitCode.CLEAN
        if fix.run is None:
            return
        if self.journal.discard_if_empty(fix.run):
            fix.run = None
            return
        self.journal.finish_run(fix.run, fix.outcome)
        reach(Step.FINISHED)
        # Forgetting needs room for a while: where there is none, the next run does it.
        with suppress(OSError, sqlite3.Error):
            forget_old_runs(self.journal, time.time(), spare=fix.run)

    def _could_be_mended(self, finding: Finding) -> bool:
        return self.chosen.mends(finding) and not self._is_doubted(finding)

    def _look_what_is_left(self, scan: StoreScan, view: StoreView) -> None:
        """Count what is left to a living hermes, by what the store shows now."""
        if self.fix.live:
            used = used_sessions(view, (finding for finding in scan.findings if self._could_be_mended(finding)))
            self.fix.left_to_hermes = sum(
                self._could_be_mended(finding)
                and left_to_hermes(finding, self.chosen.fixes[finding.check], used) is not None
                for finding in scan.findings
            )

    def _outcomes(self) -> Iterator[Change]:
        """Give what became of each finding."""
        for change in self.became:
            # A row that the plan named and no transaction came to: it stopped showing the fault by itself.
            gone = change.state == PLANNED and self.came_through
            yield change.became(GONE, NO_FAULT) if gone else change


def _with_size(writer: Writer, findings: Iterable[Finding]) -> Iterator[tuple[Finding, bool]]:
    """Give each finding with whether its row is so large that its transaction should have no other."""
    waiting = iter(findings)
    while some := list(islice(waiting, _SIZED_AT_ONCE)):
        large = {row for table in {finding.table for finding in some} for row in _large_rows(writer, table, some)}
        for finding in some:
            yield finding, finding.row in large


def _large_rows(writer: Writer, name: str, findings: Iterable[Finding]) -> Iterator[tuple[str, Key]]:
    """Give which rows of a table are large, of those with a key of one column."""
    table = writer.view.shape.tables.get(name.lower())
    if table is None or len(table.primary_key) != 1:
        return
    keys = [each.key for each in findings if each.table == name and not isinstance(each.key, tuple)]
    among, cells = in_keys(quote(table.primary_key[0]), keys)
    # octet_length() reads the row's header, not the cell.
    size = " + ".join(f"coalesce(octet_length({quote(column.name)}), 0)" for column in table.columns.values())
    sql = f"SELECT {quote(table.primary_key[0])} FROM {quote(table.name)} WHERE {among} AND {size} > {_LARGE_ROW}"
    with writer.view.reader.pinned():
        for (key,) in writer.view.rows(sql, cells):
            yield name, key


def _looking_again(progress: Progress) -> Progress:
    """Give a progress function for the look at what is left."""
    return lambda path, step, share: progress(path, f"looking again: {step}", share)


def _until_stopped(stop: Stop, progress: Progress | None) -> Progress:
    """Give a progress function that breaks a scan off where an end was asked for."""

    def note(path: Path, step: str, share: float | None) -> None:
        stop.check()
        if progress is not None:
            progress(path, step, share)

    return note
