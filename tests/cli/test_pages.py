"""`doctor checks` and `doctor explain`."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from checks import CHECKS
from hermes_doctor.cli.app import app
from hermes_doctor.report.page import HEADINGS
from tests.cli.support import doctor, valid

_NAMES = [check.name for check in CHECKS]


def test_checks_as_json_lists_every_check(tmp_path: Path) -> None:
    done = doctor(tmp_path, "checks", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    listed = valid(done.stdout, "checks")["checks"]
    assert [entry["check"] for entry in listed] == _NAMES
    assert {(entry["severity"], entry["fix"]) for entry in listed} <= {
        (severity, fix) for severity in ("info", "warning", "error") for fix in ("safe", "unsafe", "none")
    }
    assert listed[0]["summary"] == CHECKS[0].summary


def test_checks_as_a_table_fits_eighty_columns(tmp_path: Path) -> None:
    done = doctor(tmp_path, "checks")
    assert done.returncode == 0
    assert all(len(line) <= 80 for line in done.stdout.splitlines())
    assert [
        line.split()[0] for line in done.stdout.splitlines() if line.split() and line.split()[0] in _NAMES
    ] == _NAMES
    assert "doctor explain CHECK" in done.stdout


@pytest.mark.parametrize("name", _NAMES)
def test_explain_shows_the_whole_page(name: str) -> None:
    result = CliRunner().invoke(app, ["explain", name])
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert [line for line in lines if line in HEADINGS] == list(HEADINGS)
    assert lines[0].startswith(name)
    assert all(len(line) <= 80 for line in lines)
    check = next(check for check in CHECKS if check.name == name)
    # What the fix says of a living hermes stands before the last part; all the rest is the check's own, in its order.
    first, _, last = check.page.partition("\nUpstream\n")
    shown, _, shown_last = result.stdout.partition("\nUpstream\n")
    assert shown_last.split() == last.split()
    assert "\n".join(shown.splitlines()[2:]).split()[: len(first.split())] == first.split()


def test_explain_makes_headings_bold_on_colour() -> None:
    result = CliRunner().invoke(app, ["explain", _NAMES[0], "--color", "always"])
    assert "\x1b[1mFix safety\x1b[0m" in result.stdout


def test_explain_writes_to_a_file(tmp_path: Path) -> None:
    page = tmp_path / "page.txt"
    result = CliRunner().invoke(app, ["explain", _NAMES[0], "--output", str(page)])
    assert (result.exit_code, result.stdout) == (0, "")
    assert "Fix safety" in page.read_text()
