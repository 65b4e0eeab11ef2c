"""What the README shows is what the program prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hermes_doctor.demo.home import make_demo_home
from tests.whole.support import doctor

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")

#: What differs from run to run: names of runs and backups, times, and how many rows shared a transaction.
VARYING = [
    (re.compile(r"\d{8}-\d{6}(-[0-9a-f]{4})?"), "<stamp>"),
    (re.compile(r"\d+ transactions"), "<n> transactions"),
    (re.compile(r"[\d.]+ m?s\b"), "<time>"),
]


def shown() -> list[tuple[str, str]]:
    """The commands of the README's first screen, each with what it is said to print."""
    screen = README.split("```")[1]
    commands = re.split(r"^\$ ", screen, flags=re.MULTILINE)[1:]
    return [(command.split("\n", 1)[0], command.split("\n", 1)[1].strip()) for command in commands]


def alike(text: str) -> str:
    """The text without what differs from run to run, and as one line: where it wraps depends on that."""
    for pattern, word in VARYING:
        text = pattern.sub(word, text)
    return " ".join(text.split())


def test_the_first_screen_is_what_is_printed(tmp_path: Path) -> None:
    make_demo_home(tmp_path / ".hermes")
    host = {"HOME": str(tmp_path), "HERMES_HOME": "", "XDG_STATE_HOME": str(tmp_path / "state")}
    screen = shown()
    assert [command.split()[:2] for command, _ in screen] == [["doctor", "scan"], ["doctor", "fix"], ["doctor", "scan"]]
    for command, expected in screen:
        done = doctor(*command.split()[1:], environment=host)
        assert alike(done.stdout) == alike(expected)


@pytest.mark.parametrize("part", ["install and run", "install and test"])
def test_the_two_commands_stand_alone(part: str) -> None:
    blocks = re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
    run, test = (block.strip() for block in blocks)
    command = run if part == "install and run" else test
    assert "\n" not in command
    assert command.startswith("python3 -m venv ")
