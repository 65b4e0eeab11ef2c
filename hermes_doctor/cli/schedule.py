"""`doctor schedule`: have `doctor nightly` run every night, through what the host has for that."""

from __future__ import annotations

import functools
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from hermes_doctor.cli.changing import live_option, say
from hermes_doctor.cli.nightly import deep_when_option, fix_safe_option, notify_option, ping_option
from hermes_doctor.cli.options import TypedOnly
from hermes_doctor.cli.types import Target

if TYPE_CHECKING:
    from hermes_doctor.nightly.schedule import Installed, Job, Scheduler

_FAILED, _REFUSED = 3, 5
_KINDS = ("systemd", "cron", "launchd")


class TimeOfDay(click.ParamType[tuple[int, int]]):
    """An hour and a minute, ``03:10``."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        """Return the hour and the minute; anything else is a usage error."""
        if isinstance(value, tuple):
            return value
        matched = re.fullmatch(r"([01]?[0-9]|2[0-3]):([0-5][0-9])", str(value).strip(), re.ASCII)
        if matched is None:
            self.fail(f"'{value}' is no time of day. Write hours and minutes, as in 03:10.", param, ctx)
        return int(matched[1]), int(matched[2])


class Wanted(NamedTuple):
    """What is to run each night, and how."""

    job: Job
    kind: str


_with_option = click.option(
    "--with",
    "kind",
    type=click.Choice(["auto", *_KINDS]),
    default="auto",
    show_default=True,
    help="What starts it. auto: systemd where it runs this machine, else cron; launchd on macOS.",
)
_force_option = click.option(
    "--force", cls=TypedOnly, is_flag=True, help="Also where it was changed by hand since the doctor wrote it."
)


def _job_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give the command the options that say what is to run; they come as ``wanted``."""

    @functools.wraps(command)
    def gather(
        *args: Any,
        targets: tuple[Path, ...],
        at: tuple[int, int],
        fix: str | None,
        live: bool,
        deep: str,
        notify_command: str | None,
        ping: str | None,
        kind: str,
        **rest: Any,
    ) -> Any:
        from hermes_doctor.nightly.schedule import Job, environment, program

        if live and fix is None:
            raise click.UsageError("--live goes with --fix safe.")
        words = [*program(), "nightly"]
        words += ["--fix", fix] if fix else []
        words += ["--live"] if live else []
        words += ["--deep", deep] if deep != "never" else []
        words += ["--notify-command", notify_command] if notify_command else []
        words += ["--ping", ping] if ping else []
        # Whoever starts it does so from another folder.
        words += [str(target.absolute()) for target in targets]
        job = Job(tuple(words), *at, environment=environment(), confined=not notify_command)
        return command(*args, wanted=Wanted(job, kind), **rest)

    decorated: Callable[..., Any] = gather
    for option in reversed(
        [
            click.argument("targets", nargs=-1, type=Target(), metavar="[TARGET]..."),
            click.option(
                "--at",
                type=TimeOfDay(),
                default="03:10",
                show_default=True,
                metavar="HH:MM",
                help="When, in the time of this host. systemd starts it within half an hour from then.",
            ),
            fix_safe_option,
            live_option,
            deep_when_option,
            notify_option,
            ping_option,
            _with_option,
        ]
    ):
        decorated = option(decorated)
    return decorated


@click.group(short_help="Check every night: install, show, status, remove.")
def schedule() -> None:
    """Have `doctor nightly` run every night, through what this host has for that: systemd, cron, or launchd.

    Nothing is installed until you type `doctor schedule install`; `doctor schedule show` prints what it would write.
    For root it is the machine's own timer or cron, else yours.
    """


@schedule.command(short_help="Install it; the same again changes nothing.")
@_job_options
@_force_option
@click.pass_context
def install(context: click.Context, wanted: Wanted, force: bool) -> None:
    """Have every store that TARGET stands for checked every night; with no TARGET, this host's.

    The same again changes nothing, other options replace what was there. What the doctor did not write is never
    overwritten.

    Exit codes: 0 installed, 2 usage error, 3 the machine did not do it, 5 refused.
    """
    from hermes_doctor.nightly.schedule import RefusedError

    with _telling(context):
        scheduler = _chosen(wanted.kind)
        for other in _all():
            there = [] if other.name == scheduler.name else _ours(other.installed())
            if there:
                raise RefusedError(
                    f"it is installed with {other.name} already, and would run twice. Nothing was changed."
                    " Next: doctor schedule remove"
                )
        changed = scheduler.install(wanted.job, force=force)
        places = ", ".join(_place(piece.place) for piece in scheduler.pieces(wanted.job))
        if not changed:
            click.echo(f"It is installed just so, every day at {wanted.job.at} with {scheduler.name}: {places}")
        else:
            click.echo(f"Installed with {scheduler.name}, every day at {wanted.job.at}: {places}")
        for line in [*scheduler.hindrances(), *scheduler.remarks()]:
            click.echo(line)
        click.echo("Next: doctor schedule status, doctor schedule remove (takes it away again)")


@schedule.command(short_help="Print what install would write.")
@_job_options
@click.pass_context
def show(context: click.Context, wanted: Wanted) -> None:
    """Print what `install` with the same options would write, and which commands it would run. Writes nothing."""
    with _telling(context):
        scheduler = _chosen(wanted.kind)
        for piece in scheduler.pieces(wanted.job):
            click.echo(f"==> {_place(piece.place)} <==\n{piece.text}")
        for command in scheduler.commands():
            click.echo(f"$ {command}")


@schedule.command(short_help="Say what is installed, and when it last ran.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
@click.pass_context
def status(context: click.Context, as_json: bool) -> None:
    """Say what is installed, what keeps it from running, and what the last run came to.

    Exit codes: 0 it is installed and nothing keeps it from running, 1 it is not,
    3 the machine would not say.
    """
    with _telling(context):
        found = [(scheduler, _ours(scheduler.installed())) for scheduler in _all()]
        found = [(scheduler, there) for scheduler, there in found if there]
        hindrances = [each for scheduler, _ in found for each in scheduler.hindrances()]
        last = _last_run()
        if as_json:
            click.echo(json.dumps(_status(found, hindrances, last), indent=1))
        else:
            _print_status(found, hindrances, last)
        context.exit(0 if found and not hindrances else 1)


@schedule.command(short_help="Take away what install wrote.")
@_force_option
@click.pass_context
def remove(context: click.Context, force: bool) -> None:
    """Take away just what `install` wrote, whatever it was installed with. What it found is kept."""
    with _telling(context):
        places = [
            place for scheduler in _all() if _ours(scheduler.installed()) for place in scheduler.remove(force=force)
        ]
        if places:
            click.echo(f"Removed: {', '.join(map(_place, places))}")
        else:
            click.echo("Nothing is installed.")


@contextmanager
def _telling(context: click.Context) -> Iterator[None]:
    """Turn what a scheduler could not do into one line and an exit code."""
    from hermes_doctor.nightly.schedule import RefusedError, ScheduleError

    if sys.platform == "win32":
        say("nothing that the doctor knows starts programs here. Next: have the Task Scheduler run: doctor nightly")
        context.exit(_REFUSED)
    try:
        yield
    except ScheduleError as error:
        say(f"{error}.")
        context.exit(_REFUSED if isinstance(error, RefusedError) else _FAILED)


def _all() -> list[Scheduler]:
    """Return what may start programs on this host, the best first."""
    from hermes_doctor.nightly import cron
    from hermes_doctor.nightly.launchd import LaunchdJob
    from hermes_doctor.nightly.systemd import SystemdTimer

    if sys.platform == "darwin":
        return [LaunchdJob.of_user(), cron.of_user()]
    return [SystemdTimer.of_user(), cron.of_user()]


def _chosen(kind: str) -> Scheduler:
    """Return the scheduler of that name, or the best that can be used here. Raises RefusedError where there is none."""
    from hermes_doctor.nightly.launchd import LaunchdJob
    from hermes_doctor.nightly.schedule import RefusedError

    if kind == "launchd":
        return LaunchdJob.of_user()
    reasons: list[str] = []
    for scheduler in _all():
        if kind == scheduler.name:
            return scheduler
        reason = scheduler.usable()
        if kind == "auto" and reason is None:
            return scheduler
        reasons.append(reason or scheduler.name)
    raise RefusedError(
        f"nothing that starts programs at night was found ({'; '.join(reasons)}). Nothing was changed."
        " Next: have whatever starts programs here run: doctor nightly"
    )


def _ours(installed: Sequence[Installed]) -> list[Installed]:
    from hermes_doctor.nightly.schedule import Owner

    return [each for each in installed if each.owner in (Owner.US, Owner.US_CHANGED)]


def _place(place: str) -> str:
    from hermes_doctor.report.words import short_path

    return short_path(place)


def _last_run() -> dict[str, Any] | None:
    """Return what the last nightly run came to, None where there was none, or its record cannot be read."""
    from datetime import datetime

    from hermes_doctor.engine.state_file import state_folder
    from hermes_doctor.nightly.run import LAST_RUN

    try:
        document = json.loads((state_folder() / LAST_RUN).read_text(encoding="utf-8"))
        # What is told in words has to be what it is taken for.
        datetime.fromisoformat(document["started_at"])
        numbers = {key: int(document[key]) for key in ("found", "new", "exit_code")}
        return {key: document[key] for key in ("started_at", "seconds", "outcome")} | numbers
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _status(
    found: Sequence[tuple[Scheduler, list[Installed]]], hindrances: Sequence[str], last: dict[str, Any] | None
) -> dict[str, object]:
    from hermes_doctor.nightly.schedule import Owner

    return {
        "format": "hermes-doctor.schedule",
        "format_version": 1,
        "installed": [
            {
                "with": scheduler.name,
                "at": there[0].at,
                "places": [each.place for each in there],
                "changed_by_hand": any(each.owner is Owner.US_CHANGED for each in there),
            }
            for scheduler, there in found
        ],
        "hindrances": list(hindrances),
        "last_run": last,
    }


def _print_status(
    found: Sequence[tuple[Scheduler, list[Installed]]], hindrances: Sequence[str], last: dict[str, Any] | None
) -> None:
    from hermes_doctor.nightly.schedule import Owner

    if not found:
        click.echo("Nothing is installed.")
    for scheduler, there in found:
        places = ", ".join(_place(each.place) for each in there)
        at = f"every day at {there[0].at}" if there[0].at else "at a time that was set by hand"
        click.echo(f"Installed with {scheduler.name}, {at}: {places}")
        if any(each.owner is Owner.US_CHANGED for each in there):
            click.echo("It was changed by hand since the doctor wrote it.")
    for line in [*hindrances, *(each for scheduler, _ in found for each in scheduler.remarks())]:
        click.echo(line)
    click.echo(_in_words(last))
    if not found:
        click.echo("Next: doctor schedule show (what would be written), doctor schedule install")


def _in_words(last: dict[str, Any] | None) -> str:
    import time
    from datetime import datetime

    from hermes_doctor.report.words import counted, moment

    if last is None:
        return "No nightly run is known."
    then = datetime.fromisoformat(last["started_at"]).timestamp()
    told = f"{counted(last['new'], 'new finding')}, {last['found']:,} in all"
    return f"Last run: {moment(then, time.time())}, {told} (exit code {last['exit_code']})."


__all__ = ["schedule"]
