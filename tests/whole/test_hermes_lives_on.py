"""Between a repair and its being taken back hermes lives on: what it writes stays, what it changed is left alone."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw
import pytest

from hermes_doctor.engine.undo import CHANGED_SINCE, RESTORED, StoreUndo
from tests.fixes.support import Patient, outcome
from tests.oracle.faults import Planter
from tests.oracle.history import CALLS, DAY, HOUR, REASONING
from tests.oracle.home import Home, environment
from tests.oracle.releases import NEWEST, Release, get
from tests.oracle.steps import Step, call, clock, ref, sql
from tests.whole.identical import Image, difference, image_of, index_faults
from tests.whole.support import fingerprint

OLD, MIDDLE = get("0.16.0"), get("0.19.0")


@dataclass
class Mended:
    """A home in which one fault of each kind was mended: the sessions by what was wrong with them."""

    home: Home
    release: Release
    wrapped: str
    zombie: str
    closed: str
    child: str
    stub: str
    before: Image
    after: Image
    run: str

    @property
    def patient(self) -> Patient:
        return Patient(self.home.store, self.home.path)

    def hermes(self, *steps: Step, release: Release | None = None) -> list[Any]:
        """What a release does in the home meanwhile."""
        return self.home.run(release or self.release, steps)

    def undo(self) -> dict[str, StoreUndo | str]:
        """Takes the run back; what became of it, by session (of a message: its session's)."""
        undo = self.patient.undo(self.run)
        rows = {row["id"]: row["session_id"] for row in self.before.table("messages")}
        states: dict[str, set[str]] = {}
        for change in undo.changes:
            session = rows[change.key] if change.table == "messages" else str(change.key).encode()
            assert isinstance(session, bytes)
            states.setdefault(session.decode(), set()).add(change.state)
        assert all(len(each) == 1 for each in states.values()), states
        return {"undo": undo, **{session: next(iter(each)) for session, each in states.items()}}

    def all_restored(self) -> None:
        """Everything was taken back, and the search index is right."""
        states = self.undo()
        undo = states.pop("undo")
        assert isinstance(undo, StoreUndo)
        assert outcome(undo) == ("fixed", 0, None)
        assert states == dict.fromkeys((self.wrapped, self.zombie, self.closed, self.child, self.stub), RESTORED)
        assert index_faults(self.home.store) == []

    def all_but(self, session: str) -> None:
        """Everything was taken back but what the session's row had."""
        states = self.undo()
        undo = states.pop("undo")
        assert isinstance(undo, StoreUndo)
        assert outcome(undo) == ("partly-fixed", 1, None)
        every = (self.wrapped, self.zombie, self.closed, self.child, self.stub)
        assert states == {each: CHANGED_SINCE if each == session else RESTORED for each in every}
        assert index_faults(self.home.store) == []


MendedBy = Callable[..., Mended]


@pytest.fixture
def mended_by(make_home: Callable[[str], Home]) -> MendedBy:
    """Homes of a release with one fault of each kind, mended."""

    def make(release: Release, *, name: str = "home", wal: bool = False) -> Mended:
        home = make_home(name)
        if wal:
            home.use_wal(release)
        plant = Planter(release)
        wrapped = plant.session("cli", idle=HOUR, name="wrapped")
        plant.say(wrapped, "user", "which files are there?")
        plant.steps.append(
            call("append_message", wrapped, "assistant", "one", keep="row", tool_calls=CALLS, **REASONING)
        )
        for column in ("tool_calls", "reasoning_details"):
            plant.steps.append(sql(f"UPDATE messages SET {column} = json_quote({column}) WHERE id = ?", ref("row")))
        plant.end(wrapped, "cli_close")
        zombie = plant.open_zombie()
        closed, _ = plant.lineage_gap("no-continuation")
        child, _ = plant.lineage_gap("missing-parent")
        stub = plant.orphan_stub("tui", end_reason="tui_close")
        plant.steps.append(clock(None))
        home.run(release, plant.steps)
        before, patient = image_of(home.store), Patient(home.store, home.path)
        fix = patient.mend()
        assert outcome(fix) == ("fixed", 0, None)
        assert fix.run is not None
        after = image_of(home.store)
        assert {(c.check, c.state) for c in fix.changes} == {
            (check, "applied") for check in ("double-encoded", "open-zombies", "lineage-gaps", "orphan-stubs")
        }
        return Mended(home, release, wrapped, zombie, closed, child, stub, before, after, fix.run)

    return make


def rows_of(image: Image, table: str, names: tuple[str, ...]) -> list[tuple[Any, ...]]:
    """Some columns of a table, sorted."""
    return sorted((tuple(row[name] for name in names) for row in image.table(table)), key=repr)


BOTH = pytest.mark.parametrize("release", [MIDDLE, NEWEST], ids=str)


@pytest.mark.parametrize("wal", [False, True], ids=["as-made", "wal"])
@BOTH
def test_what_hermes_wrote_meanwhile_stays(mended_by: MendedBy, release: Release, wal: bool) -> None:
    mended = mended_by(release, wal=wal)
    titled = f"UPDATE sessions SET title = 'named since', model = 'other'{_pin(release)} WHERE id = ?"
    sessions = (mended.wrapped, mended.closed, mended.child)
    mended.hermes(
        *(call("append_message", session, "user", f"go on, {session}") for session in sessions),
        *(call("append_message", session, "assistant", "", tool_calls=CALLS, **REASONING) for session in sessions),
        call("create_session", "new since", "cli"),
        call("append_message", "new since", "user", "hello"),
        sql(titled, mended.zombie),
        sql("UPDATE messages SET token_count = 7 WHERE session_id = ?", mended.wrapped),
    )
    lived = image_of(mended.home.store)
    mended.all_restored()
    now = image_of(mended.home.store)
    # The repair was taken back, and nothing else: first what it wrote ...
    ours = {"sessions": ("id", "parent_session_id", "ended_at", "end_reason")}
    before = {row[0]: row for row in rows_of(mended.before, "sessions", ours["sessions"])}
    assert {row[0]: row for row in rows_of(now, "sessions", ours["sessions"]) if row[0] != b"new since"} == before
    wrapped = ("id", "tool_calls", "reasoning_details")
    known = {row[0]: row for row in rows_of(mended.before, "messages", wrapped)}
    assert {r[0]: r for r in rows_of(now, "messages", wrapped) if r[0] in known} == known
    # ... then all that hermes did.
    others = ("id", "source", "title", "model", "message_count", "tool_call_count", "started_at")
    stub = tuple(row for row in rows_of(mended.before, "sessions", others) if row[0] == mended.stub.encode())
    assert rows_of(now, "sessions", others) == sorted((*rows_of(lived, "sessions", others), *stub), key=repr)
    written = ("id", "session_id", "role", "content", "token_count", "timestamp")
    assert rows_of(now, "messages", written) == rows_of(lived, "messages", written)
    assert mended.home.conversation(release, "new since")[0]["content"] == "hello"


def _pin(release: Release) -> str:
    return ", pinned = 1, last_activity_at = 1790000000.5" if release.since("0.20.0") else ""


@BOTH
def test_a_row_that_was_changed_again_is_left(mended_by: MendedBy, release: Release) -> None:
    mended = mended_by(release)
    # Resumed: hermes opens the row again.
    mended.hermes(call("reopen_session", mended.zombie), call("append_message", mended.zombie, "user", "back again"))
    mended.hermes(call("end_session", mended.zombie, "cli_close"))
    mended.all_but(mended.zombie)
    row = mended.home.session(release, mended.zombie)
    assert row is not None
    assert row["end_reason"] == "cli_close"


@BOTH
def test_a_message_that_was_written_again_is_left(mended_by: MendedBy, release: Release) -> None:
    mended = mended_by(release)
    new = json.dumps([{"type": "reasoning.text", "text": "another thought"}])
    mended.hermes(sql("UPDATE messages SET reasoning_details = ? WHERE session_id = ?", new, mended.wrapped))
    mended.all_but(mended.wrapped)
    assert [m["reasoning_details"] for m in mended.home.conversation(release, mended.wrapped) if m.get("tool_calls")]


@BOTH
def test_rows_that_hermes_deleted_stay_deleted(mended_by: MendedBy, release: Release) -> None:
    mended = mended_by(release)
    mended.hermes(call("delete_session", mended.wrapped), call("delete_session", mended.child))
    states = mended.undo()
    assert {s for s, state in states.items() if state == CHANGED_SINCE} == {mended.wrapped, mended.child}
    assert {s for s, state in states.items() if state == RESTORED} == {mended.zombie, mended.closed, mended.stub}
    assert not {mended.wrapped, mended.child} & image_of(mended.home.store).ids()
    assert index_faults(mended.home.store) == []


@BOTH
def test_a_deleted_row_that_is_there_again_is_left(mended_by: MendedBy, release: Release) -> None:
    mended = mended_by(release)
    mended.hermes(
        call("create_session", mended.stub, "desktop"), call("append_message", mended.stub, "user", "the first words")
    )
    mended.all_but(mended.stub)
    row = mended.home.session(release, mended.stub)
    assert row is not None
    assert (row["source"], row["end_reason"], row["message_count"]) == ("desktop", None, 1)


@pytest.mark.parametrize("release", [get("0.13.0"), OLD, MIDDLE, get("0.20.0"), get("0.21.5")], ids=str)
def test_an_upgrade_in_between(mended_by: MendedBy, release: Release) -> None:
    mended = mended_by(release)
    opened = [call("get_session", mended.zombie)]
    for _ in range(2):
        mended.hermes(*opened, release=NEWEST)
    mended.hermes(call("append_message", mended.zombie, "user", "on the new release"), release=NEWEST)
    upgraded = image_of(mended.home.store)
    assert upgraded.columns["messages"] != mended.before.columns["messages"]
    mended.all_restored()
    now = image_of(mended.home.store)
    _as_before(mended, now)
    # What the upgrade gave to rows that are still there stays with them.
    uids = {row["id"]: row["message_uid"] for row in upgraded.table("messages")}
    assert None not in uids.values()
    assert {row["id"]: row["message_uid"] for row in now.table("messages")} == uids
    assert mended.patient.findings() != []


def _as_before(mended: Mended, now: Image, *, tables: tuple[str, ...] = ("sessions", "messages")) -> None:
    """The rows of before are there again in every column that they had, apart from what an upgrade moves itself."""
    moved = {"system_prompt", "message_count", "model_config"}
    for table in tables:
        names = tuple(name for name in mended.before.columns[table] if name not in moved)
        known = {row[0] for row in rows_of(mended.before, table, ("id",))}
        rows = [row for row in rows_of(now, table, ("id", *names)) if row[0] in known]
        assert rows == rows_of(mended.before, table, ("id", *names))


RECOVER = """
import pathlib, sys
from hermes_cli.session_recovery import recover_session_database
report = recover_session_database(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
print(report)
"""


def recovered(home: Home) -> None:
    """`hermes sessions recover` of 0.22.2 into a fresh file, moved into place by hand."""
    output = home.path / "recovered-state.db"
    done = subprocess.run(
        [sys.executable, "-P", "-c", RECOVER, str(home.store), str(output)],
        capture_output=True,
        text=True,
        env=environment(home.path, NEWEST),
        cwd=home.path,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for suffix in ("-wal", "-shm"):
        home.store.with_name(home.store.name + suffix).unlink(missing_ok=True)
    output.replace(home.store)


@pytest.mark.parametrize("release", [get("0.13.0"), MIDDLE, get("0.21.5"), NEWEST], ids=str)
def test_a_recovery_into_a_fresh_file_in_between(mended_by: MendedBy, release: Release) -> None:
    mended = mended_by(release)
    recovered(mended.home)
    fresh = image_of(mended.home.store)
    if not release.since("0.21.5"):
        # Neither the same columns nor the same order.
        assert fresh.columns["messages"][: len(mended.before.columns["messages"])] != mended.before.columns["messages"]
    mended.all_restored()
    _as_before(mended, image_of(mended.home.store))


@pytest.mark.parametrize("release", [MIDDLE, NEWEST], ids=str)
def test_columns_in_another_order_and_new_ones(mended_by: MendedBy, release: Release) -> None:
    mended = mended_by(release)
    for table in ("sessions", "messages"):
        reorder(mended.home.store, table)
    reordered = image_of(mended.home.store)
    assert reordered.columns["messages"][:2] != mended.before.columns["messages"][:2]
    mended.all_restored()
    _as_before(mended, image_of(mended.home.store))
    now = image_of(mended.home.store)
    assert {row["of a plugin"] for row in now.table("messages")} == {b"x"}


def reorder(store: Path, table: str) -> None:
    """Rebuilds a table with its columns the other way round and one more in front, triggers and indexes kept."""
    connection = apsw.Connection(str(store))
    kept = connection.execute(
        "SELECT sql FROM sqlite_schema WHERE tbl_name = ? AND type IN ('trigger', 'index') AND sql IS NOT NULL",
        (table,),
    ).fetchall()
    columns = connection.execute(
        'SELECT name, type, "notnull", dflt_value, pk FROM pragma_table_info(?)', (table,)
    ).fetchall()
    declared = ["\"of a plugin\" TEXT DEFAULT 'x'"]
    for name, kind, not_null, default, key in reversed(columns):
        # messages.id is the rowid.
        parts = [
            f'"{name}"',
            kind,
            "PRIMARY KEY AUTOINCREMENT" if key and kind == "INTEGER" else "PRIMARY KEY" if key else "",
        ]
        parts += ["NOT NULL" if not_null else "", f"DEFAULT {default}" if default is not None else ""]
        declared.append(" ".join(part for part in parts if part))
    names = ", ".join(f'"{column[0]}"' for column in columns)
    connection.execute("PRAGMA foreign_keys=OFF; PRAGMA legacy_alter_table=ON; BEGIN")
    views = connection.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'view'").fetchall()
    connection.execute(f"CREATE TABLE rebuilt ({', '.join(declared)})")
    connection.execute(f"INSERT INTO rebuilt ({names}) SELECT {names} FROM {table}")
    for name, _sql in views:
        connection.execute(f"DROP VIEW {name}")
    connection.execute(f"DROP TABLE {table}; ALTER TABLE rebuilt RENAME TO {table}")
    for statement in [view for _name, view in views] + [statement for (statement,) in kept]:
        connection.execute(str(statement))
    connection.execute("COMMIT")
    connection.close()


@pytest.mark.parametrize("how", ["moved over it", "copied into it"])
@BOTH
def test_an_unrelated_store_in_its_place_is_never_written(
    mended_by: MendedBy, make_home: Callable[[str], Home], release: Release, how: str
) -> None:
    mended = mended_by(release)
    other = make_home("other")
    other.run(release, [call("create_session", "s1", "cli")])
    # Its messages have the numbers and the very cells that the run wrote.
    cells = [row for row in mended.after.table("messages") if row["session_id"] == mended.wrapped.encode()]
    steps = [call("append_message", "s1", "user", "x") for _ in mended.after.table("messages")]
    other.run(release, steps)
    for row in cells:
        if isinstance(row["tool_calls"], bytes) and isinstance(row["reasoning_details"], bytes):
            values = (row["tool_calls"].decode(), row["reasoning_details"].decode(), row["id"])
            other.run(release, [sql("UPDATE messages SET tool_calls = ?, reasoning_details = ? WHERE id = ?", *values)])
    _put_in_place(other.store, mended.home.store, how)
    swapped = fingerprint(mended.home.path)["state.db"]
    planned = mended.patient.undo(mended.run, apply=False)
    assert {change.state for change in planned.changes} == {CHANGED_SINCE}
    undo = mended.patient.undo(mended.run)
    assert undo.exit_code == 1
    assert {change.state for change in undo.changes} == {CHANGED_SINCE}
    assert len(undo.changes) == 5
    assert fingerprint(mended.home.path)["state.db"] == swapped
    assert undo.reason is not None
    assert "not the store" in undo.reason
    # And the run is not called undone: the right store may come back.
    assert mended.patient.run(mended.run).undone_at is None


def _put_in_place(source: Path, target: Path, how: str) -> None:
    for suffix in ("-wal", "-shm"):
        target.with_name(target.name + suffix).unlink(missing_ok=True)
    if how == "moved over it":
        source.replace(target)
    else:
        shutil.copyfile(source, target)


@pytest.mark.parametrize("release", [get("0.13.0"), NEWEST], ids=str)
def test_a_run_that_only_deleted_finds_its_store_again(make_home: Callable[[str], Home], release: Release) -> None:
    """Nothing is left of a deleted row by which a store could be known: what else was there tells."""
    home = make_home("home")
    plant = Planter(release)
    kept = plant.session("cli", idle=9 * DAY, name="kept")
    plant.say(kept, "user", "hello")
    plant.end(kept, "cli_close")
    stub = plant.orphan_stub("tui", end_reason="tui_close")
    home.run(release, [*plant.steps, clock(None)])
    before, patient = image_of(home.store), Patient(home.store, home.path)
    run = patient.mend().run
    # The same store in another file.
    copy = home.path / "copy"
    shutil.copyfile(home.store, copy)
    copy.replace(home.store)
    undo = patient.undo(run)
    assert outcome(undo) == ("fixed", 0, None)
    assert [(change.key, change.state) for change in undo.changes] == [(stub, RESTORED)]
    assert difference(before, image_of(home.store)) == []
