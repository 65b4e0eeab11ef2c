"""One line on a terminal's standard error that says how far a scan is; nothing anywhere else."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

from hermes_doctor.report.words import short_path

#: Seconds between two drawings of the line.
_PAUSE = 0.1


class ProgressLine:
    """Draws at most ten times a second while ``shown``; cleared before anything else is written there.

    An instance is what the engine calls a Progress: ``line(path, step, share)``.
    """

    def __init__(self, stream: TextIO, shown: bool) -> None:
        self._stream = stream
        self._shown = shown
        self._drawn = 0
        self._last = float("-inf")

    def __call__(self, path: Path, step: str, share: float | None) -> None:
        """Draw where the scan of a store stands; ``share`` is 0 to 1, None where it is not known."""
        now = time.monotonic()
        if not self._shown or now - self._last < _PAUSE:
            return
        self._last = now
        tail = step if share is None else f"{step} {share:4.0%}"
        width = shutil.get_terminal_size().columns - 1
        name = short_path(path)
        room = max(width - len(tail) - 2, 0)
        if len(name) > room:
            name = "…" + name[len(name) - room + 1 :] if room > 1 else ""
        self._draw(f"{name}  {tail}"[:width])

    def clear(self) -> None:
        """Take the line away."""
        if self._drawn:
            self._draw("")
            self._stream.write("\r")
            self._stream.flush()

    def _draw(self, line: str) -> None:
        self._stream.write("\r" + line + " " * max(self._drawn - len(line), 0))
        self._stream.flush()
        self._drawn = len(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()
