"""The doctor's own records of one store: what every run changed, written before the store is.

They live in ``<the store's folder>/doctor/doctor.db`` (folder 0700, file 0600), which only ``--apply`` makes. A
changeset is committed here as ``pending`` before the store's transaction is, and settled afterwards: so whatever
stops the doctor, the journal knows at least as much as the store holds.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import sqlite3
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, cast
from urllib.parse import quote as percent_encoded

from sqlite_utils import Database
from sqlite_utils.db import Table

from hermes_doctor.engine.changes import ColumnOrder
from hermes_doctor.engine.file_changes import FileChange
from hermes_doctor.host.homes import real
from hermes_doctor.host.private_folder import PrivateFolder

FOLDER = "doctor"
FILE = "doctor.db"

#: The states of a changeset. Unknown: a stop left rows that are neither as before nor as after.
PENDING, APPLIED, NOT_APPLIED, UNKNOWN, UNDONE = "pending", "applied", "not-applied", "unknown", "undone"

_LAYOUT = 1

#: A reference from one row to another: table, column, and the value as JSON.
Reference = tuple[str, str, str]


@dataclass(frozen=True)
class Run:
    """One run of a fix over one store. Times are seconds since the epoch."""

    run: str
    at: float
    path: str
    identity: Mapping[str, Any]
    schema_version: int | None
    finished_at: float | None
    outcome: str | None
    backup: str | None
    undone_at: float | None
    forgotten_at: float | None


@dataclass(frozen=True)
class Entry:
    """One transaction's changeset, or None where it has been forgotten; or one change of a file, beside an empty one.

    ``columns``: the tables' columns in the changeset's order. ``dangling``: the references, as (table, column,
    value as JSON), that pointed at no row before the transaction took them away.
    """

    number: int
    run: str
    check: str
    state: str
    changeset: bytes | None
    columns: ColumnOrder
    dangling: frozenset[Reference]
    file: FileChange | None = None


@dataclass(frozen=True)
class Receipt:
    """What a run did with one row, kept when the changesets are forgotten."""

    check: str
    table: str
    key: object
    action: str | None
    state: str
    reason: str | None


def _read_only(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(f"file:{percent_encoded(str(path))}?mode=ro", uri=True, isolation_level=None)
    try:
        connection.execute("SELECT count(*) FROM sqlite_schema")
    except BaseException:
        connection.close()
        raise
    return connection


def folder_of(store: Path) -> Path:
    """Return the doctor's folder for a store: beside the file itself, by whichever link it is named."""
    return real(store).parent / FOLDER


class Journal:
    """An open journal. Every call is a transaction of its own that is on the disk when it returns."""

    def __init__(self, folder: Path, *, read_only: bool = False) -> None:
        """Open or make the journal in that ``doctor`` folder; raises OSError or sqlite3.Error where it cannot."""
        self.path = folder / FILE
        self._copy: PrivateFolder | None = None
        if read_only:
            self._database = Database(self._open_for_reading())
            return
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
        self._database = Database(sqlite3.connect(self.path, isolation_level=None))
        self._database.execute("PRAGMA journal_mode = DELETE")
        # A transaction counts once its rollback journal is removed. FULL leaves it open when the removal itself is on
        # the disk: after a power failure the record of a change could be taken back that is in the store.
        self._database.execute("PRAGMA synchronous = EXTRA")
        self._make_tables()

    @classmethod
    def beside(cls, store: Path, *, read_only: bool = True) -> Self | None:
        """Open the journal of a store, or return None where no run has made one."""
        folder = folder_of(store)
        if not (folder / FILE).exists():
            return None
        journal = cls(folder, read_only=read_only)
        # A doctor that was killed while it made its journal leaves a file with nothing in it.
        if "layout" in journal._database.table_names():
            return journal
        journal.close()
        return None

    def start_run(
        self, path: Path, identity: Mapping[str, Any], schema_version: int | None, backup: Path | None
    ) -> str:
        """Note that a run begins and return its name, which sorts by time."""
        at = time.time()
        with self._transaction():
            run = self._free_name(at)
            self._table("runs").insert(
                {
                    "run": run,
                    "at": at,
                    "path": str(path),
                    "identity": json.dumps(identity),
                    "schema_version": schema_version,
                    "finished_at": None,
                    "outcome": None,
                    "backup": None if backup is None else str(backup),
                    "undone_at": None,
                    "forgotten_at": None,
                }
            )
        return run

    def _free_name(self, at: float) -> str:
        """Return a name that no run has: a clock that goes backwards comes by the same second more than once."""
        while True:
            run = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(at))}-{secrets.token_hex(2)}"
            if not self._database.execute("SELECT 1 FROM runs WHERE run = ?", [run]).fetchone():
                return run

    def finish_run(self, run: str, outcome: str) -> None:
        """Note how a run ended."""
        with self._transaction():
            self._table("runs").update(run, {"finished_at": time.time(), "outcome": outcome})

    def write_pending(
        self,
        run: str,
        check: str,
        changeset: bytes,
        columns: ColumnOrder,
        dangling: Iterable[Reference],
        receipts: Sequence[Receipt],
        file: FileChange | None = None,
        applied: int | None = None,
    ) -> int:
        """Put a changeset (or a change of a file) and its receipts on the disk, before the store's own commit.

        ``applied``: an earlier changeset, of which the store has the commit by now. Returns the number of the new one.
        """
        with self._transaction():
            if applied is not None:
                self._set_state(applied, APPLIED)
            # Not insert(), which asks some twenty questions about the tables before.
            inserted = self._database.execute(
                'INSERT INTO changesets (run, "check", state, changeset, columns, dangling, file)'
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                [
                    run,
                    check,
                    PENDING,
                    changeset,
                    json.dumps(columns),
                    json.dumps(sorted(dangling)),
                    None if file is None else file.to_json(),
                ],
            )
            number = int(inserted.lastrowid or 0)
            # Not insert_all(), which takes longer over a receipt than all else that is done with its row.
            self._database.conn.executemany(
                'INSERT INTO receipts (run, number, "check", "table", key, action, state, reason)'
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    (run, number, each.check, each.table, json.dumps(each.key), each.action, each.state, each.reason)
                    for each in receipts
                ),
            )
        return number

    def settle(self, number: int, state: str) -> None:
        """Say what became of a changeset."""
        with self._transaction():
            self._set_state(number, state)

    def _set_state(self, number: int, state: str) -> None:
        self._database.execute("UPDATE changesets SET state = ? WHERE number = ?", [state, number])

    def runs(self) -> list[Run]:
        """All runs, newest first: in the order in which they began, whatever the clock said."""
        rows = self._database.query("SELECT * FROM runs ORDER BY rowid DESC")
        return [Run(**{**row, "identity": json.loads(row["identity"])}) for row in rows]

    def run(self, name: str) -> Run | None:
        """The run of that name."""
        return next((run for run in self.runs() if run.run == name), None)

    def entries(
        self, run: str | None = None, *, states: Sequence[str] = (), newest_first: bool = True
    ) -> Iterator[Entry]:
        """The changesets of a run (of all runs: None) in one of the states, one at a time."""
        marks = ", ".join("?" for _ in states)
        where = ["1"] + (["run = ?"] if run is not None else []) + ([f"state IN ({marks})"] if states else [])
        values = ([run] if run is not None else []) + list(states)
        beyond, order = ("<", "DESC") if newest_first else (">", "ASC")
        chosen = " AND ".join([*where, f"number {beyond} ?"])
        following = f"SELECT * FROM changesets WHERE {chosen} ORDER BY number {order} LIMIT 1"
        # One statement each: whoever takes the entries may settle them meanwhile.
        last = 1 << 62 if newest_first else -1
        while (row := next(self._database.query(following, [*values, last]), None)) is not None:
            last = row["number"]
            yield Entry(
                row["number"],
                row["run"],
                row["check"],
                row["state"],
                row["changeset"],
                json.loads(row["columns"]),
                frozenset((table, column, value) for table, column, value in json.loads(row["dangling"])),
                # A journal of a doctor that changed no files has no such column.
                None if row.get("file") is None else FileChange.from_json(row["file"]),
            )

    def count(self, run: str, *, states: Sequence[str]) -> int:
        """How many changesets of a run are in one of the states."""
        marks = ", ".join("?" for _ in states)
        sql = f"SELECT count(*) FROM changesets WHERE run = ? AND state IN ({marks})"
        return int(self._database.execute(sql, [run, *states]).fetchone()[0])

    def receipts(self, run: str) -> Iterator[Receipt]:
        """What a run did, row by row, in order; rows of changesets that never came to be are left out."""
        for row in self._database.query(
            "SELECT receipts.* FROM receipts JOIN changesets USING (number)"
            " WHERE receipts.run = ? AND changesets.state <> 'not-applied' ORDER BY receipts.rowid",
            [run],
        ):
            yield Receipt(
                row["check"], row["table"], json.loads(row["key"]), row["action"], row["state"], row["reason"]
            )

    def mark_undone(self, run: str) -> None:
        """Note that a run has been taken back."""
        with self._transaction():
            self._table("runs").update(run, {"undone_at": time.time()})

    def forget(self, *runs: str) -> None:
        """Drop the changesets of runs, bytes and all; receipts stay. They can no longer be undone."""
        self._database.execute("PRAGMA secure_delete = ON")
        with self._transaction():
            for run in runs:
                self._database.execute("UPDATE changesets SET changeset = NULL, file = NULL WHERE run = ?", [run])
                self._table("runs").update(run, {"forgotten_at": time.time()})
        self._database.execute("VACUUM")

    def discard_if_empty(self, run: str) -> bool:
        """Take a run out that came to no changeset, and return whether it was so: nothing could be undone of it."""
        if self._database.execute("SELECT 1 FROM changesets WHERE run = ?", [run]).fetchone():
            return False
        with self._transaction():
            self._table("runs").delete(run)
        return True

    def mended(self, run: str) -> dict[str, int]:
        """How many rows a run mended, by check; they stay counted when the run is undone or forgotten."""
        counted = self._database.execute(
            'SELECT receipts."check", count(*) FROM receipts JOIN changesets USING (number)'
            " WHERE receipts.run = ? AND receipts.state = 'applied' AND changesets.state <> 'not-applied'"
            " GROUP BY 1 ORDER BY 1",
            [run],
        )
        return {str(check): int(count) for check, count in counted.fetchall()}

    def changeset_bytes_by_run(self) -> dict[str, int]:
        """How many bytes of changesets the journal holds, run by run."""
        held: Counter[str] = Counter()
        # Summed up here: to group them SQLite would read and sort the changesets themselves, not just their lengths.
        for run, size in self._database.execute("SELECT run, length(changeset) FROM changesets"):
            held[str(run)] += size or 0
        return held

    def close(self) -> None:
        """Close the journal."""
        self._database.close()
        if self._copy is not None:
            self._copy.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _open_for_reading(self) -> sqlite3.Connection:
        """Open the file read-only; what a doctor that was killed while writing it left is taken back in a copy.

        The copy is private and goes when the journal is closed: whoever only reads changes nothing of the original.
        """
        try:
            return _read_only(self.path)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_READONLY_ROLLBACK:
                raise
        self._copy = PrivateFolder(Path(tempfile.gettempdir()))
        copy = self._copy.path / FILE
        for suffix in ("", "-journal"):
            shutil.copyfile(f"{self.path}{suffix}", f"{copy}{suffix}")
        sqlite3.connect(copy).execute("SELECT count(*) FROM sqlite_schema").connection.close()
        return _read_only(copy)

    def _table(self, name: str) -> Table:
        return cast(Table, self._database[name])

    def _transaction(self) -> Any:
        return self._database.atomic()

    def _make_tables(self) -> None:
        with self._transaction():
            self._table("layout").create({"version": int}, if_not_exists=True)
            if not self._table("layout").count:
                self._table("layout").insert({"version": _LAYOUT})
            self._table("runs").create(
                {
                    "run": str,
                    "at": float,
                    "path": str,
                    "identity": str,
                    "schema_version": int,
                    "finished_at": float,
                    "outcome": str,
                    "backup": str,
                    "undone_at": float,
                    "forgotten_at": float,
                },
                pk="run",
                if_not_exists=True,
            )
            self._table("changesets").create(
                {
                    "number": int,
                    "run": str,
                    "check": str,
                    "state": str,
                    "changeset": bytes,
                    "columns": str,
                    "dangling": str,
                    "file": str,
                },
                pk="number",
                foreign_keys=[("run", "runs")],
                if_not_exists=True,
            )
            if "file" not in self._table("changesets").columns_dict:
                self._table("changesets").add_column("file", str)
            self._table("receipts").create(
                {
                    "run": str,
                    "number": int,
                    "check": str,
                    "table": str,
                    "key": str,
                    "action": str,
                    "state": str,
                    "reason": str,
                },
                if_not_exists=True,
            )
            self._table("receipts").create_index(["run"], if_not_exists=True)
