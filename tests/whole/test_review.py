"""What a review says that a fix would change is what it changes, for each check of a home with all faults."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import pytest

from checks import CHECKS
from fixes import FIXES
from hermes_doctor.engine.apply import apply_store
from hermes_doctor.engine.changes import Op, RowChange, changes_of
from hermes_doctor.engine.journal import Journal
from hermes_doctor.engine.model import Finding, Safety
from hermes_doctor.engine.plan import Chosen, place_of
from hermes_doctor.engine.rehearsal import Effect, Rehearsal
from hermes_doctor.engine.review import restricted, says
from hermes_doctor.engine.scan import StoreScan, scan_store
from hermes_doctor.engine.stopping import Stop
from hermes_doctor.store.view import StoreView
from tests.fixes.support import Patient
from tests.whole.everything import with_everything
from tests.whole.identical import image_of

BY_NAME = {check.name: check for check in CHECKS}
FIX_OF = {fix.check: fix for fix in FIXES if fix.check != "search-index"}
ALL = Chosen([check for check in CHECKS if check.name != "search-index"], FIX_OF, unsafe=True)

#: Rows by table, by what happens to them, and by the columns that get another value.
_Rows = Counter[tuple[str, Op, str]]


@pytest.mark.parametrize("version", ["0.20.0", "0.22.2"])
def test_what_it_says_is_what_is_done(oracle: None, shared_folder: Path, tmp_path: Path, version: str) -> None:
    home = with_everything(shared_folder, tmp_path / "home", version).home
    patient = Patient(home.store, home.path, time.time())
    before = image_of(home.store)
    told: dict[str, tuple[Finding, Effect]] = {}

    def look(scan: StoreScan, view: StoreView) -> None:
        with closing(Rehearsal(view)) as tried:
            for finding in scan.findings:
                if finding.fix is Safety.UNSAFE and finding.check not in told:
                    told[finding.check] = finding, tried.of(BY_NAME[finding.check], FIX_OF[finding.check], finding)

    scan_store(patient.ref, ALL.checks, patient.options, None, look).findings.close()
    assert image_of(home.store) == before
    assert len(told) >= 8, sorted(told)
    assert [effect for _, effect in told.values() if effect.unknown or effect.otherwise] == []

    yes = {place_of(finding): says(finding) for finding, _ in told.values()}
    fix = apply_store(patient.ref, restricted(ALL, yes), patient.options, backup="never", stop=Stop())
    with closing(fix):
        assert {change.check: change.state for change in fix.changes} == dict.fromkeys(told, "applied")
        assert (fix.exit_code, len(fix.changes)) == (0, len(told))
    journal = Journal.beside(home.store)
    assert journal is not None
    with journal:
        done = {
            entry.check: counted(changes_of(entry.changeset or b"", entry.columns))
            for entry in journal.entries(fix.run, newest_first=False)
        }
    assert {check: said(effect) for check, (_, effect) in told.items()} == done


def said(effect: Effect) -> _Rows:
    rows: _Rows = Counter()
    for table in effect.tables:
        for column in table.columns.values():
            rows[table.table, table.op, column.column] += len(column.became)
        if table.op is Op.DELETE:
            rows[table.table, table.op, ""] += table.rows
    return rows


def counted(changes: Iterable[RowChange]) -> _Rows:
    rows: _Rows = Counter()
    for change in changes:
        if change.op is Op.DELETE:
            rows[change.table, change.op, ""] += 1
            continue
        for column, value in change.after.items():
            if change.op is Op.UPDATE or value is not None:
                rows[change.table, change.op, column] += 1
    return rows
