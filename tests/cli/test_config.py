"""config.toml: what it may set, which of two origins counts, and `doctor config show`, which tells of it."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from platformdirs import user_config_path

from hermes_doctor.cli.app import app
from hermes_doctor.cli.config_toml import config_file, defaults
from tests.cli.support import doctor, valid


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the tests' own config.toml goes; nothing of the tester's settings is left."""
    for name in [name for name in os.environ if name.startswith("HERMES_DOCTOR_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    file = config_file()
    assert file == tmp_path / "xdg" / "hermes-state-doctor" / "config.toml"
    file.parent.mkdir(parents=True)
    return file


def run(*arguments: str | Path, env: dict[str, str | None] | None = None) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env=env)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it is platformdirs that is asked")
def test_it_lies_where_the_platform_has_such_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for named in ("", "relative", str(tmp_path / "xdg")):
        monkeypatch.setenv("XDG_CONFIG_HOME", named)
        expected = tmp_path / (".config" if named != str(tmp_path / "xdg") else "xdg") / "hermes-state-doctor"
        assert config_file() == expected / "config.toml"
    monkeypatch.delenv("XDG_CONFIG_HOME")
    assert config_file().parent == user_config_path("hermes-state-doctor", appauthor=False)


def test_its_values_are_what_is_not_typed(written: Path, damaged: Path) -> None:
    assert run("scan", damaged).exit_code == 1
    written.write_text('[scan]\nfail-on = "never"\nlimit = 0\nskip = ["open-zombies", "orphan-stubs"]\nquiet = true\n')
    result = run("scan", damaged)
    assert result.exit_code == 0
    assert "double-encoded" in result.stdout
    assert "open-zombies" not in result.stdout
    assert "Next:" not in result.stdout
    # Another command's table is nothing to this one.
    assert "open-zombies" in run("fix", damaged).stdout


def test_one_name_needs_no_list(written: Path, damaged: Path) -> None:
    written.write_text('[scan]\ncheck = "orphan-stubs"\n')
    assert "double-encoded" not in run("scan", damaged).stdout
    assert "orphan-stubs" in run("scan", damaged).stdout


def test_typed_before_environment_before_file_before_default(written: Path, damaged: Path) -> None:
    written.write_text('[scan]\nfail-on = "never"\n')
    variable: dict[str, str | None] = {"HERMES_DOCTOR_SCAN_FAIL_ON": "error"}
    assert run("scan", damaged, "--check", "orphan-stubs").exit_code == 0
    assert run("scan", damaged, env=variable).exit_code == 1
    assert run("scan", damaged, "--check", "orphan-stubs", env=variable).exit_code == 0
    assert run("scan", damaged, "--check", "orphan-stubs", "--fail-on", "warning", env=variable).exit_code == 1


def test_of_two_formats_the_clearer_one_counts(written: Path) -> None:
    written.write_text("[checks]\njson = true\n")
    assert run("checks").stdout.startswith("{")
    assert run("checks", "--format", "table").stdout.startswith("check ")
    assert run("checks", env={"HERMES_DOCTOR_CHECKS_FORMAT": "table"}).stdout.startswith("check ")
    written.write_text('[checks]\nformat = "table"\n')
    assert run("checks", "--json").stdout.startswith("{")
    assert run("checks", env={"HERMES_DOCTOR_CHECKS_JSON": "1"}).stdout.startswith("{")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("fail-on = 'error'", "fail-on stands outside of the tables. Write it under a command's, as [scan]"),
        ("[scna]", "[scna] is no command's table. Did you mean scan?"),
        ("[scan]\nfale-on = 'error'", "[scan] fale-on is no option of doctor scan. Did you mean fail-on?"),
        ("[scan]\nfail_on = 'error'", "[scan] fail_on is no option of doctor scan. Did you mean fail-on?"),
        ("[scan]\ntargets = ['x']", "[scan] targets is no option of doctor scan."),
        ("[scan]\nfail-on = 'loud'", "[scan] fail-on is not allowed: 'loud' is not one of 'info', 'warning', 'error'"),
        ("[scan]\nfail-on = 3", "[scan] fail-on is not allowed: 3 is not one of"),
        ("[scan]\nfail-on = ['info']", '[scan] fail-on takes one value, one of "info", "warning", "error", "never"'),
        ("[scan]\nquiet = 'yes'", "[scan] quiet has to be true or false"),
        ("[scan]\nlimit = true", "[scan] limit has to be a whole number"),
        ("[scan]\nlimit = -1", "[scan] limit is not allowed: -1 is not in the range"),
        ("[scan]\nidle = true", '[scan] idle has to be a duration, as "90m", "24h" or "7d"'),
        ("[scan]\nidle = '90'", "[scan] idle is not allowed: '90' is no duration."),
        ("[scan]\nskip = ['open-zombie']", "[scan] skip is not allowed: there is no check 'open-zombie'. Did you mean"),
        ("[scan]\nskip = [['x']]", "[scan] skip has to be the name of a check, or a list of such"),
        ("[scan]\noutput = 1979-05-27", "[scan] output has to be text in quotes"),
        ("[config.show]\nal = true", "[config.show] al is no option of doctor config show. Did you mean all?"),
        (
            "[config]\nal = true",
            "[config] al stands outside of the tables. Write it under a command's, as [config.show]",
        ),
        ('[scan]\n"a\\u001bb" = 1', "[scan] a\\x1bb is no option of doctor scan."),
        ("[scan", "is not TOML: "),
        ("[scan]\nlimit = 1\nlimit = 2", "is not TOML: "),
        ("[scan]\nskip = " + "[" * 5000, "is not TOML: "),
        *(
            (f"[fix]\n{name} = true", f"[fix] {name} cannot be set: --{name} is only ever typed")
            for name in ("apply", "unsafe", "yes", "live")
        ),
        ("[fix]\napply = false", "[fix] apply cannot be set"),
        ("[undo]\napply = true", "[undo] apply cannot be set"),
        ("[compact]\napply = true", "[compact] apply cannot be set"),
    ],
    ids=lambda text: text[:40],
)
def test_a_mistake_is_one_clear_line(written: Path, text: str, said: str) -> None:
    written.write_text(text)
    # Whatever is typed: a file with a mistake in it is not half used.
    result = run("explain", "open-zombies")
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr
    assert result.stderr.startswith("doctor: ~/xdg/hermes-state-doctor/config.toml")
    assert len(result.stderr.splitlines()) == 1


def test_what_is_not_utf8_is_said_to_be(written: Path) -> None:
    written.write_bytes(b'[scan]\noutput = "caf\xe9"\n')
    assert "is not text in UTF-8" in run("checks").stderr


def test_the_installed_command_reads_it_and_says_it_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / ".config" / "hermes-state-doctor" / "config.toml"
    file.parent.mkdir(parents=True)
    file.write_text("[checks]\njson = true\n")
    assert doctor(tmp_path, "checks").stdout.startswith("{")
    file.write_text("[fix]\nlive = true\n")
    done = doctor(tmp_path, "scan")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "doctor: ~/.config/hermes-state-doctor/config.toml: [fix] live cannot be set: --live is only ever typed\n"
    )
    # These need no settings.
    assert doctor(tmp_path, "--version").returncode == doctor(tmp_path, "--help").returncode == 0


@pytest.mark.skipif(os.name == "nt" or os.geteuid() != 0, reason="only root can be somebody else")
def test_a_folder_that_one_may_not_look_into_holds_none_of_ones_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as folder:
        theirs = Path(folder)
        monkeypatch.setenv("XDG_CONFIG_HOME", folder)
        config_file().parent.mkdir()
        config_file().write_text("[checks]\njson = true\n")
        config_file().chmod(0o600)
        context = click.Context(app)
        assert defaults(context) == {"checks": {"json": True}}
        os.seteuid(65534)
        try:
            assert defaults(context) == {}
            os.seteuid(0)
            theirs.chmod(0o755)
            os.seteuid(65534)
            with pytest.raises(PermissionError):
                defaults(context)
        finally:
            os.seteuid(0)


@pytest.mark.skipif(os.name == "nt" or os.geteuid() != 0, reason="only root can be somebody else")
def test_another_users_settings_are_not_roots(written: Path) -> None:
    written.write_text("[checks]\njson = true\n")
    os.chown(written, 65534, 65534)
    result = run("checks")
    assert result.stdout.startswith("check ")
    assert result.stderr == (
        "doctor: ~/xdg/hermes-state-doctor/config.toml is left alone: it belongs to another user.\n"
    )
    os.chown(written, 0, 0)
    assert run("checks").stdout.startswith("{")


def test_show_tells_what_is_set_and_by_what(written: Path) -> None:
    written.write_text('[scan]\nfail-on = "error"\nskip = ["weights", "bloat"]\n')
    environment: dict[str, str | None] = {"HERMES_DOCTOR_FIX_IDLE": "24h", "HERMES_DOCTOR_SCAN_FAIL_ON": "info"}
    result = run("config", "show", env=environment)
    assert result.exit_code == 0
    assert result.stdout.startswith("~/xdg/hermes-state-doctor/config.toml\n")
    rows = [line.split(maxsplit=2) for line in result.stdout.splitlines() if "  --" not in line and " --" in line]
    assert rows == [
        ["scan", "--skip", "weights, bloat  config.toml"],
        ["scan", "--fail-on", "info            environment (HERMES_DOCTOR_SCAN_FAIL_ON)"],
        ["fix", "--idle", "24h             environment (HERMES_DOCTOR_FIX_IDLE)"],
    ]
    assert "Everything else has its default." in result.stdout


def test_show_of_one_command_has_all_of_its_options_and_what_is_typed(written: Path) -> None:
    written.write_text("[fix]\nlimit = 7\n")
    result = run("config", "show", "fix", "--backup", "never")
    rows = {line.split()[1]: line.split()[2:] for line in result.stdout.splitlines() if line.startswith("fix --")}
    assert rows["--backup"] == ["never", "option"]
    assert rows["--limit"] == ["7", "config.toml"]
    assert rows["--color"] == ["auto", "default"]
    assert rows["--apply"] == ["false", "default", "(only", "ever", "typed)"]
    assert not written.with_name("fix").exists()


def test_show_as_json_has_everything(written: Path) -> None:
    environment: dict[str, str | None] = {
        "HERMES_DOCTOR_FIX_APPLY": "1",
        "HERMES_DOCTOR_SCAN_FALE_ON": "info",
        "HERMES_DOCTOR_SCAN_CHECK": "weights bloat",
    }
    result = run("config", "show", "--json", env=environment)
    document = valid(result.stdout, "config")
    assert document["file"] == {"path": str(written), "exists": False}
    settings = {(each["command"], each["option"]): each for each in document["settings"]}
    assert settings["scan", "--check"]["value"] == ["weights", "bloat"]
    assert settings["scan", "--check"]["origin"] == "environment"
    assert settings["fix", "--apply"] == {
        "command": "fix",
        "option": "--apply",
        "value": False,
        "origin": "default",
        "variable": None,
        "mistake": None,
    }
    assert settings["runs forget", "--older-than"]["variable"] == "HERMES_DOCTOR_RUNS_FORGET_OLDER_THAN"
    assert document["unread"] == [
        {"variable": "HERMES_DOCTOR_FIX_APPLY", "reason": "it is only ever typed"},
        {"variable": "HERMES_DOCTOR_SCAN_FALE_ON", "reason": "no command has such an option"},
    ]


def test_each_variable_that_show_names_is_read(written: Path) -> None:
    """What sets an option to something that cannot be, by the variable that is named, makes the command refuse."""
    for each in valid(run("config", "show", "--json").stdout, "config")["settings"]:
        if each["option"] in ("--limit", "--color") and each["command"] in ("scan", "runs", "config show"):
            refused = run(*each["command"].split(), env={each["variable"]: "nonsense"})
            assert refused.exit_code == 2, each
            assert "nonsense" in refused.stderr


def test_show_says_which_value_cannot_be(written: Path) -> None:
    result = run("config", "show", env={"HERMES_DOCTOR_SCAN_LIMIT": "many"})
    assert result.exit_code == 2
    assert "scan --limit cannot be that: 'many' is not a valid integer range." in result.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["scna"], "there is no command 'scna'. Did you mean scan?"),
        (["scan", "--nope"], "--nope"),
    ],
)
def test_show_of_what_there_is_not(written: Path, words: list[str], said: str) -> None:
    result = run("config", "show", *words)
    assert result.exit_code == 2
    assert said in result.stderr
