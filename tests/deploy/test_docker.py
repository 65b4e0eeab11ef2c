"""`deploy/docker`: the image is what it should be by its recipe, and what it promises holds for the doctor itself."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from hermes_doctor.demo.home import make_demo_home
from tests.cli.support import ROOT, environment
from tests.deploy.wheel import DOCKER, wheel

RECIPE = DOCKER / "Dockerfile"


def instructions() -> list[tuple[str, str]]:
    """What the recipe says, line by line: the instruction and the rest."""
    kept = [line for line in RECIPE.read_text().splitlines(keepends=True) if not line.startswith("#")]
    text = re.sub(r"\\\n\s*", "", "".join(kept))
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in text.splitlines() if line]


def last(instruction: str) -> str:
    return [rest for name, rest in instructions() if name == instruction][-1]


def settings() -> dict[str, str]:
    return dict(word.split("=", 1) for word in last("ENV").split())


def test_the_base_is_named_plainly_with_its_version() -> None:
    bases = [rest.split()[0] for name, rest in instructions() if name == "FROM"]
    assert len(set(bases)) == 1
    assert re.fullmatch(r"python:3\.\d+-slim", bases[0])


def test_it_is_installed_into_an_environment_of_its_own_which_is_on_the_path() -> None:
    made, *_ = [rest for name, rest in instructions() if name == "RUN"]
    assert made.split(" && ") == ["python -m venv /opt/doctor", "/opt/doctor/bin/pip install --no-cache-dir ."]
    assert ("COPY", "--from=build /opt/doctor /opt/doctor") in instructions()
    assert settings()["PATH"] == "/opt/doctor/bin:$PATH"


def test_it_runs_the_doctor_as_somebody_without_rights() -> None:
    names = [name for name, _ in instructions()]
    assert last("USER") == "10001:10001"
    # Nothing is done as root after that, and a signal reaches the doctor itself.
    assert "RUN" not in names[len(names) - names[::-1].index("USER") :]
    assert (last("ENTRYPOINT"), last("CMD")) == ('["doctor"]', '["scan"]')
    assert last("VOLUME") == f'["{settings()["XDG_STATE_HOME"]}"]'
    assert not [rest for name, rest in instructions() if name == "ADD" or "sudo" in rest or "apt" in rest]


def test_the_package_is_built_from_what_docker_sees(tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel(tmp_path)) as archive:
        names = set(archive.namelist())
    tracked = subprocess.run(
        ["git", "ls-files", "hermes_doctor", "checks", "fixes"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    assert set(tracked) <= names
    assert not {path.name for path in (tmp_path / "context").iterdir()} & {".git", "tests", "bench"}


@pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0, reason="needs root on Linux, to mount and to be others"
)
def test_somebody_without_a_name_scans_a_home_that_is_mounted_read_only(tmp_path: Path) -> None:
    store = make_demo_home(tmp_path / "home")
    for path in (store.parent, store):
        os.chown(path, 4711, 4711)
    # The folders above are pytest's own.
    mount = 'mount --bind "$1" /mnt && mount -o remount,ro,bind /mnt && shift && exec "$@"'
    env = environment(tmp_path) | {"HERMES_HOME": "/mnt", "HOME": "/state", "XDG_STATE_HOME": "/state"}
    made = subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True)
    if made.returncode != 0:
        pytest.skip("this machine mounts nothing")
    somebody = [shutil.which("setpriv") or "setpriv", "--reuid=4711", "--regid=4711", "--clear-groups", sys.executable]
    if subprocess.run([*somebody, "-c", ""], check=False, capture_output=True).returncode != 0:
        pytest.skip("needs a Python that another user may run")
    scan = [*somebody, "-m", "hermes_doctor", "scan", "--limit", "0"]
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", mount, "sh", str(store.parent), *scan],
        env=env | {"TMPDIR": "/tmp"},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "17 findings" in done.stdout
    assert done.stderr == ""


def test_the_image_works_where_docker_does(tmp_path: Path) -> None:
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "info"], capture_output=True, check=False).returncode != 0:
        pytest.skip("needs a docker that works")
    built = subprocess.run(
        [docker, "build", "-q", "-f", str(RECIPE), str(ROOT)], capture_output=True, text=True, check=False, timeout=280
    )
    if built.returncode != 0 and "python:" in built.stderr:
        pytest.skip(f"the base image is not to be had: {built.stderr.strip().splitlines()[-1]}")
    assert built.returncode == 0, built.stderr
    image = built.stdout.strip()
    try:
        store = make_demo_home(tmp_path / "home")
        words = [docker, "run", "--rm", "--user", f"{os.geteuid()}", "-v", f"{store.parent}:/hermes:ro", image]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 1, done.stderr
        assert "17 findings" in done.stdout
    finally:
        subprocess.run([docker, "rmi", "-f", image], capture_output=True, check=False)
