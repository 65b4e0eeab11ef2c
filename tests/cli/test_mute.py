"""`doctor mute` and `doctor unmute` as their user meets them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from hermes_doctor.demo.home import make_demo_home
from hermes_doctor.engine.state_file import NAME
from tests.cli.changing import many_zombies
from tests.cli.support import listing, valid
from tests.cli.within import doctor


def muted(folder: Path, *arguments: str | Path) -> list[Any]:
    done = doctor(folder, "mute", "--json", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    found: list[Any] = valid(done.stdout, "mutes")["muted"]
    return found


def scanned(folder: Path, *arguments: str | Path) -> tuple[int, dict[str, Any]]:
    """The exit code of a scan for open zombies only, and what is told of that check."""
    done = doctor(folder, "scan", "--json", "--check", "open-zombies", *arguments)
    [database] = valid(done.stdout, "scan")["databases"]
    return done.returncode, next(check for check in database["checks"] if check["check"] == "open-zombies")


def test_a_muted_check_is_shown_and_counts_for_nothing(tmp_path: Path, damaged: Path) -> None:
    before = listing(damaged.parent)
    done = doctor(tmp_path, "mute", "open-zombies")
    assert (done.returncode, done.stderr) == (0, "")
    shown = " ".join(done.stdout.split())
    assert "open-zombies" in shown
    assert "(in 14 days) every store" in shown or "(in 13 days) every store" in shown
    assert shown.endswith("Next: doctor unmute open-zombies")
    code, check = scanned(tmp_path, damaged)
    assert (code, check["count"], check["muted"]["worse_than"]) == (0, 8, None)
    table = doctor(tmp_path, "scan", damaged, "--limit", "9").stdout
    shown = " ".join(table.split())
    assert "open-zombies 8 8 0 muted" in shown
    assert "9 findings (5 errors, 4 warnings), all of them mend safely." in shown
    assert "8 findings of open-zombies not counted: muted until " in shown
    assert "cron_backup_" not in table
    assert "muted until" in doctor(tmp_path, "history").stdout

    done = doctor(tmp_path, "unmute", "open-zombies")
    assert (done.returncode, done.stdout, done.stderr) == (0, "open-zombies is no longer muted.\n", "")
    code, check = scanned(tmp_path, damaged)
    assert (code, check["muted"]) == (1, None)
    assert listing(damaged.parent) == before


def test_what_is_muted_is_mended_all_the_same(tmp_path: Path, damaged: Path) -> None:
    doctor(tmp_path, "mute", "open-zombies")
    done = doctor(tmp_path, "fix", damaged, "--check", "open-zombies", "--apply", "--json")
    assert valid(done.stdout, "fix")["databases"][0]["fixed"] == 8


def test_the_list(tmp_path: Path, damaged: Path) -> None:
    assert doctor(tmp_path, "mute").stdout == "Nothing is muted.\n"
    assert muted(tmp_path) == []
    assert not (tmp_path / ".local").exists()
    doctor(tmp_path, "mute", "orphan-stubs", "open-zombies", "--store", damaged.parent, "--for", "3d")
    listed = muted(tmp_path, "bloat", "--until-worse")
    assert [(each["check"], each["path"], each["until_worse"]) for each in listed] == [
        ("bloat", None, True),
        ("open-zombies", str(damaged), False),
        ("orphan-stubs", str(damaged), False),
    ]
    text = doctor(tmp_path, "mute").stdout
    assert all(len(line) <= 80 for line in text.splitlines())
    shown = " ".join(text.split())
    assert "every store, until more are found there" in shown
    assert "~/damaged/state.db" in shown


def test_one_store_only(tmp_path: Path, damaged: Path) -> None:
    other = make_demo_home(tmp_path / "other")
    doctor(tmp_path, "mute", "open-zombies", "--store", damaged)
    assert scanned(tmp_path, damaged.parent)[0] == 0
    assert scanned(tmp_path, other)[0] == 1
    done = doctor(tmp_path, "unmute", "open-zombies", "--store", other)
    assert done.stdout == "open-zombies is not muted on ~/other/state.db.\n"
    doctor(tmp_path, "mute", "open-zombies")
    done = doctor(tmp_path, "unmute", "open-zombies", "--store", other)
    assert done.stdout == "open-zombies is no longer muted on ~/other/state.db.\n"
    assert scanned(tmp_path, damaged)[0] == 0
    assert scanned(tmp_path, other)[0] == 1
    assert "ended on ~/other/state.db" in " ".join(doctor(tmp_path, "mute").stdout.split())


def test_a_mute_ends_by_itself(tmp_path: Path, damaged: Path) -> None:
    began = time.monotonic()
    doctor(tmp_path, "mute", "open-zombies", "--for", "3s")
    over = time.monotonic() + 3
    code, check = scanned(tmp_path, damaged)
    if time.monotonic() - began < 3:
        assert (code, check["count"]) == (0, 8)
    time.sleep(max(0.0, over - time.monotonic()))
    code, check = scanned(tmp_path, damaged)
    assert (code, check["muted"]) == (1, None)
    assert muted(tmp_path) == []


def test_until_it_is_worse(tmp_path: Path, damaged: Path) -> None:
    doctor(tmp_path, "scan", damaged)
    doctor(tmp_path, "mute", "open-zombies", "--until-worse")
    code, check = scanned(tmp_path, damaged)
    assert (code, check["count"], check["muted"]["worse_than"]) == (0, 8, 8)
    assert "or until more than 8 are found" in " ".join(doctor(tmp_path, "scan", damaged).stdout.split())
    many_zombies(damaged, 1)
    done = doctor(tmp_path, "scan", damaged)
    assert done.returncode == 1
    told = "open-zombies is no longer muted on ~/damaged/state.db, since it got worse: 9 findings where there were 8."
    assert done.stderr == f"doctor: {told}\n"
    assert "muted" not in done.stdout
    done = doctor(tmp_path, "scan", damaged)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["mute", "open-zombie"], "Did you mean open-zombies?"),
        (["mute", "open-zombies", "--for", "2000d"], "a year at most"),
        (["mute", "open-zombies", "--for", "0s"], "longer than nothing"),
        (["mute", "open-zombies", "--for", "soon"], "is no duration"),
        (["mute", "--for", "3d"], "name a CHECK"),
        (["mute", "open-zombies", "--store", "nowhere"], "there is no store "),
        (["unmute", "open-zombie"], "Did you mean open-zombies?"),
        (["unmute"], "Missing argument 'CHECK'"),
    ],
)
def test_what_cannot_be_meant(tmp_path: Path, arguments: list[str], said: str) -> None:
    done = doctor(tmp_path, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert not (tmp_path / ".local").exists()


def test_unmuting_what_is_not_muted(tmp_path: Path) -> None:
    done = doctor(tmp_path, "unmute", "open-zombies")
    assert (done.returncode, done.stdout) == (0, "open-zombies is not muted.\n")


def test_where_it_cannot_be_written(tmp_path: Path, damaged: Path) -> None:
    state = tmp_path / ".local" / "state"
    state.mkdir(parents=True)
    (state / NAME).write_text("not a folder")
    done = doctor(tmp_path, "mute", "open-zombies")
    assert (done.returncode, done.stdout) == (3, "")
    assert "mutes.db cannot be written, so nothing was changed. Next: " in done.stderr
    assert scanned(tmp_path, damaged)[0] == 1
