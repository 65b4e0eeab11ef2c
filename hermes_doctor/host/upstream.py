"""What to type for a damaged store: the doctor's own rescue, or which of hermes's own commands."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from hermes_doctor.host.homes import default_home, home_of, profile_of, real

#: Releases below this lack the command (facts of the released wheels).
RECOVER_SINCE = "0.20"
#: Schema version of the first release with each command; a store below it was last written by an older one.
REPAIR_SCHEMA = 16
RECOVER_SCHEMA = 25
_OPTIMIZE_SCHEMA = 14
_OPTIMIZE_STORAGE_SCHEMA = 25


def printable(path: Path | str) -> str:
    """Return a path as one line that a terminal shows harmlessly: control and undecodable characters escaped."""
    text = os.fspath(path)
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def quoted(path: Path | str) -> str:
    """Return a path as a shell takes it, on one line."""
    text = os.fspath(path)
    if text.isprintable():
        return shlex.quote(text)
    escaped = "".join(
        c if c.isprintable() and c not in "'\\" else "".join(f"\\x{byte:02x}" for byte in os.fsencode(c)) for c in text
    )
    return f"$'{escaped}'"


def hermes_command(path: Path, profile: str | None = None) -> str | None:
    """Return how to call hermes so that a store file is its own store; None where no home has it as its own.

    ``profile``: what the caller calls it, where that is not to be taken from its place.
    """
    home = home_of(path)
    if home is None:
        return None
    home, here = home.absolute(), default_home().absolute()
    if real(home) == real(here):
        return "hermes"
    name = profile or profile_of(home)
    if name != "default" and real(home.parent.parent) == real(here):
        return f"hermes -p {shlex.quote(name)}"
    return f"HERMES_HOME={quoted(home)} hermes"


def inspection(hermes: str, store: Path) -> str:
    """Return the command that looks what can be salvaged of any store file, changing nothing (0.20 on).

    ``hermes``: how to call it.
    """
    return f"{hermes} sessions recover --source {quoted(store)} --inspect-only"


def new_name(store: Path) -> Path:
    """Return what to call the file that a damaged store is rescued into, beside it."""
    return store.with_name(f"{store.name}.rescued")


def rescue_inspection(store: Path) -> str:
    """Return the doctor's command that says what can be saved of any store file, changing nothing.

    Without its last word it writes what can be saved into a new file.
    """
    return f"doctor rescue {quoted(store)} {quoted(new_name(store))} --inspect-only"


def salvage(path: Path, schema_version: int | None = None, profile: str | None = None) -> str:
    """Return what to type for a store of which rows are lost, where there is no copy of it, as one line.

    Hermes's own command is named beside the doctor's, unless the store was written by a release that lacks it.
    """
    if schema_version is not None and schema_version < RECOVER_SCHEMA:
        return rescue_inspection(path)
    hermes = inspection(hermes_command(path, profile) or "hermes", path)
    return f"{rescue_inspection(path)}, or {hermes} (hermes {RECOVER_SINCE} or newer)"


def for_damage(path: Path, schema_version: int | None = None, profile: str | None = None) -> str:
    """Return what to do about a damaged store, as one line: a sound copy loses least, else rows are saved."""
    return f"look for a sound backup first (doctor scan BACKUP); else: {salvage(path, schema_version, profile)}"


def for_heavy_index(hermes: str, schema_version: int | None, *, inline: bool) -> str:
    """Return what to type for a search index that is heavier than it need be, with the release that it takes.

    ``hermes``: how to call it for the store. ``inline``: the index holds copies of the texts; ``optimize-storage``
    (0.20 on) makes one without, what ``optimize`` (0.16 on) merges has them still. Both end with a VACUUM.
    """
    command, schema, since = ("optimize", _OPTIMIZE_SCHEMA, "0.16")
    if inline:
        command, schema, since = ("optimize-storage", _OPTIMIZE_STORAGE_SCHEMA, "0.20")
    there = schema_version is not None and schema_version >= schema
    return f"{hermes} sessions {command}" + ("" if there else f" (hermes {since} or newer)")
