"""The property list for macOS: its keys, as launchd.plist(5) has them. There is no launchd here that could run it."""

from __future__ import annotations

import os
import plistlib
from pathlib import Path

import pytest

from hermes_doctor.nightly.launchd import LABEL, LaunchdJob
from hermes_doctor.nightly.schedule import Job, Owner, RefusedError, ScheduleError, owner_of

JOB = Job(("/opt/a & b/doctor", "nightly", "<ä>"), 3, 10, environment={"HERMES_HOME": "/Users/me/my hermes"})


@pytest.fixture
def launchd(tmp_path: Path) -> LaunchdJob:
    return LaunchdJob(tmp_path / "LaunchAgents", tmp_path / "Logs" / "doctor.log", system=False)


def test_it_says_what_is_meant(launchd: LaunchdJob, tmp_path: Path) -> None:
    [piece] = launchd.pieces(JOB)
    assert piece.place == str(tmp_path / "LaunchAgents" / f"{LABEL}.plist")
    keys = plistlib.loads(piece.text.encode())
    log = str(tmp_path / "Logs" / "doctor.log")
    assert keys == {
        "Label": LABEL,
        "ProgramArguments": ["/opt/a & b/doctor", "nightly", "<ä>"],
        "EnvironmentVariables": {"HERMES_HOME": "/Users/me/my hermes"},
        "StartCalendarInterval": {"Hour": 3, "Minute": 10},
        "RunAtLoad": False,
        "ProcessType": "Background",
        "LowPriorityIO": True,
        "Nice": 19,
        "Umask": 0o077,
        "StandardOutPath": log,
        "StandardErrorPath": log,
    }


def test_it_is_known_again(launchd: LaunchdJob) -> None:
    [piece] = launchd.pieces(JOB)
    assert piece.text.startswith("<?xml ")
    assert launchd.installed() == []
    path = Path(piece.place)
    path.parent.mkdir()
    path.write_text(piece.text)
    assert [(each.owner, each.at) for each in launchd.installed()] == [(Owner.US, "03:10")]
    path.write_text(piece.text.replace("<integer>3<", "<integer>4<"))
    assert [(each.owner, each.at) for each in launchd.installed()] == [(Owner.US_CHANGED, "04:10")]
    path.write_bytes(plistlib.dumps({"Label": LABEL}))
    assert [(each.owner, each.at) for each in launchd.installed()] == [(Owner.ANOTHER, None)]
    with pytest.raises(RefusedError, match="did not write it"):
        launchd.remove(force=True)
    assert owner_of(path.read_text()) is Owner.ANOTHER


#: Says what it was asked; knows a job from its bootstrap to its bootout. It stands in for what only macOS has.
_LAUNCHCTL = """#!/bin/sh
echo "$@" >> "$ASKED/asked"
case $1 in
    print) [ -e "$ASKED/loaded" ];;
    bootstrap) [ ! -e "$ASKED/unwilling" ] || { echo "Bootstrap failed: 5" >&2; exit 5; }; touch "$ASKED/loaded";;
    bootout) rm "$ASKED/loaded";;
esac
"""


def test_it_is_handed_over_and_taken_back(launchd: LaunchdJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RefusedError, match="does not run this machine"):
        launchd.install(JOB, force=False)
    (tmp_path / "launchctl").write_text(_LAUNCHCTL)
    (tmp_path / "launchctl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("ASKED", str(tmp_path))
    (tmp_path / "unwilling").touch()
    with pytest.raises(ScheduleError, match="Bootstrap failed: 5"):
        launchd.install(JOB, force=False)
    assert launchd.installed() == []
    (tmp_path / "unwilling").unlink()
    assert launchd.install(JOB, force=False)
    assert not launchd.install(JOB, force=False)
    assert launchd.hindrances() == []
    # A changed job is taken back before it is handed over anew.
    (tmp_path / "asked").unlink()
    assert launchd.install(Job(JOB.words, 4, 0), force=False)
    [piece] = launchd.pieces(JOB)
    label = f"gui/{os.geteuid()}/{LABEL}"
    asked = (tmp_path / "asked").read_text().splitlines()
    assert asked[-2:] == [f"bootout {label}", f"bootstrap gui/{os.geteuid()} {piece.place}"]
    assert launchd.remove(force=False) == [piece.place]
    assert not (tmp_path / "loaded").exists()
    assert list((tmp_path / "LaunchAgents").iterdir()) == []


def test_what_it_cannot_hold_is_refused(launchd: LaunchdJob) -> None:
    with pytest.raises(RefusedError, match="control characters"):
        launchd.pieces(Job(("/bin/doctor", "a\x01b"), 3, 10))
