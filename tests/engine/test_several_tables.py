"""A check whose fault shows in rows of several tables: scanned, planned and mended like any other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import apsw
import pytest

from hermes_doctor.demo.home import make_demo_home
from hermes_doctor.engine.cure import Fix, Mending, Phase
from hermes_doctor.engine.model import Check, Finding, RelationRule, Row, RowRule, Safety, Severity
from hermes_doctor.engine.scan import ScanOptions, scan_store
from hermes_doctor.host.homes import StoreRef
from hermes_doctor.store.cells import Key
from hermes_doctor.store.view import StoreView
from tests.fixes.support import Patient, outcome


def found(table: str, key: Key) -> Finding:
    return Finding("marked", Severity.WARNING, table, key, None, "marked", fix=Safety.SAFE, action=f"{table} unmark")


def judge(row: Row, _view: StoreView) -> Finding | None:
    return found("first", row["k"])


def look(view: StoreView, keys: Sequence[Key] | None) -> Iterator[Finding]:
    if keys is None or "same" in keys:
        for (key,) in view.rows("SELECT k FROM second WHERE k = 'same' AND mark = 1"):
            yield found("second", key)


RULES = (RowRule("first", ("k",), lambda _shape: "mark = 1", judge), RelationRule("second", look))
CHECK = Check("marked", Severity.WARNING, "", "", Safety.SAFE, "", RULES)


def unmark(mending: Mending, finding: Finding) -> None:
    mending.set(finding.table, finding.key, to={"mark": 0}, expects={"mark": 1})


FIX = Fix(check="marked", phase=Phase.LOCKS, uses_clock=False, page="", mend=unmark)


@pytest.fixture
def patient(tmp_path: Path) -> Patient:
    """A store with two more tables, and in both of them a marked row of the same key."""
    store = make_demo_home(tmp_path / "home")
    connection = apsw.Connection(str(store))
    for table in ("first", "second"):
        connection.execute(f"CREATE TABLE {table}(k TEXT PRIMARY KEY, mark)")
        connection.execute(f"INSERT INTO {table} VALUES ('same', 1), ('other', 0)")
    connection.close()
    return Patient(store, None)


def marks(patient: Patient) -> set[tuple[str, object]]:
    return {finding.row for finding in patient.findings([CHECK])}


def test_rows_of_the_same_key_in_two_tables_are_both_mended_and_put_back(patient: Patient) -> None:
    both = {("first", "same"), ("second", "same")}
    assert marks(patient) == both
    done = patient.mend(checks=[CHECK], fixes=[FIX])
    assert outcome(done) == ("fixed", 0, None)
    assert {(change.row, change.action, change.state) for change in done.changes} == {
        (("first", "same"), "first unmark", "applied"),
        (("second", "same"), "second unmark", "applied"),
    }
    assert marks(patient) == set()
    assert outcome(patient.undo(done.run)) == ("fixed", 0, None)
    assert marks(patient) == both


def test_a_check_is_skipped_only_where_all_its_tables_are_missing(patient: Patient) -> None:
    states = []
    for drop in (None, "first", "second"):
        if drop is not None:
            connection = apsw.Connection(str(patient.store))
            connection.execute(f"DROP TABLE {drop}")
            connection.close()
        scan = scan_store(StoreRef(patient.store, None, "default"), [CHECK], ScanOptions())
        with scan.findings:
            [result] = scan.checks
            states.append((result.status, result.reason, result.count, result.finished))
    assert states == [
        ("ran", None, 2, True),
        ("ran", None, 1, True),
        ("skipped", "the store has no table first or second", 0, True),
    ]
