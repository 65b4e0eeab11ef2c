"""A hermes that writes all through a long scan loses nothing and never waits.

Here snapshots are renewed after a few seconds, so that three of them fit into a short scan; `python -m bench.long_scan`
does the same with the real ones, for a minute and a quarter.
"""

from __future__ import annotations

import threading
import time

import pytest

from checks import CHECKS
from hermes_doctor.engine.model import Check, Finding, Row, RowRule, Safety, Severity
from hermes_doctor.engine.scan import ScanOptions, StoreScan, scan_store
from hermes_doctor.host.homes import StoreRef
from hermes_doctor.store import reader
from hermes_doctor.store.view import StoreView
from tests.oracle.home import Home
from tests.oracle.process import HermesProcess
from tests.oracle.releases import get
from tests.oracle.steps import call, sql_many

#: As long as a snapshot may be kept here, in seconds, and three times as long.
SHORT_SNAPSHOT = 5.0
SNAPSHOTS = 3
OLD_MESSAGES = 6000


def slow_check(seconds: float) -> Check:
    """A check that looks at every message and takes that long over all of the old ones, and finds nothing."""

    def judge(_row: Row, _view: StoreView) -> Finding | None:
        time.sleep(seconds / OLD_MESSAGES)
        return None

    rule = RowRule("messages", ("content",), lambda _shape: f"id <= {OLD_MESSAGES}", judge)
    return Check("slow", Severity.INFO, "takes its time", "nothing", Safety.NONE, "", rule)


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("version", "mode"), [("0.22.2", "delete"), ("0.19.0", "wal")])
def test_a_writer_beside_a_long_scan(home: Home, version: str, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert reader.SNAPSHOT_SECONDS < 30
    monkeypatch.setattr(reader, "SNAPSHOT_SECONDS", SHORT_SNAPSHOT)
    scan_beside_a_writer(home, version, mode)


def scan_beside_a_writer(home: Home, version: str, mode: str) -> None:
    """Scan for three snapshots' time while a hermes of that version writes, and compare what it wrote."""
    seconds = SNAPSHOTS * reader.SNAPSHOT_SECONDS
    release = get(version)
    now = time.time()
    home.run(release, [call("create_session", "old", "cli"), call("create_session", "chat", "cli")])
    rows = [["old", "user", "x" * 4000, now - 3600 + n / 100] for n in range(OLD_MESSAGES)]
    home.run(
        release, [sql_many("INSERT INTO messages (session_id, role, content, timestamp) VALUES (?, ?, ?, ?)", rows)]
    )
    if home.journal_mode() != mode:
        pytest.skip(f"this Python's SQLite makes {version} use {home.journal_mode()} mode")
    results: list[StoreScan] = []
    scanning = threading.Thread(
        target=lambda: results.append(
            scan_store(StoreRef(home.store, home.path, "default"), [slow_check(seconds), *CHECKS], ScanOptions())
        )
    )
    waits: list[float] = []
    with HermesProcess(home, release) as hermes:
        hermes.call("append_message", "chat", "user", "before")
        scanning.start()
        while scanning.is_alive():
            begun = time.monotonic()
            hermes.call("append_message", "chat", "user", f"turn {len(waits)}")
            waits.append(time.monotonic() - begun)
            time.sleep(0.05)
        scanning.join()
    (scan,) = results
    assert scan.seconds > seconds
    assert scan.reason is None
    assert [(r.check.name, r.reason) for r in scan.checks if r.status != "ran"] == []
    assert scan.held == "yes"
    assert scan.consistent is False
    # That this Python's SQLite should not write to a WAL store may be said, and is so.
    assert {finding.check for finding in scan.findings if finding.severity > Severity.INFO} <= {"sqlite-runtime"}
    scan.findings.close()
    # Many turns, all of them stored, none that waited.
    assert len(waits) > seconds
    assert max(waits) < 1.0
    replayed = home.conversation(release, "chat")
    assert [m["content"] for m in replayed] == ["before", *(f"turn {n}" for n in range(len(waits)))]
