"""From arguments to an exit code: whatever goes wrong becomes one clear line, never a traceback."""

from __future__ import annotations

import codecs
import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import click

from hermes_doctor.cli.app import app
from hermes_doctor.cli.failures import describe
from hermes_doctor.host.room import temporary_folder

from hermes_doctor.host.private_folder import sweep
_FAILED = 3
_STOPPED = 7

#: Signs of our own reports that an old encoding may lack, and what stands for them there.
_PLAINER = {"·": "-", "…": "...", "•": "*"}


class Terminated(KeyboardInterrupt):
    """A signal asked the program to stop; it is handled like Ctrl-C."""


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code (contract: "Exit codes")."""
    _listen()
    _speak_plainly()
    tempfile.tempdir = str(temporary_folder())
    try:
        code = _invoke(arguments)
        sys.stdout.flush()
        return code
    except (click.Abort, KeyboardInterrupt):
        # What is left to do takes no time: an impatient second Ctrl-C would only add noise.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _say("stopped. What was done stands; the same command carries on.")
        code = _STOPPED
    except BrokenPipeError:
        code = _STOPPED
    except Exception as error:
        _say(describe(error))
        code = _FAILED
        with contextlib.suppress(OSError):
            sys.stdout.flush()
    _drop_output()
    return code


def _invoke(arguments: Sequence[str]) -> int:
    # Not app.main(): it has exit codes of its own for an interrupt and a closed pipe.
    try:
        with app.make_context(_called_as(), list(arguments)) as context:
            app.invoke(context)
    except click.exceptions.Exit as end:
        return int(end.exit_code)
    except click.UsageError as error:
        error.show()
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return _FAILED
    return 0


def _called_as() -> str:
    name = Path(sys.argv[0]).name
    return "python -m hermes_doctor" if name == "__main__.py" else name


def _listen() -> None:
    """Treat a request to terminate like Ctrl-C, so that temporary copies go and reports are completed."""

    def stop(number: int, _frame: FrameType | None) -> None:
        raise Terminated(signal.Signals(number).name)

    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        # Whoever started us with nohup wants the signal ignored.
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, stop)


def _speak_plainly() -> None:
    """Never fail on a character that the reader's encoding lacks."""
    codecs.register_error("plainer", _plainer)
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="plainer")


def _plainer(error: UnicodeError) -> tuple[str, int]:
    """Give a plainer sign for one that cannot be encoded, else its number."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    signs = error.object[error.start : error.end]
    escaped = (_PLAINER.get(sign) or sign.encode("ascii", "backslashreplace").decode() for sign in signs)
    return "".join(escaped), error.end


def _say(line: str) -> None:
    with contextlib.suppress(OSError):
        sys.stderr.write(f"doctor: {line}\n")


def _drop_output() -> None:
    """Drop what is not written yet: Python would try again at its end, and complain with a code of its own."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)
            # Not for --help and --version, which end before.
            sweep(Path(tempfile.gettempdir()))
