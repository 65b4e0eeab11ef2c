"""`doctor demo`: a small damaged home, and what the doctor does with it: a newcomer's first minute."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hermes_doctor.cli.changing import typed
from hermes_doctor.cli.options import Output, page_options

if TYPE_CHECKING:
    from hermes_doctor.engine.run_index import RunIndex

#: Where files live in memory, if the system has that: the demo waits for the disk some hundred times otherwise.
_IN_MEMORY = Path("/dev/shm")


@click.command(short_help="Show all of it on a small damaged home.")
@click.argument("folder", required=False, type=click.Path(path_type=Path, file_okay=False), metavar="[DIR]")
@page_options
@click.pass_context
def demo(context: click.Context, folder: Path | None, output: Output) -> None:
    """Make a small damaged Hermes home and show scan, plan, fix, scan and undo on it, in less than a minute.

    The home is made in DIR, which must be empty or new, and stays there; without DIR it is made in a temporary
    folder and removed afterwards. Nothing else is touched.
    """
    from hermes_doctor.cli.output import destination
    from hermes_doctor.demo.home import make_demo_home
    from hermes_doctor.engine.run_index import RunIndex
    from hermes_doctor.host.private_folder import PrivateFolder

    with _home(folder) as home, PrivateFolder(Path(tempfile.gettempdir())) as state:
        try:
            store = make_demo_home(home)
        except FileExistsError as error:
            raise click.UsageError(f"{folder} is not empty. Name a folder that is empty or new, or none.") from error
        with destination(output.file, [store]) as stream, contextlib.redirect_stdout(stream):
            _show(home, RunIndex(state), output)
            print(_closing(folder))  # noqa: T201  (to the stream that standard output is by now)
    context.exit(0)


def _show(home: Path, index: RunIndex, output: Output) -> None:
    """Go through the steps, each told before it is done by the very command that is told."""
    look = ["--no-progress", "--color", "always" if output.colored(sys.stdout) else "never"]
    place, few, none = str(home), ["--limit", "1"], ["--limit", "0"]
    _tell("In this Hermes home some things have gone wrong. The doctor looks at it:")
    _step(["scan", place, *few], look, index)
    _tell("Nothing was changed. What would it do about it? Still nothing is changed:")
    _step(["fix", place, *few], look, index)
    _tell("Now it mends:")
    _step(["fix", place, "--apply", *none], look, index)
    _step(["scan", place], look, index)
    _tell("And whatever it did, it takes back, if you want:")
    _step(["undo", _newest_run(home), place, "--apply", *none], look, index)


def _step(words: list[str], look: list[str], index: RunIndex) -> None:
    """Print a command as it is typed, and run it. The demo goes on unless it was stopped."""
    from hermes_doctor.cli.app import app
    from hermes_doctor.engine.model import ExitCode

    print(f"$ {typed('doctor', *words)}")  # noqa: T201
    command = app.get_command(click.get_current_context(), words[0])
    assert command is not None, "the demo shows commands that exist"
    # Without a parent nothing of the environment is read: the demo looks the same everywhere.
    try:
        with command.make_context(words[0], words[1:] + look, obj=index) as context:
            command.invoke(context)
    except click.exceptions.Exit as end:
        if end.exit_code == ExitCode.STOPPED:
            raise
    print()  # noqa: T201


def _tell(sentence: str) -> None:
    print(f"# {sentence}\n")  # noqa: T201


def _newest_run(home: Path) -> str:
    from hermes_doctor.engine.journal import Journal

    journal = Journal.beside(home / "state.db")
    assert journal is not None, "the demo has just mended something"
    with journal:
        return journal.runs()[0].run


@contextmanager
def _home(folder: Path | None) -> Iterator[Path]:
    """Give the folder for the home: the one that is named, or one that goes away afterwards."""
    if folder is not None:
        yield folder
        return
    quick = not os.environ.get("TMPDIR") and _IN_MEMORY.is_dir() and os.access(_IN_MEMORY, os.W_OK | os.X_OK)
    from hermes_doctor.host.private_folder import PrivateFolder, sweep

    place = _IN_MEMORY if quick else Path(tempfile.gettempdir())
    sweep(place)
    with PrivateFolder(place) as temporary:
        yield temporary


def _closing(folder: Path | None) -> str:
    kept = f"# The home stays in {typed(folder)}: try more on it.\n" if folder is not None else ""
    return (
        f"{kept}# That was all on a made-up home. On your own, these change nothing:\n\n"
        "$ doctor scan\n"
        "$ doctor explain open-zombies   (any check: why it matters, how safe its fix is)\n"
        "$ doctor fix                    (shows what would be done; --apply does it)"
    )
