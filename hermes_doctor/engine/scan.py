"""Scanning a store: open it without a trace, lay every rule over it, confirm what moved, count."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from hermes_doctor.engine.defects import defect
from hermes_doctor.engine.findings import Closing, Findings
from hermes_doctor.engine.model import Bucket, Check, ExitCode, Finding, Severity, has_table
from hermes_doctor.engine.rows import find_again, relations, row_passes, run_pass
from hermes_doctor.engine.steps import Step, reach
from hermes_doctor.host.bundle import Bundle, Condition, StoreProblem
from hermes_doctor.host.holders import Holder
from hermes_doctor.host.homes import StoreRef
from hermes_doctor.host.settings import NO_SETTINGS, read_settings
from hermes_doctor.store.cells import quote

if TYPE_CHECKING:
    from hermes_doctor.engine.memory import Memory
    from hermes_doctor.engine.since_last import SinceLast
    from hermes_doctor.store.cells import Cell
    from hermes_doctor.store.opening import OpenStore
    from hermes_doctor.store.shape import Table
    from hermes_doctor.store.view import StoreView

#: How often a store is read anew when somebody opened it for writing while we relied on nobody doing so.
_TRIES = 3
#: More threads than this do not read faster: they wait for one another.
_MOST_THREADS = 4
_DAMAGED_THERE = "the file is damaged where this check reads"
#: Rows that are asked about in one statement when findings are confirmed.
_CONFIRM_AT_ONCE = 100

#: Called with the store's path, the step in words for a person, and the share of it that is done (0 to 1, None: not
#: known), often: it has to be quick. What it raises ends the work, as Ctrl-C would.
Progress = Callable[[Path, str, float | None], None]

#: Called once everything is found, while the store is still open: for what else is to be read at that moment.
Look = Callable[["StoreScan", "StoreView"], None]


@dataclass(frozen=True)
class Muted:
    """That somebody wants to hear no more of a check for now: what it finds is counted, and counts for nothing.

    ``since``, ``until``: seconds since the epoch. ``worse_than``: it ends sooner where more than that many are found,
    None where it does not.
    """

    since: float
    until: float
    worse_than: int | None = None


@dataclass
class CheckResult:
    """What one check came to on one store. ``seconds`` of a row rule is its share of the common pass.

    ``muted``: None unless the check is muted on this store.
    """

    check: Check
    status: Literal["ran", "skipped", "failed"] = "ran"
    reason: str | None = None
    buckets: Counter[Bucket] = field(default_factory=Counter)
    worst: Severity | None = None
    seconds: float = 0.0
    finished: bool = False
    muted: Muted | None = None

    @property
    def count(self) -> int:
        """All findings of the check."""
        return self.buckets.total()

    def note(self, finding: Finding) -> None:
        """Count one finding."""
        self.buckets[finding.bucket] += 1
        self.worst = max(self.worst or finding.severity, finding.severity)

    def forget(self) -> None:
        """Count anew."""
        self.buckets.clear()
        self.worst = None

    def skip(self, reason: str) -> None:
        """Say why the check had nothing to look at."""
        self.status, self.reason, self.finished = "skipped", reason, True

    def fail(self, reason: str) -> None:
        """Say that the check could not do its work, or not on every row; the first reason is kept."""
        if self.status != "failed":
            self.status, self.reason = "failed", reason


@dataclass
class StoreScan(Closing):
    """What a scan of one store came to.

    ``since_last``: of which messages it took an earlier scan's word, where it was allowed to. ``reached``: the last
    message that was looked at in the common pass, by its number. ``stopped``: how far it came, where its time was up.
    """

    ref: StoreRef
    bundle: Bundle | None = None
    condition: Condition = Condition.READABLE
    reason: str | None = None
    next_step: str | None = None
    now: float = 0.0
    newest_time: float | None = None
    schema_version: int | None = None
    encoding: str | None = None
    journal_mode: str | None = None
    bytes: int | None = None
    sessions: int | None = None
    messages: int | None = None
    held: str = "unknown"
    holders: tuple[Holder, ...] = ()
    findings: Findings = field(default_factory=Findings)
    checks: list[CheckResult] = field(default_factory=list)
    consistent: bool = True
    trace: list[str] = field(default_factory=list)
    seconds: float = 0.0
    since_last: SinceLast | None = None
    reached: int | None = None
    stopped: str | None = None

    @property
    def worst(self) -> Severity | None:
        """The severity of the worst finding that is not muted, None where there is none."""
        return max((r.worst for r in self.checks if r.worst is not None and r.muted is None), default=None)

    def close(self) -> None:
        """Let the temporary files go: what was found."""
        self.findings.close()

    def exit_code(self, fail_on: Severity | None) -> ExitCode:
        """Return the exit code of this store; ``fail_on`` None means that findings never count."""
        if self.condition in (
            Condition.DAMAGED,
            Condition.UNREADABLE,
            Condition.MISSING,
            Condition.NOT_HERMES,
        ):
            return ExitCode.DAMAGED
        if any(result.status == "failed" for result in self.checks):
            return ExitCode.FAILED
        if self.stopped is not None:
            return ExitCode.STOPPED
        if fail_on is not None and self.worst is not None and self.worst >= fail_on:
            return ExitCode.FINDINGS
        return ExitCode.CLEAN


def cores() -> int:
    """Return how many threads read a store unless it is said: one for each core that we may use, four at most."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(usable, _MOST_THREADS)


@dataclass(frozen=True)
class ScanOptions:
    """What a scan is told beside the checks.

    ``now``: seconds since the epoch, None for the clock's own at the start of each store. ``idle_floor``:
    seconds; raises every check's own idle threshold. ``deep``: the whole file is read, however long it takes.
    ``threads``: how many may read a large table at once, where nobody has to wait for that. ``memory``: what earlier
    scans kept; messages that are proven to be as they were are not read again. ``deadline``: when to stop, by the
    monotonic clock in seconds.
    """

    now: float | None = None
    idle_floor: float = 0.0
    deep: bool = False
    threads: int = field(default_factory=cores)
    memory: Memory | None = None
    deadline: float | None = None


def scan_store(
    ref: StoreRef,
    checks: Sequence[Check],
    options: ScanOptions,
    progress: Progress | None = None,
    look: Look | None = None,
) -> StoreScan:
    """Scan one store and leave no trace. ``look`` is called again whenever the store has to be read anew.

    Never raises for what is wrong with the store: its condition says so. Whoever gets the result closes its
    ``findings``.
    """
    from hermes_doctor.store.opening import open_without_trace

    started = time.monotonic()
    scan = StoreScan(ref)
    if progress is not None:
        progress(ref.path, "opening", None)
    try:
        for tries_left in range(_TRIES, 0, -1):
            store = open_without_trace(ref.path)
            try:
                _describe(scan, store)
                reach(Step.SCANNING)
                _examine(scan, store, checks, options, progress, look)
                reach(Step.SCANNED)
                # Nobody may write to what was read as immutable: if somebody began to, read it anew.
                if not store.moved() or tries_left == 1:
                    scan.consistent = scan.consistent and not store.moved()
                    break
            finally:
                store.close()
    except StoreProblem as problem:
        scan.condition, scan.reason, scan.next_step = problem.condition, problem.reason, problem.next_step
        # A store whose tables are all in a log that was lost looks like none.
        if problem.condition in (Condition.DAMAGED, Condition.NOT_HERMES) and not scan.checks:
            _look_at_the_wreck(scan, checks)
    except BaseException:
        scan.findings.close()
        raise
    scan.seconds = time.monotonic() - started
    return scan


def _look_at_the_wreck(scan: StoreScan, checks: Sequence[Check]) -> None:
    """Ask the checks that can say something of a store which cannot be opened."""
    for check in checks:
        result = CheckResult(check)
        scan.checks.append(result)
        if check.wreck is None:
            result.skip("the store could not be opened")
            continue
        try:
            for finding in check.wreck(scan.ref.path):
                scan.findings.add(finding)
                result.note(finding)
        except Exception as error:
            result.fail(defect(error))


def _describe(scan: StoreScan, store: OpenStore) -> None:
    scan.condition = store.condition
    scan.bundle = store.bundle
    scan.journal_mode = store.bundle.journal_mode
    scan.bytes = store.bundle.size_with_log
    scan.held, scan.holders = store.holding.state, store.holding.holders
    scan.trace = store.trace


def _examine(
    scan: StoreScan,
    store: OpenStore,
    checks: Sequence[Check],
    options: ScanOptions,
    progress: Progress | None,
    look: Look | None,
) -> None:
    """Fill the scan from the open store; what an earlier try found is dropped."""
    import apsw

    from hermes_doctor.store.clocks import newest_time
    from hermes_doctor.store.opening import damage_of
    from hermes_doctor.store.reader import Reader, TimeIsUp
    from hermes_doctor.store.shape import read_shape
    from hermes_doctor.store.view import StoreView

    scan.findings.close()
    scan.findings = Findings()
    results = {check.name: CheckResult(check) for check in checks}
    scan.checks = list(results.values())
    condemned: list[Finding] = []
    try:
        shape = read_shape(store.connection)
        reader = Reader(
            store.connection,
            store.pace,
            encoding=shape.encoding,
            rests=scan.held != "no",
            threads=options.threads,
            another=store.another,
            undisturbed=store.undisturbed,
        )
        view = StoreView(
            reader=reader,
            shape=shape,
            now=time.time() if options.now is None else options.now,
            held=scan.held,
            home=scan.ref.home,
            profile=scan.ref.profile,
            idle_floor=options.idle_floor,
            settings=read_settings(scan.ref.home) if scan.ref.home else NO_SETTINGS,
            bundle=store.bundle,
            deep=options.deep,
        )
        scan.now, scan.schema_version, scan.encoding = view.now, shape.schema_version, shape.encoding
        scan.since_last = _since_last(options.memory, store)
        try:
            with reader.until(options.deadline):
                with _past_damage(view.damage):
                    scan.newest_time = newest_time(view)
                with _past_damage(view.damage):
                    scan.sessions = reader.count(shape.tables.get("sessions"))
                with _past_damage(view.damage):
                    scan.messages = reader.count(shape.tables.get("messages"))
                told = _Told(scan, view, progress)
                for finding in _find(checks, view, results, scan.since_last, told):
                    scan.findings.add(finding)
                    results[finding.check].note(finding)
                    condemned += [finding] if results[finding.check].check.condemns(finding) else []
        except TimeIsUp:
            _stop(scan)
        if progress is not None:
            # Confirming, and whatever else is to be read while the store is open.
            progress(scan.ref.path, "finishing", None)
        reader.finish()
        # Beside a log that nobody has open, SQLite's data_version counts on by itself: proof outranks it.
        scan.consistent = store.undisturbed() or not reader.moved
        if scan.since_last is not None:
            whole = scan.stopped is None and scan.consistent and not view.damage and not store.moved()
            scan.since_last.keep(whole=whole)
        if not scan.consistent:
            _keep_what_is_confirmed(scan, checks, view, results)
        if view.damage:
            raise view.damage[0]
        if look is not None and not condemned:
            look(scan, view)
    except apsw.Error as error:
        if store.moved():
            return
        problem = damage_of(error, scan.ref.path, scan.ref.profile, scan.schema_version)
        if problem is None:
            raise
        scan.condition, scan.reason, scan.next_step = problem.condition, problem.reason, problem.next_step
        for result in scan.checks:
            if not result.finished:
                result.fail(problem.reason)
    if condemned:
        # What a check says of the damage tells more than SQLite's error, which knows only where it was met.
        scan.condition, scan.reason = Condition.DAMAGED, condemned[0].summary
        following = condemned[0].detail.get("next")
        scan.next_step = str(following) if following else scan.next_step


def _since_last(memory: Memory | None, store: OpenStore) -> SinceLast | None:
    if memory is None:
        return None
    from hermes_doctor.engine.since_last import SinceLast
    from hermes_doctor.store.file_mark import take_mark

    try:
        mark = take_mark(store)
    except OSError:
        mark = None
    return SinceLast(memory, store.bundle.real_path, mark)


def _stop(scan: StoreScan) -> None:
    """Say how far a scan came whose time is up."""
    unfinished = [result for result in scan.checks if not result.finished]
    for result in unfinished:
        result.skip("it did not come to its end: the time was up")
    read = (
        "" if scan.reached is None or scan.messages is None else f" at message {scan.reached:,} of {scan.messages:,},"
    )
    scan.stopped = f"the time was up{read} and {len(unfinished)} of {len(scan.checks)} checks did not come to their end"


@contextmanager
def _past_damage(damage: list[Exception]) -> Iterator[None]:
    """Note where the file is damaged, and go on: what lies elsewhere in it can still be told."""
    import apsw

    try:
        yield
    except apsw.CorruptError as error:
        damage.append(error)


def _find(
    checks: Sequence[Check],
    view: StoreView,
    results: dict[str, CheckResult],
    since_last: SinceLast | None,
    told: _Told,
) -> Iterator[Finding]:
    """Give what all checks find: one pass over each table for the row rules, then the rules over relations."""
    import apsw

    sifting = None if since_last is None else since_last.sift
    for check in checks:
        if not any(has_table(rule, view.shape) for rule in check.rules):
            tables = " or ".join(dict.fromkeys(rule.table for rule in check.rules))
            results[check.name].skip(f"the store has no table {tables}")
    passes = row_passes(checks, view)
    related = [(check, rule) for check in checks for rule in relations(check, view)]
    #: The names of the checks that each piece of work is for, in the order of the work.
    waiting = [laid_over.names for laid_over in passes]
    waiting += [{check.name} for check, _rule in related]

    def failed(check: Check, error: Exception) -> None:
        if isinstance(error, apsw.CorruptError):
            view.damage.append(error)
            results[check.name].fail(_DAMAGED_THERE)
        else:
            results[check.name].fail(defect(error))

    def next_piece() -> AbstractContextManager[None]:
        names = waiting.pop(0)
        return _watched([results[name] for name in names], view.damage, going_on=set().union(*waiting))

    for laid_over in passes:
        with next_piece():
            told.reads(laid_over.table)
            yield from run_pass(laid_over, view, failed, sifting, lambda check: told.looks(check.name))
    for place, (check, rule) in enumerate(related, start=1):
        told.looks(f"{check.name} ({place} of {len(related)})")
        with next_piece():
            yield from rule.find(view, None)


@contextmanager
def _watched(
    together: Sequence[CheckResult], damage: list[Exception], going_on: Collection[str] = ()
) -> Iterator[None]:
    """Time checks that do their work together; what they raise fails them, what the machine cannot do ends the scan.

    ``going_on`` names the checks that have more work to do after this.
    """
    import apsw

    started = time.monotonic()
    try:
        yield
    except apsw.CorruptError as error:
        damage.append(error)
        for result in together:
            result.fail(_DAMAGED_THERE)
    except Exception as error:
        if _is_the_machines(error):
            raise
        for result in together:
            result.fail(defect(error))
    for result in together:
        result.finished = result.check.name not in going_on
        result.seconds += (time.monotonic() - started) / len(together)


def _keep_what_is_confirmed(
    scan: StoreScan,
    checks: Sequence[Check],
    view: StoreView,
    results: dict[str, CheckResult],
) -> None:
    """Ask again about every row that was found faulty while the store moved, a few rows in one moment each."""
    by_name = {check.name: check for check in checks}
    found, scan.findings = scan.findings, Findings()
    view.forget()
    with found:
        for result in results.values():
            result.forget()
        for name, some in _by_check(found):
            with _watched([results[name]], view.damage):
                for finding in _ask_again(by_name[name], some, view):
                    scan.findings.add(finding)
                    results[name].note(finding)


def _by_check(found: Iterable[Finding]) -> Iterator[tuple[str, list[Finding]]]:
    """Give findings of one check each, a bounded number at once."""
    waiting: dict[str, list[Finding]] = {}
    for finding in found:
        some = waiting.setdefault(finding.check, [])
        some.append(finding)
        if len(some) == _CONFIRM_AT_ONCE:
            yield finding.check, waiting.pop(finding.check)
    yield from waiting.items()


def _ask_again(check: Check, findings: Sequence[Finding], view: StoreView) -> list[Finding]:
    with view.reader.pinned():
        return list(find_again(check, findings, view))


class _Told:
    """Tells how far a scan is, and notes the last message that it came to."""

    def __init__(self, scan: StoreScan, view: StoreView, progress: Progress | None) -> None:
        self._scan = scan
        self._view = view
        self._progress = progress

    def reads(self, table: Table) -> None:
        """Tell that a table is read from its first row to its last. Raises apsw.Error where it cannot be asked."""
        reader = self._view.reader
        ends: tuple[Cell, Cell] = (None, None)
        if table.rowid is not None:
            first, last = (
                reader.value(f"SELECT {end}({table.rowid}) FROM {quote(table.name)}") for end in ("min", "max")
            )
            ends = first, last
        messages = table.name.lower() == "messages"
        step = f"reading {table.name}"

        def on_range(key: int) -> None:
            if messages:
                self._scan.reached = max(0, min(key, self._scan.messages or 1))
            first, last = ends
            share = (key - first + 1) / (last - first + 1) if isinstance(first, int) and isinstance(last, int) else None
            self._tell(step, share)

        reader.on_range = on_range
        self._tell(step, None if ends[0] is None else 0.0)

    def looks(self, what: str) -> None:
        """Tell which check is at work on more than single rows; some can tell how far they are."""
        step = f"checking {what}"
        self._view.reader.on_range = None
        if self._progress is not None:
            self._view.reader.on_share = lambda share: self._tell(step, share)
        self._tell(step, None)

    def _tell(self, step: str, share: float | None) -> None:
        if self._progress is not None:
            self._progress(self._scan.ref.path, step, share)


def _is_the_machines(error: Exception) -> bool:
    import apsw

    return isinstance(error, apsw.NotADBError | apsw.IOError | apsw.BusyError | apsw.InterruptError)


__all__ = ["CheckResult", "Progress", "ScanOptions", "StoreScan", "scan_store"]
