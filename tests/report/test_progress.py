"""What is told of work that goes on: the line, the JSON lines, and how long it still takes."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from hermes_doctor.report.progress import PATIENCE, Estimate, ProgressDisplay, Style, fitted, left_in_words
from tests.cli.support import valid

_STORE = Path("/srv/hermes/state.db")


class _Terminal(io.StringIO):
    """Notes each thing that is written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[str] = []

    def write(self, text: str) -> int:
        self.written.append(text)
        return super().write(text)


def _wait_for(told: Callable[[], bool]) -> None:
    """Wait until that is so, for at most as long as a slow machine may take."""
    deadline = time.monotonic() + 20
    while not told():
        assert time.monotonic() < deadline, "it was never told"
        time.sleep(0.01)


def _lines(stream: io.StringIO) -> list[Any]:
    return [valid(line, "progress") for line in stream.getvalue().splitlines()]


@pytest.mark.parametrize("style", ["line", "json"])
def test_quick_work_is_not_worth_a_word(style: Style) -> None:
    stream = io.StringIO()
    started = time.monotonic()
    with ProgressDisplay(stream, style) as progress:
        for place in range(50):
            progress(_STORE, "reading", place / 50)
    assert time.monotonic() - started < PATIENCE
    assert stream.getvalue() == ""


def test_nothing_is_told_where_nobody_wants_it() -> None:
    stream = io.StringIO()
    with ProgressDisplay(stream, "none") as progress:
        progress(_STORE, "reading", 0.5)
        time.sleep(PATIENCE + 0.2)
    assert stream.getvalue() == ""


def test_the_line_says_how_far_it_is_and_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    stream = _Terminal()
    with ProgressDisplay(stream, "line") as progress:
        progress(_STORE, "reading messages", 0.5)
        # From here on it is silent, as inside a long statement of SQLite's.
        _wait_for(lambda: bool(stream.written))
        assert stream.written == ["\r/srv/hermes/state.db  reading messages 50%\x1b[K"]
        time.sleep(0.35)
        assert len(stream.written) == 1, "what has not changed is not drawn again"
        progress(_STORE, "backing up", None)
        _wait_for(lambda: len(stream.written) > 1)
    assert stream.written[1:] == ["\r/srv/hermes/state.db  backing up\x1b[K", "\r\x1b[K"]


def test_the_line_is_drawn_at_most_ten_times_a_second() -> None:
    stream = _Terminal()
    with ProgressDisplay(stream, "line") as progress:
        started = time.monotonic()
        told = 0
        while (passed := time.monotonic() - started) < PATIENCE + 0.55:
            progress(_STORE, f"step {told}", None)
            told += 1
            time.sleep(0.001)
        drawn = len(stream.written)
    assert told > 3 * drawn
    assert 2 <= drawn <= 10 * (passed - PATIENCE) + 2


def test_the_line_goes_away_after_an_error_too() -> None:
    stream = _Terminal()

    def work() -> None:
        with ProgressDisplay(stream, "line") as progress:
            progress(_STORE, "reading", None)
            _wait_for(lambda: bool(stream.written))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    assert stream.written[-1] == "\r\x1b[K"


def test_a_stream_that_fails_costs_the_work_nothing() -> None:
    class Gone(io.StringIO):
        tries = 0

        def write(self, text: str) -> int:
            Gone.tries += 1
            raise BrokenPipeError

    with ProgressDisplay(Gone(), "json") as progress:
        progress(_STORE, "reading", 0.5)
        _wait_for(lambda: Gone.tries > 0)
        progress(_STORE, "reading", 0.6)
        time.sleep(0.7)
    assert Gone.tries == 1


@pytest.mark.parametrize("width", [1, 2, 8, 12, 20, 40, 200])
@pytest.mark.parametrize("path", ["/a/very/long/way\x1b/to/a/store/state.db", "/家/漢字/の/道/漢字漢字漢字/state.db"])
def test_it_never_wraps(width: int, path: str) -> None:
    line = fitted(Path(path), "reading messages 7%", width)
    columns = sum(2 if ord(sign) > 0x2E80 else 1 for sign in line)
    assert columns <= width
    assert "\x1b" not in line
    told = "reading messages 7%"
    assert line.endswith(told) if width >= len(told) else told.startswith(line)
    if width == 40:
        assert line.startswith("…")
        assert columns >= 39


def test_json_lines_tell_of_each_step_and_its_end() -> None:
    stream = io.StringIO()
    with ProgressDisplay(stream, "json") as progress:
        progress(_STORE, "opening", None)
        progress(_STORE, "reading messages", 0.25)
        _wait_for(lambda: len(_lines(stream)) == 1)
        progress(_STORE, "reading messages", 0.75)
        _wait_for(lambda: len(_lines(stream)) == 2)
        progress(_STORE, "checking weights (1 of 1)", None)
        _wait_for(lambda: len(_lines(stream)) == 4)
    lines = _lines(stream)
    assert {line["path"] for line in lines} == {str(_STORE)}
    # What was over before anything was told is left out.
    assert [(line["step"], line["share"], line["done"]) for line in lines] == [
        ("reading messages", 0.25, False),
        ("reading messages", 0.75, False),
        ("reading messages", 0.75, True),
        ("checking weights (1 of 1)", None, False),
        ("checking weights (1 of 1)", None, True),
    ]
    assert [line["seconds_left"] for line in lines if line["done"]] == [0, 0]


def test_a_step_that_was_broken_off_has_no_end() -> None:
    stream = io.StringIO()

    def work() -> None:
        with ProgressDisplay(stream, "json") as progress:
            progress(_STORE, "reading", 0.1)
            _wait_for(lambda: bool(stream.getvalue()))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    assert [line["done"] for line in _lines(stream)] == [False]


def test_json_lines_hold_any_path() -> None:
    stream = io.StringIO()
    path = Path("/tmp/caf\udce9\n/state.db")
    with ProgressDisplay(stream, "json") as progress:
        progress(path, "reading", 0.5)
        _wait_for(lambda: bool(stream.getvalue()))
    assert json.loads(stream.getvalue().splitlines()[0])["path"] == str(path)


def _shown(shares: Iterator[tuple[float, float]]) -> list[tuple[float, float]]:
    """What is said ten times a second to be left of work that tells its shares at these times: (time, seconds)."""
    estimate, looks, look = Estimate(0.0), [], 0.0
    estimate.tell(0.0, 0.0)
    for at, share in shares:
        while look < at:
            if (left := estimate.seconds_left(look)) is not None:
                looks.append((look, left))
            look += 0.1
        estimate.tell(share, at)
    return looks


def test_work_that_goes_on_evenly_counts_down() -> None:
    """Sixty seconds, told about once a second, as ranges of rows are."""
    looks = _shown((at, at / 60) for at in range(1, 61))
    assert looks[0][0] <= 3
    assert all(abs(at + left - 60) < 0.01 for at, left in looks)


def test_work_in_fits_and_starts_never_makes_it_jump() -> None:
    """Each second share is quick and each other one slow, by turns."""

    def uneven() -> Iterator[tuple[float, float]]:
        at = 0.0
        for place in range(1, 101):
            at += 0.2 if place % 2 else 1.0
            yield at, place / 100

    looks = _shown(uneven())
    later = [(at, left) for at, left in looks if at > 6]
    assert all(abs(at + left - 60) < 6 for at, left in later)
    rises = [after - before for (_, before), (_, after) in pairwise(later)]
    assert max(rises) < 1.0


def test_work_that_becomes_slower_is_said_so_step_by_step() -> None:
    """The first half takes ten seconds, the second forty."""
    looks = _shown((at, at / 20 if at <= 10 else 0.5 + (at - 10) / 80) for at in (k / 4 for k in range(1, 201)))
    rises = [after - before for (_, before), (_, after) in pairwise(looks)]
    assert max(rises) < 1.0, "it never jumps up"
    assert min(rises) > -1.5, "nor down"
    [middle] = [left for at, left in looks if abs(at - 30) < 0.05]
    assert 15 < middle < 25


def test_how_far_it_is_never_becomes_less() -> None:
    estimate = Estimate(0.0)
    for share in (0.2, 0.6, 0.3, None, 1.7):
        estimate.tell(share, 1.0)
    assert estimate.share == 1.0
    estimate.tell(0.1, 2.0)
    assert estimate.share == 1.0


def test_nothing_is_said_of_the_time_before_it_is_known() -> None:
    estimate = Estimate(0.0)
    estimate.tell(0.0, 0.0)
    estimate.tell(0.5, 0.3)
    assert estimate.seconds_left(0.3) is None
    estimate.tell(0.505, 2.0)
    assert estimate.seconds_left(2.0) == pytest.approx(2.0 * 0.495 / 0.505)
    assert estimate.seconds_left(100.0) == 0.0


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(1, "1 s"), (7.2, "8 s"), (20, "20 s"), (21, "25 s"), (88, "90 s"), (91, "2 minutes"), (3600, "60 minutes")],
)
def test_the_longer_the_rougher(seconds: float, words: str) -> None:
    assert left_in_words(seconds) == words
    assert left_in_words(10 * 3600) == "10 hours"
