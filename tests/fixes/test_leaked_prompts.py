"""leaked-prompts' fix: the release replays what it replayed before anything leaked, and undo is exact."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from checks.counter_drift import CHECK as COUNTER_DRIFT
from checks.leaked_prompts import CHECK
from fixes.leaked_prompts import FIX
from hermes_doctor.engine.cure import Fix, Mending
from hermes_doctor.engine.model import Finding
from hermes_doctor.store import review_prompts
from hermes_doctor.store.review_prompts import leak_at
from tests.checks.leaked_cases import LeakCase, Leaks, cases, plant
from tests.checks.support import findings_of, once_a_release
from tests.checks.test_leaked_prompts import said_in
from tests.fixes.support import Patient, change_meanwhile, outcome, there_and_back
from tests.oracle.home import Home
from tests.whole.identical import HERMES_KEYS, Image, difference, image_of, index_faults

#: What the fix may change; places in the display move with rows of the same words (0.21.5 on).
CHANGED = ("active", "message_count", "tool_call_count", "display_order")


@pytest.fixture(scope="module")
def planted(oracle: None, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Leaks]:
    """The cases in a store of the release that is asked for; each test leaves it as it found it."""
    return once_a_release(lambda home, version: plant(home, version, time.time()), tmp_path_factory)


def standing(image: Image) -> Mapping[Any, Any]:
    return {row["id"]: (row["active"], row.get("compacted", 0)) for row in image.table("messages")}


def counters(image: Image) -> Mapping[Any, Any]:
    return {row["id"]: (row["message_count"], row["tool_call_count"]) for row in image.table("sessions")}


def live_after(case: LeakCase) -> tuple[int, int]:
    """What the session counts when what leaked is hidden. A counter that its rows did not make stays as it was."""
    live = [row for row in case.rows if row.dead[0] == 1]
    kept = [row for row in live if not row.leaked]
    calls = sum(row.role == "assistant" and row.call is not None for row in kept)
    return (len(live) + case.counts if case.counts else len(kept)), calls


def wrong(leaks: Leaks, fix: Fix, once: Sequence[Finding] | None = None) -> list[Any]:
    """Mend with that fix and take it back; say what is not as it must be."""
    patient = Patient(leaks.home.store, leaks.home.path, leaks.now)

    def look(store: Any) -> tuple[Image, list[str], list[Finding]]:
        drifted = findings_of(store, COUNTER_DRIFT, home=leaks.home.path, now=leaks.now)
        return image_of(store), index_faults(store), drifted

    (before, _, drifted), (after, faults, drifted_since), (back, faults_at_last, _) = there_and_back(
        patient, CHECK, fix, look, once=once
    )
    wanted = {
        key: (0, 0) if row.leaked else row.dead if "compacted" in before.columns["messages"] else (row.dead[0], 0)
        for key, (_case, row) in leaks.rows.items()
    }
    lines: list[Any] = sorted(standing(after).items() ^ wanted.items())
    lines += sorted(
        counters(after).items() ^ {(case.name.encode(), live_after(case)) for case in leaks.cases}, key=repr
    )
    lines += [line for line in difference(before, after) if not any(f": {name} " in line for name in CHANGED)]
    lines += [finding.key for finding in drifted_since if finding not in drifted]
    return lines + faults + difference(before, back) + faults_at_last


@pytest.mark.parametrize("version", ["0.16.0", "0.22.2"])
def test_what_leaked_is_hidden_once_and_put_back(planted: Callable[[str], Leaks], version: str) -> None:
    leaks = planted(version)
    patient = Patient(leaks.home.store, leaks.home.path, leaks.now)
    assert wrong(leaks, FIX, patient.findings([CHECK])) == []


@pytest.mark.parametrize("version", ["0.16.0", "0.19.0", "0.22.2"])
def test_the_release_replays_what_it_did_before(planted: Callable[[str], Leaks], version: str) -> None:
    leaks = planted(version)
    home, patient = leaks.home, Patient(leaks.home.store, leaks.home.path, leaks.now)
    before = image_of(home.store)
    done = patient.mend(checks=[CHECK], fixes=[FIX])
    replayed = home.conversations(version, leaks.before)
    for case in leaks.cases:
        left = any(row.refused for row in case.rows)
        assert replayed[case.name] == (leaks.damaged if left else leaks.before)[case.name], case.name
    # The release has had the store open meanwhile.
    assert outcome(patient.undo(done.run)) == ("fixed", 0, None)
    assert difference(before, image_of(home.store), but_for=HERMES_KEYS | {"fts_storage_version"}) == []


def test_the_newest_release_replays_an_old_store_so(home: Home, oracle: None) -> None:
    leaks = plant(home, "0.19.0", time.time())
    Patient(home.store, home.path, leaks.now).mend(checks=[CHECK], fixes=[FIX])
    names = [case.name for case in leaks.cases if not any(row.refused for row in case.rows)]
    replayed = home.conversations("0.22.2", names)
    assert {name: said_in(replayed[name]) for name in names} == {name: said_in(leaks.before[name]) for name in names}


def test_a_schema_that_cannot_hide_is_left(home: Home, oracle: None) -> None:
    leaks = plant(home, "0.13.0", time.time(), cases()[:2])
    patient = Patient(home.store, home.path, leaks.now)
    found = patient.findings([CHECK])
    assert len(found) == 2
    assert patient.mend(checks=[CHECK], fixes=[FIX]).run is None
    assert change_meanwhile(patient, FIX, found[0]) == "FixRefusedError"


def one(home: Home, name: str) -> tuple[Leaks, Patient, list[Finding]]:
    leaks = plant(home, "0.16.0", time.time(), [case for case in cases() if case.name == name])
    patient = Patient(home.store, home.path, leaks.now)
    return leaks, patient, patient.findings([CHECK])


def test_what_was_changed_meanwhile_is_left(home: Home, oracle: None) -> None:
    _leaks, patient, (finding,) = one(home, "a reply with tools")
    key = int(str(finding.key))
    for statement, kind in (
        (f"UPDATE messages SET active = 0 WHERE id = {key}", "RowMovedError"),
        (f"UPDATE messages SET active = 1, content = 'x' || content WHERE id = {key}", "RowMovedError"),
        # Two of its rows away from the prompt the chat goes on.
        (
            f"UPDATE messages SET content = substr(content, 2), role = CASE id WHEN {key + 2} THEN 'user' ELSE role END"
            f" WHERE id IN ({key}, {key + 2})",
            "FixRefusedError",
        ),
    ):
        assert change_meanwhile(patient, FIX, finding, (statement, ())) == kind, statement


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_of_several_in_a_row_each_is_mended_alone(home: Home, oracle: None, order: tuple[int, ...]) -> None:
    """A run may stop between them: what was hidden before still says that the reply is a real one."""
    leaks, patient, findings = one(home, "three in a row")
    for turn in order:
        (finding,) = (each for each in patient.findings([CHECK]) if each.key == findings[turn].key)
        assert finding == findings[turn]
        assert change_meanwhile(patient, FIX, finding) is None
    assert home.conversations("0.16.0", leaks.before) == leaks.before


def test_reviews_behind_one_another_are_mended_alone(home: Home, oracle: None) -> None:
    for name in ("another review behind a broken one", "one review behind the other"):
        leaks, patient, findings = one(Home(home.path / name), name)
        for finding in findings:
            assert [each for each in patient.findings([CHECK]) if each.key == finding.key] == [finding]
            assert change_meanwhile(patient, FIX, finding) is None
        assert leaks.home.conversations("0.16.0", leaks.before) == leaks.before


# Deliberately wrong variants of the fix.


def _running(*statements: str) -> Callable[[Mending, Finding], None]:
    def mend(mending: Mending, finding: Finding) -> None:
        leak = leak_at(mending.view, finding.session, finding.key)
        assert leak is not None
        rows = ", ".join(str(key) for key in (leak.prompt, *leak.replies))
        for statement in statements:
            words = {"rows": rows, "id": leak.prompt, "count": 1 + len(leak.replies)}
            mending.connection.execute(statement.format_map(words), {"session": mending.single(finding.session)})

    return mend


_LOWERED = "UPDATE sessions SET message_count = message_count - {count} WHERE id = :session"
_RECOUNTED = (
    "UPDATE sessions SET message_count = (SELECT count(*) FROM messages WHERE session_id = :session AND active = 1),"
    " tool_call_count = (SELECT count(*) FROM messages WHERE session_id = :session AND active AND tool_calls > '')"
    " WHERE id = :session"
)
_HIDDEN = "UPDATE messages SET active = 0 WHERE id IN ({rows}) AND :session > ''"

VARIANTS: dict[str, Callable[[Mending, Finding], None]] = {
    "it deletes": _running("DELETE FROM messages WHERE id IN ({rows}) AND :session > ''"),
    "as if compacted": _running("UPDATE messages SET active = 0, compacted = 1 WHERE id IN ({rows}) AND :session > ''"),
    "the reply stays": _running("UPDATE messages SET active = 0 WHERE id = {id} AND :session > ''", _RECOUNTED),
    "the counters stay": _running(_HIDDEN),
    "the counters are lowered whatever they are": _running(_HIDDEN, _LOWERED),
    "the counters are made anew": _running(_HIDDEN, _RECOUNTED),
    "all that is behind": _running(
        "UPDATE messages SET active = 0 WHERE session_id = :session AND id >= {id}", _RECOUNTED
    ),
}


@pytest.fixture(scope="module")
def few(oracle: None, tmp_path_factory: pytest.TempPathFactory) -> Leaks:
    """The cases that tell wrong variants from the fix; each test leaves them as it found them."""
    names = ("a reply with tools", "counts its rewound rows", "two in a row")
    chosen = [case for case in cases() if case.name in names]
    assert len(chosen) == len(names)
    return plant(Home(tmp_path_factory.mktemp("few") / "home"), "0.19.0", time.time(), chosen)


def test_the_few_cases_are_mended_right(few: Leaks) -> None:
    assert wrong(few, FIX) == []


@pytest.mark.parametrize("name", VARIANTS)
def test_a_wrong_variant_fails(few: Leaks, name: str) -> None:
    assert wrong(few, replace(FIX, mend=VARIANTS[name])) != []


def test_who_forgets_what_was_hidden_hides_the_real_reply(
    home: Home, oracle: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = review_prompts._before
    monkeypatch.setattr(review_prompts, "_before", lambda rows: before(row for row in rows if row.live))
    leaks, patient, findings = one(home, "two in a row")
    for finding in findings:
        change_meanwhile(patient, FIX, finding)
    assert home.conversations("0.16.0", leaks.before) != leaks.before
