"""hidden-by-null's fix: chats are replayed as they were written, counted as they are, and taken back exactly."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from checks.counter_drift import CHECK as COUNTER_DRIFT
from checks.hidden_by_null import CHECK
from fixes.hidden_by_null import FIX
from hermes_doctor.engine.cure import Fix, Mending
from hermes_doctor.engine.model import Finding
from tests.checks.null_cases import MARKS, MISSED, SUMMARY, NullCase, without_default
from tests.checks.support import Planted, once_a_release
from tests.checks.test_hidden_by_null import plant_cases
from tests.fixes.support import Patient, change_meanwhile, outcome, there_and_back
from tests.oracle.history import CALLS, PICTURE
from tests.oracle.home import Home
from tests.oracle.steps import Step, call, open_store, sql
from tests.whole.identical import Image, difference, image_of, index_faults

STORES = ("0.16.0", "0.22.2")

#: What the fix may change; rows get a place in the display with their marks (0.21.5 on).
CHANGED = ("active", "compacted", "message_count", "tool_call_count", "display_order", "display_identity")


@pytest.fixture(scope="module")
def planted(oracle: None, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Planted[NullCase]]:
    """The cases in a store of a release; each test leaves it as it found it."""
    return once_a_release(plant_cases, tmp_path_factory)


def patient_of(planted: Planted[NullCase]) -> Patient:
    return Patient(planted.home.store, planted.home.path)


def chats(image: Image) -> dict[str, list[tuple[Any, Any]]]:
    """The marks of each chat's messages, in their order."""
    found: dict[str, list[tuple[Any, Any]]] = {}
    for row in sorted(image.table("messages"), key=lambda row: int(str(row["id"]))):
        assert isinstance(row["session_id"], bytes)
        found.setdefault(row["session_id"].decode(), []).append((row["active"], row.get("compacted", 0)))
    return found


def counters(image: Image) -> dict[str, tuple[Any, Any]]:
    rows = {row["id"]: row for row in image.table("sessions")}
    return {
        key.decode(): (row["message_count"], row["tool_call_count"])
        for key, row in rows.items()
        if isinstance(key, bytes)
    }


def expected(cases: tuple[NullCase, ...], before: Image, *, missed_too: bool = True) -> Iterator[tuple[str, Any, Any]]:
    """Each chat as it is to be once all is mended: its name, the marks of its messages, its counters."""
    for case in cases:
        left = None if missed_too else MISSED
        marks = [line.marks if line.was in (None, left) else MARKS[line.was] for line in case.lines]
        yield case.name, marks, case.mended or counters(before)[case.name]


def wrong(planted: Planted[NullCase], fix: Fix) -> list[Any]:
    """Mend with that fix and take it back; say what is not as it must be."""
    patient = patient_of(planted)
    drifted = patient.findings([COUNTER_DRIFT])
    seen = there_and_back(
        patient, CHECK, fix, lambda store: (image_of(store), index_faults(store), patient.findings([COUNTER_DRIFT]))
    )
    (before, _, _), (after, faults, drifted_since), (back, faults_at_last, _) = seen
    lines: list[Any] = [
        name
        for name, marks, counts in expected(planted.cases, before)
        if (chats(after)[name], counters(after)[name]) != (marks, counts)
    ]
    lines += [
        line
        for line in difference(before, after)
        if not any(f": {name} " in line for name in CHANGED) and " in messages_fts" not in line
    ]
    lines += [f.key for f in drifted_since if f.key not in {each.key for each in drifted}]
    return lines + faults + difference(before, back) + faults_at_last


@pytest.mark.parametrize("version", STORES)
def test_every_row_is_mended_once_and_taken_back(planted: Callable[[str], Planted[NullCase]], version: str) -> None:
    store = planted(version)
    assert index_faults(store.home.store) == []
    assert wrong(store, FIX) == []
    patient = patient_of(store)
    before = image_of(store.home.store)
    safely = patient.mend(checks=[CHECK], fixes=[FIX], unsafe=False)
    assert outcome(safely) == ("fixed", 0, None)
    safe = image_of(store.home.store)
    for name, marks, counts in expected(store.cases, before, missed_too=False):
        # A chat is replayed as the compaction left it, with what it missed out of the way or not.
        assert (chats(safe)[name], counters(safe)[name]) == (marks, counts), name
    rest = patient.mend(checks=[CHECK], fixes=[FIX])
    assert patient.findings([CHECK]) == []
    assert outcome(patient.mend(checks=[CHECK], fixes=[FIX])) == ("nothing-to-do", 0, None)
    for run in (rest.run, safely.run):
        if run is not None:
            assert outcome(patient.undo(run)) == ("fixed", 0, None)
    assert difference(before, image_of(store.home.store)) == []
    assert tuple(patient.findings([CHECK])) == store.findings


#: A chat as a person has it, with a compaction in place where the release compacts so.
def said(compacting: bool) -> list[Step]:
    def say(role: str, content: Any, **more: Any) -> Step:
        return call("append_message", "chat", role, content, **more)

    begin = [call("create_session", "chat", "cli"), say("user", PICTURE), say("assistant", "", tool_calls=CALLS)]
    middle = [say("tool", "a cat", tool_call_id="call_1", tool_name="terminal"), say("assistant", "a cat")]
    stays = [{"role": "user", "content": text} for text in (SUMMARY, "so")]
    compacted = [call("archive_and_compact", "chat", stays)] if compacting else []
    end = [say("assistant", "yes"), say("user", "good"), sql("UPDATE messages SET timestamp = 1.79e9")]
    return [*begin, *middle, *compacted, *end]


@pytest.mark.parametrize("version", ["0.16.0", "0.18.0"])
def test_the_chat_is_what_it_is_without_the_fault(home: Home, oracle: None, version: str) -> None:
    """The same calls into a healthy store: marks, counters and replay are the same there and here."""
    without_default(home)
    healthy = Home(home.path.with_name("healthy"))
    for each in (home, healthy):
        each.run(version, said(version == "0.18.0"))
    assert home.conversation(version, "chat") == []
    patient = Patient(home.store, home.path)
    assert outcome(patient.mend(checks=[CHECK], fixes=[FIX], unsafe=False)) == ("fixed", 0, None)
    ours, theirs = home.conversation(version, "chat"), healthy.conversation(version, "chat")
    assert ours == theirs != []
    assert counters(image_of(home.store)) == counters(image_of(healthy.store))
    patient.mend(checks=[CHECK], fixes=[FIX])
    assert chats(image_of(home.store)) == chats(image_of(healthy.store))
    assert home.conversation(version, "chat") == theirs
    assert index_faults(home.store) == []
    # What hermes writes next is found, and counted, and a chat can be deleted out of the search index.
    home.run(version, [call("append_message", "chat", "user", "more")])
    assert len(patient.findings([CHECK])) == 1
    home.run("0.18.2", [open_store(), call("delete_session", "chat")])
    assert index_faults(home.store) == []


def test_rows_are_as_hermes_heals_them(home: Home, oracle: None) -> None:
    """Where all was live, 0.22.2 makes of a copy what the fix makes of the store, also in what it shows by pages."""
    without_default(home)
    home.run("0.22.2", [*said(False), sql("UPDATE messages SET active = NULL WHERE id > 1")])
    healed = Home(shutil.copytree(home.path, home.path.with_name("healed")))
    Patient(home.store, home.path).mend(checks=[CHECK], fixes=[FIX])
    healed.run("0.22.2", [open_store()])
    assert image_of(home.store).rows["messages"] == image_of(healed.store).rows["messages"]
    pages = [
        each.ask("0.22.2", call("get_messages", "chat", include_compacted=True, limit=50)) for each in (home, healed)
    ]
    assert pages[0] == pages[1]
    assert len(pages[0]) == 6


def test_what_was_changed_meanwhile_is_left(planted: Callable[[str], Planted[NullCase]]) -> None:
    store = planted("0.22.2")
    patient = patient_of(store)
    finding = next(f for f in store.findings if f.session == "only what is seen is counted")
    before = image_of(store.home.store)
    for statement in ("UPDATE messages SET active = 0 WHERE id = ?", "DELETE FROM messages WHERE id = ?"):
        copied = Home(shutil.copytree(store.home.path, store.home.path.with_name("copied"), dirs_exist_ok=True))
        change = (statement, (int(str(finding.key)),))
        assert change_meanwhile(replace(patient, store=copied.store), FIX, finding, change) == "RowMovedError"
        # The counters were not raised for a row that does not come back.
        assert counters(image_of(copied.store)) == counters(before)


# Deliberately wrong variants of the fix.


def _running(*statements: str) -> Callable[[Mending, Finding], None]:
    def mend(mending: Mending, finding: Finding) -> None:
        for statement in statements:
            mending.connection.execute(
                statement, {"id": finding.key, "session": finding.session, "becomes": finding.detail["becomes"]}
            )

    return mend


VARIANTS = {
    "as hermes does": ("UPDATE messages SET active = 1 WHERE id = :id AND :session <> :becomes",),
    "counters are left": (
        "UPDATE messages SET active = :becomes, compacted = NOT :becomes WHERE id = :id AND :session <> ''",
    ),
    "each row is counted": (
        "UPDATE messages SET active = :becomes, compacted = NOT :becomes WHERE id = :id",
        "UPDATE sessions SET message_count = message_count + :becomes WHERE id = :session",
    ),
    "the whole chat": ("UPDATE messages SET active = :becomes WHERE session_id = :session AND :id > 0",),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_wrong_variant_fails(planted: Callable[[str], Planted[NullCase]], name: str) -> None:
    assert wrong(planted("0.22.2"), replace(FIX, mend=_running(*VARIANTS[name]))) != []
