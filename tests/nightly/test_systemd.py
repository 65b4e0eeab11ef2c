"""The units: what systemd itself makes of them, and that what is installed goes without a rest."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hermes_doctor.nightly.schedule import Job, Owner, RefusedError, ScheduleError
from hermes_doctor.nightly.systemd import SERVICE, TIMER, SystemdTimer

_ANALYZE = shutil.which("systemd-analyze")
_MANAGER = Path("/lib/systemd/systemd")

PLAIN = Job(("/bin/true", "nightly"), 3, 10)
AWKWARD = Job(
    ("/bin/true", "nightly", "/a b%c$d${HOME}", "it's", 'a "b" \\c', ";", "", "*", "ä", "two\nlines", "~x", "-"),
    0,
    5,
    environment={"HERMES_HOME": "/h %h $HOME/\"x\" 'y' \\z", "XDG_STATE_HOME": "/plain"},
)
CALLING = Job(("/bin/true", "nightly", "--notify-command", "mail -s 'news' root"), 23, 59, confined=False)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that any user can read."""
    with tempfile.TemporaryDirectory(prefix="doctor-units-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def written(folder: Path, job: Job, *, system: bool) -> list[Path]:
    """The units, in files."""
    for piece in SystemdTimer(folder, system=system).pieces(job):
        path = Path(piece.place)
        path.write_text(piece.text)
        path.chmod(0o644)
    return [folder / SERVICE, folder / TIMER]


@pytest.mark.skipif(_ANALYZE is None, reason="needs systemd-analyze")
@pytest.mark.parametrize("job", [PLAIN, AWKWARD, CALLING], ids=["plain", "awkward", "calling"])
@pytest.mark.parametrize("system", [True, False], ids=["system", "user"])
def test_systemd_finds_nothing_wrong(folder: Path, job: Job, system: bool) -> None:
    units = written(folder, job, system=system)
    command = ["systemd-analyze", "--system" if system else "--user", "verify", *map(str, units)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | {"XDG_RUNTIME_DIR": str(folder)}
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.skipif(_ANALYZE is None, reason="needs systemd-analyze")
def test_systemd_would_find_what_is_wrong(folder: Path) -> None:
    units = written(folder, PLAIN, system=True)
    units[1].write_text(units[1].read_text().replace("03:10:00", "03:70:00"))
    done = subprocess.run(["systemd-analyze", "verify", str(units[1])], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "calendar" in done.stderr


@pytest.mark.skipif(_ANALYZE is None, reason="needs systemd-analyze")
@pytest.mark.parametrize(("at", "told"), [(PLAIN, "03:10:00"), (CALLING, "23:59:00")])
def test_it_is_every_day_at_that_time(folder: Path, at: Job, told: str) -> None:
    _, timer = written(folder, at, system=True)
    found = re.search(r"^OnCalendar=(.*)$", timer.read_text(), re.MULTILINE)
    assert found is not None
    command = ["systemd-analyze", "calendar", "--iterations=2", "--base-time=2026-11-29 12:00:00 UTC", found[1]]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | {"TZ": "UTC"})
    # Both times that it names lie at that time of two days.
    days = re.findall(rf"(2026-1[12]-\d\d) {told} UTC", done.stdout)
    assert len(set(days)) == 2


@pytest.mark.skipif(_ANALYZE is None, reason="needs systemd-analyze")
def test_it_is_confined(folder: Path) -> None:
    def exposure(job: Job) -> float:
        service, _ = written(folder, job, system=True)
        done = subprocess.run(
            ["systemd-analyze", "security", "--offline=true", "--no-pager", str(service)],
            capture_output=True,
            text=True,
            check=True,
        )
        found = re.search(r"Overall exposure level for .*: ([0-9.]+) ", done.stdout)
        assert found is not None
        return float(found[1])

    assert exposure(PLAIN) < 4.0
    # A command that sends mail needs more: Postfix's, say, is setgid.
    assert "NoNewPrivileges" not in written(folder, CALLING, system=True)[0].read_text()


@pytest.mark.skipif(not _MANAGER.exists(), reason="needs systemd")
@pytest.mark.parametrize("job", [PLAIN, AWKWARD, CALLING], ids=["plain", "awkward", "calling"])
def test_systemd_reads_the_words_that_were_meant(folder: Path, job: Job) -> None:
    written(folder, job, system=False)
    # It tests nothing as root.
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.geteuid() == 0 else []
    runtime = folder / "run"
    runtime.mkdir()
    runtime.chmod(0o777)
    done = subprocess.run(
        [*nobody, str(_MANAGER), "--test", "--user", f"--unit={SERVICE}"],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": os.environ["PATH"], "HOME": str(runtime), "XDG_RUNTIME_DIR": str(runtime)}
        | {"SYSTEMD_UNIT_PATH": f"{folder}:", "LANG": "C.UTF-8"},
    )
    # The one unit of the many that it tells of.
    [told] = [each for each in re.split(r"^\t?-> Unit ", done.stdout, flags=re.MULTILINE) if each.startswith(SERVICE)]
    assert re.findall(r"^\t+Environment: (.*)$", told, re.MULTILINE) == [
        f"{name}={value}" for name, value in job.environment.items()
    ]
    [command] = re.findall(r"^\t+Command Line: (.*)$", told, re.MULTILINE)
    # What a $ stands for is looked up only when it is run; two of them are one.
    assert [word.replace("$$", "$") for word in unquoted(command)] == list(job.words)
    for setting in ("Nice: 19", "IOSchedulingClass: idle", "CPUSchedulingPolicy: idle", "UMask: 0077"):
        assert setting in told


def unquoted(line: str) -> list[str]:
    """The words that systemd shows: quoted as for a shell, line ends and the like as C has them."""
    return [
        ast.literal_eval(word.replace("\\$", "$").replace("\\`", "`")) if word[0] == '"' else word
        for word in re.findall(r'"(?:[^"\\]|\\.)*"|\S+', line)
    ]


def test_a_name_that_is_no_text_is_refused(folder: Path) -> None:
    job = Job(("/bin/true", os.fsdecode(b"/caf\xe9")), 3, 10)
    with pytest.raises(RefusedError, match="is no text"):
        SystemdTimer(folder, system=True).install(job, force=False)
    assert list(folder.iterdir()) == []


def test_what_systemctl_will_not_do_leaves_nothing_behind(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "bin").mkdir()
    (folder / "bin" / "systemctl").write_text("#!/bin/sh\necho Failed to enable unit: no >&2\nexit 1\n")
    (folder / "bin" / "systemctl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")
    units = folder / "units"
    timer = SystemdTimer(units, system=True)
    with pytest.raises(ScheduleError, match="Failed to enable unit: no"):
        timer.install(PLAIN, force=False)
    assert list(units.iterdir()) == []
    written(units, PLAIN, system=True)
    before = {path: path.read_bytes() for path in units.iterdir()}
    with pytest.raises(ScheduleError):
        timer.install(CALLING, force=False)
    assert {path: path.read_bytes() for path in units.iterdir()} == before
    assert [each.owner for each in timer.installed()] == [Owner.US, Owner.US]
