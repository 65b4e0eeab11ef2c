"""Homes with some sixty faults of all four kinds beside a healthy history, built once per test run and copied."""

from __future__ import annotations

import shutil
from pathlib import Path

import apsw
from filelock import FileLock

from tests.oracle.faults import Planter, planting
from tests.oracle.history import CALLS, REASONING, live
from tests.oracle.home import Home
from tests.oracle.releases import Release, get
from tests.oracle.steps import precreate, sql

_WRAP = "UPDATE messages SET {0} = json_quote({0}) WHERE session_id = ? AND {0} IS NOT NULL"


def damaged(templates: Path, to: Path, version: str, mode: str) -> Home:
    """A private copy of a damaged home of that release, its store in ``wal`` or ``delete`` mode, with nobody at it."""
    release = get(version)
    template = templates / f"damaged-{version}-{mode}"
    templates.mkdir(parents=True, exist_ok=True)
    with FileLock(template.with_name(template.name + ".lock")):
        if not (template / "done").exists():
            shutil.rmtree(template, ignore_errors=True)
            damage(Home(template / "home"), release, mode)
            (template / "done").touch()
    shutil.copytree(template / "home", to, symlinks=True)
    home = Home(to)
    assert home.journal_mode() == mode
    return home


def damage(home: Home, release: Release, mode: str) -> None:
    """Live in a new home and plant the faults; the last process dies by SIGKILL, with the store open."""
    home.run(release, [precreate(mode)])
    live(home, release)
    with planting(home, release) as plant:
        plant_faults(plant)
    if home.journal_mode() != mode:
        # Up to 0.19 a release makes every store a WAL one; where that does not work (network disks), it goes without.
        connection = apsw.Connection(str(home.store))
        connection.pragma("journal_mode", mode)
        connection.close()


def plant_faults(plant: Planter) -> None:
    """Plant the faults of the four kinds into a home that was lived in."""
    for n in range(14):
        plant.open_zombie(("cli", "tui", "cron", "subagent")[n % 4], idle=(3 + n) * 86_400)
    for _ in range(4):
        plant.killed_mid_turn()
    for _ in range(5):
        plant.orphan_stub("tui")
        plant.orphan_stub("cli")
    for _ in range(3):
        plant.lineage_gap("no-continuation")
        plant.lineage_gap("empty-continuation")
        plant.lineage_gap("missing-parent")
    plant.lineage_gap("self-parent")
    _double_encoded(plant)


def _double_encoded(plant: Planter) -> None:
    if not plant.release.since("0.20.6"):
        for levels in (1, 2, 3):
            plant.rewritten_by_a_script(levels)
    for n in range(8):
        session = plant.session("cli", idle=2 * 3600, name="wrapped")
        plant.say(session, "user", "hello")
        plant.say(session, "assistant", f"hi, {n} times", tool_calls=CALLS, **REASONING)
        plant.say(session, "tool", "a.txt", tool_call_id="call_1", tool_name="terminal")
        plant.end(session, "cli_close")
        columns = ("codex_reasoning_items", "reasoning_details", "tool_calls")
        plant.steps += [sql(_WRAP.format(column), session) for column in columns[: 1 + n % 3]]
