"""lost-identity: what a continuation lost is found, and nobody's chat comes to somebody else."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from checks.lost_identity import CHECK
from hermes_doctor.engine.model import Finding, Safety, Severity
from hermes_doctor.store import identity
from hermes_doctor.store.lineage import chain_of
from tests.checks.identity_cases import CASES, CHAT, IdentityCase, Loss
from tests.checks.lineage_cases import DAY, plant
from tests.checks.support import Planted, by_key, findings_of, once_a_release
from tests.oracle.home import Home
from tests.oracle.releases import Release, between, get
from tests.oracle.steps import Step, call, clock

STORES = ("0.18.2", "0.22.2")


def plant_cases(home: Home, version: str) -> Planted[IdentityCase]:
    now = time.time()
    shown = plant(home, get(version), now, CASES)
    return Planted(home, now, shown, tuple(findings_of(home.store, CHECK, home=home.path, now=now)))


@pytest.fixture(scope="module")
def planted(oracle: None, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Planted[IdentityCase]]:
    return once_a_release(plant_cases, tmp_path_factory)


def wrong_cases(cases: Sequence[IdentityCase], findings: Sequence[Finding]) -> dict[str, Any]:
    """The cases of which something else was said than they want, and what."""
    said: dict[object, Loss] = {
        finding.key: Loss(tuple(_listed(finding, "columns")), tuple(_listed(finding, "contested")))
        for finding in findings
    }
    wanted = {case.id(name): loss for case in cases for name, loss in case.lost.items()}
    return {str(key): said.get(key) for key in said.keys() | wanted.keys() if said.get(key) != wanted.get(str(key))}


def _listed(finding: Finding, name: str) -> Sequence[str]:
    listed = finding.detail[name]
    assert isinstance(listed, list)
    return listed


@pytest.mark.parametrize("version", STORES)
def test_each_case_is_judged_right(planted: Callable[[str], Planted[IdentityCase]], version: str) -> None:
    store = planted(version)
    assert wrong_cases(store.cases, store.findings) == {}
    assert len({finding.key for finding in store.findings}) == len(store.findings) > 15
    for finding in store.findings:
        filled, contested = _listed(finding, "columns"), _listed(finding, "contested")
        assert finding.fix is (Safety.UNSAFE if filled else Safety.NONE)
        assert (finding.refusal is None) == bool(filled)
        routing = any(column in (*CHAT, "thread_id") for column in (*filled, *contested))
        tip = Severity.ERROR if routing else Severity.WARNING
        assert finding.severity is (tip if finding.detail["tip"] else Severity.INFO)
        # What says whose chat it is stays where it is.
        assert not any(word in str(finding.detail) + finding.summary for word in (": user", ": chat", ": key", "/work"))


@pytest.mark.parametrize("version", ["0.22.2"])
def test_rows_asked_about_one_by_one_are_judged_alike(
    planted: Callable[[str], Planted[IdentityCase]], version: str
) -> None:
    store = planted(version)
    assert store.asked_one_by_one(CHECK) == by_key(store.findings)


def rotation(release: Release) -> list[Step]:
    """A chat's compression by the release's own calls, and a crash before the gateway records where it goes on."""
    peer = {"session_key": "agent:main:telegram:dm:1", "user_id": "u1", "chat_id": "1", "chat_type": "dm"}
    now = time.time()
    return [
        clock(now - 2 * DAY),
        call("create_session", "before", "telegram", cwd="/work", **peer),
        call("append_message", "before", "user", "hello"),
        clock(now - DAY),
        call("end_session", "before", "compression"),
        call("create_session", "after", "telegram", parent_session_id="before"),
        call("append_message", "after", "user", "go on"),
        clock(None),
    ]


@pytest.mark.parametrize("release", [get("0.18.2"), get("0.19.0"), get("0.20.0"), get("0.22.2")], ids=str)
def test_releases_up_to_019_lose_it_and_newer_ones_copy_it(home: Home, release: Release) -> None:
    home.run(release, rotation(release))
    found = findings_of(home.store, CHECK, home=home.path)
    if release in between(last="0.19.0"):
        (finding,) = found
        assert finding.key == "after"
        assert finding.detail["columns"] == [*CHAT, "cwd"]
        assert finding.severity is Severity.ERROR
    else:
        assert found == []


# Deliberately wrong variants: each must get at least one case wrong.


def _never(*_: object) -> bool:
    return False


def _direct(search: Any, row: Any) -> list[Any]:
    search._whole.clear()
    above = search._rows("sessions.id", [row.parent]) if row.continues else []
    return [row, *above]


def _open_only(search: Any, row: Any, key: str) -> bool:
    chain = {*chain_of(search._view, row.id)}
    return any(each.ended_at is None and each.id not in chain for each in search._rows("sessions.session_key", [key]))


def _any_folder(row: Any, its: Any) -> dict[str, str]:
    return {c: its.has(c) for c in identity.PLACE if row.cells[c] is None and its.has(c)}


VARIANTS: dict[str, tuple[object, str, object]] = {
    "every child inherits": (identity, "_continues_sql", lambda _shape: "p.id IS NOT NULL"),
    "only what the parent has itself": (identity._Search, "_path", _direct),
    "nobody else has the chat": (identity._Search, "_is_taken", _never),
    "only open ones have it": (identity._Search, "_is_taken", _open_only),
    "rotations are not waited for": (identity._Search, "_is_rotating", _never),
    "any folder is the parent's": (identity, "_place", _any_folder),
    "routes are not asked": (identity, "_keyed_routes", lambda _view: {}),
    "the chain is a rival": (identity, "chain_of", lambda _view, session: (session,)),
    "a user without a chat is handed on": (identity._Row, "has", lambda row, column: row.cells[column] or "x"),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_wrong_variant_fails(
    planted: Callable[[str], Planted[IdentityCase]], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    store = planted("0.22.2")
    where, what, wrong = VARIANTS[name]
    monkeypatch.setattr(where, what, wrong)
    found = findings_of(store.home.store, CHECK, home=store.home.path, now=store.now)
    assert wrong_cases(store.cases, found) != {}
