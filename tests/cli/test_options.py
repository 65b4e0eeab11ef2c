"""Options: what is taken, what is a usage error and what it says, and what the environment may set."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from hermes_doctor.cli.app import app
from hermes_doctor.cli.options import Output, Selection, TypedOnly
from hermes_doctor.cli.types import Duration


def run(*arguments: str | Path, env: dict[str, str | None] | None = None) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env=env)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["scan", "--check", "open-zombie"], "Did you mean open-zombies?"),
        (["scan", "--skip", "Open_Zombies"], "Did you mean open-zombies?"),
        (["scan", "--check", "xyzzy"], "Known: "),
        (["explain", "double-encode"], "Did you mean double-encoded?"),
        (["explain"], "CHECK"),
        (["explain", "open-zombies", "--json"], "--json"),
        (["scna"], "Did you mean scan?"),
        (["scan", "--check", "open-zombies", "--skip", "open-zombies"], "no check to run"),
        (["scan", "--idle", "90"], "as in 90m, 24h or 7d"),
        (["scan", "--idle", "-1h"], "as in 90m, 24h or 7d"),
        (["scan", "--idle", "99999w"], "hundred years"),
        (["scan", "--format", "xml"], "xml"),
        (["scan", "--json", "--format", "table"], "contradict"),
        (["scan", "--limit", "-1"], "-1"),
        (["scan", "--limit", "many"], "many"),
        (["scan", "--fail-on", "always"], "always"),
        (["scan", "--color", "yes"], "yes"),
        (["scan", "--apply"], "--apply"),
        (["scan", ""], "a target is empty"),
        (["scan", "--output", "/"], "is a folder"),
        (["scan", "--output", "/nowhere/at/all.json"], "there is no folder"),
        (["--nonsense"], "--nonsense"),
    ],
    ids=" ".join,
)
def test_bad_options_are_usage_errors(arguments: list[str], said: str, tmp_path: Path) -> None:
    result = run(*arguments, env={"HERMES_HOME": str(tmp_path)})
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90m", 5400), ("24h", 86400), ("7d", 604800), ("2w", 1209600), ("30s", 30), ("1.5h", 5400), (" 7D ", 604800)],
)
def test_durations(text: str, seconds: float) -> None:
    assert Duration().convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["", "h", "1", "1y", "1h30m", "1e3s", "inf", "nanh", "٣h", "1_0m", "1 h"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(click.BadParameter):
        Duration().convert(text, None, None)


def test_selection_only_narrows_and_keeps_the_order() -> None:
    known = ["a", "b", "c"]
    assert Selection().narrow(known) == known
    assert Selection(check=("c", "a")).narrow(known) == ["a", "c"]
    assert Selection(skip=("b",)).narrow(known) == ["a", "c"]
    assert Selection(check=("a", "b"), skip=("b",)).narrow(known) == ["a"]


def test_the_environment_sets_options(damaged: Path) -> None:
    assert run("scan", damaged, env={"HERMES_DOCTOR_SCAN_JSON": "1"}).stdout.startswith('{"format"')
    assert run("scan", damaged, env={"HERMES_DOCTOR_SCAN_FORMAT": "json"}).stdout.startswith('{"format"')
    assert run("scan", damaged, env={"HERMES_DOCTOR_SCAN_FAIL_ON": "never"}).exit_code == 0
    assert run("scan", damaged, env={"HERMES_DOCTOR_SCAN_CHECK": "nonsense"}).exit_code == 2
    only = run("scan", damaged, env={"HERMES_DOCTOR_SCAN_CHECK": "double-encoded orphan-stubs"}).stdout
    assert "double-encoded" in only
    assert "open-zombies" not in only


def test_what_is_typed_outranks_the_environment(damaged: Path) -> None:
    environment: dict[str, str | None] = {
        "HERMES_DOCTOR_SCAN_FAIL_ON": "never",
        "HERMES_DOCTOR_SCAN_FORMAT": "table",
    }
    result = run("scan", damaged, "--fail-on", "warning", "--json", env=environment)
    assert result.exit_code == 1
    assert result.stdout.startswith('{"format"')


def test_a_typed_only_option_ignores_the_environment() -> None:
    @click.command(context_settings={"auto_envvar_prefix": "X"})
    @click.option("--apply", is_flag=True, cls=TypedOnly)
    @click.option("--unsafe", is_flag=True, cls=TypedOnly, envvar="Y")
    @click.option("--plain", is_flag=True)
    def command(apply: bool, unsafe: bool, plain: bool) -> None:
        click.echo(f"{apply} {unsafe} {plain}")

    environment = {"X_APPLY": "1", "X_UNSAFE": "1", "Y": "1", "X_PLAIN": "1"}
    assert CliRunner().invoke(command, [], env=environment).stdout == "False False True\n"
    assert CliRunner().invoke(command, ["--apply", "--unsafe"]).stdout == "True True False\n"


class _Terminal:
    """Stands for a stream on a terminal: what `colored` asks of it."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("color", "environment", "expected"),
    [
        ("auto", {}, True),
        ("auto", {"NO_COLOR": "1"}, False),
        ("auto", {"NO_COLOR": ""}, True),
        ("auto", {"TERM": "dumb"}, False),
        ("always", {"NO_COLOR": "1"}, True),
        ("never", {}, False),
    ],
)
def test_when_a_terminal_gets_colour(
    monkeypatch: pytest.MonkeyPatch, color: str, environment: dict[str, str], expected: bool
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    terminal = _Terminal()
    assert Output(color=color).colored(terminal) is expected  # type: ignore[arg-type]  # the part that is asked


def test_colour_only_where_it_is_wanted(damaged: Path) -> None:
    assert "\x1b[" not in run("scan", damaged).stdout
    assert "\x1b[31m" in run("scan", damaged, "--color", "always").stdout
    assert "\x1b[" not in run("scan", damaged, "--color", "always", "--json").stdout
