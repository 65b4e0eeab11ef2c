"""`doctor compact`: show what a VACUUM would give back, and with --apply do it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

from hermes_doctor import __version__
from hermes_doctor.cli.changing import apply_option, finish_undisturbed, say, stoppable, typed
from hermes_doctor.cli.options import Output, output_options
from hermes_doctor.cli.types import Target

if TYPE_CHECKING:
    from hermes_doctor.engine.compact import StoreCompact
    from hermes_doctor.engine.model import ExitCode
    from hermes_doctor.engine.plan import Outcome
    from hermes_doctor.engine.stopping import Stop
    from hermes_doctor.host.homes import StoreRef
    from hermes_doctor.report.changes_model import ChangesReporter


@click.command(short_help="Give free pages back to the disk; --apply does it.")
@click.argument("targets", nargs=-1, type=Target(), metavar="[TARGET]...")
@apply_option
@output_options
@click.pass_context
def compact(context: click.Context, targets: tuple[Path, ...], apply: bool, output: Output) -> None:
    """Show what SQLite's VACUUM would give back to the disk, and the room that it needs. Only --apply does it.

    TARGET is a state.db, or a Hermes home (its own state.db and each profile's). With none: this host, that is
    $HERMES_HOME, else the platform's default home.

    The file is written anew, without its free pages; hermes has to be stopped, and twice the store's size has to be
    free meanwhile. Rows are compared before and after and stay what they are: there is nothing to undo, and
    `doctor runs` does not list it. Ctrl-C, and even a kill, leave the store as it was.

    Exit codes: 0 nothing to do, or all of it done; 1 a plan would give back something;
    2 usage error; 3 the doctor failed; 4 a store is damaged, unreadable or missing;
    5 refused for safety; 6 another doctor is at work; 7 stopped, the same command starts over.
    """
    from hermes_doctor.cli.output import destination
    from hermes_doctor.host.homes import resolve_targets

    refs = resolve_targets(targets)
    again = typed("doctor", "compact", *targets, "--apply")
    with destination(output.file, [ref.path for ref in refs]) as stream:
        code = _run(refs, again, output, stream, applies=apply)
    context.exit(code)


def _run(refs: Sequence[StoreRef], again: str, output: Output, stream: TextIO, *, applies: bool) -> ExitCode:
    """Do one store after the other and report it; a stop ends the round, and the report is completed."""
    from hermes_doctor.engine.model import ExitCode, worst
    from hermes_doctor.report.changes_model import ChangesEnd, ChangesStart, outcome_of
    from hermes_doctor.store.library import library

    started = time.monotonic()
    reporter = _reporter(output, stream)
    reporter.begin(ChangesStart(__version__, library().version, time.time(), applies))
    ended: list[tuple[ExitCode, Outcome]] = []
    waiting = list(refs)
    while waiting:
        try:
            # Only here: what follows must not hang on a reader who reads no more.
            with stoppable(applies) as stop:
                result = _one(waiting[0], stop, output, applies=applies)
        except KeyboardInterrupt:
            ended.append((ExitCode.STOPPED, "stopped"))
            say("stopped. Nothing was changed; the same command starts over.")
            break
        waiting.pop(0)
        if stop:
            finish_undisturbed()
        ended.append((result.exit_code, result.outcome))
        reporter.store(result)
        if stop:
            break
    code = worst([*(each for each, _ in ended), *([ExitCode.STOPPED] if waiting else [])])
    outcome = outcome_of(ended, code)
    following = {"planned": f"{again} (does it)", "stopped": f"{again} (starts over)"}.get(outcome)
    seconds = time.monotonic() - started
    reporter.end(ChangesEnd(seconds, outcome, code, [ref.path for ref in waiting], [following] if following else []))
    return code


def _one(ref: StoreRef, stop: Stop, output: Output, *, applies: bool) -> StoreCompact:
    """Plan or compact one store; what the doctor itself got wrong with it fails it, and the others go on."""
    from hermes_doctor.cli.failures import describe
    from hermes_doctor.engine.compact import StoreCompact, compact_store
    from hermes_doctor.engine.model import ExitCode
    from hermes_doctor.engine.scan import StoreScan

    try:
        with output.show_progress() as progress:
            return compact_store(ref, apply=applies, stop=stop, progress=progress)
    except Exception as error:
        failed = StoreCompact(ref, StoreScan(ref), applied=applies)
        failed.end("failed", ExitCode.FAILED, describe(error))
        return failed


def _reporter(output: Output, stream: TextIO) -> ChangesReporter[StoreCompact]:
    if output.format == "json":
        from hermes_doctor.report.compact_json import CompactJson

        return CompactJson(stream)
    from hermes_doctor.cli.look import look_for
    from hermes_doctor.report.compact_table import CompactTable

    return CompactTable(stream, look_for(output, stream))
