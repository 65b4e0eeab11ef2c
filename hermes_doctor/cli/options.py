"""The options that mean the same in every command, as decorators."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TextIO

import click
from click.core import ParameterSource

from hermes_doctor.cli.types import CheckName, Duration
from hermes_doctor.report.formats import COMMON, FOR_OTHERS

if TYPE_CHECKING:
    from hermes_doctor.report.progress import ProgressDisplay

Command = Callable[..., Any]
#: How progress is told.
Telling = Literal["auto", "json", "none"]


class TypedOnly(click.Option):
    """An option that no environment variable and no configuration can set: it is only ever typed.

    For ``--apply``, ``--unsafe``, ``--yes`` and ``--live``.
    """

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        """Return nothing, whatever the environment says."""
        return None


class Selection(NamedTuple):
    """Which checks were asked for. ``idle``: seconds that raise a check's own threshold."""

    check: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    idle: float = 0.0

    def narrow(self, known: list[str]) -> list[str]:
        """Return the names to run, in their own order; it is a usage error if none is left."""
        chosen = [name for name in known if name not in self.skip and (not self.check or name in self.check)]
        if known and not chosen:
            raise click.UsageError("--check and --skip leave no check to run.")
        return chosen


class Output(NamedTuple):
    """How the result is to be shown: the format, where it goes, and how much is said around it.

    ``limit``: examples for each check in tables. ``quiet``: only what is wrong. ``color``: auto, always or never.
    ``progress``: auto draws a line for a person who looks at a terminal.
    """

    format: str = "table"
    file: Path | None = None
    limit: int = 3
    quiet: bool = False
    progress: Telling = "auto"
    color: str = "auto"

    def colored(self, stream: TextIO) -> bool:
        """Whether colour goes to this stream (https://no-color.org for NO_COLOR)."""
        if self.color != "auto":
            return self.color == "always"
        return not os.environ.get("NO_COLOR") and _is_smart_terminal(stream)

    def show_progress(self) -> ProgressDisplay:
        """Return what tells on standard error how far the work is; use it as a context manager, once."""
        from hermes_doctor.report.progress import ProgressDisplay

        style: Literal["line", "json", "none"] = "json" if self.progress == "json" else "none"
        if self.progress == "auto" and not self.quiet and _is_smart_terminal(sys.stderr):
            style = "line"
        return ProgressDisplay(sys.stderr, style)


def _output_option(mode: str = "mode 0600") -> Callable[[Command], Command]:
    return click.option(
        "--output",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help=f"Write the result to this file ({mode}) instead of standard output.",
    )


_COLOR = click.option(
    "--color",
    type=click.Choice(["auto", "always", "never"]),
    default="auto",
    show_default=True,
    help="When to use colour. NO_COLOR is honoured.",
)


#: Where a value can come from, the clearest first.
_CLEAREST = (
    ParameterSource.COMMANDLINE,
    ParameterSource.ENVIRONMENT,
    ParameterSource.DEFAULT_MAP,
    ParameterSource.DEFAULT,
    None,
)


def _is_smart_terminal(stream: TextIO) -> bool:
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def selection_options(command: Command) -> Command:
    """Give the command ``--check``, ``--skip`` and ``--idle``; they come as ``selection``."""

    @functools.wraps(command)
    def gather(*args: Any, check: tuple[str, ...], skip: tuple[str, ...], idle: float, **rest: Any) -> Any:
        return command(*args, selection=Selection(check, skip, idle), **rest)

    return _with(
        gather,
        click.option("--check", type=CheckName(), multiple=True, metavar="NAME", help="Only this check. Repeatable."),
        click.option("--skip", type=CheckName(), multiple=True, metavar="NAME", help="Not this check. Repeatable."),
        click.option(
            "--idle",
            type=Duration(),
            default="0s",
            metavar="DURATION",
            help="Take nothing for abandoned that was used within this time (90m, 24h, 7d)."
            " Only raises a check's own threshold.",
        ),
    )


def deep_option(command: Command) -> Command:
    """Give the command ``--deep``; it comes as ``deep``."""
    return _with(
        command,
        click.option(
            "--deep",
            is_flag=True,
            help="Read every page of the file, all of the search index, and every column of each message.",
        ),
    )


def fail_on_option(command: Command) -> Command:
    """Give the command ``--fail-on``; it comes as ``fail_on``: a severity's word or ``never``."""
    return _with(
        command,
        click.option(
            "--fail-on",
            type=click.Choice(["info", "warning", "error", "never"]),
            default="warning",
            show_default=True,
            help="The least severity that gives exit code 1.",
        ),
    )


def output_options(command: Command) -> Command:
    """Give the command the options about its output, in the formats that all have; they come as ``output``."""
    return _output_options(command, COMMON)


def format_options(*formats: str) -> Callable[[Command], Command]:
    """Return what gives a command the options about its output, in these formats; they come as ``output``."""
    return functools.partial(_output_options, formats=formats)


def _output_options(command: Command, formats: Sequence[str]) -> Command:
    @functools.wraps(command)
    def gather(
        *args: Any,
        format: str,  # noqa: A002  (the option's name is its environment variable's)
        json: bool,
        output: Path | None,
        limit: int,
        quiet: bool,
        progress: Telling,
        no_progress: bool,
        color: str,
        **rest: Any,
    ) -> Any:
        told = _progress(progress, no_progress)
        chosen = Output(_format(format, json), output, limit, quiet, told, color)
        return command(*args, output=chosen, **rest)

    return _with(
        gather,
        click.option("--format", type=click.Choice(formats), default="table", show_default=True, help="The format."),
        click.option("--json", is_flag=True, help="Short for --format json."),
        _output_option(", ".join(["mode 0600", *(f"{name} 0644" for name in formats if name in FOR_OTHERS)])),
        click.option(
            "--limit",
            type=click.IntRange(min=0),
            default=3,
            show_default=True,
            metavar="N",
            help="Examples for each check. JSON has all.",
        ),
        click.option("--quiet", is_flag=True, help="Say only what is wrong."),
        click.option(
            "--progress",
            type=click.Choice(["auto", "json", "none"]),
            default="auto",
            show_default=True,
            help="How to tell on standard error how far the work is. auto: a line on a terminal; json: JSON lines.",
        ),
        click.option("--no-progress", is_flag=True, help="Short for --progress none."),
        _COLOR,
    )


def page_options(command: Command) -> Command:
    """Give a command that shows a text only ``--output`` and ``--color``; they come as ``output``."""

    @functools.wraps(command)
    def gather(*args: Any, output: Path | None, color: str, **rest: Any) -> Any:
        return command(*args, output=Output(file=output, color=color), **rest)

    return _with(gather, _output_option(), _COLOR)


def _format(named: str, as_json: bool) -> str:
    """Return the format; of two that were said the one that was said more clearly, and typed is clearest."""
    if not as_json or named == "json":
        return "json" if as_json else named
    context = click.get_current_context()
    source, short = (_CLEAREST.index(context.get_parameter_source(name)) for name in ("format", "json"))
    if source == short == 0:
        raise click.UsageError(f"--json and --format {named} contradict each other.")
    return named if source < short else "json"


def _progress(named: Telling, without: bool) -> Telling:
    """Return how progress is told; of two that were said, the one that was typed."""
    context = click.get_current_context()
    typed, off = (
        context.get_parameter_source(name) is ParameterSource.COMMANDLINE for name in ("progress", "no_progress")
    )
    if not without or (typed and not off):
        return named
    if typed and named != "none":
        raise click.UsageError(f"--no-progress and --progress {named} contradict each other.")
    return "none"


def _with(command: Command, *options: Callable[[Command], Command]) -> Command:
    for option in reversed(options):
        command = option(command)
    return command
