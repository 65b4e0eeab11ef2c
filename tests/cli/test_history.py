"""`doctor history` as its user meets it: scans are kept by themselves, and what became of them is told."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from hermes_doctor.demo.home import make_demo_home
from hermes_doctor.engine.state_file import NAME
from hermes_doctor.nightly.history import DAY, Entry, History
from tests.cli import support
from tests.cli.changing import many_zombies
from tests.cli.support import listing, valid
from tests.cli.within import doctor


@pytest.fixture
def kept(tmp_path: Path) -> History:
    """The history of the user whose home folder is the test's."""
    return History(tmp_path / ".local" / "state" / NAME)


def databases(folder: Path, *arguments: str | Path) -> list[Any]:
    done = doctor(folder, "history", "--json", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    found: list[Any] = valid(done.stdout, "history")["databases"]
    return found


def became(database: Any) -> dict[str, tuple[str, int, int | None]]:
    return {check["check"]: (check["became"], check["count"], check["before"]) for check in database["checks"]}


def test_what_is_new_grows_and_is_gone_through_scans_and_mending(tmp_path: Path, damaged: Path) -> None:
    assert "No scan is kept here yet. Each is from now on, with: doctor scan" in doctor(tmp_path, "history").stdout
    doctor(tmp_path, "scan", damaged)
    [database] = databases(tmp_path)
    assert database["path"] == str(damaged)
    assert became(database) == {
        "double-encoded": ("same", 4, None),
        "lineage-gaps": ("same", 2, None),
        "open-zombies": ("same", 8, None),
        "orphan-stubs": ("same", 3, None),
    }
    assert {check["since_known"] for check in database["checks"]} == {False}

    assert doctor(tmp_path, "fix", "--apply", damaged, "--check", "lineage-gaps").returncode == 0
    many_zombies(damaged, 5)
    doctor(tmp_path, "scan", damaged, "--since-last")
    [database] = databases(tmp_path, damaged.parent)
    assert [check["check"] for check in database["checks"]][:2] == ["open-zombies", "lineage-gaps"]
    assert became(database)["open-zombies"] == ("grows", 13, 8)
    assert became(database)["lineage-gaps"] == ("gone", 0, 2)
    assert len(database["scans"]) == 2
    table = " ".join(doctor(tmp_path, "history").stdout.split())
    assert "~/damaged/state.db 2 scans kept since " in table
    assert "open-zombies 13 8 grows; there since " in table
    assert "lineage-gaps 0 2 gone since " in table


def test_a_table_for_eighty_columns(tmp_path: Path, kept: History, damaged: Path) -> None:
    now = time.time()
    for night in range(20, -1, -1):
        counts = {"open-zombies": 900 - night, "orphan-stubs": 24, "lineage-gaps": 3 * (night < 3)}
        kept.keep([Entry(damaged, now - night * DAY - 60, sessions=3000, messages=60000 - night, counts=counts)])
    text = doctor(tmp_path, "history").stdout
    assert all(len(line) <= 80 for line in text.splitlines())
    shown = " ".join(text.split())
    assert "~/damaged/state.db 21 scans kept since" in shown
    assert "3,000 sessions (+0) · 60,000 messages (+7) since" in shown
    assert "check now 7 days ago what became of it" in shown
    assert "lineage-gaps 3 0 new since" in shown
    assert "(2 days ago)" in shown
    # Over a longer time it is told of what was then.
    longer = " ".join(doctor(tmp_path, "history", "--since", "2w").stdout.split())
    assert "open-zombies 900 886 grows" in longer
    assert "check now 14 days ago" in longer


def test_narrow_patient_and_deep_scans_are_kept_as_that(tmp_path: Path, damaged: Path) -> None:
    doctor(tmp_path, "scan", damaged, "--check", "orphan-stubs", "--idle", "1h", "--deep")
    [database] = databases(tmp_path)
    [scan] = database["scans"]
    assert scan["counts"] == {"orphan-stubs": 3}
    assert (scan["deep"], scan["idle_seconds"], scan["condition"]) == (True, 3600, "readable")


def test_a_store_that_could_not_be_read_is_told_as_that(tmp_path: Path, damaged: Path) -> None:
    doctor(tmp_path, "scan", damaged)
    damaged.write_bytes(b"these are notes" * 1000)
    assert doctor(tmp_path, "scan", damaged).returncode == 4
    [database] = databases(tmp_path)
    assert [scan["condition"] for scan in database["scans"]] == ["readable", "damaged"]
    assert became(database)["open-zombies"] == ("same", 8, None)
    shown = " ".join(doctor(tmp_path, "history").stdout.split())
    assert "It could not be read at the last scan (damaged); it was read last just now. Next: doctor scan" in shown


def test_several_stores_and_those_that_are_asked_for(tmp_path: Path, damaged: Path) -> None:
    other = make_demo_home(tmp_path / "other")
    linked = tmp_path / "linked"
    linked.symlink_to(other.parent)
    doctor(tmp_path, "scan", damaged, linked)
    assert [database["path"] for database in databases(tmp_path)] == [str(other), str(damaged)]
    assert [database["path"] for database in databases(tmp_path, linked)] == [str(other)]
    done = doctor(tmp_path, "history", tmp_path / "nowhere")
    assert done.stdout == "No scan of ~/nowhere is kept. Each is from now on, with: doctor scan\n"
    assert doctor(tmp_path, "history", tmp_path / "nowhere", "--quiet").stdout == ""
    # The history outlives the store.
    shutil.rmtree(damaged.parent)
    assert [database["path"] for database in databases(tmp_path, damaged)] == [str(damaged)]


def test_looking_changes_nothing(tmp_path: Path, damaged: Path) -> None:
    doctor(tmp_path, "scan", damaged)
    before = listing(tmp_path)
    doctor(tmp_path, "history")
    databases(tmp_path)
    assert listing(tmp_path) == before


@pytest.mark.parametrize("obstacle", ["a file in its place", "a broken history"])
def test_a_scan_is_the_same_where_it_cannot_be_kept(tmp_path: Path, damaged: Path, obstacle: str) -> None:
    usual = doctor(tmp_path, "scan", damaged)
    state = tmp_path / ".local" / "state" / NAME
    if obstacle == "a broken history":
        (state / "history.db").write_bytes(b"these are notes" * 1000)
        (state / "mutes.db").write_bytes(b"these are notes" * 1000)
    else:
        shutil.rmtree(state)
        state.write_text("not a folder")
    done = doctor(tmp_path, "scan", damaged)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.split(" Read in ")[0] == usual.stdout.split(" Read in ")[0]
    assert len(databases(tmp_path)) == (obstacle == "a broken history")


def test_the_installed_command_keeps_its_scans(tmp_path: Path, damaged: Path, kept: History) -> None:
    assert support.doctor(tmp_path, "scan", damaged, "--output", "/dev/null").returncode == 1
    [entry] = kept.entries()[damaged]
    assert (entry.counts["open-zombies"], entry.sessions) == (8, 18)
    done = support.doctor(tmp_path, "history")
    assert (done.returncode, done.stderr) == (0, "")
    assert "1 scan kept since" in done.stdout


def test_a_scan_from_within_hermes_leaves_nothing_in_its_home(tmp_path: Path, damaged: Path) -> None:
    # hermes gives the programs that it runs a home folder of its own, inside its home.
    (damaged.parent / "home").mkdir()
    before = listing(damaged.parent)
    inside = {"HOME": str(damaged.parent / "home"), "HERMES_HOME": str(damaged.parent)}
    assert doctor(tmp_path, "scan", extra=inside).returncode == 1
    assert listing(damaged.parent) == before
    assert list((damaged.parent / "home").iterdir()) == []


def test_the_demo_is_nobodys_history(tmp_path: Path, kept: History) -> None:
    assert doctor(tmp_path, "demo").returncode == 0
    assert kept.entries() == {}
