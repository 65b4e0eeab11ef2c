"""The small JSON files and other databases of a home that name sessions: read robustly, never followed blindly.

What names a session there spares it. So a file that cannot be read is told apart from one that names nobody, and a
session id, which may have come from a stranger, is never made into a path.
"""

from __future__ import annotations

import json
import os
import re
import stat
import time
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

#: Larger than any such file of a working host; beyond it the file counts as unreadable.
_LARGEST = 64 * 1024 * 1024
_LONGEST_ID = 255
_DUMP = "request_dump_"
#: No clock of a file system is coarser (that of FAT goes by two seconds).
_TICK_NS = 2_500_000_000
#: Databases of a home besides its store: what is found by looking, and what is known by name where a folder may be
#: entered but not listed.
_DATABASES = ("*.db", "cron/*.db", "kanban/boards/*/kanban.db")


@dataclass(frozen=True)
class Mentions:
    """Which session ids something names. ``readable`` False: it is there, but what it names cannot be told."""

    ids: frozenset[str] = field(default_factory=frozenset)
    readable: bool = True


def routed_session_ids(home: Path) -> Mentions:
    """Return the sessions that ``sessions.json`` routes chats to (0.13 to 0.18.0 have no other index; later a mirror).

    Every ``session_id`` at any depth, whether the file is an object by session key or a list.
    """
    folders, all_known = _session_folders(home)
    read = [_mentions(folder / "sessions.json") for folder in folders]
    ids = frozenset(session for one in read for session in one.ids)
    return Mentions(ids, all_known and all(one.readable for one in read))


def active_sessions_ids(home: Path) -> Mentions:
    """Return the sessions that a process has registered as its own in ``runtime/active_sessions.json``."""
    return _mentions(home / "runtime" / "active_sessions.json")


def cron_job_ids(home: Path) -> Mentions:
    """Return the sessions that ``cron/jobs.json`` names under any key that ends in ``session_id``."""
    return _mentions(home / "cron" / "jobs.json")


def transcript_exists(home: Path, session_id: str) -> bool:
    """Tell whether a session has a transcript or a request dump among the home's session files.

    The names are those of all releases: ``<id>.json``, ``<id>.jsonl``, ``session_<id>.json``,
    ``request_dump_<id>*``. True also where it cannot be told: a folder that cannot be listed, an id with a path
    separator, a NUL, ``..``, or of absurd length. Ids are compared with names and never reach the file system.
    """
    if not session_id or len(session_id) > _LONGEST_ID or ".." in session_id:
        return True
    if any(c in "/\\\x00" for c in session_id):
        return True
    # 0.19 and newer replace what is no word character in a dump's name, and add a hash.
    spellings = {session_id, re.sub(r"[^\w-]", "_", session_id).strip("._")[:96] or "session"}
    folders, all_known = _session_folders(home)
    if not all_known:
        return True
    for folder in folders:
        try:
            names, dumps = _names(folder)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:
            return True
        for spelling in spellings:
            if not names.isdisjoint(
                (f"{spelling}.json", f"{spelling}.jsonl", f"session_{spelling}.json", f"session_{spelling}.jsonl")
            ):
                return True
            at = bisect_left(dumps, _DUMP + spelling)
            if at < len(dumps) and dumps[at].startswith(_DUMP + spelling):
                return True
    return False


def other_databases(home: Path) -> list[Path]:
    """Return hermes's other databases of a home, those that exist: its root's ``*.db`` but the store, and known places.

    Copies of the store (``state.db`` and whatever begins like it) are not among them, nor is the store by another name.
    """
    found = {path for pattern in _DATABASES for path in home.glob(pattern) if not path.name.startswith("state.db")}
    pinned = os.environ.get("HERMES_KANBAN_DB", "").strip()
    if pinned and "\x00" not in pinned:
        found |= {path for path in [Path(pinned).expanduser()] if path.exists()}
    return sorted(path for path in found if not path.is_dir() and not _is_same(path, home / "state.db"))


def _is_same(path: Path, other: Path) -> bool:
    try:
        return path.samefile(other)
    except OSError:
        return False


def _session_folders(home: Path) -> tuple[list[Path], bool]:
    """Return the folders that session files may be in, and whether these are all of them.

    The home's own, and where ``gateway.json`` moved them to (``sessions_dir``, all releases).
    """
    own = home / "sessions"
    try:
        configured = _load(home / "gateway.json")
    except (FileNotFoundError, NotADirectoryError):
        return [own], True
    except (OSError, ValueError, RecursionError):
        return [own], False
    moved = configured.get("sessions_dir") if isinstance(configured, dict) else None
    if moved is None:
        return [own], True
    if not isinstance(moved, str) or "\x00" in moved or not Path(moved).is_absolute():
        # Hermes would take it as relative to wherever it was started.
        return [own], False
    return [own, Path(moved)], True


def _names(folder: Path) -> tuple[frozenset[str], tuple[str, ...]]:
    changed = folder.stat().st_mtime_ns
    # Of two changes within one tick of the file system's clock, the second shows no new time.
    settled = abs(time.time_ns() - changed) > _TICK_NS
    return _listed(folder, changed) if settled else _listed.__wrapped__(folder, changed)


@lru_cache(maxsize=16)
def _listed(folder: Path, mtime_ns: int) -> tuple[frozenset[str], tuple[str, ...]]:
    """Return the names in a folder, and its request dumps in order. ``mtime_ns`` changes when names do."""
    names = frozenset(path.name for path in folder.iterdir())
    return names, tuple(sorted(name for name in names if name.startswith(_DUMP)))


def _mentions(path: Path) -> Mentions:
    try:
        return Mentions(frozenset(_session_ids(_load(path))))
    except (FileNotFoundError, NotADirectoryError):
        return Mentions()
    except (OSError, ValueError, RecursionError):
        return Mentions(readable=False)


def _load(path: Path) -> object:
    """Parse a JSON file. Raises OSError, ValueError (what is no JSON, no file, or too large), RecursionError."""
    # Non-blocking: a pipe of that name must not hang the scan.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST:
            raise ValueError("not a file of plausible size")
        loaded: object = json.loads(file.read(_LARGEST + 1).decode("utf-8-sig"))
    if not isinstance(loaded, dict | list):
        raise ValueError("neither an object nor a list")
    return loaded


def _session_ids(loaded: object) -> Iterator[str]:
    """Give the text under every key that is, or ends in, ``session_id``, at any depth."""
    waiting = [loaded]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            for key, value in each.items():
                if isinstance(value, str) and str(key).endswith("session_id"):
                    yield value
                elif isinstance(value, dict | list):
                    waiting.append(value)
        elif isinstance(each, list):
            waiting.extend(each)
