"""Transcripts are read in bounded memory, and what cannot be read costs itself only."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hermes_doctor.host import transcripts
from hermes_doctor.host.transcripts import (
    Transcript,
    is_spooled,
    line_count,
    records,
    told_count,
    told_session,
    transcripts_of,
)


def written(home: Path, name: str, text: str) -> Transcript:
    folder = home / "sessions"
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    return next(file for file in transcripts_of(home) if file.path.name == name)


def test_names_tell_sessions(tmp_path: Path) -> None:
    for name in (
        "a.jsonl",
        "b.json",
        "session_c.json",
        ".d.json",
        "e.json.tmp",
        "sessions.json",
        "request_dump_f.json",
    ):
        written(tmp_path, "a.jsonl", "")
        (tmp_path / "sessions" / name).touch()
    told = [(file.session, file.lines) for file in transcripts_of(tmp_path)]
    assert told == [("a", True), ("b", False), ("c", False)]
    assert transcripts_of(tmp_path / "nowhere") == []


def test_a_line_that_is_broken_or_too_long_costs_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcripts, "_LONGEST_LINE", 40)
    lines = ['{"role": "user"}', "{", "[]", "", '{"role": "' + "x" * 200 + '"}', "\xff", '{"role": "tool"}']
    file = written(tmp_path, "a.jsonl", "\n".join(lines))
    broken = transcripts.BROKEN
    assert list(records(file)) == [{"role": "user"}, broken, broken, broken, broken, {"role": "tool"}]
    assert line_count(file) == len(lines) - 1


def test_a_document_is_read_up_to_a_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(tmp_path, "session_a.json", json.dumps({"messages": [{"role": "user"}, 1]}))
    assert list(records(file)) == [{"role": "user"}, transcripts.BROKEN]
    for text in ("{", "{}", '"text"', "[" * 100_000):
        with pytest.raises(ValueError, match=r"\S"):
            list(records(written(tmp_path, "session_b.json", text)))
    monkeypatch.setattr(transcripts, "LARGEST_DOCUMENT", 10)
    with pytest.raises(ValueError, match="too large"):
        list(records(file))


@pytest.mark.parametrize("block", [1, 7, 1 << 20])
def test_the_count_and_the_session_are_read_from_the_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(transcripts, "_AT_ONCE", block)
    # What a message says of a count is no count.
    words = '\n  "message_count": 7,'
    document = {"session_id": "../ä", "system_prompt": words, "message_count": 123, "messages": [{"content": words}]}
    file = written(tmp_path, "session_a.json", json.dumps(document, indent=2))
    assert (told_count(file), told_session(file)) == (123, "../ä")
    bare = written(tmp_path, "session_b.json", "{}")
    assert (told_count(bare), told_session(bare)) == (None, None)


def test_what_the_gateway_keeps_is_seen(tmp_path: Path) -> None:
    assert not is_spooled(tmp_path)
    (tmp_path / "pending_messages").mkdir()
    assert not is_spooled(tmp_path)
    (tmp_path / "pending_messages" / "a.json").touch()
    assert is_spooled(tmp_path)
