"""Hermes homes: which stores a target stands for, and which home a store belongs to.

A home is ``$HERMES_HOME``, else the platform's default; each profile is a home of its own below ``profiles/``.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

#: What hermes takes as the name of a profile (0.13 to 0.22).
PROFILE_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
STORE_NAME = "state.db"

#: Files and folders that hermes makes in a home; one of them beside a state.db says that its folder is one.
_SIGNS = (
    "config.yaml",
    ".env",
    "sessions",
    "cron",
    "gateway_state.json",
    "SOUL.md",
    "memories",
    "skills",
    "logs",
    "profiles",
    "auth.json",
    "runtime",
    "gateway.lock",
)


class StoreRef(NamedTuple):
    """A store to look at. ``home`` None: it stands without its home, so nothing around it can be seen."""

    path: Path
    home: Path | None
    profile: str


def default_home() -> Path:
    """Return this host's Hermes home: ``$HERMES_HOME``, else the platform's default; it need not exist."""
    named = os.environ.get("HERMES_HOME", "").strip()
    if named:
        return Path(os.path.expandvars(named)).expanduser()
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA", "").strip()
        return (Path(local) if local else Path.home() / "AppData" / "Local") / "hermes"
    return Path.home() / ".hermes"


def resolve_targets(targets: Sequence[Path]) -> list[StoreRef]:
    """Return the stores that the targets stand for, each once however often and by whichever link it is named.

    A folder stands for its own store and each profile's. Without targets: this host. What does not exist still
    gives a StoreRef, so that somebody says so.
    """
    found: dict[Path, StoreRef] = {}
    for target in targets or [default_home()]:
        refs = _of_home(target) if _is_folder(target) or not targets else [_of_file(target)]
        for ref in refs:
            found.setdefault(real(ref.path), ref)
    return list(found.values())


def home_of(path: Path) -> Path | None:
    """Return the Hermes home that a store file belongs to, None for one without its home, such as a backup."""
    folder = path.absolute().parent
    if path.name != STORE_NAME:
        return None
    known = real(folder) == real(default_home())
    return path.parent if known or _is_profile(folder) or _shows_signs(folder) else None


def profile_of(home: Path) -> str:
    """Return the name of the profile whose home a folder is."""
    absolute = home.absolute()
    return absolute.name if _is_profile(absolute) else "default"


def root_of(home: Path) -> Path:
    """Return the root that a home is of: itself, or where the profile's folder lies."""
    absolute = home.absolute()
    return absolute.parent.parent if _is_profile(absolute) else absolute


def _of_home(home: Path) -> list[StoreRef]:
    own = StoreRef(home / STORE_NAME, home, profile_of(home))
    refs = [own] if _has_store(home) else []
    profiles = home / "profiles"
    try:
        refs += [
            StoreRef(folder / STORE_NAME, folder, folder.name)
            for folder in sorted(profiles.iterdir())
            if PROFILE_NAME.fullmatch(folder.name) and _has_store(folder)
        ]
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError:
        # The stores in there cannot be counted: the folder itself is reported as unreadable, never as clean.
        refs.append(StoreRef(profiles, home, "?"))
    return refs or [own]


def _of_file(path: Path) -> StoreRef:
    home = home_of(path)
    return StoreRef(path, home, profile_of(home) if home is not None else "default")


def _has_store(home: Path) -> bool:
    """Tell whether there is a store, or what is left of one: a lost main file must not go unsaid."""
    return any(_there(home / (STORE_NAME + suffix)) for suffix in ("", "-wal", "-journal"))


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:
        # Not permitted to see: it is reported as it was named.
        return False


def _there(path: Path) -> bool:
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    except OSError:
        # Not permitted to see: inspecting it will say so.
        return True
    return True


def _is_profile(folder: Path) -> bool:
    return folder.parent.name == "profiles" and PROFILE_NAME.fullmatch(folder.name) is not None


def _shows_signs(folder: Path) -> bool:
    return any(_there(folder / name) for name in _SIGNS)


def real(path: Path) -> Path:
    """Return a path with symbolic links followed as far as that works; never raises."""
    try:
        return path.resolve()
    except (OSError, RuntimeError, ValueError):
        return path.absolute()
