"""double-encoded's fix: the very text that was there, in the columns that were wrapped, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from checks.double_encoded import CHECK
from fixes.double_encoded import FIX
from hermes_doctor.engine.cure import Fix, Mending
from hermes_doctor.engine.model import Finding
from hermes_doctor.store.nested_json import GOALS, Unwrapped, unwrap_cells
from tests.checks.test_double_encoded import Case, Planted, plant_cases, wrapped
from tests.fixes.support import Patient, change_meanwhile, outcome
from tests.oracle.home import Home
from tests.oracle.releases import NEWEST, Release, get
from tests.oracle.steps import Step, call, ref, sql
from tests.whole.identical import Image, difference, image_of, index_faults

SOME = pytest.mark.parametrize("release", [get("0.13.0"), get("0.19.0"), get("0.20.0"), NEWEST], ids=str)

#: What a JSON reader and writer would not give back as it was.
ODD = '[ {"a":1.0, "a" : 2,"b":123456789012345678901234567890,"c":"\\u00e9é \\/ \\ud83d\\ude00","d":1E2 , "e":-0} ]\n'


def plant_all(home: Home, release: Release) -> Planted:
    """The cases of the check, and rows whose JSON is odd."""
    planted = plant_cases(home, release)
    odd: list[Case] = []
    for column in ("tool_calls", "reasoning_details", "codex_message_items"):
        for layers in (1, 2):
            text = ODD
            for _ in range(layers):
                text = json.dumps(text, ensure_ascii=layers == 1)
            odd.append(Case(f"odd {column} {layers}", {column: text}, (column,), layers))
    steps: list[Step] = []
    for case in odd:
        ((column, text),) = case.cells.items()
        steps.append(call("append_message", "s1", "assistant", "x", keep=case.name))
        steps.append(sql(f"UPDATE messages SET {column} = ? WHERE id = ?", text, ref(case.name)))
    planted.cases |= dict(zip(home.run(release, steps)[::2], odd, strict=True))
    return planted


def wanted(planted: Planted, before: Image) -> dict[Any, Mapping[str, object]]:
    """The rows as they must be when they are mended; the display's own columns are hermes's to fill again."""
    rows: dict[Any, Mapping[str, object]] = {}
    for row in before.table("messages"):
        case = planted.cases.get(row["id"])  # type: ignore[call-overload]  # ids are whole numbers
        mended = dict(row)
        for column in case.columns if case else ():
            text = case.cells[column] if case else ""
            while isinstance(json.loads(text), str):
                text = json.loads(text)
            mended[column] = text.encode()
        rows[row["id"]] = mended
    return rows


def wrong(planted: Planted, fix: Fix) -> list[str]:
    """Mend with that fix; the cases whose rows are not as they must be, or cannot be taken back."""
    patient, before = Patient(planted.store, planted.home.path), image_of(planted.store)
    done = patient.mend(checks=[CHECK], fixes=[fix])
    assert done.outcome in ("fixed", "partly-fixed"), outcome(done)
    expected = wanted(planted, before)
    rows = {row["id"]: row for row in image_of(planted.store).table("messages")}
    assert rows.keys() == expected.keys()
    names = {number: case.name for number, case in planted.cases.items()}
    own = {"display_identity", "display_order"}
    bad = [
        names.get(number, "the row of bad text")  # type: ignore[call-overload]  # ids are whole numbers
        for number, row in rows.items()
        if any(row[column] != value for column, value in expected[number].items() if column not in own)
    ]
    if done.run is not None:
        patient.undo(done.run)
    return [*bad, *difference(before, image_of(planted.store))]


@SOME
def test_every_case_is_mended_once_and_taken_back(home: Home, release: Release) -> None:
    planted = plant_all(home, release)
    patient, before = Patient(home.store, home.path), image_of(home.store)
    done = patient.mend(checks=[CHECK], fixes=[FIX])
    # The row of which one column mends and one does not is found again, and nothing can be done about it.
    assert outcome(done) == ("fixed", 0, None)
    again = patient.mend(checks=[CHECK], fixes=[FIX])
    assert (outcome(again), again.run) == (("nothing-to-do", 0, None), None)
    assert index_faults(home.store) == []
    undone = patient.undo(done.run)
    assert outcome(undone) == ("fixed", 0, None)
    assert difference(before, image_of(home.store)) == []
    assert index_faults(home.store) == []
    assert wrong(planted, FIX) == []


Mend = Callable[[Mending, Finding], None]


def _writing(make: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> Mend:
    """A fix that writes what ``make`` gets out of the row, over whatever is there."""

    def mend(mending: Mending, finding: Finding) -> None:
        assert isinstance(finding.key, int)
        columns = [c for c in (*GOALS, "reasoning") if mending.view.shape.has("messages", c)]
        (cells,) = mending.view.rows(f"SELECT {', '.join(columns)} FROM messages WHERE id = ?", (finding.key,))
        made = make(dict(zip(columns, cells, strict=True)))
        mending.set("messages", finding.key, to=made, expects={})

    return mend


def _good(row: Mapping[str, Any]) -> dict[str, Unwrapped]:
    return {c: found for c, found in unwrap_cells(row).items() if isinstance(found, Unwrapped)}


VARIANTS: dict[str, Mend] = {
    "writes the JSON anew": _writing(
        lambda row: {c: json.dumps(json.loads(found.value_text)) for c, found in _good(row).items()}
    ),
    "takes one layer only": _writing(lambda row: {c: json.loads(row[c]) for c in _good(row)}),
    "empties what it cannot mend": _writing(
        lambda row: {
            c: found.value_text if isinstance(found, Unwrapped) else None for c, found in unwrap_cells(row).items()
        }
    ),
    "strips the text": _writing(lambda row: {c: found.value_text.strip() for c, found in _good(row).items()}),
    "empties the other columns": _writing(
        lambda row: {c: _good(row)[c].value_text if c in _good(row) else None for c in row if c != "reasoning"}
    ),
}


def test_every_wrong_fix_fails_a_case(home: Home) -> None:
    planted = plant_all(home, NEWEST)
    # Each is taken back before the next one's turn.
    passed = [name for name, mend in VARIANTS.items() if wrong(planted, replace(FIX, mend=mend)) == []]
    assert passed == []


@SOME
def test_a_row_that_somebody_changed_is_left(home: Home, release: Release) -> None:
    text = wrapped([{"a": 1}])
    _, number, _ = home.run(
        release,
        [
            call("create_session", "s", "cli"),
            call("append_message", "s", "assistant", "x"),
            sql("UPDATE messages SET codex_message_items = ?", text),
        ],
    )
    patient = Patient(home.store, home.path)
    (finding,) = patient.findings([CHECK])
    healthy = json.dumps([{"b": 2}])
    raised = change_meanwhile(patient, FIX, finding, ("UPDATE messages SET codex_message_items = ?", (healthy,)))
    (row,) = image_of(home.store).table("messages")
    assert (row["id"], row["codex_message_items"]) == (number, healthy.encode())
    assert raised == "RowMovedError"
    assert change_meanwhile(patient, FIX, finding, ("DELETE FROM messages", ())) == "RowMovedError"


@pytest.mark.parametrize("release", [get("0.13.0"), get("0.19.0"), get("0.20.0"), NEWEST], ids=str)
def test_a_text_with_a_nul_stays_in_step_with_the_index(home: Home, release: Release) -> None:
    """Structured content begins with a NUL, behind which SQLite's versions do not read alike."""
    picture = [{"type": "text", "text": "what is this picture?"}]
    update = "UPDATE messages SET {} = ? WHERE id = ?"
    home.run(
        release,
        [
            call("create_session", "s", "cli"),
            *(call("append_message", "s", "assistant", picture, tool_calls=[{"id": "call_1"}]) for _ in range(2)),
            sql(update.format("tool_calls"), wrapped([{"id": "call_1"}]), 1),
            sql(update.format("reasoning_details"), wrapped([{"a": 1}]), 2),
        ],
    )
    assert index_faults(home.store) == []
    before, patient = image_of(home.store), Patient(home.store, home.path)
    done = patient.mend()
    assert index_faults(home.store) == []
    states = {change.key: change.state for change in done.changes if change.check == CHECK.name}
    # Up to 0.19 any update of a message goes into the index, from 0.21.5 on tool calls do not.
    inline = not release.since("0.20.0")
    assert states == {1: "applied" if release.since("0.21.5") else "refused", 2: "refused" if inline else "applied"}
    for run in patient.runs():
        assert outcome(patient.undo(run.run)) == ("fixed", 0, None)
    assert difference(before, image_of(home.store)) == []
