"""dangling-routes' fix: usage of sessions that are gone goes, and nothing else does."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import apsw
import pytest

from checks import lineage_gaps, orphan_messages
from checks.dangling_routes import CHECK
from fixes import orphan_messages as rebuild
from fixes.dangling_routes import FIX
from hermes_doctor.engine.cure import Fix, Mending
from hermes_doctor.engine.model import Finding
from tests.checks.orphan_cases import NOW
from tests.checks.test_dangling_routes import plant
from tests.fixes.support import Patient, change_meanwhile, outcome
from tests.oracle.home import Home
from tests.oracle.releases import NEWEST, Release, get
from tests.whole.identical import difference, image_of

SOME = pytest.mark.parametrize("release", [get("0.19.0"), NEWEST], ids=str)

GOES = ["session_model_usage b'u-gone'", "session_model_usage b'u-title'"]


def changed(patient: Patient, fix: Fix, *, unsafe: bool = True) -> list[str]:
    """Mend with that fix: what is different, each row by its table and the first part of its key."""
    before = image_of(patient.store)
    patient.mend(checks=[CHECK], fixes=[fix], unsafe=unsafe)
    return sorted(line.split(",")[0] for line in difference(before, image_of(patient.store)))


@SOME
def test_usage_of_sessions_that_are_gone_goes_and_comes_back(home: Home, release: Release) -> None:
    plant(home, release)
    patient, before = Patient(home.store, home.path, now=NOW), image_of(home.store)
    assert changed(patient, FIX, unsafe=False) == []
    done = patient.mend(checks=[CHECK], fixes=[FIX])
    assert (done.outcome, done.count("applied"), done.left) == ("fixed", 2, 0)
    after = image_of(home.store)
    assert sorted(line.split(",")[0] for line in difference(before, after)) == GOES
    # What is left is reported only, or can still be rebuilt.
    assert patient.mend(checks=[CHECK], fixes=[FIX]).count("applied") == 0
    assert outcome(patient.undo(done.run)) == ("fixed", 0, None)
    assert difference(before, image_of(home.store)) == []


def test_a_table_without_a_key_is_left(home: Home) -> None:
    plant(home, get("0.19.0"))
    with closing(apsw.Connection(str(home.store))) as connection:
        connection.execute("CREATE TABLE usage AS SELECT * FROM session_model_usage")
        connection.execute("DROP TABLE session_model_usage")
        connection.execute("ALTER TABLE usage RENAME TO session_model_usage")
    patient, before = Patient(home.store, home.path, now=NOW), image_of(home.store)
    done = patient.mend(checks=[CHECK], fixes=[FIX])
    refused = {change.reason for change in done.changes if change.table == "session_model_usage"}
    assert "session_model_usage has no primary key here, so that its rows cannot be told apart" in refused
    assert (done.count("failed"), done.count("applied")) == (0, 0)
    assert difference(before, image_of(home.store)) == []


def _all_of_the_session(mending: Mending, finding: Finding) -> None:
    mending.connection.execute("DELETE FROM session_model_usage WHERE model = 'm'")


def _routes_too(mending: Mending, finding: Finding) -> None:
    FIX.mend(mending, finding)
    mending.connection.execute("DELETE FROM gateway_routing WHERE session_key LIKE '%r-gone'")


@pytest.mark.parametrize("mend", [_all_of_the_session, _routes_too])
def test_a_wrong_fix_is_caught(home: Home, mend: object) -> None:
    plant(home, get("0.19.0"))
    fix = replace(FIX, mend=mend)  # type: ignore[arg-type]  # one of the two above
    assert changed(Patient(home.store, home.path, now=NOW), fix) != GOES


def test_what_can_be_rebuilt_keeps_its_usage(home: Home) -> None:
    plant(home, get("0.19.0"))
    patient = Patient(home.store, home.path, now=NOW)
    checks, fixes = [CHECK, orphan_messages.CHECK, lineage_gaps.CHECK], [FIX, rebuild.FIX]
    assert patient.mend(checks=checks, fixes=fixes).outcome == "fixed"
    image = image_of(home.store)
    assert b"u-left" in {row["session_id"] for row in image.table("session_model_usage")}
    assert "u-left" in image.ids()
    # One run comes to rest.
    assert patient.mend(checks=checks, fixes=fixes).count("applied") == 0


def test_usage_whose_session_came_back_meanwhile_is_left(home: Home) -> None:
    plant(home, NEWEST)
    patient = Patient(home.store, home.path, now=NOW)
    finding = next(f for f in patient.findings([CHECK]) if f.session == "u-gone")
    back = ("INSERT INTO sessions (id, source, started_at) VALUES ('u-gone', 'cli', 1.0)", ())
    assert change_meanwhile(patient, FIX, finding, back) == "RowMovedError"
    other = next(f for f in patient.findings([CHECK]) if f.session == "u-title")
    assert change_meanwhile(patient, FIX, other) is None
