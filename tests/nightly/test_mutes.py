"""Mutes: what they cover, that they end by themselves, and that they hide nothing that got worse."""

from __future__ import annotations

import os
import sqlite3
import stat
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from hermes_doctor.engine.model import ExitCode, Severity
from hermes_doctor.engine.scan import Muted, ScanOptions, StoreScan
from hermes_doctor.engine.state_file import NAME
from hermes_doctor.host.homes import StoreRef
from hermes_doctor.nightly import mutes as user_mutes
from hermes_doctor.nightly.history import DAY, Entry
from hermes_doctor.nightly.mutes import Mute, Mutes, Worse
from tests.report.support import make_check, make_finding, make_scan

NOW = 1_796_072_400.0
HERE, THERE = Path("/one/state.db"), Path("/two/state.db")
PLAIN, DEEP, PATIENT = ScanOptions(), ScanOptions(deep=True), ScanOptions(idle_floor=DAY)

EVERYWHERE = Mute("odd-rows", None, NOW, NOW + 14 * DAY)
ONLY_HERE = replace(EVERYWHERE, store=HERE)
UNTIL_WORSE = replace(EVERYWHERE, until_worse=True)


@pytest.fixture
def mutes(tmp_path: Path) -> Mutes:
    return Mutes(tmp_path / "state" / NAME)


def scanned(store: Path = HERE, count: int = 3) -> StoreScan:
    """A scan with that many odd rows, and one loose end."""
    found = [make_finding("loose-ends"), *(make_finding(key=f"s{place}") for place in range(count))]
    with (scan := make_scan(found, [make_check(), make_check("loose-ends")], ref=StoreRef(store, None, "x"))).findings:
        return scan


def marked(
    mutes: Mutes, store: Path = HERE, count: int = 3, options: ScanOptions = PLAIN, days: float = 1.0
) -> tuple[Muted | None, list[Worse]]:
    """How a scan of so many odd rows is marked, so many days later, and which mutes it ends."""
    scan = scanned(store, count)
    worse = mutes.mark(scan, options, NOW + days * DAY)
    assert scan.checks[1].muted is None, "nobody muted the loose ends"
    return scan.checks[0].muted, worse


def test_what_is_muted_counts_for_nothing(mutes: Mutes) -> None:
    assert mutes.add([EVERYWHERE], {}, NOW)
    scan = scanned()
    assert mutes.mark(scan, PLAIN, NOW) == []
    assert scan.checks[0].muted == Muted(NOW, NOW + 14 * DAY)
    assert (scan.checks[0].count, scan.checks[1].muted) == (3, None)
    assert scan.exit_code(Severity.INFO) is ExitCode.FINDINGS
    assert mutes.add([replace(EVERYWHERE, check="loose-ends")], {}, NOW)
    assert mutes.mark(scan, PLAIN, NOW) == []
    assert scan.exit_code(Severity.INFO) is ExitCode.CLEAN


def test_a_mute_ends_in_time(mutes: Mutes) -> None:
    mutes.add([EVERYWHERE], {}, NOW)
    assert marked(mutes, days=13.99)[0]
    assert marked(mutes, days=14) == (None, [])
    assert mutes.standing(NOW + 13.99 * DAY) == [EVERYWHERE]
    assert mutes.standing(NOW + 14 * DAY) == []


def test_one_store_or_all(mutes: Mutes) -> None:
    mutes.add([ONLY_HERE], {}, NOW)
    assert marked(mutes, HERE)[0]
    assert not marked(mutes, THERE)[0]
    longer = replace(EVERYWHERE, until=NOW + 20 * DAY)
    mutes.add([longer], {}, NOW)
    # What was said of this store alone counts more.
    assert marked(mutes, HERE)[0] == Muted(NOW, NOW + 14 * DAY)
    assert marked(mutes, THERE)[0] == Muted(NOW, NOW + 20 * DAY)
    assert mutes.standing(NOW) == [longer, ONLY_HERE]


def test_muting_anew_takes_the_place_of_the_old(mutes: Mutes) -> None:
    mutes.add([replace(UNTIL_WORSE, until=NOW + DAY)], {HERE: [Entry(HERE, NOW, counts={"odd-rows": 1})]}, NOW)
    assert marked(mutes, count=3, days=0)[0] is None
    mutes.add([EVERYWHERE], {}, NOW)
    assert marked(mutes, count=3, days=2)[0] == Muted(NOW, NOW + 14 * DAY)


def test_unmuting(mutes: Mutes) -> None:
    mutes.add([EVERYWHERE, ONLY_HERE], {}, NOW)
    assert mutes.end("odd-rows", None)
    assert mutes.standing(NOW) == []
    mutes.add([EVERYWHERE, ONLY_HERE], {}, NOW)
    assert mutes.end("odd-rows", [HERE])
    assert marked(mutes, HERE)[0] is None
    assert marked(mutes, THERE)[0]
    assert mutes.standing(NOW) == [replace(EVERYWHERE, ended_on=(HERE,))]
    assert mutes.end("never-muted", [HERE])
    assert mutes.standing(NOW) == [replace(EVERYWHERE, ended_on=(HERE,))]


# Until it is worse.


def test_it_ends_where_it_gets_worse_than_the_history_says(mutes: Mutes) -> None:
    history = {store: [Entry(store, NOW, counts={"odd-rows": count})] for store, count in ((HERE, 3), (THERE, 5))}
    mutes.add([UNTIL_WORSE], history, NOW)
    assert marked(mutes, HERE, 3)[0] == Muted(NOW, NOW + 14 * DAY, 3)
    assert marked(mutes, THERE, 4)[0] == Muted(NOW, NOW + 14 * DAY, 4)
    assert marked(mutes, HERE, 4) == (None, [Worse("odd-rows", HERE, 4, 3)])
    # It has ended there for good, and is said once.
    assert marked(mutes, HERE, 3) == (None, [])
    assert marked(mutes, THERE, 4)[0] == Muted(NOW, NOW + 14 * DAY, 4)
    assert mutes.standing(NOW) == [replace(UNTIL_WORSE, ended_on=(HERE,))]


def test_a_mute_of_one_store_is_gone_when_it_got_worse(mutes: Mutes) -> None:
    mutes.add([replace(ONLY_HERE, until_worse=True)], {HERE: [Entry(HERE, NOW, counts={"odd-rows": 3})]}, NOW)
    assert marked(mutes, count=4) == (None, [Worse("odd-rows", HERE, 4, 3)])
    assert mutes.standing(NOW) == []
    assert marked(mutes, count=4) == (None, [])


def test_what_was_mended_does_not_come_back_unheard(mutes: Mutes) -> None:
    mutes.add([UNTIL_WORSE], {HERE: [Entry(HERE, NOW, counts={"odd-rows": 8})]}, NOW)
    assert marked(mutes, count=0)[0] == Muted(NOW, NOW + 14 * DAY, 0)
    assert marked(mutes, count=1) == (None, [Worse("odd-rows", HERE, 1, 0)])


def test_without_a_history_the_first_scan_says_from_where_on_it_is_worse(mutes: Mutes) -> None:
    mutes.add([UNTIL_WORSE], {}, NOW)
    assert marked(mutes, count=8)[0] == Muted(NOW, NOW + 14 * DAY, 8)
    assert marked(mutes, count=9)[1] == [Worse("odd-rows", HERE, 9, 8)]


def test_a_deep_scan_is_measured_by_deep_scans(mutes: Mutes) -> None:
    mutes.add([UNTIL_WORSE], {HERE: [Entry(HERE, NOW, counts={"odd-rows": 3})]}, NOW)
    assert marked(mutes, count=7, options=DEEP)[0] == Muted(NOW, NOW + 14 * DAY, 7)
    assert marked(mutes, count=3)[0] == Muted(NOW, NOW + 14 * DAY, 3)
    assert marked(mutes, count=8, options=DEEP)[1] == [Worse("odd-rows", HERE, 8, 7)]
    assert marked(mutes, count=3) == (None, []), "it has ended on this store"


def test_a_scan_that_cannot_tell_does_not_make_it_stricter(mutes: Mutes) -> None:
    mutes.add([UNTIL_WORSE], {HERE: [Entry(HERE, NOW, counts={"odd-rows": 3})]}, NOW)
    assert marked(mutes, count=1, options=PATIENT)[0] == Muted(NOW, NOW + 14 * DAY, 3)
    scan = scanned(count=0)
    scan.checks[0].skip("not chosen")
    mutes.mark(scan, PLAIN, NOW)
    assert marked(mutes, count=3)[0] == Muted(NOW, NOW + 14 * DAY, 3)
    assert marked(mutes, count=4, options=PATIENT)[1] == [Worse("odd-rows", HERE, 4, 3)]


@pytest.mark.parametrize("known", [[], [Entry(HERE, NOW - DAY, counts={"odd-rows": 3})]])
def test_nor_does_such_a_scan_that_was_before_it(mutes: Mutes, known: list[Entry]) -> None:
    mutes.add([UNTIL_WORSE], {HERE: [*known, Entry(HERE, NOW, idle=DAY, counts={"odd-rows": 1})]}, NOW)
    assert marked(mutes, count=3)[0] == Muted(NOW, NOW + 14 * DAY, 3)
    assert marked(mutes, count=4)[1] == [Worse("odd-rows", HERE, 4, 3)]


# The file.


def test_where_nothing_is_muted_nothing_is_made(mutes: Mutes, tmp_path: Path) -> None:
    assert marked(mutes) == (None, [])
    assert mutes.standing(NOW) == []
    assert list(tmp_path.iterdir()) == []


def test_it_is_private_and_forgets_what_has_ended(mutes: Mutes) -> None:
    history = {HERE: [Entry(HERE, NOW, counts={"odd-rows": 3, "loose-ends": 1})]}
    mutes.add([UNTIL_WORSE], history, NOW)
    assert stat.S_IMODE(mutes.path.stat().st_mode) == 0o600
    mutes.add([replace(UNTIL_WORSE, check="loose-ends", until=NOW + 30 * DAY)], history, NOW + 14 * DAY)
    with closing(sqlite3.connect(mutes.path)) as found:
        assert found.execute("SELECT name FROM mutes UNION ALL SELECT name FROM bars").fetchall() == [
            ("loose-ends",),
            ("loose-ends",),
        ]


@pytest.mark.parametrize("content", [b"these are notes" * 1000, b"SQLite format 3\x00" + bytes(5000)])
def test_a_broken_file_mutes_nothing_and_is_made_anew(mutes: Mutes, content: bytes) -> None:
    mutes.path.parent.mkdir(parents=True)
    mutes.path.write_bytes(content)
    assert marked(mutes) == (None, [])
    assert mutes.add([EVERYWHERE], {}, NOW)
    assert marked(mutes)[0]


def test_one_with_another_layout(mutes: Mutes) -> None:
    mutes.path.parent.mkdir(parents=True)
    with closing(sqlite3.connect(mutes.path)) as other, other:
        other.execute("CREATE TABLE mutes(somebody TEXT)")
    assert marked(mutes) == (None, [])
    assert mutes.add([EVERYWHERE], {}, NOW)
    assert mutes.standing(NOW) == [EVERYWHERE]


def test_a_store_whose_path_is_no_text(mutes: Mutes) -> None:
    store = Path(os.fsdecode(b"/caf\xe9/state.db"))
    mutes.add([replace(ONLY_HERE, store=store, until_worse=True)], {}, NOW)
    assert marked(mutes, store, 3)[0]
    assert mutes.standing(NOW)[0].store == store
    assert marked(mutes, store, 4)[1] == [Worse("odd-rows", store, 4, 3)]


def test_a_mute_that_makes_no_sense_fails_no_scan(
    mutes: Mutes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    mutes.add([EVERYWHERE], {}, NOW)
    with closing(sqlite3.connect(mutes.path)) as other, other:
        other.execute("UPDATE mutes SET path = 7, until = 9e99")
    assert user_mutes.mark(scanned(), PLAIN) == []
