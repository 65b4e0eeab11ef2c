"""How a run divides its rows into transactions."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import apsw

from checks import double_encoded
from fixes import double_encoded as cure
from hermes_doctor.demo.home import make_demo_home
from hermes_doctor.engine.apply import apply_store
from hermes_doctor.engine.changes import changes_of
from hermes_doctor.engine.cure import FixRefusedError, Mending
from hermes_doctor.engine.journal import Journal
from hermes_doctor.engine.model import ExitCode, Finding
from hermes_doctor.engine.plan import Chosen, plan_store
from hermes_doctor.engine.scan import ScanOptions
from hermes_doctor.engine.stopping import Stop
from hermes_doctor.host.homes import StoreRef

LARGE, SMALL = 3 << 20, 2000


def test_a_row_of_more_than_a_mebibyte_has_a_transaction_of_its_own(tmp_path: Path) -> None:
    store = make_demo_home(tmp_path / "home")
    connection = apsw.Connection(str(store))
    with connection:
        connection.execute("DELETE FROM messages")
        for number in range(1, 41):
            value = json.dumps(json.dumps([{"text": "x" * (LARGE if number in (25, 30) else SMALL)}]))
            connection.execute(
                "INSERT INTO messages (id, session_id, role, timestamp, reasoning_details) VALUES (?, ?, ?, ?, ?)",
                (number, "first-fork", "assistant", time.time(), value),
            )
    connection.close()
    chosen = Chosen([double_encoded.CHECK], {"double-encoded": cure.FIX}, unsafe=False)
    ref = StoreRef(store, store.parent, "default")
    fix = apply_store(ref, chosen, ScanOptions(), backup="never", stop=Stop())
    fix.scan.findings.close()
    assert fix.outcome == "fixed"
    journal = Journal.beside(store)
    assert journal is not None
    with journal:
        together = [
            [change.key["id"] for change in changes_of(entry.changeset or b"", entry.columns)]
            for entry in journal.entries(fix.run, newest_first=False)
        ]
    assert sorted(key for keys in together for key in keys if isinstance(key, int)) == list(range(1, 41))
    assert [25] in together
    assert [30] in together
    # Otherwise rows share transactions, once ten have been measured one by one.
    assert max(map(len, together)) > 1
    assert [len(keys) for keys in together[:10]] == [1] * 10


def test_a_row_that_refuses_to_be_mended_is_left_and_says_so(tmp_path: Path) -> None:
    store = make_demo_home(tmp_path / "home")

    def mend(mending: Mending, finding: Finding) -> None:
        if finding.key == 36:
            raise FixRefusedError("not this one")
        cure.FIX.mend(mending, finding)

    fixes = {"double-encoded": replace(cure.FIX, mend=mend)}
    chosen = Chosen([double_encoded.CHECK], fixes, unsafe=False)
    ref = StoreRef(store, store.parent, "default")
    fix = apply_store(ref, chosen, ScanOptions(), backup="never", stop=Stop())
    fix.scan.findings.close()
    assert (fix.outcome, fix.exit_code, fix.left) == ("partly-fixed", ExitCode.FINDINGS, 1)
    states = {change.key: (change.state, change.reason) for change in fix.changes}
    assert states.pop(36) == ("refused", "not this one")
    assert set(states.values()) == {("applied", None)}
    assert len(states) == 3


def test_a_store_is_as_large_as_it_is_with_its_log(tmp_path: Path) -> None:
    store = make_demo_home(tmp_path / "home")
    connection = apsw.Connection(str(store))
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    connection.pragma("journal_mode", "wal")
    connection.execute("UPDATE sessions SET model = 'another'")
    connection.close()
    both = store.stat().st_size + store.with_name("state.db-wal").stat().st_size
    assert both > store.stat().st_size
    chosen = Chosen([double_encoded.CHECK], {"double-encoded": cure.FIX}, unsafe=False)
    plan = plan_store(StoreRef(store, store.parent, "default"), chosen, ScanOptions(), backup="auto")
    plan.scan.findings.close()
    assert plan.scan.bytes == both
    assert plan.backup_forecast is not None
    assert (plan.backup_forecast.made, plan.backup_forecast.bytes) == (True, both)
