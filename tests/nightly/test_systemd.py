"""The units: what systemd itself makes of them, and that what is installed goes without a rest."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hermes_doctor.demo.home import make_demo_home
from hermes_doctor.nightly.schedule import Job, Owner, RefusedError, ScheduleError
from hermes_doctor.nightly.systemd import SERVICE, TIMER, SystemdTimer
from tests.cli.support import valid
from tests.nightly.private_host import PrivateHost, private_host

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


#: Lets a manager of services of its own run, in a control group of its own.
_RUN_MANAGER = f"""
umount -R /sys/fs/cgroup 2> /dev/null
set -e
mount -t cgroup2 none /sys/fs/cgroup
mkdir "/sys/fs/cgroup/$1"
echo $$ > "/sys/fs/cgroup/$1/cgroup.procs"
# What it lays over what a service must not see; the first process of a machine makes it.
mkdir -p /run/systemd/inaccessible
cd /run/systemd/inaccessible
mkdir -m 000 dir
mkfifo -m 000 fifo
mknod -m 000 chr c 0 0
install -m 000 /dev/null reg
exec {_MANAGER} --user
"""
_TIDY_UP = """
umount -R /sys/fs/cgroup 2> /dev/null
mount -t cgroup2 none /sys/fs/cgroup && find "/sys/fs/cgroup/$1" -depth -type d -exec rmdir {} +
"""

_OF_USER = """
from pathlib import Path
from hermes_doctor.nightly.schedule import Job, environment, program
from hermes_doctor.nightly.systemd import SystemdTimer
timer = SystemdTimer(Path.home() / ".config/systemd/user", system=False)
job = Job((*program(), "nightly", "--fix", "safe"), 3, 10, environment=environment())
"""
_AS_OF_SYSTEM = """
service, _ = SystemdTimer(Path("/etc/systemd/system"), system=True).pieces(job)
(Path.home() / ".config/systemd/user/as-of-system.service").write_text(service.text)
"""


@pytest.fixture
def managed(tmp_path: Path) -> Iterator[PrivateHost]:
    """A host on which a systemd runs that is nobody else's."""
    if not _MANAGER.exists():
        pytest.skip("needs systemd")
    host = private_host(tmp_path, needs=["systemctl"])
    for place in ("user", "systemd/system"):
        (host.laid / "run" / place).mkdir(parents=True)
    host.more = {"XDG_RUNTIME_DIR": "/run/user"}
    group, log = f"doctor-test-{os.getpid()}", tmp_path / "log"
    with log.open("wb") as stream:
        words = host.words("sh", "-c", _RUN_MANAGER, "sh", group)
        manager = subprocess.Popen(words, env=host.environment(), stdout=stream, stderr=stream)
    try:
        limit = time.monotonic() + 30
        while not (host.laid / "run" / "user" / "systemd" / "private").exists():
            if manager.poll() is not None or time.monotonic() > limit:
                pytest.skip(f"this machine runs no systemd beside its own: {log.read_text()[-300:]}")
            time.sleep(0.05)
        yield host
    finally:
        manager.terminate()
        try:
            manager.wait(timeout=30)
        finally:
            manager.kill()
            host.run("sh", "-c", _TIDY_UP, "sh", group)


def test_a_real_systemd_starts_it_and_forgets_it(managed: PrivateHost) -> None:
    store = make_demo_home(managed.home / ".hermes")
    units = managed.home / ".config" / "systemd" / "user"
    kept = managed.home / ".local" / "state" / "hermes-state-doctor" / "nightly.json"

    def outcome(unit: str) -> dict[str, str]:
        """Lets a service run to its end; what systemd says of it, and what the doctor kept."""
        managed.run("systemctl", "--user", "start", unit)
        shown = managed.run("systemctl", "--user", "show", unit, "-p", "Result,ExecMainStatus").stdout
        return dict(line.split("=") for line in shown.splitlines())

    installed = managed.python(
        f"{_OF_USER}\nprint(timer.usable(), timer.install(job, force=False), timer.hindrances())"
    )
    assert installed == "None True []\n"
    assert managed.python(f"{_OF_USER}\nprint(timer.install(job, force=False))") == "False\n"
    timers = managed.run("systemctl", "--user", "list-timers", "--all", "--no-pager").stdout
    # Within half an hour from then, but never before.
    assert re.search(rf" 03:[1-4][0-9]:[0-9][0-9] .* {TIMER} +{SERVICE}", timers), timers
    # What is new is no failure; it was found, and mended, under all that the unit forbids.
    assert outcome(SERVICE) == {"Result": "success", "ExecMainStatus": "1"}
    told = valid(kept.read_text(), "nightly")
    assert (told["new"], told["mended"], told["databases"][0]["held"]) == (17, 17, "no")
    assert outcome(SERVICE) == {"Result": "success", "ExecMainStatus": "0"}
    # The same for what the machine's own is forbidden.
    [run] = [database["mending"]["run"] for database in told["databases"]]
    assert managed.doctor("undo", run, store, "--apply").returncode == 0
    managed.python(_OF_USER + _AS_OF_SYSTEM)
    managed.run("systemctl", "--user", "daemon-reload")
    # No timer needs it, so that systemd has forgotten how it ended, unless it failed.
    assert outcome("as-of-system.service")["Result"] == "success"
    told = valid(kept.read_text(), "nightly")
    assert (told["exit_code"], told["mended"], told["databases"][0]["held"]) == (1, 17, "no")
    (units / "as-of-system.service").unlink()
    assert SERVICE in managed.python(f"{_OF_USER}\nprint(timer.remove(force=False))")
    assert [path for path in managed.home.rglob("*hermes-state-doctor*") if path != kept.parent] == []
    assert "0 timers listed" in managed.run("systemctl", "--user", "list-timers", "--all", "--no-pager").stdout


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
