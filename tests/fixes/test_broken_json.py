"""broken-json's fix: only a config that is no JSON goes, the lists work again, and undo puts the text back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from checks.broken_json import CHECK
from fixes.broken_json import FIX
from hermes_doctor.engine.cure import Fix, Mending
from hermes_doctor.engine.model import Bucket, Finding
from hermes_doctor.store.json_cells import Fault
from tests.checks.broken_json_cases import CONFIGS, MESSAGES, ORIGINS, CellCase, plant
from tests.checks.support import findings_of
from tests.fixes.support import Patient, change_meanwhile, mended_once, outcome, there_and_back
from tests.oracle.home import CallError, Home
from tests.oracle.steps import call, sql
from tests.whole.identical import difference, image_of, index_faults

CASES = (*CONFIGS, *ORIGINS, *MESSAGES[:1])
#: Both columns of one session.
BOTH = ORIGINS[0].id


@pytest.fixture(scope="module")
def planted(oracle: None, tmp_path_factory: pytest.TempPathFactory) -> Home:
    """The cases in a store of the newest release; each test leaves it as it found it."""
    home = Home(tmp_path_factory.mktemp("planted") / "home")
    plant(home, "0.22.2", CASES, sql("UPDATE sessions SET model_config = '{x' WHERE id = ?", BOTH))
    return home


def goes(case: CellCase) -> bool:
    return (case.column == "model_config" and case.fault is Fault.NO_JSON) or case.id == BOTH


def wrong(home: Home, fix: Fix) -> list[str]:
    """Mend with that fix and take it back; say what is not as it must be."""
    seen = there_and_back(Patient(home.store, home.path), CHECK, fix, lambda s: (image_of(s), index_faults(s)))
    (before, _), (after, faults), (back, faults_at_last) = seen
    gone = {case.id.encode() for case in CASES if goes(case)}
    was = {row["id"]: row["model_config"] for row in before.table("sessions")}
    now = {row["id"]: row["model_config"] for row in after.table("sessions")}
    lines = [str(key) for key in now if now[key] != (None if key in gone else was[key])]
    lines += [line for line in difference(before, after) if ": model_config " not in line]
    return lines + faults + difference(before, back) + faults_at_last


def test_what_is_no_json_goes_and_comes_back(planted: Home) -> None:
    assert index_faults(planted.store) == []
    assert wrong(planted, FIX) == []
    patient = Patient(planted.store, planted.path)
    with mended_once(patient, CHECK, FIX, patient.findings([CHECK])):
        left = {finding.session for finding in patient.findings([CHECK]) if finding.severity.label == "error"}
        assert left == set()


@pytest.mark.parametrize("version", ["0.16.0", "0.20.6"])
def test_the_lists_work_again(home: Home, oracle: None, version: str) -> None:
    """What is listed, loaded and followed is what it was before the damage."""
    asked = [
        call("list_sessions_rich", limit=100),
        call("get_compression_tip", "p"),
        call("get_messages_as_conversation", "c"),
    ]
    started = [
        call("create_session", "p", "cli"),
        call("append_message", "p", "user", "a question"),
        call("end_session", "p", "compression"),
        call("create_session", "c", "cli", parent_session_id="p"),
        call("append_message", "c", "user", "another"),
    ]
    healthy = home.run(version, [*started, *asked])[-len(asked) :]
    damaged = home.run(version, [sql("UPDATE sessions SET model_config = '{x' WHERE id = 'c'"), *asked], check=False)
    assert isinstance(damaged[1], CallError)
    patient = Patient(home.store, home.path)
    done = patient.mend(checks=[CHECK], fixes=[FIX])
    assert outcome(done) == ("fixed", 0, None)
    assert home.run(version, asked) == healthy
    assert outcome(patient.undo(done.run)) == ("fixed", 0, None)
    assert home.run(version, [sql("SELECT model_config FROM sessions WHERE id = 'c'")]) == [[["{x"]]]


def test_messages_that_the_index_left_out_are_put_in(home: Home, oracle: None) -> None:
    """The mark was there when they were written, and no release can read it any more."""
    plant(
        home,
        "0.22.2",
        (),
        call("create_session", "s", "cli", model_config={"_delegate_from": "x"}),
        call("append_message", "s", "user", "quite a question"),
        sql("UPDATE sessions SET model_config = substr(model_config, 1, 20) WHERE id = 's'"),
        sql("DELETE FROM gateway_routing"),
    )
    assert index_faults(home.store) != []
    patient, before = Patient(home.store, home.path), image_of(home.store)
    done = patient.mend(checks=[CHECK], fixes=[FIX])
    assert outcome(done) == ("fixed", 0, None)
    assert index_faults(home.store) == []
    assert outcome(patient.undo(done.run)) == ("fixed", 0, None)
    # The index is derived, and stays in step.
    assert [line for line in difference(before, image_of(home.store)) if "messages_fts" not in line] == []
    assert index_faults(home.store) == []


def test_a_session_with_a_turn_under_way_is_spared(home: Home, oracle: None) -> None:
    cells = "VALUES ('model_config: cut off', 'pid=1:turn=x', 1.0, 4e9)"
    lease = sql(f"INSERT INTO session_turn_leases (conversation_id, holder, acquired_at, expires_at) {cells}")
    plant(home, "0.20.6", tuple(case for case in CONFIGS if case.name == "cut off"), lease)
    config = [finding for finding in findings_of(home.store, CHECK, home=home.path) if finding.table == "sessions"]
    assert [(finding.bucket, finding.refusal) for finding in config] == [
        (Bucket.REFUSED, "spared: a turn is running in its lineage")
    ]


def test_what_was_changed_meanwhile_is_left(planted: Home) -> None:
    patient = Patient(planted.store, planted.path)
    own = "model_config: cut off"
    (finding,) = (each for each in patient.findings([CHECK]) if each.key == own)
    good = ("UPDATE sessions SET model_config = '{}' WHERE id = ?", (own,))
    back = (f"UPDATE sessions SET model_config = '{CONFIGS[4].cell}' WHERE id = ?", (own,))
    assert change_meanwhile(patient, FIX, finding, good) == "FixRefusedError"
    assert change_meanwhile(patient, replace(FIX, mend=lambda _mending, _finding: None), finding, back) is None
    route = replace(finding, table="gateway_routing", key=("", "nothing"))
    assert change_meanwhile(patient, FIX, route) == "FixRefusedError"


# Deliberately wrong variants of the fix.


def _running(statement: str) -> Callable[[Mending, Finding], None]:
    def mend(mending: Mending, finding: Finding) -> None:
        mending.connection.execute(statement, {"id": mending.single(finding.key)})

    return mend


VARIANTS = {
    "an empty object": "UPDATE sessions SET model_config = '{}' WHERE id = :id",
    "empty text": "UPDATE sessions SET model_config = '' WHERE id = :id",
    "the origin as well": "UPDATE sessions SET model_config = NULL, origin_json = NULL WHERE id = :id",
    "all that is no object": (
        "UPDATE sessions SET model_config = NULL WHERE :id IS NOT NULL AND substr(model_config, 1, 1) <> '{'"
        " OR id = :id"
    ),
    "all of its kind at once": "UPDATE sessions SET model_config = NULL WHERE :id IS NOT NULL",
}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_wrong_variant_fails(planted: Home, name: str) -> None:
    assert wrong(planted, replace(FIX, mend=_running(VARIANTS[name]))) != []
