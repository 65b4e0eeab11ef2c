"""From arguments to an exit code: whatever goes wrong becomes one clear line, never a traceback."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import click

from hermes_doctor.cli.app import app
from hermes_doctor.cli.failures import describe

_FAILED = 3
_STOPPED = 7


class Terminated(KeyboardInterrupt):
    """A signal asked the program to stop; it is handled like Ctrl-C."""


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code (contract: "Exit codes")."""
    _listen()
    _speak_plainly()
    try:
        code = _invoke(arguments)
        sys.stdout.flush()
    except click.exceptions.Exit as error:
        code = error.exit_code
    except click.UsageError as error:
        error.show()
        code = error.exit_code
    except click.ClickException as error:
        error.show()
        code = _FAILED
    except (click.Abort, KeyboardInterrupt):
        _say("stopped. What was done stands; the same command carries on.")
        code = _STOPPED
    except BrokenPipeError:
        code = _STOPPED
    except Exception as error:
        _say(describe(error))
        code = _FAILED
    return _settle(code)


def _invoke(arguments: Sequence[str]) -> int:
    # Not app.main(): it has exit codes of its own for an interrupt and a closed pipe.
    with app.make_context(_called_as(), list(arguments)) as context:
        app.invoke(context)
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
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")


def _say(line: str) -> None:
    with contextlib.suppress(OSError):
        sys.stderr.write(f"doctor: {line}\n")


def _settle(code: int) -> int:
    """Flush what is left, or else drop it: Python would complain about it at its end, with a code of its own."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = _STOPPED
    except OSError as error:
        _say(describe(error))
        code = _FAILED
    else:
        return code
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)
    return code
