"""Every check copes with a store that lacks any one column: an older release's, a later one's, a person's doing."""

from __future__ import annotations

import contextlib
from itertools import zip_longest
from pathlib import Path

import apsw
import pytest

from checks import CHECKS
from hermes_doctor.engine.scan import ScanOptions, StoreScan, scan_store
from hermes_doctor.host.homes import StoreRef
from hermes_doctor.store.resuming import loaded_with, resume_target
from hermes_doctor.store.view import StoreView
from tests.oracle.home import Home
from tests.oracle.steps import call, sql

#: Without these a file is not known for hermes's.
CORE = {"id", "source", "started_at", "session_id", "role"}


@pytest.fixture
def bare(home: Home) -> Path:
    """A store of the newest release with a compression chain and an open row, without indexes that name columns."""
    home.run(
        "0.22.2",
        [
            call("create_session", "first", "cli", cwd="/srv/one"),
            call("append_message", "first", "user", "a word"),
            call("end_session", "first", "compression"),
            call("create_session", "second", "cli", parent_session_id="first"),
            call("append_message", "second", "user", "another"),
            sql("UPDATE sessions SET cwd = NULL WHERE id = 'second'"),
        ],
    )
    with contextlib.closing(apsw.Connection(str(home.store))) as connection:
        named = "SELECT type, name FROM sqlite_schema WHERE type IN ('trigger', 'view', 'index') AND sql IS NOT NULL"
        for kind, name in connection.execute(named).fetchall():
            connection.execute(f'DROP {kind} IF EXISTS "{name}"')
    return home.store


def _columns(store: Path, table: str) -> list[str]:
    with contextlib.closing(apsw.Connection(str(store))) as connection:
        return [name for (name,) in connection.execute("SELECT name FROM pragma_table_info(?)", (table,))]


def _rename(store: Path, table: str, column: str | None, name: str | None) -> None:
    if column is None:
        return
    with contextlib.closing(apsw.Connection(str(store))) as connection:
        connection.execute(f'ALTER TABLE {table} RENAME COLUMN "{column}" TO "{name}"')


def _resume(_scan: StoreScan, view: StoreView) -> None:
    """Where `doctor lineage` and oversize-chats go on from the first session: somewhere, whatever is missing."""
    assert resume_target(view, "first") in ("first", "second")
    assert "second" in loaded_with(view, "second")


def test_no_column_is_taken_for_granted(bare: Path) -> None:
    of_sessions, of_messages = _columns(bare, "sessions"), _columns(bare, "messages")
    assert {"end_reason", "parent_session_id"} <= set(of_sessions)
    assert {"timestamp", "tool_calls"} <= set(of_messages)
    failed: list[tuple[str | None, str | None, str, str | None]] = []
    for ours, theirs in zip_longest(
        (c for c in of_sessions if c not in CORE), (c for c in of_messages if c not in CORE)
    ):
        _rename(bare, "sessions", ours, "elsewhere")
        _rename(bare, "messages", theirs, "elsewhere")
        scan = scan_store(StoreRef(bare, bare.parent, "default"), CHECKS, ScanOptions(), look=_resume)
        with scan.findings:
            assert scan.sessions == 2
            failed += [(ours, theirs, r.check.name, r.reason) for r in scan.checks if r.status == "failed"]
        _rename(bare, "sessions", "elsewhere" if ours else None, ours)
        _rename(bare, "messages", "elsewhere" if theirs else None, theirs)
    assert failed == []
