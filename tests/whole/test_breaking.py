"""The script that damages files hits what it says, and the same each time."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.checks.damaged_files import large_enough
from tests.whole.breaking import (
    DAMAGES,
    WRECKS,
    Hit,
    NothingToDamageError,
    leave_no_free_pages,
    write_messages_into_log,
)
from tests.whole.saving import copy_bundle

pytestmark = pytest.mark.usefixtures("oracle")

_PAGE = 4096


@pytest.fixture
def store(shared_folder: Path, tmp_path: Path) -> Path:
    return large_enough(shared_folder, tmp_path / "home", "0.22.2")


def changed(before: bytes, after: bytes) -> tuple[int, ...]:
    """The numbers of the pages that differ."""
    starts = range(0, max(len(before), len(after)), _PAGE)
    return tuple(n + 1 for n, at in enumerate(starts) if before[at : at + _PAGE] != after[at : at + _PAGE])


@pytest.mark.parametrize("name", DAMAGES)
def test_what_is_hit_is_told_and_nothing_else_is(store: Path, name: str) -> None:
    copy = shutil.copyfile(store, store.with_name("copy.db"))
    before = store.read_bytes()
    hit = DAMAGES[name](store, 7)
    log = store.with_name("state.db-wal")
    if log.exists():
        assert hit.pages
        assert not store.with_name("state.db-shm").exists()
    elif name == "duplicate-schema":
        assert changed(before, store.read_bytes()) != ()
        assert hit.names
    else:
        assert changed(before, store.read_bytes()) == tuple(sorted(hit.pages)) != ()
    assert DAMAGES[name](copy, 7) == hit
    # Only what SQLite itself writes holds times and random numbers.
    assert log.exists() or store.read_bytes() == copy.read_bytes()


def test_other_seeds_hit_other_pages(store: Path) -> None:
    hits: set[Hit] = set()
    for seed in range(5):
        copy = shutil.copyfile(store, store.with_name(f"{seed}.db"))
        hits.add(DAMAGES["zero-table-leaf"](copy, seed))
    assert len(hits) > 1


def test_what_is_not_there_cannot_be_damaged(store: Path) -> None:
    leave_no_free_pages(store)
    before = store.read_bytes()
    with pytest.raises(NothingToDamageError):
        DAMAGES["zero-free"](store, 7)
    assert store.read_bytes() == before


@pytest.mark.parametrize("name", WRECKS)
def test_a_wreck_is_told_and_comes_again_by_its_seed(store: Path, tmp_path: Path, name: str) -> None:
    wreck = WRECKS[name]
    if wreck.before is not None:
        wreck.before(store, 7)
    copy, sound = copy_bundle(store, tmp_path / "copy"), copy_bundle(store, tmp_path / "sound")
    hit = wreck.damage(store, 7)
    assert wreck.damage(copy, 7) == hit
    if name in ("unlist-sessions", "unlist-messages"):
        assert changed(sound.read_bytes(), store.read_bytes())
        assert hit.names
    elif name == "hot-journal":
        assert store.with_name("state.db-journal").stat().st_size > _PAGE
        assert set(hit.pages) < set(changed(sound.read_bytes(), store.read_bytes()))
    elif name == "break-frame":
        beside = [folder / "state.db-wal" for folder in (sound.parent, store.parent)]
        before, after = (file.read_bytes() for file in beside)
        assert sum(one != other for one, other in zip(before, after, strict=True)) == 1
        assert sound.read_bytes() == store.read_bytes()
    else:
        hit_and_changed = set(hit.pages), set(changed(sound.read_bytes(), store.read_bytes()))
        # Half of the file was empty pages, or a torn page was empty from there on.
        assert hit_and_changed[1]
        assert hit_and_changed[1] <= hit_and_changed[0]
        assert name in ("zero-half", "five-pages") or hit_and_changed[0] == hit_and_changed[1]
    assert wreck.before is not write_messages_into_log or store.with_name("state.db-wal").stat().st_size > _PAGE
