"""`doctor fix`: show what would be mended, and with --apply mend it."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TextIO

import click

from hermes_doctor import __version__
from hermes_doctor.cli.changing import (
    apply_option,
    confirm,
    finish_undisturbed,
    index_of,
    live_option,
    require_terminal_or_yes,
    say,
    stoppable,
    typed,
    unsafe_option,
    yes_option,
)
from hermes_doctor.cli.options import Output, Selection, TypedOnly, deep_option, output_options, selection_options
from hermes_doctor.cli.types import Target

if TYPE_CHECKING:
    from hermes_doctor.engine.model import ExitCode
    from hermes_doctor.engine.plan import Chosen, Outcome, StoreFix
    from hermes_doctor.engine.run_index import RunIndex
    from hermes_doctor.engine.scan import ScanOptions
    from hermes_doctor.engine.stopping import Stop
    from hermes_doctor.host.homes import StoreRef
    from hermes_doctor.report.changes_model import ChangesReporter

Backup = Literal["always", "auto", "never"]


@click.command(short_help="Show what would be mended; --apply mends it.")
@click.argument("targets", nargs=-1, type=Target(), metavar="[TARGET]...")
@apply_option
@unsafe_option
@yes_option
@live_option
@click.option(
    "--review",
    cls=TypedOnly,
    is_flag=True,
    help="Go through what is not safe in every case, one finding at a time, on a terminal; then mend, after asking,"
    " just what you said yes to. Answers are kept: only what is new is asked.",
)
@click.option("--again", cls=TypedOnly, is_flag=True, help="With --review: also what was answered before.")
@click.option(
    "--backup",
    type=click.Choice(["always", "auto", "never"]),
    default="auto",
    show_default=True,
    help="Whether the store is copied before it is changed. auto: up to 1 GB, where there is room.",
)
@deep_option
@selection_options
@output_options
@click.pass_context
def fix(
    context: click.Context,
    targets: tuple[Path, ...],
    apply: bool,
    unsafe: bool,
    yes: bool,
    live: bool,
    review: bool,
    again: bool,
    backup: Backup,
    deep: bool,
    selection: Selection,
    output: Output,
) -> None:
    """Show what would be mended in every store that TARGET stands for. Only --apply changes anything, and --review
    where you say so.

    TARGET is a state.db, or a Hermes home (its own state.db and each profile's). With none: this host, that is
    $HERMES_HOME, else the platform's default home.

    A store that somebody has open is refused. --live mends it meanwhile, as far as that is safe: doctor explain CHECK
    says of each fix whether it is.

    What --apply does, in small transactions, `doctor undo` takes back. Ctrl-C stops after the present one.

    Exit codes: 0 nothing to do, or all of it done; 1 a plan would change something,
    or something that was chosen is left; 2 usage error; 3 the doctor failed;
    4 a store is damaged, unreadable or missing; 5 refused for safety;
    6 another doctor is at work; 7 stopped, the same command carries on.
    """
    from hermes_doctor.cli.catalogue import known
    from hermes_doctor.cli.output import destination
    from hermes_doctor.engine.plan import Chosen
    from hermes_doctor.engine.scan import ScanOptions
    from hermes_doctor.host.homes import resolve_targets

    if review or again:
        from hermes_doctor.cli.review import require_somebody

        require_somebody(output, review=review, yes=yes)
    elif apply and unsafe:
        require_terminal_or_yes(yes=yes)
    catalogue = known()
    names = selection.narrow(catalogue.names)
    checks = [check for check in catalogue.checks if check.name in names]
    chosen = Chosen(checks, {name: fix for name, fix in catalogue.fixes.items() if name in names}, unsafe)
    refs = resolve_targets(targets)
    job = Job(
        refs,
        chosen,
        ScanOptions(idle_floor=selection.idle, deep=deep),
        backup,
        output,
        index_of(context),
        applies=apply or review,
        live=live,
    )
    if review:
        from hermes_doctor.cli.review import Review

        words = [*_again(targets, selection, backup, deep=deep, unsafe=False, live=live), "--review"]
        context.exit(Review(job, words, again=again).run())
    with destination(output.file, [ref.path for ref in refs]) as stream:
        if apply and unsafe and not yes and not job.may_do_what_is_unsafe():
            say("nothing was changed.")
            context.exit(1)
        code = job.run(job.reporter(stream), _again(targets, selection, backup, deep=deep, unsafe=unsafe, live=live))
    context.exit(code)


class Job:
    """One call of the command, over all of its stores."""

    def __init__(
        self,
        refs: Sequence[StoreRef],
        chosen: Chosen,
        options: ScanOptions,
        backup: Backup,
        output: Output,
        index: RunIndex,
        *,
        applies: bool,
        live: bool,
    ) -> None:
        self.refs = refs
        self.chosen = chosen
        self.options = options
        self.backup: Backup = backup
        self.applies = applies
        self.live = live
        self.output = output
        self.index = index
        #: What of a store is chosen where each has a choice of its own, and who wants to know what came of it.
        self.chosen_of: Mapping[Path, Chosen] = {}
        self.told: Callable[[StoreFix], None] | None = None

    def run(self, reporter: ChangesReporter[StoreFix], again: Sequence[str]) -> ExitCode:
        """Do one store after the other and report it; a stop ends the round, and the report is completed."""
        from hermes_doctor.engine.model import ExitCode, worst
        from hermes_doctor.report.changes_model import ChangesEnd, ChangesStart, outcome_of
        from hermes_doctor.store.library import library

        started = time.monotonic()
        reporter.begin(ChangesStart(__version__, library().version, time.time(), self.applies))
        ended: list[tuple[ExitCode, Outcome]] = []
        runs: list[list[str]] = []
        unsafe_waits = False
        waiting = list(self.refs)
        while waiting:
            try:
                # Only here: what follows must not hang on a reader who reads no more.
                with stoppable(self.applies) as stop:
                    result = self._one(waiting[0], stop)
            except KeyboardInterrupt:
                ended.append((ExitCode.STOPPED, "stopped"))
                say("stopped. Nothing was changed; the same command starts over.")
                break
            waiting.pop(0)
            if stop:
                finish_undisturbed()
            with contextlib.closing(result):
                ended.append((result.exit_code, result.outcome))
                if result.run is not None:
                    runs.append([result.run] if result.noted else [result.run, str(result.ref.path)])
                unsafe_waits = unsafe_waits or _waits_for_unsafe(result)
                reporter.store(result)
                if self.told is not None:
                    self.told(result)
            if stop:
                break
        code = worst([*(each for each, _ in ended), *([ExitCode.STOPPED] if waiting else [])])
        outcome = outcome_of(ended, code)
        following = self._next(outcome, runs, again, unsafe_waits=unsafe_waits)
        reporter.end(ChangesEnd(time.monotonic() - started, outcome, code, [ref.path for ref in waiting], following))
        return code

    def may_do_what_is_unsafe(self) -> bool:
        """Ask whether what is not safe in every case is to be done; True where there is nothing of it."""
        from hermes_doctor import api
        from hermes_doctor.engine.model import Safety

        counts: Counter[str] = Counter()
        names = [check.name for check in self.chosen.checks]
        for ref in self.refs:
            with self.output.show_progress() as progress:
                found = api.scan(ref, checks=names, options=self.options, progress=progress)
            with found:
                counts.update(each.check for each in found.findings if each.fix is Safety.UNSAFE)
        if not counts:
            return True
        told = ", ".join(f"{check} {count:,}" for check, count in counts.items())
        return confirm(
            f"--unsafe would also mend {counts.total():,} that are not safe in every case: {told}.\n"
            f"(doctor explain {next(iter(counts))} says why, under Fix safety; doctor undo takes it back.) Go on?",
            yes=False,
        )

    def reporter(self, stream: TextIO) -> ChangesReporter[StoreFix]:
        """Return the reporter for the format that was asked for."""
        if self.output.format == "json":
            from hermes_doctor.report.changes_json import FixJson

            return FixJson(stream)
        from hermes_doctor.cli.look import look_for
        from hermes_doctor.report.fix_table import FixTable

        return FixTable(stream, look_for(self.output, stream), self.chosen.checks)

    def _one(self, ref: StoreRef, stop: Stop) -> StoreFix:
        """Plan or mend one store; what the doctor itself got wrong with it fails it, and the others go on."""
        from hermes_doctor import api
        from hermes_doctor.cli.failures import describe
        from hermes_doctor.engine.plan import StoreFix
        from hermes_doctor.engine.scan import StoreScan

        try:
            with self.output.show_progress() as progress:
                do = partial(api.apply, stop=stop, index=self.index) if self.applies else api.plan
                chosen = self.chosen_of.get(ref.path, self.chosen)
                return do(
                    ref, chosen=chosen, options=self.options, backup=self.backup, live=self.live, progress=progress
                )
        except Exception as error:
            failed = StoreFix(ref, StoreScan(ref), applied=self.applies)
            failed.fail(describe(error))
            return failed

    def _next(
        self, outcome: Outcome, runs: Sequence[Sequence[str]], again: Sequence[str], *, unsafe_waits: bool
    ) -> list[str]:
        """Return what may be typed next, each with what it does."""
        following: list[str] = []
        if outcome == "planned":
            following.append(f"{typed(*again, '--apply')} (mends it)")
        elif outcome == "stopped":
            following.append(f"{typed(*again, *(['--apply'] if self.applies else []))} (carries on)")
        if unsafe_waits:
            following.append(f"{typed(*again, '--unsafe')} (shows the unsafe ones too)")
        if len(runs) == 1:
            following.append(f"{typed('doctor', 'undo', *runs[0])} (shows how it is taken back)")
        elif runs:
            following.append("doctor runs (lists them; doctor undo RUN takes one back)")
        return following


def _waits_for_unsafe(result: StoreFix) -> bool:
    from hermes_doctor.engine.plan import NEEDS_UNSAFE

    return any(change.reason == NEEDS_UNSAFE for change in result.changes)


def _again(
    targets: Sequence[Path], selection: Selection, backup: Backup, *, deep: bool, unsafe: bool, live: bool
) -> list[str]:
    """Return the words of the same command, without --apply."""
    words = ["doctor", "fix", *map(str, targets)]
    words += [word for name in selection.check for word in ("--check", name)]
    words += [word for name in selection.skip for word in ("--skip", name)]
    words += ["--idle", f"{selection.idle:.0f}s"] if selection.idle else []
    words += ["--backup", backup] if backup != "auto" else []
    words += ["--deep"] if deep else []
    words += ["--unsafe"] if unsafe else []
    words += ["--live"] if live else []
    return words
