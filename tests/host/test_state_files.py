"""What the small files of a home say about sessions, and what happens where they are broken."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from hermes_doctor.host.state_files import (
    Mentions,
    active_sessions_ids,
    cron_job_ids,
    other_databases,
    routed_session_ids,
    transcript_exists,
)
from tests.host.evidence import no_trace_in

READERS = {
    "sessions/sessions.json": routed_session_ids,
    "runtime/active_sessions.json": active_sessions_ids,
    "cron/jobs.json": cron_job_ids,
}


def put(home: Path, place: str, content: object) -> Path:
    path = home / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path


@pytest.mark.parametrize("place", READERS)
@pytest.mark.parametrize(
    ("content", "ids"),
    [
        ({}, []),
        ([], []),
        ({"agent:main:telegram:dm:1": {"session_key": "k", "session_id": "s1", "origin": {"chat_id": "s9"}}}, ["s1"]),
        ([{"session_id": "s1"}, {"deep": [{"er": {"session_id": "s2"}}]}], ["s1", "s2"]),
        ({"entries": [{"lease_id": "l", "session_id": "s1", "metadata": {"parent_session_id": "s0"}}]}, ["s0", "s1"]),
        ({"_README": "no session", "k": {"session_id": None}, "l": {"session_id": 7}}, []),
        ({"session_id": {"session_id": "s1"}}, ["s1"]),
        (b'\xef\xbb\xbf{"k": {"session_id": "s1"}}', ["s1"]),
    ],
)
def test_every_session_id_at_any_depth(tmp_path: Path, place: str, content: object, ids: list[str]) -> None:
    put(tmp_path, place, content)
    with no_trace_in(tmp_path):
        assert READERS[place](tmp_path) == Mentions(frozenset(ids), readable=True)


@pytest.mark.parametrize("place", READERS)
@pytest.mark.parametrize(
    "content", [b"", b"{", b"null", b'"s1"', b"7", b"\xff", b'{"session_id": "s1"} x', b"[" * 100_000]
)
def test_broken_is_not_the_same_as_empty(tmp_path: Path, place: str, content: bytes) -> None:
    put(tmp_path, place, content)
    assert READERS[place](tmp_path) == Mentions(readable=False)


@pytest.mark.parametrize("place", READERS)
def test_what_is_not_there_names_nobody(tmp_path: Path, place: str) -> None:
    assert READERS[place](tmp_path) == Mentions(frozenset(), readable=True)
    (tmp_path / place).parent.mkdir()
    assert READERS[place](tmp_path).readable
    os.mkfifo(tmp_path / place)
    assert not READERS[place](tmp_path).readable


@pytest.mark.parametrize(
    "name",
    ["s1.json", "s1.jsonl", "session_s1.json", "request_dump_s1_20260101_120000_000001.json", "request_dump_s1.json"],
)
def test_a_transcript_is_known_by_its_name(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "sessions"
    assert not transcript_exists(tmp_path, "s1")
    folder.mkdir()
    (folder / "sessions.json").touch()
    (folder / "s10.json").touch()
    (folder / "xs1.json").touch()
    assert not transcript_exists(tmp_path, "s1")
    (folder / name).touch()
    assert transcript_exists(tmp_path, "s1")
    (folder / name).unlink()
    assert not transcript_exists(tmp_path, "s1")


def test_a_transcript_that_comes_within_a_tick_of_the_clock_is_seen(tmp_path: Path) -> None:
    folder = tmp_path / "sessions"
    folder.mkdir()
    moment = folder.stat().st_mtime_ns
    assert not transcript_exists(tmp_path, "s1")
    (folder / "s1.json").touch()
    # As most file systems have it: of two changes within some milliseconds, the second shows no new time.
    os.utime(folder, ns=(moment, moment))
    assert transcript_exists(tmp_path, "s1")


def test_a_name_that_was_made_harmless(tmp_path: Path) -> None:
    """Later releases replace what is no word character in a dump's name, and add a hash."""
    (tmp_path / "sessions").mkdir()
    (tmp_path / "sessions" / "request_dump_api_user_1_0a1b2c3d4e5f_20260101_120000_000001.json").touch()
    assert transcript_exists(tmp_path, "api:user.1")
    assert not transcript_exists(tmp_path, "api:user.2")


@pytest.mark.parametrize("session_id", ["", "../state", "a/b", "a\\b", "a\x00b", "..", "x" * 256])
def test_an_id_that_is_no_name_is_spared(tmp_path: Path, session_id: str) -> None:
    (tmp_path / "sessions").mkdir()
    assert transcript_exists(tmp_path, session_id)


@pytest.mark.parametrize("session_id", ["*", "[a-z]*", "?1", "\udcff", "s[1]"])
def test_an_id_is_no_pattern(tmp_path: Path, session_id: str) -> None:
    (tmp_path / "sessions").mkdir()
    (tmp_path / "sessions" / "s1.json").touch()
    (tmp_path / "sessions" / "request_dump_s1_2.json").touch()
    assert not transcript_exists(tmp_path, session_id)


def test_a_folder_that_is_none_is_empty_and_a_moved_one_is_looked_into(tmp_path: Path) -> None:
    (tmp_path / "sessions").touch()
    assert not transcript_exists(tmp_path, "s1")
    moved = tmp_path / "elsewhere"
    put(moved, "sessions.json", {"k": {"session_id": "s2"}})
    (moved / "s1.jsonl").touch()
    put(tmp_path, "gateway.json", {"sessions_dir": str(moved)})
    assert transcript_exists(tmp_path, "s1")
    assert routed_session_ids(tmp_path).ids == {"s2"}


@pytest.mark.parametrize("gateway", [b"{", {"sessions_dir": "relative"}, {"sessions_dir": 7}])
def test_where_session_files_are_cannot_be_told(tmp_path: Path, gateway: object) -> None:
    put(tmp_path, "gateway.json", gateway)
    assert transcript_exists(tmp_path, "s1")
    assert not routed_session_ids(tmp_path).readable


def test_other_databases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HERMES_KANBAN_DB", raising=False)
    assert other_databases(tmp_path) == []
    for place in (
        "state.db", "state.db-wal", "state.db.malformed-backup-1.db", "kanban.db", "response_store.db", "mine.db",
        "cron/executions.db", "kanban/boards/work/kanban.db", "sub/other.db", "kanban.db-wal",
    ):  # fmt: skip
        put(tmp_path, place, b"")
    (tmp_path / "folder.db").mkdir()
    assert [str(path.relative_to(tmp_path)) for path in other_databases(tmp_path)] == [
        "cron/executions.db",
        "kanban/boards/work/kanban.db",
        "kanban.db",
        "mine.db",
        "response_store.db",
    ]
    elsewhere = put(tmp_path, "sub/board.db", b"")
    monkeypatch.setenv("HERMES_KANBAN_DB", str(elsewhere))
    assert elsewhere in other_databases(tmp_path)


def test_the_store_by_another_name_is_no_other_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HERMES_KANBAN_DB", raising=False)
    put(tmp_path, "state.db", b"")
    put(tmp_path, "mine.db", b"")
    (tmp_path / "link.db").symlink_to("state.db")
    (tmp_path / "hard.db").hardlink_to(tmp_path / "state.db")
    (tmp_path / "dangling.db").symlink_to("nowhere.db")
    assert [path.name for path in other_databases(tmp_path)] == ["dangling.db", "mine.db"]
