"""`doctor scan`: read every store that is meant, and report every fault."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

from hermes_doctor import __version__
from hermes_doctor.cli.changing import say, typed
from hermes_doctor.cli.options import Output, Selection, deep_option, fail_on_option, format_options, selection_options
from hermes_doctor.cli.types import Duration, Target
from hermes_doctor.report.formats import FOR_OTHERS, SCAN

if TYPE_CHECKING:
    from hermes_doctor.engine.memory import Memory
    from hermes_doctor.engine.model import Check, ExitCode, Severity
    from hermes_doctor.engine.scan import Look, ScanOptions, StoreScan
    from hermes_doctor.host.homes import StoreRef
    from hermes_doctor.report.model import ScanReporter
    from hermes_doctor.report.progress import ProgressDisplay


@click.command(short_help="Read only; report every fault.")
@click.argument("targets", nargs=-1, type=Target(), metavar="[TARGET]...")
@click.option(
    "--since-last",
    is_flag=True,
    help="Read of the messages only those that came or may have changed since the last such scan. What it finds is the"
    " same; where that cannot be proven, it reads them all and says so.",
)
@click.option(
    "--max-duration",
    type=Duration(),
    metavar="DURATION",
    help="Stop in time (30s, 10m) and say how far it came; the same command goes on from there.",
)
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    metavar="N",
    help="How many threads read a large store, where nobody has to wait for that. By default one for each core, 4 at"
    " most.",
)
@deep_option
@selection_options
@fail_on_option
@format_options(*SCAN)
@click.pass_context
def scan(
    context: click.Context,
    targets: tuple[Path, ...],
    since_last: bool,
    max_duration: float | None,
    threads: int | None,
    deep: bool,
    selection: Selection,
    fail_on: str,
    output: Output,
) -> None:
    """Read every store that TARGET stands for and report every fault. Nothing is ever changed.

    TARGET is a state.db, or a Hermes home (its own state.db and each profile's). With none: this host, that is
    $HERMES_HOME, else the platform's default home.

    Exit codes: 0 nothing at or above --fail-on, 1 findings, 2 usage error,
    3 the doctor failed, 4 a store is damaged, unreadable or missing, 7 stopped.
    """
    from hermes_doctor.cli.catalogue import known
    from hermes_doctor.cli.output import destination
    from hermes_doctor.engine.model import Severity
    from hermes_doctor.engine.scan import ScanOptions, cores
    from hermes_doctor.host.homes import resolve_targets

    started = time.monotonic()
    threshold = None if fail_on == "never" else Severity[fail_on.upper()]
    catalogue = known()
    names = selection.narrow(catalogue.names)
    chosen = [check for check in catalogue.checks if check.name in names]
    refs = resolve_targets(targets)
    with destination(output.file, [ref.path for ref in refs], for_others=output.format in FOR_OTHERS) as stream:
        reporter = _reporter(output, stream)
        options = ScanOptions(
            idle_floor=selection.idle,
            deep=deep,
            threads=threads or cores(),
            memory=_memory() if since_last or max_duration is not None else None,
            deadline=None if max_duration is None else started + max_duration,
        )
        code = _scan_all(refs, chosen, options, threshold, output, reporter, _next(targets, deep=deep))
    context.exit(code)


def _scan_all(
    refs: Sequence[StoreRef],
    chosen: Sequence[Check],
    options: ScanOptions,
    fail_on: Severity | None,
    output: Output,
    reporter: ScanReporter,
    fix_command: str,
) -> ExitCode:
    """Scan and report one store after the other; a stop ends the round, and the report is completed all the same."""
    from hermes_doctor.engine.model import Bucket, ExitCode, worst
    from hermes_doctor.report.model import Illustrated, RunEnd, RunStart
    from hermes_doctor.store.library import library

    started = time.monotonic()
    look: Look | None = None
    if isinstance(reporter, Illustrated):
        look, reporter.past = reporter.look, _past
    reporter.begin(RunStart(__version__, library().version, time.time(), fail_on=fail_on))
    codes: list[ExitCode] = []
    faults: list[str] = []
    mendable = False
    waiting = list(refs)
    while waiting:
        if options.deadline is not None and time.monotonic() >= options.deadline:
            codes.append(ExitCode.STOPPED)
            _say_stopped(len(refs), len(waiting), "its time was up")
            break
        # Only here: a stop in the middle of writing must leave a document that nobody takes for a whole one.
        try:
            with output.show_progress() as progress:
                result = scan_one(waiting[0], chosen, options, progress, look)
        except KeyboardInterrupt:
            codes.append(ExitCode.STOPPED)
            _say_stopped(len(refs), len(waiting), "stopped")
            break
        waiting.pop(0)
        with result.findings:
            remember(result, options)
            codes.append(result.exit_code(fail_on))
            for check in (each for each in result.checks if each.muted is None):
                faults += [check.check.name] if check.count else []
                mendable = mendable or check.buckets[Bucket.SAFE] + check.buckets[Bucket.UNSAFE] > 0
            reporter.store(result)
    code = worst(codes)
    next_commands = [fix_command] if mendable else []
    next_commands += [f"doctor explain {faults[0]} (what it means, and how it is mended)"] if faults else []
    reporter.end(RunEnd(time.monotonic() - started, code, [ref.path for ref in waiting], next_commands))
    return code


def scan_one(
    ref: StoreRef,
    chosen: Sequence[Check],
    options: ScanOptions,
    progress: ProgressDisplay | None = None,
    look: Look | None = None,
) -> StoreScan:
    """Scan one store; what the doctor itself got wrong with it fails all of its checks, and the others still run."""
    from hermes_doctor import api
    from hermes_doctor.cli.failures import describe
    from hermes_doctor.engine.scan import CheckResult, StoreScan

    names = [check.name for check in chosen]
    try:
        return api.scan(ref, checks=names, options=options, progress=progress, look=look)
    except Exception as error:
        failed = StoreScan(ref, checks=[CheckResult(check, "failed", describe(error)) for check in chosen])
        api.complete(failed, chosen)
        return failed


def _reporter(output: Output, stream: TextIO) -> ScanReporter:
    from hermes_doctor.cli.look import look_for
    from hermes_doctor.report.formats import scan_reporter

    return scan_reporter(output.format, stream, look_for(output, stream))


def _next(targets: Sequence[Path], *, deep: bool) -> str:
    """Return the command that shows what can be mended, for the same targets."""
    command = ("doctor", "fix", "--deep") if deep else ("doctor", "fix")
    return f"{typed(*command, *targets)} (shows what would be done)"


def _memory() -> Memory:
    from hermes_doctor.engine.memory import Memory

    return Memory.of_user()


def remember(result: StoreScan, options: ScanOptions) -> None:
    """Mark what is muted, and keep what the scan came to for `doctor history`; the demo's is nobody's history."""
    from hermes_doctor.nightly import history, mutes
    from hermes_doctor.report.words import counted, short_path, visible

    if click.get_current_context().obj is not None:
        return
    for worse in mutes.mark(result, options):
        found = f"{counted(worse.count, 'finding')} where there were {worse.bar:,}"
        say(f"{visible(worse.check)} is no longer muted on {short_path(worse.store)}, since it got worse: {found}.")
    history.note(result, options)


def _past(store: Path) -> Mapping[str, Sequence[tuple[float, int]]]:
    """Return what earlier scans of a store found, for a format that draws it."""
    from hermes_doctor.host.homes import real
    from hermes_doctor.nightly.history import DAY, History
    from hermes_doctor.nightly.trends import trends

    kept = History.of_user().of_store(real(store))
    return {trend.check: trend.points for trend in trends(kept, time.time(), 30 * DAY)}


def _say_stopped(total: int, unread: int, why: str) -> None:
    rest = "" if total == 1 else f" {unread} of {total} stores were not read."
    say(f"{why}.{rest} Nothing was changed; the same command starts over.")
