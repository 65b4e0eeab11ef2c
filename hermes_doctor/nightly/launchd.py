"""Nightly checks through macOS's launchd: an agent of the user, or a daemon for root."""

from __future__ import annotations

import os
import plistlib
from pathlib import Path
from typing import Any
from xml.parsers.expat import ExpatError

from hermes_doctor.host.upstream import printable
from hermes_doctor.nightly.schedule import (
    NAME,
    Installed,
    Job,
    Owner,
    OwnFile,
    Piece,
    RefusedError,
    ScheduleError,
    ask,
    is_there,
    last_line,
    refuse_others,
    require,
    sealed,
)

LABEL = f"{NAME}.nightly"


class LaunchdJob:
    """A job of launchd in one folder. ``system``: the machine's own, not the user's."""

    name = "launchd"

    def __init__(self, folder: Path, log: Path, *, system: bool) -> None:
        self._file = OwnFile(folder / f"{LABEL}.plist")
        self._log = log
        self._domain = "system" if system else f"gui/{os.geteuid()}"

    @classmethod
    def of_user(cls) -> LaunchdJob:
        """Return that of whoever runs the doctor: the system's for root."""
        if os.geteuid() == 0:
            return cls(Path("/Library/LaunchDaemons"), Path(f"/var/log/{NAME}.log"), system=True)
        library = Path.home() / "Library"
        return cls(library / "LaunchAgents", library / "Logs" / f"{NAME}.log", system=False)

    def usable(self) -> str | None:
        """Return why it cannot be used, None where it can."""
        return None if is_there("launchctl") else "launchd does not run this machine"

    def pieces(self, job: Job) -> list[Piece]:
        """Return the property list. Raises RefusedError for what it cannot hold."""
        keys: dict[str, Any] = {
            "Label": LABEL,
            "ProgramArguments": list(job.words),
            "EnvironmentVariables": dict(job.environment),
            # What was missed while the machine slept is made up for when it wakes.
            "StartCalendarInterval": {"Hour": job.hour, "Minute": job.minute},
            "RunAtLoad": False,
            "ProcessType": "Background",
            "LowPriorityIO": True,
            "Nice": 19,
            "Umask": 0o077,
            "StandardOutPath": str(self._log),
            "StandardErrorPath": str(self._log),
        }
        try:
            text = plistlib.dumps(keys, sort_keys=False).decode()
        except (ValueError, UnicodeEncodeError):
            raise RefusedError(
                "a name with control characters in it, or one that is no text, cannot be written for launchd."
                " Nothing was changed. Next: name a folder above it, or a link to it"
            ) from None
        # Behind the two lines that say what kind of file it is.
        return [Piece(str(self._file.path), sealed(text, "<!-- ", " -->", line=2))]

    def commands(self) -> list[str]:
        """Return what is run once the file is written."""
        return [f"launchctl bootstrap {self._domain} {printable(self._file.path)}"]

    def installed(self) -> list[Installed]:
        """Return the file if it is there."""
        owner = self._file.owner()
        return [] if owner is Owner.NOBODY else [Installed(str(self._file.path), owner, _at(self._file.read() or ""))]

    def install(self, job: Job, *, force: bool) -> bool:
        """Write the file and hand it to launchd; what was there before is put back where that fails."""
        (piece,) = self.pieces(job)
        require(self.usable())
        refuse_others([(piece.place, self._file.owner())], force=force, verb="write over")
        before = self._file.read()
        if before == piece.text and self._is_loaded():
            return False
        self._file.write(piece.text)
        if self._is_loaded():
            ask(["launchctl", "bootout", f"{self._domain}/{LABEL}"])
        done = ask(["launchctl", "bootstrap", self._domain, piece.place])
        if done.returncode != 0:
            self._file.put_back(before)
            raise ScheduleError(f"launchctl bootstrap failed: {last_line(done)}")
        return True

    def remove(self, *, force: bool) -> list[str]:
        """Take the job from launchd and remove its file."""
        owner, place = self._file.owner(), str(self._file.path)
        refuse_others([(place, owner)], force=force, verb="remove")
        if owner is Owner.NOBODY:
            return []
        if self.usable() is None and self._is_loaded():
            ask(["launchctl", "bootout", f"{self._domain}/{LABEL}"])
        self._file.remove()
        return [place]

    def hindrances(self) -> list[str]:
        """Return what keeps the job from running."""
        if self.usable() is None and self._is_loaded():
            return []
        return [f"launchd does not know of it. Next: {self.commands()[0]}"]

    def remarks(self) -> list[str]:
        """Return nothing."""
        return []

    def _is_loaded(self) -> bool:
        return ask(["launchctl", "print", f"{self._domain}/{LABEL}"]).returncode == 0


def _at(text: str) -> str | None:
    try:
        keys = plistlib.loads(text.encode("utf-8", "surrogateescape"))
        when = keys["StartCalendarInterval"]
        return f"{when['Hour']:02}:{when['Minute']:02}"
    except (ValueError, KeyError, TypeError, ExpatError, plistlib.InvalidFileException):
        return None
