"""bad-times: what is no time is found in every table that has times, and named as what it is and no more."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from checks import bad_times
from checks.bad_times import CHECK
from hermes_doctor.engine.model import Finding, Severity
from hermes_doctor.engine.rows import ask
from hermes_doctor.store import times
from hermes_doctor.store.clocks import LATEST
from hermes_doctor.store.times import TIMES
from tests.checks.support import Planted, findings_of, once_a_release
from tests.oracle.home import CallError, Home
from tests.oracle.steps import Step, blob, call, clock, open_store, sql
from tests.store.views import view_of

INFO, WARNING, ERROR = Severity.INFO, Severity.WARNING, Severity.ERROR
SECRET = "when the cat came home"


@dataclass(frozen=True)
class TimeCase:
    """One row with a cell; ``kind``: what it is to be called, None where it is a time."""

    table: str
    column: str
    cell: Any
    kind: str | None = None
    severity: Severity = WARNING

    @property
    def name(self) -> str:
        return f"{self.column}: {self.kind or 'fine'}, {self.cell}"


def _each(table: str, column: str, severity: Severity, *kinds: str) -> tuple[TimeCase, ...]:
    return tuple(TimeCase(table, column, CELLS[kind], kind, severity) for kind in kinds)


CELLS: dict[str, Any] = {
    "text": SECRET,
    "date as text": "2026-01-02T03:04:05Z",
    "number as text": "1700000000.5",
    "blob": blob(b"\x00\xff"),
    "negative": -5.0,
    "zero": 3.9e-310,
    "milliseconds": 1_700_000_000_000,
    "beyond 2103": 5.49e246,
}
_FOUND = ("text", "date as text", "blob", "negative", "zero", "milliseconds", "beyond 2103")

CASES: tuple[TimeCase, ...] = (
    *_each("messages", "timestamp", WARNING, *_FOUND),
    *_each("sessions", "started_at", WARNING, *_FOUND),
    *_each("sessions", "ended_at", INFO, *_FOUND),
    *_each("sessions", "last_activity_at", WARNING, "text", "date as text", "blob"),
    *_each("sessions", "last_activity_at", INFO, "negative", "zero", "beyond 2103"),
    *_each("sessions", "last_read_at", ERROR, "text", "date as text", "blob"),
    *_each("sessions", "last_read_at", INFO, "negative", "beyond 2103"),
    *_each("sessions", "compression_failure_cooldown_until", WARNING, "text", "blob"),
    *_each("sessions", "compression_failure_cooldown_until", INFO, "beyond 2103"),
    *_each("sessions", "compression_recovery_deadline", INFO, "text", "zero"),
    TimeCase("messages", "timestamp", 0, "zero"),
    TimeCase("messages", "timestamp", LATEST, "beyond 2103"),
    TimeCase("sessions", "ended_at", 9e999, "beyond 2103", INFO),
    # Look-alikes.
    TimeCase("messages", "timestamp", LATEST - 1),
    TimeCase("messages", "timestamp", 1.0),
    TimeCase("messages", "timestamp", 1_700_000_000),
    TimeCase("sessions", "started_at", 300.0),
    TimeCase("sessions", "ended_at", None),
    TimeCase("sessions", "last_activity_at", None),
    TimeCase("sessions", "last_read_at", 0.0),
)

#: Rows of the other tables: how they come about, how bad they are and what is to be found in them.
OTHERS: dict[str, tuple[str, Severity, list[str]]] = {
    "compression_locks": (
        "INSERT INTO compression_locks VALUES ('lock', 'x', -1.0, 'now')",
        WARNING,
        ["negative", "text"],
    ),
    "gateway_routing": (
        "INSERT INTO gateway_routing(session_key, entry_json, updated_at) VALUES ('route', '{}', 1e300)",
        INFO,
        ["beyond 2103"],
    ),
    "session_turn_leases": (
        "INSERT INTO session_turn_leases VALUES ('lease', 'x', 0, 1.7e12)",
        INFO,
        ["zero", "milliseconds"],
    ),
    "gateway_heartbeats": (
        "INSERT INTO gateway_heartbeats(backend_id, pid, started_at, last_heartbeat) VALUES ('b', 1, 1.6e9, x'00')",
        INFO,
        ["blob"],
    ),
    # Not a time: what counts the ticks of a machine.
    "async_delegations": (
        "INSERT INTO async_delegations(delegation_id, origin_session, parent_session_id, state, dispatched_at,"
        " updated_at, owner_started_at, event_json) VALUES ('d', '', 'p', 'running', 1.6e9, 1.6e9, -5, '')",
        INFO,
        [],
    ),
}


def plant_cases(home: Home, version: str) -> Planted[TimeCase]:
    """A session and a message for each case; those without a place in the release's schema are left out."""
    made = home.run(version, [open_store(), sql("SELECT name FROM pragma_table_info('sessions')")])
    columns = {row[0] for row in made[1]} | {"timestamp"}
    tables = {row[0] for row in home.run(version, [sql("SELECT name FROM sqlite_schema")])[0]}
    cases = tuple(case for case in CASES if case.column in columns)
    steps: list[Step] = []
    for case in cases:
        steps.append(call("create_session", case.name, "cli"))
        steps.append(call("append_message", case.name, "user", "hello"))
        key = "session_id" if case.table == "messages" else "id"
        steps.append(sql(f"UPDATE {case.table} SET {case.column} = ? WHERE {key} = ?", case.cell, case.name))
    steps += [sql(statement) for table, (statement, *_) in OTHERS.items() if table in tables]
    home.run(version, steps)
    return Planted(home, time.time(), cases, tuple(findings_of(home.store, CHECK, home=home.path)))


@pytest.fixture(scope="module")
def planted(oracle: None, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Planted[TimeCase]]:
    return once_a_release(plant_cases, tmp_path_factory)


def told(findings: tuple[Finding, ...] | list[Finding]) -> dict[Any, Any]:
    return {
        (f.table, f.session): (f.severity, f.detail["columns"], f.detail["kinds"])
        for f in findings
        if f.table in ("messages", "sessions")
    }


def wanted(cases: tuple[TimeCase, ...]) -> dict[Any, Any]:
    return {(c.table, c.name): (c.severity, [c.column], [c.kind]) for c in cases if c.kind is not None}


@pytest.mark.parametrize("version", ["0.13.0", "0.22.2"])
def test_each_cell_is_judged_right(planted: Callable[[str], Planted[TimeCase]], version: str) -> None:
    store = planted(version)
    assert told(store.findings) == wanted(store.cases)
    with view_of(store.home.store) as view:
        for finding in store.findings:
            assert list(ask(CHECK, [finding.key], view, finding.table)) == [finding]
            # Neither a text nor a part of it.
            assert SECRET not in f"{finding.summary} {finding.detail}"
            assert "2026-01" not in f"{finding.summary} {finding.detail}"


def test_every_table_with_times_is_looked_at(planted: Callable[[str], Planted[TimeCase]]) -> None:
    found = {f.table: f for f in planted("0.22.2").findings if f.table not in ("messages", "sessions")}
    assert {table: (f.severity, f.detail["kinds"]) for table, f in found.items()} == {
        table: (severity, kinds) for table, (_, severity, kinds) in OTHERS.items() if kinds
    }
    assert (found["compression_locks"].session, found["session_turn_leases"].session) == ("lock", "lease")
    assert found["gateway_routing"].key == ("", "route")


@pytest.mark.parametrize("version", ["0.18.2", "0.22.2"])
def test_every_time_of_a_release_is_known(home: Home, oracle: None, version: str) -> None:
    """What its tables hold that goes by the name of a time is one of ours, or is named here."""
    columns = sql(
        "SELECT lower(t.name), c.name FROM pragma_table_list t, pragma_table_info(t.name) c WHERE t.schema = 'main'"
        " AND (c.name LIKE '%\\_at' ESCAPE '\\' OR c.name LIKE '%time%' OR c.name LIKE '%seen' OR c.name LIKE '%until')"
    )
    others = {("async_delegations", "owner_started_at")}
    known = {(table, time.column) for table, times in TIMES.items() for time in times.times}
    topics = call("enable_telegram_topic_mode", chat_id="1", user_id="2")
    assert {(table, column) for table, column in home.run(version, [topics, columns])[1]} <= known | others


def test_columns_of_another_type(home: Home, oracle: None) -> None:
    """Numbers in a column of texts are texts; without NOT NULL a time may be missing."""
    schema = "UPDATE sqlite_schema SET sql = replace(replace(sql, ?, ?), ?, ?) WHERE name = ?"
    home.run(
        "0.16.0",
        [
            open_store(),
            sql("PRAGMA writable_schema = ON"),
            sql(schema, "timestamp REAL NOT NULL", "timestamp TEXT", "started_at REAL", "started_at", "messages"),
            sql(schema, "ended_at REAL", "ended_at", "started_at REAL NOT NULL", "started_at", "sessions"),
        ],
    )
    home.run(
        "0.16.0",
        [
            call("create_session", "a", "cli"),
            call("append_message", "a", "user", "hello"),
            sql("INSERT INTO messages(session_id, role) VALUES ('a', 'user')"),
            sql("UPDATE sessions SET started_at = NULL, ended_at = '1700000000.5'"),
        ],
    )
    kinds = [(f.table, f.detail["columns"], f.detail["kinds"], f.severity) for f in findings_of(home.store, CHECK)]
    assert kinds == [
        ("messages", ["timestamp"], ["number as text"], WARNING),
        ("messages", ["timestamp"], ["missing"], WARNING),
        ("sessions", ["started_at", "ended_at"], ["missing", "number as text"], WARNING),
    ]


def two_chats() -> list[Step]:
    """One from two hours ago, and one that is newer."""
    steps: list[Step] = []
    for hours, name in ((2, "older"), (1, "newer")):
        steps.append(clock(time.time() - hours * 3600))
        steps += [call("create_session", name, "cli"), call("append_message", name, "user", "hello")]
    return [*steps, clock(None)]


@pytest.mark.parametrize("version", ["0.13.0", "0.20.0", "0.22.2"])
def test_absurd_numbers_sort_and_prune(home: Home, oracle: None, version: str) -> None:
    def changed(cell: Any, table: str, column: str) -> Step:
        return sql(
            f"UPDATE {table} SET {column} = ? WHERE {'session_id' if table == 'messages' else 'id'} = 'older'", cell
        )

    by_activity = call("list_sessions_rich", order_by_last_active=True)
    steps = [
        *two_chats(),
        changed(5.49e246, "messages", "timestamp"),
        by_activity,
        changed(1.7e9, "messages", "timestamp"),
        changed(5.49e246, "sessions", "started_at"),
        call("list_sessions_rich"),
        changed(-5.0, "sessions", "started_at"),
        call("end_session", "older", "cli_close"),
        call("prune_sessions", 90),
    ]
    values = home.run(version, steps)
    (absurd, begun), pruned = (
        [[row["id"] for row in rows] for rows in values if isinstance(rows, list) and rows],
        values[-1],
    )
    assert absurd == (["newer", "older"] if version == "0.22.2" else ["older", "newer"])
    assert begun == ["older", "newer"]
    assert pruned == 1


@pytest.mark.parametrize("version", ["0.20.0", "0.22.2"])
def test_text_ends_every_list_and_locks_a_chat_for_ever(home: Home, oracle: None, version: str) -> None:
    steps = [
        *two_chats(),
        sql("UPDATE sessions SET last_read_at = ?, compression_failure_cooldown_until = ?", SECRET, SECRET),
        sql("INSERT INTO compression_locks VALUES ('older', 'x', 1.6e9, ?)", SECRET),
        call("list_sessions_rich"),
        call("get_compression_failure_cooldown", "older"),
        call("try_acquire_compression_lock", "older", "me"),
    ]
    *_, listed, asked, locked = home.run(version, steps, check=False)
    assert [isinstance(answer, CallError) and answer.kind for answer in (listed, asked)] == ["ValueError"] * 2
    assert isinstance(locked, CallError) or locked is False
    assert {f.severity for f in findings_of(home.store, CHECK)} == {ERROR, WARNING}


# Deliberately wrong variants: each must get at least one cell wrong.


def _trusting(time: times.Time, cell: Any) -> str | None:
    return None if isinstance(cell, int | float) and 0 < cell < LATEST else "zero"


VARIANTS: dict[str, tuple[Any, str, Any]] = {
    "whatever is above 0 is a time": (bad_times, "kind", _trusting),
    "any number is a time": (times, "LATEST", 1e308),
    "nobody reads it": (bad_times, "_BREAKS_LISTS", ()),
    "everything sorts": (bad_times, "_SORTED_BY", frozenset((t, c.column) for t in TIMES for c in TIMES[t].times)),
    "dates are told from other text no more": (times, "_kind_of_text", lambda _text: "text"),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_wrong_variant_fails(
    planted: Callable[[str], Planted[TimeCase]], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    store = planted("0.22.2")
    monkeypatch.setattr(*VARIANTS[name])
    assert told(findings_of(store.home.store, CHECK)) != wanted(store.cases)
