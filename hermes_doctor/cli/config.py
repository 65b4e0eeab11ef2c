"""`doctor config show`: what each option is set to, and by what."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from hermes_doctor.cli.lazy import did_you_mean
from hermes_doctor.cli.options import Output, TypedOnly, output_options

if TYPE_CHECKING:
    from hermes_doctor.report.settings import Setting

_ORIGINS = {
    ParameterSource.COMMANDLINE: "option",
    ParameterSource.ENVIRONMENT: "environment",
    ParameterSource.DEFAULT_MAP: "config.toml",
}
_PREFIX = "HERMES_DOCTOR_"


@click.group(short_help="Show what is set, and by what.")
def config() -> None:
    """Show what is set, and by what.

    What is typed comes first, then the environment (HERMES_DOCTOR_SCAN_FAIL_ON=error), then config.toml in the
    platform's place for settings (~/.config/hermes-state-doctor), then the default. The tables of config.toml are named
    as commands, and its keys as their options:

    \b
    [scan]
    fail-on = "error"
    skip = ["weights", "prompt-weight"]

    --apply, --unsafe, --yes and --live are only ever typed: nothing else can set them.
    """


def _command_names(context: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Complete the command; behind it stand its own options."""
    root = context.find_root()
    assert isinstance(root.command, click.Group)
    known = [] if context.params.get("words") else root.command.list_commands(root)
    return [name for name in known if name.startswith(incomplete)]


@config.command(
    short_help="Show each option's value and where it comes from.",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.option("--all", "everything", is_flag=True, help="Also what has its default. JSON always has all.")
@click.argument(
    "words", nargs=-1, type=click.UNPROCESSED, metavar="[COMMAND [OPTION]...]", shell_complete=_command_names
)
@output_options
@click.pass_context
def show(context: click.Context, words: tuple[str, ...], everything: bool, output: Output) -> None:
    """Show what is set, and by what: an option, the environment, config.toml or the default.

    With COMMAND: all options of this one. What is typed behind it counts as typed, so that it can be tried:
    doctor config show scan --limit 5
    """
    from hermes_doctor.cli.config_toml import config_file
    from hermes_doctor.cli.output import destination
    from hermes_doctor.cli.tree import commands
    from hermes_doctor.report.settings import settings_json, settings_text

    known = list(commands(context.find_root()))
    unread: dict[str, str] = {}
    if words:
        name, chosen = _chosen(words, known)
        settings = list(_settings(name, chosen, words[len(name.split()) :]))
    else:
        settings = [each for name, chosen in known for each in _settings(name, chosen, ())]
        unread = _unread(known)
    with destination(output.file) as stream:
        if output.format == "json":
            stream.write(settings_json(config_file(), settings, unread))
        else:
            from hermes_doctor.cli.look import look_for

            all_of_it = everything or bool(words)
            stream.write(settings_text(config_file(), settings, unread, look_for(output, stream), everything=all_of_it))
    context.exit(2 if any(each.mistake for each in settings) else 0)


def _chosen(words: Sequence[str], known: Sequence[tuple[str, click.Context]]) -> tuple[str, click.Context]:
    """Return the command that the words begin with."""
    for name, context in sorted(known, key=lambda each: -len(each[0])):
        if list(words[: len(name.split())]) == name.split():
            return name, context
    raise click.UsageError(f"there is no command '{words[0]}'.{did_you_mean(words[0], [name for name, _ in known])}")


def _settings(name: str, context: click.Context, typed: Sequence[str]) -> Iterator[Setting]:
    """Give each option of a command with its value; ``typed``: what stands behind the command."""
    from hermes_doctor.report.settings import Setting

    command = context.command
    given, _, _ = command.make_parser(context).parse_args(list(typed))
    for option in command.params:
        if not isinstance(option, click.Option):
            continue
        value, source = option.consume_value(context, given)
        try:
            with context:
                mistake = None
                option.process_value(context, value)
        except click.BadParameter as error:
            mistake = error.message.rstrip(".")
        variable = None if isinstance(option, TypedOnly) else _variable(context, option)
        shown = value if source in _ORIGINS or isinstance(value, str | int | float) else None
        yield Setting(
            name, max(option.opts, key=len), _listed(option, shown), _ORIGINS.get(source, "default"), variable, mistake
        )


def _variable(context: click.Context, option: click.Option) -> str:
    """Return what an option of a command is called in the environment."""
    return f"{context.auto_envvar_prefix}_{option.name}".upper()


def _listed(option: click.Option, value: object) -> object:
    """Return the value of an option that can be given more than once as a list, whoever gave it."""
    if not option.multiple:
        return value
    return value.split() if isinstance(value, str) else list(value) if isinstance(value, list | tuple) else []


def _unread(known: Sequence[tuple[str, click.Context]]) -> dict[str, str]:
    """Return the variables in the environment that look as if they set something, and why they do not."""
    read: dict[str, bool] = {}
    for _, context in known:
        for option in context.command.params:
            if isinstance(option, click.Option):
                read[_variable(context, option)] = not isinstance(option, TypedOnly)
    return {
        variable: "no command has such an option" if variable not in read else "it is only ever typed"
        for variable in sorted(os.environ)
        if variable.startswith(_PREFIX) and not read.get(variable)
    }
