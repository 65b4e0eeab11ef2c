"""lost-identity's fix: what is NULL is filled in from the parent, nothing else, and it can be taken back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from checks.lost_identity import CHECK
from fixes.lost_identity import FIX
from hermes_doctor.engine.cure import Fix, Mending
from hermes_doctor.engine.model import Finding
from tests.checks.identity_cases import CHAT, FOLDER, IdentityCase
from tests.checks.support import Planted
from tests.checks.test_lost_identity import plant_cases, rotation
from tests.fixes.support import Patient, change_meanwhile, mended_once, outcome, there_and_back
from tests.oracle.home import Home
from tests.oracle.releases import Release, get
from tests.oracle.steps import Step, call
from tests.whole.identical import difference, image_of, index_faults


def filled(case: IdentityCase) -> dict[str, dict[str, Any]]:
    """The values that each session of the case must get: those of the chain's first row."""
    first = next(iter(case.sessions)).cells
    return {
        case.id(name): {column: _cell(case, first[column]) for column in loss.filled}
        for name, loss in case.lost.items()
        if loss.filled
    }


def _cell(case: IdentityCase, value: Any) -> Any:
    return case.id(value[1:]) if isinstance(value, str) and value.startswith("@") else value


@pytest.fixture(scope="module")
def planted(oracle: None, tmp_path_factory: pytest.TempPathFactory) -> Planted[IdentityCase]:
    """The cases in a store of the newest release; each test leaves it as it found it."""
    return plant_cases(Home(tmp_path_factory.mktemp("planted") / "home"), "0.22.2")


def wrong(planted: Planted[IdentityCase], fix: Fix) -> list[str]:
    """Mend with that fix and take it back; say what is not as it must be."""
    patient = Patient(planted.home.store, planted.home.path)
    before, after, back = there_and_back(patient, CHECK, fix, image_of)
    wanted: dict[object, object] = {
        (key.encode(), column): value.encode()
        for case in planted.cases
        for key, cells in filled(case).items()
        for column, value in cells.items()
    }
    was = {row["id"]: row for row in before.table("sessions")}
    written: dict[object, object] = {
        (row["id"], column): value
        for row in after.table("sessions")
        for column, value in row.items()
        if value != was[row["id"]][column]
    }
    lines = [str(cell) for cell in written.keys() | wanted.keys() if written.get(cell) != wanted.get(cell)]
    lines += [line for line in difference(before, after) if not line.startswith("sessions ")]
    return lines + difference(before, back)


@pytest.mark.parametrize("version", ["0.18.2", "0.22.2"])
def test_every_case_is_filled_in_once_and_taken_back(home: Home, version: str) -> None:
    planted = plant_cases(home, version)
    patient = Patient(home.store, home.path)
    assert wrong(planted, FIX) == []
    with mended_once(patient, CHECK, FIX, planted.findings):
        assert index_faults(home.store) == []


def _looks(release: Release) -> list[Step]:
    peer = {"source": "telegram", "session_key": CHAT_KEY}
    looks = [call("find_latest_gateway_session_for_peer", **peer), call("get_messages_as_conversation", "after")]
    return [*looks, call("list_sessions_rich", limit=100)]


CHAT_KEY = "agent:main:telegram:dm:1"


@pytest.mark.parametrize("release", [get("0.18.2"), get("0.19.0")], ids=str)
def test_the_release_finds_the_chat_again(home: Home, release: Release) -> None:
    home.run(release, rotation(release))
    before = home.run(release, _looks(release))
    assert before[0] is None
    assert outcome(Patient(home.store, home.path).mend(checks=[CHECK], fixes=[FIX])) == ("fixed", 0, None)
    after = home.run(release, _looks(release))
    assert after[0]["id"] == "after"
    assert after[0]["cwd"] == "/work"
    assert after[1] == before[1]
    assert [row["id"] for row in after[2]] == [row["id"] for row in before[2]]


def test_what_was_filled_in_meanwhile_is_left(home: Home) -> None:
    planted = plant_cases(home, "0.22.2")
    patient = Patient(home.store, home.path, planted.now)
    (finding,) = (f for f in planted.findings if f.key == "a folder: c")
    taken = ("UPDATE sessions SET cwd = '/own' WHERE id = 'a folder: c'", ())
    assert change_meanwhile(patient, FIX, finding, taken) == "FixRefusedError"
    (finding,) = (f for f in planted.findings if f.key == "a chat's continuation: c")
    taken = ("UPDATE sessions SET session_key = 'x' WHERE id = 'a chat''s continuation: c'", ())
    assert change_meanwhile(patient, FIX, finding, taken) == "FixRefusedError"


# Deliberately wrong variants of the fix.


def _copies(*columns: str, only_null: bool = True) -> Callable[[Mending, Finding], None]:
    """Copies these columns from the direct parent."""

    def mend(mending: Mending, finding: Finding) -> None:
        for column in columns:
            null = f"AND {column} IS NULL" if only_null else ""
            mending.connection.execute(
                f"UPDATE sessions SET {column} ="
                f" (SELECT p.{column} FROM sessions p WHERE p.id = sessions.parent_session_id) WHERE id = ? {null}",
                (mending.single(finding.key),),
            )

    return mend


VARIANTS = {
    "everything from its parent": _copies(*CHAT, "thread_id", "model", *FOLDER, only_null=False),
    "what is contested, too": _copies(*CHAT, "thread_id", "display_name", "origin_json", *FOLDER),
    "the key alone": _copies("session_key"),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_wrong_variant_fails(planted: Planted[IdentityCase], name: str) -> None:
    assert wrong(planted, replace(FIX, mend=VARIANTS[name])) != []
