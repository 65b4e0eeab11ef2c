"""`doctor runs`: the list of past runs; `doctor runs forget`: dropping what they could be undone by."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hermes_doctor.cli.changing import confirm, index_of, require_terminal_or_yes, say, yes_option
from hermes_doctor.cli.lazy import WithMore
from hermes_doctor.cli.options import Output, output_options
from hermes_doctor.cli.types import Duration, RunName, Target

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from hermes_doctor.cli.run_lookup import PastRuns
    from hermes_doctor.engine.model import ExitCode
    from hermes_doctor.report.runs import PastRun


class _WithForget(WithMore):
    """The list, but where the first word is ``forget`` that command: a target of this name is typed ``./forget``."""

    def more(self) -> dict[str, click.Command]:
        """Return that command."""
        return {"forget": forget}

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Return the context of the command that the words call."""
        if args[:1] == ["forget"]:
            return forget.make_context(f"{info_name} forget", args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)


class _TargetOrForget(Target):
    """A target; when it is completed, the word ``forget`` as well."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Offer ``forget`` once it is begun, and else leave it to the shell."""
        from click.shell_completion import CompletionItem

        if incomplete and "forget".startswith(incomplete) and not ctx.params.get("targets"):
            return [CompletionItem("forget", help="drop what runs could be undone by")]
        return super().shell_complete(ctx, param, incomplete)


class _RunThenTarget(click.ParamType[str]):
    """A run and then targets, or where --older-than stands in its place, targets alone."""

    name = "text"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return it as it was typed."""
        return str(value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Complete a run's name first, and targets behind it."""
        begun = ctx.params.get("words") or ctx.params.get("older_than") is not None
        kind = Target() if begun else RunName()
        return kind.shell_complete(ctx, param, incomplete)


@click.command(cls=_WithForget, short_help="List past runs; runs forget drops old ones.")
@click.argument("targets", nargs=-1, type=_TargetOrForget(), metavar="[TARGET]...")
@output_options
@click.pass_context
def runs(context: click.Context, targets: tuple[Path, ...], output: Output) -> None:
    """List past runs, newest first: when, which store, what changed, whether it still stands.

    With no TARGET: of this host's stores and of all others that this user has mended.

    `doctor runs forget RUN` or `doctor runs forget --older-than 90d` drops what runs could be undone by; that is
    private text, and it is dropped by itself after 90 days, or beyond 2 GB for one store.
    """
    from hermes_doctor.cli.look import look_for
    from hermes_doctor.cli.output import destination
    from hermes_doctor.cli.run_lookup import past_runs
    from hermes_doctor.report.runs import no_runs, runs_json, runs_table

    found = past_runs(targets, index_of(context))
    with destination(output.file, [past.journal for past in found.runs]) as stream:
        if output.format == "json":
            stream.write(runs_json(found.runs, found.unreadable))
        else:
            look = look_for(output, stream)
            if found.runs:
                stream.write(runs_table(found.runs, time.time(), look))
                standing = [past for past in found.runs if past.state in ("done", "unfinished")]
                if standing and not output.quiet:
                    stream.write(f"\nNext: doctor undo {standing[0].run.run} (shows how the newest is taken back)\n")
            elif not output.quiet:
                stream.write(no_runs(look))
    _say_unreadable(found)
    if found.unreadable:
        context.exit(3)


@click.command(
    context_settings={"auto_envvar_prefix": "HERMES_DOCTOR_RUNS_FORGET"},
    short_help="Drop what runs could be undone by.",
)
@click.argument("words", nargs=-1, type=_RunThenTarget(), metavar="[RUN] [TARGET]...")
@click.option(
    "--older-than",
    type=Duration(),
    metavar="DURATION",
    help="All runs that are older than this (90d), in place of RUN.",
)
@yes_option
@click.pass_context
def forget(context: click.Context, words: tuple[str, ...], older_than: float | None, yes: bool) -> None:
    """Drop what a run, or all old ones, could be undone by. This cannot be taken back.

    What the runs did stays done, and the list of it (which rows, which columns) is kept.

    \b
    doctor runs forget RUN [TARGET]...
    doctor runs forget --older-than 90d [TARGET]...
    """
    from hermes_doctor.cli.run_lookup import one_run, past_runs

    require_terminal_or_yes(yes=yes)
    if older_than is None and not words:
        raise click.UsageError("name a RUN (doctor runs lists them), or say --older-than 90d.")
    names = words if older_than is not None else words[1:]
    found = past_runs([Target().convert(name, None, context) for name in names], index_of(context))
    _say_unreadable(found)
    if older_than is None:
        meant = [one_run(words[0], found)]
    else:
        meant = [past for past in found.runs if past.run.at < time.time() - older_than]
    meant = [past for past in meant if past.run.forgotten_at is None]
    if not meant:
        click.echo("Nothing to forget.")
        context.exit(3 if found.unreadable else 0)
    listed = ", ".join(past.run.run for past in meant[:3]) + (f" and {len(meant) - 3:,} more" if len(meant) > 3 else "")
    what = "This run" if len(meant) == 1 else f"These {len(meant):,} runs"
    if not confirm(f"{what} could never be undone any more: {listed}. Go on?", yes=yes):
        say("nothing was forgotten.")
        context.exit(1)
    context.exit(_forget(meant, failed=bool(found.unreadable)))


def _forget(meant: Sequence[PastRun], *, failed: bool) -> ExitCode:
    """Forget runs, store by store, each under the lock that keeps other doctors from it."""
    from hermes_doctor.engine.journal import Journal
    from hermes_doctor.engine.model import ExitCode, worst
    from hermes_doctor.host.locks import LockTakenError, doctor_lock
    from hermes_doctor.report.runs import forgotten_line

    codes = [ExitCode.FAILED] if failed else []
    done: list[PastRun] = []
    freed = 0
    for path in dict.fromkeys(past.journal for past in meant):
        here = [past for past in meant if past.journal == path]
        try:
            with doctor_lock(path.parent), Journal(path.parent) as journal:
                held = journal.changeset_bytes_by_run()
                journal.forget(*(past.run.run for past in here))
                freed += sum(held.get(past.run.run, 0) for past in here)
                done += here
        except LockTakenError as taken:
            say(f"{taken.holder} is at work on {path.parent.parent}: wait until it is done, then type the same again.")
            codes.append(ExitCode.BUSY)
    click.echo(forgotten_line(done, freed), nl=False)
    return worst(codes)


def _say_unreadable(found: PastRuns) -> None:
    from hermes_doctor.report.words import short_path, visible

    for path, reason in found.unreadable:
        say(f"the journal {short_path(path)} cannot be read ({visible(reason)}).")
