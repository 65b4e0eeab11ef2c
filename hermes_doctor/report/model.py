"""What a reporter of scans is handed besides the stores: how the run began and how it ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from hermes_doctor.engine.model import ExitCode, Severity
from hermes_doctor.engine.scan import StoreScan

if TYPE_CHECKING:
    from hermes_doctor.store.view import StoreView

#: What a scan's JSON calls each of its exit codes.
OUTCOMES = {
    ExitCode.CLEAN: "clean",
    ExitCode.FINDINGS: "findings",
    ExitCode.FAILED: "failed",
    ExitCode.DAMAGED: "damaged",
    ExitCode.STOPPED: "stopped",
}


@dataclass(frozen=True)
class RunStart:
    """The beginning of a run: the doctor's version, SQLite's, and the time in seconds since the epoch.

    ``fail_on``: the least severity that counts for the exit code, None where none does.
    """

    version: str
    sqlite: str
    started_at: float
    fail_on: Severity | None = field(default=Severity.WARNING, kw_only=True)


@dataclass(frozen=True)
class RunEnd:
    """The end of a run. ``not_scanned``: stores whose turn did not come, or did not end, before a stop.

    ``next_commands``: what a person may type next, each with what it does, or "".
    """

    seconds: float
    exit_code: ExitCode
    not_scanned: Sequence[Path] = ()
    next_commands: Sequence[str] = field(default=())


class ScanReporter(Protocol):
    """One format of `doctor scan`: a beginning, one store after the other, an end."""

    def begin(self, start: RunStart) -> None:
        """Take note that the run begins."""

    def store(self, scan: StoreScan) -> None:
        """Report one store; its findings may be gone through any number of times."""

    def end(self, end: RunEnd) -> None:
        """Report the totals."""


#: What earlier scans of a store found, by check: the times, in seconds since the epoch, and the counts, oldest first.
Past = Callable[[Path], Mapping[str, Sequence[tuple[float, int]]]]


@runtime_checkable
class Illustrated(Protocol):
    """A format that shows more of a store than what was found. ``past``: set before the first store, or empty."""

    past: Past

    def look(self, scan: StoreScan, view: StoreView) -> None:
        """Read more of the store while it is open; see `hermes_doctor.engine.scan.Look`."""
