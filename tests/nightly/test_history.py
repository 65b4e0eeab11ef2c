"""The history of scans: numbers only, kept for nearly nothing, thinned out by itself, and never in anybody's way."""

from __future__ import annotations

import os
import random
import sqlite3
import stat
import time
from collections.abc import Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import apsw
import pytest

from checks import CHECKS
from hermes_doctor.demo.home import make_demo_home
from hermes_doctor.engine.scan import ScanOptions, StoreScan, scan_store
from hermes_doctor.engine.state_file import NAME
from hermes_doctor.host.homes import StoreRef, resolve_targets
from hermes_doctor.nightly.history import DAY, HOUR, Entry, History, note, surplus

NOW = 1_796_072_400.0
STORE = Path("/one/state.db")


@pytest.fixture
def history(tmp_path: Path) -> History:
    return History(tmp_path / "state" / NAME)


def scanned(store: Path | StoreRef, options: ScanOptions | None = None) -> StoreScan:
    ref = store if isinstance(store, StoreRef) else resolve_targets([store])[0]
    scan = scan_store(ref, CHECKS, options or ScanOptions())
    scan.findings.close()
    return scan


def test_an_entry_comes_back_as_it_was_kept(history: History) -> None:
    now = time.time()
    entries = [
        Entry(STORE, now - 60, "damaged", True, True, 90.5, "0.9", failed=("bad-text",)),
        Entry(STORE, now, "readable", False, False, 0.0, "1.0", 31, 18, 54, 65536, 0.25, {"a": 0, "b": 8}),
    ]
    assert history.keep(entries)
    assert [repr(entry) for entry in history.entries()[STORE]] == [
        repr(entry).replace("failed=('bad-text',)", "failed=['bad-text']").replace("failed=()", "failed=[]")
        for entry in entries
    ]
    assert [entry.read for entry in history.entries()[STORE]] == [False, True]


def test_the_store_that_was_scanned_last_comes_first(history: History) -> None:
    now = time.time()
    other = Path(os.fsdecode(b"/caf\xe9/state.db"))
    history.keep([Entry(STORE, now - 3, counts={"a": 1}), Entry(other, now - 2), Entry(STORE, now - 4)])
    assert list(history.entries()) == [other, STORE]
    assert [entry.at for entry in history.entries()[STORE]] == [now - 4, now - 3]
    for store, kept in history.entries().items():
        assert history.of_store(store) == kept
    assert history.of_store(Path("/unknown/state.db")) == []


def test_it_is_private_and_looking_makes_nothing(history: History, tmp_path: Path) -> None:
    assert history.entries() == {}
    assert list(tmp_path.iterdir()) == []
    history.keep([Entry(STORE, time.time())])
    assert stat.S_IMODE(history.path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(history.path.stat().st_mode) == 0o600
    assert [path.name for path in history.path.parent.iterdir()] == ["history.db"]


@pytest.mark.parametrize("content", [b"", b"these are notes" * 1000, b"SQLite format 3\x00" + bytes(5000)])
def test_a_broken_one_counts_as_empty_and_is_made_anew(history: History, content: bytes) -> None:
    history.path.parent.mkdir(parents=True)
    history.path.write_bytes(content)
    assert history.entries() == {}
    assert history.keep([Entry(STORE, time.time())])
    assert list(history.entries()) == [STORE]


def test_one_with_another_layout_counts_as_empty_and_is_made_anew(history: History) -> None:
    history.path.parent.mkdir(parents=True)
    with closing(sqlite3.connect(history.path)) as other, other:
        other.execute("CREATE TABLE scans(somebody TEXT)")
    assert history.entries() == {}
    assert history.keep([Entry(STORE, time.time())])
    assert list(history.entries()) == [STORE]


def test_what_is_no_entry_is_passed_over(history: History) -> None:
    history.keep([Entry(STORE, time.time() - 1), Entry(STORE, time.time())])
    with closing(sqlite3.connect(history.path)) as other, other:
        other.execute("UPDATE scans SET counts = '[1' WHERE id = 1")
    assert len(history.entries()[STORE]) == 1


def test_while_another_doctor_writes_it_is_given_up_soon(history: History) -> None:
    history.keep([Entry(STORE, time.time())])
    with closing(sqlite3.connect(history.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        began = time.monotonic()
        assert not history.keep([Entry(STORE, time.time())])
        assert time.monotonic() - began < 1.5
        assert len(history.entries()[STORE]) == 1


# What a scan notes.


def test_a_scan_notes_numbers_and_no_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    store = make_demo_home(tmp_path / "home")
    connection = apsw.Connection(str(store))
    ids = [str(name) for (name,) in connection.execute("SELECT id FROM sessions")]
    connection.close()
    before = {path: path.stat().st_mtime_ns for path in (store.parent, *store.parent.rglob("*"))}
    scan = scanned(store, ScanOptions(idle_floor=60.0))
    assert note(scan, ScanOptions(idle_floor=60.0))
    [entry] = History.of_user().entries()[store]
    assert entry.counts == {result.check.name: result.count for result in scan.checks if result.status == "ran"}
    assert entry.counts["open-zombies"] == 8
    assert "stale-locks" not in entry.counts, "a check that had nothing to look at has no number"
    assert (entry.sessions, entry.messages, entry.bytes, entry.idle, entry.deep) == (18, 54, 65536, 60.0, False)
    kept = History.of_user().path.read_bytes()
    assert ids
    assert not [name for name in ids if name.encode() in kept]
    assert {path: path.stat().st_mtime_ns for path in (store.parent, *store.parent.rglob("*"))} == before


def test_a_store_that_could_not_be_read_is_noted_as_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    store = make_demo_home(tmp_path / "home")
    whole = store.read_bytes()
    missing = StoreRef(store.with_name("typed-wrong.db"), None, "default")
    assert note(scanned(missing), ScanOptions())
    assert History.of_user().entries() == {}, "a name that was typed wrong is no store"
    for content in (b"these are notes" * 1000, whole, None):
        store.unlink()
        if content is not None:
            store.write_bytes(content)
        assert note(scanned(store), ScanOptions())
    entries = History.of_user().entries()[store]
    assert [(entry.condition, entry.read) for entry in entries] == [
        ("damaged", False),
        ("readable", True),
        ("missing", False),
    ]
    assert "open-zombies" not in entries[0].counts
    assert entries[1].counts["open-zombies"] == 8


@pytest.mark.parametrize("place", ["of the store", "of the host", "of a profile"])
def test_nothing_is_noted_in_a_hermes_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    home = tmp_path / "home"
    store = make_demo_home(home / "profiles" / "work" if place == "of a profile" else home)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    # As where hermes runs the doctor with a home folder of its own.
    state = (elsewhere if place == "of the host" else home) / "home" / ".local"
    monkeypatch.setenv("HERMES_HOME", str(elsewhere if place == "of the host" else tmp_path / "none"))
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    assert not note(scanned(store), ScanOptions())
    assert not state.exists()


@pytest.mark.parametrize("obstacle", ["a file", "no right", "a loop"])
def test_noting_never_fails_a_scan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, obstacle: str) -> None:
    state = tmp_path / "state"
    if obstacle == "a file":
        state.write_text("a file where the folder should be")
    elif obstacle == "a loop":
        state.symlink_to(state)
    else:
        state = Path("/proc/nowhere")
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    assert not note(scanned(make_demo_home(tmp_path / "home")), ScanOptions())
    # Nor what nobody has thought of.
    with (odd := StoreScan(StoreRef(Path("nul\0nul"), None, "default"))).findings:
        assert not note(odd, None)  # type: ignore[arg-type]  # a defect


def test_it_costs_next_to_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    history = History.of_user()
    now = time.time()
    history.keep([Entry(STORE, now - hours * HOUR, counts={"a": 1}) for hours in range(700)])
    scan = scanned(make_demo_home(tmp_path / "home"))
    spent: list[float] = []
    for _ in range(9):
        began = time.process_time()
        assert note(scan, ScanOptions())
        spent.append(time.process_time() - began)
    # Measured: 1 ms. The bound is for a machine that is busy with other things.
    assert min(spent) < 0.010


# How it thins out.


def lived(scans: Sequence[tuple[float, int]], now: float) -> list[tuple[int, float, int]]:
    """What is left of scans at these times, thinned out at each of them as it would have been."""
    kept: list[tuple[int, float, int]] = []
    for number, (at, deep) in enumerate(scans):
        kept.append((number, at, deep))
        gone = set(surplus(kept, at))
        kept = [each for each in kept if each[0] not in gone]
    return [each for each in kept if each[0] not in set(surplus(kept, now))]


def test_three_years_of_nightly_scans() -> None:
    nights = [NOW - 3 * 365 * DAY + night * DAY for night in range(3 * 365 + 1)]
    kept = [at for _number, at, _deep in lived([(at, 0) for at in nights], NOW)]
    assert [at for at in kept if at >= NOW - 30 * DAY] == nights[-31:]
    year = [at for at in kept if NOW - 365 * DAY <= at < NOW - 30 * DAY]
    assert 47 <= len(year) <= 49
    assert all(round((later - earlier) / DAY) == 7 for earlier, later in pairwise(year[:-1]))
    older = [at for at in kept if at < NOW - 365 * DAY]
    assert 24 <= len(older) <= 26
    assert all(20 <= (later - earlier) / DAY <= 40 for earlier, later in pairwise(older))


def test_a_scan_every_five_minutes() -> None:
    times = [NOW - 40 * DAY + count * 300 for count in range(40 * 288 + 1)]
    kept = [(count, at, 0) for count, at in enumerate(times)]
    gone = set(surplus(kept, NOW))
    left = [at for number, at, _deep in kept if number not in gone]
    assert [at for at in left if at >= NOW - DAY] == times[-289:]
    assert 29 * 24 <= len([at for at in left if NOW - 30 * DAY <= at < NOW - DAY]) <= 29 * 24 + 1
    assert len([at for at in left if at < NOW - 30 * DAY]) <= 3


def test_deep_scans_are_thinned_by_themselves() -> None:
    week = 7 * DAY
    scans = [(NOW - 100 * DAY + night * DAY, int(night % 7 == 0)) for night in range(101)]
    kept = lived(scans, NOW)
    old = [deep for _number, at, deep in kept if at < NOW - 30 * DAY]
    assert sum(old) >= 70 * DAY // week
    assert len(old) - sum(old) >= 70 * DAY // week


def test_thinning_twice_takes_no_more_and_the_newest_stays() -> None:
    random.seed(8)
    for _ in range(50):
        times = sorted(NOW - random.expovariate(1 / (100 * DAY)) for _ in range(random.randint(1, 200)))
        kept = [(number, at, random.randint(0, 1)) for number, at in enumerate(times)]
        gone = set(surplus(kept, NOW))
        left = [each for each in kept if each[0] not in gone]
        assert surplus(left, NOW) == []
        assert left[-1] == kept[-1]


def test_old_entries_go_from_the_file(history: History) -> None:
    now = time.time()
    history.keep([Entry(STORE, now - 200 * DAY + minute * 60) for minute in range(5)])
    assert len(history.entries()[STORE]) == 1
    other = Path("/gone/state.db")
    history.keep([Entry(other, now - 401 * DAY), Entry(STORE, now)])
    assert list(history.entries()) == [STORE]
