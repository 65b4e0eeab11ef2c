"""hidden-chats' fix: the mark goes, nothing else, the real lists show the chats, and the search index is in step."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from checks.hidden_chats import CHECK
from fixes.hidden_chats import FIX
from hermes_doctor.engine.cure import Fix, Mending
from hermes_doctor.engine.model import Finding
from hermes_doctor.store.hidden_chats import without_mark
from tests.checks.hidden_cases import UNSAFE, HiddenCase
from tests.checks.support import Planted
from tests.checks.test_hidden_chats import CHATS, before_the_upgrade, plant_cases
from tests.fixes.support import Patient, change_meanwhile, mended_once, outcome, there_and_back
from tests.oracle.home import Home
from tests.oracle.releases import Release, get
from tests.oracle.steps import Step, call, open_store, sql
from tests.whole.identical import difference, image_of, index_faults

#: What the mark was put beside, in most cases.
CONFIG = json.dumps({"max_iterations": 90})


@pytest.fixture(scope="module")
def planted(oracle: None, tmp_path_factory: pytest.TempPathFactory) -> Planted[HiddenCase]:
    """The cases in a store of the newest release; each test leaves it as it found it."""
    return plant_cases(Home(tmp_path_factory.mktemp("planted") / "home"), "0.22.2")


def wrong(planted: Planted[HiddenCase], fix: Fix) -> list[str]:
    """Mend with that fix and take it back; say what is not as it must be."""
    patient = Patient(planted.home.store, planted.home.path)
    seen = there_and_back(patient, CHECK, fix, lambda store: (image_of(store), index_faults(store)))
    (before, _), (after, faults), (back, faults_at_last) = seen
    wanted: dict[object, object] = {
        case.id(name).encode(): b'{ "a" : 1.50 }' if case.name == "spaces about the mark" else CONFIG.encode()
        for case in planted.cases
        for name, (_why, bucket) in case.hidden.items()
        if bucket is UNSAFE
    }
    was = {row["id"]: row["model_config"] for row in before.table("sessions")}
    now = {row["id"]: row["model_config"] for row in after.table("sessions")}
    lines = [str(key) for key in now if now[key] != wanted.get(key, was[key])]
    lines += [
        line for line in difference(before, after) if ": model_config " not in line and " in messages_" not in line
    ]
    return lines + faults + difference(before, back) + faults_at_last


def test_every_mark_is_taken_off_once_and_put_back(planted: Planted[HiddenCase]) -> None:
    patient = Patient(planted.home.store, planted.home.path)
    assert index_faults(planted.home.store) == []
    assert wrong(planted, FIX) == []
    with mended_once(patient, CHECK, FIX, planted.findings):
        listed = set(planted.home.listed("0.22.2", include_archived=True, project_compression_tips=False))
        mended = {case.id(n) for case in planted.cases for n, (_, bucket) in case.hidden.items() if bucket is UNSAFE}
        through = {key for key in mended if key.endswith(": c")}
        assert mended - through <= listed


def looks() -> list[Step]:
    sessions = sorted(CHATS)
    return [
        *(call("get_messages_as_conversation", session) for session in sessions),
        call("search_messages", "which"),
        call("list_sessions_rich", limit=100),
    ]


@pytest.mark.parametrize("release", [get("0.17.0"), get("0.20.0"), get("0.22.2")], ids=str)
def test_the_lists_of_the_release_show_them_again(home: Home, release: Release) -> None:
    before_the_upgrade(home)
    (shown,) = home.run("0.13.0", [sql("SELECT id, model_config FROM sessions WHERE id IN ('chat', 'from-a-phone')")])
    before = home.run(release, looks())
    assert [row["id"] for row in before[-1]] == ["titled"]
    patient = Patient(home.store, home.path)
    done = patient.mend(checks=[CHECK], fixes=[FIX])
    assert outcome(done) == ("fixed", 0, None)
    after = home.run(release, looks())
    assert {row["id"] for row in after[-1]} == CHATS | {"titled"}
    assert after[:-1] == before[:-1]
    assert index_faults(home.store) == []
    # The release opens it once more and marks nothing again; what else was in the column is what 0.13.0 wrote.
    (kept,) = home.run(release, [sql("SELECT id, model_config FROM sessions WHERE id IN ('chat', 'from-a-phone')")])
    assert [(own, json.loads(text) if text else None) for own, text in kept] == [
        (own, json.loads(text) if text else None) for own, text in shown
    ]
    assert dict(kept)["from-a-phone"] is None
    assert outcome(patient.undo(done.run)) == ("fixed", 0, None)
    assert home.listed(release) == ["titled"]


def test_search_by_parts_of_words_finds_them_again(home: Home, oracle: None) -> None:
    """The trigram index of 0.22.2 leaves out what is marked."""
    planted = plant_cases(home, "0.22.2")
    question = "SELECT count(*) FROM messages_fts_trigram WHERE messages_fts_trigram MATCH '\"telegram chat\"'"
    assert home.run("0.22.2", [open_store(), sql(question)])[1] == [[0]]
    Patient(home.store, home.path).mend(checks=[CHECK], fixes=[FIX])
    (case,) = (case for case in planted.cases if case.name == "a telegram chat")
    assert home.run("0.22.2", [open_store(), sql(question)])[1] == [[len(case.sessions[0].said)]]


def test_what_was_changed_meanwhile_is_left(planted: Planted[HiddenCase]) -> None:
    patient = Patient(planted.home.store, planted.home.path)
    (finding,) = (f for f in planted.findings if f.key == "a cli chat: s")
    other = ("UPDATE sessions SET model_config = '{\"_delegate_from\": \"x\"}' WHERE id = 'a cli chat: s'", ())
    back = ("UPDATE sessions SET model_config = ? WHERE id = 'a cli chat: s'", (CONFIG_MARKED,))
    assert change_meanwhile(patient, FIX, finding, other) == "FixRefusedError"
    assert change_meanwhile(patient, replace(FIX, mend=_running("SELECT :id")), finding, back) is None


CONFIG_MARKED = json.dumps({"max_iterations": 90, "_delegate_from": "__orphaned__"})


# Deliberately wrong variants of the fix.


def _running(statement: str) -> Callable[[Mending, Finding], None]:
    def mend(mending: Mending, finding: Finding) -> None:
        values: dict[str, Any] = {"id": mending.single(finding.key)}
        mending.connection.execute(statement, values)

    return mend


def _without_the_index(mending: Mending, finding: Finding) -> None:
    session = mending.single(finding.key)
    old = mending.view.reader.value("SELECT model_config FROM sessions WHERE id = ?", (session,))
    mending.set("sessions", session, to={"model_config": without_mark(str(old))}, expects={"model_config": old})


VARIANTS: dict[str, Callable[[Mending, Finding], None]] = {
    "the index is left behind": _without_the_index,
    "JSON is written anew": _running(
        "UPDATE sessions SET model_config = json_remove(model_config, '$._delegate_from') WHERE id = :id"
    ),
    "the whole config goes": _running("UPDATE sessions SET model_config = NULL WHERE id = :id"),
    "another mark instead": _running(
        "UPDATE sessions SET model_config = replace(model_config, '_delegate_from', '_branched_from') WHERE id = :id"
    ),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_wrong_variant_fails(planted: Planted[HiddenCase], name: str) -> None:
    assert wrong(planted, replace(FIX, mend=VARIANTS[name])) != []
