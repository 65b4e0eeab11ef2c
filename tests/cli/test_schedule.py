"""`doctor schedule`: nothing without being asked, the same again changes nothing, and all of it goes again."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from hermes_doctor.cli.app import app
from hermes_doctor.demo.home import make_demo_home
from tests.cli.support import valid
from tests.nightly.private_host import PrivateHost, listing, private_host

SERVICE, TIMER = "hermes-state-doctor.service", "hermes-state-doctor.timer"


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.delenv("HERMES_HOME", raising=False)


@pytest.fixture
def host(tmp_path: Path) -> PrivateHost:
    return private_host(tmp_path, needs=["systemctl"])


def run(*arguments: str | Path, env: dict[str, str | None] | None = None) -> Result:
    return CliRunner().invoke(app, ["schedule", *map(str, arguments)], env=env)


def test_show_prints_what_install_writes_and_writes_nothing(host: PrivateHost) -> None:
    options = ["--with", "systemd", "--at", "4:05", "--deep", "weekly", "--fix", "safe", "--live", "/srv/hermes"]
    before = listing(host.folder)
    shown = host.doctor("schedule", "show", *options)
    assert shown.returncode == 0, shown.stderr
    assert listing(host.folder) == before
    installed = host.doctor("schedule", "install", *options)
    assert installed.returncode == 0, installed.stderr
    for name in (SERVICE, TIMER):
        text = (host.units / name).read_text()
        assert f"==> /etc/systemd/system/{name} <==\n{text}\n" in shown.stdout
    assert "nightly --fix safe --live --deep weekly /srv/hermes\n" in (host.units / SERVICE).read_text()
    assert "OnCalendar=*-*-* 04:05:00\n" in (host.units / TIMER).read_text()
    assert "$ systemctl enable --now hermes-state-doctor.timer\n" in shown.stdout


def test_what_was_installed_goes_without_a_rest(host: PrivateHost) -> None:
    (host.units / "theirs.timer").write_text("[Timer]\nOnBootSec=1\n")
    before = listing(host.laid)
    first = host.doctor("schedule", "install", "--with", "systemd")
    assert "Installed with systemd, every day at 03:10: " in first.stdout
    after = listing(host.laid)
    wants = f"etc/systemd/system/timers.target.wants/{TIMER}"
    assert after.keys() - before.keys() >= {f"etc/systemd/system/{SERVICE}", f"etc/systemd/system/{TIMER}", wants}
    again = host.doctor("schedule", "install", "--with", "systemd")
    assert (again.returncode, listing(host.laid)) == (0, after)
    assert "It is installed just so" in again.stdout
    # Other options take the place of what was there.
    host.doctor("schedule", "install", "--with", "systemd", "--at", "05:00")
    assert "05:00:00" in (host.units / TIMER).read_text()
    status = valid(host.doctor("schedule", "status", "--json").stdout, "schedule")
    [one] = status["installed"]
    places = [f"/etc/systemd/system/{name}" for name in (SERVICE, TIMER)]
    assert one == {"with": "systemd", "at": "05:00", "places": places, "changed_by_hand": False}
    # There would be two of it.
    twice = host.doctor("schedule", "install", "--with", "cron")
    assert twice.returncode == 5
    assert "installed with systemd already" in twice.stderr
    removed = host.doctor("schedule", "remove")
    assert (removed.returncode, removed.stdout) == (0, f"Removed: {', '.join(places)}\n")
    left = listing(host.laid)
    left.pop("etc/systemd/system/timers.target.wants", None)
    assert left == before
    nothing = host.doctor("schedule", "remove")
    assert (nothing.returncode, nothing.stdout) == (0, "Nothing is installed.\n")


def test_what_somebody_else_wrote_is_not_touched(host: PrivateHost) -> None:
    (host.units / TIMER).write_text("[Timer]\nOnBootSec=1\n")
    before = listing(host.laid)
    for arguments in (["install", "--with", "systemd"], ["install", "--with", "systemd", "--force"]):
        refused = host.doctor("schedule", *arguments)
        assert (refused.returncode, refused.stdout) == (5, "")
        assert f"/etc/systemd/system/{TIMER} is there, and the doctor did not write it" in refused.stderr
        assert len(refused.stderr.splitlines()) == 1
    assert host.doctor("schedule", "remove").stdout == "Nothing is installed.\n"
    assert listing(host.laid) == before


def test_what_was_changed_by_hand_takes_force(host: PrivateHost) -> None:
    host.doctor("schedule", "install", "--with", "cron")
    file = host.cron_d / "hermes-state-doctor"
    file.write_text(file.read_text().replace("10 3 ", "40 5 "))
    before = listing(host.laid)
    for command in ("install", "remove"):
        refused = host.doctor("schedule", command, *(["--with", "cron"] if command == "install" else []))
        assert refused.returncode == 5
        assert "was changed by hand" in refused.stderr
        assert "--force" in refused.stderr
    assert listing(host.laid) == before
    told = host.doctor("schedule", "status")
    assert "every day at 05:40" in told.stdout
    assert "changed by hand" in told.stdout
    assert host.doctor("schedule", "remove", "--force").returncode == 0
    assert not file.exists()


def test_without_systemd_it_is_cron(host: PrivateHost) -> None:
    # Nobody runs systemd there: /run is empty.
    done = host.doctor("schedule", "install")
    assert done.stdout.startswith("Installed with cron, every day at 03:10: /etc/cron.d/hermes-state-doctor\n")
    assert [path.name for path in host.units.iterdir()] == []


def test_with_systemd_it_is_a_timer(host: PrivateHost) -> None:
    (host.laid / "run" / "systemd" / "system").mkdir(parents=True)
    shown = host.doctor("schedule", "show")
    assert shown.stdout.startswith(f"==> /etc/systemd/system/{SERVICE} <==\n")
    # It cannot be spoken to, so nothing of it stays.
    failed = host.doctor("schedule", "install")
    assert (failed.returncode, failed.stdout) == (3, "")
    assert "systemctl daemon-reload failed: " in failed.stderr
    assert list(host.units.iterdir()) == []


def test_what_finds_the_stores_is_handed_on(tmp_path: Path) -> None:
    there = {"HERMES_HOME": "/srv/my hermes", "HOME": str(tmp_path), "HERMES_DOCTOR_SCHEDULE_SHOW_AT": "01:02"}
    shown = run("show", "--with", "cron", env=dict(there)).stdout
    assert "2 1 * * * " in shown
    for word in (f"HOME={tmp_path}", f"XDG_STATE_HOME={tmp_path}/XDG_STATE_HOME", "'HERMES_HOME=/srv/my hermes'"):
        assert word in shown
    assert "TMPDIR" not in shown


def test_a_target_is_named_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert f" nightly {tmp_path}/here\n" in run("show", "--with", "cron", "here").stdout


def test_the_program_is_named_by_its_path() -> None:
    shown = run("show", "--with", "launchd").stdout
    words = shown.split("<array>")[1].split("</array>")[0]
    program = words.split("<string>")[1].split("<")[0]
    assert os.access(program, os.X_OK)
    assert Path(program).is_absolute()


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() != 0, reason="root's units are the machine's")
def test_another_than_root_has_units_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    shown = run("show", "--with", "systemd").stdout
    assert shown.startswith(f"==> {tmp_path}/XDG_CONFIG_HOME/systemd/user/{SERVICE} <==\n")
    assert "$ systemctl --user enable --now" in shown
    assert "ProtectSystem" not in shown


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["install", "--at", "25:00"], "'25:00' is no time of day"),
        (["show", "--at", "3"], "as in 03:10"),
        (["install", "--live"], "--live goes with --fix safe"),
        (["install", "--fix", "all"], "'all' is not 'safe'"),
        (["install", "--ping", "file:///etc/passwd"], "http"),
        (["install", "--with", "at"], "'at' is not one of"),
    ],
)
def test_mistakes_are_usage_errors(arguments: list[str], said: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert said in result.stderr


def test_neither_mending_nor_force_can_be_set_beforehand() -> None:
    shown = run("show", "--with", "cron", env={"HERMES_DOCTOR_SCHEDULE_SHOW_FIX": "safe"})
    assert "--fix" not in shown.stdout


def test_nothing_installed_is_said_so() -> None:
    told = run("status", env={"PATH": "/nowhere"})
    assert told.exit_code == 1
    assert told.stdout.startswith("Nothing is installed.\nNo nightly run is known.\n")


def test_the_status_tells_of_the_last_run(tmp_path: Path) -> None:
    store = make_demo_home(tmp_path / "home")
    assert CliRunner().invoke(app, ["nightly", str(store)]).exit_code == 1
    assert "17 new findings, 17 in all (exit code 1).\n" in run("status").stdout
    document = valid(run("status", "--json").stdout, "schedule")
    assert (document["installed"], document["last_run"]["new"]) == ([], 17)


@pytest.mark.parametrize("key", ["started_at", "found", "new", "exit_code"])
def test_a_last_run_that_cannot_be_read_is_not_known(tmp_path: Path, key: str) -> None:
    assert CliRunner().invoke(app, ["nightly", str(make_demo_home(tmp_path / "home"))]).exit_code == 1
    [record] = tmp_path.rglob("nightly.json")
    record.write_text(json.dumps(json.loads(record.read_text()) | {key: "yesterday"}))
    told = run("status", env={"PATH": "/nowhere"})
    assert told.exit_code == 1
    assert "No nightly run is known.\n" in told.stdout
    assert valid(run("status", "--json").stdout, "schedule")["last_run"] is None
