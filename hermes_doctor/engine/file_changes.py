"""Changes to files beside a store: a file's mode, or the removal of one that has an equal twin.

They go through the journal as rows do: noted before they are carried out, settled afterwards, taken back by an undo. A
path is followed through no link, and none is opened that SQLite may have open: closing it would drop SQLite's locks.
"""

from __future__ import annotations

import enum
import errno
import hashlib
import json
import os
import shutil
import stat
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from hermes_doctor.engine.steps import Step, reach

_CHUNK = 1 << 20


class Kind(enum.StrEnum):
    """What is done to a file."""

    MODE = "mode"
    REMOVE = "remove"


class FileMovedError(Exception):
    """A file is not what it is expected to be: it is left as it is."""


@dataclass(frozen=True)
class FileChange:
    """One file's change, with what it takes to undo it.

    ``mode``: the permission bits before. ``to``: the bits that it gets (`Kind.MODE`). ``twin``: the equal file that
    stays (`Kind.REMOVE`), ``digest``: SHA-256 of both, ``mtime_ns``: of the one that goes.
    """

    kind: Kind
    path: str
    mode: int
    to: int = 0
    twin: str = ""
    digest: str = ""
    mtime_ns: int = 0

    @classmethod
    def of_mode(cls, path: Path, to: int) -> Self:
        """Return the change of a file's permission bits; raises FileMovedError where it is no file or folder."""
        return cls(Kind.MODE, str(path), stat.S_IMODE(_status(path).st_mode), to=to)

    @classmethod
    def of_removal(cls, path: Path, twin: Path) -> Self:
        """Return the removal of a file that has an equal twin, which stays; both are read.

        Raises FileMovedError where the two are not equal, or are one.
        """
        status, other = _status(path), _status(twin)
        if (status.st_dev, status.st_ino) == (other.st_dev, other.st_ino):
            raise FileMovedError(f"{path.name} and {twin.name} are one file")
        digest = _digest(path)
        if _digest(twin) != digest:
            raise FileMovedError(f"{path.name} and {twin.name} are no longer equal")
        mode = stat.S_IMODE(status.st_mode)
        return cls(Kind.REMOVE, str(path), mode, twin=str(twin), digest=digest, mtime_ns=status.st_mtime_ns)

    def to_json(self) -> str:
        """Return the change as the journal keeps it."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the change that the journal keeps."""
        fields = json.loads(text)
        return cls(**{**fields, "kind": Kind(fields["kind"])})

    @property
    def name(self) -> str:
        """The file's name, for a report."""
        return Path(self.path).name

    def is_done(self) -> bool | None:
        """Whether the file is as after the change; None where it is neither as after nor as before."""
        try:
            mode = stat.S_IMODE(_status(Path(self.path)).st_mode)
        except FileMovedError:
            gone = self.kind is Kind.REMOVE and not os.path.lexists(self.path)
            return True if gone else None
        if self.kind is Kind.REMOVE:
            return False if _digest(Path(self.path)) == self.digest else None
        return True if mode == self.to else False if mode == self.mode else None

    def carry_out(self) -> None:
        """Change the file. Raises FileMovedError where it is not as expected, OSError where it cannot be changed."""
        if self.is_done() is not False:
            raise FileMovedError(f"{self.name} is not what it was")
        if self.kind is Kind.MODE:
            Path(self.path).chmod(self.to)
            return
        # Once more, and last: only a file that lies there twice may go.
        if _digest(Path(self.twin)) != self.digest:
            raise FileMovedError(f"{Path(self.twin).name} is not what it was")
        Path(self.path).unlink()

    def take_back(self) -> None:
        """Put the file back. Raises FileMovedError where it is not as the change left it, or its twin is gone."""
        if self.is_done() is not True:
            raise FileMovedError(f"{self.name} changed since the run")
        if self.kind is Kind.MODE:
            Path(self.path).chmod(self.mode)
            return
        twin = Path(self.twin)
        _status(twin)
        aside = Path(f"{self.path}.doctor-undo")
        # What a doctor that was killed here has left: only one at a time is at work beside a store.
        aside.unlink(missing_ok=True)
        try:
            descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as copy, twin.open("rb") as source:
                shutil.copyfileobj(source, copy, _CHUNK)
                copy.flush()
                os.fsync(copy.fileno())
            if _digest(aside) != self.digest:
                raise FileMovedError(f"{twin.name}, of which {self.name} was a copy, changed since")
            aside.chmod(self.mode)
            os.utime(aside, ns=(self.mtime_ns, self.mtime_ns))
            reach(Step.UNDO_COPIED)
            # Not replace(): what lies there by now is somebody's.
            os.link(aside, self.path)
        except FileExistsError as error:
            raise FileMovedError(f"{Path(error.filename2 or error.filename).name} exists again") from error
        finally:
            aside.unlink(missing_ok=True)


def _status(path: Path) -> os.stat_result:
    try:
        status = path.lstat()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FileMovedError(f"{path.name} is gone") from error
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        raise FileMovedError(f"{path.name} is neither a file nor a folder")
    return status


def _digest(path: Path) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP):
            raise FileMovedError(f"{path.name} is gone") from error
        raise
    with os.fdopen(descriptor, "rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()
