"""What tests of several fixes take: private copies of homes that hold all cases of a few checks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.checks.ends_and_counts import Scene, scene
from tests.checks.left_behind_cases import plots
from tests.checks.reachable import reachable
from tests.oracle.releases import Release

__all__ = ["plots", "reachable"]


@pytest.fixture
def patient(oracle: None, shared_folder: Path, tmp_path: Path) -> Callable[[Release], Scene]:
    """A home of that release with the cases of counter-drift, crossed-ends and wrongly-ended, to be changed."""
    return lambda release: scene(shared_folder, release).copy(tmp_path)
