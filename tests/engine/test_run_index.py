"""The index of runs: a help that may be missing, old, broken or forbidden, and never stops anybody."""

from __future__ import annotations

import os
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest

from hermes_doctor.engine.journal import Run
from hermes_doctor.engine.run_index import RunIndex
from hermes_doctor.engine.state_file import NAME, state_folder


def made(name: str, at: float) -> Run:
    return Run(name, at, "/wherever/state.db", {}, 31, at + 1, "fixed", None, None, None)


@pytest.fixture
def index(tmp_path: Path) -> RunIndex:
    return RunIndex(tmp_path / "state" / NAME)


def test_the_store_of_the_newest_run_comes_first(index: RunIndex) -> None:
    old, new = Path("/old/state.db"), Path("/new/state.db")
    assert index.note(new, [made("c", 30.0)])
    assert index.note(old, [made("b", 20.0), made("a", 10.0)])
    assert index.stores() == [new, old]
    assert index.note(old, [made("d", 40.0), made("b", 20.0)])
    assert index.stores() == [old, new]


def test_it_survives_being_told_twice(index: RunIndex) -> None:
    store = Path("/one/state.db")
    for _ in range(2):
        assert index.note(store, [made("a", 10.0)])
    with closing(sqlite3.connect(index.path)) as found:
        assert found.execute("SELECT run, path, at FROM runs").fetchall() == [("a", "/one/state.db", 10.0)]


def test_a_relative_path_is_noted_so_that_it_is_found_from_anywhere(
    index: RunIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    index.note(Path("state.db"), [made("a", 10.0)])
    assert index.stores() == [tmp_path / "state.db"]


def test_it_is_private(index: RunIndex) -> None:
    index.note(Path("/one/state.db"), [made("a", 10.0)])
    assert stat.S_IMODE(index.path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(index.path.stat().st_mode) == 0o600


def test_looking_makes_nothing(index: RunIndex, tmp_path: Path) -> None:
    assert index.stores() == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"these are notes" * 1000, b"SQLite format 3\x00" + bytes(5000)])
def test_a_broken_one_counts_as_empty_and_is_made_anew(index: RunIndex, content: bytes) -> None:
    index.path.parent.mkdir(parents=True)
    index.path.write_bytes(content)
    assert index.stores() == []
    assert index.note(Path("/one/state.db"), [made("a", 10.0)])
    assert index.stores() == [Path("/one/state.db")]


def test_one_with_another_layout_counts_as_empty_and_is_made_anew(index: RunIndex) -> None:
    index.path.parent.mkdir(parents=True)
    with closing(sqlite3.connect(index.path)) as other, other:
        other.execute("CREATE TABLE runs(somebody TEXT)")
    assert index.stores() == []
    assert index.note(Path("/one/state.db"), [made("a", 10.0)])
    assert index.stores() == [Path("/one/state.db")]


def test_where_it_cannot_be_written_that_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file where the folder should be")
    index = RunIndex(tmp_path / "state" / NAME)
    assert not index.note(Path("/one/state.db"), [made("a", 10.0)])
    assert index.stores() == []


def test_while_another_doctor_writes_it_waits_and_gives_up(index: RunIndex) -> None:
    assert index.note(Path("/one/state.db"), [made("a", 10.0)])
    with closing(sqlite3.connect(index.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert not index.note(Path("/two/state.db"), [made("b", 20.0)])
        assert index.stores() == [Path("/one/state.db")]


def test_a_path_that_is_no_text(index: RunIndex) -> None:
    store = Path(os.fsdecode(b"/caf\xe9/state.db"))
    assert index.note(store, [made("a", 10.0)])
    assert index.stores() == [store]


def test_where_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    assert state_folder() == tmp_path / "xdg" / NAME
    # What is no absolute path does not count (XDG base directory specification).
    monkeypatch.setenv("XDG_STATE_HOME", "here")
    monkeypatch.chdir(tmp_path)
    assert state_folder().is_absolute()
    monkeypatch.delenv("XDG_STATE_HOME")
    assert state_folder().is_relative_to(tmp_path)
    assert state_folder().name == NAME
