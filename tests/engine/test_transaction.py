"""What lies between a plan and its transaction, and what must never be written."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace

import apsw
import pytest

from checks import double_encoded, open_zombies, orphan_stubs
from fixes import open_zombies as end_zombies
from fixes import orphan_stubs as delete_stubs
from hermes_doctor.engine.cure import FixRefusedError, Mending
from hermes_doctor.engine.journal import APPLIED, NOT_APPLIED, PENDING, UNKNOWN
from hermes_doctor.engine.model import Finding
from hermes_doctor.engine.settle import settle_pending
from hermes_doctor.engine.transaction import DONE, FAILED, GONE, REFUSED, Change, UncoveredError, mend_rows
from tests.engine.transactions import writing
from tests.fixes.support import Patient, outcome
from tests.oracle.faults import planting
from tests.oracle.home import Home
from tests.oracle.releases import NEWEST
from tests.whole.identical import difference, image_of

CHECK, FIX = open_zombies.CHECK, end_zombies.FIX


@pytest.fixture
def zombies(home: Home) -> Patient:
    """A store with three sessions that nobody will end."""
    with planting(home, NEWEST) as plant:
        for _ in range(3):
            plant.open_zombie()
    return Patient(home.store, home.path)


def execute(patient: Patient, *statements: str) -> None:
    """What somebody else does to the store."""
    connection = apsw.Connection(str(patient.store))
    for statement in statements:
        connection.execute(statement)
    connection.close()


def states(changes: Iterable[Change]) -> list[str]:
    return [change.state for change in changes]


def mended_after(patient: Patient, meanwhile: Callable[[list[Finding]], None]) -> list[Change]:
    """Finds, lets something happen, and mends what was found, in one transaction."""
    found = patient.findings([CHECK])
    meanwhile(found)
    with writing(patient) as writer:
        changes, held = mend_rows(writer, CHECK, FIX, found, unsafe=False)
        entries = list(writer.journal.entries())
    assert len(entries) == (1 if DONE in states(changes) else 0)
    assert held > 0
    return changes


def test_rows_that_are_gone_mended_or_wanted_by_now_are_left(zombies: Patient) -> None:
    assert zombies.home is not None
    home = zombies.home

    def meanwhile(found: list[Finding]) -> None:
        deleted, ended, routed = (str(finding.key) for finding in found)
        execute(
            zombies,
            f"DELETE FROM messages WHERE session_id = '{deleted}'",
            f"DELETE FROM sessions WHERE id = '{deleted}'",
            f"UPDATE sessions SET ended_at = started_at + 9, end_reason = 'cli_close' WHERE id = '{ended}'",
        )
        (home / "sessions").mkdir(exist_ok=True)
        (home / "sessions" / "sessions.json").write_text(json.dumps({"a chat": {"session_id": routed}}))
        before.append(image_of(zombies.store))

    before = [image_of(zombies.store)]
    assert states(mended_after(zombies, meanwhile)) == [GONE] * 3
    assert difference(before[-1], image_of(zombies.store)) == []


def test_what_is_unsafe_by_now_is_refused(zombies: Patient) -> None:
    """A row that was planned as safe, and is past its retention when its turn comes."""

    def meanwhile(found: list[Finding]) -> None:
        # Back to a schema whose prune goes by the start.
        execute(zombies, "UPDATE schema_version SET version = 22", "UPDATE sessions SET started_at = started_at - 9e6")
        execute(zombies, "UPDATE sessions SET last_activity_at = NULL")

    changes = mended_after(zombies, meanwhile)
    assert states(changes) == [REFUSED] * 3
    assert {change.reason for change in changes} == {"is mended only with --unsafe"}


@pytest.mark.parametrize(
    ("error", "state"),
    [(ZeroDivisionError("x"), FAILED), (FixRefusedError("no"), REFUSED), (KeyError("k"), FAILED)],
    ids=["a defect", "refused", "another defect"],
)
def test_a_failing_row_does_not_stop_the_rest(zombies: Patient, error: Exception, state: str) -> None:
    found = zombies.findings([CHECK])

    def mend(mending: Mending, finding: Finding) -> None:
        FIX.mend(mending, finding)
        if finding.key == found[1].key:
            # Half of it is done already.
            raise error

    before = image_of(zombies.store)
    with writing(zombies) as writer:
        changes, _ = mend_rows(writer, CHECK, replace(FIX, mend=mend), found, unsafe=False)
    assert states(changes) == [DONE, state, DONE]
    touched = {line.split(":")[0] for line in difference(before, image_of(zombies.store))}
    assert touched == {f"sessions {str(found[n].key).encode()!r}" for n in (0, 2)}


def test_a_stranger_s_index_that_refuses_a_row_fails_only_that(zombies: Patient) -> None:
    execute(zombies, "CREATE UNIQUE INDEX mine ON sessions(end_reason)")
    done = zombies.mend()
    assert sorted(states(done.changes)) == [DONE, FAILED, FAILED]
    assert outcome(done)[:2] == ("partly-fixed", 1)


LOGS = {
    "without a primary key": ("CREATE TABLE log (of TEXT)", "INSERT INTO log VALUES (?)"),
    "with a NULL in its key": ("CREATE TABLE log (k TEXT PRIMARY KEY, of TEXT)", "INSERT INTO log (of) VALUES (?)"),
}


@pytest.mark.parametrize("name", LOGS)
def test_a_row_that_no_record_could_take_back_is_never_written(zombies: Patient, name: str) -> None:
    table, insert = LOGS[name]
    execute(zombies, table)

    def mend(mending: Mending, finding: Finding) -> None:
        FIX.mend(mending, finding)
        mending.connection.execute(insert, (finding.key,))

    before = image_of(zombies.store)
    done = zombies.mend(checks=[CHECK], fixes=[replace(FIX, mend=mend)])
    assert states(done.changes) == [REFUSED] * 3
    assert done.run is None
    assert zombies.runs() == []
    assert difference(before, image_of(zombies.store)) == []


#: What a trigger may do that is not hermes's; the last two have the name of one of hermes's own.
STRANGERS = {
    "deletes other rows": "CREATE TRIGGER mine AFTER UPDATE ON sessions BEGIN DELETE FROM messages; END",
    "keeps a log": "CREATE TRIGGER mine AFTER UPDATE ON sessions BEGIN INSERT INTO log (of) VALUES (new.id); END",
    "refuses": "CREATE TRIGGER mine BEFORE UPDATE ON sessions BEGIN SELECT RAISE(ABORT, 'hands off'); END",
    "ends the transaction": "CREATE TRIGGER mine BEFORE UPDATE ON sessions BEGIN SELECT RAISE(ROLLBACK, 'no'); END",
    "never ends": "CREATE TRIGGER mine AFTER UPDATE ON sessions WHEN"
    " EXISTS (WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n WHERE i < 0)"
    " BEGIN SELECT 1; END",
    "calls what writes files": "CREATE TRIGGER mine AFTER UPDATE ON sessions BEGIN SELECT writefile('x', 'y'); END",
    "shows itself by chance only": "CREATE TRIGGER mine AFTER UPDATE ON sessions WHEN new.id = 'nobody'"
    " BEGIN DELETE FROM messages; END",
    "writes elsewhere": "CREATE TRIGGER messages_fts_update2 AFTER UPDATE ON sessions BEGIN DELETE FROM log; END",
    "hermes's name, other table": "CREATE TRIGGER messages_message_uid_insert AFTER UPDATE ON sessions"
    " BEGIN DELETE FROM messages; END",
    "hermes's name, other column": "CREATE TRIGGER messages_message_uid_insert AFTER UPDATE ON sessions"
    " BEGIN UPDATE messages SET content = NULL; END",
    "hermes's name, never ends": "CREATE TRIGGER messages_fts_insert AFTER UPDATE ON sessions"
    " BEGIN INSERT INTO messages_fts(rowid, content) SELECT messages.id, content FROM messages, messages AS peer; END",
}


@pytest.mark.parametrize("name", STRANGERS)
def test_no_change_sets_off_a_trigger_that_is_not_hermes_s(zombies: Patient, name: str) -> None:
    own = STRANGERS[name].split()[2]
    execute(
        zombies,
        "CREATE TABLE log (n INTEGER PRIMARY KEY, of TEXT)",
        "INSERT INTO log (of) VALUES ('kept')",
        f"DROP TRIGGER IF EXISTS {own}",
        STRANGERS[name],
    )
    before = image_of(zombies.store)
    done = zombies.mend()
    assert states(done.changes) == [REFUSED] * 3
    assert all(own in str(change.reason) for change in done.changes)
    assert outcome(done)[:2] == ("partly-fixed", 1)
    assert difference(before, image_of(zombies.store)) == []


def test_a_stranger_s_trigger_on_another_table_is_no_obstacle(zombies: Patient) -> None:
    execute(zombies, "CREATE TRIGGER mine AFTER UPDATE ON messages BEGIN DELETE FROM sessions; END")
    assert states(zombies.mend().changes) == [DONE] * 3


def test_an_undo_sets_off_no_stranger_s_trigger_either(zombies: Patient) -> None:
    done = zombies.mend()
    execute(zombies, STRANGERS["deletes other rows"])
    mended = image_of(zombies.store)
    undone = zombies.undo(done.run)
    assert outcome(undone)[:2] == ("partly-fixed", 1)
    assert "mine" in str(next(iter(undone.changes)).reason)
    assert difference(mended, image_of(zombies.store)) == []
    execute(zombies, "DROP TRIGGER mine")
    assert outcome(zombies.undo(done.run)) == ("fixed", 0, None)


def test_no_row_is_deleted_because_its_table_says_that_another_replaces_it(zombies: Patient) -> None:
    """A stranger's constraint may say so; a change of the doctor's fails instead."""
    connection = apsw.Connection(str(zombies.store))
    sql = str(connection.execute("SELECT sql FROM sqlite_schema WHERE name = 'sessions'").get)
    ends = "end_reason TEXT UNIQUE ON CONFLICT REPLACE,"
    connection.execute("PRAGMA legacy_alter_table = ON")
    connection.execute(sql.replace("end_reason TEXT,", ends).replace("TABLE sessions", "TABLE fresh", 1))
    connection.execute("INSERT INTO fresh SELECT * FROM sessions")
    connection.execute("DROP TABLE sessions")
    connection.execute("ALTER TABLE fresh RENAME TO sessions")
    connection.close()
    ids = image_of(zombies.store).ids()
    assert FAILED in states(zombies.mend().changes)
    assert image_of(zombies.store).ids() == ids


def test_a_row_with_text_that_is_no_text_is_refused_and_the_others_are_mended(home: Home) -> None:
    with planting(home, NEWEST) as plant:
        stubs = [plant.orphan_stub("tui", end_reason="tui_close") for _ in range(3)]
    patient = Patient(home.store, home.path)
    execute(patient, f"UPDATE sessions SET user_id = CAST(x'fffe' AS TEXT) WHERE id = '{stubs[1]}'")
    before = image_of(home.store)
    found = patient.findings([orphan_stubs.CHECK])
    with writing(patient) as writer, pytest.raises(UncoveredError, match="UTF-8"):
        mend_rows(writer, orphan_stubs.CHECK, delete_stubs.FIX, found, unsafe=True)
    assert difference(before, image_of(home.store)) == []
    done = patient.mend()
    assert {str(change.key): change.state for change in done.changes} == {
        stubs[0]: DONE,
        stubs[1]: REFUSED,
        stubs[2]: DONE,
    }
    assert image_of(home.store).ids() == {stubs[1]}
    assert outcome(patient.undo(done.run)) == ("fixed", 0, None)
    assert difference(before, image_of(home.store)) == []


@pytest.mark.parametrize(
    ("again", "state"), [(0, APPLIED), (3, NOT_APPLIED), (1, UNKNOWN)], ids=["as after", "as before", "mixed"]
)
def test_a_pending_record_is_settled_by_its_rows(zombies: Patient, again: int, state: str) -> None:
    before = image_of(zombies.store)
    found = zombies.findings([CHECK])
    with writing(zombies) as writer:
        run = writer.run
        mend_rows(writer, CHECK, FIX, found, unsafe=False)
        (entry,) = writer.journal.entries()
        # As a stop between the two commits, or before the store's, leaves it.
        writer.journal.settle(entry.number, PENDING)
    opened = ", ".join(f"'{finding.key!s}'" for finding in found[:again])
    execute(zombies, f"UPDATE sessions SET ended_at = NULL, end_reason = NULL WHERE id IN ({opened})")
    with writing(zombies) as writer:
        assert settle_pending(writer) == 1
        assert [each.state for each in writer.journal.entries()] == [state]
        assert settle_pending(writer) == 0
    # What is unknown can be taken back: the rows that are as before already are no obstacle.
    undone = zombies.undo(run)
    assert int(undone.exit_code) == 0
    assert difference(before, image_of(zombies.store)) == []


def test_that_the_store_has_a_change_is_told_with_the_next_record_or_at_the_end(zombies: Patient) -> None:
    found = zombies.findings([CHECK])
    with writing(zombies) as writer:

        def settled() -> list[str]:
            return [entry.state for entry in writer.journal.entries(newest_first=False)]

        mend_rows(writer, CHECK, FIX, found[:1], unsafe=False)
        assert settled() == [PENDING]
        mend_rows(writer, CHECK, FIX, found[1:], unsafe=False)
        assert settled() == [APPLIED, PENDING]
        writer.settle()
        assert settled() == [APPLIED, APPLIED]


def test_a_check_that_finds_nothing_writes_nothing(zombies: Patient) -> None:
    gone = replace(zombies.findings([CHECK])[0], key="no such row")
    with writing(zombies) as writer:
        changes, _ = mend_rows(writer, double_encoded.CHECK, FIX, [gone], unsafe=True)
        assert (states(changes), list(writer.journal.entries())) == ([GONE], [])
