"""Nightly checks through cron: a marked block in the user's crontab, or a file in /etc/cron.d for root."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from pathlib import Path

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
    owner_of,
    refuse_others,
    require,
    sealed,
)

SYSTEM_FOLDER = Path("/etc/cron.d")
CRONTAB = "your crontab"

#: Debian's cron takes no command of more bytes than this, less what it needs itself.
_LONGEST = 990

_AT = re.compile(r"^([0-9]{1,2}) ([0-9]{1,2}) \* \* \* ", re.MULTILINE)
_END = f"# end of what {NAME} wrote\n"
_BEGINS = rf"# {NAME} wrote this block \(seal [0-9a-f]{{16}}\)[^\n]*\n"
#: A block of ours, from its seal to its end; it reaches over no other block's seal.
_BLOCK = re.compile(rf"^{_BEGINS}(?:(?!{_BEGINS})[^\n]*\n)*?{re.escape(_END)}", re.MULTILINE)
#: Stands in a seal where the crontab did not end with a line's end, so that one of ours had to go before the block.
_ADDED = "(the line's end before this is ours too)"


class CronFile:
    """A file of its own in the folder that cron reads for the system; the command runs as root."""

    name = "cron"

    def __init__(self, folder: Path = SYSTEM_FOLDER) -> None:
        self._file = OwnFile(folder / NAME)

    def usable(self) -> str | None:
        """Return why it cannot be used, None where it can."""
        folder = self._file.path.parent
        return None if folder.is_dir() else f"there is no folder {printable(folder)}, so no cron that reads it"

    def pieces(self, job: Job) -> list[Piece]:
        """Return the file. Raises RefusedError for a command that cron cannot hold."""
        return [Piece(str(self._file.path), sealed(_line(job, "root "), "# "))]

    def commands(self) -> list[str]:
        """Return nothing: cron sees the file by itself."""
        return []

    def installed(self) -> list[Installed]:
        """Return the file if it is there."""
        owner = self._file.owner()
        return [] if owner is Owner.NOBODY else [Installed(str(self._file.path), owner, _at(self._file.read() or ""))]

    def install(self, job: Job, *, force: bool) -> bool:
        """Write the file."""
        require(self.usable())
        (piece,) = self.pieces(job)
        refuse_others([(piece.place, self._file.owner())], force=force, verb="write over")
        changed = self._file.read() != piece.text
        if changed:
            self._file.write(piece.text)
        return changed

    def remove(self, *, force: bool) -> list[str]:
        """Remove the file."""
        owner, place = self._file.owner(), str(self._file.path)
        refuse_others([(place, owner)], force=force, verb="remove")
        if owner is Owner.NOBODY:
            return []
        self._file.remove()
        return [place]

    def hindrances(self) -> list[str]:
        """Return what keeps the job from running."""
        return _no_daemon()

    def remarks(self) -> list[str]:
        """Return nothing."""
        return []


class UserCrontab:
    """A block in the crontab of whoever runs the doctor, read and written by ``crontab``; all else stays as it is."""

    name = "cron"

    def usable(self) -> str | None:
        """Return why it cannot be used, None where it can."""
        if not is_there("crontab"):
            return "there is no command crontab"
        # By cron.allow, cron.deny or PAM: nothing can be read, put there or taken away then.
        return "you are not allowed to use crontab" if b"not allowed" in ask(["crontab", "-l"]).stderr.lower() else None

    def pieces(self, job: Job) -> list[Piece]:
        """Return the block. Raises RefusedError for a command that cron cannot hold."""
        return [Piece(CRONTAB, sealed(_line(job) + _END, "# ", kind="block"))]

    def commands(self) -> list[str]:
        """Return how it is put in."""
        return ["crontab -  (your crontab as it is, with this block behind it)"]

    def installed(self) -> list[Installed]:
        """Return the block if it is there."""
        if self.usable() is not None:
            return []
        block = _Crontab.read()
        return [] if block.owner is Owner.NOBODY else [Installed(CRONTAB, block.owner, _at(block.ours))]

    def install(self, job: Job, *, force: bool) -> bool:
        """Put the block in, behind what is there, or where it stood."""
        require(self.usable())
        (piece,) = self.pieces(job)
        crontab = _Crontab.read()
        refuse_others([(CRONTAB, crontab.owner)], force=force, verb="write over")
        if crontab.ours.replace(f" {_ADDED}", "") == piece.text:
            return False
        crontab.write(piece.text)
        return True

    def remove(self, *, force: bool) -> list[str]:
        """Take the block out."""
        if self.usable() is not None:
            return []
        crontab = _Crontab.read()
        refuse_others([(CRONTAB, crontab.owner)], force=force, verb="remove")
        if crontab.owner is Owner.NOBODY:
            return []
        crontab.write("")
        return [CRONTAB]

    def hindrances(self) -> list[str]:
        """Return what keeps the job from running."""
        return _no_daemon()

    def remarks(self) -> list[str]:
        """Return nothing."""
        return []


class _Crontab:
    """A crontab: what stands before our block, the block (empty where there is none), and what stands behind it."""

    def __init__(self, text: str) -> None:
        self.text = text
        blocks = list(_BLOCK.finditer(text))
        self.ours = "".join(block[0] for block in blocks)
        start, end = (blocks[0].start(), blocks[0].end()) if blocks else (len(text), len(text))
        self.before = text[:start]
        # Of several (somebody copied it) all but the first go with whatever is done to that.
        self.behind = _BLOCK.sub("", text[end:])
        self._added = bool(blocks) and _ADDED in blocks[0][0].split("\n", 1)[0]
        if self._added and self.before.endswith("\n"):
            self.before = self.before[:-1]
        left = re.search(rf"^{_BEGINS}", self.before + self.behind, re.MULTILINE)
        self._torn = left is not None

    @property
    def owner(self) -> Owner:
        """Whose the block is."""
        if self._torn:
            return Owner.US_CHANGED
        return owner_of(self.ours.replace(f" {_ADDED}", "")) if self.ours else Owner.NOBODY

    @classmethod
    def read(cls) -> _Crontab:
        """Return the crontab that there is. Raises ScheduleError."""
        done = ask(["crontab", "-l"])
        if done.returncode == 0:
            return cls(done.stdout.decode("utf-8", "surrogateescape"))
        if b"no crontab for" in done.stderr.lower() or b"can't open" in done.stderr.lower():
            return cls("")
        raise ScheduleError(f"crontab -l failed: {last_line(done)}")

    def write(self, block: str) -> None:
        """Put a block in the place of ours, or take ours out where it is empty. Raises ScheduleError."""
        if self._torn:
            raise RefusedError(
                f"the end of the doctor's block is gone from {CRONTAB}. Nothing was changed."
                " Next: crontab -e, and take the block out"
            )
        before = self.before
        if block and before and not before.endswith("\n"):
            first, rest = block.split("\n", 1)
            before, block = f"{before}\n", f"{first} {_ADDED}\n{rest}"
        text = before + block + self.behind
        if _Crontab.read().text != self.text:
            raise ScheduleError(f"{CRONTAB} was changed meanwhile. Nothing was changed by the doctor. Next: the same")
        done = ask(["crontab", "-"], text.encode("utf-8", "surrogateescape")) if text else ask(["crontab", "-r"])
        if done.returncode != 0:
            raise ScheduleError(f"crontab failed: {last_line(done)}")


def of_user() -> CronFile | UserCrontab:
    """Return the cron of whoever runs the doctor: the system's for root."""
    return CronFile() if os.geteuid() == 0 else UserCrontab()


def _line(job: Job, user: str = "") -> str:
    """Return the line of a crontab. ``user``: whom it names, with a blank behind it. Raises RefusedError."""
    words = [*_quiet(), *job.words]
    if job.environment:
        # Not as lines of their own: they would hold for all that stands behind them too.
        words = ["env", *(f"{name}={value}" for name, value in job.environment.items()), *words]
    command = " ".join(shlex.quote(word) for word in words)
    if any(sign in command for sign in "\n\r\0"):
        raise RefusedError(
            "a name with a line's end in it cannot be written for cron. Nothing was changed."
            " Next: name a folder above it, or a link to it"
        )
    # Cron takes a bare % for the end of the command.
    command = command.replace("%", "\\%")
    if len(command.encode("utf-8", "surrogateescape")) > _LONGEST:
        raise RefusedError(
            f"the command would be longer than the {_LONGEST} bytes that cron takes. Nothing was changed."
            " Next: name fewer targets, such as the home above them"
        )
    return f"{job.minute} {job.hour} * * * {user}{command}\n"


def _quiet() -> list[str]:
    """Return the words that have a command give way to all others, as far as this host has them."""
    return [
        *(["nice", "-n", "19"] if shutil.which("nice") else []),
        *(["ionice", "-c", "3"] if sys.platform == "linux" and shutil.which("ionice") else []),
    ]


def _at(text: str) -> str | None:
    found = _AT.search(text)
    return f"{int(found[2]):02}:{int(found[1]):02}" if found else None


def _no_daemon() -> list[str]:
    import psutil

    names = {process.info["name"] for process in psutil.process_iter(["name"])}
    if names & {"cron", "crond", "fcron", "busybox", "anacron", "cronie", "dcron"}:
        return []
    return ["No cron is running that would start it. Next: start it, as in: service cron start"]


__all__ = ["CRONTAB", "SYSTEM_FOLDER", "CronFile", "UserCrontab", "of_user"]
