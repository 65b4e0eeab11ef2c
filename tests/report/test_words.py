"""Words: numbers, sizes, times, paths, and text made safe."""

from __future__ import annotations

import time
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes_doctor.report import words
from hermes_doctor.store.cells import BadText, Key


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (999, "999 bytes"),
        (1000, "1.0 KB"),
        (1024, "1.0 KB"),
        (1048576, "1.0 MB"),
        (1023 * 1024 + 1023, "1.0 MB"),
        (1503238553, "1.4 GB"),
        (2**60, "1024.0 PB"),
    ],
)
def test_sizes(count: int, text: str) -> None:
    assert words.size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"),
        (0.41, "0.4 s"),
        (59.94, "59.9 s"),
        (60, "1 minute"),
        (119, "1 minute"),
        (3600, "1 hour"),
        (86399, "23 hours"),
        (3 * 86400, "3 days"),
        (4000 * 86400, "4,000 days"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert words.duration(seconds) == text


def test_ago() -> None:
    assert words.ago(1000, 1030) == "just now"
    assert words.ago(1000, 1000 + 7200) == "2 hours ago"
    assert words.ago(1000 + 7200, 1000) == "in 2 hours"


@pytest.mark.skipif(not hasattr(time, "tzset"), reason="the zone cannot be set here")
def test_moments_are_in_the_readers_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert words.moment(0, 3 * 86400) == "1970-01-01 09:00 (3 days ago)"
    finally:
        monkeypatch.undo()
        time.tzset()


def test_counts() -> None:
    assert words.number(61465) == "61,465"
    assert words.counted(1, "session") == "1 session"
    assert words.counted(3049, "session") == "3,049 sessions"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain é 漢", "plain é 漢"),
        ("a\x1b[31mb", "a\\x1b[31mb"),
        ("tab\tline\n", "tab\\x09line\\x0a"),
        ("\x7f\x85\x9f", "\\x7f\\x85\\x9f"),
        ("\u202egpj.exe\u2066", "\\u202egpj.exe\\u2066"),
        ("\u2028\u200b\ufeff", "\\u2028\\u200b\\ufeff"),
        ("caf\udce9", "caf\\udce9"),
        ("so\xadft\u180e", "so\\xadft\\u180e"),
        ("tags\U000e0041\U000e007f", "tags\\U000e0041\\U000e007f"),
        ("flag \U0001f3f3", "flag \U0001f3f3"),
    ],
)
def test_visible(text: str, shown: str) -> None:
    assert words.visible(text) == shown


@settings(deadline=None)
@given(st.text(st.characters(codec=None)))
def test_visible_text_can_be_printed_and_cannot_act(text: str) -> None:
    shown = words.visible(text)
    shown.encode("utf-8")
    assert len(shown.splitlines()) <= 1
    assert not any(ord(c) < 32 or 0x7F <= ord(c) < 0xA0 for c in shown)
    assert not any(unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp") for c in shown)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("s0001", "s0001"),
        ("", "''"),
        (17, "17"),
        (None, "NULL"),
        (b"\x00\xff", "x'00ff'"),
        (BadText(b"caf\xe9"), "x'636166e9'"),
        (("default", 3), "(default, 3)"),
        ("bell\x07", "bell\\x07"),
    ],
)
def test_keys(key: Key, text: str) -> None:
    assert words.key_text(key) == text


def test_long_keys_are_shortened_in_the_middle() -> None:
    shown = words.key_text("a" * 500 + "b" * 500)
    assert len(shown) <= 80
    assert shown.startswith("aaa")
    assert "…" in shown
    assert shown.endswith("bbb")


def test_paths_in_the_home_folder_are_shortened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    assert words.short_path(Path("/home/ann/.hermes/state.db")) == "~/.hermes/state.db"
    assert words.short_path(Path("/home/ann")) == "~"
    assert words.short_path(Path("/home/anna/state.db")) == "/home/anna/state.db"
    monkeypatch.setenv("HOME", "/")
    assert words.short_path(Path("/srv/state.db")) == "/srv/state.db"
