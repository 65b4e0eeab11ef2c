"""The manual: a man page that man(1) and groff take without a word, made from what the program says of itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
import pexpect
import pytest

from checks import CHECKS
from hermes_doctor.cli.app import app
from hermes_doctor.cli.manual import man_page
from hermes_doctor.cli.tree import commands
from hermes_doctor.engine.model import ExitCode
from tests.cli.support import ROOT, doctor, environment
from tests.debian import debian_program

SCRIPT = Path(sys.executable).with_name("doctor")


def read(program: list[str]) -> str:
    """What a program makes of the page, without overstriking; it has nothing to say of it."""
    settings = os.environ | {"MANWIDTH": "80", "LC_ALL": "C.UTF-8"}
    done = subprocess.run(program, input=man_page(), capture_output=True, text=True, check=False, env=settings)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_groff_takes_it_without_a_warning() -> None:
    text = read([debian_program("groff", "groff-base"), "-man", "-Tutf8", "-ww", "-P-c", "-P-bou"])
    assert "DOCTOR(1)" in text
    assert "--fail-on [info|warning|error|never]" in text


def test_man_takes_it_without_a_warning_and_in_eighty_columns() -> None:
    text = read([debian_program("man", "man-db"), "--warnings", "-l", "-"])
    assert max(map(len, text.splitlines())) <= 90, "only what is to be copied may be wider than the page"
    assert sum(len(line) > 80 for line in text.splitlines()) < 5


def test_it_tells_of_everything() -> None:
    lines = " ".join(read([debian_program("groff", "groff-base"), "-man", "-Tutf8", "-P-c", "-P-bou"]).split())
    for name, context in commands(click.Context(app, info_name="doctor", **app.context_settings)):
        if context.command.hidden:
            continue
        assert f"doctor {name} " in lines
        for option in context.command.params:
            if isinstance(option, click.Option):
                assert max(option.opts, key=len) in lines, (name, option.opts)
    for check in CHECKS:
        assert f"{check.name} {check.severity.label}, " in lines
        assert check.summary in lines
    status = lines[lines.index("EXIT STATUS") : lines.index("ENVIRONMENT")]
    assert [f" {code.value} " in status for code in ExitCode] == [True] * len(ExitCode)
    for word in ("HERMES_HOME", "NO_COLOR", "XDG_CONFIG_HOME", "config.toml", "doctor/doctor.db", "doctor/backups/"):
        assert word in lines


def test_it_is_the_same_for_everybody(tmp_path: Path) -> None:
    file = tmp_path / ".config" / "hermes-state-doctor" / "config.toml"
    file.parent.mkdir(parents=True)
    file.write_text('[scan]\nfail-on = "never"\nlimit = 77\n')
    done = doctor(tmp_path, "manual", extra={"HERMES_DOCTOR_SCAN_COLOR": "never", "COLUMNS": "40"})
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == man_page()
    assert done.stdout.isascii()
    assert doctor(tmp_path, "manual", "--output", tmp_path / "doctor.1").returncode == 0
    assert (tmp_path / "doctor.1").read_text() == done.stdout


@pytest.mark.skipif(not SCRIPT.exists(), reason="the doctor is not installed into this environment")
def test_on_a_terminal_it_is_shown(tmp_path: Path) -> None:
    debian_program("man", "man-db")
    variables = environment(tmp_path, MANPAGER="cat", TERM="xterm")
    shown = pexpect.spawn(str(SCRIPT), ["manual"], env=variables, encoding="utf-8", timeout=20, dimensions=(24, 80))
    shown.expect_exact("keeps every conversation of a host")
    shown.expect_exact("Another doctor is at work on that store.")
    shown.expect(pexpect.EOF)
    assert ".SH" not in shown.before
    shown.close()
    assert shown.exitstatus == 0


def test_without_man_the_page_itself_comes(tmp_path: Path) -> None:
    variables = environment(tmp_path, PATH=str(tmp_path), TERM="dumb")
    command = ["-m", "hermes_doctor", "manual"]
    bare = pexpect.spawn(sys.executable, command, env=variables, encoding="utf-8", timeout=20, cwd=str(tmp_path))
    bare.expect_exact(".SH")
    bare.expect(pexpect.EOF)
    bare.close()


def test_the_page_that_is_shipped_is_what_the_program_says_now() -> None:
    shipped = (ROOT / "share" / "man" / "man1" / "doctor.1").read_text("ascii")
    assert shipped == man_page(), "write it anew: doctor manual > share/man/man1/doctor.1"


def test_man_finds_it_where_the_doctor_was_installed(tmp_path: Path) -> None:
    man = debian_program("man", "man-db")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    [wheel] = tmp_path.glob("*.whl")
    prefix = tmp_path / "env"
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-index",
        "--no-deps",
        "--ignore-installed",
        "--prefix",
        str(prefix),
        str(wheel),
    ]
    subprocess.run(pip, check=True, capture_output=True, env=os.environ | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"})
    # As in an environment that was activated: nothing but its commands is on the path.
    places = {"PATH": f"{prefix / 'bin'}{os.pathsep}{os.environ['PATH']}", "HOME": str(tmp_path)}
    for name in ("doctor", "hermes-state-doctor"):
        done = subprocess.run([man, name], env=places, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "doctor scan [OPTIONS] [TARGET]..." in done.stdout
