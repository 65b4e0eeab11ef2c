"""What somebody sees who types it for the first time, at 80 columns: what this is, and what to type next."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from checks import CHECKS
from hermes_doctor.cli.app import COMMANDS, app
from tests.cli.support import doctor, listing
from tests.cli.test_start import loaded


def test_doctor_alone_says_what_it_is_and_what_to_type(tmp_path: Path) -> None:
    done = doctor(tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert len(lines) < 15
    assert max(map(len, lines)) <= 80
    assert re.findall(r"^  doctor (\w+) ", done.stdout, re.MULTILINE) == ["scan", "fix", "rescue", "demo"]
    assert "On this host there is no ~/.hermes/state.db." in lines
    assert listing(tmp_path) == {}


def test_it_tells_the_stores_that_are_here(tmp_path: Path, damaged: Path) -> None:
    named = {"HERMES_HOME": str(damaged.parent)}
    assert "Found on this host: ~/damaged/state.db\n" in doctor(tmp_path, extra=named).stdout
    profile = damaged.parent / "profiles" / "work"
    profile.mkdir(parents=True)
    (profile / "state.db").write_bytes(b"")
    assert "Found on this host: ~/damaged/state.db and 1 more\n" in doctor(tmp_path, extra=named).stdout


def test_it_is_quick_and_needs_no_settings(tmp_path: Path) -> None:
    file = tmp_path / ".config" / "hermes-state-doctor" / "config.toml"
    file.parent.mkdir(parents=True)
    file.write_text("[nonsense]\n")
    assert doctor(tmp_path).returncode == 0
    assert loaded(tmp_path, ("tomllib", "platformdirs", "hermes_doctor.cli.config_toml"), "--version") == []


def test_the_commands_that_texts_name_exist() -> None:
    seen = 0
    for name in COMMANDS:
        told = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "80"})
        assert told.exit_code == 0, name
        assert max(map(len, told.stdout.splitlines())) <= 80, name
        for word in re.findall(r"`doctor ([a-z]+)", re.sub(r"\s+", " ", told.stdout)):
            assert word in COMMANDS, (name, word)
            seen += 1
    assert seen > 3


@pytest.mark.parametrize("set_to", [None, "another"])
def test_a_host_without_hermes(tmp_path: Path, set_to: str | None) -> None:
    home = tmp_path / (set_to or ".hermes")
    done = doctor(tmp_path, "scan", extra={"HERMES_HOME": str(home)} if set_to else {})
    assert (done.returncode, done.stderr) == (4, "")
    first, *rest = done.stdout.splitlines()
    assert first == f"~/{home.name}/state.db   missing"
    said = " ".join(" ".join(rest).split())
    assert f"there is no {home}/state.db: hermes makes it when it first runs here" in said
    assert ("HERMES_HOME is set to its folder" if set_to else "HERMES_HOME is not set") in said
    assert "doctor scan PATH" in said
    assert said.endswith("(doctor demo)")
    assert not home.exists()


def test_a_store_that_was_named_and_is_not_there(tmp_path: Path) -> None:
    for command in (["scan"], ["fix"], ["compact"], ["rescue", "--inspect-only"]):
        done = doctor(tmp_path, *command, "nowhere.db")
        assert done.returncode == 4
        assert "missing" in done.stdout.lower()
        assert "there is no nowhere.db" in done.stdout
        assert "HERMES_HOME" not in done.stdout
        assert "doctor scan PATH" in done.stdout


def test_explain_alone_lists_what_can_be_explained(tmp_path: Path) -> None:
    done = doctor(tmp_path, "explain")
    assert (done.returncode, done.stdout) == (2, "")
    assert max(map(len, done.stderr.splitlines())) <= 80
    words = done.stderr.replace(",", " ").split()
    assert {check.name: words.count(check.name) for check in CHECKS} == {check.name: 1 for check in CHECKS}
    assert "doctor checks" in done.stderr


def test_undo_alone_says_where_the_names_are(tmp_path: Path) -> None:
    done = doctor(tmp_path, "undo")
    assert done.returncode == 2
    assert "doctor runs lists them" in done.stderr


def test_the_sick_store_and_the_healthy_one_fit_eighty_columns(tmp_path: Path, damaged: Path) -> None:
    sick = doctor(tmp_path, "scan", damaged.parent.name)
    assert sick.returncode == 1
    assert max(map(len, sick.stdout.splitlines())) <= 80
    assert "Next: doctor fix" in sick.stdout
    assert doctor(tmp_path, "fix", damaged.parent, "--apply").returncode == 0
    healthy = doctor(tmp_path, "scan", damaged.parent.name)
    assert (healthy.returncode, len(healthy.stdout.splitlines())) == (0, 1)
    assert "   healthy · " in healthy.stdout
    assert len(healthy.stdout) <= 81
