"""Completion, in real shells on a real terminal: what is typed in part is there in whole after a Tab."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pexpect
import pytest

from checks import CHECKS
from hermes_doctor.cli.completion import reply
from tests.cli.support import doctor, environment, valid
from tests.debian import debian_program

PROMPT = "ready> "
SCRIPT = Path(sys.executable).with_name("doctor")

pytestmark = pytest.mark.skipif(not SCRIPT.exists(), reason="the doctor is not installed into this environment")

#: How each shell is begun without its user's files, and what its user is told to put into them.
BEGIN = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], f"PS1='{PROMPT}'; bind 'set bell-style none'"),
    "zsh": (
        ["zsh", "-f", "-i"],
        f"PS1='{PROMPT}'; unsetopt zle_bracketed_paste; autoload -Uz compinit; compinit -u -D",
    ),
    "fish": (
        ["fish", "--no-config", "-i"],
        f"function fish_prompt; echo -n '{PROMPT}'; end; function fish_greeting; end",
    ),
}
INSTALL = {
    "bash": 'eval "$(doctor completion bash)"',
    "zsh": 'eval "$(doctor completion zsh)"',
    "fish": "doctor completion fish | source",
}


class Terminal:
    """A shell with the doctor's completion in it, and somebody who types."""

    def __init__(self, shell: str, folder: Path, install: str | None = None) -> None:
        command, prepare = BEGIN[shell]
        places = f"{SCRIPT.parent}{os.pathsep}{os.environ['PATH']}"
        variables = environment(folder, PATH=places, TERM="vt100", NO_COLOR="1", XDG_DATA_HOME=str(folder / "data"))
        self._child = pexpect.spawn(
            command[0], command[1:], env=variables, cwd=str(folder), encoding="utf-8", timeout=60, dimensions=(60, 200)
        )
        self.run(prepare)
        self.run(install or INSTALL[shell])

    def run(self, line: str) -> None:
        """Type a line, and wait until the shell says that it is done."""
        self._child.send(f"{line}; echo 'do''ne'\r")
        self._child.expect("done\r\n")

    def shows(self, keys: str, expected: str) -> None:
        """Type keys, the last of which carries the line out, and wait for what that is expected to print."""
        self._child.send(f"{keys}; echo 'do''ne'\r")
        self._child.expect(expected)
        self._child.expect("done\r\n")

    def end(self) -> None:
        """Leave no shell behind."""
        self._child.close(force=True)


@pytest.fixture(params=list(BEGIN))
def terminal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Terminal]:
    debian_program(request.param)
    begun = Terminal(request.param, tmp_path)
    yield begun
    begun.end()


def test_what_is_begun_is_completed(terminal: Terminal, tmp_path: Path) -> None:
    (tmp_path / "a-home-of-hermes").mkdir()
    # What is completed is carried out: that it is shown could be the shell's own idea.
    terminal.shows("hermes-state-doctor expl\topen-zo\t", "open-zombies   warning")
    terminal.shows("doctor scan --ski\topen-z\t --check=orphan-st\t a-home\t", "a-home-of-hermes/state.db   missing")


def test_a_run_is_completed(tmp_path: Path, damaged: Path) -> None:
    run = valid(doctor(tmp_path, "fix", "--apply", damaged, "--json").stdout, "fix")["databases"][0]["run"]
    begun = Terminal("bash", tmp_path)
    begun.shows("doctor undo 2\t", f"Run {run} of ")
    begun.shows("doctor runs fo\t2\t --yes", "1 run forgotten")
    begun.end()


def test_zsh_loads_it_from_a_file_as_well(tmp_path: Path) -> None:
    debian_program("zsh")
    (tmp_path / "functions").mkdir()
    assert doctor(tmp_path, "completion", "zsh", "--output", tmp_path / "functions" / "_doctor").returncode == 0
    begun = Terminal("zsh", tmp_path, "fpath=(~/functions $fpath); compinit -u -D")
    # The first Tab loads it, the second finds it loaded.
    begun.shows("doctor expl\topen-zo\t", "open-zombies   warning")
    begun.end()


def question(shell: str, words: Sequence[str]) -> dict[str, str]:
    """The variables by which a shell asks about the last of the words, which is at the cursor."""
    before = words[:-1] if shell == "fish" else words
    place = words[-1] if shell == "fish" else str(len(words) - 1)
    return {"_HERMES_DOCTOR_COMPLETE": shell, "COMP_WORDS": "\n".join(before), "COMP_CWORD": place}


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., list[str]]:
    """What the doctor tells a shell of the last of the words."""

    def asked(shell: str, *words: str) -> list[str]:
        for name, value in question(shell, words).items():
            monkeypatch.setenv(name, value)
        assert reply(shell) == 0
        told = capsys.readouterr()
        assert told.err == ""
        return told.out.splitlines()

    return asked


def test_each_shell_gets_what_it_can_show(answers: Callable[..., list[str]]) -> None:
    summary = next(check.summary for check in CHECKS if check.name == "open-zombies")
    assert answers("bash", "doctor", "scan", "--skip", "open-") == ["plain,open-zombies"]
    assert answers("zsh", "doctor", "explain", "open-") == ["plain", "open-zombies", summary]
    assert answers("fish", "doctor", "explain", "open-") == [f"plain,open-zombies\t{summary}"]
    assert answers("fish", "doctor", "fix", "--check=open-") == [f"plain,--check=open-zombies\t{summary}"]


def test_commands_options_and_their_values(answers: Callable[..., list[str]]) -> None:
    offered = answers("bash", "doctor", "")
    assert [f"plain,{name}" for name in ("scan", "fix", "undo", "explain", "completion")] == [
        each for each in offered if each.partition(",")[2] in ("scan", "fix", "undo", "explain", "completion")
    ]
    assert answers("bash", "doctor", "scan", "--fail") == ["plain,--fail-on"]
    assert answers("bash", "doctor", "scan", "--fail-on", "w") == ["plain,warning"]
    assert answers("bash", "doctor", "scan", "x") == ["file,x"]
    assert answers("bash", "doctor", "undo", "20261129-210000-7f3a", "") == ["file,"]
    assert answers("bash", "doctor", "runs", "forget", "--older-than", "90d", "x") == ["file,x"]
    assert answers("bash", "doctor", "rescue", "x", "y") == ["file,y"]
    assert answers("bash", "doctor", "demo", "x") == ["dir,x"]
    assert answers("bash", "doctor", "config", "show", "unkn") == [""]
    assert answers("bash", "doctor", "config", "show", "resc") == ["plain,rescue"]
    # Behind the command stand its own options.
    assert answers("bash", "doctor", "config", "show", "scan", "resc") == [""]
    assert answers("bash", "doctor", "scan", "--check", "'open-z") == ["plain,open-zombies"]


def test_a_mistake_in_the_settings_does_not_disturb_it(tmp_path: Path) -> None:
    file = tmp_path / ".config" / "hermes-state-doctor" / "config.toml"
    file.parent.mkdir(parents=True)
    file.write_text("[nonsense]\n")
    done = doctor(tmp_path, extra=question("bash", ["doctor", "sca"]))
    assert (done.returncode, done.stdout, done.stderr) == (0, "plain,scan\n", "")


@pytest.mark.parametrize("shell", list(BEGIN))
def test_the_script_is_one_that_the_shell_can_read(tmp_path: Path, shell: str) -> None:
    program = debian_program(shell)
    script = tmp_path / "script"
    assert doctor(tmp_path, "completion", shell, "--output", script).returncode == 0
    done = subprocess.run([program, "-n", str(script)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_another_shell_is_a_usage_error(tmp_path: Path) -> None:
    done = doctor(tmp_path, "completion", "tcsh")
    assert done.returncode == 2
    assert "bash" in done.stderr
