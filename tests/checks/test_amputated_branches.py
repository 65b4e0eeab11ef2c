"""amputated-branches: what the releases' own branches lost is found, and nothing that is left out on purpose."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from checks.amputated_branches import CHECK
from hermes_doctor.engine.model import Bucket, Finding
from hermes_doctor.engine.rows import ask
from hermes_doctor.store import branch_copies
from hermes_doctor.store.branch_copies import broken_copies
from tests.checks.branch_cases import CASES, SECRET, BranchCase, Made, plant
from tests.checks.support import Planted, by_key, findings_of, once_a_release
from tests.oracle.home import Home
from tests.oracle.steps import open_store
from tests.store.views import view_of

STORES = ("0.13.0", "0.19.0", "0.20.0", "0.20.6", "0.22.2")


def plant_cases(home: Home, version: str, cases: tuple[BranchCase, ...] = CASES) -> Planted[Made]:
    now = time.time()
    made = plant(home, version, now, cases)
    return Planted(home, now, tuple(made), tuple(findings_of(home.store, CHECK, home=home.path, now=now)))


@pytest.fixture(scope="module")
def planted(oracle: None, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Planted[Made]]:
    return once_a_release(plant_cases, tmp_path_factory)


def wrong_cases(store: Planted[Made], findings: Sequence[Finding] | None = None) -> list[str]:
    """The cases of which something else is said, or of whose rows something else is to be filled, than must be."""
    said = {finding.key: finding for finding in (store.findings if findings is None else findings)}
    with view_of(store.home.store, now=store.now) as view:
        fills = {copy.session: {loss.row: loss.columns for loss in copy.losses} for copy in broken_copies(view)}
    wrong = []
    for made in store.cases:
        finding, case = said.pop(made.branch, None), made.case
        lost = {made.rows[place]: columns for place, columns in case.lost.items()}
        severity = finding.severity.label if finding else None
        counts = (finding.detail["rows"], finding.detail["left"], finding.detail["not_copied"]) if finding else None
        wanted = (len(lost) + case.left, case.left, case.not_copied) if case.severity else None
        if severity != case.severity or counts != wanted or fills.get(made.branch, {}) != lost:
            wrong.append(case.name)
    return wrong + [f"a finding of {key!r}" for key in said]


@pytest.mark.parametrize("version", STORES)
def test_each_case_is_judged_right(planted: Callable[[str], Planted[Made]], version: str) -> None:
    store = planted(version)
    assert wrong_cases(store) == []
    cases = {made.branch: made.case for made in store.cases}
    for finding in store.findings:
        assert isinstance(finding.key, str)
        case = cases[finding.key]
        assert finding.bucket is (Bucket.UNSAFE if case.lost else Bucket.REFUSED if case.left else Bucket.REPORT)
        assert SECRET not in f"{finding.summary} {finding.action} {finding.refusal} {finding.detail}"
        assert finding.detail["parent"] == case.parent


@pytest.mark.parametrize("version", ["0.13.0", "0.20.0"])
def test_branches_asked_about_one_by_one_are_judged_alike(
    planted: Callable[[str], Planted[Made]], version: str
) -> None:
    store = planted(version)
    with view_of(store.home.store, home=store.home.path, now=store.now) as view:
        together = list(ask(CHECK, [row[0] for row in view.rows("SELECT id FROM sessions")], view))
    assert store.asked_one_by_one(CHECK) == by_key(together) == by_key(store.findings)


def test_a_branch_that_an_upgrade_took_for_a_delegate_is_found(home: Home, oracle: None) -> None:
    """Up to 0.15.2 the terminal gave its branches no mark; the upgrade to schema 16 gives them a delegate's."""
    store = plant_cases(home, "0.13.0", CASES[:1])
    home.run("0.22.2", [open_store()])
    assert [finding.key for finding in findings_of(home.store, CHECK)] == [store.cases[0].branch]


def test_a_branch_in_use_is_refused(planted: Callable[[str], Planted[Made]]) -> None:
    store = planted("0.20.0")
    (terminal,) = (made.branch for made in store.cases if made.case.name == "terminal")
    with view_of(store.home.store, now=store.now - 2 * 3600 + 60, held="yes") as view:
        (finding,) = ask(CHECK, [terminal], view)
    assert finding.bucket is Bucket.REFUSED
    with view_of(store.home.store, now=store.now, held="yes") as view:
        (finding,) = ask(CHECK, [terminal], view)
    assert finding.bucket is Bucket.UNSAFE


# Deliberately wrong variants: each must get at least one case wrong.


def _search(self: Any, own_texts: Any, its_texts: Any) -> list[list[int]]:
    """The first row of the parent that is equal, wherever it stands."""
    keys = [(row.role, text) for row, text in zip(self.its, its_texts, strict=True)]
    wanted = [(row.role, text) for row, text in zip(self.own, own_texts, strict=True)]
    return [[keys.index(key)] for key in wanted if key in keys]


def _lengths(_view: Any, rows: Any) -> list[Any]:
    return [row.length for row in rows]


VARIANTS: dict[str, dict[str, object]] = {
    "rows are searched for": {"Laid.over": _search},
    "the length is enough": {"digests": _lengths},
    "the first that fits will do": {"_all_alike": lambda _view, _ids: True},
    "the parent's cells are taken as they are": {"_faults_of": lambda _view, _wanted: {}},
    "when it was written is not asked": {"Laid._fits": lambda _laid, _row, _place: True},
    "calls need no answers": {"_by_turns": lambda _laid, _places, _missing, why: dict(why)},
    "every branch is the CLI's": {"_wanted": lambda _branch, _kept: branch_copies._left_out(0)},
    "a NUL is nothing": {"indexed_with_nul": lambda _view, _rows, _columns: set()},
    "no end is early": {"PIECE": 501},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_wrong_variant_fails(
    planted: Callable[[str], Planted[Made]], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    store = planted("0.20.0" if name == "no end is early" else "0.19.0")
    for what, wrong in VARIANTS[name].items():
        monkeypatch.setattr(f"hermes_doctor.store.branch_copies.{what}", wrong)
    assert wrong_cases(store, findings_of(store.home.store, CHECK, now=store.now)) != []
