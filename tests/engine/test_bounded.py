"""What is found, planned, mended and taken back lies in files once it is much: memory does not grow with it."""

from __future__ import annotations

import io
import json
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from checks import double_encoded, orphan_stubs
from fixes import double_encoded as cure
from fixes import orphan_stubs as delete_stubs
from hermes_doctor.demo.home import make_demo_home
from hermes_doctor.engine import apply as apply_module
from hermes_doctor.engine import findings, pacing
from hermes_doctor.engine import undo as undo_module
from hermes_doctor.engine.apply import apply_store
from hermes_doctor.engine.became import Became, Changes
from hermes_doctor.engine.findings import Shelf
from hermes_doctor.engine.model import Finding, Severity
from hermes_doctor.engine.plan import Chosen, StoreFix, plan_store
from hermes_doctor.engine.scan import ScanOptions
from hermes_doctor.engine.stopping import Stop
from hermes_doctor.engine.transaction import DONE, FAILED, GONE, PLANNED, REFUSED, Change, mend_rows
from hermes_doctor.engine.undo import StoreUndo
from hermes_doctor.report.changes_json import FixJson, UndoJson
from hermes_doctor.report.fix_table import FixTable
from hermes_doctor.report.layout import Look
from hermes_doctor.report.tally import Tally
from hermes_doctor.report.undo_table import UndoTable
from hermes_doctor.store.cells import BadText, Key
from tests.engine.transactions import writing
from tests.fixes.support import Patient
from tests.oracle.faults import Planter
from tests.oracle.home import Home
from tests.oracle.releases import NEWEST
from tests.oracle.steps import call, clock

CHOSEN = Chosen([double_encoded.CHECK], {"double-encoded": cure.FIX}, unsafe=False)
KEYS: list[Key] = ["s1", 7, 1.5, None, b"\xff", BadText(b"\xfe"), ("s1", 3)]


def change(key: Key, state: str, reason: str | None = None) -> Change:
    return Change("odd-rows", "messages", key, "make it even", state, reason)


def finding(key: Key) -> Finding:
    return Finding("odd-rows", Severity.WARNING, "messages", key, None, "it is odd")


def test_changes_come_back_as_they_were_and_are_counted() -> None:
    put = [change(key, DONE if place % 2 else PLANNED, "why") for place, key in enumerate(KEYS)]
    changes = Changes(put)
    assert list(changes) == put
    assert [type(each.key) for each in changes] == [type(key) for key in KEYS]
    assert (changes.count(DONE), changes.count(PLANNED), changes.count(DONE, PLANNED)) == (3, 4, 7)
    assert changes.count(FAILED) == 0
    assert len(changes) == 7


def test_the_last_word_on_a_row_counts_in_the_place_of_the_first() -> None:
    with Became([change(key, PLANNED) for key in KEYS]) as became:
        became.note(change("s1", FAILED, "a constraint"))
        became.note(change(b"\xff", DONE))
        became.note(change("new", REFUSED, "in use"))
        states = [PLANNED] * len(KEYS)
        states[0], states[4] = FAILED, DONE
        assert [(each.key, each.state) for each in became] == [*zip(KEYS, states, strict=True), ("new", REFUSED)]
        assert [key for key in [*KEYS, "new", "unknown"] if became.in_vain(finding(key))] == ["s1", "new"]
        became.note(change("s1", GONE))
        assert not became.in_vain(finding("s1"))


def test_what_a_plan_refuses_may_be_tried() -> None:
    """A row that a plan leaves for later is not one that was tried in vain."""
    with Became([change("s1", REFUSED, "is mended only with --unsafe")]) as became:
        assert not became.in_vain(finding("s1"))


def test_a_shelf_holds_what_was_put_last() -> None:
    with Shelf[dict[str, object] | None]() as shelf:
        shelf.put("a", {"x": b"\x00"})
        shelf.put("b", None)
        shelf.put("a", {"x": BadText(b"\xff")})
        assert shelf.get("a", {}) == {"x": BadText(b"\xff")}
        assert shelf.get("b", {}) is None
        assert shelf.get("c", "nothing") == "nothing"
        assert list(shelf) == [{"x": b"\xff"}, None]


def test_a_table_tells_many_reasons_apart_but_not_all() -> None:
    left = [change(n, FAILED, f"row {n} stands in the way") for n in range(1000)]
    tally = Tally([*left, *(change(n, DONE) for n in range(50))], 2, (FAILED,))
    lines = list(tally.left())
    assert len(lines) == 21
    assert lines[0] == "1 of odd-rows: row 0 stands in the way (message 0)"
    assert lines[-1] == "980 of odd-rows: for further reasons (--json tells them row by row)"
    assert tally.of("odd-rows") == {FAILED: 1000, DONE: 50}
    assert [each.key for each in tally.examples("odd-rows", DONE)] == [0, 1]
    assert list(tally.more("odd-rows", DONE)) == ["  … and 48 more"]


def store_of(folder: Path, rows: int) -> Patient:
    """A store in which every message is double-encoded."""
    store = make_demo_home(folder)
    connection = apsw.Connection(str(store))
    value = json.dumps(json.dumps([{"text": "x"}]))
    with connection:
        connection.execute("DELETE FROM messages")
        connection.executemany(
            "INSERT INTO messages (session_id, role, timestamp, reasoning_details) VALUES (?, ?, ?, ?)",
            (("first-fork", "assistant", time.time(), value) for _ in range(rows)),
        )
    connection.close()
    return Patient(store, store.parent)


class Nowhere(io.TextIOBase):
    """Takes whatever is written, and keeps nothing of it."""

    def write(self, text: str) -> int:
        return len(text)


def told_of_fix(fix: StoreFix) -> None:
    FixJson(Nowhere()).store(fix)  # type: ignore[arg-type]  # all that is called of a stream is write()
    FixTable(Nowhere(), Look(), CHOSEN.checks).store(fix)  # type: ignore[arg-type]  # likewise
    fix.close()


def told_of_undo(undo: StoreUndo) -> None:
    UndoJson(Nowhere()).store(undo)  # type: ignore[arg-type]  # likewise
    UndoTable(Nowhere(), Look(), "a run").store(undo)  # type: ignore[arg-type]  # likewise
    undo.close()


def peaks(patient: Patient, rows: int) -> dict[str, int]:
    """The most bytes that Python held beyond what it had before, by what was done."""
    runs: list[str] = []

    def plan() -> None:
        fix = plan_store(patient.ref, CHOSEN, ScanOptions(), backup="never")
        assert fix.count(PLANNED) == rows
        told_of_fix(fix)

    def apply() -> None:
        fix = apply_store(patient.ref, CHOSEN, ScanOptions(), backup="never", stop=Stop())
        assert (fix.outcome, fix.count(DONE)) == ("fixed", rows)
        runs.append(fix.run or "")
        told_of_fix(fix)

    def plan_undo() -> None:
        undo = patient.undo(runs[0], apply=False)
        assert undo.count("planned") == rows
        told_of_undo(undo)

    def undo() -> None:
        undone = patient.undo(runs[0])
        assert (undone.outcome, undone.count("restored")) == ("fixed", rows)
        told_of_undo(undone)

    return {work.__name__: _peak_of(work) for work in (plan, apply, plan_undo, undo)}


def _peak_of(work: Callable[[], None]) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_planning_mending_and_undoing_take_the_same_memory_however_much_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(findings, "_IN_MEMORY", 32 << 10)
    monkeypatch.setattr(pacing, "_MOST", 50)
    monkeypatch.setattr(apply_module, "_SIZED_AT_ONCE", 50)
    # Once before: what is imported and kept for good is not counted.
    peaks(store_of(tmp_path / "first", 60), 60)
    few = peaks(store_of(tmp_path / "few", 200), 200)
    many = peaks(store_of(tmp_path / "many", 1400), 1400)
    # A list of as many changes takes 400 KB more.
    grown = {work: many[work] - few[work] for work in many if many[work] - few[work] > 100_000}
    assert grown == {}, (few, many)


def test_rows_that_cannot_be_put_back_for_one_reason_cost_one_try_more(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not one for each of them: a try puts back all rows of the transaction."""
    plant = Planter(NEWEST)
    parent = plant.session("cli")
    plant.say(parent, "user", "hello")
    plant.end(parent, "cli_close")
    children = [plant.orphan_stub("cli", end_reason="cli_close", parent_session_id=parent) for _ in range(6)]
    others = [plant.orphan_stub("cli", end_reason="cli_close") for _ in range(2)]
    home.run(NEWEST, [*plant.steps, clock(None)])
    patient = Patient(home.store, home.path)
    found = patient.findings([orphan_stubs.CHECK])
    with writing(patient) as writer:
        mend_rows(writer, orphan_stubs.CHECK, delete_stubs.FIX, found, unsafe=False)
    home.run(NEWEST, [call("delete_session", parent)])
    tries: list[int] = []
    attempt = undo_module._try_to_take_back

    def counted(*arguments: Any) -> list[Change]:
        tries.append(len(arguments[3]))
        return attempt(*arguments)

    monkeypatch.setattr(undo_module, "_try_to_take_back", counted)
    undone = patient.undo(writer.run)
    assert {str(c.key): c.state for c in undone.changes} == dict.fromkeys(children, FAILED) | dict.fromkeys(
        others, "restored"
    )
    assert tries == [0, 6]
