"""Taking a run back: exact where triggers move columns, row by row where one cannot be put back."""

from __future__ import annotations

import json

import pytest

from checks import orphan_stubs
from fixes import orphan_stubs as delete_stubs
from hermes_doctor.engine.transaction import DONE, mend_rows
from hermes_doctor.engine.undo import CHANGED_SINCE, FAILED, PLANNED, RESTORED
from tests.engine.transactions import writing
from tests.fixes.support import Patient, outcome
from tests.oracle.faults import Planter
from tests.oracle.history import CALLS, HOUR
from tests.oracle.home import Home
from tests.oracle.releases import NEWEST, Release, get
from tests.oracle.steps import call, clock, ref, sql
from tests.whole.identical import difference, image_of, index_faults

ALL = [get("0.13.0"), get("0.19.0"), get("0.20.0"), get("0.21.5"), NEWEST]


@pytest.mark.parametrize("release", ALL, ids=str)
def test_tool_calls_with_twins_come_back_with_all_that_triggers_moved(home: Home, release: Release) -> None:
    """0.21.5 on: unwrapping tool_calls empties the display's columns on the row and on every row like it."""
    plant = Planter(release)
    session = plant.session("cli", idle=HOUR)
    for n in range(3):
        plant.steps.append(call("append_message", session, "assistant", "on it", keep=f"row {n}", tool_calls=CALLS))
        plant.steps.append(
            sql(
                "UPDATE messages SET timestamp = 1790000000.0, tool_calls = ? WHERE id = ?",
                json.dumps(json.dumps(CALLS)),
                ref(f"row {n}"),
            )
        )
    plant.end(session, "cli_close")
    if release.since("0.21.5"):
        plant.steps.append(call("_ensure_display_order", session))
    home.run(release, [*plant.steps, clock(None)])
    before, patient = image_of(home.store), Patient(home.store, home.path)
    assert index_faults(home.store) == []
    if release.since("0.21.5"):
        rows = before.table("messages")
        assert len({row["display_identity"] for row in rows}) == 1
        assert {row["display_order"] for row in rows} == {rows[0]["id"]}
        assert rows[0]["display_identity"] is not None
    done = patient.mend()
    # That they look like rows written again is told, and nothing is done about it.
    assert [change.state for change in done.changes if change.check == "double-encoded"] == [DONE] * 3
    mended = image_of(home.store)
    assert {row["tool_calls"] for row in mended.table("messages")} == {json.dumps(CALLS).encode()}
    if release.since("0.21.5"):
        assert {row["display_identity"] for row in mended.table("messages")} == {None}
    assert index_faults(home.store) == []
    undone = patient.undo(done.run)
    assert outcome(undone) == ("fixed", 0, None)
    assert difference(before, image_of(home.store)) == []
    assert index_faults(home.store) == []
    again = patient.undo(done.run)
    assert (outcome(again), list(again.changes)) == (("nothing-to-do", 0, None), [])


def test_one_row_that_cannot_be_put_back_does_not_stop_the_rest(home: Home) -> None:
    plant = Planter(NEWEST)
    parent = plant.session("cli")
    plant.say(parent, "user", "hello")
    plant.end(parent, "cli_close")
    child = plant.orphan_stub("cli", end_reason="cli_close", parent_session_id=parent)
    others = [plant.orphan_stub("cli", end_reason="cli_close") for _ in range(2)]
    kept = plant.session("cli")
    plant.say(kept, "user", "hello")
    plant.end(kept, "cli_close")
    home.run(NEWEST, [*plant.steps, clock(None)])
    patient = Patient(home.store, home.path)
    found = patient.findings([orphan_stubs.CHECK])
    with writing(patient) as writer:
        run = writer.run
        changes, _ = mend_rows(writer, orphan_stubs.CHECK, delete_stubs.FIX, found, unsafe=False)
    assert [change.state for change in changes] == [DONE] * 3
    # What the one row refers to is gone when it is to come back.
    home.run(NEWEST, [call("delete_session", parent)])
    undone = patient.undo(run)
    assert {str(c.key): c.state for c in undone.changes} == {child: FAILED, **dict.fromkeys(others, RESTORED)}
    assert int(undone.exit_code) == 1
    assert image_of(home.store).ids() == {kept, *others}
    # Typed again, it says the same, and changes nothing.
    again = patient.undo(run)
    assert {str(c.key): c.state for c in again.changes} == {child: FAILED, **dict.fromkeys(others, RESTORED)}
    assert patient.run(run).undone_at is None


def test_two_runs_over_one_row_come_back_newest_first(home: Home) -> None:
    plant = Planter(NEWEST)
    session = plant.session("cli", idle=3 * HOUR)
    plant.say(session, "user", "hello")
    plant.end(session, "compression")
    home.run(NEWEST, [*plant.steps, clock(None)])
    patient, before = Patient(home.store, home.path), image_of(home.store)
    # In use a moment ago, so it is opened; and open, it is one that nobody will end.
    done = patient.mend()
    assert sorted((change.check, change.state) for change in done.changes) == [
        ("lineage-gaps", DONE),
        ("open-zombies", DONE),
    ]
    undone = patient.undo(done.run)
    assert [change.state for change in undone.changes] == [RESTORED] * 2
    assert outcome(undone) == ("fixed", 0, None)
    assert difference(before, image_of(home.store)) == []


def test_a_plan_tells_what_comes_back_of_rows_that_a_run_changed_twice(home: Home) -> None:
    """A stub is ended, then deleted: its end can be put back once it is there again, and the plan knows."""
    plant = Planter(NEWEST)
    stubs = [plant.orphan_stub("tui") for _ in range(3)]
    taken = plant.session("cli", idle=3 * HOUR)
    plant.say(taken, "user", "hello")
    plant.end(taken, "compression")
    home.run(NEWEST, [*plant.steps, clock(None)])
    patient = Patient(home.store, home.path)
    done = patient.mend()
    twice = sorted([(stub, check) for stub in stubs for check in ("open-zombies", "orphan-stubs")])
    assert sorted((str(c.key), c.check) for c in done.changes if c.key != taken) == twice

    plan = patient.undo(done.run, apply=False)
    assert sorted((str(c.key), c.check) for c in plan.changes if c.key != taken) == twice
    assert {change.state for change in plan.changes} == {PLANNED}

    # What somebody has written over is not put back, neither to what it was in between nor to what it was before.
    home.run(
        NEWEST,
        [
            call("create_session", stubs[0], "cli", model="another-model"),
            call("end_session", stubs[0], "cli_close"),
            sql("UPDATE sessions SET ended_at = 1790000000.0, end_reason = 'cli_close' WHERE id = ?", taken),
        ],
    )
    left = dict.fromkeys((stubs[0], taken), CHANGED_SINCE)
    plan = patient.undo(done.run, apply=False)
    assert {str(c.key): c.state for c in plan.changes} == dict.fromkeys(stubs, PLANNED) | left
    undone = patient.undo(done.run)
    assert [(c.check, c.key, c.state) for c in undone.changes] == [
        (c.check, c.key, RESTORED if c.state == PLANNED else c.state) for c in plan.changes
    ]
