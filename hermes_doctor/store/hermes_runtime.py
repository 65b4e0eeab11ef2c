"""Which SQLite the hermes of a store writes with, as far as it is certain."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from hermes_doctor.host.hermes_python import Linked, has_wal_reset_bug, installed_python, linked_by, linked_by_process
from hermes_doctor.host.upstream import quoted
from hermes_doctor.store.view import StoreView
from hermes_doctor.store.wal_state import openers_of


class Runtime(NamedTuple):
    """A Python that hermes runs in, and the SQLite that it links.

    ``pid`` and ``name``: of a process that has the store open, None for a hermes that is only installed.
    """

    python: Path
    linked: Linked
    pid: int | None = None
    name: str | None = None

    @property
    def faulty(self) -> bool:
        """Whether its SQLite has the WAL-reset bug."""
        return has_wal_reset_bug(self.linked.version)

    @property
    def question(self) -> str:
        """What to type to see the version."""
        return f"{quoted(self.python)} -c 'import sqlite3; print(sqlite3.sqlite_version)'"


def runtimes(view: StoreView) -> list[Runtime]:
    """Return what the processes that write to a WAL store run in, else what hermes is installed in.

    None for a store in another mode: the bug is one of the write-ahead log.
    """
    if not _is_in_wal_mode(view):
        return []
    found = []
    for opener in openers_of(view):
        answer = linked_by_process(opener.pid) if opener.store.writes else None
        if answer is not None:
            found.append(Runtime(*answer, opener.pid, opener.name))
    if found or view.home is None:
        return found
    installed = installed_python(view.home)
    linked = linked_by(installed) if installed is not None else None
    return [] if installed is None or linked is None else [Runtime(installed, linked)]


def _is_in_wal_mode(view: StoreView) -> bool:
    return view.bundle is not None and view.bundle.journal_mode == "wal"
