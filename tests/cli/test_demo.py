"""`doctor demo`: a newcomer's first minute."""

from __future__ import annotations

import re
from pathlib import Path

from tests.cli.support import doctor, listing, valid


def test_the_whole_story(tmp_path: Path) -> None:
    done = doctor(tmp_path, "demo")
    assert (done.returncode, done.stderr) == (0, "")
    typed = [line.removeprefix("$ doctor ").split() for line in done.stdout.splitlines() if line.startswith("$ ")]
    assert [words[0] for words in typed] == ["scan", "fix", "fix", "scan", "undo", "scan", "explain", "fix"]
    assert "--apply" not in typed[1]
    assert "--apply" in typed[2]
    assert "--apply" in typed[4]
    said = [
        "17 findings",
        "17 rows would be mended. Nothing was changed.",
        "17 rows mended in",
        "healthy",
        "17 rows put back",
    ]
    places = [done.stdout.index(words) for words in said]
    assert places == sorted(places)
    # Nothing is left of it, and the user's own state folder never heard of it.
    assert listing(tmp_path) == {}
    folder = Path(typed[0][1])
    assert folder.name.startswith("hermes-doctor-")
    assert not folder.exists()


def test_what_it_shows_is_what_the_commands_print(tmp_path: Path) -> None:
    home = tmp_path / "demo home"
    done = doctor(tmp_path, "demo", home)
    assert done.returncode == 0
    assert "The home stays in" in done.stdout
    assert all(len(line) <= 80 for line in done.stdout.splitlines() if str(tmp_path) not in line)
    shown = re.split(r"^\$ doctor ", done.stdout, flags=re.MULTILINE)[1]
    again = doctor(tmp_path, "scan", home, "--limit", "1")
    assert again.returncode == 1
    head = again.stdout.split("17 findings")[0]
    assert head in shown
    [past] = valid(doctor(tmp_path, "runs", home, "--json").stdout, "runs")["runs"]
    assert (past["applied"], past["undone"]) == (17, True)
    assert valid(doctor(tmp_path, "runs", "--json").stdout, "runs")["runs"] == []


def test_it_never_writes_beside_other_files(tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.mkdir()
    (full / "notes").write_text("mine")
    done = doctor(tmp_path, "demo", full)
    assert (done.returncode, done.stdout) == (2, "")
    assert "is not empty" in done.stderr
    assert doctor(tmp_path, "demo", full / "notes").returncode == 2
    assert listing(tmp_path).keys() == {"full/notes"}


def test_it_looks_the_same_whatever_the_environment_says(tmp_path: Path) -> None:
    settings = {"HERMES_DOCTOR_SCAN_JSON": "1", "HERMES_DOCTOR_FIX_CHECK": "orphan-stubs", "HERMES_HOME": "/nowhere"}
    done = doctor(tmp_path, "demo", extra=settings)
    assert done.returncode == 0
    assert "17 rows mended" in done.stdout


def test_into_a_file(tmp_path: Path) -> None:
    done = doctor(tmp_path, "demo", "--output", tmp_path / "story.txt")
    assert (done.returncode, done.stdout) == (0, "")
    assert "17 rows put back" in (tmp_path / "story.txt").read_text()
