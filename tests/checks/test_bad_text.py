"""bad-text: found where a release cannot read, write out or search on, and told as bad as it is for the release."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from checks import bad_text
from checks.bad_text import CHECK
from hermes_doctor.engine.model import Check, Finding, RowRule, Safety, Severity
from hermes_doctor.engine.rows import ask, find
from hermes_doctor.store.text_faults import TextFault
from tests.checks.support import Planted, findings_of, once_a_release
from tests.oracle.home import CallError, Home
from tests.oracle.releases import CHAINS
from tests.oracle.steps import Step, blob, call, sql
from tests.oracle.templates import LivedIn
from tests.store.views import view_of

STORES = ("0.13.0", "0.19.0", "0.22.2")
ERROR, WARNING, INFO = Severity.ERROR, Severity.WARNING, Severity.INFO

LATIN, HALF, NUL = b"caf\xe9 noir", b"a\xed\xa0\xbdb", b"a\0b"
ESCAPED = b'\0json:[{"type": "text", "text": "\\ud83d"}]'
PAIR = b'\0json:[{"type": "text", "text": "\\ud83d\\ude00"}]'
CALLS = b'[{"id": "c", "type": "function", "function": {"name": "t", "arguments": "\\ud83d"}}]'


@dataclass(frozen=True)
class TextCase:
    """A session whose last message, or whose own row, holds these bytes in that column.

    ``severity``: what is wanted, None for nothing; ``deep``: the same where only ``--deep`` looks.
    """

    name: str
    column: str
    raw: bytes
    severity: Severity | None = None
    deep: Severity | None = None
    table: str = "messages"
    active: int = 1
    as_blob: bool = False

    @property
    def wanted(self) -> Severity | None:
        """What is wanted of a deep scan."""
        return self.deep if self.severity is None else self.severity


CASES = (
    TextCase("latin-1 in content", "content", LATIN, ERROR),
    TextCase("half a pair as bytes", "content", HALF, ERROR),
    TextCase("rewound", "content", LATIN, WARNING, active=0),
    TextCase("a half pair escaped", "content", ESCAPED, WARNING),
    TextCase("the same, rewound", "content", ESCAPED, INFO, active=0),
    TextCase("in calls", "tool_calls", CALLS, WARNING),
    TextCase("in reasoning that only the model gets", "reasoning_details", CALLS, deep=INFO),
    TextCase("a NUL in a tool's output", "content", NUL, INFO),
    TextCase("a NUL alone", "content", b"\0", INFO),
    TextCase("latin-1 in reasoning", "reasoning", LATIN, deep=ERROR),
    TextCase("latin-1 in a call's id", "tool_call_id", LATIN, deep=ERROR),
    TextCase("latin-1 in calls", "tool_calls", b'["\xe9"]', deep=ERROR),
    TextCase("an emoji in structured content", "content", PAIR),
    TextCase("a backslash and letters", "content", b'\0json:["\\\\ud83d"]'),
    TextCase("an emoji in calls", "tool_calls", CALLS.replace(b"\\ud83d", b"\\ud83d\\ude00")),
    TextCase("many languages", "content", "Привет 你好 😀 \ufffd".encode()),
    TextCase("escapes that a person typed", "content", rb"what does \ud83d mean?"),
    TextCase("a blob, no text", "content", LATIN, as_blob=True),
    TextCase("title", "title", LATIN, ERROR, table="sessions"),
    TextCase("prompt", "system_prompt", HALF, ERROR, table="sessions"),
    TextCase("user", "user_id", LATIN, ERROR, table="sessions"),
    TextCase("a NUL in the prompt", "system_prompt", NUL, INFO, table="sessions"),
    TextCase("half a pair in the config", "model_config", b'{"a": "\\ud83d"}', INFO, table="sessions"),
    TextCase("an emoji in the config", "model_config", b'{"a": "\\ud83d\\ude00"}', table="sessions"),
)


def planting(case: TextCase, version: str) -> list[Step]:
    steps = [
        call("create_session", case.name, "cli", model="test-model"),
        call("append_message", case.name, "user", "a prompt"),
        call("append_message", case.name, "assistant", "a reply"),
    ]
    value = "?" if case.as_blob else "CAST(? AS TEXT)"
    where = "id = (SELECT max(id) FROM messages)" if case.table == "messages" else f"id = '{case.name}'"
    steps.append(sql(f"UPDATE {case.table} SET {case.column} = {value} WHERE {where}", blob(case.raw)))
    if case.active == 0 and version != "0.13.0":
        steps.append(sql(f"UPDATE messages SET active = 0 WHERE {where}"))
    return steps


def plant_cases(home: Home, version: str, cases: Sequence[TextCase] = CASES) -> Planted[TextCase]:
    chosen = tuple(case for case in cases if case.active or version != "0.13.0")
    home.run(version, [step for case in chosen for step in planting(case, version)])
    return Planted(home, 0.0, chosen, tuple(findings_of(home.store, CHECK, home=home.path)))


@pytest.fixture(scope="module")
def planted(oracle: None, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Planted[TextCase]]:
    return once_a_release(plant_cases, tmp_path_factory)


def found_deep(home: Home, check: Check = CHECK, *, deep: bool = True) -> list[Finding]:
    with view_of(home.store, home=home.path) as view:
        view.deep = deep
        return list(find([check], view))


def wrong_cases(cases: Sequence[TextCase], findings: Sequence[Finding], *, deep: bool = False) -> dict[str, Any]:
    """What was said and not wanted, or the other way; a row found twice counts as said wrong."""
    said: dict[str, list[tuple[Severity, object]]] = {}
    for finding in findings:
        said.setdefault(str(finding.session), []).append((finding.severity, tuple(finding.detail["columns"] or ())))  # type: ignore[arg-type]  # columns are a list
    wrong = {}
    for case in cases:
        severity = case.wanted if deep else case.severity
        wanted = [] if severity is None else [(severity, (case.column,))]
        if said.get(case.name, []) != wanted:
            wrong[case.name] = said.get(case.name)
    names = {case.name for case in cases}
    return wrong | {name: found for name, found in said.items() if name not in names}


@pytest.mark.parametrize("version", STORES)
def test_each_case_is_judged_right(planted: Callable[[str], Planted[TextCase]], version: str) -> None:
    store = planted(version)
    assert wrong_cases(store.cases, store.findings) == {}
    deep = found_deep(store.home)
    assert wrong_cases(store.cases, deep, deep=True) == {}
    for finding in (*store.findings, *deep):
        assert (finding.fix, finding.action, finding.refusal) == (Safety.NONE, None, None)
        assert isinstance(finding.key, int if finding.table == "messages" else str)
        assert "caf" not in str(finding)
        assert "noir" not in str(finding)


@pytest.mark.parametrize("deep", [False, True])
def test_rows_asked_about_one_by_one_are_judged_alike(planted: Callable[[str], Planted[TextCase]], deep: bool) -> None:
    store = planted("0.22.2")
    found = found_deep(store.home, deep=deep)
    with view_of(store.home.store, home=store.home.path) as view:
        view.deep = deep
        for table in ("messages", "sessions"):
            keys = [row[0] for row in view.rows(f"SELECT id FROM {table}")]
            asked = [finding for key in keys for finding in ask(CHECK, [key], view, table)]
            assert sorted(map(repr, asked)) == sorted(repr(finding) for finding in found if finding.table == table)


@pytest.mark.parametrize("version", ["0.13.0", "0.22.2"])
def test_the_release_suffers_as_the_severity_says(home: Home, oracle: None, version: str) -> None:
    """An error: the whole chat, or list, is refused. A warning: it loads, and cannot be written out."""
    messages = [case for case in CASES if case.table == "messages" and case.wanted and case.active]
    steps = [step for case in messages for step in planting(case, version)]
    readers = ("get_messages_as_conversation", "get_messages")
    steps += [call(name, case.name) for case in messages for name in readers]
    # One session is enough for the list of all: these are planted and taken back in turn.
    sessions = [case for case in CASES if case.table == "sessions" and case.wanted is ERROR]
    for case in sessions:
        undo = sql(f"UPDATE sessions SET {case.column} = NULL WHERE id = ?", case.name)
        steps += [*planting(case, version), call("list_sessions_rich"), call("get_session", case.name), undo]
    answers = home.run(version, steps, check=False)
    of_messages = answers[4 * len(messages) :][: 2 * len(messages)]
    for case, loaded, shown in zip(messages, of_messages[::2], of_messages[1::2], strict=True):
        if case.wanted is ERROR:
            for answer in (loaded, shown):
                assert isinstance(answer, CallError), case.name
                assert "Could not decode to UTF-8" in answer.text
        else:
            assert len(loaded) == len(shown) == 2, case.name
            assert can_be_written(shown) is (case.wanted is INFO), case.name
    of_sessions = answers[6 * len(messages) :]
    for n, case in enumerate(sessions):
        listed, session, undone = of_sessions[7 * n + 4 : 7 * n + 7]
        assert isinstance(listed, CallError), case.name
        assert isinstance(session, CallError), case.name
        assert undone == []


def can_be_written(answer: Any) -> bool:
    """As the releases' export and dashboard do it."""
    try:
        json.dumps(answer, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def test_previews_end_at_a_nul(home: Home, oracle: None) -> None:
    home.run("0.22.2", [call("create_session", "s", "cli"), call("append_message", "s", "user", "before\0after")])
    listed, found, loaded = home.run(
        "0.22.2",
        [call("list_sessions_rich"), call("search_messages", "after"), call("get_messages_as_conversation", "s")],
    )
    assert [row["preview"] for row in listed] == ["before"]
    # The index reads on, and so does Python.
    assert len(found) == 1
    assert loaded[0]["content"] == "before\0after"
    (finding,) = findings_of(home.store, CHECK, home=home.path)
    assert (finding.severity, finding.detail["places"]) == (INFO, ["content: NUL at byte 6"])


def test_rows_of_other_tables(home: Home, oracle: None) -> None:
    prompt = call("create_session", "s", "cli", system_prompt="a prompt")
    bad = blob(LATIN)
    home.run(
        "0.22.2",
        [
            prompt,
            sql("UPDATE system_prompts SET prompt = CAST(? AS TEXT)", bad),
            sql("INSERT INTO gateway_routing VALUES ('', 'key', CAST(? AS TEXT), 1)", bad),
            sql("INSERT INTO state_meta VALUES ('key', CAST(? AS TEXT))", bad),
            sql("INSERT INTO compression_locks VALUES (CAST(? AS TEXT), 'holder', 1, 1)", bad),
            sql("INSERT INTO session_turn_leases VALUES ('s', 'a' || char(0), 1, 1)"),
        ],
    )
    found = {finding.table: finding for finding in findings_of(home.store, CHECK, home=home.path)}
    assert {table: finding.severity for table, finding in found.items()} == {
        "system_prompts": ERROR,
        "gateway_routing": ERROR,
        "state_meta": WARNING,
        "compression_locks": WARNING,
        "session_turn_leases": INFO,
    }
    assert found["compression_locks"].key == found["compression_locks"].session == LATIN
    assert found["gateway_routing"].key == ("", "key")
    listed, routes, other = home.run(
        "0.22.2", [call("list_sessions_rich"), call("load_gateway_routing_entries"), call("get_meta", "x")], check=False
    )
    assert isinstance(listed, CallError)
    assert isinstance(routes, CallError)
    assert other is None


def test_several_faults_of_a_row_are_one_finding(home: Home, oracle: None) -> None:
    case = CASES[0]
    both = sql("UPDATE messages SET reasoning = 'a' || char(0), content = ? || content WHERE id = 2", "é")
    home.run("0.22.2", [*planting(case, "0.22.2"), both])
    for findings in (findings_of(home.store, CHECK, home=home.path), found_deep(home)):
        (finding,) = findings
        assert finding.severity is ERROR
        assert finding.summary == "content holds bytes that are no text: hermes cannot load the chat"
        assert finding.detail == {
            "columns": ["content", "reasoning"],
            "kinds": ["invalid bytes", "NUL"],
            "places": ["content: invalid bytes at byte 5", "reasoning: NUL at byte 1"],
        }


@pytest.mark.parametrize("chain", [("0.22.2",), CHAINS[0], CHAINS[2]], ids="+".join)
def test_a_home_lived_in_is_silent(lived_in: LivedIn, chain: tuple[str, ...]) -> None:
    home = lived_in(*chain).home
    assert found_deep(home) == []


def rule_of(condition: str, **functions: Callable[..., Any]) -> RowRule:
    (rule, *_others) = CHECK.rules
    assert isinstance(rule, RowRule)
    return replace(rule, condition=lambda _shape: condition, functions=functions)


def invalid(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return True
    return False


#: A multi-byte character is one to length(): so lone bytes, which are one as well, are missed. A NUL at the beginning
#: ends a text for length(). Not ASCII is not yet wrong, so that alone finds the same. Escapes and NUL are ASCII.
WRONG_CONDITIONS: dict[str, RowRule] = {
    "by lengths": rule_of("length(content) <> octet_length(content)"),
    "by bytes alone": rule_of("invalid(CAST(coalesce(content, '') AS BLOB))", invalid=invalid),
    "by NUL alone": rule_of("instr(CAST(content AS BLOB), x'00')"),
}


@pytest.mark.parametrize("name", WRONG_CONDITIONS)
def test_wrong_conditions_are_caught(planted: Callable[[str], Planted[TextCase]], name: str) -> None:
    store = planted("0.22.2")
    wrong = replace(CHECK, rule=(WRONG_CONDITIONS[name], *CHECK.rules[1:]))
    assert wrong_cases(store.cases, findings_of(store.home.store, wrong, home=store.home.path)) != {}


@pytest.mark.parametrize("name", ["every half pair is an error", "the sentinel is a NUL", "any escape", "put away too"])
def test_wrong_verdicts_are_caught(
    planted: Callable[[str], Planted[TextCase]], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    store = planted("0.22.2")
    right = bad_text._severity
    match name:
        case "every half pair is an error":
            monkeypatch.setattr(bad_text, "_UNREADABLE", tuple(TextFault)[:3])
        case "the sentinel is a NUL":
            monkeypatch.setattr("hermes_doctor.store.text_faults.SENTINEL", "\0JSON:")
        case "any escape":
            pattern = re.compile(r"(?:[^\\]|\\(?!ud))*+", re.S)
            monkeypatch.setattr("hermes_doctor.store.text_faults._WHOLE_ESCAPES", pattern)
        case _:
            monkeypatch.setattr(
                bad_text, "_severity", lambda table, row, fault: right(table, {**row, "active": 1}, fault)
            )
    assert wrong_cases(store.cases, findings_of(store.home.store, CHECK, home=store.home.path)) != {}
