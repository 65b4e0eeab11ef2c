"""hidden-chats: what is found is just what the real lists leave out although a person wrote in it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from checks.hidden_chats import CHECK
from hermes_doctor.engine.model import Finding, Severity
from hermes_doctor.store import hidden_chats
from hermes_doctor.store.hidden_chats import Why, without_mark
from tests.checks.hidden_cases import CASES, UNSAFE, HiddenCase, Said
from tests.checks.lineage_cases import plant
from tests.checks.support import Planted, by_key, findings_of, once_a_release
from tests.oracle.home import Home
from tests.oracle.releases import Release, get
from tests.oracle.steps import Step, call, open_store

STORES = ("0.13.0", "0.22.2")


def plant_cases(home: Home, version: str, cases: tuple[HiddenCase, ...] = CASES) -> Planted[HiddenCase]:
    now = time.time()
    shown = plant(home, get(version), now, cases)
    return Planted(home, now, shown, tuple(findings_of(home.store, CHECK, home=home.path, now=now)))


@pytest.fixture(scope="module")
def planted(oracle: None, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Planted[HiddenCase]]:
    return once_a_release(plant_cases, tmp_path_factory)


def wrong_cases(cases: Sequence[HiddenCase], findings: Sequence[Finding]) -> dict[str, Said | None]:
    """What was said and not wanted, or the other way."""
    said: dict[object, Said] = {f.key: (Why(str(f.detail["kind"])), f.bucket) for f in findings}
    wanted = {each.id(name): hidden for each in cases for name, hidden in each.hidden.items()}
    return {str(key): said.get(key) for key in said.keys() | wanted.keys() if said.get(key) != wanted.get(str(key))}


@pytest.mark.parametrize("version", STORES)
def test_each_case_is_judged_right(planted: Callable[[str], Planted[HiddenCase]], version: str) -> None:
    store = planted(version)
    assert wrong_cases(store.cases, store.findings) == {}
    for finding in store.findings:
        hides = get(version).since("0.17.0") and finding.bucket is UNSAFE
        marked = Severity.ERROR if hides else Severity.INFO
        assert finding.severity is (Severity.WARNING if finding.detail["kind"] == Why.UNJOINED else marked)
        assert "mine" not in str(finding)


@pytest.mark.parametrize("version", ["0.18.2", "0.22.2"])
def test_what_is_found_is_what_the_list_leaves_out(planted: Callable[[str], Planted[HiddenCase]], version: str) -> None:
    """Of all chats that were written in at least twice and that are no run, hidden on purpose, or damaged otherwise."""
    store = planted(version)
    listed = set(store.home.listed(version, include_archived=True, project_compression_tips=False))
    found = {finding.key for finding in store.findings}
    chats = {
        each.id(row.name)
        for each in store.cases
        for row in each.sessions
        if row.said.count("u") > 1
        and not any(word in each.name for word in ("run", "subagent", "delegate", "on purpose", "its own", "is gone"))
    }
    # A continuation is listed through its first row; a marked row below a row that is no chat of its own is a run.
    through = {each.id("c") for each in store.cases if each.name in ("a continuation", "a marked child of another")}
    inner = {each.id("s") for each in store.cases if each.name == "the word elsewhere"}
    assert inner <= listed
    assert not found & listed - {"a continuation, the mark taken off its parent: c"}
    assert chats - through - listed == set(found & chats)


@pytest.mark.parametrize("version", ["0.22.2"])
def test_rows_asked_about_one_by_one_are_judged_alike(
    planted: Callable[[str], Planted[HiddenCase]], version: str
) -> None:
    store = planted(version)
    assert store.asked_one_by_one(CHECK) == by_key(store.findings)


def tool_chat(name: str, source: str, *questions: str, **columns: Any) -> list[Step]:
    """An untitled chat with a tool's message, as any short one is."""
    steps = [call("create_session", name, source, **({"model_config": {"max_iterations": 90}} | columns))]
    for question in questions:
        steps += [
            call("append_message", name, "user", question),
            call("append_message", name, "assistant", "", tool_calls=[{"id": "c1", "function": {"name": "terminal"}}]),
            call("append_message", name, "tool", "a.txt", tool_call_id="c1", tool_name="terminal"),
            call("append_message", name, "assistant", "done"),
        ]
    return steps


def before_the_upgrade(home: Home) -> None:
    """Chats of 0.13.0, and what 0.13.0 leaves of a delegate whose parent was deleted."""
    steps = [
        *tool_chat("chat", "cli", "which files are there?", "and here?"),
        *tool_chat("from-a-phone", "telegram", "which files?", user_id="u1", model_config=None),
        *tool_chat("delegate", "cli", "look for files"),
        *tool_chat("cron_job_1", "cron", "write the report", "again"),
        *tool_chat("titled", "cli", "hello"),
        call("set_session_title", "titled", "mine"),
    ]
    home.run("0.13.0", steps)


CHATS = {"chat", "from-a-phone"}


@pytest.mark.parametrize("release", [get("0.17.0"), get("0.19.0"), get("0.22.2")], ids=str)
def test_what_an_upgrade_marks_is_found(home: Home, release: Release) -> None:
    before_the_upgrade(home)
    assert set(home.listed("0.13.0")) >= CHATS
    assert findings_of(home.store, CHECK) == []
    home.run(release, [open_store()])
    assert home.listed(release) == ["titled"]
    found = findings_of(home.store, CHECK, home=home.path)
    assert {f.key for f in found if f.bucket is UNSAFE} == CHATS
    assert {f.key: f.severity for f in found if f.bucket is not UNSAFE} == {"delegate": Severity.INFO}


# Deliberately wrong variants: each must get at least one case wrong.

_MARKED = hidden_chats._marked_sql
_ANY_MESSAGE = "(SELECT count(*) FROM messages m WHERE m.session_id = sessions.id)"
_LIKE = "coalesce(sessions.model_config, '') LIKE '%__orphaned__%'"


VARIANTS: dict[str, tuple[str, object]] = {
    "a word in the config is a mark": ("_marked_sql", lambda _shape: _LIKE),
    "only rows without a parent": ("_marked_sql", lambda shape: f"{_MARKED(shape)} AND parent_session_id IS NULL"),
    "every mark hides a chat": ("_marked_sql", lambda _shape: "model_config LIKE '%_delegate_from%'"),
    "runs are chats": ("_RUNS", ("x",)),
    "one message is enough": ("_personal_sql", lambda _shape: "1"),
    "titles and users say nothing": ("_personal_sql", lambda _shape: "0"),
    "a continuation is asked by itself": ("_head_is_a_chat", lambda _view, _session: False),
    "what it goes on does not matter": ("_head_is_a_chat", lambda _view, _session: True),
    "every child hangs loose": ("_unjoined_sql", lambda _shape: "sessions.parent_session_id IS NOT NULL"),
    "no child does": ("_unjoined_sql", lambda _shape: "0"),
    "any message is a person's": ("_said_sql", lambda _shape: _ANY_MESSAGE),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_wrong_variant_fails(
    planted: Callable[[str], Planted[HiddenCase]], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    store = planted("0.22.2")
    what, wrong = VARIANTS[name]
    monkeypatch.setattr(hidden_chats, what, wrong)
    found = findings_of(store.home.store, CHECK, home=store.home.path, now=store.now)
    assert wrong_cases(store.cases, found) != {}


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ('{"_delegate_from":"__orphaned__"}', "{}"),
        ('{"a": 1, "_delegate_from": "__orphaned__"}', '{"a": 1}'),
        ('{"_delegate_from":"__orphaned__","a":1.50}', '{"a":1.50}'),
        ('{"a":"\\u00e9","_delegate_from":"__orphaned__","b":[1, 2]}', '{"a":"\\u00e9","b":[1, 2]}'),
        ('{ "a":1 ,\n "_delegate_from" : "__orphaned__" ,\n "b":2 }', '{ "a":1 ,\n "b":2 }'),
        (
            '{"x": {"_delegate_from": "__orphaned__"}, "_delegate_from": "__orphaned__"}',
            '{"x": {"_delegate_from": "__orphaned__"}}',
        ),
        (
            '{"x": "\\"_delegate_from\\":\\"__orphaned__\\",", "_delegate_from":"__orphaned__", "y": NaN}',
            '{"x": "\\"_delegate_from\\":\\"__orphaned__\\",", "y": NaN}',
        ),
        ('{"x": {"_delegate_from": "__orphaned__"}}', None),
        ('{"\\u005fdelegate_from": "__orphaned__"}', None),
        ('["_delegate_from", "__orphaned__"]', None),
        ('{"_delegate_from": "__orphaned__"', None),
        ("[" * 100_000, None),
        ("", None),
    ],
)
def test_the_mark_is_cut_out_of_the_text(text: str, left: str | None) -> None:
    assert without_mark(text) == left
