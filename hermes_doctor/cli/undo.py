"""`doctor undo RUN`: show what taking one run back would do, and with --apply do it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

from hermes_doctor import __version__
from hermes_doctor.cli.changing import apply_option, finish_undisturbed, index_of, say, stoppable, typed
from hermes_doctor.cli.options import Output, output_options
from hermes_doctor.cli.types import RunName, Target

if TYPE_CHECKING:
    from hermes_doctor.engine.model import ExitCode
    from hermes_doctor.engine.plan import Outcome
    from hermes_doctor.engine.undo import StoreUndo
    from hermes_doctor.host.homes import StoreRef
    from hermes_doctor.report.changes_model import ChangesReporter
    from hermes_doctor.report.runs import PastRun


@click.command(short_help="Take one run back; --apply does it.")
@click.argument("run", type=RunName(), metavar="RUN")
@click.argument("target", required=False, type=Target(), metavar="[TARGET]")
@apply_option
@output_options
@click.pass_context
def undo(context: click.Context, run: str, target: Path | None, apply: bool, output: Output) -> None:
    """Show what taking one run back would do, row by row. Only --apply changes anything.

    RUN is the name that `doctor runs` lists, or its beginning. TARGET is the store or the Hermes home that the run
    belongs to; it is needed only where the doctor cannot know it: for a store that was moved, or another user's run.

    A column that no longer holds what the run wrote is left as it is, and so is what others changed meanwhile.

    Exit codes: 0 nothing to do, or all of it done; 1 a plan would change something,
    or a row was left as it is; 2 usage error; 3 the doctor failed;
    4 the store is damaged, unreadable or missing; 5 refused for safety;
    6 another doctor is at work; 7 stopped, the same command carries on.
    """
    from hermes_doctor.cli.output import destination
    from hermes_doctor.cli.run_lookup import one_run, past_runs

    found = past_runs([] if target is None else [target], index_of(context))
    for store, reason in found.unreadable:
        say(f"the journal of {store} cannot be read ({reason}).")
    past = one_run(run, found)
    named = [target] if target else []
    newer = [typed("doctor", "undo", each.run.run, *named) for each in found.runs if _stands_over(each, past)]
    with destination(output.file, [past.store]) as stream:
        code = _undo(
            found.ref(past),
            past,
            apply,
            output,
            stream,
            typed("doctor", "undo", run, *named),
            newer,
        )
    context.exit(code)


def _undo(
    ref: StoreRef, past: PastRun, applies: bool, output: Output, stream: TextIO, again: str, newer: Sequence[str]
) -> ExitCode:
    from hermes_doctor import api
    from hermes_doctor.report.changes_model import ChangesEnd, ChangesStart
    from hermes_doctor.store.library import library

    started = time.monotonic()
    reporter = _reporter(past, output, stream)
    with stoppable(applies) as stop, output.show_progress() as progress:
        result = api.undo(ref, past.run, apply=applies, stop=stop, progress=progress)
    if stop:
        finish_undisturbed()
    with contextlib.closing(result):
        reporter.begin(ChangesStart(__version__, library().version, time.time(), applies))
        reporter.store(result)
        following = _next(result.outcome, again, newer if _left_some(result) else ())
        seconds = time.monotonic() - started
        reporter.end(ChangesEnd(seconds, result.outcome, result.exit_code, (), following))
    return result.exit_code


def _reporter(past: PastRun, output: Output, stream: TextIO) -> ChangesReporter[StoreUndo]:
    if output.format == "json":
        from hermes_doctor.report.changes_json import UndoJson

        return UndoJson(stream)
    from hermes_doctor.cli.look import look_for
    from hermes_doctor.report.undo_table import UndoTable
    from hermes_doctor.report.words import ago, moment

    now = time.time()
    undone = past.run.undone_at
    told = f"Run {past.run.run} of {moment(past.run.at, now)}" + (f", undone {ago(undone, now)}" if undone else "")
    return UndoTable(stream, look_for(output, stream), told)


def _stands_over(one: PastRun, other: PastRun) -> bool:
    """Whether a run of the same store is newer, and can be undone first."""
    newer = (one.run.at, one.run.run) > (other.run.at, other.run.run)
    return newer and one.store == other.store and one.state in ("done", "unfinished")


def _left_some(result: StoreUndo) -> bool:
    from hermes_doctor.engine.undo import CHANGED_SINCE

    return result.count(CHANGED_SINCE) > 0


def _next(outcome: Outcome, again: str, newer: Sequence[str]) -> list[str]:
    """Return what may be typed next: ``newer``, which take back newer runs that stand over this one, come first."""
    following = [f"{newer[0]} (a newer run that may have changed the same rows)"] if newer else []
    if outcome == "planned":
        following.append(f"{again} --apply (does it)")
    elif outcome == "stopped":
        following.append(f"{again} --apply (carries on)")
    return following
