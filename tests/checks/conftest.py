"""What tests of several checks take: private copies of homes that hold all cases of a few checks."""

from __future__ import annotations

from tests.checks.left_behind_cases import plots
from tests.checks.reachable import reachable

__all__ = ["plots", "reachable"]
