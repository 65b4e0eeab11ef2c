"""Progress as people and programs meet it: on a real terminal, as JSON lines, and nowhere else."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import apsw
import pytest

from tests.cli.support import ROOT, doctor, environment, start, valid

#: A check that takes its time, and says how far it is.
_SLOW = """
import os
import time
from hermes_doctor.plugin import Check, RelationRule, Safety, Severity

def find(view, keys):
    pieces = int(os.environ.get("PIECES", "12"))
    for place in range(pieces):
        if view.reader.on_share is not None:
            view.reader.on_share(place / pieces)
        time.sleep(0.1)
    return iter(())

CHECK = Check(name="slow/one", severity=Severity.INFO, summary="nothing", meaning="nothing", fix=Safety.NONE,
              page="", rule=RelationRule("sessions", find))
"""


@pytest.fixture
def slow(tmp_path: Path) -> dict[str, str]:
    """What lets a scan take more than a second: settings of the environment."""
    site = tmp_path / "site"
    about = site / "hermes_doctor_slow-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: hermes-doctor-slow\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[hermes_doctor.checks]\nslow/one = slow_one:CHECK\n")
    (site / "slow_one.py").write_text(_SLOW)
    return {"PYTHONPATH": os.pathsep.join([str(ROOT), str(site)]), "TERM": "xterm"}


@contextmanager
def terminal(columns: int = 80) -> Iterator[tuple[int, int]]:
    """A real terminal of that width: the end that shows it, and the end to write to."""
    leading, following = os.openpty()
    try:
        fcntl.ioctl(following, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        os.set_blocking(leading, False)
        yield leading, following
    finally:
        os.close(leading)
        os.close(following)


def shown(leading: int) -> str:
    """What the terminal was sent since the last look."""
    text = b""
    while True:
        try:
            text += os.read(leading, 65536)
        except BlockingIOError:
            return text.decode()


def seen(folder: Path, *arguments: str | Path, env: dict[str, str], columns: int = 80) -> tuple[str, int]:
    """What standard error shows where it is a terminal, and the exit code; standard output is a pipe."""
    with terminal(columns) as (leading, following):
        process = start(folder, *arguments, env=environment(folder, **env), stdin=following, stderr=following)
        process.communicate(timeout=60)
        return shown(leading), process.returncode


def json_lines(text: str) -> list[Any]:
    """All lines of a text, each a valid object of progress."""
    return [valid(line, "progress") for line in text.splitlines()]


def test_a_scan_shows_how_far_it_is_on_a_terminal(tmp_path: Path, damaged: Path, slow: dict[str, str]) -> None:
    text, code = seen(tmp_path, "scan", damaged, env=slow | {"PIECES": "26"})
    assert code == 1
    drawn = re.findall(r"\r([^\r]*)\x1b\[K", text)
    assert "".join(f"\r{line}\x1b[K" for line in drawn) == text, "nothing but the line, drawn anew"
    assert all(before != after for before, after in pairwise(drawn)), "only where it changed"
    shares = [int(found[1]) for line in drawn if (found := re.search(r"checking slow/one \(\d+ of \d+\) (\d+)%", line))]
    assert shares == sorted(shares)
    assert len(shares) >= 5
    assert all(line.startswith("~/damaged/state.db  ") for line in drawn[:-1])
    assert any(re.search(r"%, \d s left$", line) for line in drawn), "after a second it says how long it still takes"
    assert drawn[-1] == "", "it is taken away at the end"


@pytest.mark.parametrize("columns", [30, 48])
def test_a_narrow_terminal_is_no_reason_to_wrap(
    tmp_path: Path, damaged: Path, slow: dict[str, str], columns: int
) -> None:
    """Of the terminal that it is drawn on, whatever is said of another one."""
    text, _code = seen(tmp_path, "scan", "--check", "slow/one", damaged, columns=columns, env=slow | {"COLUMNS": "200"})
    drawn = [line.removesuffix("\x1b[K") for line in text.split("\r")]
    assert max(map(len, drawn)) < columns
    assert any("slow/one" in line for line in drawn)


@pytest.mark.parametrize(
    ("options", "env"),
    [
        (["--no-progress"], {}),
        (["--progress", "none"], {}),
        (["--quiet"], {}),
        ([], {"TERM": "dumb"}),
        ([], {"HERMES_DOCTOR_SCAN_PROGRESS": "none"}),
    ],
    ids=["no-progress", "none", "quiet", "dumb", "environment"],
)
def test_a_terminal_shows_nothing_where_it_is_not_wanted(
    tmp_path: Path, damaged: Path, slow: dict[str, str], options: list[str], env: dict[str, str]
) -> None:
    assert seen(tmp_path, "scan", "--check", "slow/one", damaged, *options, env=slow | env) == ("", 0)


def test_what_is_no_terminal_gets_nothing(tmp_path: Path, damaged: Path, slow: dict[str, str]) -> None:
    assert doctor(tmp_path, "scan", "--check", "slow/one", damaged, extra=slow).stderr == ""


def test_quick_work_shows_nothing(tmp_path: Path, healthy: Path) -> None:
    started = time.monotonic()
    text, code = seen(tmp_path, "scan", "--check", "weights", healthy, env={"TERM": "xterm"})
    if time.monotonic() - started < 0.5:
        assert (text, code) == ("", 0)


def test_json_lines_for_programs(tmp_path: Path, damaged: Path, slow: dict[str, str]) -> None:
    done = doctor(tmp_path, "scan", "--check", "slow/one", damaged, "--json", "--progress", "json", extra=slow)
    assert done.returncode == 0
    valid(done.stdout, "scan")
    lines = json_lines(done.stderr)
    assert {line["path"] for line in lines} == {str(damaged)}
    assert {line["step"] for line in lines} == {"checking slow/one (1 of 1)"}
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    assert 2 <= len(lines) <= 5, "twice a second"
    shares = [line["share"] for line in lines]
    assert shares == sorted(shares)
    assert lines[-1]["seconds_left"] == 0


def test_json_lines_do_not_depend_on_a_terminal(tmp_path: Path, damaged: Path, slow: dict[str, str]) -> None:
    text, _code = seen(tmp_path, "scan", "--check", "slow/one", damaged, "--progress", "json", "--quiet", env=slow)
    assert len(json_lines(text)) >= 2


def test_two_words_that_contradict_each_other(tmp_path: Path, damaged: Path) -> None:
    done = doctor(tmp_path, "scan", damaged, "--no-progress", "--progress", "json")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--no-progress and --progress json contradict each other" in done.stderr
    # What is typed outranks the environment, either way.
    typed = doctor(tmp_path, "scan", damaged, "--no-progress", extra={"HERMES_DOCTOR_SCAN_PROGRESS": "json"})
    assert (typed.returncode, typed.stderr) == (1, "")


def test_ctrl_c_takes_the_line_away(tmp_path: Path, damaged: Path, slow: dict[str, str]) -> None:
    with terminal() as (leading, following):
        process = start(tmp_path, "scan", damaged, env=environment(tmp_path, **slow), stdin=following, stderr=following)
        text = _wait_for(leading, "slow/one")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        text += shown(leading)
    assert process.returncode == 7
    assert text.rsplit("\r\x1b[K", 1)[1].startswith("doctor: stopped.")


def _wait_for(leading: int, word: str) -> str:
    text, deadline = "", time.monotonic() + 30
    while word not in text:
        assert time.monotonic() < deadline, f"never seen: {word}, but {text!r}"
        time.sleep(0.02)
        text += shown(leading)
    return text


@pytest.mark.parametrize("command", [["scan"], ["fix"], ["fix", "--apply"], ["undo", "RUN"], ["compact"]], ids=" ".join)
def test_each_command_says_what_it_waits_for(tmp_path: Path, damaged: Path, command: list[str]) -> None:
    """Somebody else is writing, so that it has to wait until he has done; from then on it is quick."""
    if command[0] == "undo":
        assert doctor(tmp_path, "fix", "--apply", "--check", "orphan-stubs", damaged).returncode == 0
        command = ["undo", doctor(tmp_path, "runs", damaged, "--json").stdout.split('"run": "', 1)[1].split('"')[0]]
    writer = apsw.Connection(str(damaged))
    with closing(writer), terminal() as (leading, following):
        writer.execute("BEGIN EXCLUSIVE")
        process = start(
            tmp_path, *command, damaged, env=environment(tmp_path, TERM="xterm"), stdin=following, stderr=following
        )
        try:
            text = _wait_for(leading, "~/damaged/state.db  opening")
            writer.execute("ROLLBACK")
            writer.close()
            process.communicate(timeout=60)
        except BaseException:
            process.kill()
            raise
        text += shown(leading)
    assert process.returncode in (0, 1, 5)
    assert text.endswith("\r\x1b[K")


def test_what_reads_no_more_is_no_reason_to_fail(tmp_path: Path, damaged: Path, slow: dict[str, str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = doctor(
            tmp_path,
            *("scan", "--check", "slow/one", damaged, "--progress", "json"),
            extra=slow,
            capture_output=False,
            stdout=subprocess.PIPE,
            stderr=writing,
        )
    finally:
        os.close(writing)
    assert done.returncode == 0
    assert "healthy" in done.stdout
