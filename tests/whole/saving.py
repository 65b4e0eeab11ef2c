"""What was saved of a damaged store, counted against what it held before: row by row, every column.

It knows nothing of the doctor's own code, so that the two cannot be wrong together. A row is *intact* where its key and
all its columns are as they were; every other row that is handed out is *wrong*, and counts as lost.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import apsw

from tests.oracle.home import environment
from tests.oracle.releases import NEWEST

#: A cell, comparable: None, a number (5 is 5.0, as SQLite keeps whole numbers of a REAL column), or text or blob as
#: its kind and bytes.
Cell = None | int | float | tuple[str, bytes]

#: What a message's role may be, in any release.
_ROLES = {("text", role.encode()) for role in ("user", "assistant", "tool", "system", "session_meta")}

#: What newer releases make up, when they open a store, for messages that have none; it was in no file.
_MADE_UP = ("display_identity", "display_order", "message_uid")

_SUFFIXES = ("", "-wal", "-journal")


@dataclass(frozen=True)
class Rows:
    """The rows of one table. ``key``: the place of the key among the columns; ``keyed_by_rowid``: SQLite's own number.

    ``defaults``: what a column holds in rows that were written before it was added. ``rows``: by key.
    """

    name: str
    columns: tuple[str, ...]
    defaults: tuple[Cell, ...]
    keyed_by_rowid: bool
    rows: Mapping[Cell, tuple[Cell, ...]]

    @property
    def key(self) -> int:
        """The place of the key among the columns."""
        return self.columns.index("id")

    @property
    def keys(self) -> set[Cell]:
        """The keys of all rows."""
        return set(self.rows)


@dataclass(frozen=True)
class Counted:
    """How many rows there were, how many of them are intact, and the keys of those that are wrong."""

    rows: int
    intact: frozenset[Cell] = field(repr=False)
    wrong: frozenset[Cell] = frozenset()

    def risen(self, deleted: Collection[Cell]) -> frozenset[Cell]:
        """Of the wrong rows those that had been deleted."""
        return self.wrong & frozenset(deleted)


def copy_bundle(store: Path, folder: Path) -> Path:
    """Copy a store with its log and its journal into a folder of its own."""
    folder.mkdir(parents=True)
    for suffix in _SUFFIXES:
        source = store.with_name(store.name + suffix)
        if source.exists():
            shutil.copyfile(source, folder / source.name)
    return folder / store.name


def bundle_hash(store: Path) -> dict[str, str]:
    """The content of a store, and of whatever lies beside it under its name."""
    beside = sorted(store.parent.glob(store.name + "*"))
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in beside if file.is_file()}


def rows_of(store: Path, table: str) -> Rows | None:
    """Read a table of a store that may be written to (a copy, an output); None where there is none to be read."""
    with closing(apsw.Connection(str(store))) as connection:
        try:
            described = connection.execute(
                "SELECT name, type, pk, dflt_value FROM pragma_table_xinfo(?) WHERE hidden = 0", (table,)
            ).fetchall()
            if "id" not in (row[0] for row in described):
                return None
            columns = tuple(str(row[0]) for row in described)
            defaults = tuple(_default(connection, row[3]) for row in described)
            by_rowid = any(name == "id" and kind == "INTEGER" and pk for name, kind, pk, _default in described)
            found: dict[Cell, tuple[Cell, ...]] = {}
            for row in _cells(connection, table, columns):
                found[row[columns.index("id")]] = row
        except apsw.Error:
            return None
    return Rows(table, columns, defaults, by_rowid, found)


def candidates(before: Rows, output: Path | None) -> Iterator[tuple[Cell, tuple[Cell, ...]]]:
    """Every row of an output that can be taken for one of a table, with its key, in the order of the table's columns.

    Columns that the output does not have are NULL; more columns do not count, nor does what hermes made up. Rows that
    the shell's ``.recover`` could not place, in its tables ``lost_and_found``, are taken for a row of the table where
    they are one, or look like one.
    """
    if output is None or not output.exists():
        return
    found = rows_of(output, before.name)
    if found is not None:
        places = [found.columns.index(name) if name in found.columns else None for name in before.columns]
        for key, row in found.rows.items():
            ordered = tuple(None if place is None else row[place] for place in places)
            yield key, _without_what_was_made_up(before, key, ordered)
    for key, row in _unplaced(output, before):
        if before.rows.get(key) == row or _looks_like_one(before, row):
            yield key, row


def count(before: Rows, found: Iterable[tuple[Cell, tuple[Cell, ...]]]) -> Counted:
    """Count what was saved of a table. Where a key comes twice, it is intact if one of both is."""
    intact, seen = set(), set()
    for key, row in found:
        seen.add(key)
        if before.rows.get(key) == row:
            intact.add(key)
    return Counted(len(before.rows), frozenset(intact), frozenset(seen - intact))


def recovered_by_shell(shell: Path, store: Path, folder: Path) -> Path | None:
    """Save a store by ``sqlite3 STORE .recover | sqlite3 NEW``, from a copy; None where nothing came of it.

    Of a file that the shell does not take for a database, the header is filled with zeros first, as hermes does.
    """
    copy, output = copy_bundle(store, folder), folder / "recovered.db"
    _pipe(shell, copy, output)
    if not _holds_something(output):
        output.unlink(missing_ok=True)
        with copy.open("r+b") as file:
            file.write(bytes(100))
        _pipe(shell, copy, output)
    return output if _holds_something(output) else None


def shell_that_recovers() -> Path | None:
    """The newest ``sqlite3`` on the path whose ``.recover`` works, None where there is none.

    Debian lists the command, but has its library without ``sqlite_dbpage``, which it needs.
    """
    shells = [Path(folder, "sqlite3") for folder in os.environ.get("PATH", "").split(os.pathsep)]
    return max((shell for shell in dict.fromkeys(shells) if recovers(shell)), key=version_of, default=None)


def recovers(shell: Path) -> bool:
    """Whether the ``.recover`` of a shell works."""
    if not os.access(shell, os.X_OK):
        return False
    with tempfile.TemporaryDirectory() as folder:
        tiny = Path(folder, "tiny.db")
        with closing(apsw.Connection(str(tiny))) as connection:
            connection.execute("CREATE TABLE tiny(text); INSERT INTO tiny VALUES ('there')")
        return b"'there'" in subprocess.run([shell, tiny, ".recover"], capture_output=True, check=False).stdout


def version_of(shell: Path) -> tuple[int, ...]:
    """The version of a shell."""
    said = subprocess.run([shell, "--version"], capture_output=True, text=True, check=True).stdout
    return tuple(int(part) for part in said.split()[0].split("."))


def recovered_by_hermes(store: Path, folder: Path, shell: Path | None) -> Path | None:
    """Save a store by ``hermes sessions recover --allow-partial`` of the newest release; None where it made nothing.

    Where it cannot read the schema it asks the ``sqlite3`` on its path for ``.recover``: that is ``shell``.
    """
    copy, output = copy_bundle(store, folder), folder / "recovered.db"
    given = environment(folder, NEWEST)
    if shell is not None:
        given["PATH"] = f"{shell.parent}{os.pathsep}{given['PATH']}"
    subprocess.run(
        [sys.executable, "-P", "-c", _RECOVER, copy, output],
        env=given,
        cwd=folder,
        capture_output=True,
        check=False,
        timeout=600,
    )
    return output if _holds_something(output) else None


#: The command's own function, with what is typed behind ``hermes sessions recover``.
_RECOVER = """
import argparse, sys
from hermes_cli.sessions_cmd import _cmd_recover
from pathlib import Path
sys.exit(_cmd_recover(argparse.Namespace(
    source=Path(sys.argv[1]), output=Path(sys.argv[2]), allow_partial=True, inspect_only=False, chunk_size=1000,
    work_dir=None, report=None,
)))
"""


def _pipe(shell: Path, store: Path, output: Path) -> None:
    with subprocess.Popen([shell, store, ".recover"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as dump:
        subprocess.run([shell, output], stdin=dump.stdout, capture_output=True, check=False, timeout=600)
        if dump.stdout is not None:
            dump.stdout.close()


def _holds_something(output: Path) -> bool:
    return output.exists() and output.stat().st_size > 0


def _default(connection: apsw.Connection, text: object) -> Cell:
    value = None if text is None else connection.execute(f"SELECT {text}").get
    return ("text", value.encode()) if isinstance(value, str) else value


def _cells(connection: apsw.Connection, table: str, columns: Sequence[str]) -> Iterator[tuple[Cell, ...]]:
    """The rows of a table. What is text may be none: so it is read as bytes."""
    asked = ", ".join(
        f"""CASE WHEN typeof("{c}") IN ('text', 'blob') THEN typeof("{c}") END,"""
        f""" CASE WHEN typeof("{c}") IN ('text', 'blob') THEN CAST("{c}" AS BLOB) ELSE "{c}" END"""
        for c in columns
    )
    for row in connection.execute(f'SELECT {asked} FROM "{table}"'):
        yield tuple(row[n + 1] if row[n] is None else (row[n], row[n + 1]) for n in range(0, len(row), 2))


def _without_what_was_made_up(before: Rows, key: Cell, row: tuple[Cell, ...]) -> tuple[Cell, ...]:
    was = before.rows.get(key)
    if was is None:
        return row
    told = zip(before.columns, was, row, strict=True)
    return tuple(None if old is None and name in _MADE_UP else new for name, old, new in told)


def _unplaced(output: Path, before: Rows) -> Iterator[tuple[Cell, tuple[Cell, ...]]]:
    with closing(apsw.Connection(str(output))) as connection:
        try:
            tables = connection.execute(
                "SELECT name FROM sqlite_schema WHERE type = 'table' AND name GLOB 'lost_and_found*'"
            ).fetchall()
        except apsw.NotADBError:
            return
        for (table,) in tables:
            names = tuple(str(row[1]) for row in connection.execute(f'PRAGMA table_info("{table}")'))
            # Behind the numbers of its pages: how many cells, the rowid, and these.
            for count_, rowid, *cells in _cells(connection, str(table), names[2:]):
                # What the record holds; columns that were added after it was written have their defaults.
                own = cells[: int(count_)] if isinstance(count_, int) else cells
                row = [*own[: len(before.columns)], *before.defaults[len(own) :]]
                if before.keyed_by_rowid and len(row) > before.key:
                    # SQLite keeps such a key as the row's number only.
                    row[before.key] = rowid if row[before.key] is None else row[before.key]
                yield row[before.key], tuple(row)


def _looks_like_one(before: Rows, row: Sequence[Cell]) -> bool:
    """Whether a row that is none of those before would be taken for one by whoever puts lost rows back."""
    if before.name != "messages" or len(row) != len(before.columns):
        return False
    named = dict(zip(before.columns, row, strict=True))
    return named["role"] in _ROLES and isinstance(named["session_id"], tuple) and isinstance(named["id"], int)
