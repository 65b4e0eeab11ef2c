"""How far the work is and how long it still takes: a line on a terminal, JSON lines for programs, else nothing.

Whoever works only notes where it is. A thread of its own tells it: it goes on while SQLite is busy with one long
statement, and says nothing of work that is done in less than half a second.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import threading
import time
from collections import deque
from pathlib import Path
from types import TracebackType
from typing import Literal, Protocol, Self, TextIO

from hermes_doctor.report.document import utc
from hermes_doctor.report.words import short_path, visible

Style = Literal["line", "json", "none"]

#: Seconds of work before anything is told of it.
PATIENCE = 0.5
#: Seconds between two looks at how far it is, and the least between two JSON lines about the same step.
_TICK = 0.1
_JSON_PAUSE = 0.5
#: What a step must have lasted, in seconds, and come to since its first word, before it is said how long it takes.
_LEAST_SECONDS = 1.0
_LEAST_SHARE = 0.02
#: Seconds that count as of late, and in which an estimate follows what contradicts it: each by two thirds.
_LATELY = 6.0
_INERTIA = 2.0
#: The slowest pace that is reckoned with, as a share in a second: some months for the whole.
_SLOWEST = 1e-7


class Estimate:
    """How far a step is, and how long it still takes. Times are those of a clock that never goes back."""

    def __init__(self, now: float) -> None:
        self.share: float | None = None
        #: When the pace was last looked at, and how much was done then.
        self._looked, self._then = now, 0.0
        #: The share that is done in a second, as of late.
        self._pace: float | None = None
        self._end: float | None = None

    def tell(self, share: float | None, now: float) -> None:
        """Learn how much is done, 0 to 1; it never becomes less again. None: it cannot be told, as before."""
        if share is None:
            return
        share = min(max(share, self.share or 0.0), 1.0)
        if self.share is None:
            self._looked, self._then = now, share
        self.share = share
        took, gained = now - self._looked, share - self._then
        if self._pace is None:
            if took < _LEAST_SECONDS or gained < _LEAST_SHARE:
                return
            self._pace = gained / took
            self._end = now + (1 - share) / self._pace
        elif took < _TICK:
            return
        else:
            self._pace += (1 - math.exp(-took / _LATELY)) * (gained / took - self._pace)
            assert self._end is not None, "known as long as the pace"
            end = now + (1 - share) / max(self._pace, _SLOWEST)
            self._end += (1 - math.exp(-took / _INERTIA)) * (end - self._end)
        self._looked, self._then = now, share

    def seconds_left(self, now: float) -> float | None:
        """Return how long it still takes, never less than 0; None where that cannot be told yet."""
        return None if self._end is None else max(self._end - now, 0.0)


class _Step:
    """One step of the work on one store."""

    def __init__(self, path: Path, name: str, now: float) -> None:
        self.path, self.name = path, name
        self.estimate = Estimate(now)
        self.ended_at: float | None = None


class _Teller(Protocol):
    def tell(self, step: _Step) -> None:
        """Tell where a step is, or that it has ended."""

    def close(self) -> None:
        """Leave the stream as somebody else would want to find it."""


class ProgressDisplay:
    """Tells of one piece of work; a context manager, and what the engine calls a Progress.

    ``line``: one line on a terminal, drawn anew where it changes and taken away at the end. ``json``: JSON lines, as
    `report/schemas/progress.json` describes them. ``none``: nothing. A stream that cannot be written to is left alone.
    """

    def __init__(self, stream: TextIO, style: Style) -> None:
        self._teller: _Teller | None = None
        if style != "none":
            self._teller = _Line(stream) if style == "line" else _JsonLines(stream)
        self._step: _Step | None = None
        self._ended: deque[_Step] = deque()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def __call__(self, path: Path, step: str, share: float | None) -> None:
        """Note where the work on a store is; ``share`` of the step is 0 to 1, None where it is not known."""
        if self._teller is None:
            return
        now = time.monotonic()
        current = self._step
        if current is None or current.name != step or current.path != path:
            self._end_step()
            current = _Step(path, step, now)
        current.estimate.tell(share, now)
        self._step = current

    def __enter__(self) -> Self:
        if self._teller is not None:
            self._thread = threading.Thread(target=self._go_on, args=(self._teller,), name="progress", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._end_step()
        self._step = None
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def _end_step(self) -> None:
        if self._step is not None:
            self._step.ended_at = time.time()
            self._ended.append(self._step)

    def _go_on(self, teller: _Teller) -> None:
        try:
            wait = PATIENCE
            while not self._over.wait(wait):
                wait = _TICK
                self._tell(teller)
            self._tell(teller)
            teller.close()
        except (OSError, ValueError):
            # Nobody can see it any more, or the stream is closed.
            return

    def _tell(self, teller: _Teller) -> None:
        # Asked first: what ends meanwhile is told as ended, and nothing of it afterwards.
        current = self._step
        while self._ended:
            teller.tell(self._ended.popleft())
        if current is not None and current.ended_at is None:
            teller.tell(current)


class _Line:
    """One line of a terminal, never wider than that."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._drawn = ""

    def tell(self, step: _Step) -> None:
        if step.ended_at is not None:
            return
        text = fitted(step.path, _in_words(step), self._columns() - 1)
        if text != self._drawn:
            self._draw(text)

    def close(self) -> None:
        if self._drawn:
            self._draw("")

    def _draw(self, text: str) -> None:
        # In one go, and what is left of the longer line before only behind the new one: nothing flickers.
        _put(self._stream, f"\r{text}\x1b[K")
        self._drawn = text

    def _columns(self) -> int:
        try:
            columns = os.get_terminal_size(self._stream.fileno()).columns
        except (OSError, ValueError):
            columns = 0
        return columns or shutil.get_terminal_size().columns


class _JsonLines:
    """One object a line."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._told: tuple[_Step, float | None, int | None] | None = None
        self._next = 0.0

    def tell(self, step: _Step) -> None:
        ended = step.ended_at
        known = self._told is not None and self._told[0] is step
        # Steps that were over before anything was told of them are not worth a word.
        if ended is not None and not known:
            return
        now = time.monotonic()
        if ended is None and now < self._next:
            return
        left = step.estimate.seconds_left(now) if ended is None else 0.0
        said = (step, step.estimate.share, None if left is None else round(left))
        if ended is None and said == self._told:
            return
        self._told, self._next = said, now + _JSON_PAUSE
        line = {
            "at": utc(time.time() if ended is None else ended),
            "path": str(step.path),
            "step": step.name,
            "share": None if said[1] is None else round(said[1], 4),
            "seconds_left": said[2],
            "done": ended is not None,
        }
        _put(self._stream, json.dumps(line) + "\n")

    def close(self) -> None:
        """Nothing is left behind."""


def _put(stream: TextIO, text: str) -> None:
    """Write to a stream at once, past its buffer: what nobody takes must not be tried again at the program's end."""
    try:
        number = stream.fileno()
    except (OSError, ValueError):
        stream.write(text)
        stream.flush()
        return
    stream.flush()
    left = text.encode(stream.encoding, stream.errors or "strict")
    while left:
        left = left[os.write(number, left) :]


def fitted(path: Path, tail: str, width: int) -> str:
    """Return the path and what is told of it in one line of at most that many columns.

    The path gives way first, from its beginning.
    """
    tail, name = _cut(tail, width), short_path(path)
    room = width - _columns_of(tail) - 2
    if _columns_of(name) > room:
        if room < 2:
            return tail
        while _columns_of(name) > room - 1:
            name = name[1:]
        name = "…" + name
    return f"{name}  {tail}"


def _cut(text: str, width: int) -> str:
    while text and _columns_of(text) > width:
        text = text[:-1]
    return text


def _columns_of(text: str) -> int:
    """Return how many columns of a terminal a text takes: signs of East Asia two, marks over others none."""
    if text.isascii():
        return len(text)
    # Here, and not with the others: hardly a path needs it.
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(sign) else 2 if east_asian_width(sign) in "WF" else 1 for sign in text)


def _in_words(step: _Step) -> str:
    share, left = step.estimate.share, step.estimate.seconds_left(time.monotonic())
    text = visible(step.name) if share is None else f"{visible(step.name)} {math.floor(share * 100)}%"
    return text if left is None or left < 1 else f"{text}, {left_in_words(left)} left"


def left_in_words(seconds: float) -> str:
    """Return how long something still takes, the rougher the longer, so that it changes seldom: ``25 s``."""
    if seconds <= 20:
        return f"{math.ceil(seconds)} s"
    if seconds <= 90:
        return f"{5 * math.ceil(seconds / 5)} s"
    minutes = math.ceil(seconds / 60)
    return f"{minutes} minutes" if minutes <= 90 else f"{math.ceil(seconds / 3600)} hours"
