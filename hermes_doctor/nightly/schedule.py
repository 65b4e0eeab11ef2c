"""What is to run every night, and what all schedulers share: how what we wrote is known again, and when we refuse.

What was installed carries a seal: a line that says who wrote it, with a digest of all the rest. What has no seal is
somebody else's and is never touched; where the digest is off, somebody has changed it by hand, and it takes
``--force`` to write over it or to remove it.
"""

from __future__ import annotations

import contextlib
import enum
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from hermes_doctor.host.upstream import printable

NAME = "hermes-state-doctor"

#: What changes where hermes and the doctor look for their files; a scheduler starts programs without it.
_ENVIRONMENT = ("HERMES_HOME", "HERMES_MANAGED_DIR", "XDG_STATE_HOME", "XDG_CONFIG_HOME")

_SEAL = re.compile(rf"^.*{NAME} wrote this [a-z]+ \(seal ([0-9a-f]{{16}})\).*\n", re.MULTILINE)

#: Longest wait for a scheduler's own command, in seconds.
_PATIENCE = 30.0


class ScheduleError(Exception):
    """The machine did not do it; the text is one line for a person: what happened, and what to type next."""


class RefusedError(ScheduleError):
    """Nothing was done, because it would touch what is somebody else's, or could not work."""


class Owner(enum.Enum):
    """Whose a file or a block is, by its seal."""

    NOBODY = "nobody"
    US = "us"
    US_CHANGED = "us, changed by hand"
    ANOTHER = "another"


@dataclass(frozen=True)
class Job:
    """What is to run each night at ``hour``:``minute``, in the time of the host.

    ``words``: the command, its program named by its whole path. ``confined``: it may be kept from all that the doctor
    itself has no use for; not where it calls a command of the user's.
    """

    words: tuple[str, ...]
    hour: int
    minute: int
    environment: Mapping[str, str] = field(default_factory=dict)
    confined: bool = True

    @property
    def at(self) -> str:
        """The time of day: ``03:10``."""
        return f"{self.hour:02}:{self.minute:02}"


@dataclass(frozen=True)
class Piece:
    """Something that is written: where (a path, or what a person calls it), and the text."""

    place: str
    text: str


@dataclass(frozen=True)
class Installed:
    """What lies where we would write. ``at``: the time of day that it says, None where that cannot be told."""

    place: str
    owner: Owner
    at: str | None = None


class Scheduler(Protocol):
    """One way in which a host runs programs at night."""

    name: str

    def usable(self) -> str | None:
        """Return why it cannot be used on this host by this user, None where it can."""

    def pieces(self, job: Job) -> list[Piece]:
        """Return what installing would write. Raises RefusedError where the job cannot be written down."""

    def commands(self) -> list[str]:
        """Return the commands that installing runs, as they are typed."""

    def installed(self) -> list[Installed]:
        """Return what is there, ours or somebody else's; empty where nothing is. Raises ScheduleError."""

    def install(self, job: Job, *, force: bool) -> bool:
        """Install the job; return whether anything was changed. Raises ScheduleError."""

    def remove(self, *, force: bool) -> list[str]:
        """Remove what was installed, and return where it lay. Raises ScheduleError."""

    def hindrances(self) -> list[str]:
        """Return what keeps an installed job from running, each as a sentence with what to type."""

    def remarks(self) -> list[str]:
        """Return what else is good to know of an installed job, each as a sentence."""


def sealed(text: str, before: str, after: str = "", kind: str = "file", line: int = 0) -> str:
    """Return a text with the seal put in as its line of that number. ``before``, ``after``: what makes it a comment."""
    lines = text.splitlines(keepends=True)
    seal = f"{NAME} wrote this {kind} (seal {_digest(text)}); doctor schedule remove takes it away"
    return "".join([*lines[:line], f"{before}{seal}{after}\n", *lines[line:]])


def owner_of(text: str | None) -> Owner:
    """Tell whose a text is."""
    if text is None:
        return Owner.NOBODY
    seals = list(_SEAL.finditer(text))
    if not seals:
        return Owner.ANOTHER
    rest = text[: seals[0].start()] + text[seals[0].end() :]
    return Owner.US if len(seals) == 1 and _digest(rest) == seals[0][1] else Owner.US_CHANGED


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]


@dataclass(frozen=True)
class OwnFile:
    """A file that is all ours, or not ours at all."""

    path: Path

    def read(self) -> str | None:
        """Return what is in it, None where there is no such file. Raises ScheduleError."""
        try:
            return self.path.read_bytes().decode("utf-8", "surrogateescape")
        except FileNotFoundError:
            return "" if self.path.is_symlink() else None
        except OSError as error:
            raise ScheduleError(f"{printable(self.path)} cannot be read ({error.strerror})") from error

    def owner(self) -> Owner:
        """Tell whose it is. A link is never ours: where it leads, we wrote nothing."""
        return Owner.ANOTHER if self.path.is_symlink() else owner_of(self.read())

    def write(self, text: str) -> None:
        """Write it aside and rename it. Raises ScheduleError."""
        aside: str | None = None
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # A name that no scheduler takes for one of its files: it begins with a dot.
            number, aside = tempfile.mkstemp(prefix=f".{self.path.name}.", dir=self.path.parent)
            with os.fdopen(number, "wb") as stream:
                stream.write(text.encode("utf-8", "surrogateescape"))
                stream.flush()
                os.fsync(stream.fileno())
            Path(aside).chmod(0o644)
            Path(aside).replace(self.path)
        except OSError as error:
            if aside is not None:
                with contextlib.suppress(OSError):
                    Path(aside).unlink()
            raise ScheduleError(f"{printable(self.path)} cannot be written ({error.strerror})") from error

    def put_back(self, text: str | None) -> None:
        """Make it what it was before."""
        if text is None:
            self.remove()
        else:
            self.write(text)

    def remove(self) -> None:
        """Remove it. Raises ScheduleError."""
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:
            raise ScheduleError(f"{printable(self.path)} cannot be removed ({error.strerror})") from error


def require(doubt: str | None) -> None:
    """Raise RefusedError where there is a reason why a scheduler cannot be used."""
    if doubt is not None:
        raise RefusedError(f"{doubt}. Nothing was changed. Next: doctor schedule install --help, under --with")


def refuse_others(places: Sequence[tuple[str, Owner]], *, force: bool, verb: str) -> None:
    """Raise RefusedError where a place is somebody else's, or changed by hand and not ``force``."""
    for place, owner in places:
        if owner is Owner.ANOTHER:
            raise RefusedError(
                f"{place} is there, and the doctor did not write it. Nothing was changed."
                " Next: look what it is, and move it away"
            )
        if owner is Owner.US_CHANGED and not force:
            raise RefusedError(
                f"{place} was changed by hand since the doctor wrote it. Nothing was changed."
                f" Next: the same with --force, to {verb} it all the same"
            )


def program() -> tuple[str, ...]:
    """Return the words that call the doctor that runs now, from anywhere and with any PATH."""
    called = Path(sys.argv[0])
    scripts = [called] if called.name in ("doctor", NAME) else []
    scripts += [Path(sys.executable).with_name(name) for name in (NAME, "doctor")]
    for script in scripts:
        if script.is_file() and os.access(script, os.X_OK):
            # As it was called, links and all: what pipx and uv link to may be another folder after an upgrade.
            return (str(script.absolute()),)
    return (sys.executable, "-m", "hermes_doctor")


def environment() -> dict[str, str]:
    """Return what has to be handed over to a program that a scheduler starts, so that it finds what we find."""
    handed = {name: os.environ[name] for name in _ENVIRONMENT if os.environ.get(name, "").strip()}
    home = os.environ.get("HOME", "")
    if sys.platform != "win32" and home and home != _home_by_the_book():
        handed["HOME"] = home
    return handed


def _home_by_the_book() -> str | None:
    import pwd

    try:
        return pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:
        return None


def ask(
    command: Sequence[str], stdin: bytes = b"", more: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run a scheduler's own command and wait for it. Raises ScheduleError where it cannot be run, or does not end.

    ``more``: what its environment has beside ours.
    """
    try:
        return subprocess.run(
            command,
            input=stdin,
            capture_output=True,
            timeout=_PATIENCE,
            check=False,
            env={**os.environ, "LC_ALL": "C", **(more or {})},
        )
    except OSError as error:
        raise ScheduleError(f"{command[0]} cannot be run ({error.strerror})") from error
    except subprocess.TimeoutExpired as error:
        raise ScheduleError(f"{' '.join(command)} does not come to an end") from error


def last_line(done: subprocess.CompletedProcess[bytes]) -> str:
    """Return the last line that a command said, for a person."""
    lines = (done.stderr or done.stdout).decode(errors="replace").strip().splitlines()
    return printable(lines[-1]) if lines else f"exit code {done.returncode}"


def is_there(command: str) -> bool:
    """Whether a command is on the path."""
    return shutil.which(command) is not None
