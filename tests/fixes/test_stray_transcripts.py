"""stray-transcripts' fix: the release replays what the file tells, each row is what it writes itself, and back."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from checks import counter_drift
from checks.stray_transcripts import CHECK
from fixes import stray_transcripts as cure
from fixes.stray_transcripts import FIX
from hermes_doctor.engine.cure import Fix
from hermes_doctor.engine.model import Bucket
from hermes_doctor.store import told_messages
from tests.checks.transcript_cases import VERSIONS, TranscriptCase, made_once
from tests.fixes.support import Patient, change_meanwhile, outcome
from tests.oracle.home import Home
from tests.oracle.steps import call
from tests.whole.identical import difference, image_of, index_faults

#: What of a row is its own.
OWN = {"id", "session_id", "timestamp", "message_uid", "display_order", "display_identity"}
#: What a row that was brought back lacks: names that a release gives to calls in passing.
UNTOLD = {"tool_call_uids", "tool_call_uid"}
#: The same of a message that is replayed.
OWN_TOLD = {"timestamp", "message_uid", "_row_id", "_tool_call_uids", "_tool_call_uid", "_db_row_snapshot"}

Sick = tuple[Home, tuple[TranscriptCase, ...]]


@pytest.fixture
def sick(oracle: None, shared_folder: Path) -> Callable[[str], Sick]:
    return lambda version: made_once(shared_folder, version)


def rows_of(home: Home, session: str) -> list[dict[str, Any]]:
    rows = [row for row in image_of(home.store).table("messages") if row["session_id"] == session.encode()]
    rows.sort(key=lambda row: int(str(row["id"])))
    return [{name: cell for name, cell in row.items() if name not in OWN | UNTOLD} for row in rows]


def counts_of(home: Home, session: str) -> tuple[Any, Any]:
    rows = {row["id"]: row for row in image_of(home.store).table("sessions")}
    row = rows[session.encode()]
    return row["message_count"], row["tool_call_count"]


def wrong(version: str, made: Sick, fix: Fix, to: Path) -> list[Any]:
    """Mend a copy with that fix: the sessions that are not as if all had been written, and what else is wrong."""
    shutil.copytree(made[0].path, to, symlinks=True)
    home = Home(to)
    before = image_of(home.store)
    wanted = {case.session for case in made[1] if case.bucket is Bucket.UNSAFE}
    Patient(home.store, home.path).mend(checks=[CHECK], fixes=[fix])
    bad: list[Any] = []
    whole = rows_of(home, "whole")
    for session in sorted(wanted):
        written = whole[-4:] if session == "lost" else whole
        counts = (len(written), 1) if session == "lost" else counts_of(home, "whole")
        if rows_of(home, session) != written or counts_of(home, session) != counts:
            bad.append((session, counts_of(home, session)))
    changes = difference(before, image_of(home.store))
    added = [line for line in changes if line.startswith("messages ") and line.endswith(": the row is new")]
    if len(added) != sum(case.messages for case in made[1] if case.bucket is Bucket.UNSAFE):
        bad.append(added)
    return bad + [line for line in changes if line not in added and not _is_allowed(line)] + index_faults(home.store)


def _is_allowed(line: str) -> bool:
    """Whether a difference is a new session, a session's count, or what the indexes make of the new rows."""
    if line.startswith("sessions "):
        return line.endswith(": the row is new") or ": message_count " in line or ": tool_call_count " in line
    return " messages_fts" in line


@pytest.mark.parametrize("version", VERSIONS)
def test_each_row_is_what_the_release_writes(sick: Callable[[str], Sick], tmp_path: Path, version: str) -> None:
    assert wrong(version, sick(version), FIX, tmp_path / "home") == []


def _writing(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[..., Any]:
    return lambda message, *given: told_messages.row_of(change(dict(message)), *given)


WRONG: list[tuple[str, str, Any]] = [
    ("0.22.2", "row_of", _writing(lambda message: {**message, "reasoning_details": None})),
    ("0.22.2", "_count", lambda *_given: None),
    ("0.22.2", "calls_in", lambda _message: 0),
    ("0.19.0", "row_of", _writing(lambda message: {**message, "tool_name": message.get("name")})),
    ("0.19.0", "row_of", _writing(lambda message: {**message, "content": str(message["content"]).upper()})),
]


@pytest.mark.parametrize(("version", "name", "instead"), WRONG)
def test_a_wrong_fix_is_told(
    sick: Callable[[str], Sick], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str, name: str, instead: Any
) -> None:
    monkeypatch.setattr(cure, name, instead)
    assert wrong(version, sick(version), FIX, tmp_path / "home") != []


@pytest.mark.parametrize("version", VERSIONS)
def test_it_is_mended_once_replayed_and_taken_back(sick: Callable[[str], Sick], tmp_path: Path, version: str) -> None:
    made, cases = sick(version)
    home = Home(tmp_path / "home")
    shutil.copytree(made.path, home.path, dirs_exist_ok=True)
    patient = Patient(home.store, home.path)
    before = image_of(home.store)
    files = {path.name: path.read_bytes() for path in (home.path / "sessions").iterdir()}
    drifts = patient.findings([counter_drift.CHECK])
    sessions = [case.session for case in cases if case.bucket is Bucket.UNSAFE]
    safely = patient.mend(checks=[CHECK], fixes=[FIX], unsafe=False)
    assert outcome(safely) == ("nothing-to-do", 0, None)
    findings = patient.findings([CHECK])
    done = patient.mend(checks=[CHECK], fixes=[FIX])
    assert done.count("applied") == len(sessions)
    assert patient.mend(checks=[CHECK], fixes=[FIX]).count("applied") == 0
    assert {finding.session for finding in patient.findings([CHECK])}.isdisjoint(sessions)
    assert patient.findings([counter_drift.CHECK]) == drifts

    # A copy, which the release may change.
    copy = Home(tmp_path / "copy")
    shutil.copytree(home.path, copy.path, dirs_exist_ok=True)
    loads = [call("get_messages_as_conversation", session) for session in ["whole", *sessions]]
    whole, *replayed, _, _, rows = copy.run(
        version,
        [
            *loads,
            call("append_message", sessions[0], "user", "go on"),
            call("search_messages", "grüße"),
            call("get_session", sessions[0]),
        ],
    )
    for session, told in zip(sessions, replayed, strict=True):
        assert [_told(each) for each in told] == [_told(each) for each in (whole[-4:] if session == "lost" else whole)]
    assert rows["message_count"] == len(whole) + 1

    assert {path.name: path.read_bytes() for path in (home.path / "sessions").iterdir()} == files
    assert outcome(patient.undo(done.run)) == ("fixed", 0, None)
    assert difference(before, image_of(home.store)) == []
    assert index_faults(home.store) == []
    assert patient.findings([CHECK]) == findings


def _told(message: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in message.items() if name not in OWN_TOLD}


def test_what_was_changed_meanwhile_is_left(sick: Callable[[str], Sick], tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    shutil.copytree(sick("0.19.0")[0].path, home.path, dirs_exist_ok=True)
    patient = Patient(home.store, home.path)
    (finding,) = (each for each in patient.findings([CHECK]) if each.session == "tail")
    before = image_of(home.store)
    file = home.path / str(finding.key)
    text = file.read_text()
    file.unlink()
    assert change_meanwhile(patient, FIX, finding) == "RowMovedError"
    file.write_text(text)
    assert difference(before, image_of(home.store)) == []
    said = ("INSERT INTO messages (session_id, role, content, timestamp) VALUES ('tail', 'user', 'more', 4e9)", ())
    assert change_meanwhile(patient, FIX, finding, said) == "RowMovedError"
