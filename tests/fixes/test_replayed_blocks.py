"""replayed-blocks' fix: the release replays what it replayed before the damage, and no row is lost."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count, islice
from pathlib import Path
from typing import Any

import apsw
import pytest

from checks import counter_drift
from checks.replayed_blocks import CHECK
from fixes.replayed_blocks import FIX
from hermes_doctor.engine import rewinding
from hermes_doctor.engine.cure import Fix, Mending
from hermes_doctor.engine.model import Bucket, Finding
from hermes_doctor.store.replays import blocks
from hermes_doctor.store.setting_aside import counted_without
from tests.checks.copies_cases import REPLAYS, CopyCase, by_session, plant
from tests.checks.support import Planted, findings_of
from tests.checks.test_replayed_blocks import plant_cases
from tests.fixes.copies import set_aside
from tests.fixes.support import Patient, change_meanwhile, there_and_back
from tests.oracle.home import Home
from tests.oracle.steps import open_store
from tests.whole.identical import Image, difference, image_of

#: What a release tells of a message that is each row's own.
OWN = {"id", "_row_id", "message_uid", "tool_call_uid", "tool_call_uids"}


@pytest.fixture(scope="module")
def planted(oracle: None, tmp_path_factory: pytest.TempPathFactory) -> Planted[CopyCase]:
    """The cases in a store of the newest release; each test leaves it as it found it."""
    return plant_cases(Home(tmp_path_factory.mktemp("planted") / "home"), "0.22.2")


@pytest.fixture(scope="module")
def few(oracle: None, tmp_path_factory: pytest.TempPathFactory) -> Planted[CopyCase]:
    """The cases that tell wrong variants from the fix, likewise."""
    names = ("calls and answers", "counted wrongly", "partly rewound")
    cases = tuple(case for case in REPLAYS if case.name in names)
    return plant_cases(Home(tmp_path_factory.mktemp("few") / "home"), "0.20.0", cases)


def wrong(planted: Planted[CopyCase], fix: Fix, once: Sequence[Finding] | None = None) -> list[str]:
    """Mend with that fix and take it back; say what is not as it must be."""
    lines, before, after = set_aside(planted, CHECK, fix, ("active", "message_count", "tool_call_count"), once)
    was, now = _counts(before), _counts(after)
    standing = by_session(after)
    for case in planted.cases:
        counted = case.session.get("message_count", sum(active for active, _ in standing.get(case.name, ())))
        if now[case.name][0] != counted:
            lines.append(f"{case.name}: counts {now[case.name]}")
    # What was wrong before is left, and so are the counts of chats that hold no copy.
    kept = was.keys() - {case.name for case in planted.cases if case.copies and "message_count" not in case.session}
    return lines + [f"{session}: counted anew" for session in sorted(kept) if now[session] != was[session]]


def _counts(image: Image) -> dict[str, tuple[Any, Any]]:
    rows = image.table("sessions")
    return {row["id"].decode(): (row["message_count"], row["tool_call_count"]) for row in rows}  # type: ignore[attr-defined]


def test_every_copy_is_set_aside_once_and_taken_back(planted: Planted[CopyCase]) -> None:
    assert wrong(planted, FIX, planted.findings) == []


def test_counters_stay_as_right_as_they_were(planted: Planted[CopyCase]) -> None:
    patient = Patient(planted.home.store, planted.home.path, planted.now)
    seen = there_and_back(patient, CHECK, FIX, lambda store: _drifting(store, planted.now))
    assert seen == (["counted wrongly"],) * 3


def _drifting(store: Path, now: float) -> list[Any]:
    return [finding.session for finding in findings_of(store, counter_drift.CHECK, now=now)]


def told(home: Home, version: str, sessions: list[str]) -> dict[str, list[dict[str, Any]]]:
    """What the release replays of the sessions, but for what is each row's own."""
    return {
        name: [{key: cell for key, cell in message.items() if key not in OWN} for message in messages]
        for name, messages in home.conversations(version, sessions).items()
    }


@pytest.mark.parametrize("version", ["0.16.0", "0.19.0", "0.20.6", "0.22.2"])
def test_the_release_replays_what_was_said_before_the_damage(home: Home, oracle: None, version: str) -> None:
    now = time.time()
    cases = [case for case in plant(home, version, now, REPLAYS) if case.copies]
    damaged, sound = [case.name for case in cases], [case.undamaged().name for case in cases]
    assert Patient(home.store, home.path, now).mend(checks=[CHECK], fixes=[FIX]).outcome == "fixed"
    replayed = told(home, version, damaged + sound)
    for name, whole in zip(damaged, sound, strict=True):
        assert replayed[name] == replayed[whole]
        assert replayed[name] or name == "no text"


def test_a_chat_written_again_with_every_turn(home: Home, oracle: None) -> None:
    """468 different messages in 5,000, and one 32 times by itself, as it was reported."""
    now = time.time()
    home.run("0.22.2", [open_store()])
    written_again = (n for turn in count(2) for n in range(min(40 * turn, 468)))
    history = [*islice(written_again, 4_969), *[468] * 32]
    rows = [(_role(n), f"message {n} of many words", "call_1", now - 1e6 + n + 0.125) for n in history]
    connection = apsw.Connection(str(home.store))
    with connection:
        session = ("s", "cli", now - 1e6, len(rows))
        connection.execute(
            "INSERT INTO sessions(id, source, started_at, message_count, tool_call_count) VALUES (?, ?, ?, ?, 0)",
            session,
        )
        connection.executemany(
            "INSERT INTO messages(session_id, role, content, tool_call_id, timestamp) VALUES ('s', ?, ?, ?, ?)", rows
        )
    connection.close()
    patient = Patient(home.store, home.path, now)
    before = image_of(home.store)
    done = patient.mend(checks=[CHECK], fixes=[FIX])
    assert done.outcome == "fixed"
    # One and the same moment is no proof: those 31 stay, and are told.
    (left,) = patient.findings([CHECK])
    assert (left.bucket, left.detail["messages"]) == (Bucket.REFUSED, 31)
    mended = Home(shutil.copytree(home.path, home.path.with_name("mended")))
    patient.undo(done.run)
    assert difference(before, image_of(home.store)) == []
    assert _counts(image_of(mended.store))["s"][0] == len(set(history)) + 31
    replayed = [message["content"] for message in mended.conversation("0.22.2", "s")]
    assert replayed == [f"message {n} of many words" for n in [*dict.fromkeys(history), *[468] * 31]]


def _role(number: int) -> str:
    return ("user", "assistant", "tool")[number % 3]


def test_what_changed_meanwhile_is_left(home: Home, oracle: None) -> None:
    planted = plant_cases(home, "0.22.2", REPLAYS[:1])
    (finding,) = planted.findings
    patient = Patient(home.store, home.path)
    restore = ("UPDATE messages SET active = 1, content = 'word ' || char(64 + (id - 1) % 3 + 1) WHERE id <= 6", ())
    for statement in (
        "UPDATE messages SET active = 0 WHERE id = 4",
        "UPDATE messages SET content = 'other' WHERE id IN (1, 2)",
        "UPDATE messages SET active = 0 WHERE id <= 3",
    ):
        assert change_meanwhile(patient, FIX, finding, restore, (statement, ())) == "RowMovedError"
    assert change_meanwhile(patient, FIX, finding, restore) is None


# Deliberately wrong variants of the fix.


def _running(statement: str) -> Callable[[Mending, Finding], None]:
    def mend(mending: Mending, finding: Finding) -> None:
        (block,) = blocks(mending.view, [finding.key])
        for each in block.ids:
            mending.connection.execute(statement, {"id": each, "first": block.first, "session": block.session})

    return mend


VARIANTS: dict[str, Callable[[Mending, Finding], None]] = {
    "deletes them": _running("DELETE FROM messages WHERE id = :id"),
    "archives them": _running("UPDATE messages SET active = 0, compacted = 1 WHERE id = :id"),
    "the first one goes": _running("UPDATE messages SET active = 0 WHERE id = :first"),
    "leaves the counters": _running("UPDATE messages SET active = 0 WHERE id = :id"),
    "all rows of the session": _running("UPDATE messages SET active = 0 WHERE session_id = :session"),
}


def test_the_few_cases_are_mended_right(few: Planted[CopyCase]) -> None:
    assert wrong(few, FIX) == []


@pytest.mark.parametrize("name", VARIANTS)
def test_a_wrong_variant_fails(few: Planted[CopyCase], name: str) -> None:
    assert wrong(few, replace(FIX, mend=VARIANTS[name])) != []


def test_counting_anew_whatever_was_counted_fails(few: Planted[CopyCase], monkeypatch: pytest.MonkeyPatch) -> None:
    real = counted_without

    def always(view: Any, session: Any, ids: Any) -> Any:
        counted = real(view, session, ids)
        held = view.reader.value("SELECT message_count FROM sessions WHERE id = ?", (session,))
        counted.before["message_count"], counted.after["message_count"] = held, held - len(ids)
        return counted

    monkeypatch.setattr(rewinding, "counted_without", always)
    assert wrong(few, FIX) != []
