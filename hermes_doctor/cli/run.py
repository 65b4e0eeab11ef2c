"""From arguments to an exit code: whatever goes wrong becomes one clear line, never a traceback."""

from __future__ import annotations

import codecs
import contextlib
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

import click

from hermes_doctor.cli.app import app
from hermes_doctor.cli.failures import describe
from hermes_doctor.host.private_folder import sweep
from hermes_doctor.host.room import temporary_folder

_FAILED = 3
_STOPPED = 7

_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")
#: Seconds after a first signal in which further ones change nothing: what is left to do takes no time, as a rule.
_PATIENCE = 1.0

#: Signs of our own reports that an old encoding may lack, and what stands for them there.
_PLAINER = {"·": "-", "…": "...", "•": "*"}


class Terminated(KeyboardInterrupt):
    """A signal asked the program to stop; it is handled like Ctrl-C."""


def run(arguments: Sequence[str], heard: Sequence[int] = ()) -> int:
    """Run one command and return its exit code (contract: "Exit codes").

    ``heard``: signals that asked for an end before.
    """
    signals = _Signals()
    try:
        with signals.listening():
            _speak_plainly()
            tempfile.tempdir = str(temporary_folder())
            if heard:
                raise Terminated(signal.Signals(heard[0]).name)
            code = _invoke(arguments)
            sys.stdout.flush()
            return code
    except (click.Abort, KeyboardInterrupt):
        code = _STOPPED
    except BrokenPipeError:
        code = _STOPPED
        signals.said = True
    except Exception as error:
        if _was_stopped(error):
            code = _STOPPED
        else:
            _say(describe(error))
            code = _FAILED
            with contextlib.suppress(OSError):
                sys.stdout.flush()
    if code == _STOPPED and not signals.said:
        _say("stopped. What was done stands; the same command carries on.")
    _drop_output()
    return code


class _Signals:
    """A request to terminate is treated like Ctrl-C, so that temporary copies go and reports are completed."""

    def __init__(self) -> None:
        #: Whether it has been told that the work was stopped, or need not be.
        self.said = False
        self._first: float | None = None

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Raise Terminated on a signal. Behind it signals are ignored: the program only has to end."""
        numbers = [getattr(signal, name) for name in _SIGNALS if hasattr(signal, name)]
        # Whoever started us with nohup wants the signal ignored.
        numbers = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
        before = sys.unraisablehook
        sys.unraisablehook = self._unraisable
        try:
            for number in numbers:
                signal.signal(number, self._stop)
            yield
        finally:
            # First of all, and by one call each: nothing may come between.
            for number in numbers:
                signal.signal(number, signal.SIG_IGN)
            sys.unraisablehook = before

    def _stop(self, number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._first is None:
            self._first = now
        elif now - self._first < _PATIENCE:
            return
        else:
            # Whoever caught the first one has told of it.
            self.said = True
        raise Terminated(signal.Signals(number).name)

    def _unraisable(self, ignored: sys.UnraisableHookArgs) -> None:
        """Where Python can raise nothing (while an object is taken away), ask once more a little later."""
        if isinstance(ignored.exc_value, KeyboardInterrupt):
            self._first = None
            again = threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGTERM))
            again.daemon = True
            again.start()


def _was_stopped(error: BaseException | None) -> bool:
    """Whether a signal is behind an error: Python makes others of what is raised while a class is made."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__cause__
    return False


def _invoke(arguments: Sequence[str]) -> int:
    if asking := os.environ.get("_HERMES_DOCTOR_COMPLETE"):
        from hermes_doctor.cli.completion import reply

        return reply(asking)
    # Not app.main(): it has exit codes of its own for an interrupt and a closed pipe.
    try:
        with app.make_context(_called_as(), list(arguments)) as context:
            # Not for --help and --version, which end before.
            sweep(Path(tempfile.gettempdir()))
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
