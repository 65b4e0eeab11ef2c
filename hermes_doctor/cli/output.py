"""Where a result goes: standard output, or a file that is written aside and renamed when it is complete."""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import click

_SIDECARS = ("", "-wal", "-shm", "-journal")
_SQLITE_MAGIC = b"SQLite format 3\x00"


@contextmanager
def destination(file: Path | None, stores: Iterable[Path] = (), *, for_others: bool = False) -> Iterator[TextIO]:
    """Give the stream to write the result to.

    A file appears under its name only when all of it is written, with mode 0600, or 0644 where it is ``for_others``;
    on any error nothing is left of it. What is there and is no ordinary file (a pipe, the null device) is written to
    as it is. Raises click.UsageError for a file that would replace one of ``stores``, their sidecars, or any other
    database.
    """
    if file is None or str(file) == "-":
        yield sys.stdout
        return
    _refuse_databases(file, stores)
    if file.exists() and not stat.S_ISREG(file.stat().st_mode):
        if file.is_dir():
            raise click.UsageError(f"--output: {file} is a folder. Name a file in it.")
        with file.open("w", encoding="utf-8", errors="backslashreplace") as stream:
            yield stream
        return
    if not file.absolute().parent.is_dir():
        raise click.UsageError(f"--output: there is no folder {file.parent}.")
    number, aside = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
    try:
        with os.fdopen(number, "w", encoding="utf-8", errors="backslashreplace") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        if for_others:
            Path(aside).chmod(0o644)
        Path(aside).replace(file)
    except BaseException:
        Path(aside).unlink(missing_ok=True)
        raise


def _refuse_databases(file: Path, stores: Iterable[Path]) -> None:
    target = os.path.realpath(file)
    for store in stores:
        if target in (os.path.realpath(f"{store}{sidecar}") for sidecar in _SIDECARS):
            raise click.UsageError(f"--output: {file} belongs to a store that is to be read. Name another file.")
    if file.is_file():
        with file.open("rb") as existing:
            if existing.read(len(_SQLITE_MAGIC)) == _SQLITE_MAGIC:
                raise click.UsageError(f"--output: {file} is a database, and would be lost. Name another file.")
