"""Gets the released wheels from PyPI by name and hash, and unpacks them once.

The cache is ``$HERMES_DOCTOR_TEST_CACHE``, else the user's cache folder. Everything is done under one file
lock, so that the workers of a parallel test run share one download.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import platformdirs
from filelock import FileLock

from tests.oracle.releases import RELEASES, Release

#: Web pages, pictures and skill texts are half of a wheel, and no release needs them to run its store.
_NEEDED_SUFFIXES = frozenset({".py", ".json", ".yaml", ".yml", ".toml", ".sql", ".txt"})
_NEEDED_FILES = frozenset({"METADATA", "RECORD", "WHEEL", "entry_points.txt"})


class WheelsUnavailableError(Exception):
    """The released wheels cannot be had; the text says why and what to do."""


def cache_folder() -> Path:
    """Where wheels and unpacked releases are kept."""
    chosen = os.environ.get("HERMES_DOCTOR_TEST_CACHE")
    return Path(chosen) if chosen else platformdirs.user_cache_path("hermes-state-doctor-tests")


def unpacked(release: Release) -> Path:
    """The folder that goes on PYTHONPATH for ``release``. It exists only after :func:`ensure`."""
    # The hash is in the name: another wheel under the same version gets a folder of its own.
    return cache_folder() / "unpacked" / f"{release.version}-{release.sha256[:12]}"


def ensure(releases: tuple[Release, ...] = RELEASES) -> None:
    """Downloads and unpacks what is missing, several at a time.

    Raises WheelsUnavailableError when a wheel cannot be had (no network, wrong hash).
    """
    if all(unpacked(release).is_dir() for release in releases):
        return
    cache = cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    with FileLock(cache / "lock"):
        missing = [release for release in releases if not unpacked(release).is_dir()]
        # The first one alone: without a network, the others' timeouts would teach nothing more.
        failure = _fetch(missing[0]) if missing else None
        if failure is None:
            with ThreadPoolExecutor(max_workers=4) as pool:
                failure = next((text for text in pool.map(_fetch, missing[1:]) if text), None)
    if failure is not None:
        raise WheelsUnavailableError(f"{len(missing)} hermes-agent wheels could not be had: {failure}")


def _fetch(release: Release) -> str | None:
    """Brings one release into the cache; the reason where it cannot."""
    cache = cache_folder()
    with tempfile.TemporaryDirectory(dir=cache, prefix="fetch-") as folder:
        work = Path(folder)
        pin = work / "pin.txt"
        pin.write_text(f"{release.distribution}=={release.wheel_version} --hash=sha256:{release.sha256}\n")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        command += ["--no-deps", "--require-hashes", "--only-binary", ":all:", "--retries", "2", "--timeout"]
        command += ["60", "--dest", str(work), "--requirement", str(pin)]
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        wheels = list(work.glob("*.whl"))
        if done.returncode or len(wheels) != 1:
            said = (done.stderr or done.stdout).strip().splitlines()
            return f"pip download {release.distribution}=={release.wheel_version}: {said[-1] if said else '?'}"
        target = unpacked(release)
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh = work / "unpacked"
        _unpack(wheels[0], fresh)
        # Renamed into place at the end, so that a folder of that name is always complete.
        shutil.move(fresh, target)
    return None


def _unpack(wheel: Path, folder: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            name = Path(member.filename)
            if name.suffix in _NEEDED_SUFFIXES or name.name in _NEEDED_FILES:
                archive.extract(member, folder)
