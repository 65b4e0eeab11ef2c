"""What the releases' own prune does to a row that was ended just now, and whether the doctor foresees it."""

from __future__ import annotations

import time

import pytest

from hermes_doctor.store.ages import ages_of
from hermes_doctor.store.retention import ending_is_dangerous, prune_is_off, pruned_once_ended, retention
from tests.oracle.home import Home
from tests.oracle.releases import Release
from tests.oracle.steps import Step, call, clock, sql
from tests.store.views import view_of

DAY = 86_400.0
HOUR = 3600.0

#: Session: days since its start, days since its only message (None: no message).
ROWS: dict[str, tuple[float, float | None]] = {
    "old start, fresh message": (100, 2),
    "fresh start, copied old message": (2, 100),
    "old start, no message": (100, None),
    "fresh start, no message": (2, None),
    "all old": (120, 100),
    "all fresh": (3, 2),
    "start an hour past the retention": (90 + 1 / 24, 2),
    "start an hour before the retention": (90 - 1 / 24, 2),
    "message an hour past the retention": (100, 90 + 1 / 24),
    "message an hour before the retention": (100, 90 - 1 / 24),
}


def plant(now: float) -> list[Step]:
    steps: list[Step] = []
    for session, (started, said) in ROWS.items():
        steps += [clock(now - started * DAY), call("create_session", session, "cli")]
        if said is not None:
            steps += [clock(now - said * DAY), call("append_message", session, "user", "hello")]
    return [*steps, clock(None)]


def test_the_releases_own_prune_takes_just_the_rows_that_are_foreseen(home: Home, release: Release) -> None:
    now = time.time()
    home.run(release, plant(now))
    with view_of(home.store, home=home.path) as view:
        ages = ages_of(view, ROWS)
        foreseen = {session for session, age in ages.items() if pruned_once_ended(view, age)}
    # Two seconds ago: the release's prune compares with its own now.
    end = "UPDATE sessions SET ended_at = ?, end_reason = 'startup_orphan_reap' WHERE ended_at IS NULL"
    left = home.run(
        release,
        [
            sql(end, time.time() - 2),
            call("maybe_auto_prune_and_vacuum", retention_days=90, vacuum=False),
            sql("SELECT id FROM sessions"),
        ],
    )[-1]
    assert set(ROWS) - {row[0] for row in left} == foreseen


@pytest.mark.parametrize(
    ("config", "off"),
    [
        (None, False),
        ("", False),
        ("sessions:\n  retention_days: 90\n", False),
        ("sessions:\n  auto_prune: true\n", False),
        ("sessions: [\n", False),
        ("sessions:\n  auto_prune: 'no'\n", False),
        ("sessions:\n  auto_prune: false\n", True),
    ],
)
def test_prune_counts_as_off_only_where_the_config_says_so(home: Home, config: str | None, off: bool) -> None:
    home.run("0.19.0", plant(time.time()))
    if config is not None:
        (home.path / "config.yaml").write_text(config)
    with view_of(home.store, home=home.path) as view:
        age = ages_of(view, ROWS)["all old"]
        assert prune_is_off(view) is off
        assert ending_is_dangerous(view, age) is not off


def test_the_homes_own_retention_counts(home: Home) -> None:
    home.run("0.19.0", plant(time.time()))
    (home.path / "config.yaml").write_text("sessions:\n  retention_days: 110\n")
    with view_of(home.store, home=home.path) as view:
        assert retention(view) == 110 * DAY
        ages = ages_of(view, ROWS)
        assert {session for session, age in ages.items() if pruned_once_ended(view, age)} == {"all old"}


@pytest.mark.parametrize(
    ("version", "foreseen"),
    [
        (22, {"old start, fresh message", "old start, no message"}),
        (23, {"old start, fresh message", "old start, no message", "fresh start, copied old message"}),
        (25, {"old start, no message", "fresh start, copied old message"}),
        (29, {"old start, no message", "fresh start, copied old message"}),
        (30, set()),
        (None, {"old start, fresh message", "old start, no message", "fresh start, copied old message"}),
    ],
)
def test_between_releases_the_more_dangerous_clock_counts(home: Home, version: int | None, foreseen: set[str]) -> None:
    asked = ("old start, fresh message", "old start, no message", "fresh start, copied old message", "all fresh")
    set_version = (
        sql("DELETE FROM schema_version") if version is None else sql("UPDATE schema_version SET version = ?", version)
    )
    home.run("0.19.0", [*plant(time.time()), set_version])
    with view_of(home.store, home=home.path) as view:
        ages = ages_of(view, asked)
        assert {session for session in asked if pruned_once_ended(view, ages[session])} == foreseen


def test_columns_newer_than_the_version_bring_their_own_clock(home: Home) -> None:
    home.run("0.19.0", [*plant(time.time()), sql("ALTER TABLE sessions ADD COLUMN last_activity_at REAL")])
    with view_of(home.store, home=home.path) as view:
        ages = ages_of(view, ROWS)
        assert pruned_once_ended(view, ages["old start, fresh message"])
        assert pruned_once_ended(view, ages["fresh start, copied old message"])
        assert not pruned_once_ended(view, ages["all fresh"])
