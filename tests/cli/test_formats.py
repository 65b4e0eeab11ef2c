"""`doctor scan --format ...` through the installed command, on a damaged home, a healthy one and none."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hermes_doctor.report.formats import COMMON, SCAN
from tests.cli.support import MODULE, doctor, environment, valid


def as_json(folder: Path, *targets: Path) -> Any:
    return valid(doctor(folder, "scan", *targets, "--json").stdout, "scan")


@pytest.mark.parametrize("name", SCAN)
def test_each_format_is_named_in_the_help_and_has_its_module(tmp_path: Path, damaged: Path, name: str) -> None:
    done = doctor(tmp_path, "scan", damaged, "--format", name)
    assert (done.returncode, done.stderr) == (1, "")
    assert "open-zombies" in done.stdout
    assert name in doctor(tmp_path, "scan", "--help").stdout


@pytest.mark.parametrize("command", [["scan"], ["fix"], ["compact"], ["undo", "RUN"], ["checks"]], ids=" ".join)
def test_an_unknown_format_is_a_usage_error_that_lists_those_known(tmp_path: Path, command: list[str]) -> None:
    done = doctor(tmp_path, *command, "--format", "yaml")
    assert (done.returncode, done.stdout) == (2, "")
    known = SCAN if command == ["scan"] else COMMON
    assert f"'yaml' is not one of {', '.join(map(repr, known))}." in done.stderr


def test_json_and_another_format_contradict_each_other(tmp_path: Path) -> None:
    done = doctor(tmp_path, "scan", "--json", "--format", "ndjson")
    assert (done.returncode, done.stdout) == (2, "")
    assert "contradict" in done.stderr


def test_lines_of_several_stores_amount_to_the_document(tmp_path: Path, damaged: Path) -> None:
    nowhere = tmp_path / "nowhere.db"
    done = doctor(tmp_path, "scan", damaged, nowhere, "--format", "ndjson")
    lines = [valid(line, "scan-lines") for line in done.stdout.splitlines()]
    whole = as_json(tmp_path, damaged, nowhere)
    assert (done.returncode, lines[-1]["exit_code"], whole["exit_code"]) == (4, 4, 4)
    for kind in ("finding", "check"):
        for database in whole["databases"]:
            told = [line for line in lines if line["type"] == kind and line["path"] == database["path"]]
            assert [line["check"] for line in told] == [each["check"] for each in database[f"{kind}s"]]
    assert [line["condition"] for line in lines if line["type"] == "store"] == ["readable", "missing"]


def test_lines_to_a_reader_who_has_seen_enough(tmp_path: Path, damaged: Path) -> None:
    command = " ".join([*MODULE, "scan", str(damaged), "--format", "ndjson", "| head -n 1"])
    done = subprocess.run(command, shell=True, cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True)
    assert json.loads(done.stdout)["type"] == "start"
    assert done.stderr == ""
