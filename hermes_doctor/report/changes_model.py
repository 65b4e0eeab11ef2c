"""What a reporter of changes, planned or carried out, is handed: by `doctor fix`, `doctor undo`, `doctor compact`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from hermes_doctor.engine.model import ExitCode
from hermes_doctor.engine.plan import Outcome
from hermes_doctor.report.model import RunStart

#: What is reported of one store: a StoreFix, a StoreUndo or a StoreCompact.
Result_contra = TypeVar("Result_contra", contravariant=True)


@dataclass(frozen=True)
class ChangesStart(RunStart):
    """The beginning of a run that changes stores, or of its plan. ``applied``: whether it is the work itself."""

    applied: bool


@dataclass(frozen=True)
class ChangesEnd:
    """The end. ``not_reached``: stores whose turn did not come before a stop.

    ``next_commands``: what a person may type next, each with what it does, or "".
    """

    seconds: float
    outcome: Outcome
    exit_code: ExitCode
    not_reached: Sequence[Path] = ()
    next_commands: Sequence[str] = ()


class ChangesReporter(Protocol, Generic[Result_contra]):
    """One format: a beginning, one store after the other, an end."""

    def begin(self, start: ChangesStart) -> None:
        """Take note that the run begins."""

    def store(self, result: Result_contra) -> None:
        """Report one store."""

    def end(self, end: ChangesEnd) -> None:
        """Report the totals."""


def outcome_of(outcomes: Sequence[tuple[ExitCode, Outcome]], code: ExitCode) -> Outcome:
    """Return the outcome of a run over several stores: that of the stores whose exit code counts.

    Of stores that all went well, one in which something was changed speaks for the run.
    """
    telling: tuple[Outcome, ...] = ("planned", "partly-fixed", "fixed", "compacted", "failed", "refused", "stopped")
    there = {outcome for each, outcome in outcomes if each is code}
    return next((outcome for outcome in telling if outcome in there), "stopped" if code else "nothing-to-do")
