"""Homes to scan: a damaged one, and one in which a real release lived."""

from __future__ import annotations

from pathlib import Path

import pytest

from hermes_doctor.demo.home import make_demo_home
from tests.oracle.home import Home
from tests.oracle.steps import call


@pytest.fixture(autouse=True)
def _no_settings_of_the_testers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the tester's own config.toml reaches a command that runs in the test's process."""
    monkeypatch.setenv("XDG_CONFIG_HOME", "/nowhere")


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """The store of a home with findings of several checks."""
    return make_demo_home(tmp_path / "damaged")


@pytest.fixture
def healthy(home: Home) -> Path:
    """A store that a real release wrote and closed; nothing is wrong with it."""
    home.run(
        "0.19.0",
        [
            call("create_session", "s1", "cli"),
            call("append_message", "s1", "user", "a private word"),
            call("append_message", "s1", "assistant", "another one"),
            call("end_session", "s1", "cli_close"),
        ],
    )
    return home.store
