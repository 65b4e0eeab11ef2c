"""`doctor compact` on stores that releases wrote and deleted from: nothing but free pages is lost, whatever happens."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hermes_doctor.engine.steps import Step
from tests.cli.changing import many_zombies
from tests.oracle.home import Home
from tests.oracle.steps import call
from tests.whole.identical import difference, image_of, index_faults
from tests.whole.runner import ROOT, Doctors
from tests.whole.support import fingerprint
from tests.whole.thinned import KEPT, bytes_of, copied

pytestmark = pytest.mark.usefixtures("oracle")

#: A release, and the journal mode in which it makes a store.
STORES = (("0.19.0", "wal"), ("0.22.2", "delete"))
VERSIONS = [version for version, _mode in STORES]
KILLS = 8

Make = Callable[[str], Home]


@pytest.fixture
def make(shared_folder: Path, tmp_path: Path) -> Make:
    return lambda version: copied(shared_folder, tmp_path / version, version)


@pytest.fixture(scope="module")
def doctors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doctors]:
    with Doctors(tmp_path_factory.mktemp("doctors")) as started:
        yield started


@pytest.mark.parametrize(("version", "mode"), STORES)
def test_the_store_is_smaller_and_else_the_same(make: Make, doctors: Doctors, version: str, mode: str) -> None:
    home = make(version)
    assert home.journal_mode() == mode
    before, files, size = image_of(home.store), fingerprint(home.path), bytes_of(home.store)
    planned = doctors.run("compact", home.path, "--json")
    assert planned.code == 1
    assert fingerprint(home.path) == files
    least = planned.json()["gives_back_at_least"]
    assert least > size / 5

    ended = doctors.run("compact", home.path, "--apply", "--json")
    told = ended.json()
    assert (ended.code, told["outcome"], told["reason"]) == (0, "compacted", None)
    after = bytes_of(home.store)
    assert (told["before"]["bytes"], told["after"]["bytes"], told["gave_back"]) == (size, after, size - after)
    assert told["gave_back"] >= least
    assert told["after"]["pages"] * told["after"]["page_size"] == home.store.stat().st_size
    assert told["after"]["free_pages"] == 0
    image = image_of(home.store)
    rows = sum(found.total() for found in image.rows.values())
    assert told["verified"] == {"tables": len(image.rows), "rows": rows}
    assert difference(before, image) == []
    assert index_faults(home.store) == []
    assert home.journal_mode() == mode
    # Nothing is left behind but what any run leaves: the locks.
    new = fingerprint(home.path).keys() - files.keys()
    assert new == {"doctor/doctor.lock", "state.db.auto-maintenance.lock"}

    assert doctors.run("compact", home.path, "--apply").code == 0
    assert bytes_of(home.store) == after
    assert json.loads(doctors.run("runs", home.path, "--json").out)["runs"] == []
    _lives_on(home, version)


def _lives_on(home: Home, version: str) -> None:
    """The release reads, appends and searches, and finds the old and the new."""
    replayed, _new, found, again = home.run(
        version,
        [
            call("get_messages_as_conversation", KEPT),
            call("append_message", KEPT, "user", "a needle in it"),
            call("search_messages", "needle"),
            call("search_messages", "word24x1x7"),
        ],
    )
    assert [message["role"] for message in replayed] == ["user", "assistant", "user", "user"]
    assert [row["session_id"] for row in found] == [KEPT]
    assert [row["session_id"] for row in again] == [KEPT]
    assert len(home.conversation(version, KEPT)) == 5
    assert index_faults(home.store) == []


@pytest.mark.parametrize(("version", "mode"), STORES)
def test_a_kill_at_any_write_leaves_the_store_as_it_was(make: Make, tmp_path: Path, version: str, mode: str) -> None:
    template = make(version)
    before = image_of(template.store)
    ends = _killed(template, tmp_path / "killed", KILLS)
    assert ends[0] == (0, 0)
    assert [code for _write, code in ends[1:]] == [-9] * KILLS
    sidecar, hot = {"wal": "-wal", "delete": "-journal"}[mode], 0
    for number in range(1, KILLS + 1):
        home = Home(tmp_path / "killed" / str(number))
        beside = home.store.with_name(home.store.name + sidecar)
        hot += beside.exists() and beside.stat().st_size > 4096
        assert difference(before, image_of(home.store)) == [], ends[number]
    # Most of them in the midst of it, with pages in the log, or old pages in the journal.
    assert hot >= KILLS / 2
    for number in (KILLS // 2, KILLS - 1):
        home = Home(tmp_path / "killed" / str(number))
        assert len(home.conversation(version, KEPT)) == 4
        assert difference(before, image_of(home.store), but_for=_OWN) == []


#: What 0.22.2 notes of a store when it opens it the next time.
_OWN = frozenset({"fts_storage_version", "last_auto_prune", "ghost_session_prune_v1", "store_instance_id"})


def test_a_doctor_that_saves_no_old_pages_would_be_caught(make: Make, tmp_path: Path) -> None:
    template = make("0.22.2")
    before = image_of(template.store)
    (_none, *ends) = _killed(template, tmp_path / "killed", 3, "careless")
    assert [code for _write, code in ends] == [-9] * 3
    broken = 0
    for number in (1, 2, 3):
        try:
            broken += bool(difference(before, image_of(tmp_path / "killed" / str(number) / "state.db")))
        except Exception:
            # It cannot even be read.
            broken += 1
    assert broken


def _killed(template: Home, folder: Path, count: int, *how: str) -> list[tuple[int, int]]:
    """At which write each of the doctors was killed, and how it ended."""
    folder.mkdir()
    command = [sys.executable, "-m", "tests.whole.compact_killed", str(template.path), str(folder), str(count), *how]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return [(int(write), int(code)) for write, code in (line.split() for line in done.stdout.splitlines())]


@pytest.mark.parametrize("version", VERSIONS)
def test_what_was_mended_before_can_still_be_taken_back(make: Make, doctors: Doctors, version: str) -> None:
    home = make(version)
    many_zombies(home.store, 5)
    before = image_of(home.store)
    narrowed = ("--apply", "--json", "--check", "open-zombies")
    mended = doctors.run("fix", home.path, *narrowed, "--backup", "never").json()
    assert mended["fixed"] == 5
    assert doctors.run("compact", home.path, "--apply").code == 0
    undone = doctors.run("undo", mended["run"], home.path, "--apply", "--json")
    assert (undone.code, undone.json()["fixed"]) == (0, 5)
    assert difference(before, image_of(home.store)) == []


def test_a_store_that_a_killed_doctor_left_is_compacted(make: Make, doctors: Doctors) -> None:
    home = make("0.19.0")
    many_zombies(home.store, 5)
    narrowed = ("--apply", "--check", "open-zombies", "--backup", "never")
    killed = doctors.run("fix", home.path, *narrowed, kill_at=f"{Step.COMMITTED}:1")
    assert killed.code == -9
    before = image_of(home.store)
    assert doctors.run("compact", home.path, "--apply", "--json").json()["outcome"] == "compacted"
    assert difference(before, image_of(home.store)) == []
