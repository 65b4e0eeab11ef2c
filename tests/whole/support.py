"""What tests of the whole share: the installed command, and what it says."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def doctor(
    *arguments: str | Path, environment: Mapping[str, str] | None = None, timeout: float = 120
) -> subprocess.CompletedProcess[str]:
    """Run the installed command, away from the sources, with a state folder of nobody's."""
    command = [sys.executable, "-P", "-m", "hermes_doctor", *map(str, arguments)]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        cwd="/",
        env=os.environ | {"COLUMNS": "80"} | dict(environment or {}),
    )


def scan(*targets: Path, codes: tuple[int, ...] = (0, 1)) -> list[dict[str, Any]]:
    """Scan through the installed command and return the databases of its JSON report."""
    done = doctor("scan", "--json", *targets)
    assert done.returncode in codes, (done.returncode, done.stdout, done.stderr)
    databases: list[dict[str, Any]] = json.loads(done.stdout)["databases"]
    return databases


def fingerprint(folder: Path) -> dict[str, tuple[int, int, int, str]]:
    """Every file below a folder: size, modification time, mode and content."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            status = path.stat()
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            found[str(path.relative_to(folder))] = (status.st_size, status.st_mtime_ns, status.st_mode, digest)
    return found
