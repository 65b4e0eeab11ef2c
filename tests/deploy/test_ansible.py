"""`deploy/ansible`: ansible itself has a host checked every night, twice alike, and tells of the fleet in one table."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from hermes_doctor.demo.home import make_demo_home
from tests.cli.support import ROOT, valid
from tests.debian import debian_program
from tests.deploy.wheel import behind_it, wheel
from tests.nightly.private_host import PrivateHost, listing, private_host

PLAYBOOK = ROOT / "deploy" / "ansible" / "nightly.yml"


@pytest.fixture
def host(tmp_path: Path) -> PrivateHost:
    debian_program("crontab", "cron")
    return private_host(tmp_path)


def play(host: PrivateHost, *words: str) -> tuple[str, dict[str, dict[str, int]]]:
    """Runs the playbook; returns what it says, and its last count: host -> what -> how often."""
    env = host.environment() | {"ANSIBLE_NOCOLOR": "1", "ANSIBLE_LOCALHOST_WARNING": "0", "ANSIBLE_PIPELINING": "1"}
    # Of the socket that ansible 2.20 on makes there the path has to be short.
    env["TMPDIR"] = "/tmp"
    # What is installed is to be found by itself.
    env.pop("PYTHONPATH")
    command = host.words(sys.executable, "-m", "ansible", "playbook", "-i", host.folder / "hosts", PLAYBOOK, *words)
    done = subprocess.run(command, env=env, cwd=host.folder, capture_output=True, text=True, check=False, timeout=240)
    said = done.stdout + done.stderr
    counts = {
        name: {what: int(number) for what, number in re.findall(r"(\w+)=(\d+)", rest)}
        for name, rest in re.findall(r"^(\w+) +: (ok=.*)$", said, re.MULTILINE)
    }
    assert counts, said
    return said, counts


def test_a_host_is_set_up_once_and_its_nights_are_collected(host: PrivateHost) -> None:
    store = make_demo_home(host.home / "hermes")
    assert host.doctor("nightly", store).returncode == 1
    fleet, installed = host.folder / "fleet", host.folder / "opt" / "doctor"
    installed.parent.mkdir()
    line = f"ansible_connection=local ansible_python_interpreter={sys.executable}"
    (host.folder / "hosts").write_text(f"alpha {line}\n")
    settings = {
        "hermes_state_doctor_source": str(wheel(host.folder)),
        "hermes_state_doctor_pip_args": ["--no-index", "--no-deps", "--no-compile", str(behind_it(host.folder))],
        "hermes_state_doctor_python": sys.executable,
        "hermes_state_doctor_folder": str(installed),
        "hermes_state_doctor_targets": [str(store)],
        "hermes_state_doctor_at": "04:25",
        "hermes_state_doctor_schedule_args": ["--deep", "weekly"],
        "hermes_state_doctor_collect_to": str(fleet),
    }
    (host.folder / "settings.json").write_text(json.dumps(settings))
    words = ("-e", f"@{host.folder / 'settings.json'}")

    before = listing(host.laid)
    said, counts = play(host, *words, "--check")
    assert (counts["alpha"]["failed"], counts["alpha"]["changed"] >= 4) == (0, True), said
    assert listing(host.laid) == before
    assert not fleet.exists()
    assert not installed.exists()

    said, counts = play(host, *words)
    assert counts["alpha"]["failed"] == 0, said
    job = (host.cron_d / "hermes-state-doctor").read_text()
    assert "25 4 * * * root " in job
    assert f"{installed}/venv/bin/" in job
    assert f"nightly --deep weekly {store}\n" in job
    night = valid((fleet / "alpha.json").read_text(), "nightly")
    assert night["new"] == 17
    [_, _, row] = (fleet / "fleet.md").read_text().splitlines()
    assert row == f"| alpha | {store} | readable | 17 | 17 | 0 | 18 | 54 | {night['started_at']} |"
    assert row in said

    (host.folder / "hosts").write_text(
        f"alpha {line}\nbeta ansible_connection=local ansible_python_interpreter=/none\n"
    )
    said, counts = play(host, *words)
    assert (counts["alpha"]["failed"], counts["beta"]["failed"]) == (0, 1), said
    # The table alone: it has one more host.
    assert counts["alpha"]["changed"] == 1, said
    assert "| beta | | not reached | | | | | | |" in (fleet / "fleet.md").read_text().splitlines()


def test_each_setting_is_told_of() -> None:
    role = PLAYBOOK.parent / "roles" / "hermes_state_doctor"
    options = yaml.safe_load((role / "meta" / "argument_specs.yml").read_text())["argument_specs"]["main"]["options"]
    defaults = yaml.safe_load((role / "defaults" / "main.yml").read_text())
    rows = re.findall(r"^\| `(hermes_state_doctor_\w+)` \|", (ROOT / "deploy" / "README.md").read_text(), re.MULTILINE)
    assert set(options) == set(rows) == {"hermes_state_doctor_source", *defaults}
    for name, default in defaults.items():
        assert options[name].get("default", default) == default
