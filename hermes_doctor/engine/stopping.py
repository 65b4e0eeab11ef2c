"""Stopping where it does no harm: after the present transaction, on Ctrl-C, SIGTERM or at a time limit."""

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


@contextmanager
def stop_on_signals() -> Iterator[Stop]:
    """Turn SIGINT and SIGTERM into a request, so that nothing is cut off in the middle of a transaction.

    Outside the main thread signals stay as they are.
    """
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def note(number: int, _frame: FrameType | None) -> None:
        stop.ask(f"stopped by {signal.Signals(number).name}")

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
