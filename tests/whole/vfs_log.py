"""A log of what reaches the files of a store, in order, with what the journal held at each moment.

``python -m tests.whole.vfs_log fix|undo HOME LOG [late]`` is a doctor over an APSW VFS that writes the log: one JSON
line for each write, sync, truncation and removal of the store's files. The journal is another library's (Python's
sqlite3), so each line tells what somebody else who opens it just then finds in it. ``late`` is a wrong doctor, whose
journal is written after the store's commit.
"""

from __future__ import annotations

import itertools
import json
import sqlite3
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw

from checks import CHECKS
from fixes import FIXES
from hermes_doctor.engine.apply import apply_store
from hermes_doctor.engine.journal import APPLIED, Journal
from hermes_doctor.engine.plan import Chosen
from hermes_doctor.engine.scan import ScanOptions
from hermes_doctor.engine.stopping import Stop
from hermes_doctor.engine.undo import undo_store
from hermes_doctor.host.homes import StoreRef

#: The system's own VFS. Not by the name "", which becomes that of whatever is the default.
BASE = apsw.vfs_names()[0]


@dataclass(frozen=True)
class Event:
    """Something that was done to a file of the store.

    ``file``: ``db``, ``wal`` or ``journal``. ``act``: ``write``, ``sync``, ``truncate``, ``delete``, or ``forget``, a
    deletion that is not put on the disk. ``states``: how many changesets of each state the journal held, committed;
    ``newest``: the newest one's number. ``writing``: the journal was in the middle of a transaction of its own.
    """

    file: str
    act: str
    states: dict[str, int]
    newest: int
    writing: bool


def events(log: Path) -> list[Event]:
    """Read a log."""
    return [Event(**json.loads(line)) for line in log.read_text().splitlines()]


class _Log:
    def __init__(self, store: Path, path: Path) -> None:
        self._kinds = {str(store): "db", f"{store}-wal": "wal", f"{store}-journal": "journal"}
        self._records = store.parent / "doctor" / "doctor.db"
        self._file = path.open("w", buffering=1)

    def note(self, name: str | None, act: str) -> None:
        """Write a line, if it is about a file of the store."""
        kind = self._kinds.get(name or "")
        if kind is None:
            return
        states: dict[str, int] = {}
        newest = 0
        writing = self._records.with_name("doctor.db-journal").exists()
        if self._records.exists():
            reader = sqlite3.connect(f"file:{self._records}?mode=ro", uri=True)
            try:
                states = dict(reader.execute("SELECT state, count(*) FROM changesets GROUP BY state").fetchall())
                newest = reader.execute("SELECT coalesce(max(number), 0) FROM changesets").fetchone()[0]
            finally:
                reader.close()
        event = {"file": kind, "act": act, "states": states, "newest": newest, "writing": writing}
        self._file.write(json.dumps(event) + "\n")


class _File(apsw.VFSFile):
    def __init__(self, log: _Log, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        self._log = log
        self._name = name.filename() if isinstance(name, apsw.URIFilename) else name
        super().__init__(BASE, name, flags)

    def xWrite(self, data: Any, offset: int) -> None:  # noqa: N802  # APSW's name, as below
        self._log.note(self._name, "write")
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:  # noqa: N802
        super().xSync(flags)
        self._log.note(self._name, "sync")

    def xTruncate(self, size: int) -> None:  # noqa: N802
        self._log.note(self._name, "truncate")
        super().xTruncate(size)


class _VFS(apsw.VFS):
    def __init__(self, log: _Log) -> None:
        self._log = log
        super().__init__("logged", BASE, makedefault=True)

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:  # noqa: N802
        return _File(self._log, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        self._log.note(filename, "delete" if syncdir else "forget")
        super().xDelete(filename, syncdir)


def write_late() -> None:
    """Make the journal one that is written after the store is."""
    waiting: dict[int, tuple[Any, ...]] = {}
    handed_out = itertools.count(1)
    write: Callable[..., int] = Journal.write_pending
    settle = Journal.settle

    def write_pending(self: Journal, *record: Any) -> int:
        *kept, applied = record
        if applied is not None:
            settle_late(self, applied, APPLIED)
        number = next(handed_out)
        waiting[number] = tuple(kept)
        return number

    def settle_late(self: Journal, number: int, state: str) -> None:
        record = waiting.pop(number, None)
        settle(self, number if record is None else write(self, *record), state)

    # setattr, as these are no methods of that type: a wrong doctor.
    for name, method in (("write_pending", write_pending), ("settle", settle_late)):
        setattr(Journal, name, method)


def main(act: str, home: Path, log: Path) -> int:
    """Mend or take back what a home's store has, over the VFS."""
    store = home / "state.db"
    ref = StoreRef(store, home, "default")
    vfs = _VFS(_Log(store, log))
    try:
        if act == "fix":
            chosen = Chosen(CHECKS, {fix.check: fix for fix in FIXES}, True)
            fixed = apply_store(ref, chosen, ScanOptions(), backup="never", stop=Stop())
            sys.stdout.write(f"{fixed.outcome} {fixed.transactions} {fixed.reason}\n")
            return int(fixed.exit_code)
        journal = Journal.beside(store)
        assert journal is not None
        with journal:
            (run,) = journal.runs()
        undone = undo_store(ref, run, ScanOptions(), apply=True, stop=Stop())
        sys.stdout.write(f"{undone.outcome} {undone.transactions} {undone.reason}\n")
        return int(undone.exit_code)
    finally:
        vfs.unregister()


if __name__ == "__main__":
    if "late" in sys.argv[4:]:
        write_late()
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])))
