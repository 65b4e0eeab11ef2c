"""lone-handoffs: what hermes itself would not call a model for, its look-alikes, and wrong variants."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from checks.lone_handoffs import CHECK
from hermes_doctor.engine.model import Bucket, Finding, Severity
from hermes_doctor.store import handoff_rows
from hermes_doctor.store.clocks import DAY, HOUR, MINUTE
from hermes_doctor.store.handoff_rows import END_OF_SUMMARY
from tests.checks.release_says import release_says
from tests.checks.support import Planted, by_key, findings_of, once_a_release
from tests.oracle.history import SUMMARY_PREFIX
from tests.oracle.home import Home
from tests.oracle.releases import CHAINS, NEWEST, get
from tests.oracle.steps import Step, call, open_store, sql, sql_many
from tests.oracle.templates import LivedIn

STORES = ("0.13.0", "0.19.0", "0.20.6", "0.22.2")

Row = dict[str, Any]


def said(content: str = "x", **cells: Any) -> Row:
    return {"role": "user", "content": content, **cells}


def reply(content: str = "y", **cells: Any) -> Row:
    return {"role": "assistant", "content": content, "finish_reason": "stop", **cells}


BEGINNING = f"{SUMMARY_PREFIX} Earlier turns were compacted into the summary below."
CALL = reply(finish_reason="tool_calls", tool_calls='[{"id": "a", "function": {"name": "f", "arguments": "{}"}}]')
OUTPUT = {"role": "tool", "content": "z", "tool_call_id": "a"}
PRIOR = (
    "[PRIOR CONTEXT — for reference only; not a new message]\nand now?\n\n"
    "[END OF PRIOR CONTEXT — COMPACTION SUMMARY BELOW]\n"
)
#: What a compaction writes where there never was a user.
NOBODY = (
    "Continue from the compressed conversation context above."
    " This marker exists because no human user turn was available."
)
WARNING, INFO = Severity.WARNING, Severity.INFO


@dataclass(frozen=True)
class Case:
    """Rows of one session, and how bad it is; None: it is no fault.

    ``driven``: whether 0.22.2 would say of these rows that the summary alone would drive the next model call; None
    where its test wants the whole opening of a summary, which differs from release to release.
    """

    name: str
    rows: Sequence[Row]
    severity: Severity | None = None
    end: str | None = None
    age: float = 3 * DAY
    driven: bool | None = None
    since: str = "0.13.0"
    lock: bool = False


SUMMARY = said(f"{BEGINNING} they spoke of files\n\n{END_OF_SUMMARY}")
MARKED = {"_compressed_summary": 1}
CASES = (
    Case("answered", [SUMMARY, reply()], WARNING),
    Case("without a line at its end", [said(f"{BEGINNING} they spoke"), reply()], WARNING),
    Case("of old", [said("[CONTEXT SUMMARY]: they spoke"), reply()], WARNING, driven=True),
    Case("behind space", [said("\n [CONTEXT SUMMARY]: they spoke"), reply()], WARNING, driven=True),
    Case("by its mark", [said("they spoke", **MARKED), reply()], WARNING, since="0.20.6", driven=True),
    Case(
        "by its opening and mark", [said(SUMMARY["content"], **MARKED), reply()], WARNING, since="0.20.6", driven=True
    ),
    Case("behind an answer", [reply(), said("[CONTEXT SUMMARY]: they spoke")], WARNING, driven=True),
    Case(
        "twice",
        [said("[CONTEXT SUMMARY]: one"), reply(), said("[CONTEXT SUMMARY]: two"), reply()],
        WARNING,
        driven=True,
    ),
    Case("user rewound", [SUMMARY, reply(), said(active=0), reply(active=0)], WARNING, since="0.16.0"),
    Case(
        "work done before it",
        [said(active=0), CALL | {"active": 0}, OUTPUT | {"active": 0}, SUMMARY, reply()],
        WARNING,
        since="0.18.0",
    ),
    Case(
        "with a notice",
        [said("[CONTEXT SUMMARY]: it"), reply(), said(display_kind="model_switch")],
        WARNING,
        since="0.20.0",
        driven=True,
    ),
    Case("nobody ever spoke", [said("[CONTEXT SUMMARY]: it"), reply(), said(NOBODY)], WARNING, driven=True),
    # Ends: taken back by hermes, put there by a person, by a compression.
    Case("reaped", [SUMMARY, reply()], WARNING, end="ws_orphan_reap"),
    Case("closed", [SUMMARY, reply()], INFO, end="cli_close"),
    Case("compressed again", [SUMMARY, reply()], end="compression"),
    # In use.
    Case("just within a day", [SUMMARY, reply()], age=DAY - MINUTE),
    Case("just past a day", [SUMMARY, reply()], WARNING, age=DAY + MINUTE),
    Case("being compressed", [SUMMARY, reply()], since="0.16.0", lock=True),
    # A user's own words.
    Case("then a user", [said("[CONTEXT SUMMARY]: it"), said(), reply()], driven=False),
    Case("a user before it", [said(), said("[CONTEXT SUMMARY]: it"), reply()], driven=False),
    Case("a user behind it all", [said("[CONTEXT SUMMARY]: it"), reply(), said()], driven=False),
    Case("steered", [said("[CONTEXT SUMMARY]: it"), said(display_kind="steer"), reply()], since="0.21.5", driven=False),
    Case("words behind the line", [said(SUMMARY["content"] + "\n\nand now?"), reply()]),
    Case("words before it", [said(f"{PRIOR}{BEGINNING} it", **MARKED), reply()], since="0.20.6"),
    Case("a picture with it", [said('\0json:[{"type": "text", "text": "x"}]'), reply()], driven=False),
    # Nothing that is finished.
    Case("nothing behind", [SUMMARY]),
    # A call that nobody answered is dropped at load by 0.22.2; the turn that made it still has it.
    Case("at work", [said("[CONTEXT SUMMARY]: it"), CALL]),
    Case("work is done", [said("[CONTEXT SUMMARY]: it"), CALL, OUTPUT, reply()], driven=False),
    Case("cut off", [SUMMARY, reply(finish_reason="length")]),
    Case("a copy that does not say", [SUMMARY, reply(finish_reason=None)]),
    # No summary, or not in a user's name.
    Case("a summary by the assistant", [reply("[CONTEXT SUMMARY]: it"), reply()], driven=True),
    Case("quoted", [said("what is [CONTEXT SUMMARY]: for?"), reply()], driven=False),
)


def plant_cases(home: Home, version: str) -> Planted[Case]:
    chosen = [case for case in CASES if get(version).since(case.since)]
    steps: list[Step] = [open_store()]
    now = time.time()
    for case in chosen:
        at = now - case.age
        insert = "INSERT INTO sessions (id, source, started_at, ended_at, end_reason) VALUES (?, 'cli', ?, ?, ?)"
        steps.append(sql(insert, case.name, at, None if case.end is None else at, case.end))
        for row in case.rows:
            cells = {"session_id": case.name, "timestamp": at, **row}
            marks = ", ".join("?" for _ in cells)
            steps.append(sql_many(f"INSERT INTO messages ({', '.join(cells)}) VALUES ({marks})", [[*cells.values()]]))
        if case.lock:
            steps.append(
                call("try_acquire_compression_lock", case.name, "pid=1:tid=1:agent=7:nonce=0", ttl_seconds=HOUR)
            )
    home.run(version, steps)
    return Planted(home, now, tuple(chosen), tuple(findings_of(home.store, CHECK, home=home.path, now=now)))


@pytest.fixture(scope="module")
def planted(oracle: None, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Planted[Case]]:
    return once_a_release(plant_cases, tmp_path_factory)


def wrong_cases(cases: Sequence[Case], findings: Sequence[Finding]) -> dict[str, Severity | None]:
    """The cases that are judged otherwise than they should be, and how."""
    judged = {finding.key: finding.severity for finding in findings}
    return {case.name: judged.get(case.name) for case in cases if judged.get(case.name) != case.severity}


@pytest.mark.parametrize("version", STORES)
def test_each_case_is_judged_right(planted: Callable[[str], Planted[Case]], version: str) -> None:
    store = planted(version)
    assert wrong_cases(store.cases, store.findings) == {}
    for finding in store.findings:
        assert (finding.bucket, finding.table, finding.session) == (Bucket.REPORT, "sessions", finding.key)
    assert store.asked_one_by_one(CHECK) == by_key(store.findings)


GUARD = "from agent.context_compressor import reference_handoff_would_drive_next_model_call as driven"
DRIVEN = "driven(store.get_messages_as_conversation(session, repair_alternation=True))"


def test_what_is_found_the_release_would_not_call_a_model_for(planted: Callable[[str], Planted[Case]]) -> None:
    """It asks no more than this: not who wrote the summary, nor whether anything was answered. 0.20.6 has the same
    guard, but does not load the mark."""
    store = planted("0.22.2")
    driven = release_says(store.home, NEWEST, GUARD, DRIVEN, [case.name for case in store.cases])
    expected = {case.name: case.driven for case in store.cases if case.driven is not None}
    assert {name: driven[name] for name in expected} == expected
    known = [finding for finding in store.findings if finding.key in expected]
    assert known
    assert all(driven[str(finding.key)] for finding in known)


def test_a_finding_says_which_rows(planted: Callable[[str], Planted[Case]]) -> None:
    found = {finding.key: finding for finding in planted("0.19.0").findings}
    assert found["closed"].summary == (
        "its only live user message is a compaction's summary; resumed without a message, it takes up old work"
    )
    assert found["answered"].summary.endswith("going on with it takes up old work")
    handoff, answer = (int(str(found["answered"].detail[name])) for name in ("handoff", "last_answer"))
    assert answer == handoff + 1


@pytest.mark.parametrize("life", [("0.13.0",), ("0.18.2",), ("0.20.6",), ("0.22.2",), CHAINS[1]], ids="→".join)
def test_a_home_lived_in_is_silent(lived_in: LivedIn, life: tuple[str, ...]) -> None:
    """It has chains of compressions, open ones and ended ones, and chats that were compacted where they are."""
    home = lived_in(*life).home
    assert findings_of(home.store, CHECK, home=home.path) == []
    assert findings_of(home.store, CHECK, home=home.path, now=time.time() + 30 * DAY) == []


def test_idle_makes_the_day_longer(planted: Callable[[str], Planted[Case]]) -> None:
    store = planted("0.13.0")
    assert findings_of(store.home.store, CHECK, home=store.home.path, now=store.now, idle_floor=4 * DAY) == []


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("OPENINGS", ("[CONTEXT COMPACTION — REFERENCE ONLY]",)),
        ("END_OF_SUMMARY", "--- THE END ---"),
        ("_PRIOR_CONTEXT", "[BEFORE]"),
        ("_PLACEHOLDER", "Go on"),
        ("_STEER", "model_switch"),
        ("IN_USE", 0.0),
        ("RECOVERABLE_REASONS", frozenset()),
        ("COMPRESSION", "nothing"),
        ("live_work", lambda view, session: None),
        ("_live", lambda shape, alias: "1"),
    ],
)
def test_wrong_variants_fail(
    name: str, wrong: Any, planted: Callable[[str], Planted[Case]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handoff_rows, name, wrong)
    store = planted("0.22.2")
    again = findings_of(store.home.store, CHECK, home=store.home.path, now=store.now)
    assert wrong_cases(store.cases, again)
