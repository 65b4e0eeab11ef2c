"""orphan-messages' fix: the session is back with the right counts, listed and replayed, and no message is touched."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from checks import counter_drift, lineage_gaps, orphan_messages
from checks.orphan_messages import CHECK
from fixes import lineage_gaps as detach
from fixes import orphan_messages as rebuild
from fixes.orphan_messages import FIX
from hermes_doctor.engine.cure import Fix, Mending
from hermes_doctor.engine.model import Finding, Safety
from hermes_doctor.store import orphans
from tests.checks.orphan_cases import NOW, SAID, Case, chat, deleted, lost, plant, without_foreign_keys
from tests.fixes.support import Patient, change_meanwhile, outcome
from tests.oracle.history import SUMMARY_PREFIX
from tests.oracle.home import Home
from tests.oracle.releases import NEWEST, Release, get
from tests.oracle.steps import Step, call, sql
from tests.whole.identical import Image, difference, image_of, index_faults

SOME = pytest.mark.parametrize("release", [get("0.13.0"), get("0.19.0"), NEWEST], ids=str)

#: What is to be counted of the session: its active messages, and their calls.
WANTED = {
    "gone-1": [4, 2],
    "gone-2": [2, 0],
    "gone-3": [1, 0],
    "gone-4": [4, 0],
    "größe 日本": [4, 2],
    "twin": [1, 0],
    "gone\t": [1, 0],
    "gone-6": [3, 0],
}


@dataclass
class Sick:
    """A home with missing sessions, copied from one that was made once for its release."""

    home: Home
    made: list[Case]

    @property
    def patient(self) -> Patient:
        return Patient(self.home.store, self.home.path, now=NOW)

    @property
    def mendable(self) -> set[str]:
        return {case.session for case in self.made if case.expected is Safety.UNSAFE}


@pytest.fixture(scope="module")
def template(oracle: None, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder, known = tmp_path_factory.mktemp("sick"), dict[str, list[Case]]()

    def make(release: Release, to: Path) -> Sick:
        if release.version not in known:
            known[release.version] = plant(Home(folder / release.version), release)
        shutil.copytree(folder / release.version, to)
        return Sick(Home(to), known[release.version])

    return make


def wrong(sick: Sick, fix: Fix) -> list[str]:
    """Mend with that fix: the sessions that are not as they must be, and what else was changed."""
    before = image_of(sick.home.store)
    sick.patient.mend(checks=[CHECK], fixes=[fix])
    after = image_of(sick.home.store)
    rows = {row["id"].decode(): row for row in after.table("sessions") if isinstance(row["id"], bytes)}
    bad = [
        session
        for session in sorted(sick.mendable)
        if session not in rows or not _is_right(session, rows[session], _times(before, session))
    ]
    if after.rows["messages"] != before.rows["messages"]:
        bad.append("the messages")
    return bad + index_faults(sick.home.store)


def _is_right(session: str, row: dict[str, object], times: Sequence[float]) -> bool:
    return (
        row["started_at"] == min(times)
        and row.get("last_activity_at", max(times)) == max(times)
        and [row["message_count"], row["tool_call_count"]] == WANTED[session]
        and row["title"] == (f"Recovered {session}".encode() if session.isprintable() else None)
        and (row["source"], row["ended_at"]) == (b"recovered", None)
    )


def _times(image: Image, session: str) -> list[float]:
    """The times of a session's messages that are of the days in which something was said."""
    rows = (row["timestamp"] for row in image.table("messages") if row["session_id"] == session.encode())
    return [at for at in rows if isinstance(at, float) and SAID - 1 < at < NOW]


@SOME
def test_every_session_is_rebuilt_listed_and_replayed_and_taken_back(
    template: Any, tmp_path: Path, release: Release
) -> None:
    sick = template(release, tmp_path / "home")
    home, patient = sick.home, sick.patient
    said = home.conversations(release, sorted(sick.mendable))
    before = image_of(home.store)
    done = patient.mend(checks=[CHECK], fixes=[FIX])
    assert outcome(done) == ("fixed", 0, None)
    assert done.count("applied") == len(sick.mendable)
    # A second run has nothing to do.
    assert patient.mend(checks=[CHECK], fixes=[FIX]).count("applied") == 0
    assert {finding.fix for finding in patient.findings([CHECK])} == {Safety.NONE}
    assert sick.mendable.isdisjoint(str(finding.session) for finding in patient.findings([counter_drift.CHECK]))

    copy = Home(tmp_path / "copy")
    shutil.copytree(home.path, copy.path, dirs_exist_ok=True)
    listed, *replayed, _, row = copy.run(
        release,
        [
            call("list_sessions_rich", limit=1000),
            *(call("get_messages_as_conversation", session) for session in sorted(sick.mendable)),
            # The session takes messages again.
            call("append_message", "gone-1", "user", "still there?"),
            call("get_session", "gone-1"),
        ],
    )
    assert sick.mendable <= {each["id"] for each in listed}
    assert dict(zip(sorted(sick.mendable), replayed, strict=True)) == said
    assert all(said.values())
    assert row["message_count"] == 5

    assert outcome(patient.undo(done.run)) == ("fixed", 0, None)
    # The index depends on sessions from 0.21.5 on, and was out of step before: it lists less of what is gone.
    assert [line for line in difference(before, image_of(home.store)) if "messages_fts_trigram" not in line] == []
    assert not release.since("0.21.5") or index_faults(home.store) == []


def test_a_session_that_a_chat_goes_on_from_since_is_not_taken_away_again(template: Any, tmp_path: Path) -> None:
    """hermes makes a continuation, and a message, without a change to the rebuilt row itself."""
    sick = template(NEWEST, tmp_path / "home")
    home, patient = sick.home, sick.patient
    before = home.ask(NEWEST, sql("PRAGMA foreign_key_check"))
    done = patient.mend(checks=[CHECK], fixes=[FIX])
    home.run(
        NEWEST,
        [
            call("create_session", "next", "cli", parent_session_id="gone-1"),
            sql("INSERT INTO messages (session_id, role, content, timestamp) VALUES ('gone-2', 'user', 'x', ?)", SAID),
        ],
    )
    undone = patient.undo(done.run)
    left = {str(change.key): change.reason for change in undone.changes if change.state == "failed"}
    assert left == {
        "gone-1": "sessions.parent_session_id refers to it since",
        "gone-2": "messages.session_id refers to it since",
    }
    assert (undone.outcome, int(undone.exit_code)) == ("partly-fixed", 1)
    assert {"gone-1", "gone-2", "next"} <= image_of(home.store).ids()
    assert sick.mendable - {"gone-1", "gone-2"} == sick.mendable - image_of(home.store).ids()
    left_over = home.ask(NEWEST, sql("PRAGMA foreign_key_check"))
    assert {tuple(row) for row in left_over} < {tuple(row) for row in before}
    # Once nothing refers to them any more but what did before, they go as the others did.
    home.run(NEWEST, [sql("DELETE FROM messages WHERE content = 'x'"), call("delete_session", "next")])
    assert outcome(patient.undo(done.run)) == ("fixed", 0, None)
    assert home.ask(NEWEST, sql("PRAGMA foreign_key_check")) == before


@SOME
def test_rows_index_and_messages_are_as_they_must_be(template: Any, tmp_path: Path, release: Release) -> None:
    assert wrong(template(release, tmp_path / "home"), FIX) == []


def _absurd_start(mending: Mending, finding: Finding) -> None:
    rebuild._mend(mending, finding)
    mending.run(
        "UPDATE sessions SET started_at = (SELECT min(timestamp) FROM messages WHERE session_id = :s) WHERE id = :s",
        {"s": str(finding.session)},
    )


def _counting_all(mending: Mending, finding: Finding) -> None:
    rebuild._mend(mending, finding)
    mending.run(
        "UPDATE sessions SET message_count = (SELECT count(*) FROM messages WHERE session_id = :s) WHERE id = :s",
        {"s": str(finding.session)},
    )


def _deleting(mending: Mending, finding: Finding) -> None:
    mending.run(
        "DELETE FROM messages WHERE session_id = :s",
        {"s": str(finding.session)},
        rows=int(str(finding.detail["messages"])),
    )


def _out_of_step(mending: Mending, finding: Finding) -> None:
    @contextmanager
    def nothing(*_: object) -> Iterator[None]:
        yield

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rebuild, "kept_in_step", nothing)
        rebuild._mend(mending, finding)


@pytest.mark.parametrize("mend", [_absurd_start, _counting_all, _deleting, _out_of_step])
def test_a_wrong_fix_is_caught(template: Any, tmp_path: Path, mend: Any) -> None:
    assert wrong(template(NEWEST, tmp_path / "home"), replace(FIX, mend=mend)) != []


def test_a_lost_table_is_rebuilt_whole_without_unsafe(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    lost(home, get("0.19.0"), missing=25, left=2)
    patient = Patient(home.store, home.path, now=NOW)
    # In several transactions: what was rebuilt must not make the rest unsafe.
    monkeypatch.setattr("hermes_doctor.engine.pacing.Pacing.next_size", lambda _self: 4)
    done = patient.mend(unsafe=False, checks=[CHECK], fixes=[FIX])
    assert outcome(done) == ("fixed", 0, None)
    assert (done.count("applied"), done.transactions >= 6) == (25, True)
    assert patient.findings([CHECK]) == []


def test_counting_what_was_rebuilt_as_there_would_stop_half_way(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    lost(home, get("0.19.0"), missing=25, left=2)
    monkeypatch.setattr("hermes_doctor.engine.pacing.Pacing.next_size", lambda _self: 4)
    monkeypatch.setattr(orphans, "RECOVERED", "nobody's")
    Patient(home.store, home.path, now=NOW).mend(unsafe=False, checks=[CHECK], fixes=[FIX])
    assert Patient(home.store, home.path, now=NOW).findings([CHECK]) != []


def test_a_few_among_others_need_unsafe(template: Any, tmp_path: Path) -> None:
    sick = template(NEWEST, tmp_path / "home")
    before = image_of(sick.home.store)
    done = sick.patient.mend(unsafe=False, checks=[CHECK], fixes=[FIX])
    assert (done.outcome, done.run) == ("nothing-to-do", None)
    assert difference(before, image_of(sick.home.store)) == []


def test_a_title_that_is_taken_is_left_to_its_owner(home: Home) -> None:
    home.run(NEWEST, [*chat("other"), call("set_session_title", "other", "Recovered gone"), *deleted("gone")])
    patient = Patient(home.store, home.path, now=NOW)
    assert patient.mend(checks=[CHECK], fixes=[FIX]).count("applied") == 1
    titles = {row["id"]: row["title"] for row in image_of(home.store).table("sessions")}
    assert titles == {b"other": b"Recovered gone", b"gone": None}


def continued(release: Release, parent: str, *, children: int = 1, branched: bool = False) -> list[Step]:
    """A chat that was compressed and went on, and whose row was then deleted by a tool without foreign keys."""
    steps = [*chat(parent), call("end_session", parent, "compression")]
    for n in range(children):
        config = {"max_iterations": 90} | ({"_branched_from": parent} if branched else {})
        child = f"{parent}-{n}"
        steps += [
            call("create_session", child, "cli", model="test-model", parent_session_id=parent, model_config=config),
            call("append_message", child, "user", f"{SUMMARY_PREFIX} of {parent}"),
            call("append_message", child, "assistant", "go on"),
        ]
    return [*steps, *without_foreign_keys(sql("DELETE FROM sessions WHERE id = ?", parent))]


@pytest.mark.parametrize("release", [get("0.13.0"), NEWEST], ids=str)
def test_a_chat_that_went_on_is_found_again_from_its_rebuilt_beginning(home: Home, release: Release) -> None:
    steps = [*chat("other"), *continued(release, "one"), *continued(release, "two", children=2)]
    steps += continued(release, "branch", branched=True)
    home.run(release, steps)
    patient = Patient(home.store, home.path, now=NOW)
    checks, fixes = [orphan_messages.CHECK, lineage_gaps.CHECK], [FIX, detach.FIX]
    refused = {f.session: f.fix for f in patient.findings(checks) if f.check == "lineage-gaps"}
    assert refused == dict.fromkeys(["one-0", "two-0", "two-1", "branch-0"], Safety.NONE)
    assert not {"one", "one-0"} & set(home.listed(release))

    done = patient.mend(checks=checks, fixes=fixes)
    assert outcome(done) == ("fixed", 0, None)
    assert patient.findings(checks) == []
    rows = {row["id"]: row["end_reason"] for row in image_of(home.store).table("sessions")}
    assert {name: rows[name] for name in (b"one", b"two", b"branch")} == {
        b"one": b"compression",
        b"two": None,
        b"branch": None,
    }
    listed, *tips = home.run(
        release,
        [call("list_sessions_rich", limit=1000), *(call("get_compression_tip", name) for name in ("one", "two"))],
    )
    # A chain is listed once, by its beginning or by its end.
    assert {"one", "one-0"} & {each["id"] for each in listed}
    assert tips == ["one-0", "two"]


def test_a_session_that_came_back_meanwhile_is_left(template: Any, tmp_path: Path) -> None:
    sick = template(NEWEST, tmp_path / "home")
    finding = next(f for f in sick.patient.findings([CHECK]) if f.session == "gone-1")
    back = ("INSERT INTO sessions (id, source, started_at) VALUES ('gone-1', 'cli', 1790000000.0)", ())
    assert change_meanwhile(sick.patient, FIX, finding, back) == "RowMovedError"
    assert change_meanwhile(sick.patient, FIX, replace(finding, session="gone-2")) is None
