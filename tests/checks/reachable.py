"""A store that everybody can reach, for who looks at its rights and who changes them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hermes_doctor.demo.home import make_demo_home

BACKUP = "state.db.malformed-backup-20260901_120000"


@pytest.fixture
def reachable() -> Iterator[Path]:
    """A private store that everybody can reach: the tests' own folders are closed to others."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o755)
    store = make_demo_home(folder / "home")
    store.parent.chmod(0o755)
    store.chmod(0o600)
    yield store
    shutil.rmtree(folder)
