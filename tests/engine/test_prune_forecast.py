"""What the next prune would take, by each release's clock: cases by hand, for a store of the demo."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from checks import CHECKS
from fixes import FIXES
from hermes_doctor.demo.home import make_demo_home
from hermes_doctor.engine.plan import Chosen, StoreFix, plan_store
from hermes_doctor.engine.prune_forecast import PruneForecast
from hermes_doctor.engine.scan import ScanOptions
from hermes_doctor.host.homes import StoreRef

CONFIG = "sessions:\n  auto_prune: {prune}\n  retention_days: {days}\n"


def plan(store: Path, **more: object) -> StoreFix:
    chosen = Chosen(CHECKS, {fix.check: fix for fix in FIXES}, unsafe=True)
    options = ScanOptions(**more)  # type: ignore[arg-type]  # the keywords are its own
    fix = plan_store(StoreRef(store, store.parent, "default"), chosen, options, backup="auto")
    fix.scan.findings.close()
    return fix


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return make_demo_home(tmp_path / "home")


def as_of(store: Path, schema: int, prune: str, days: str) -> None:
    (store.parent / "config.yaml").write_text(CONFIG.format(prune=prune, days=days))
    connection = apsw.Connection(str(store))
    connection.execute("UPDATE schema_version SET version = ?", (schema,))
    connection.close()


# cron_backup_01 to 07 began 1 to 7 days ago and have 2 messages of the first minute; killed-in-march has 4 of 30 days.
@pytest.mark.parametrize(
    ("schema", "prune", "days", "expected"),
    [
        (29, "true", "90", PruneForecast(0, 0, 90.0, "on")),
        (29, "true", "29", PruneForecast(1, 4, 29.0, "on")),
        (29, "true", "6", PruneForecast(2, 6, 6.0, "on")),
        (25, "false", "6", PruneForecast(2, 6, 6.0, "off")),
        (25, "null", "6", PruneForecast(2, 6, 6.0, "unknown")),
        (25, "sometimes", "6", PruneForecast(0, 0, 90.0, "unknown")),
        (30, "true", "6", PruneForecast(0, 0, 6.0, "on")),
        (31, "true", "6", PruneForecast(0, 0, 6.0, "on")),
        (31, "true", "0.5", PruneForecast(8, 18, 0.5, "on")),
    ],
)
def test_by_release_and_config(store: Path, schema: int, prune: str, days: str, expected: PruneForecast) -> None:
    as_of(store, schema, prune, days)
    assert plan(store).prune_forecast == expected


def test_where_no_session_is_ended_there_is_none(store: Path) -> None:
    connection = apsw.Connection(str(store))
    connection.execute("UPDATE sessions SET ended_at = started_at WHERE source = 'cron' OR id = 'killed-in-march'")
    connection.close()
    fix = plan(store)
    assert fix.changes
    assert fix.prune_forecast is None


def test_where_the_clock_is_in_doubt_nothing_is_ended(store: Path) -> None:
    connection = apsw.Connection(str(store))
    connection.execute("UPDATE sessions SET started_at = started_at + 86400 * 2 WHERE id = 'just-started'")
    connection.close()
    fix = plan(store)
    assert {change.check for change in fix.changes if change.state == "planned"} == {"double-encoded"}
    assert fix.prune_forecast is None
