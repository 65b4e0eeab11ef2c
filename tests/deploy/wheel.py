"""A wheel of the doctor, built from just what its image is built from."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from tests.cli.support import ROOT

DOCKER = ROOT / "deploy" / "docker"


def context(folder: Path) -> Path:
    """What docker would see of the checkout."""
    lines = (DOCKER / "Dockerfile.dockerignore").read_text().splitlines()
    for name in (line[1:] for line in lines if line.startswith("!")):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, folder / name)
    return folder


def wheel(folder: Path) -> Path:
    """Builds the wheel."""
    words = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(words, cwd=context(folder / "context"), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    [path] = folder.glob("*.whl")
    return path


def behind_it(folder: Path) -> Path:
    """A wheel that has the environment that it is installed into see the tester's packages, behind its own."""
    path = folder / "testers_packages-1-py3-none-any.whl"
    info = "testers_packages-1.dist-info"
    places = [place for place in sys.path if place.endswith(("site-packages", "dist-packages"))]
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("testers_packages.pth", "".join(f"{place}\n" for place in places))
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: testers-packages\nVersion: 1\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(
            f"{info}/RECORD",
            "".join(
                f"{name},,\n"
                for name in ("testers_packages.pth", *(f"{info}/{n}" for n in ("METADATA", "WHEEL", "RECORD")))
            ),
        )
    return path
