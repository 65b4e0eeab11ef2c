"""Stopping where it does no harm: after the present transaction, on Ctrl-C, SIGTERM or at a time limit.

Before the first write there is no transaction to wait for: a scan or a backup is broken off.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Stop:
    """Whether the work should end, and why."""

    def __init__(self) -> None:
        self.reason: str | None = None

    def __bool__(self) -> bool:
        return self.reason is not None

    def ask(self, reason: str) -> None:
        """Ask for an end; the first reason is kept."""
        self.reason = self.reason or reason

    def check(self) -> None:
        """Raise Stopped where an end was asked for."""
        if self.reason is not None:
            raise Stopped(self.reason)


class Stopped(KeyboardInterrupt):  # a request, no error: nobody who catches errors may swallow it
    """Work that changes nothing was broken off, because an end was asked for."""


@contextmanager
def stop_on_signals() -> Iterator[Stop]:
    """Turn SIGINT, SIGTERM and SIGHUP into a request, so that nothing is cut off in the middle of a transaction.

    However often they come. Outside the main thread signals stay as they are, and so does one that is ignored (nohup).
    """
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def note(number: int, _frame: FrameType | None) -> None:
        stop.ask(f"{signal.Signals(number).name} asked for it; the same command carries on")

    numbers = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {
        number: signal.signal(number, note) for number in numbers if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
