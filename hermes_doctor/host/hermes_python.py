"""Which Python hermes runs in, and which SQLite that Python links: asked of the Python itself, never guessed.

Found through a process that has the store open, or the way hermes is installed: the launcher on the PATH (of pip, pipx,
uv, or hermes's own, a shell script that says ``exec``), or the venv in ``<home>/hermes-agent``.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

from hermes_doctor.host.homes import default_home, real, root_of
from hermes_doctor.host.openers import PYTHON_NAME

Version = tuple[int, ...]

_SHELL = re.compile(r"(?:ba|da|z|k)?sh")
#: In a launcher; pip and uv write the first form where a path is too long for a ``#!`` line, or has spaces.
_EXEC = re.compile(r"^\s*(?:'''exec'|exec)\s+(.+)$", re.MULTILINE)
_LAUNCHER_BYTES = 64 * 1024
_LAUNCHERS_FOLLOWED = 4

_TIMEOUT = 10.0
#: What a Python is asked: its SQLite's version, then each part of it that it has mapped.
_QUESTION = (
    "import sqlite3; print(sqlite3.sqlite_version)\ntry: print(open('/proc/self/maps').read())\nexcept OSError: pass"
)
_MAPPED = re.compile(r"^\S+ \S+ \S+ (\S+ \d+) +(/.*)$", re.MULTILINE)
_SQLITE = re.compile(r"(?:_sqlite3\.|libsqlite3\.).*")


class Linked(NamedTuple):
    """What a Python answered: its SQLite's version, and the files that it is in; none where it is built in."""

    version: Version
    files: frozenset[tuple[str, str]]

    @property
    def library(self) -> str | None:
        """The path of the shared library that it is in, None where there is none apart."""
        return next((path for _, path in sorted(self.files) if "/libsqlite3." in path), None)

    @property
    def text(self) -> str:
        """The version as SQLite writes it."""
        return ".".join(map(str, self.version))


def has_wal_reset_bug(version: Version) -> bool:
    """Tell whether a SQLite of that version can damage a store in WAL mode as it begins its log anew.

    3.7.0 to 3.51.2 can, but for 3.50.7 and 3.44.6 and what followed them in their lines (hermes 0.20.0 on judges so). A
    distribution may have mended an older one without changing its number.
    """
    mended = (3, 44, 6) <= version < (3, 45) or (3, 50, 7) <= version < (3, 51)
    return (3, 7) <= version < (3, 51, 3) and not mended


def python_of_process(pid: int) -> Path | None:
    """Return the Python that a process runs in; None where it runs in none, or in one that is not at its path here.

    The latter is one in a container, or one that was replaced since. Linux only.
    """
    program = Path(f"/proc/{pid}/exe")
    try:
        path, running = program.readlink(), program.stat()
        there = path.stat()
    except OSError:
        return None
    same = (running.st_dev, running.st_ino) == (there.st_dev, there.st_ino)
    return path if same and PYTHON_NAME.fullmatch(path.name) else None


def linked_by_process(pid: int) -> tuple[Path, Linked] | None:
    """Return a process's Python and the SQLite that the process itself has mapped; None where that is not certain."""
    python = python_of_process(pid)
    linked = linked_by(python) if python is not None else None
    if python is None or linked is None:
        return None
    try:
        mapped = Path(f"/proc/{pid}/maps").read_text(errors="replace")
    except OSError:
        return None
    # Its own SQLite is another one where it came by another way: an environment variable, an upgrade since, or apsw.
    if _sqlite_files(mapped) != linked.files or (not linked.files and "/apsw/" in mapped):
        return None
    return python, linked


def installed_python(home: Path) -> Path | None:
    """Return the Python that the hermes of a home is installed in; None where that cannot be told."""
    root = root_of(home)
    if real(root) == real(default_home()):
        launcher = shutil.which("hermes")
        found = _behind(Path(launcher)) if launcher is not None else None
        if found is not None:
            return found
    for name in ("venv", ".venv"):
        python = root / "hermes-agent" / name / "bin" / "python"
        if python.is_file():
            return python
    return None


def linked_by(python: Path) -> Linked | None:
    """Ask a Python which SQLite it links; None where it may not be run here, or does not answer.

    It runs without its site packages. It must be this user's own or root's, and nobody else may be able to change it.
    """
    if sys.platform == "win32":
        return None
    try:
        program = python.resolve(strict=True)
        status = program.stat()
    except (OSError, RuntimeError):
        return None
    return _ask(program, status.st_ino, status.st_mtime_ns)


@cache
def _ask(program: Path, _inode: int, _changed: int) -> Linked | None:
    if not is_trusted(program) or _head(program, 2) == b"#!":
        return None
    try:
        done = subprocess.run(
            [program, "-I", "-S", "-B", "-c", _QUESTION],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TIMEOUT,
            cwd="/",
            env={},
            start_new_session=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    version, _, mapped = done.stdout.decode(errors="replace").partition("\n")
    if done.returncode != 0 or not re.fullmatch(r"\d+(\.\d+){1,3}", version):
        return None
    return Linked(tuple(map(int, version.split("."))), _sqlite_files(mapped))


def is_trusted(program: Path) -> bool:
    """Whether only this user and root can change a program, given without links, or put another in its place."""
    return all(_is_ours(each) for each in (program, *program.parents))


def _is_ours(path: Path) -> bool:
    try:
        status = path.lstat()
    except OSError:
        return False
    if status.st_uid not in (0, os.geteuid()):
        return False
    # In a folder such as /tmp nobody can replace what is somebody else's.
    if stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX:
        return True
    others = stat.S_IWOTH if status.st_gid in (0, os.getegid()) else stat.S_IWOTH | stat.S_IWGRP
    return not status.st_mode & others


def _behind(launcher: Path, followed: int = 0) -> Path | None:
    """Return the Python that a launcher starts, through launchers that it starts in turn."""
    text = _head(launcher, _LAUNCHER_BYTES).decode(errors="replace")
    if not text.startswith("#!") or followed == _LAUNCHERS_FOLLOWED:
        return None
    first = text[2:].partition("\n")[0].split()
    if first and Path(first[0]).is_absolute() and PYTHON_NAME.fullmatch(Path(first[0]).name):
        return Path(first[0])
    if not first or not _SHELL.fullmatch(Path(first[-1]).name):
        return None
    for line in _EXEC.findall(text):
        try:
            started = Path(next(iter(shlex.split(line)), ""))
        except ValueError:
            continue
        if started.is_absolute():
            return started if PYTHON_NAME.fullmatch(started.name) else _behind(started, followed + 1)
    return None


def _head(file: Path, count: int) -> bytes:
    try:
        if not file.is_file():
            return b""
        with file.open("rb") as opened:
            return opened.read(count)
    except OSError:
        return b""


def _sqlite_files(mapped: str) -> frozenset[tuple[str, str]]:
    """Return the files that a process has SQLite from, of the lines of its ``maps``: device with inode, and path."""
    found = _MAPPED.findall(mapped)
    return frozenset((inode, path) for inode, path in found if _SQLITE.match(path.rpartition("/")[2]))
