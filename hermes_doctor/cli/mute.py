"""`doctor mute` and `doctor unmute`: checks that somebody wants to hear no more of for a while."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hermes_doctor.cli.changing import say
from hermes_doctor.cli.options import Output, output_options
from hermes_doctor.cli.types import CheckName, Duration, Target

if TYPE_CHECKING:
    from hermes_doctor.nightly.mutes import Mute

_DAY = 86400.0
#: How long a mute lasts unless it is said, and at most, in seconds.
_USUAL, _LONGEST = 14 * _DAY, 366 * _DAY

_store_option = click.option(
    "--store",
    "stores",
    type=Target(),
    multiple=True,
    metavar="TARGET",
    help="Only on this store, or on those that a Hermes home has now. Repeatable.",
)


@click.command(short_help="Hear no more of a check for a while; alone: list what is muted.")
@click.argument("checks", nargs=-1, type=CheckName(), metavar="[CHECK]...")
@_store_option
@click.option(
    "--for",
    "length",
    type=Duration(),
    metavar="DURATION",
    help="How long (14d, 8w), a year at most. By default 14d, and with --until-worse a year.",
)
@click.option("--until-worse", is_flag=True, help="End it sooner on a store where more are found than until now.")
@output_options
@click.pass_context
def mute(
    context: click.Context,
    checks: tuple[str, ...],
    stores: tuple[Path, ...],
    length: float | None,
    until_worse: bool,
    output: Output,
) -> None:
    """Hear no more of CHECK for a while. Without CHECK: list what is muted.

    What a muted check finds is still looked for and counted; it gives no exit code 1. Every report says what is muted
    and until when, and each mute ends by itself. `doctor fix` mends all the same.
    """
    from hermes_doctor.cli.look import look_for
    from hermes_doctor.cli.output import destination
    from hermes_doctor.nightly.mutes import Mutes
    from hermes_doctor.report.history import mutes_json, mutes_table

    now = time.time()
    if checks:
        _begin(context, checks, stores, length, until_worse, now)
    elif stores or length is not None or until_worse:
        raise click.UsageError("name a CHECK to mute (doctor checks lists them).")
    standing = Mutes.of_user().standing(now)
    with destination(output.file) as stream:
        if output.format == "json":
            stream.write(mutes_json(standing))
        elif not (checks and output.quiet):
            shown = [each for each in standing if not checks or each.check in checks]
            stream.write(mutes_table(shown, now, look_for(output, stream)))
    context.exit(0)


@click.command(short_help="Hear of a check again.")
@click.argument("check", metavar="CHECK")
@_store_option
@click.pass_context
def unmute(context: click.Context, check: str, stores: tuple[Path, ...]) -> None:
    """Hear of CHECK again, on every store or only on some."""
    from hermes_doctor.nightly.mutes import Mutes
    from hermes_doctor.report.words import short_path, visible

    paths = _paths(stores)
    mutes = Mutes.of_user()
    standing = [each for each in mutes.standing(time.time()) if each.check == check]
    if not standing:
        # Only now: a mute may be of a check whose package is gone.
        CheckName().convert(check, None, context)
    where = "" if paths is None else f" on {', '.join(map(short_path, paths))}"
    if not any(_concerns(each, paths) for each in standing):
        click.echo(f"{visible(check)} is not muted{where}.")
        context.exit(0)
    if not mutes.end(check, paths):
        _fail(context, mutes.path)
    click.echo(f"{visible(check)} is no longer muted{where}.")
    context.exit(0)


def _begin(
    context: click.Context,
    checks: tuple[str, ...],
    stores: tuple[Path, ...],
    length: float | None,
    until_worse: bool,
    now: float,
) -> None:
    from hermes_doctor.nightly.history import History
    from hermes_doctor.nightly.mutes import Mute, Mutes
    from hermes_doctor.report.words import short_path

    length = (_LONGEST if until_worse else _USUAL) if length is None else length
    if not 0 < length <= _LONGEST:
        raise click.BadParameter("a mute lasts a year at most, and longer than nothing.", param_hint="'--for'")
    paths = _paths(stores)
    for path in paths or []:
        if not path.is_file():
            raise click.BadParameter(f"there is no store {short_path(path)}.", param_hint="'--store'")
    mutes = Mutes.of_user()
    begun = [
        Mute(check, path, now, now + length, until_worse)
        for check in dict.fromkeys(checks)
        for path in ([None] if paths is None else paths)
    ]
    if not mutes.add(begun, History.of_user().entries() if until_worse else {}, now):
        _fail(context, mutes.path)


def _paths(stores: tuple[Path, ...]) -> list[Path] | None:
    """Return the stores that were named, None for all."""
    from hermes_doctor.host.homes import real, resolve_targets

    return [real(ref.path) for ref in resolve_targets(stores)] if stores else None


def _concerns(mute: Mute, paths: list[Path] | None) -> bool:
    return paths is None or any(mute.holds_on(path) for path in paths)


def _fail(context: click.Context, path: Path) -> None:
    from hermes_doctor.report.words import short_path

    say(f"{short_path(path)} cannot be written, so nothing was changed. Next: look to its folder and its disk.")
    context.exit(3)
