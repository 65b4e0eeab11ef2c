"""The settings that decide about prune: understood, or not read at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hermes_doctor.host.settings import NO_SETTINGS, Settings, read_settings
from tests.host.evidence import no_trace_in


@pytest.fixture(autouse=True)
def no_administrator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Whatever this machine's administrator set is none of these tests' business."""
    folder = tmp_path / "managed"
    monkeypatch.setenv("HERMES_MANAGED_DIR", str(folder))
    return folder


def read(tmp_path: Path, text: str | bytes) -> Settings:
    home = tmp_path / "home"
    home.mkdir()
    (home / "config.yaml").write_bytes(text.encode() if isinstance(text, str) else text)
    with no_trace_in(home):
        return read_settings(home)


@pytest.mark.parametrize(
    ("text", "auto_prune", "days"),
    [
        ("", None, None),
        ("# nothing\n", None, None),
        ("model: x\n", None, None),
        ("sessions:\n", None, None),
        ("sessions: {}\n", None, None),
        ("sessions:\n  auto_prune: false\n", False, None),
        ("sessions:\n  auto_prune: true\n  retention_days: 30\n", True, 30.0),
        ("sessions:\n  retention_days: 0.5\n", None, 0.5),
        ("sessions: {auto_prune: off, retention_days: 0}\n", False, 0.0),
        ("\ufeffsessions: {auto_prune: yes}\n", True, None),
        ("sessions: {auto_prune: null, retention_days: ~}\n", None, None),
        ("checkpoints: {auto_prune: true}\n", None, None),
    ],
)
def test_understood(tmp_path: Path, text: str, auto_prune: bool | None, days: float | None) -> None:
    assert read(tmp_path, text) == Settings(read=True, auto_prune=auto_prune, retention_days=days)


@pytest.mark.parametrize(
    ("written", "taken"),
    [
        ("5000", 5000),
        ("0", 0),
        ('"30000"', 30000),
        ("2500.9", 2500),
        ("true", 1),
        ("-1", None),
        ("null", None),
        ("many", None),
        (".inf", None),
        ("[1]", None),
    ],
)
def test_limits_are_taken_as_hermes_takes_them(tmp_path: Path, written: str, taken: int | None) -> None:
    text = f"sessions: {{max_resume_messages: {written}, auto_prune: false}}\n"
    assert read(tmp_path, text) == Settings(read=True, auto_prune=False, max_resume_messages=taken)
    (tmp_path / "home" / "config.yaml").write_text(f"sessions: {{max_export_messages: {written}}}\n")
    assert read_settings(tmp_path / "home") == Settings(read=True, max_export_messages=taken)


@pytest.mark.parametrize(
    "text",
    [
        'sessions: {auto_prune: "false"}\n',
        "sessions: {auto_prune: 0}\n",
        "sessions: {auto_prune: ${PRUNE}}\n",
        "sessions: {auto_prune: [false]}\n",
        'sessions: {retention_days: "90"}\n',
        "sessions: {retention_days: true}\n",
        "sessions: {retention_days: -1}\n",
        "sessions: {retention_days: .nan}\n",
        "sessions: {retention_days: .inf}\n",
        "sessions: {retention_days: 1" + "0" * 400 + "}\n",
        "sessions: [auto_prune]\n",
        "sessions: no\n",
        "- sessions\n",
        "sessions: {auto_prune: false\n",
        "sessions: {auto_prune: false}\nsessions: {auto_prune: true}\n",
        "sessions: {auto_prune: false, auto_prune: true}\n",
        "sessions: !!python/object/apply:os.system [reboot]\n",
        "a: &a [*a]\nsessions: *b\n",
        b"\xff\xfe\x00",
        "x: !!bool maybe\n",
        "x: !!int ''\n",
        "x: !!timestamp never\n",
        "x: " + "[" * 5000,
    ],
)
def test_anything_odd_is_not_read(tmp_path: Path, text: str | bytes) -> None:
    assert read(tmp_path, text) == NO_SETTINGS
    assert not NO_SETTINGS.read


def test_no_file_a_folder_a_pipe(tmp_path: Path) -> None:
    assert read_settings(tmp_path) == NO_SETTINGS
    (tmp_path / "config.yaml").mkdir()
    assert read_settings(tmp_path) == NO_SETTINGS
    (tmp_path / "config.yaml").rmdir()
    os.mkfifo(tmp_path / "config.yaml")
    assert read_settings(tmp_path) == NO_SETTINGS


@pytest.mark.parametrize(
    ("managed", "expected"),
    [
        ("sessions: {auto_prune: true}\n", Settings(read=True, auto_prune=True, retention_days=30.0)),
        ("sessions: {retention_days: 7}\n", Settings(read=True, auto_prune=False, retention_days=7.0)),
        ("model: x\n", Settings(read=True, auto_prune=False, retention_days=30.0)),
        ("sessions: {auto_prune: maybe}\n", NO_SETTINGS),
        ("sessions: {\n", NO_SETTINGS),
    ],
)
def test_an_administrators_file_is_laid_over(
    tmp_path: Path, no_administrator: Path, managed: str, expected: Settings
) -> None:
    no_administrator.mkdir()
    (no_administrator / "config.yaml").write_text(managed)
    assert read(tmp_path, "sessions: {auto_prune: false, retention_days: 30}\n") == expected
