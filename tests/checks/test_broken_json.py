"""broken-json: what is said of a cell is what the real readers make of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

from checks.broken_json import CHECK
from hermes_doctor.engine.model import Bucket, Finding, Severity
from hermes_doctor.engine.rows import ask
from hermes_doctor.store import json_cells
from hermes_doctor.store.json_cells import MESSAGE_COLUMNS, Fault
from hermes_doctor.store.nested_json import Goal
from tests.checks.broken_json_cases import CONFIGS, HEALTHY, MESSAGES, ORIGINS, ROUTES, CellCase, plant
from tests.checks.support import Planted, findings_of, once_a_release
from tests.oracle.home import CallError, Home
from tests.oracle.releases import get
from tests.oracle.steps import Step, call, sql
from tests.store.views import view_of

STORES = ("0.13.0", "0.20.0", "0.22.2")
CASES = (*HEALTHY, *MESSAGES, *CONFIGS, *ORIGINS)


def plant_cases(home: Home, version: str) -> Planted[CellCase]:
    shown = plant(home, version, CASES)
    now = time.time()
    return Planted(home, now, shown, tuple(findings_of(home.store, CHECK, home=home.path, now=now)))


@pytest.fixture(scope="module")
def planted(oracle: None, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Planted[CellCase]]:
    return once_a_release(plant_cases, tmp_path_factory)


def wrong_cases(version: str, cases: Sequence[CellCase], findings: Iterable[Finding]) -> dict[str, Any]:
    """What was said and not wanted, or the other way; routes go by their key."""
    said: dict[str, Any] = {}
    for finding in findings:
        # The key of a route is a scope and a chat.
        name = f"route {finding.key[1]!s}" if isinstance(finding.key, tuple) else str(finding.session)
        kinds = finding.detail["kinds"]
        assert isinstance(kinds, list)
        said[name] = (finding.table, *kinds, finding.severity)
    tables = {"model_config": "sessions", "origin_json": "sessions"}
    wanted: dict[str, Any] = {
        case.id: (tables.get(case.column, "messages"), *expected)
        for case in cases
        if (expected := case.expected(version)) is not None
    }
    if get(version).since("0.18.2"):
        wanted |= {
            f"route {key}": ("gateway_routing", fault.value, Severity.WARNING) for key, _entry, fault in ROUTES if fault
        }
    return {name: said.get(name) for name in said.keys() | wanted.keys() if said.get(name) != wanted.get(name)}


@pytest.mark.parametrize("version", STORES)
def test_each_case_is_judged_right(planted: Callable[[str], Planted[CellCase]], version: str) -> None:
    store = planted(version)
    assert wrong_cases(version, store.cases, store.findings) == {}
    for finding in store.findings:
        mends = finding.detail == {"columns": ["model_config"], "kinds": ["no-json"]}
        assert finding.bucket is (Bucket.UNSAFE if mends else Bucket.REPORT)
        assert (finding.action is not None) == mends
        assert "x'" not in finding.summary
        assert "{" not in finding.summary


def test_rows_asked_about_one_by_one_are_judged_alike(planted: Callable[[str], Planted[CellCase]]) -> None:
    store = planted("0.22.2")
    with view_of(store.home.store, home=store.home.path, now=store.now) as view:
        alone = [each for found in store.findings for each in ask(CHECK, [found.key], view, found.table)]
        healthy = [row[0] for row in view.rows("SELECT id FROM messages WHERE session_id LIKE 'origin_json%'")]
        assert list(ask(CHECK, healthy, view, "messages")) == []
    assert alone == list(store.findings)


def loads(version: str, case: CellCase) -> list[Step]:
    """How the release loads the chat: as it is, to resume it, and to write a result of background work into it."""
    steps = [call("get_messages_as_conversation", case.id)]
    if get(version).since("0.19.0"):
        steps.append(call("get_messages_as_conversation", case.id, repair_alternation=True))
    if get(version).since("0.21.5"):
        steps.append(call("append_delegation_delivery", case.id, "done", {"delegation_id": "d1"}))
    return steps


_RIGHT: dict[Goal, tuple[type, ...]] = {Goal.LIST: (list,), Goal.OBJECT: (dict,), Goal.EITHER: (dict, list)}
#: Under which key the loader puts a column's value.
KEYS = {"absorbed_message_uids": "_absorbed_message_uids", "tool_call_uids": "_tool_call_uids"}


@pytest.mark.parametrize("version", ["0.13.0", "0.19.0", "0.22.2"])
def test_the_releases_load_what_is_said(oracle: None, home: Home, version: str) -> None:
    """An error: something raises. Else the value is what it should be, just where nothing is said to be lost."""
    cases = plant(home, version, MESSAGES)
    steps = {case.id: loads(version, case) for case in cases}
    answers = iter(home.run(version, [step for some in steps.values() for step in some], check=False))
    for case in cases:
        loaded = [next(answers) for _ in steps[case.id]]
        said = case.expected(version)
        assert said is not None
        fails = any(isinstance(each, CallError) for each in loaded)
        assert fails == (said[1] is Severity.ERROR), (case.id, loaded)
        if fails or case.role == "user" or case.fault in (Fault.NOT_SQL, Fault.TWICE):
            continue
        value = loaded[0][1].get(KEYS.get(case.column, case.column))
        column = MESSAGE_COLUMNS.get(case.column)
        read = isinstance(value, _RIGHT[column.goal if column else Goal.LIST]) and bool(value)
        assert read == (said[1] is Severity.INFO), (case.id, value)


@pytest.mark.parametrize("version", ["0.13.0", "0.16.0", "0.17.0", "0.20.6", "0.22.2"])
def test_the_releases_list_what_is_said(oracle: None, home: Home, version: str) -> None:
    """With each config alone in the store: what fails on it, in that release, fails just where it is an error."""
    asked = [call("list_sessions_rich", limit=1000)]
    if get(version).since("0.21.5"):
        asked = [call("list_recent_sessions_bounded")]
    steps: list[Step] = [call("create_session", "p", "cli"), call("create_session", "c", "cli", parent_session_id="p")]
    for case in CONFIGS:
        own = "c" if case.child else "p"
        steps.append(sql("UPDATE sessions SET model_config = NULL"))
        steps.append(sql("UPDATE sessions SET model_config = ? WHERE id = ?", case.cell, own))
        steps += asked
        if get(version).since("0.20.6"):
            # What an agent does that takes up a session which is there already.
            steps.append(call("create_session", own, "cli", model_config={"max_iterations": 90}))
    answers = home.run(version, steps, check=False)[2:]
    each = len(answers) // len(CONFIGS)
    for n, case in enumerate(CONFIGS):
        failed = {isinstance(answer, CallError) for answer in answers[n * each + 2 : (n + 1) * each]}
        said = case.expected(version)
        assert failed == {said is not None and said[1] is Severity.ERROR}, case.id


def test_text_that_is_no_text_is_left_to_others(oracle: None, home: Home) -> None:
    plant(
        home,
        "0.13.0",
        CONFIGS[:1],
        sql("UPDATE sessions SET model_config = CAST(x'7bff' AS TEXT)"),
        sql("UPDATE messages SET tool_calls = CAST(x'5bff' AS TEXT), content = CAST(x'006a736f6e3a5bff' AS TEXT)"),
    )
    assert findings_of(home.store, CHECK) == []


def test_several_columns_of_one_row_are_one_finding(oracle: None, home: Home) -> None:
    plant(
        home,
        "0.19.0",
        (CONFIGS[0], MESSAGES[0]),
        sql("UPDATE messages SET reasoning_details = x'5b5d' WHERE tool_calls IS NOT NULL"),
        sql("UPDATE sessions SET model_config = '{x', origin_json = '[]' WHERE id = ?", CONFIGS[0].id),
        sql("DELETE FROM gateway_routing"),
    )
    message, session = findings_of(home.store, CHECK)
    assert message.detail == {"columns": ["tool_calls", "reasoning_details"], "kinds": ["no-json", "blob"]}
    assert session.detail == {"columns": ["model_config", "origin_json"], "kinds": ["no-json", "wrong-kind"]}
    assert (message.severity, session.severity) == (Severity.WARNING, Severity.ERROR)


# Deliberately wrong variants: each must get at least one case wrong.

_KIND, _LOADED = json_cells._kind_fault, json_cells._loaded


def _strict(cell: str | bytes) -> tuple[object, Fault | None]:
    value, fault = _LOADED(cell)
    return value, Fault.NO_JSON if b"NaN" in (cell.encode() if isinstance(cell, str) else cell) else fault


def _text_alone(cell: str | bytes) -> tuple[object, Fault | None]:
    return (None, Fault.NO_JSON) if isinstance(cell, bytes) else _LOADED(cell)


VARIANTS: dict[str, tuple[str, object]] = {
    "any JSON will do": ("_kind_fault", lambda _column, _value: None),
    "null is of the wrong kind": ("_kind_fault", lambda column, value: _KIND(column, 0 if value is None else value)),
    "NaN is no JSON": ("_loaded", _strict),
    "blobs are not read": ("_loaded", _text_alone),
    "what is wrapped is broken": ("GOALS", {}),
    "marks are read by Python only": ("_SQL_READS_MARKS", 1000),
    "any row delivers": ("_DELIVERIES", frozenset({None, "hidden", "async_delegation_complete"})),
    "none delivers": ("_DELIVERIES", frozenset()),
    "calls are never gone through": ("_GOES_THROUGH_CALLS", 1000),
    "everybody reasons": ("_OF_ASSISTANTS", frozenset()),
    "one author may react twice": ("_mark_fault", lambda _cell: None),
    "every other list works": ("_LISTS_FAIL", 1000),
    "content is not looked at": ("SENTINEL", "\0yaml:"),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_wrong_variant_fails(
    planted: Callable[[str], Planted[CellCase]], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    version = "0.20.0" if name == "every other list works" else "0.22.2"
    store = planted(version)
    what, wrong = VARIANTS[name]
    monkeypatch.setattr(json_cells, what, wrong)
    found = findings_of(store.home.store, CHECK, home=store.home.path, now=store.now)
    assert wrong_cases(version, store.cases, found) != {}
