"""broken-turns: what the releases repair when they load a chat, what they leave, and wrong variants of the rules."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from checks.broken_turns import CHECK
from hermes_doctor.engine.model import Bucket, Finding, Severity
from hermes_doctor.store import turns
from tests.checks.release_says import release_says
from tests.checks.support import Planted, by_key, findings_of, once_a_release
from tests.oracle.history import SUMMARY_PREFIX
from tests.oracle.home import Home
from tests.oracle.releases import NEWEST, get
from tests.oracle.steps import Step, open_store, sql_many

STORES = ("0.13.0", "0.19.0", "0.22.2")

#: What a case comes to: users in a row, replies missing, calls unanswered, answers to no call.
Counts = tuple[int, int, int, int]
CLEAN: Counts = (0, 0, 0, 0)

Row = dict[str, Any]


def said(content: str = "x", **cells: Any) -> Row:
    return {"role": "user", "content": content, **cells}


def reply(content: str = "y", **cells: Any) -> Row:
    return {"role": "assistant", "content": content, "finish_reason": "stop", **cells}


def calls(*ids: Any, **cells: Any) -> Row:
    named = [{"id": each, "call_id": each, "function": {"name": "terminal", "arguments": "{}"}} for each in ids]
    return {"role": "assistant", "content": "", "tool_calls": json.dumps(named), "finish_reason": "tool_calls"} | cells


def output(call: Any, **cells: Any) -> Row:
    return {"role": "tool", "content": "z" * 9000, "tool_call_id": call, **cells}


SUMMARY = f"{SUMMARY_PREFIX} they spoke"
CODEX = [{"id": "fc_1", "call_id": "call_1", "response_item_id": "fc_1"}]


@dataclass(frozen=True)
class Case:
    """Rows of one session. ``repaired``: whether `repair_message_sequence` of 0.22.2 changes it; None: it goes by more,

    or does more than is counted (it joins notices with what a user said).
    """

    name: str
    rows: Sequence[Row]
    counts: Counts = CLEAN
    end: str | None = "cli_close"
    repaired: bool | None = False
    since: str = "0.13.0"


HIDDEN: Row = {"active": 0}
CASES = (
    Case("plain", [said(), reply(), said(), reply()]),
    Case("with tools", [said(), calls("a"), output("a"), calls("b"), output("b"), reply()]),
    Case("two calls at once", [said(), calls("a", "b"), output("b"), output("a"), reply()]),
    Case("one id for ever", [said(), calls("x"), output("x"), calls("x"), output("x"), reply()]),
    # Upstream drops the second answer: the ids of one row name one call there. Both calls were answered all the same.
    Case("one id for two calls", [said(), calls("x", "x"), output("x"), output("x"), reply()], repaired=None),
    Case("by another name", [said(), calls(tool_calls=json.dumps(CODEX)), output("call_1"), reply()]),
    Case("two names in one", [said(), calls("call_1"), output("call_1|fc_1"), reply()]),
    Case("two users", [said(), said(), reply()], (1, 0, 0, 0), repaired=True),
    Case("three users", [said(), said(), said(), reply()], (2, 0, 0, 0), repaired=True),
    Case("a user behind answers", [said(), calls("a"), output("a"), said(), reply()], (0, 1, 0, 0)),
    Case("call without answer", [said(), calls("a"), said(), reply()], (0, 0, 1, 0), repaired=True),
    Case("call before a reply", [said(), calls("a"), reply()], (0, 0, 1, 0), repaired=True),
    Case("one of two answered", [said(), calls("a", "b"), output("a"), reply()], (0, 0, 1, 0), repaired=True),
    Case("answer alone", [said(), output("a"), reply()], (0, 0, 0, 1), repaired=True),
    Case("answer behind a reply", [said(), reply(), output("a")], (0, 0, 0, 1), repaired=True),
    Case("answer twice", [said(), calls("a"), output("a"), output("a"), reply()], (0, 0, 0, 1), repaired=True),
    Case("answer to another", [said(), calls("call_10"), output("call_1"), reply()], (0, 0, 1, 1), repaired=True),
    Case("answer too late", [said(), calls("a"), said(), output("a"), reply()], (0, 0, 1, 1), repaired=True),
    # 0.22.2 leaves an answer without an id to the last look before a request, which drops it.
    Case("answer to nobody", [said(), calls("a"), output(None), reply()], (0, 0, 1, 1), repaired=True),
    Case(
        "a call that was hidden",
        [said(), calls("a", **HIDDEN), output("a"), reply()],
        (0, 0, 0, 1),
        repaired=True,
        since="0.16.0",
    ),
    # The last turn: over where the session is, still under way where it is open or goes on elsewhere.
    Case("last word a user's", [said(), reply(), said()], (0, 1, 0, 0)),
    Case("last word a tool's", [said(), calls("a"), output("a")], (0, 1, 0, 0)),
    Case("last word a call", [said(), calls("a")], (0, 0, 1, 0), repaired=True),
    Case("open, a user waits", [said(), reply(), said()], end=None),
    Case("open, a call waits", [said(), calls("a", "b"), output("a")], end=None, repaired=True),
    Case("open, broken before", [said(), said(), reply(), said()], (1, 0, 0, 0), end=None, repaired=True),
    Case("compressed in a turn", [said(), calls("a"), output("a")], end="compression"),
    # What is no turn.
    Case(
        "a notice between",
        [said(), reply(), said(display_kind="model_switch"), said(), reply()],
        since="0.20.0",
        repaired=None,
    ),
    Case("a notice at the end", [said(), reply(), said(display_kind="process_complete")], since="0.20.0"),
    Case("steered", [said(), calls("a"), output("a"), said(display_kind="steer"), reply()], since="0.21.5"),
    Case(
        "two users, a notice between",
        [said(), said(display_kind="model_switch"), said(), reply()],
        (1, 0, 0, 0),
        since="0.20.0",
        repaired=True,
    ),
    Case("overheard", [said(observed=1), said(observed=1), said(), reply()], since="0.15.2", repaired=None),
    Case("behind a summary", [said(SUMMARY), said(), reply()], repaired=None),
    Case(
        "a summary by its mark", [said("of old", _compressed_summary=1), said(), reply()], since="0.20.6", repaired=None
    ),
    Case("two users behind a summary", [said(SUMMARY), said(), said(), reply()], (1, 0, 0, 0), repaired=True),
    Case("rewound", [said(), reply(), said(**HIDDEN), reply(**HIDDEN), said(), reply()], since="0.16.0"),
    Case("a user rewound", [said(), said(**HIDDEN), reply()], since="0.16.0"),
    Case("compacted", [said(active=0, compacted=1), said(SUMMARY), reply()], since="0.18.0"),
    Case("notes of the gateway", [{"role": "session_meta", "content": "{}"}, said(), reply()]),
    Case("two replies", [said(), reply(), reply(), said(), reply()], repaired=True),
    Case("no calls in a list", [said(), reply(tool_calls="[]"), said(), reply()]),
    # Cells that cannot be read say nothing of who answered whom.
    Case("broken calls", [said(), calls(tool_calls="[{"), output("a"), reply()], repaired=None),
    Case(
        "calls in a string",
        [said(), calls(tool_calls=json.dumps(calls("a")["tool_calls"])), output("a"), reply()],
        repaired=None,
    ),
)


def plant_cases(home: Home, version: str) -> Planted[Case]:
    chosen = [case for case in CASES if get(version).since(case.since)]
    steps: list[Step] = [open_store()]
    now = time.time()
    for case in chosen:
        ended = None if case.end is None else now
        insert = "INSERT INTO sessions (id, source, started_at, ended_at, end_reason) VALUES (?, 'cli', ?, ?, ?)"
        steps.append(sql_many(insert, [[case.name, now, ended, case.end]]))
        for row in case.rows:
            cells = {"session_id": case.name, "timestamp": now, **row}
            marks = ", ".join("?" for _ in cells)
            steps.append(sql_many(f"INSERT INTO messages ({', '.join(cells)}) VALUES ({marks})", [[*cells.values()]]))
    home.run(version, steps)
    return Planted(home, now, tuple(chosen), tuple(findings_of(home.store, CHECK, home=home.path, now=now)))


@pytest.fixture(scope="module")
def planted(oracle: None, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Planted[Case]]:
    return once_a_release(plant_cases, tmp_path_factory)


def wrong_cases(cases: Sequence[Case], findings: Sequence[Finding]) -> dict[str, Counts]:
    """The cases that come to something else than they should, and to what."""
    names = ("users_in_a_row", "replies_missing", "calls_unanswered", "answers_to_no_call")
    come_to = {str(f.key): tuple(f.detail[name] for name in names) for f in findings}
    return {case.name: come_to.get(case.name, CLEAN) for case in cases if come_to.get(case.name, CLEAN) != case.counts}  # type: ignore[misc]  # four of them


@pytest.mark.parametrize("version", STORES)
def test_each_case_is_counted_right(planted: Callable[[str], Planted[Case]], version: str) -> None:
    store = planted(version)
    assert wrong_cases(store.cases, store.findings) == {}
    assert {finding.key for finding in store.findings} == {case.name for case in store.cases if case.counts != CLEAN}
    for finding in store.findings:
        assert (finding.severity, finding.bucket, finding.table) == (Severity.INFO, Bucket.REPORT, "sessions")
    assert store.asked_one_by_one(CHECK) == by_key(store.findings)


def test_a_finding_says_what_and_how_often(planted: Callable[[str], Planted[Case]]) -> None:
    found = {finding.key: finding for finding in planted("0.22.2").findings}
    assert found["three users"].summary == "2 user messages right behind another"
    assert found["answer to another"].summary == "1 call never answered, 1 answer to no call"
    assert found["open, broken before"].detail["ended"] is False


REPAIR = "from agent.agent_runtime_helpers import repair_message_sequence as repair"
REPAIRS = "repair(None, store.get_messages_as_conversation(session))"


def test_it_finds_what_the_release_repairs(planted: Callable[[str], Planted[Case]]) -> None:
    store = planted("0.22.2")
    repaired = release_says(store.home, NEWEST, REPAIR, REPAIRS, [case.name for case in store.cases])
    expected = {case.name: case.repaired for case in store.cases if case.repaired is not None}
    assert {name: bool(repaired[name]) for name in expected} == expected
    # What it finds and the release leaves alone is a reply that is missing, and nothing else.
    unrepaired = [finding for finding in store.findings if not repaired[str(finding.key)]]
    assert {finding.detail["replies_missing"] for finding in unrepaired} == {1}


def test_too_many_doubtful_sessions_are_all_sessions(
    planted: Callable[[str], Planted[Case]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "REMEMBERED", 2)
    store = planted("0.19.0")
    assert by_key(findings_of(store.home.store, CHECK, home=store.home.path)) == by_key(store.findings)


def _by_id_alone(self: turns.Turns, cell: Any) -> None:
    """As upstream once did: an id that was answered once is never answered again."""
    seen = self.__dict__.setdefault("seen", set())
    ids = turns._variants(cell)
    if ids & seen:
        self.answers_to_no_call += 1
        return
    seen |= ids
    _ANSWER(self, cell)


_ANSWER = turns.Turns._answer


@pytest.mark.parametrize(
    ("target", "wrong"),
    [
        ("hermes_doctor.store.turns.Turns._answer", _by_id_alone),
        ("hermes_doctor.store.turns.Turns.end", lambda self: None),
        ("hermes_doctor.store.turns.Turns._close", lambda self: None),
        ("hermes_doctor.store.turns._said_sql", lambda shape: "1"),
        ("hermes_doctor.store.turns.is_summary_sql", lambda shape: "0"),
        ("hermes_doctor.store.turns.COMPRESSION", "nothing"),
        ("hermes_doctor.store.turns._variants", lambda cell: frozenset({cell}) - {None}),
        # Not every row looked at: users only, calls and answers only.
        ("checks.broken_turns.doubtful_sql", lambda shape: f"role = 'user' AND {turns.doubtful_sql(shape)}"),
        ("checks.broken_turns.doubtful_sql", lambda shape: f"role <> 'user' AND {turns.doubtful_sql(shape)}"),
    ],
)
def test_wrong_variants_fail(
    target: str, wrong: Any, planted: Callable[[str], Planted[Case]], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = planted("0.22.2")
    monkeypatch.setattr(target, wrong)
    assert wrong_cases(store.cases, findings_of(store.home.store, CHECK, home=store.home.path, now=store.now))
