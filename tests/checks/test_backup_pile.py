"""What piles up beside a store: how much, which backups are equal, and when hermes has given up repairing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from checks.backup_pile import CHECK, HURTS, WORTH_TELLING
from hermes_doctor.demo.home import make_demo_home
from hermes_doctor.engine.model import FILES, Finding
from hermes_doctor.engine.scan import ScanOptions, scan_store
from hermes_doctor.host.homes import StoreRef
from hermes_doctor.host.nearby import Kind
from hermes_doctor.store import backup_pile
from tests.checks.support import findings_of
from tests.oracle.home import Home, environment
from tests.oracle.releases import get
from tests.oracle.steps import call

OLD, MIDDLE, NEW = (f"state.db.malformed-backup-2026090{day}_120000" for day in (1, 2, 3))
CLEANED = "state.db.pre-clean-markers-backup-20260901_120000"
LEDGER = "state.db.repair-attempts.json"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return make_demo_home(tmp_path / "home")


def put(store: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        path = store.parent / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def found(store: Path, *, deep: bool = False) -> dict[object, Finding]:
    scan = scan_store(StoreRef(store, store.parent, "default"), [CHECK], ScanOptions(deep=deep))
    with scan.findings as findings:
        assert [each.reason for each in scan.checks if each.status == "failed"] == []
        return {each.key: each for each in findings}


def twins(store: Path, *, deep: bool = False) -> list[tuple[object, object]]:
    """Which file may go for which, in order."""
    return [(key, each.detail["twin"]) for key, each in found(store, deep=deep).items() if each.fix.value == "unsafe"]


#: What lies there, and which file may go for which.
CASES: dict[str, tuple[dict[str, bytes], list[tuple[str, str]]]] = {
    "one": ({OLD: b"a"}, []),
    "equal": ({OLD: b"a", NEW: b"a"}, [(OLD, NEW)]),
    "of three the newest stays": ({OLD: b"a", MIDDLE: b"a", NEW: b"a"}, [(OLD, NEW), (MIDDLE, NEW)]),
    "other bytes of the same size": ({OLD: b"a" * 5000 + b"1", NEW: b"a" * 5000 + b"2"}, []),
    "another size": ({OLD: b"aa", NEW: b"a"}, []),
    "empty": ({OLD: b"", NEW: b""}, []),
    "the newest is another one": ({OLD: b"a", MIDDLE: b"a", NEW: b"b"}, [(OLD, MIDDLE)]),
    "the number counts, not the digits": ({f"{OLD}_2": b"a", f"{OLD}_10": b"a"}, [(f"{OLD}_2", f"{OLD}_10")]),
    "the file before its log": (
        {OLD: b"a", f"{OLD}-wal": b"w", f"{OLD}-shm": b"s", NEW: b"a", f"{NEW}-wal": b"w", f"{NEW}-shm": b"s"},
        [(OLD, NEW), (f"{OLD}-shm", f"{NEW}-shm"), (f"{OLD}-wal", f"{NEW}-wal")],
    ),
    "another log": ({OLD: b"a", f"{OLD}-wal": b"1", NEW: b"a", f"{NEW}-wal": b"2"}, []),
    "one without its log": ({OLD: b"a", f"{OLD}-wal": b"w", NEW: b"a"}, []),
    "a log that is left": ({f"{OLD}-wal": b"w", NEW: b"a", f"{NEW}-wal": b"w"}, [(f"{OLD}-wal", f"{NEW}-wal")]),
    "a log of a backup that hermes is making": ({OLD: b"a", f"{OLD}-wal": b"w", f"{NEW}-wal": b"w"}, []),
    "of another kind": ({CLEANED: b"a", NEW: b"a"}, []),
    "before cleaning": (
        {CLEANED: b"a", CLEANED.replace("0901", "0902"): b"a"},
        [(CLEANED, CLEANED.replace("0901", "0902"))],
    ),
    "not finished": ({f"{OLD}.incomplete": b"a", "state.db.backup-staging-1": b"a", NEW: b"a"}, []),
    "the doctor's": ({"doctor/backups/state-1.db": b"a", "doctor/backups/state-2.db": b"a"}, []),
    "zeros": ({"state.db.zeroed-1.bak": b"\0", "state.db.zeroed-2.bak": b"\0"}, []),
}


@pytest.mark.parametrize("case", CASES)
def test_only_what_lies_there_twice_may_go(store: Path, case: str) -> None:
    files, expected = CASES[case]
    put(store, files)
    assert twins(store) == expected


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("_equal", lambda group: [(older, group[-1]) for older in group[:-1]]),
        ("_alike", lambda bundles: [list(bundles)]),
        ("_SIDECARS", ("-wal",)),
        ("_REMOVABLE", (*backup_pile._REMOVABLE, Kind.ZEROED_BACKUP)),
    ],
    ids=["size alone", "any size", "a sidecar is a backup", "zeros are backups"],
)
def test_wrong_checks_fail(store: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: object) -> None:
    monkeypatch.setattr(backup_pile, name, value)
    for files, expected in CASES.values():
        put(store, files)
        try:
            if twins(store) != expected:
                return
        except (AssertionError, KeyError):
            return
        for each in files:
            (store.parent / each).unlink()
    pytest.fail("no case tells it from the right one")


def test_what_is_one_file_is_no_duplicate_and_the_store_is_not_read(store: Path) -> None:
    put(store, {OLD: b"a"})
    os.link(store.parent / OLD, store.parent / NEW)
    assert twins(store) == []
    for name in (OLD, NEW):
        (store.parent / name).unlink()
    # A second name of the store itself: closing it would drop the locks of the connection that reads the store.
    os.link(store, store.parent / OLD)
    put(store, {NEW: store.read_bytes()})
    assert twins(store) == []


def test_more_than_may_be_read_is_compared_by_a_deep_scan(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(store, {OLD: b"a" * 100, NEW: b"a" * 100, CLEANED: b"b", CLEANED.replace("0901", "0902"): b"b"})
    monkeypatch.setattr(backup_pile, "MOST_READ", 150)
    assert twins(store) == [(CLEANED, CLEANED.replace("0901", "0902"))]
    assert found(store)["state.db"].detail["not_compared"] == 2
    assert len(twins(store, deep=True)) == 2
    assert found(store, deep=True)["state.db"].detail["not_compared"] == 0


def test_the_pile_is_counted_and_healthy_stores_are_silent(store: Path) -> None:
    assert found(store) == {}
    put(store, {"doctor/backups/state-1.db": b"a" * 9, "doctor/doctor.db": b"x"})
    assert found(store) == {}
    put(store, {OLD: b"a" * 5, "state.db.repair-scratch": b"12", "state.db.retired-wal-1/state.db-wal": b"1234567"})
    [pile] = found(store).values()
    assert (pile.key, pile.table, pile.severity.label, pile.fix.value) == ("state.db", FILES, "info", "none")
    assert {name: pile.detail[name] for name in ("files", "bytes", "doctor_backup_bytes", "retired_log_bytes")} == {
        "files": 4,
        "bytes": 23,
        "doctor_backup_bytes": 9,
        "retired_log_bytes": 7,
    }


def test_the_doctors_own_backups_are_told_when_they_are_large(store: Path) -> None:
    put(store, {"doctor/backups/state-1.db": b"", "doctor/backups/state-2.db": b"a"})
    os.truncate(store.parent / "doctor/backups/state-1.db", WORTH_TELLING - 2)
    assert found(store) == {}
    put(store, {"doctor/backups/state-2.db": b"ab"})
    assert found(store)["state.db"].detail["files"] == 2


@pytest.mark.parametrize(
    ("pile", "store_bytes", "free", "severity"),
    [
        (HURTS, HURTS // 5 - 1, HURTS, "warning"),
        (HURTS, HURTS // 5 + 1, HURTS, "info"),
        (HURTS, HURTS, HURTS - 1, "warning"),
        (HURTS - 1, 1, 0, "info"),
    ],
)
def test_a_pile_that_hurts_is_a_warning(
    store: Path, monkeypatch: pytest.MonkeyPatch, pile: int, store_bytes: int, free: int, severity: str
) -> None:
    put(store, {OLD: b""})
    os.truncate(store.parent / OLD, pile)
    monkeypatch.setattr("checks.backup_pile.room_beside", lambda store: free)
    # A file of that size that is no database: it is asked about as a damaged one is.
    store.write_bytes(b"")
    os.truncate(store, store_bytes)
    assert CHECK.wreck is not None
    [finding] = CHECK.wreck(store)
    assert finding.severity.label == severity


@pytest.mark.parametrize(
    ("attempts", "grown", "told"), [(3, 0, True), (7, 0, True), (2, 0, False), (3, 1, False), ("3", 0, False)]
)
def test_hermes_that_has_given_up_is_told(store: Path, attempts: object, grown: int, told: bool) -> None:
    fingerprint = f"{store.stat().st_size + grown}:{'0' * 32}"
    (store.parent / LEDGER).write_text(json.dumps({"fingerprint": fingerprint, "failed_attempts": attempts}))
    findings = found(store)
    assert (LEDGER in findings) == told
    if told:
        assert findings[LEDGER].severity.label == "warning"
        assert f"doctor rescue {store} {store}.rescued --inspect-only" in findings[LEDGER].summary
        assert f"sessions recover --source {store} --inspect-only" in findings[LEDGER].summary


@pytest.mark.parametrize("text", ["", "[]", "{}", "3", '{"fingerprint": 5, "failed_attempts": 3}', "\xff"])
def test_an_odd_ledger_is_none(store: Path, text: str) -> None:
    (store.parent / LEDGER).write_text(text, encoding="latin-1")
    assert found(store) == {}


def test_what_a_release_leaves_when_it_repairs_in_vain(home: Home) -> None:
    """0.22.2 fails three times on one file, tries no more, and the damaged store says so."""
    release = get("0.22.2")
    home.run(release, [call("create_session", "s", "cli", model="m")])
    with home.store.open("r+b") as file:
        file.seek(4096 * 2)
        file.write(b"\xff" * 4096 * 8)
    script = (
        "import sys, pathlib, hermes_state_repair as r\n"
        "for _ in range(4): print(r.repair_state_db_schema(pathlib.Path(sys.argv[1])).get('repaired'))\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", script, str(home.store)],
        env=environment(home.path, release),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["False"] * 4
    assert json.loads((home.path / LEDGER).read_text())["failed_attempts"] == 3
    assert CHECK.wreck is not None
    told = {each.key: each for each in CHECK.wreck(home.store)}
    assert told.keys() == {"state.db", LEDGER}
    backups = [path for path in home.path.iterdir() if ".malformed-backup-" in path.name]
    assert told["state.db"].detail["malformed_backup_bytes"] == sum(path.stat().st_size for path in backups) > 0


def test_the_page_speaks_of_every_file(store: Path) -> None:
    put(store, {OLD: b"a", NEW: b"a"})
    assert {each.table for each in findings_of(store, CHECK, home=store.parent)} == {FILES}
