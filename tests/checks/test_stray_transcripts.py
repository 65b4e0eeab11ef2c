"""stray-transcripts: what only a file holds is found, and what hermes's own doings explain is not called lost."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from checks.stray_transcripts import CHECK
from hermes_doctor.engine.model import Bucket, Finding, Severity
from hermes_doctor.engine.rows import ask
from hermes_doctor.store import transcripts
from hermes_doctor.store.transcripts import unfolded
from tests.checks.support import findings_of
from tests.checks.transcript_cases import VERSIONS, TranscriptCase, made_once
from tests.oracle.home import Home
from tests.oracle.steps import call
from tests.oracle.templates import LivedIn
from tests.store.views import view_of

Made = tuple[Home, tuple[TranscriptCase, ...]]


@pytest.fixture
def made(oracle: None, shared_folder: Path) -> Callable[[str], Made]:
    return lambda version: made_once(shared_folder, version)


def line(finding: Finding) -> tuple[Any, int, Bucket, bool]:
    messages = finding.detail.get("messages", finding.detail.get("files"))
    assert isinstance(messages, int)
    return finding.session or finding.key, messages, finding.bucket, finding.severity is Severity.WARNING


def wrong(version: str, made: Made) -> list[Any]:
    """What the check says of the home and should not, or should and does not."""
    home, cases = made
    said = {line(finding) for finding in findings_of(home.store, CHECK, home=home.path)}
    return sorted(said ^ {case.line for case in cases if case.bucket is not None}, key=str)


@pytest.mark.parametrize("version", VERSIONS)
def test_each_case_is_judged_right(made: Callable[[str], Made], version: str) -> None:
    assert wrong(version, made(version)) == []


@pytest.mark.parametrize("version", VERSIONS)
def test_files_asked_about_one_by_one_are_judged_alike(made: Callable[[str], Made], version: str) -> None:
    home, _cases = made(version)
    findings = findings_of(home.store, CHECK, home=home.path)
    names = [f"sessions/{path.name}" for path in (home.path / "sessions").iterdir()]
    with view_of(home.store, home=home.path) as view:
        alone = [finding for name in ["sessions", *names, "sessions/../x"] for finding in ask(CHECK, [name], view)]
    assert sorted(map(repr, alone)) == sorted(map(repr, findings))


WRONG: list[tuple[str, str, Any]] = [
    ("0.22.2", "unfolded", lambda _likenesses: 0),
    ("0.22.2", "_elsewhere", lambda _view: transcripts._Elsewhere(frozenset(), complete=True)),
    ("0.22.2", "spared", lambda _view, _session: None),
    ("0.22.2", "is_diverted", lambda _record: False),
    ("0.19.0", "was_written", lambda _record: True),
    ("0.19.0", "told_session", lambda file: file.session),
    ("0.19.0", "_is_suspect", lambda _file, _stored, counted: False),
    ("0.13.0", "_is_suspect", lambda file, _stored, counted: file.size > 1000),
    ("0.13.0", "is_message", lambda record: isinstance(record, dict)),
]


@pytest.mark.parametrize(("version", "name", "instead"), WRONG)
def test_the_cases_tell_a_wrong_check(
    made: Callable[[str], Made], monkeypatch: pytest.MonkeyPatch, version: str, name: str, instead: Any
) -> None:
    monkeypatch.setattr(transcripts, name, instead)
    assert wrong(version, made(version)) != []


@pytest.mark.parametrize(
    ("lines", "begins"),
    [
        ("a", 0),
        ("abc", 0),
        ("aabab", 3),
        ("aababcabc", 6),
        # Two turns that are alike.
        ("aababaabab", 6),
        ("abab", 2),
        # It was diverted twice, and between that written: nothing tells what is repeated.
        ("abcad", None),
        ("babcbd", None),
    ],
)
def test_the_last_telling_is_found(lines: str, begins: int | None) -> None:
    assert unfolded([ord(each) for each in lines]) == begins


def test_a_store_in_use_is_left(made: Callable[[str], Made]) -> None:
    home, _cases = made("0.22.2")
    with view_of(home.store, home=home.path, held="yes") as view:
        found = list(CHECK.rules[0].find(view, None))  # type: ignore[union-attr]
    assert {finding.bucket for finding in found} == {Bucket.REFUSED}
    told = {finding.session for finding in findings_of(home.store, CHECK, home=home.path)}
    assert {finding.session for finding in found} == told


def test_only_plain_files_of_the_folder_are_read(home: Home, oracle: None) -> None:
    home.run("0.22.2", [call("create_session", name, "cli") for name in ("a", "b", "c", "..", "x")])
    folder = home.path / "sessions"
    folder.mkdir(exist_ok=True)
    text = json.dumps({"role": "user", "content": "secret"}) + "\n"
    outside = home.path / "outside.jsonl"
    outside.write_text(text)
    (folder / "a.jsonl").symlink_to(outside)
    (folder / "b.jsonl").mkdir()
    (folder / "request_dump_c_1.json").write_text("{}")
    (folder / "sessions.json").write_text("{}")
    if sys.platform != "win32":
        os.mkfifo(folder / "c.jsonl")
    (folder / "x.jsonl").write_text(text)
    # A document that names a session outside the folder is only words.
    (folder / "session_y.json").write_text(json.dumps({"session_id": "../outside", "messages": [{"role": "user"}]}))
    found = findings_of(home.store, CHECK, home=home.path)
    assert [(finding.key, finding.detail.get("messages")) for finding in found] == [
        ("sessions/x.jsonl", 1),
        ("sessions", None),
    ]
    assert "secret" not in repr(found)
    folder.rename(home.path / "elsewhere")
    folder.symlink_to(home.path / "elsewhere")
    assert findings_of(home.store, CHECK, home=home.path) == []


def test_a_store_alone_has_no_transcripts(made: Callable[[str], Made]) -> None:
    home, _cases = made("0.13.0")
    assert findings_of(home.store, CHECK) == []


def test_messages_without_times_are_compared_all_the_same(made: Callable[[str], Made], tmp_path: Path) -> None:
    home, _cases = made("0.13.0")
    before = findings_of(home.store, CHECK, home=home.path)
    aside = Path(shutil.copytree(home.path, tmp_path / "aside"))
    connection = apsw.Connection(str(aside / home.store.name))
    connection.execute("ALTER TABLE messages RENAME COLUMN timestamp TO at")
    connection.close()
    after = findings_of(aside / home.store.name, CHECK, home=aside)
    assert before
    assert {finding.key for finding in before} <= {finding.key for finding in after}


@pytest.mark.parametrize("chain", [("0.13.0",), ("0.22.2",)], ids="+".join)
def test_a_home_lived_in_is_left(lived_in: LivedIn, chain: tuple[str, ...]) -> None:
    home = lived_in(*chain).home
    assert [finding for finding in findings_of(home.store, CHECK, home=home.path) if finding.severity > 1] == []


def test_only_the_newest_snapshots_are_counted_whatever_their_time(
    made: Callable[[str], Made], monkeypatch: pytest.MonkeyPatch
) -> None:
    home, cases = made("0.19.0")
    monkeypatch.setattr(transcripts, "_COUNTED", 1)
    said = {line(finding)[0] for finding in findings_of(home.store, CHECK, home=home.path)}
    # Their sessions have rows that are newer than the snapshots.
    assert {case.session for case in cases if case.bucket} - said == {"hole", "rewritten"}
    with view_of(home.store, home=home.path) as view:
        view.deep = True
        deep = {finding.session for finding in ask(CHECK, ["sessions/session_hole.json"], view)}
    assert deep == {"hole"}
