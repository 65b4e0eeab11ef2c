"""The bench's stores: the releases' own, sound but for what is planted, and grown as real ones grow."""

from __future__ import annotations

import time
from pathlib import Path

import apsw
import pytest

from bench.kept import kept_store
from bench.stores import DAY, grow, make_store
from checks import CHECKS
from hermes_doctor.engine.model import Severity
from hermes_doctor.engine.scan import ScanOptions, scan_store
from hermes_doctor.host.homes import resolve_targets

pytestmark = pytest.mark.usefixtures("oracle")


def found(store: Path) -> dict[str, int]:
    """How often each check that is worse than information finds something."""
    [ref] = resolve_targets([store])
    scan = scan_store(ref, CHECKS, ScanOptions())
    scan.findings.close()
    assert scan.condition == "readable"
    return {
        result.check.name: result.count
        for result in scan.checks
        if result.worst is not None and result.worst > Severity.INFO
    }


def ask(store: Path, sql: str) -> list[tuple[object, ...]]:
    connection = apsw.Connection(str(store), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


@pytest.mark.parametrize("release", ["0.19.0", "0.22.2"])
def test_a_store_without_planted_faults_is_sound_and_stays_so_as_it_grows(tmp_path: Path, release: str) -> None:
    store = make_store(tmp_path / "home", release, 1_001)
    assert ask(store, "SELECT count(*), max(id) FROM messages") == [(1_001, 1_001)]
    assert found(store) == {}
    [(newest,)] = ask(store, "SELECT max(max(timestamp), (SELECT max(ended_at) FROM sessions)) FROM messages")
    assert isinstance(newest, float)
    # Idle for long enough that what nobody ended is a fault, and nothing is ahead of the clock.
    assert 1 * DAY < time.time() - newest < 3 * DAY
    grow(store, 10)
    assert ask(store, "SELECT count(*), max(id) FROM messages") == [(1_011, 1_011)]
    assert found(store) == {}


def test_about_that_share_of_messages_and_sessions_is_faulty(tmp_path: Path) -> None:
    store = make_store(tmp_path / "home", "0.22.2", 1_000, faults=0.2)
    faulty = found(store)
    assert set(faulty) == {"double-encoded", "open-zombies"}
    assert 150 <= faulty["double-encoded"] <= 250


def test_pages_of_the_index_lie_among_those_of_the_messages(tmp_path: Path) -> None:
    store = make_store(tmp_path / "home", "0.22.2", 3_000)
    [(changes,)] = ask(
        store,
        "SELECT count(*) FILTER (WHERE name <> before)"
        " FROM (SELECT name, lag(name) OVER (ORDER BY pageno) AS before"
        " FROM dbstat WHERE name IN ('messages', 'messages_fts_data'))",
    )
    # Two of them where the index was filled when all rows were there.
    assert isinstance(changes, int)
    assert changes > 10


def test_a_kept_store_is_made_once_and_never_in_part(tmp_path: Path) -> None:
    kept = kept_store(tmp_path, "0.22.2", 10)
    part = kept.parent.with_name(kept.parent.name + ".part")
    changed = kept.stat().st_mtime_ns
    assert kept_store(tmp_path, "0.22.2", 10) == kept
    assert kept.stat().st_mtime_ns == changed
    # As a kill in the midst of the making leaves it.
    kept.parent.rename(part)
    (part / "state.db").write_bytes(b"half")
    again = kept_store(tmp_path, "0.22.2", 10)
    assert again == kept
    assert ask(again, "SELECT count(*) FROM messages") == [(10,)]
    assert not part.exists()
