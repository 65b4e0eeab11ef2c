"""What the commands that may change a store share: their options, the question, the signals' treatment, the index."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hermes_doctor.cli.options import TypedOnly

if TYPE_CHECKING:
    from hermes_doctor.engine.run_index import RunIndex
    from hermes_doctor.engine.stopping import Stop

apply_option = click.option(
    "--apply",
    cls=TypedOnly,
    is_flag=True,
    help="Do it. Without it, what would be done is shown and nothing is changed.",
)
unsafe_option = click.option(
    "--unsafe",
    cls=TypedOnly,
    is_flag=True,
    help="Also what is not safe in every case (doctor explain CHECK says why). With --apply it asks first.",
)
yes_option = click.option(
    "--yes", cls=TypedOnly, is_flag=True, help="Ask nothing. Needed where there is no terminal to ask on."
)
live_option = click.option(
    "--live",
    cls=TypedOnly,
    is_flag=True,
    help="Also mend a store that hermes has open: what is safe beside it, in sessions idle for 10 minutes (--idle).",
)


def index_of(context: click.Context) -> RunIndex:
    """Return the index of runs: the user's own, or the one that whoever calls the command from within handed over."""
    from hermes_doctor.engine.run_index import RunIndex

    return context.obj if isinstance(context.obj, RunIndex) else RunIndex.of_user()


def confirm(question: str, *, yes: bool) -> bool:
    """Ask on the terminal, with No as the default; ``yes`` answers. Without a terminal it is a usage error."""
    if yes:
        return True
    require_terminal_or_yes(yes=yes)
    return click.confirm(question, default=False, err=True)


def require_terminal_or_yes(*, yes: bool) -> None:
    """Raise a usage error where there is nobody to ask."""
    if not yes and not sys.stdin.isatty():
        raise click.UsageError("this asks before it goes on, and there is no terminal to ask on. Add --yes to go on.")


@contextmanager
def stoppable(applies: bool) -> Iterator[Stop]:
    """Let signals only ask for an end while a store is changed; a plan is broken off at once, as any reading is."""
    from hermes_doctor.engine.stopping import Stop, stop_on_signals

    if not applies:
        yield Stop()
        return
    with stop_on_signals() as stop:
        yield stop


def finish_undisturbed() -> None:
    """Take no notice of a further Ctrl-C: the work has stopped, and what is left is to say how far it came."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def typed(*words: str | Path) -> str:
    """Return a command as it is typed: quoted where a shell needs it, control characters escaped."""
    from hermes_doctor.host.upstream import quoted

    return " ".join(quoted(word) for word in words)


def say(line: str) -> None:
    """Say something to the person, beside the result."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"doctor: {line}\n")
