"""Running commands within the test's own process, where many are wanted: most take longer to start than to run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from click.testing import CliRunner

from hermes_doctor.cli.app import app


class Done(NamedTuple):
    """How a command ended, and what it said."""

    returncode: int
    stdout: str
    stderr: str


def doctor(folder: Path, *arguments: str | Path, extra: Mapping[str, str] | None = None) -> Done:
    """Runs one command with the folder as home; its state lies where it does for a user who has set nothing."""
    usual = {"HOME": str(folder), "HERMES_HOME": str(folder / ".hermes")}
    env = {"XDG_STATE_HOME": None, "XDG_CONFIG_HOME": None, **usual, **(extra or {})}
    result = CliRunner().invoke(app, list(map(str, arguments)), env=env, catch_exceptions=False)
    return Done(result.exit_code, result.stdout, result.stderr)
