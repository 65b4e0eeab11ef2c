"""What a fix would change, tried on a private copy: true to what it then does, and silent about what anybody said."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import apsw
import pytest

from checks import CHECKS
from fixes import FIXES
from hermes_doctor.engine import rehearsal
from hermes_doctor.engine.changes import Op
from hermes_doctor.engine.cure import Mending
from hermes_doctor.engine.model import Finding, Safety
from hermes_doctor.engine.rehearsal import Effect, Held, Rehearsal
from hermes_doctor.engine.scan import ScanOptions, StoreScan, scan_store
from hermes_doctor.host.homes import StoreRef
from hermes_doctor.store.reader import Pace
from hermes_doctor.store.view import StoreView
from tests.cli.reviewing import PRIVATE, doubtful
from tests.cli.support import listing

BY_NAME = {check.name: check for check in CHECKS}
FIX_OF = {fix.check: fix for fix in FIXES}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return doubtful(tmp_path / "home")


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where private copies lie."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@contextmanager
def rehearsing(store: Path) -> Iterator[tuple[Rehearsal, dict[object, Finding]]]:
    """A rehearsal of a store as a scan sees it, and what that finds which is not safe, by key."""
    made: list[Rehearsal] = []

    def look(_scan: StoreScan, view: StoreView) -> None:
        made.append(Rehearsal(view))

    scan = scan_store(StoreRef(store, store.parent, "default"), CHECKS, ScanOptions(), None, look)
    with scan.findings as findings, closing(made[-1]):
        yield made[-1], {finding.key: finding for finding in findings if finding.fix is Safety.UNSAFE}


def effect(tried: Rehearsal, finding: Finding) -> Effect:
    return tried.of(BY_NAME[finding.check], FIX_OF[finding.check], finding)


def test_it_tells_what_would_become_of_which_columns(tmp_path: Path, store: Path, temporary: Path) -> None:
    files = listing(store.parent)
    with rehearsing(store) as (tried, found):
        assert len(list(temporary.iterdir())) == 1
        for _ in range(2):  # what was tried is taken back
            [table] = effect(tried, found["old-1"]).tables
            assert (table.table, table.op, table.rows) == ("sessions", Op.UPDATE, 1)
            assert table.columns.keys() == {"ended_at", "end_reason"}
            [(before, after)] = table.columns["ended_at"].became
            assert (before, after.kind) == (Held("nothing"), "number")
            assert isinstance(after.told, float)
            assert table.columns["end_reason"].became == [
                (Held("nothing"), Held("text", "startup_orphan_reap", len("startup_orphan_reap")))
            ]
        [table] = effect(tried, found["long-gone", "m-1", ""]).tables
        assert (table.table, table.op, table.rows, table.columns) == ("session_model_usage", Op.DELETE, 1, {})
    assert listing(store.parent) == files
    assert list(temporary.iterdir()) == []


def test_it_never_tells_what_anybody_said(store: Path) -> None:
    with rehearsing(store) as (tried, found):
        told = effect(tried, found["namesake"])
    [table] = told.tables
    length = len(f"{PRIVATE} title")
    assert table.columns["title"].became == [(Held("text", None, length), Held("text", None, length + 3))]
    assert PRIVATE not in repr(told)


def test_a_new_row_tells_which_columns_hold_something(store: Path) -> None:
    with closing(apsw.Connection(str(store))) as connection:
        connection.execute(
            "INSERT INTO messages(session_id, role, content, timestamp)"
            " SELECT 'nowhere', 'user', ?, started_at FROM sessions WHERE id = 'old-1'",
            (PRIVATE,),
        )
    with rehearsing(store) as (tried, found):
        [orphan] = (finding for finding in found.values() if finding.check == "orphan-messages")
        [table] = effect(tried, orphan).tables
    assert (table.table, table.op, table.rows) == ("sessions", Op.INSERT, 1)
    assert {"id", "source", "started_at", "title"} <= table.columns.keys()
    assert "user_id" not in table.columns
    assert table.columns["id"].became == [(Held("nothing"), Held("text", "nowhere", 7))]
    assert table.columns["title"].became[0][1].told is None


def test_a_fix_that_fails_says_so_and_spoils_nothing(store: Path) -> None:
    def fail(mending: Mending, finding: Finding) -> None:
        mending.connection.execute("DELETE FROM session_model_usage")
        mending.connection.execute("UPDATE sessions SET title = 'gone'")
        raise ZeroDivisionError(PRIVATE)

    with rehearsing(store) as (tried, found):
        chat = found["old-1"]
        failed = tried.of(BY_NAME[chat.check], replace(FIX_OF[chat.check], mend=fail), chat)
        assert "defect" in str(failed.otherwise)
        assert PRIVATE not in str(failed.otherwise)
        assert len(effect(tried, found["long-gone", "m-1", ""]).tables) == 1
        assert effect(tried, found["namesake"]).tables[0].columns.keys() == {"title"}
        gone = replace(chat, key="never-was")
        assert effect(tried, gone).otherwise == "nothing: no longer shows the fault"


def test_what_changes_no_row_is_not_tried(store: Path) -> None:
    with rehearsing(store) as (tried, found):
        chat = found["old-1"]
        derived = tried.of(BY_NAME[chat.check], replace(FIX_OF[chat.check], derived=True), chat)
        file = tried.of(BY_NAME["permissions"], FIX_OF["permissions"], chat)
    assert (derived.tables, file.tables) == ((), ())
    assert "no row" in str(derived.otherwise)
    assert "a file beside the store" in str(file.otherwise)


def test_no_copy_is_made_of_what_is_too_large(store: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearsal, "AUTO_BYTES", store.stat().st_size - 1)
    with rehearsing(store) as (tried, found):
        assert "too large" in str(effect(tried, found["old-1"]).unknown)
        assert list(temporary.iterdir()) == []


def test_no_copy_is_made_where_hermes_would_have_to_wait(store: Path, temporary: Path) -> None:
    def sliced(view: StoreView) -> StoreView:
        view.reader.pace = Pace.SLICED
        return replace(view, held="yes")

    made: list[Rehearsal] = []
    scan_store(
        StoreRef(store, store.parent, "default"),
        [],
        ScanOptions(),
        None,
        lambda _scan, view: made.append(Rehearsal(sliced(view))),
    ).findings.close()
    assert "would have to wait" in str(made[-1].why_not)
    assert list(temporary.iterdir()) == []


def test_where_there_is_no_room_for_a_copy_it_says_so(store: Path, temporary: Path) -> None:
    temporary.rmdir()
    temporary.write_text("a file where a folder should be")
    with rehearsing(store) as (tried, found):
        assert "no private copy could be made" in str(effect(tried, found["old-1"]).unknown)
