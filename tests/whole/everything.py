"""One home with all faults of all checks, and with what only looks like one, beside a history that is well.

The cases of every check's own table go into one home that was lived in, each by its own means and under a name of its
own. Left out is what would change the verdict on all others (a time ahead of the clock, a document of another program
that cannot be read) or make the release itself fail on the store, and chains of a hundred links and more.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from filelock import FileLock

from tests.checks import (
    branch_cases,
    copies_cases,
    ends_and_counts,
    hidden_cases,
    identity_cases,
    leaked_cases,
    left_behind_cases,
    lineage_cases,
    orphan_cases,
    title_cases,
    zombie_cases,
)
from tests.checks import test_dangling_routes as route_cases
from tests.checks import test_orphan_stubs as stub_cases
from tests.oracle.faults import Planter
from tests.oracle.home import Home
from tests.oracle.releases import Release, get
from tests.oracle.steps import Step, call, clock, sql
from tests.oracle.templates import LivedIn
from tests.whole.damaged import plant_faults
from tests.whole.identical import image_of

#: Words in the names of cases that are left out.
_AHEAD = ("future", "tomorrow", "ahead")
_LEFT_OUT = (*_AHEAD, " links", "nobody knows where", "no JSON", "broken model_config")


@dataclass(frozen=True)
class Everything:
    """The home, and what its release said of it just before the last fault, after which old ones cannot open it.

    ``listed``: ids of the list. ``replayed``: the conversations of the history, and of what crashes left in it.
    """

    home: Home
    release: Release
    listed: list[str]
    replayed: dict[str, Any]


def with_everything(shared: Path, to: Path, version: str) -> Everything:
    """A private copy of such a home of that release, with nobody at it; built once per test run."""
    template = shared / "everything" / version
    template.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(template.with_name(template.name + ".lock")):
        if not (template / "said.json").exists():
            shutil.rmtree(template, ignore_errors=True)
            lived = LivedIn(shared / "lived-in", template)(version)
            said = _plant(lived.home, get(version))
            lived.home.path.rename(template / "home")
            (template / "said.json").write_text(json.dumps(said))
    shutil.copytree(template / "home", to, symlinks=True)
    return Everything(Home(to), get(version), **json.loads((template / "said.json").read_text()))


def look(sessions: Sequence[str]) -> list[Step]:
    """What a person sees of the store: the list, and each of these sessions replayed."""
    listed = call("list_sessions_rich", limit=100_000)
    return [listed, *(call("get_messages_as_conversation", session) for session in sessions)]


def _plant(home: Home, release: Release) -> dict[str, Any]:
    now = time.time()
    told = _Told(home.path)
    plant = Planter(release)
    plant_faults(plant)
    told.steps += [*plant.steps, clock(None)]
    if release.since("0.19.0"):
        route_cases.plant(told, release)
    home.run(release, told.steps)
    sessions = sorted(image_of(home.store).ids())
    left_behind_cases.plant(home, (release.version,), left_behind_cases.facts())
    told.steps.clear()
    if release.since("0.21.5"):
        # A heartbeat of no time may be that of a living backend, which would spare most of what is open.
        told.steps.append(sql("DELETE FROM gateway_heartbeats WHERE last_heartbeat = 'never'"))
    tables: dict[str, Sequence[lineage_cases.Case]] = {
        "lineage-gaps": lineage_cases.CASES,
        "lost-identity": identity_cases.CASES,
        "hidden-chats": hidden_cases.CASES,
    }
    apart = tuple(_apart(check, each) for check, cases in tables.items() for each in cases if _fits(each, release))
    lineage_cases.plant(told, release, now, apart)
    told.steps.append(sql("PRAGMA foreign_keys=ON"))
    stub_cases.plant(
        told, release, tuple(each for each in stub_cases.CASES if each.files is None and _fits(each, release))
    )
    told.steps.append(clock(None))
    orphan_cases.plant(told, release)
    told.steps.append(clock(None))
    # Ids far beyond those of all other messages.
    leaks = (each for each in leaked_cases.cases() if not each.leased)
    told.steps += leaked_cases.planting(release.version, now, leaks, first=1_000_000)
    told.steps += branch_cases.planting([each for each in branch_cases.CASES if each.shows(release.version)], now)
    for each in zombie_cases.CASES:
        if each.shown_by(release) and _fits(each, release):
            plot = zombie_cases.Plot(f"zombie: {each.name}", release, now)
            each.plant(plot)
            told.steps += plot.steps
    told.steps += ends_and_counts.planted(release, now)
    home.run(release, told.steps)
    told.steps.clear()
    if release.since("0.16.0"):
        # Texts with a NUL are for the release's own SQLite to write, and leases spare what other tables plant.
        copied = {"replayed-blocks": copies_cases.REPLAYS, "archived-copies": copies_cases.ARCHIVED}
        for check, copies in copied.items():
            plain = [each for each in copies if not each.guard and copies_cases.PICTURE not in each.cells.values()]
            named = tuple(replace(each, name=f"{check}: {each.name}") for each in plain)
            copies_cases.plant(home, release, now, named)
    # Last: releases up to 0.18.2 cannot open a store with two equal titles, newer ones clear them.
    title_cases.plant(told, release, now, tuple(each for each in title_cases.CASES if not each.refused))
    listed, *replayed = home.run(release, [*look(sessions), *told.steps])[: len(sessions) + 1]
    return {"listed": [row["id"] for row in listed], "replayed": dict(zip(sessions, replayed, strict=True))}


class _Told(Home):
    """Collects the steps of several tables for one process of the release."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.steps: list[Step] = []

    def run(self, release: Release | str, steps: Sequence[Step], **_options: Any) -> list[Any]:
        self.steps += steps
        return []


def _fits(case: Any, release: Release) -> bool:
    # The mark of a reset chat comes with 0.20.6: no older store has one.
    too_new = "reset chat" in case.name and not release.since("0.20.6")
    return not too_new and not any(word in case.name for word in _LEFT_OUT)


def _apart(check: str, case: lineage_cases.Case) -> lineage_cases.Case:
    """The case under a name, and with titles, that no other table has."""
    sessions = tuple(
        replace(row, cells={**row.cells, "title": f"{check}: {row.cells['title']}"}) if "title" in row.cells else row
        for row in case.sessions
    )
    return replace(case, name=f"{check}: {case.name}", sessions=sessions)
