"""The house rules that a machine can hold: lint, format, types, floors, and one place for each fault."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from checks import CHECKS
from fixes import FIXES

ROOT = Path(__file__).parent.parent

HEADINGS = ("What it finds", "Why it matters", "How it decides", "Fix", "Fix safety", "Upstream")


@pytest.mark.parametrize(
    "command",
    [
        ["ruff", "check", "."],
        ["ruff", "format", "--check", "."],
        ["mypy"],
    ],
    ids=lambda command: " ".join(command),
)
def test_the_linters_find_nothing(command: list[str]) -> None:
    done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_floor_reaches_up() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def modules_of(package: str) -> set[str]:
    """The names of a package's modules, as files."""
    return {path.stem for path in (ROOT / package).glob("*.py") if path.stem != "__init__"}


def test_each_check_has_its_module_and_its_tests() -> None:
    names = {check.name.replace("-", "_") for check in CHECKS}
    assert modules_of("checks") == names
    assert len(names) == len(CHECKS)
    assert {f"test_{name}" for name in names} <= modules_of("tests/checks")


def test_each_fix_has_its_module_its_tests_and_its_check() -> None:
    names = {fix.check.replace("-", "_") for fix in FIXES}
    assert modules_of("fixes") == names
    assert len(names) == len(FIXES)
    assert {f"test_{name}" for name in names} <= modules_of("tests/fixes")
    assert {fix.check for fix in FIXES} <= {check.name for check in CHECKS}


def test_what_a_check_promises_to_mend_has_a_fix() -> None:
    assert {check.name for check in CHECKS if check.fix != "none"} == {fix.check for fix in FIXES}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_each_page_has_its_parts_in_order(check: object) -> None:
    page = getattr(check, "page", "").splitlines()
    assert [line for line in page if line in HEADINGS] == list(HEADINGS)
    assert page[0].endswith(".")
    assert max(map(len, page)) <= 100


def test_the_readme_lists_each_check_as_the_code_has_it() -> None:
    rows = [
        [cell.strip() for cell in line.strip().strip("|").split("|")]
        for line in (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
        if line.startswith("| `")
    ]
    listed = {row[0].strip("`"): row[1:] for row in rows if row[0].strip("`") in {check.name for check in CHECKS}}
    assert listed == {check.name: [check.severity.label, check.summary, check.fix.value] for check in CHECKS}


def test_nothing_of_the_workplace_is_in_the_repository() -> None:
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    forbidden = ["../" + "shared", "pypi." + "org", "files.python" + "hosted"]
    found = {
        (name, word)
        for name in filter(None, files)
        for word in forbidden
        if word in (ROOT / name).read_text(encoding="utf-8", errors="replace")
    }
    assert not found
