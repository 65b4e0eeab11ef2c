"""The doctor's bytecode, made once per test run: some hundred subprocesses would each compile all of it anew."""

from __future__ import annotations

import compileall
import os
import sys
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).parents[1]
_SWITCH: Final = "PYTHONDONTWRITEBYTECODE"


def keep_bytecode() -> None:
    """Lets this run, its workers and their subprocesses keep bytecode, also where the machine's settings say no.

    Call it before the first of them is started.
    """
    os.environ.pop(_SWITCH, None)
    sys.dont_write_bytecode = False
    if "PYTEST_XDIST_WORKER" not in os.environ:
        for package in ("hermes_doctor", "checks", "fixes"):
            # Up to date files are left; where nothing can be written, all goes on as without.
            compileall.compile_dir(_ROOT / package, quiet=2)
