"""The progress line."""

from __future__ import annotations

import io
import time
from pathlib import Path

import pytest

from hermes_doctor.report.progress import ProgressLine

_STORE = Path("/srv/hermes/state.db")


def test_nothing_is_drawn_where_it_is_not_shown() -> None:
    stream = io.StringIO()
    with ProgressLine(stream, shown=False) as line:
        line(_STORE, "reading", 0.5)
    assert stream.getvalue() == ""


def test_it_says_how_far_it_is_and_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    stream = io.StringIO()
    with ProgressLine(stream, shown=True) as line:
        line(_STORE, "reading", 0.5)
        assert stream.getvalue() == "\r/srv/hermes/state.db  reading  50%"
    rest = stream.getvalue().rsplit("%", 1)[1]
    assert rest == "\r" + " " * 34 + "\r"


def test_it_is_redrawn_at_most_ten_times_a_second() -> None:
    stream = io.StringIO()
    started = time.monotonic()
    with ProgressLine(stream, shown=True) as line:
        while time.monotonic() - started < 0.35:
            line(_STORE, "reading", None)
        drawn = stream.getvalue().count("reading")
    assert 2 <= drawn <= 5


@pytest.mark.parametrize("columns", ["10", "20", "40"])
def test_it_never_wraps(monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    stream = io.StringIO()
    ProgressLine(stream, shown=True)(Path("/a/very/long/way\x1b/to/a/store/state.db"), "reading", 0.07)
    drawn = stream.getvalue().removeprefix("\r")
    assert len(drawn) < int(columns)
    assert "\x1b" not in drawn
