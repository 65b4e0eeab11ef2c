"""One nightly run over several stores: whether to look deep, what it came to, and who else is told."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hermes_doctor.engine.model import ExitCode, worst
from hermes_doctor.nightly.news import Known, StoreNews
from hermes_doctor.nightly.notices import NotSentError, call, ping

#: In the user's state folder: what the last run came to, as JSON.
LAST_RUN = "nightly.json"

#: A deep look a week, in seconds: half a day less, so that a run that begins a little earlier still has it.
_WEEK = 6.5 * 86400


@dataclass(frozen=True)
class NightlyRun:
    """What a run came to. ``not_scanned``: stores whose turn did not come before a stop."""

    version: str
    host: str
    started_at: float
    seconds: float
    stores: Sequence[StoreNews]
    not_scanned: Sequence[Path] = ()

    @property
    def exit_code(self) -> ExitCode:
        """The exit code: FINDINGS where something is new, and not for what was found before."""
        stopped = [ExitCode.STOPPED] if self.not_scanned else []
        return worst([*(store.exit_code for store in self.stores), *stopped])

    @property
    def has_news(self) -> bool:
        """Whether anything is to be told."""
        return bool(self.not_scanned) or any(store.has_news for store in self.stores)


def is_deep(known: Known, how: str, now: float | None = None) -> bool:
    """Tell whether all of a store is to be read this time. ``how``: ``never``, ``weekly`` or ``always``."""
    if how == "weekly":
        apart = (time.time() if now is None else now) - known.deep_at
        # A clock that was put back must not put it off for years.
        return apart >= _WEEK or apart < 0
    return how == "always"


class Notices:
    """Who else is told of a run; nobody, unless that was asked for. What went wrong with it is in ``problems``."""

    def __init__(self, url: str | None, command: str | None) -> None:
        self._url = url
        self._command = command
        self.problems: list[str] = []

    def start(self) -> None:
        """Tell that a run begins."""
        if self._url is not None:
            url = self._url
            self._try(lambda: ping(url, "start"))

    def end(self, code: ExitCode, document: str, *, has_news: bool) -> None:
        """Tell how it ended: the URL in any case, the command where there is news."""
        if self._url is not None:
            url = self._url
            self._try(lambda: ping(url, "" if code is ExitCode.CLEAN else "fail", document))
        if self._command is not None and has_news:
            command = self._command
            self._try(lambda: call(command, document))

    def _try(self, tell: Callable[[], None]) -> None:
        try:
            tell()
        except NotSentError as error:
            self.problems.append(str(error))
