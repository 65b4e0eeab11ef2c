"""What pictures of a store are made of: counted right, in bounded time and memory, and never at the scan's expense."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import pytest

from hermes_doctor.demo.home import make_demo_home
from hermes_doctor.engine import pictures
from hermes_doctor.engine.model import Check, Finding, RelationRule, Safety, Severity
from hermes_doctor.engine.pictures import Pictures, gather
from hermes_doctor.engine.scan import ScanOptions, StoreScan, scan_store
from hermes_doctor.host.homes import StoreRef
from hermes_doctor.store.cells import Key
from hermes_doctor.store.view import StoreView

DAY = 86400.0
NOW = 1_790_000_000.0


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """The demo's store without its sessions."""
    path = make_demo_home(tmp_path / "home")
    with changing(path) as connection:
        connection.execute("DELETE FROM messages; DELETE FROM sessions")
    return path


@contextmanager
def changing(path: Path) -> Iterator[apsw.Connection]:
    connection = apsw.Connection(str(path))
    try:
        connection.pragma("foreign_keys", False)
        with connection:
            yield connection
    finally:
        connection.close()


def add(path: Path, *rows: tuple[object, ...]) -> None:
    """Adds sessions: id, source, start, end, parent."""
    with changing(path) as connection:
        connection.executemany(
            "INSERT INTO sessions (id, source, started_at, ended_at, parent_session_id) VALUES (?, ?, ?, ?, ?)", rows
        )


def gathered(path: Path, checks: tuple[Check, ...] = ()) -> Pictures:
    found: list[Pictures] = []

    def look(scan: StoreScan, view: StoreView) -> None:
        found.append(gather(scan, view))

    with scan_store(StoreRef(path, path.parent, "default"), checks, ScanOptions(now=NOW), None, look).findings:
        return found[-1]


def finds(name: str, severity: Severity, *sessions: Key) -> Check:
    def find(_view: StoreView, _keys: object) -> Iterator[Finding]:
        for session in sessions:
            yield Finding(name, severity, "sessions", session, session, "it is odd")

    return Check(name, severity, name, name, Safety.NONE, "", RelationRule("sessions", find))


def test_open_rows_are_counted_by_source_and_age(store: Path) -> None:
    add(
        store,
        ("a", "cli", NOW - 60, None, None),
        ("b", "cli", NOW - 6 * DAY, None, None),
        ("c", "cli", NOW - 8 * DAY, None, None),
        ("d", "cli", NOW - 8 * DAY, NOW - 7 * DAY, None),
        ("e", "cron", NOW - 80 * DAY, None, None),
        ("f", "cron", NOW - 91 * DAY, None, None),
        ("g", "", 5, None, None),
        ("h", b"\xff", "yesterday", None, None),
    )
    with changing(store) as connection:
        # Used again this day: the newest of its clocks counts.
        connection.execute("INSERT INTO messages (session_id, role, timestamp) VALUES ('f', 'user', ?)", (NOW - 3600,))
    found = gathered(store).open_rows
    assert found is not None
    assert found.whole
    assert found.by_source == {
        "cli": [1, 1, 1, 0, 0, 0],
        "cron": [1, 0, 0, 1, 0, 0],
        "": [0, 0, 0, 0, 0, 2],
    }


def test_what_anybody_may_write_into_source_fills_no_memory(store: Path) -> None:
    add(store, *((f"s{place}", f"{'x' * 5000}-{place}", NOW, None, None) for place in range(3)))
    add(store, *((f"t{place}", f"{place}", NOW, None, None) for place in range(500)))
    found = gathered(store).open_rows
    assert found is not None
    assert len(found.by_source) <= pictures._SOURCES + 1
    assert max(map(len, found.by_source)) == 64
    assert sum(map(sum, found.by_source.values())) == 503
    assert found.by_source["x" * 64] == [3, 0, 0, 0, 0, 0]


def test_the_space_is_that_of_the_file(store: Path) -> None:
    with changing(store) as connection:
        connection.execute("CREATE TABLE filler (b)")
        connection.executemany("INSERT INTO filler VALUES (randomblob(50000))", [()] * 20)
    with changing(store) as connection:
        connection.execute("CREATE TABLE gone AS SELECT * FROM filler; DROP TABLE gone")
    parts = gathered(store).space
    assert sum(part.bytes for part in parts) == store.stat().st_size
    assert {(part.name, part.kind) for part in parts[:2]} == {("filler", "table"), ("", "free pages")}
    kinds = {part.name: part.kind for part in parts}
    assert kinds["idx_messages_session"] == "index"


def test_where_counting_pages_takes_long_sessions_are_counted(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "_COUNTED_PAGES", 4096)
    monkeypatch.setattr(pictures, "_COUNTED_PAGES_WAITING", 4096)
    add(store, ("a", "cli", NOW, None, None), ("b", "cli", NOW, NOW, None), ("c", "cron", NOW, None, None))
    with changing(store) as connection:
        connection.execute("UPDATE sessions SET message_count = iif(id = 'c', -4, 7)")
    found = gathered(store)
    assert found.space == ()
    assert found.traffic is not None
    assert found.traffic.sessions == {"cli": 2, "cron": 1}
    assert found.traffic.messages == {"cli": 14, "cron": 0}


def test_conversations_of_one_session_are_not_drawn_and_the_worst_come_first(store: Path) -> None:
    add(store, *((f"alone-{place}", "cli", NOW, None, None) for place in range(9)))
    for name in ("p", "q", "r", "s", "t"):
        add(store, (name, "cli", NOW, NOW, None), (f"{name}-2", "cli", NOW, None, name))
    alone = [f"alone-{place}" for place in range(9)]
    some = finds("some", Severity.WARNING, *alone, "p", "p-2", "q", "r-2", "s")
    bad = finds("bad", Severity.ERROR, None, "alone-1", "t-2", "t-2", "no-such", ("a", "b"))
    trees = gathered(store, (some, bad)).lineages
    assert [tree.root.id for tree in trees] == ["t", "p", "q"]
    assert [len(tree.nodes["p"].findings) for tree in trees if "p" in tree.nodes] == [1]
    assert [finding.check for finding in trees[0].nodes["t-2"].findings] == ["bad", "bad"]


def test_a_picture_that_takes_too_long_is_left_out_and_the_scan_stands(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(store, ("a", "cli", NOW, None, None))
    monkeypatch.setattr(pictures, "_SECONDS", 0.0)
    check = finds("some", Severity.WARNING, "a")
    began = time.monotonic()
    found: list[Pictures] = []
    scan = scan_store(
        StoreRef(store, store.parent, "default"),
        (check,),
        ScanOptions(now=NOW),
        None,
        lambda scan, view: found.append(gather(scan, view)),
    )
    with scan.findings:
        assert time.monotonic() - began < 5
        assert len(scan.findings) == 1
        assert scan.checks[0].status == "ran"
    [made] = found
    assert made.open_rows is not None
    assert not made.open_rows.whole
    assert made.space == ()
    assert made.lineages == ()


def test_a_scan_whose_time_was_up_gets_no_pictures(store: Path) -> None:
    scan = StoreScan(StoreRef(store, None, "default"), stopped="the time was up")
    with scan.findings:
        assert gather(scan, None) == Pictures()  # type: ignore[arg-type]  # a view that is not looked at
