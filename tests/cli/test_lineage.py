"""`doctor lineage` through the installed command: the drawing, the document, names, several stores, bad inputs."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import apsw
import pytest

from tests.cli.support import doctor, listing, valid
from tests.oracle.home import Home
from tests.oracle.steps import call


@pytest.fixture(scope="module")
def template(oracle: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home of a chat that goes on in a second row, whose words and titles are private."""
    home = Home(tmp_path_factory.mktemp("chat") / "home")
    home.run(
        "0.22.2",
        [
            call("create_session", "chat-1", "cli"),
            call("append_message", "chat-1", "assistant", "a private word"),
            call("set_session_title", "chat-1", "a private title"),
            call("end_session", "chat-1", "compression"),
            call("create_session", "chat-2", "cli", parent_session_id="chat-1"),
            call("append_message", "chat-2", "assistant", "another private word"),
            call("end_session", "chat-2", "cli_close"),
            call("create_session", "lonely", "cli"),
            call("append_message", "lonely", "assistant", "a private word"),
            call("end_session", "lonely", "cli_close"),
        ],
    )
    return home.path


@pytest.fixture
def chat(template: Path, tmp_path: Path) -> Path:
    """A copy of that home."""
    return Path(shutil.copytree(template, tmp_path / "home"))


def test_it_is_drawn_and_nothing_is_left_behind(tmp_path: Path, chat: Path) -> None:
    before = listing(chat)
    done = doctor(tmp_path, "lineage", "chat-1", chat)
    assert (done.returncode, done.stderr) == (0, "")
    head, blank, introduction, _, *lines = done.stdout.splitlines()
    assert head.startswith("~/home/state.db   schema 31 · 3 sessions · 3 messages")
    assert blank == "" or blank.startswith("  ")
    assert "Resuming chat-1 opens chat-2." in done.stdout
    assert lines[-2].startswith("chat-1  start · cli · 1 message · compressed")
    assert lines[-1].startswith("↓ chat-2  continuation · 1 message · cli_close")
    assert introduction is not None
    assert "private" not in done.stdout
    assert "lonely" not in done.stdout
    assert listing(chat) == before
    assert list((tmp_path / "tmp").iterdir()) == []


def test_as_json(tmp_path: Path, chat: Path) -> None:
    done = doctor(tmp_path, "lineage", "chat-2", chat / "state.db", "--json")
    document = valid(done.stdout, "lineage")
    assert (done.returncode, document["exit_code"], done.stderr) == (0, 0, "")
    [database] = document["databases"]
    assert (database["asked"], database["root"], database["tip"], database["resumes"]) == (
        "chat-2",
        "chat-1",
        "chat-2",
        "chat-2",
    )
    assert [(row["id"], row["edge"], row["messages"], row["open"]) for row in database["sessions"]] == [
        ("chat-1", None, 1, False),
        ("chat-2", "continuation", 1, False),
    ]
    assert "private" not in done.stdout


def test_the_findings_of_its_sessions_are_named(tmp_path: Path, damaged: Path) -> None:
    done = doctor(tmp_path, "lineage", "never-continued", damaged)
    assert done.returncode == 0
    assert "! lineage-gaps: was compressed and goes on nowhere" in done.stdout
    assert "Next: doctor explain lineage-gaps" in done.stdout
    assert "open-zombies" not in done.stdout
    [database] = valid(doctor(tmp_path, "lineage", "never-continued", damaged, "--json").stdout, "lineage")["databases"]
    assert [finding["check"] for row in database["sessions"] for finding in row["findings"]] == ["lineage-gaps"]
    # Rows of other tables belong to their session.
    assert "! double-encoded: " in doctor(tmp_path, "lineage", "second-fork", damaged).stdout


def test_the_beginning_of_an_id_is_enough_if_it_is_the_only_one(tmp_path: Path, chat: Path) -> None:
    assert "lonely  start" in doctor(tmp_path, "lineage", "lon", chat).stdout
    several = doctor(tmp_path, "lineage", "chat", chat)
    assert (several.returncode, several.stdout) == (2, "")
    assert "'chat' is the beginning of several sessions: chat-1, chat-2. Type more of it." in several.stderr


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("chat-3", "Did you mean chat-2 or chat-1?"),
        ("lonly", "Did you mean lonely?"),
        ("zzzzzz", "hermes sessions list"),
        ("", "hermes sessions list"),
        ("\x1b[31m", "hermes sessions list"),
    ],
)
def test_an_unknown_session_is_a_usage_error(tmp_path: Path, chat: Path, name: str, hint: str) -> None:
    done = doctor(tmp_path, "lineage", name, chat)
    assert (done.returncode, done.stdout) == (2, "")
    assert "there is no session" in done.stderr
    assert hint in done.stderr
    assert "\x1b" not in done.stderr


def test_a_home_is_looked_through_store_by_store(tmp_path: Path, chat: Path) -> None:
    for profile in ("left", "right"):
        (chat / "profiles" / profile).mkdir(parents=True)
        shutil.copy(chat / "state.db", chat / "profiles" / profile / "state.db")
    with apsw.Connection(str(chat / "profiles/left/state.db")) as connection:
        connection.execute("UPDATE messages SET session_id = 'only-left' WHERE session_id = 'lonely'")
        connection.execute("UPDATE sessions SET id = 'only-left' WHERE id = 'lonely'")
    connection.close()
    both = valid(doctor(tmp_path, "lineage", "lonely", chat, "--json").stdout, "lineage")["databases"]
    assert [database["profile"] for database in both] == ["default", "right"]
    one = valid(doctor(tmp_path, "lineage", "only", chat, "--json").stdout, "lineage")["databases"]
    assert [database["profile"] for database in one] == ["left"]
    table = doctor(tmp_path, "lineage", "lonely", chat).stdout
    assert table.count("lonely  start") == 2
    nowhere = doctor(tmp_path, "lineage", "nowhere", chat)
    assert nowhere.returncode == 2
    assert "in any of 3 stores" in nowhere.stderr


def test_a_store_that_cannot_be_read_is_named(tmp_path: Path, chat: Path) -> None:
    (chat / "profiles" / "broken").mkdir(parents=True)
    (chat / "profiles" / "broken" / "state.db").write_bytes(b"no database at all" * 100)
    done = doctor(tmp_path, "lineage", "lonely", chat)
    assert done.returncode == 4
    assert "lonely  start" in done.stdout
    assert "profiles/broken/state.db cannot be read" in done.stderr
    assert "Next: " in done.stderr
    unknown = doctor(tmp_path, "lineage", "chat-9", chat)
    assert (unknown.returncode, unknown.stdout) == (4, "")


def test_no_store_at_all(tmp_path: Path) -> None:
    done = doctor(tmp_path, "lineage", "s1", tmp_path / "nothing")
    assert (done.returncode, done.stdout) == (4, "")
    assert "Next: " in done.stderr


def test_without_a_target_it_is_this_host(tmp_path: Path, chat: Path) -> None:
    done = doctor(tmp_path, "lineage", "lonely", extra={"HERMES_HOME": os.fspath(chat)})
    assert done.returncode == 0
    assert "lonely  start" in done.stdout


def test_to_a_file(tmp_path: Path, chat: Path) -> None:
    done = doctor(tmp_path, "lineage", "chat-1", chat, "--json", "--output", tmp_path / "tree.json")
    assert (done.returncode, done.stdout) == (0, "")
    assert valid((tmp_path / "tree.json").read_text(), "lineage")["databases"]
    refused = doctor(tmp_path, "lineage", "chat-1", chat, "--output", chat / "state.db")
    assert refused.returncode == 2
