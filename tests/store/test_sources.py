"""The groups of sources against what the releases themselves say."""

from __future__ import annotations

import ast
import time

import pytest

from hermes_doctor.store.clocks import DAY, HOUR
from hermes_doctor.store.sources import MESSAGING, SCREENS, STANDING, WORKERS, Group, group_of, idle_limit
from tests.oracle import wheels
from tests.oracle.home import Home
from tests.oracle.releases import RELEASES, Release, between
from tests.oracle.steps import call, clock, sql


def platforms(release: Release) -> set[str]:
    """The gateway's platforms: its enumeration, and the plugins that come with the release."""
    root = wheels.unpacked(release)
    tree = ast.parse((root / "gateway" / "config.py").read_text())
    (members,) = (node.body for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == "Platform")
    values = (node.value for node in members if isinstance(node, ast.Assign))
    named = {value.value for value in values if isinstance(value, ast.Constant) and isinstance(value.value, str)}
    plugins = root / "plugins" / "platforms"
    shipped = {path.name for path in plugins.iterdir() if path.is_dir()} if plugins.is_dir() else set()
    return {name for name in named | shipped if not name.startswith("_")}


def test_the_messaging_platforms_are_those_of_all_releases(oracle: None) -> None:
    # local is the CLI itself, api_server is nobody's chat.
    assert set().union(*(platforms(release) for release in RELEASES)) - {"local", "api_server"} == MESSAGING


@pytest.mark.parametrize("release", between("0.21.5"), ids=str)
def test_what_upstream_closes_past_the_retention_is_no_chat_of_ours(home: Home, release: Release) -> None:
    """Upstream's own judgement of which open rows nobody will end (0.21.5 on)."""
    sources = sorted(WORKERS | SCREENS | STANDING | MESSAGING | {"recovered", "unknown", "webui"})
    *_, rows = home.run(
        release,
        [
            clock(time.time() - 200 * DAY),
            *[call("create_session", source, source) for source in sources],
            clock(None),
            call("maybe_auto_prune_and_vacuum", retention_days=90, vacuum=False),
            sql("SELECT id FROM sessions WHERE end_reason = 'startup_orphan_reap'"),
        ],
    )
    closed = {row[0] for row in rows}
    ended_by_us = {s for s in sources if group_of(s) in (Group.WORKER, Group.STANDING, Group.RECOVERED)}
    assert closed == ended_by_us - {"oneshot"}


@pytest.mark.parametrize(
    ("group", "free", "held"),
    [
        (Group.WORKER, HOUR, DAY),
        (Group.SCREEN, 6 * HOUR, None),
        (Group.STANDING, DAY, DAY),
        (Group.RECOVERED, 90 * DAY, 90 * DAY),
        (Group.MESSAGING, DAY, DAY),
        (Group.OTHER, DAY, DAY),
    ],
)
def test_how_long_a_group_may_lie_open(group: Group, free: float, held: float | None) -> None:
    assert idle_limit(group, "no", 90 * DAY) == free
    assert idle_limit(group, "yes", 90 * DAY) == idle_limit(group, "unknown", 90 * DAY) == held


def test_what_is_no_text_is_no_known_source() -> None:
    assert {group_of(cell) for cell in (None, 1, 1.5, b"cli", "CLI", "")} == {Group.OTHER}
