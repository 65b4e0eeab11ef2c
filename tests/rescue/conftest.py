"""Where the stores of these tests are, and where what is saved of them goes: each in a folder of its own."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Where a store is to be made."""
    (tmp_path / "home").mkdir()
    return tmp_path / "home" / "state.db"


@pytest.fixture
def new(tmp_path: Path) -> Path:
    """Where the new file is to be."""
    (tmp_path / "new").mkdir()
    return tmp_path / "new" / "rescued.db"


@pytest.fixture(autouse=True)
def _temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where an inspection puts its copy."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
