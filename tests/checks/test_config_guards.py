"""Settings that surprise: what prune is about to take, as the releases take it, and what they make of odd values."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import apsw
import pytest

import checks.config_guards as config_guards
from checks.config_guards import CHECK
from hermes_doctor.engine.model import FILES, Finding
from hermes_doctor.store import pruning
from hermes_doctor.store.clocks import DAY
from tests.checks.support import findings_of
from tests.oracle.home import Home
from tests.oracle.releases import Release, get
from tests.oracle.steps import Step, call, clock, sql

NOW = 1_800_000_000.0
NEVER, OFF, ON = get("0.19.0"), get("0.20.6"), get("0.22.2")
#: Sessions by name: how many days ago they were used last and, if they were, ended.
ENDED = {"e0": 0.1, "e5": 5.0, "e40": 40.0, "e100": 100.0, "e200": 200.0}
OPEN = {"o1": 1.0, "o120": 120.0}


def life(release: Release) -> list[Step]:
    steps: list[Step] = []
    for name, ago in {**ENDED, **OPEN, "pinned": 200.0, "long": 200.0}.items():
        steps += [clock(NOW - ago * DAY - 600), call("create_session", name, "cli", model="m")]
        steps += [clock(NOW - ago * DAY), call("append_message", name, "user", "x")]
        if name not in OPEN:
            steps.append(call("end_session", name, "compression" if name == "long" else "user_exit"))
    steps += [clock(NOW - 2 * DAY), call("create_session", "longer", "cli", model="m", parent_session_id="long")]
    if release.since("0.20.6"):
        steps.append(sql("UPDATE sessions SET pinned = 1 WHERE id = 'pinned'"))
    else:
        steps.append(sql("UPDATE sessions SET ended_at = NULL WHERE id = 'pinned'"))
    return steps


@pytest.fixture(scope="module")
def made(oracle: None, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Release], Home]:
    """A home for each release that is asked for, whose config tests write anew."""

    @cache
    def make(release: Release) -> Home:
        home = Home(tmp_path_factory.mktemp("guards") / "home")
        home.run(release, life(release))
        return home

    return make


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HERMES_MANAGED_DIR", str(tmp_path / "managed"))


def found(home: Home, config: str | None) -> list[Finding]:
    file = home.path / "config.yaml"
    file.unlink(missing_ok=True)
    if config is not None:
        file.write_text(config)
    return findings_of(home.store, CHECK, home=home.path, now=NOW)


def said(home: Home, config: str | None) -> list[tuple[object, str, object]]:
    """Which settings are spoken of, how severely, and how many sessions are to be lost."""
    return [
        (each.detail.get("setting"), each.severity.label, each.detail.get("sessions")) for each in found(home, config)
    ]


PRUNE, DAYS = "sessions.auto_prune", "sessions.retention_days"

#: By release and config: settings that are spoken of, how severely, and how many sessions are to be lost.
CASES: list[tuple[Release, str | None, list[tuple[object, str, object]]]] = [
    # Off unless told otherwise, up to 0.20.6.
    (NEVER, None, []),
    (OFF, "model: x\n", []),
    (OFF, "sessions: {auto_prune: false, retention_days: 0}\n", []),
    (OFF, "sessions: {auto_prune: null}\n", []),
    # On unless told otherwise, from 0.21.5 on.
    (ON, None, [(PRUNE, "warning", 2)]),
    (ON, "model: x\n", [(PRUNE, "warning", 2)]),
    (ON, "sessions: {auto_prune: null, retention_days: null}\n", [(PRUNE, "warning", 2)]),
    (ON, "sessions: {auto_prune: false}\n", []),
    (ON, "sessions: {retention_days: 150}\n", [(PRUNE, "warning", 1)]),
    (ON, "sessions: {retention_days: 365}\n", []),
    # As it was asked for.
    (ON, "sessions: {auto_prune: true}\n", [(PRUNE, "info", None)]),
    (OFF, "sessions: {auto_prune: true}\n", [(PRUNE, "info", None), (DAYS, "info", None)]),
    (OFF, "sessions: {auto_prune: true, retention_days: 365}\n", []),
    # Text that reads as no.
    (OFF, 'sessions: {auto_prune: "false", retention_days: 365}\n', [(PRUNE, "info", 0)]),
    (ON, "sessions: {auto_prune: 'No '}\n", [(PRUNE, "warning", 2)]),
    (ON, "sessions: {auto_prune: 'yes'}\n", [(PRUNE, "info", None)]),
    (ON, "sessions: {auto_prune: '${PRUNE}'}\n", []),
    # No days at all, or cut down.
    (ON, "sessions: {auto_prune: true, retention_days: 0}\n", [(DAYS, "warning", 5)]),
    (ON, "sessions: {auto_prune: true, retention_days: 0.9}\n", [(DAYS, "warning", 5)]),
    (ON, "sessions: {auto_prune: true, retention_days: yes}\n", [(DAYS, "warning", 4)]),
    (ON, "sessions: {auto_prune: true, retention_days: '150'}\n", [(PRUNE, "info", None)]),
    (ON, "sessions: {auto_prune: true, retention_days: -1}\n", [(DAYS, "info", None)]),
    (OFF, "sessions: {auto_prune: true, retention_days: -1}\n", [(DAYS, "warning", 5), (DAYS, "info", None)]),
    (ON, "sessions: {auto_prune: true, retention_days: ninety}\n", [(DAYS, "info", None)]),
    (ON, "sessions: {auto_prune: true, retention_days: .inf}\n", [(DAYS, "info", None)]),
    (OFF, "sessions: {auto_prune: true, retention_days: null}\n", [(DAYS, "info", None)]),
    (ON, "sessions: {auto_prune: true, retention_days: 1" + "0" * 400 + "}\n", []),
    # Not read at all.
    (OFF, "sessions: {auto_prune: false\n", [(None, "info", None)]),
    (ON, "sessions: {auto_prune: false\n", [(None, "warning", 2)]),
    (ON, "sessions: {auto_prune: false, auto_prune: false}\n", [(None, "warning", 2)]),
    (OFF, "sessions: {auto_prune: false, auto_prune: false}\n", [(None, "info", None)]),
    (
        OFF,
        "sessions: {auto_prune: false, auto_prune: true}\n",
        [(None, "info", None), (PRUNE, "info", None), (DAYS, "info", None)],
    ),
    (ON, "sessions: [auto_prune]\n", [("sessions", "info", None)]),
    # Archiving and limits.
    (OFF, "sessions: {auto_archive: true}\n", []),
    (OFF, "sessions: {auto_archive: true, auto_archive_days: 0.5}\n", [("sessions.auto_archive_days", "info", None)]),
    (OFF, "sessions: {auto_archive: true, auto_archive_days: x}\n", [("sessions.auto_archive_days", "info", None)]),
    (OFF, "sessions: {auto_archive: 'off'}\n", [("sessions.auto_archive", "info", None)]),
    (NEVER, "sessions: {auto_archive: 'off'}\n", []),
    (OFF, "sessions: {max_resume_messages: many}\n", [("sessions.max_resume_messages", "info", None)]),
    (OFF, "sessions: {max_export_messages: -1}\n", [("sessions.max_export_messages", "info", None)]),
    (OFF, "sessions: {max_export_messages: 0, max_resume_messages: null}\n", []),
    (NEVER, "sessions: {max_export_messages: -1}\n", []),
]


def wrong_cases(made: Callable[[Release], Home]) -> list[tuple[Release, str | None]]:
    return [(release, config) for release, config, expected in CASES if said(made(release), config) != expected]


def test_every_config_is_judged_as_it_is(made: Callable[[Release], Home]) -> None:
    assert wrong_cases(made) == []
    assert {(each.table, each.key) for each in found(made(ON), None)} == {(FILES, "config.yaml")}


@pytest.mark.parametrize(
    ("module", "name", "value"),
    [
        (pruning, "OFF_BY_DEFAULT", 99),
        (pruning, "ON_BY_DEFAULT", 0),
        (config_guards, "pruned_lately", lambda view: True),
        (config_guards, "_NO_DOUBLES", 0),
        (pruning, "whole_days", lambda value: value if isinstance(value, int) else None),
    ],
    ids=["prune is off", "below 0 is none", "it is daily work", "twice is unreadable", "whole numbers only"],
)
def test_wrong_checks_fail(
    made: Callable[[Release], Home], monkeypatch: pytest.MonkeyPatch, module: object, name: str, value: Any
) -> None:
    monkeypatch.setattr(module, name, value)
    assert any(said(made(release), config) != expected for release, config, expected in CASES)


@pytest.mark.parametrize(("release", "days"), [(NEVER, 30), (OFF, 0), (ON, 30), (ON, 0)], ids=str)
def test_prune_takes_what_was_told(
    made: Callable[[Release], Home], release: Release, days: int, tmp_path: Path
) -> None:
    """The release's own prune, on a copy."""
    config = f"sessions: {{auto_prune: 'no', retention_days: {days}}}\n"
    [told, *_] = found(made(release), config)
    home = Home(tmp_path / "home")
    shutil.copytree(made(release).path, home.path, dirs_exist_ok=True)
    prune = call("maybe_auto_prune_and_vacuum", retention_days=days, vacuum=False)
    done, left = home.run(release, [clock(NOW), prune, sql("SELECT id FROM sessions")])[1:]
    kept = {row[0] for row in left}
    gone = ENDED.keys() - kept
    assert gone == {name for name, ago in ENDED.items() if ago > days}
    # A chat that goes on elsewhere is not counted, though 0.19.0 and 0.20.6 take its beginning.
    assert told.detail["sessions"] == done["pruned"] - ("long" not in kept) == len(gone)
    assert ("long" in kept) == release.since("0.22.2")


def note_prune(store: Path, at: float) -> None:
    """As hermes notes when it last pruned."""
    connection = apsw.Connection(str(store))
    connection.execute("INSERT OR REPLACE INTO state_meta (key, value) VALUES ('last_auto_prune', ?)", (str(at),))
    connection.close()


def test_where_prune_ran_yesterday_it_is_daily_work(made: Callable[[Release], Home], tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    shutil.copytree(made(ON).path, home.path, dirs_exist_ok=True)
    for ago, expected in ((2.1, [(PRUNE, "warning", 2)]), (-1, [(PRUNE, "warning", 2)]), (1.9, [])):
        note_prune(home.store, NOW - ago * DAY)
        assert said(home, None) == expected
    # What the config does not plainly ask for is told all the same.
    assert said(home, "sessions: {retention_days: 0}\n") == [(DAYS, "warning", 5)]


def test_a_broken_config_with_a_good_copy_is_no_loss(made: Callable[[Release], Home], tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    shutil.copytree(made(ON).path, home.path, dirs_exist_ok=True)
    (home.path / "backups" / "config").mkdir(parents=True)
    (home.path / "backups" / "config" / "config.yaml.1").write_text("sessions: {auto_prune: false}\n")
    [finding] = found(home, "sessions: {\n")
    assert (finding.severity.label, "backups/config" in finding.summary) == ("info", True)


def test_no_room_to_rewrite_the_file(made: Callable[[Release], Home], monkeypatch: pytest.MonkeyPatch) -> None:
    config = "sessions: {auto_prune: true, retention_days: 30}\n"
    assert said(made(ON), config) == [(PRUNE, "info", None)]
    size = made(ON).store.stat().st_size
    monkeypatch.setattr("hermes_doctor.store.guards.free_bytes", lambda folder: 2 * size)
    assert said(made(ON), config) == [(PRUNE, "info", None)]
    monkeypatch.setattr("hermes_doctor.store.guards.free_bytes", lambda folder: 2 * size - 1)
    assert said(made(ON), config) == [(PRUNE, "info", None), ("sessions.vacuum_after_prune", "info", None)]
    assert said(made(ON), config.replace("}", ", vacuum_after_prune: false}")) == [(PRUNE, "info", None)]


def test_it_says_what_prune_takes_and_how_to_stop_it(made: Callable[[Release], Home]) -> None:
    [finding] = found(made(ON), None)
    assert finding.summary.startswith(
        "sessions.auto_prune: this release prunes unless told otherwise: the next prune deletes 2 sessions:"
        " ended, and older than 90 days; "
    )
    assert finding.summary.endswith("hermes config set sessions.auto_prune false stops it")


def test_a_store_without_its_home_says_nothing(made: Callable[[Release], Home]) -> None:
    assert findings_of(made(ON).store, CHECK, now=NOW) == []
