"""The catalogue as the commands meet it: what cannot be used of other packages is said once, and the rest goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hermes_doctor.cli.changing import say

if TYPE_CHECKING:
    from hermes_doctor.catalogue import Catalogue


def known() -> Catalogue:
    """Return all checks and fixes; on standard error, say which checks of other packages are left out, and why."""
    from hermes_doctor.catalogue import catalogue
    from hermes_doctor.report.words import visible

    found = catalogue()
    for problem in found.problems:
        say(f"{visible(problem)}. Next: update that package, or pip uninstall it")
    return found
