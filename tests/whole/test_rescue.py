"""`doctor rescue` on stores that are damaged in every way: what is still in the file is saved, and nothing else.

The long form, with more releases, large stores, more seeds and hermes's own recovery: ``python -m bench.rescue``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.oracle.home import Home
from tests.oracle.steps import call
from tests.whole.breaking import WRECKS
from tests.whole.rescued import Rescued, before_of, judged, unsound, whole_chats
from tests.whole.runner import Doctors
from tests.whole.saving import bundle_hash, candidates, copy_bundle, count, recovered_by_shell, shell_that_recovers
from tests.whole.to_be_wrecked import ALL, Sound, Wrecked, shared_lived_in, wreck
from tests.whole.traces import still_there

pytestmark = pytest.mark.usefixtures("oracle")

#: The columns of the first had no additions yet, the second holds all texts twice in its index, the last one none.
OLD, NEW = VERSIONS = ("0.16.0", "0.22.2")
#: Where a shell has the best of chances, and where it has none.
COMPARED = ("five-pages", "lose-first-page", "swap-across", "tear-table-leaf", "unlist-messages", "zero-half")


@pytest.fixture(scope="module")
def doctors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doctors]:
    with Doctors(tmp_path_factory.mktemp("doctors")) as running:
        yield running


@pytest.fixture
def sound(shared_folder: Path, version: str) -> Sound:
    return shared_lived_in(shared_folder / "to-be-rescued", version, chats=24)


def rescue(doctors: Doctors, sound: Sound, wrecked: Wrecked, folder: Path) -> Rescued:
    folder.mkdir()
    hashes = bundle_hash(wrecked.damaged)
    ended = doctors.run("rescue", "--json", wrecked.damaged, folder / "state.db")
    before, deleted = before_of(wrecked), sound.deleted["messages"]
    return judged(wrecked, before, deleted, hashes, ended.code, ended.out or ended.err, folder / "state.db")


@pytest.mark.parametrize(
    ("name", "version"),
    [*((name, NEW) for name in ALL), *((name, OLD) for name in (*WRECKS, "lose-first-page", "shorten-torn"))],
)
def test_every_message_that_is_still_there_is_saved(sound: Sound, doctors: Doctors, tmp_path: Path, name: str) -> None:
    wrecked = wreck(sound.store, name, 1, tmp_path / "wreck")
    rescued = rescue(doctors, sound, wrecked, tmp_path / "new")
    assert rescued.faults == []
    there = still_there(wrecked.before, "messages", wrecked.damaged)
    assert there
    assert there <= rescued.counted["messages"].intact


@pytest.mark.parametrize("version", VERSIONS)
# With this seed the first page holds bytes by chance, not zeros.
@pytest.mark.parametrize("name", ["lose-sessions", "five-pages", "zero-schema-root", "lose-first-page"])
def test_the_new_file_is_sound_and_hermes_goes_on_with_it(
    sound: Sound, doctors: Doctors, tmp_path: Path, name: str
) -> None:
    wrecked = wreck(sound.store, name, 2, tmp_path / "wreck")
    rescued = rescue(doctors, sound, wrecked, tmp_path / "new")
    assert rescued.faults == []
    assert rescued.output is not None
    assert unsound(doctors.run("scan", "--json", rescued.output).json()) == []
    again = doctors.run("rescue", "--json", rescued.output, tmp_path / "again.db")
    assert again.code == 0, again.err
    chats = sorted(whole_chats(before_of(wrecked)["messages"], rescued))
    assert len(chats) > 10
    steps = [call("get_messages_as_conversation", chat) for chat in chats]
    was, now = (
        Home(copy_bundle(store, tmp_path / title).parent).run(sound.release, steps)
        for title, store in (("before", wrecked.before), ("now", rescued.output))
    )
    assert now == was
    assert all(replay for replay in was)


@pytest.mark.parametrize("version", VERSIONS)
def test_no_less_is_saved_than_by_the_shell(sound: Sound, doctors: Doctors, tmp_path: Path) -> None:
    shell = shell_that_recovers()
    if shell is None:
        pytest.skip("no sqlite3 on the path has a .recover that works (Debian's has no sqlite_dbpage)")
    for name in COMPARED:
        wrecked = wreck(sound.store, name, 3, tmp_path / name)
        ours = rescue(doctors, sound, wrecked, tmp_path / f"new-{name}").counted["messages"].intact
        before = before_of(wrecked)["messages"]
        theirs = count(
            before, candidates(before, recovered_by_shell(shell, wrecked.damaged, tmp_path / f"{name}-shell"))
        )
        assert theirs.intact
        assert len(ours) >= len(theirs.intact), name
