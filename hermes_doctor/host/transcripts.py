"""Transcripts in a home's ``sessions`` folder: which there are, and what they hold, read in bounded memory.

Nothing outside that folder is read, and no link is followed. A session's id is compared with names, and never made
into a path. A line or file that is no JSON costs itself only.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

FOLDER = "sessions"

#: A document is read whole, so up to this size only, in bytes; a line of lines likewise.
LARGEST_DOCUMENT = 64 * 1024 * 1024
_LONGEST_LINE = 16 * 1024 * 1024
_AT_ONCE = 1024 * 1024
_HEAD = 4096

#: The gateway's index of sessions, and dumps of single requests: no transcripts.
_OTHERS = ("sessions.json", "request_dump_")
_SNAPSHOT = "session_"
#: How a snapshot of any release tells its messages: at its top level, where a line begins (0.13.0 to 0.20.6).
_COUNT = b'\n  "message_count": '

#: What a record is that cannot be read.
BROKEN = None


@dataclass(frozen=True)
class Transcript:
    """A file that holds messages. ``session``: as its name tells it. ``lines``: a record a line, else one document.

    ``size`` in bytes, ``changed`` in seconds since the epoch.
    """

    path: Path
    session: str
    lines: bool
    size: int
    changed: float

    @property
    def name(self) -> str:
        """Its path, relative to the home."""
        return f"{FOLDER}/{self.path.name}"


def transcripts_of(home: Path) -> list[Transcript]:
    """Return the transcripts of a home, in the order of their names; none where the folder cannot be listed."""
    folder = home / FOLDER
    found = []
    try:
        if not stat.S_ISDIR(folder.lstat().st_mode):
            return []
        with os.scandir(folder) as entries:
            for entry in entries:
                session = _session_named(entry.name)
                if session is None or not entry.is_file(follow_symlinks=False):
                    continue
                status = entry.stat(follow_symlinks=False)
                lines = entry.name.endswith(".jsonl")
                found.append(Transcript(folder / entry.name, session, lines, status.st_size, status.st_mtime))
    except OSError:
        return []
    return sorted(found, key=lambda file: file.path.name)


def _session_named(name: str) -> str | None:
    """Return the session that a file's name tells (``<id>.jsonl``, ``session_<id>.json``, ``<id>.json``), if any."""
    stem, suffix = Path(name).stem, Path(name).suffix
    if name.startswith(_OTHERS) or name.startswith(".") or suffix not in (".json", ".jsonl"):
        return None
    if suffix == ".json" and stem.startswith(_SNAPSHOT):
        stem = stem[len(_SNAPSHOT) :]
    return stem or None


def told_count(file: Transcript) -> int | None:
    """Return how many messages a snapshot says that it holds, without parsing it; None where that is not found."""
    held = b""
    with _opened(file) as stream:
        while block := stream.read(_AT_ONCE):
            held += block
            at = held.find(_COUNT)
            # The digits have to be whole.
            if at >= 0 and (end := held.find(b",", at)) >= 0:
                digits = held[at + len(_COUNT) : end]
                return int(digits) if digits.isdigit() else None
            held = held[at:] if at >= 0 else held[-len(_COUNT) :]
            if at >= 0 and len(held) > _HEAD:
                return None
    return None


def told_session(file: Transcript) -> str | None:
    """Return the session that a snapshot's own text names: its name may be a spelling of it that fits a path."""
    with _opened(file) as stream:
        head = stream.read(_HEAD).decode("utf-8", "replace")
    _before, found, text = head.partition('"session_id": ')
    if not found:
        return None
    try:
        session, _end = json.JSONDecoder().raw_decode(text)
    except ValueError:
        return None
    return session if isinstance(session, str) else None


def line_count(file: Transcript) -> int:
    """Return how many lines a file of lines has."""
    with _opened(file) as stream:
        return sum(block.count(b"\n") for block in iter(lambda: stream.read(_AT_ONCE), b""))


def ends_of(file: Transcript) -> list[object]:
    """Return the first and the last record of a file of lines, as far as they can be read."""
    with _opened(file) as stream:
        first = stream.readline(_LONGEST_LINE)
        stream.seek(max(0, file.size - _AT_ONCE))
        last = stream.read(_AT_ONCE).rstrip(b"\n").rpartition(b"\n")[2]
    return [_parsed(first), _parsed(last)]


def records(file: Transcript) -> Iterator[object]:
    """Give the messages of a transcript as they are recorded there, `BROKEN` for each that cannot be read.

    Raises OSError, and ValueError for a document that is none, or holds no messages, or is too large.
    """
    if not file.lines:
        yield from _document(file)
        return
    with _opened(file) as stream:
        while line := stream.readline(_LONGEST_LINE):
            if not line.endswith(b"\n") and len(line) == _LONGEST_LINE:
                # The rest of it is no record of its own.
                while line and not line.endswith(b"\n"):
                    line = stream.readline(_LONGEST_LINE)
                yield BROKEN
            elif line.strip():
                yield _parsed(line)


def _document(file: Transcript) -> list[object]:
    if file.size > LARGEST_DOCUMENT:
        raise ValueError("too large")
    with _opened(file) as stream:
        text = stream.read(LARGEST_DOCUMENT + 1)
    try:
        loaded = json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    messages = loaded.get("messages") if isinstance(loaded, dict) else loaded
    if not isinstance(messages, list):
        raise ValueError("holds no messages")
    return [message if isinstance(message, dict) else BROKEN for message in messages]


def _parsed(line: bytes) -> object:
    try:
        loaded: object = json.loads(line)
    except (ValueError, RecursionError):
        return BROKEN
    return loaded if isinstance(loaded, dict) else BROKEN


@contextmanager
def _opened(file: Transcript) -> Iterator[BinaryIO]:
    """Open a plain file that is no link. Raises OSError for anything else."""
    flags = os.O_RDONLY
    for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY", "O_CLOEXEC"):
        flags |= getattr(os, name, 0)
    descriptor = os.open(file.path, flags)
    with os.fdopen(descriptor, "rb") as stream:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError("not a plain file")
        yield stream


def is_spooled(home: Path) -> bool:
    """Whether a gateway has left messages that its next start will write itself (``pending_messages``, 0.21.5 on)."""
    try:
        with os.scandir(home / "pending_messages") as entries:
            return any(not entry.name.startswith(".") for entry in entries)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
