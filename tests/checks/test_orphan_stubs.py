"""orphan-stubs: empty rows that real releases leave are found, everything that somebody still needs is left."""

from __future__ import annotations

import json
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from checks import orphan_stubs
from checks.orphan_stubs import CHECK
from hermes_doctor.engine.model import Check, Finding, RelationRule, Safety, Severity
from hermes_doctor.host.settings import NO_SETTINGS
from hermes_doctor.store import references as references_module
from hermes_doctor.store import stubs as stubs_module
from hermes_doctor.store.cells import Key
from hermes_doctor.store.opening import open_without_trace
from hermes_doctor.store.reader import Reader
from hermes_doctor.store.references import References
from hermes_doctor.store.shape import read_shape
from hermes_doctor.store.sources import Group
from hermes_doctor.store.view import StoreView
from tests.checks.support import findings_of
from tests.oracle.home import Home
from tests.oracle.process import HermesProcess
from tests.oracle.releases import CHAINS, NEWEST, Release, get
from tests.oracle.steps import Step, call, clock, sql
from tests.oracle.templates import LivedIn

MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0
SAFE_SOURCES = (
    "cli",
    "cron",
    "kanban",
    "acp",
    "api_server",
    "subagent",
    "tool",
    "oneshot",
    "recovered",
    "tui",
    "desktop",
)
UNSAFE_SOURCES = ("unknown", "webui", "telegram", "webhook", "weird source")


@dataclass(frozen=True)
class Plant:
    """What a case gets to plant its row with: the session's id, the release, the moment of planting."""

    session: str
    release: Release
    now: float

    def row(
        self, source: str = "tui", *, ago: float = 3 * DAY, end: str | None = "tui_close", **columns: Any
    ) -> list[Step]:
        """An empty row that began so long ago; ``end`` None leaves it open."""
        steps = [clock(self.now - ago), call("create_session", self.session, source, **columns)]
        return steps if end is None else [*steps, call("end_session", self.session, end)]

    def other(self, name: str) -> str:
        """The id of another session of the case."""
        return f"{self.session}-{name}"

    def talked(self, name: str, *, source: str = "cli", end: str = "cli_close", **columns: Any) -> list[Step]:
        """Another session of the case, with messages in it, ended."""
        session = self.other(name)
        return [
            call("create_session", session, source, **columns),
            call("append_message", session, "user", "hello"),
            call("append_message", session, "assistant", "hi"),
            call("end_session", session, end),
        ]

    def set(self, column: str, value: object) -> Step:
        """Sets one column of the row."""
        return sql(f"UPDATE sessions SET {column} = ? WHERE id = ?", value, self.session)


@dataclass(frozen=True)
class Case:
    """One row and what may lie around it. ``expected``: the safety of the finding, None for no finding."""

    name: str
    plant: Callable[[Plant], list[Step]]
    expected: Safety | None = None
    since: str = "0.13.0"
    files: Callable[[Path, str], None] | None = None


def in_json(place: str, make: Callable[[str], object]) -> Callable[[Path, str], None]:
    """Puts a mention into a JSON file that several cases share: an object, one key a case."""

    def write(home: Path, session: str) -> None:
        path = home / place
        path.parent.mkdir(parents=True, exist_ok=True)
        known = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(known | {f"key of {session}": make(session)}))

    return write


def in_file(name: str) -> Callable[[Path, str], None]:
    """Makes an empty file among the transcripts."""

    def write(home: Path, session: str) -> None:
        (home / "sessions").mkdir(exist_ok=True)
        (home / "sessions" / name.format(session)).write_text("")

    return write


def in_database(place: str, schema: str, insert: str, make: Callable[[str], str] = str) -> Callable[[Path, str], None]:
    """Puts a mention into another database of the home, which is in WAL mode as hermes's are."""

    def write(home: Path, session: str) -> None:
        (home / place).parent.mkdir(exist_ok=True)
        with sqlite3.connect(home / place) as connection:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute(schema)
            connection.execute(insert, (make(session),))
        connection.close()

    return write


def usage(p: Plant) -> list[Step]:
    """What an auxiliary model call leaves: a usage row, while the session's own counters stay 0."""
    return [
        *p.row(),
        sql("INSERT INTO session_model_usage (session_id, model, api_call_count) VALUES (?, 'm', 1)", p.session),
    ]


def only_continuation(p: Plant) -> list[Step]:
    return [
        clock(p.now - 3 * DAY),
        *p.talked("parent", end="compression"),
        *p.row("cli", parent_session_id=p.other("parent")),
    ]


def both_continuations_empty(p: Plant) -> list[Step]:
    second = p.other("second")
    return [
        *only_continuation(p),
        call("create_session", second, "cli", parent_session_id=p.other("parent")),
        call("end_session", second, "cli_close"),
    ]


def surplus_continuation(p: Plant) -> list[Step]:
    return [*only_continuation(p), *p.talked("real", parent_session_id=p.other("parent"))]


def child_of_a_closed_parent(p: Plant) -> list[Step]:
    return [clock(p.now - 3 * DAY), *p.talked("parent"), *p.row("subagent", parent_session_id=p.other("parent"))]


def has_a_child(p: Plant) -> list[Step]:
    return [*p.row(), *p.talked("child", parent_session_id=p.session)]


def marker_elsewhere(p: Plant) -> list[Step]:
    return [*p.row(), *p.talked("branch", model_config={"_branched_from": p.session})]


def delegation(p: Plant, column: str) -> list[Step]:
    """A delegation that is over and delivered: history, but it names the row."""
    columns = "delegation_id, origin_session, state, dispatched_at, updated_at, delivery_state"
    values = [p.session + "-delegation", "", "completed", p.now, p.now, "delivered"]
    if column == "origin_session":
        values[1] = p.session
    else:
        columns += f", {column}"
        values.append(p.session)
    marks = ", ".join("?" * len(values))
    return [*p.row(), sql(f"INSERT INTO async_delegations ({columns}) VALUES ({marks})", *values)]


def family_at_work(p: Plant) -> list[Step]:
    """A turn is running in the root of the row's family."""
    return [
        clock(p.now - 3 * DAY),
        *p.talked("root"),
        *p.row("subagent", parent_session_id=p.other("root")),
        sql("INSERT INTO session_turn_leases VALUES (?, 'pid=1:turn=t', ?, ?)", p.other("root"), p.now, p.now + DAY),
    ]


def keyed(p: Plant, session: str, ago: float) -> list[Step]:
    """An open row of a chat, as the gateway makes it."""
    return [
        clock(p.now - ago),
        call("create_session", session, "telegram"),
        sql("UPDATE sessions SET session_key = ? WHERE id = ?", f"agent:main:telegram:dm:{p.session}", session),
    ]


def taken_over(p: Plant) -> list[Step]:
    newer = p.other("newer")
    return [*keyed(p, p.session, 9 * DAY), *keyed(p, newer, 2 * DAY), call("append_message", newer, "user", "hi")]


def row(source: str = "tui", *, ago: float = 3 * DAY, end: str | None = "tui_close") -> Callable[[Plant], list[Step]]:
    return lambda p: p.row(source, ago=ago, end=end)


def with_cell(column: str, value: object) -> Callable[[Plant], list[Step]]:
    """An ended row of which one cell is made to hold that."""
    return lambda p: [*p.row(), p.set(column, value)]


def with_plugin(columns: str, make: Callable[[str], object] = str, options: str = "") -> Callable[[Plant], list[Step]]:
    """An ended row, and a table that no release knows with what ``make`` makes of its id."""

    def plant(p: Plant) -> list[Step]:
        table = f'"plugin {p.session}"'
        create = f"CREATE TABLE {table} ({columns}) {options}"
        return [*p.row(), sql(create), sql(f"INSERT INTO {table} VALUES (?)", make(p.session))]

    return plant


def with_delegation(column: str) -> Callable[[Plant], list[Step]]:
    return lambda p: delegation(p, column)


SAFE, UNSAFE = Safety.SAFE, Safety.UNSAFE

FAULTS: tuple[Case, ...] = (
    *(Case(f"ended {source}", row(source), SAFE) for source in SAFE_SOURCES),
    *(Case(f"ended {source}", row(source), UNSAFE) for source in UNSAFE_SOURCES),
    *(
        Case(f"open {source}", row(source, end=None), SAFE)
        for source in ("cli", "cron", "kanban", "subagent", "tool", "oneshot", "tui", "desktop")
    ),
    Case("open unknown", row("unknown", end=None), UNSAFE),
    Case("open api_server past the retention", row("api_server", end=None, ago=91 * DAY), SAFE),
    Case("open acp past the retention", row("acp", end=None, ago=91 * DAY), SAFE),
    Case("open recovered past the retention", row("recovered", end=None, ago=91 * DAY), SAFE),
    Case("open telegram, taken over", taken_over, UNSAFE, "0.18.0"),
    Case("counter says seven", with_cell("message_count", 7), SAFE),
    Case("counter says nothing", with_cell("message_count", None), SAFE),
    Case("counters are NULL", with_cell("input_tokens", None), SAFE),
    Case("archived", with_cell("archived", 1), SAFE, "0.16.0"),
    Case("hidden", with_cell("hidden", 1), SAFE, "0.20.6"),
    Case("a continuation beside a real one", surplus_continuation, SAFE),
    Case("child of a closed parent", child_of_a_closed_parent, SAFE),
    Case("ended long ago", row(ago=70 * DAY), SAFE),
    Case(
        "ended just now", lambda p: [*p.row(end=None), clock(p.now), call("end_session", p.session, "tui_close")], SAFE
    ),
    Case("its own row names it", lambda p: p.row(model_config={"gateway_runtime": {"session_id": p.session}}), SAFE),
    Case("broken model_config", with_cell("model_config", "{no json"), SAFE),
)

LOOK_ALIKES: tuple[Case, ...] = (
    # It held something.
    Case(
        "counter 0 with messages",
        lambda p: [
            *p.row(end=None),
            call("append_message", p.session, "user", "hi"),
            p.set("message_count", 0),
            call("end_session", p.session, "tui_close"),
        ],
    ),
    Case(
        "inactive rows only",
        lambda p: [
            *p.row(end=None),
            call("append_message", p.session, "user", "hi"),
            sql("UPDATE messages SET active = 0 WHERE session_id = ?", p.session),
            p.set("message_count", 0),
            call("end_session", p.session, "tui_close"),
        ],
        since="0.16.0",
    ),
    Case("titled", lambda p: [*p.row(), call("set_session_title", p.session, f"a title for {p.session}")]),
    Case("an empty title", with_cell("title", "")),
    Case("pinned", lambda p: [*p.row(), call("set_session_pinned", p.session, True)], since="0.20.0"),
    Case("a failed handoff", with_cell("handoff_state", "failed")),
    Case("usage only", usage, since="0.19.0"),
    *(
        Case(f"{column} only", with_cell(column, 1))
        for column in (
            "tool_call_count",
            "api_call_count",
            "input_tokens",
            "output_tokens",
            "cache_read_tokens",
            "cache_write_tokens",
            "reasoning_tokens",
            "estimated_cost_usd",
            "actual_cost_usd",
        )
    ),
    Case("was rewound", with_cell("rewind_count", 1), since="0.16.0"),
    # Somebody needs it.
    Case("child only", has_a_child),
    Case("only continuation", only_continuation),
    Case(
        "only continuation, open", lambda p: [*only_continuation(p), p.set("ended_at", None), p.set("end_reason", None)]
    ),
    Case("one of two empty continuations", both_continuations_empty),
    Case("marker only", marker_elsewhere),
    Case("family at work", family_at_work, since="0.20.6"),
    # Somebody refers to it.
    Case("transcript only, json", row(), files=in_file("{}.json")),
    Case("transcript only, jsonl", row(), files=in_file("{}.jsonl")),
    Case("request dump only", row(), files=in_file("request_dump_{}_20260901.json")),
    Case(
        "named in sessions.json only",
        row("telegram"),
        files=in_json("sessions/sessions.json", lambda s: {"session_id": s}),
    ),
    Case(
        "a cli row in sessions.json", row("cli"), files=in_json("sessions/sessions.json", lambda s: {"session_id": s})
    ),
    Case(
        "named in active_sessions.json",
        row(),
        files=in_json("runtime/active_sessions.json", lambda s: [{"session_id": s}]),
    ),
    Case("named in cron/jobs.json", row(), files=in_json("cron/jobs.json", lambda s: {"origin": {"session_id": s}})),
    Case(
        "named in kanban.db only",
        row("kanban"),
        files=in_database(
            "kanban.db",
            "CREATE TABLE IF NOT EXISTS tasks (id INTEGER PRIMARY KEY, session_id TEXT)",
            "INSERT INTO tasks (session_id) VALUES (?)",
        ),
    ),
    Case(
        "named in the JSON of response_store.db only",
        row("api_server"),
        files=in_database(
            "response_store.db",
            "CREATE TABLE IF NOT EXISTS responses (response_id INTEGER PRIMARY KEY, data TEXT)",
            "INSERT INTO responses (data) VALUES (?)",
            lambda s: json.dumps({"session_id": s, "output": []}),
        ),
    ),
    Case(
        "named in cron/executions.db only",
        row("cron"),
        files=in_database(
            "cron/executions.db",
            "CREATE TABLE IF NOT EXISTS messages (session_id TEXT)",
            "INSERT INTO messages VALUES (?)",
        ),
    ),
    Case("in a plugin's table", with_plugin("chat_session TEXT")),
    Case("in a plugin's table by root", with_plugin("root_id TEXT PRIMARY KEY")),
    Case("in a plugin's table without rowid", with_plugin("conversation_id TEXT PRIMARY KEY", options="WITHOUT ROWID")),
    Case("in a plugin's JSON", with_plugin("payload TEXT", lambda s: json.dumps({"a": [{"origin_session_id": s}]}))),
    Case("in a plugin's camel case", with_plugin("payload TEXT", lambda s: json.dumps({"sessionId": s}))),
    Case("in a plugin's list", with_plugin("payload TEXT", lambda s: json.dumps({"session_ids": [1, s]}))),
    Case(
        "in JSON inside JSON",
        with_plugin("payload TEXT", lambda s: json.dumps({"x": json.dumps({"session_id": s})})),
    ),
    Case("in broken JSON", with_plugin("payload TEXT", lambda s: json.dumps({"session_id": s, "y": 1})[:-1])),
    Case(
        "in state_meta's JSON",
        lambda p: [
            *p.row(),
            sql("INSERT INTO state_meta VALUES (?, ?)", f"k{p.session}", json.dumps({"session_id": p.session})),
        ],
    ),
    Case("has a goal", lambda p: [*p.row(), sql("INSERT INTO state_meta VALUES (?, '{}')", f"goal:{p.session}")]),
    Case(
        "in gateway_routing only",
        lambda p: [
            *p.row("telegram"),
            sql(
                "INSERT INTO gateway_routing (scope, session_key, entry_json, updated_at) VALUES ('s', ?, ?, 1.0)",
                p.session,
                json.dumps({"session_id": p.session}),
            ),
        ],
        since="0.18.2",
    ),
    *(
        Case(f"in a delegation's {column}", with_delegation(column), since=since)
        for column, since in (
            ("origin_session", "0.19.0"),
            ("origin_ui_session_id", "0.19.0"),
            ("parent_session_id", "0.19.0"),
            ("origin_session_id", "0.21.5"),
        )
    ),
    Case(
        "an expired lock",
        lambda p: [*p.row(), sql("INSERT INTO compression_locks VALUES (?, 'pid=1', 1.0, 2.0)", p.session)],
        since="0.16.0",
    ),
    Case(
        "an expired lease",
        lambda p: [*p.row(), sql("INSERT INTO session_turn_leases VALUES (?, 'pid=1', 1.0, 2.0)", p.session)],
        since="0.20.6",
    ),
    # It is not idle, or nobody knows.
    Case("young", row(ago=12 * HOUR)),
    Case("old, used lately", lambda p: [*p.row(ago=9 * DAY), p.set("last_activity_at", p.now - HOUR)], since="0.20.0"),
    Case("begins tomorrow", with_cell("started_at", time.time() + DAY)),
    Case("begins never", with_cell("started_at", 0.0)),
    Case("begins in text", with_cell("started_at", "long ago")),
    Case("begins beyond reason", with_cell("started_at", 5e246)),
    Case("activity beyond reason", with_cell("last_activity_at", 5e246), since="0.20.0"),
    # It is open, and well.
    Case("open api_server for two days", row("api_server", end=None, ago=2 * DAY)),
    Case("open acp for two days", row("acp", end=None, ago=2 * DAY)),
    Case("open recovered for two days", row("recovered", end=None, ago=2 * DAY)),
    Case("open telegram", row("telegram", end=None)),
    Case("open telegram, not taken over", lambda p: keyed(p, p.session, 9 * DAY), since="0.18.0"),
    Case("open, lately handed off", lambda p: [*p.row(end=None), p.set("handoff_state", "pending")]),
)

CASES = (*FAULTS, *LOOK_ALIKES)
BY_NAME = {case.name: case for case in CASES}


@dataclass(frozen=True)
class Planted:
    """A home with one row for each case that the release can show, by the row's id."""

    home: Home
    cases: dict[str, Case]

    @property
    def expected(self) -> dict[str, Safety]:
        """What must be found, by the names of the cases."""
        return {case.name: case.expected for case in self.cases.values() if case.expected is not None}

    def named(self, findings: Sequence[Finding]) -> dict[str, Safety]:
        """The findings by the names of their cases; what is no case's row by its id."""
        return {self.cases[str(f.key)].name if str(f.key) in self.cases else str(f.key): f.fix for f in findings}


def numbered(release: Release, cases: Sequence[Case]) -> dict[str, Case]:
    """The cases that the release can show, by the ids of their rows."""
    return {f"s{number:03}": case for number, case in enumerate(cases) if release.since(case.since)}


def plant(home: Home, release: Release, cases: Sequence[Case] = CASES) -> Planted:
    """Builds the home through the release, all cases in one run of it."""
    now = time.time()
    planted = Planted(home, numbered(release, cases))
    steps: list[Step] = []
    for session, case in planted.cases.items():
        steps += case.plant(Plant(session, release, now))
    home.run(release, steps)
    for session, case in planted.cases.items():
        if case.files is not None:
            case.files(home.path, session)
    return planted


PlantedBy = Callable[[Release], Planted]


@pytest.fixture
def planted_by(oracle: None, shared_folder: Path, tmp_path: Path) -> PlantedBy:
    """Private copies of homes with all cases; each release plants them once in a test run."""

    def copy(release: Release) -> Planted:
        template = shared_folder / "orphan-stubs" / release.version
        template.parent.mkdir(exist_ok=True)
        with FileLock(template.with_suffix(".lock")):
            if not template.exists():
                unfinished = template.with_suffix(".unfinished")
                shutil.rmtree(unfinished, ignore_errors=True)
                plant(Home(unfinished), release)
                unfinished.rename(template)
        return Planted(Home(shutil.copytree(template, tmp_path / "planted")), numbered(release, CASES))

    return copy


def scan(planted: Planted, check: Check = CHECK, **options: Any) -> list[Finding]:
    return findings_of(planted.home.store, check, **({"home": planted.home.path} | options))


def test_every_fault_is_found_and_every_look_alike_is_left(planted_by: PlantedBy, release: Release) -> None:
    planted = planted_by(release)
    findings = scan(planted)
    assert planted.named(findings) == planted.expected
    assert len(findings) == len(planted.expected)
    for finding in findings:
        assert finding.severity is Severity.WARNING
        assert (finding.table, finding.session) == ("sessions", finding.key)
        assert finding.action == "delete the empty row"
        assert finding.detail["unseen"] == []
    words = {planted.cases[str(f.key)].name: f.summary for f in findings}
    assert words["ended tui"] == "never held anything, ended and idle for 3 days"
    assert words["open cli"] == "never held anything, open and idle for 3 days"


@contextmanager
def viewed(planted: Planted, **options: Any) -> Iterator[StoreView]:
    """The planted store, open as a scan has it."""
    with open_without_trace(planted.home.store) as store:
        shape = read_shape(store.connection)
        reader = Reader(store.connection, store.pace, encoding=shape.encoding)
        values: dict[str, Any] = {"now": time.time(), "held": store.holding.state, "home": planted.home.path}
        yield StoreView(reader=reader, shape=shape, settings=NO_SETTINGS, **(values | options))


def test_asked_about_single_rows_it_says_the_same(planted_by: PlantedBy) -> None:
    planted = planted_by(NEWEST)
    assert isinstance(CHECK.rule, RelationRule)
    with viewed(planted) as view:
        whole = {finding.key: finding for finding in CHECK.rule.find(view, None)}
        for session in list(planted.cases)[::7]:
            alone = list(CHECK.rule.find(view, [session]))
            assert alone == ([whole[session]] if session in whole else []), planted.cases[session].name
        for first in range(3):
            some = list(planted.cases)[first::3]
            assert {f.key: f for f in CHECK.rule.find(view, some)} == {s: whole[s] for s in some if s in whole}
        assert list(CHECK.rule.find(view, [])) == []
        assert list(CHECK.rule.find(view, ["no such row"])) == []


#: What is moved over the day's threshold, the cases for it, and whether the row is open.
CLOCKS: tuple[Case, ...] = (
    Case("start of an ended row", lambda p: p.row(ago=DAY)),
    Case("start of an open row", lambda p: p.row("cli", ago=DAY, end=None)),
    Case("activity", lambda p: [*p.row(ago=9 * DAY), p.set("last_activity_at", p.now - DAY)], since="0.20.0"),
    Case(
        "activity before the start",
        lambda p: [*p.row(ago=DAY), p.set("last_activity_at", p.now - 9 * DAY)],
        since="0.20.0",
    ),
)


@pytest.mark.parametrize("version", ["0.13.0", "0.22.2"])
def test_a_day_is_a_day_on_every_clock(home: Home, oracle: None, version: str) -> None:
    release = get(version)
    now = time.time()
    planted = plant(home, release, CLOCKS)
    every = {case.name for case in planted.cases.values()}
    # Planting began a moment after `now` was taken: a minute is far more than that.
    assert planted.named(scan(planted, now=now - MINUTE)) == {}
    assert planted.named(scan(planted, now=now + MINUTE)).keys() == every
    week = 7 * DAY
    assert planted.named(scan(planted, now=now + week - DAY - MINUTE, idle_floor=week)) == {}
    assert planted.named(scan(planted, now=now + week - DAY + MINUTE, idle_floor=week)).keys() == every


STANDING: tuple[Case, ...] = tuple(
    Case(f"open {source}", row(source, ago=40 * DAY, end=None)) for source in ("api_server", "acp", "recovered")
)


def test_a_row_whose_healthy_state_is_open_is_left_until_the_retention(home: Home, oracle: None) -> None:
    now = time.time()
    planted = plant(home, NEWEST, STANDING)
    every = dict.fromkeys((case.name for case in STANDING), Safety.SAFE)
    for config, days in ((None, 90), ("sessions:\n  retention_days: 50\n", 50), ("sessions: [nonsense", 90)):
        if config is not None:
            (home.path / "config.yaml").write_text(config)
        until = (days - 40) * DAY
        assert planted.named(scan(planted, now=now + until - MINUTE)) == {}, config
        assert planted.named(scan(planted, now=now + until + MINUTE)) == every, config


@pytest.mark.parametrize("version", ["0.19.0", "0.22.2"])
def test_an_open_window_in_a_held_store_may_still_be_there(home: Home, oracle: None, version: str) -> None:
    names = ("open tui", "open desktop", "open cli", "ended tui")
    planted = plant(home, get(version), [BY_NAME[name] for name in names])
    with HermesProcess(home, version):
        assert planted.named(scan(planted)).keys() == {"open cli", "ended tui"}
    assert planted.named(scan(planted)).keys() == set(names)


def _broken(place: str, data: bytes = b'{"half": ') -> Callable[[Path], None]:
    def spoil(home: Path) -> None:
        (home / place).parent.mkdir(exist_ok=True)
        (home / place).write_bytes(data)

    return spoil


UNSEEN: tuple[tuple[str, Callable[[Path], None]], ...] = (
    ("cron/jobs.json is not readable", _broken("cron/jobs.json")),
    ("runtime/active_sessions.json is not readable", _broken("runtime/active_sessions.json")),
    ("sessions/sessions.json is not readable", _broken("sessions/sessions.json")),
    ("kanban.db is not readable", _broken("kanban.db", b"no database, " * 100)),
    ("cron/executions.db is not readable", _broken("cron/executions.db", b"SQLite format 3\x00 but not really")),
)


@pytest.mark.parametrize(("reason", "spoil"), UNSEEN, ids=[reason for reason, _ in UNSEEN])
def test_what_cannot_be_seen_makes_a_finding_unsafe(
    planted_by: PlantedBy, reason: str, spoil: Callable[[Path], None]
) -> None:
    planted = planted_by(NEWEST)
    spoil(planted.home.path)
    findings = scan(planted)
    said = planted.named(findings)
    assert set(said.values()) == {Safety.UNSAFE}
    assert {"ended tui", "open cli", "ended unknown"} <= said.keys()
    # Who knows whether a chat is routed to it.
    assert ("ended telegram" in said) == (not reason.startswith("sessions/"))
    for finding in findings:
        assert finding.detail["unseen"] == [reason]
        assert finding.summary.endswith(f"references cannot be seen: {reason}")


@pytest.mark.parametrize("version", ["0.13.0", "0.22.2"])
def test_a_store_without_its_home_hides_who_refers_to_it(planted_by: PlantedBy, version: str) -> None:
    planted = planted_by(get(version))
    findings = scan(planted, home=None)
    said = planted.named(findings)
    assert set(said.values()) == {Safety.UNSAFE}
    assert {"ended tui", "open cli"} <= said.keys()
    # The routing table of 0.22.2 is there to see; 0.13.0 has only sessions.json.
    assert ("ended telegram" in said) == (version == "0.22.2")
    assert {f.summary.partition("; ")[2] for f in findings} == {
        "references cannot be seen: the store stands without its home"
    }


def test_an_id_that_is_no_text_is_unsafe(home: Home, oracle: None) -> None:
    home.run(
        NEWEST,
        [
            clock(time.time() - 3 * DAY),
            *[call("create_session", session, "cli") for session in ("as blob", "as bad text", "plain")],
            sql("UPDATE sessions SET ended_at = started_at, end_reason = 'cli_close'"),
            sql("UPDATE sessions SET id = CAST('as blob' AS BLOB) WHERE id = 'as blob'"),
            sql("UPDATE sessions SET id = CAST(x'62ff64' AS TEXT) WHERE id = 'as bad text'"),
        ],
    )
    findings = findings_of(home.store, CHECK, home=home.path)
    assert {f.key: f.fix for f in findings} == {
        b"as blob": Safety.UNSAFE,
        b"b\xffd": Safety.UNSAFE,
        "plain": Safety.SAFE,
    }


def test_a_store_lived_in_has_none(lived_in: LivedIn, release: Release) -> None:
    lived = lived_in(release)
    assert findings_of(lived.home.store, CHECK, home=lived.home.path) == []
    # Nothing but age keeps the fresh one from being a stub: the home is one that could show it.
    later = findings_of(lived.home.store, CHECK, home=lived.home.path, now=time.time() + 2 * DAY)
    assert [finding.key for finding in later] == [lived["fresh"]]


@pytest.mark.parametrize("chain", CHAINS, ids="+".join)
def test_a_store_that_went_through_several_releases_has_none(
    lived_in: LivedIn, oracle: None, chain: tuple[str, ...]
) -> None:
    lived = lived_in(*chain)
    assert findings_of(lived.home.store, CHECK, home=lived.home.path) == []


def shown(release: Release, sessions: Sequence[str]) -> list[Step]:
    """All that a user of the release sees of these sessions."""
    calls = ("get_messages_as_conversation", "get_compression_tip", "resolve_resume_session_id")
    each = [call(name, session) for session in sessions for name in calls]
    return [call("list_sessions_rich", limit=100_000), *each]


@pytest.mark.parametrize("version", ["0.13.0", "0.17.0", "0.19.0", "0.20.6", "0.22.2"])
def test_the_release_shows_the_same_without_what_was_found(planted_by: PlantedBy, version: str) -> None:
    release, planted = get(version), planted_by(get(version))
    found = [str(finding.key) for finding in scan(planted)]
    rows = [str(row[0]) for row in planted.home.ask(release, sql("SELECT id FROM sessions"))]
    left = [session for session in rows if session not in found]
    # One row whose model_config is no JSON takes the list away in 0.16.0 to 0.20.6.
    mend = sql("UPDATE sessions SET model_config = NULL WHERE model_config = '{no json'")
    before = planted.home.run(release, [mend, *shown(release, left)])
    deletions = [sql("DELETE FROM sessions WHERE id = ?", session) for session in found]
    after = planted.home.run(release, [*deletions, *shown(release, left)])[len(deletions) :]
    listed = [each["id"] for each in before[1]]
    assert set(listed) & set(found)
    assert [each["id"] for each in after[0]] == [session for session in listed if session not in found]
    assert after[1:] == before[2:]
    assert scan(planted) == []


def test_looking_leaves_no_trace_in_the_home(planted_by: PlantedBy) -> None:
    planted = planted_by(NEWEST)

    def stamps() -> dict[Path, tuple[int, int]]:
        files = (path for path in planted.home.path.rglob("*") if path.is_file())
        return {path: (path.stat().st_size, path.stat().st_mtime_ns) for path in files}

    before = stamps()
    assert planted.home.path / "kanban.db" in before
    assert scan(planted)
    assert stamps() == before


def test_without_indexes_the_tables_are_read_instead(planted_by: PlantedBy) -> None:
    planted = planted_by(NEWEST)
    names = planted.home.ask(
        NEWEST,
        sql(
            "SELECT name FROM sqlite_master WHERE type = 'index' AND tbl_name IN ('messages', 'sessions') AND sql <> ''"
        ),
    )
    assert {"idx_messages_session", "idx_sessions_parent"} <= {name for (name,) in names}
    planted.home.run(NEWEST, [sql(f'DROP INDEX "{name}"') for (name,) in names])
    assert planted.named(scan(planted)) == planted.expected
    with viewed(planted) as view:
        # A look-up in 800,000 unindexed messages for each session would never end.
        assert "messages AS" not in (stubs_module._empty_sql(view.shape) or "messages AS")


@pytest.mark.parametrize("table", ["messages", "sessions"])
def test_a_store_without_the_table_has_none(planted_by: PlantedBy, table: str) -> None:
    planted = planted_by(get("0.13.0"))
    assert scan(planted)
    gone = [sql("PRAGMA foreign_keys=OFF"), sql(f"DROP TABLE {table}")]
    planted.home.run("0.13.0", gone)
    with viewed(planted) as view:
        assert list(stubs_module.stubs(view)) == []


@dataclass(frozen=True)
class Variant:
    """A check that is wrong on purpose, and a case that must catch it."""

    name: str
    caught_by: str
    spoil: Callable[[pytest.MonkeyPatch], None]


def without_belonging(*gone: str) -> Callable[[pytest.MonkeyPatch], None]:
    kept = tuple(each for each in stubs_module._BELONGINGS if each[0] not in gone)
    return lambda patch: patch.setattr(stubs_module, "_BELONGINGS", kept)


def counter_for_rows(patch: pytest.MonkeyPatch) -> None:
    without_belonging("messages")(patch)
    patch.setattr(stubs_module, "_COUNTERS", (*stubs_module._COUNTERS, "message_count"))


def active_rows_only(patch: pytest.MonkeyPatch) -> None:
    right = stubs_module._empty_sql
    messages = "FROM messages AS belonging WHERE"
    patch.setattr(
        stubs_module,
        "_empty_sql",
        lambda shape: (right(shape) or "0").replace(messages, f"{messages} belonging.active = 1 AND"),
    )


def without_term(text: str) -> Callable[[pytest.MonkeyPatch], None]:
    """The SQL without one of its terms."""

    def spoil(patch: pytest.MonkeyPatch) -> None:
        right = stubs_module._empty_sql
        patch.setattr(
            stubs_module,
            "_empty_sql",
            lambda shape: " AND ".join(term for term in (right(shape) or "0").split(" AND ") if text not in term),
        )

    return spoil


def deaf_to(*prefixes: str) -> Callable[[pytest.MonkeyPatch], None]:
    """References that miss what the places so named say."""

    def spoil(patch: pytest.MonkeyPatch) -> None:
        right = references_module.references

        def deaf(view: StoreView, sessions: Sequence[Key]) -> References:
            found = right(view, sessions)
            places = {
                name: tuple(place for place in heard if not place.startswith(prefixes))
                for name, heard in found.places.items()
            }
            return replace(found, places=places)

        patch.setattr(orphan_stubs, "references", deaf)

    return spoil


def no_look_at(table: str, place: str) -> Callable[[pytest.MonkeyPatch], None]:
    """Blind to a table, and deaf to what it would say as a reference: either alone would spare the row."""

    def spoil(patch: pytest.MonkeyPatch) -> None:
        without_belonging(table)(patch)
        deaf_to(place)(patch)

    return spoil


def always(name: str, value: object) -> Callable[[pytest.MonkeyPatch], None]:
    """One of the check's questions gets always the same answer."""
    return lambda patch: patch.setattr(orphan_stubs, name, lambda *_args: value)


def idle(seconds: float) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setattr(stubs_module, "IDLE_SECONDS", seconds)


def every_open_row_is_fit(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(orphan_stubs, "_fit", lambda _view, candidates: candidates)


def only_ended_rows(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(orphan_stubs, "_fit", lambda _view, candidates: [stub for stub in candidates if stub.ended])


def visibility_is_evidence(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(stubs_module, "_COUNTERS", (*stubs_module._COUNTERS, "archived", "hidden"))


VARIANTS: tuple[Variant, ...] = (
    Variant("counter for rows", "counter 0 with messages", counter_for_rows),
    Variant("counter for rows, the other way", "counter says seven", counter_for_rows),
    Variant("active rows only", "inactive rows only", active_rows_only),
    Variant("no look at children", "child only", no_look_at("sessions", "sessions.parent_session_id")),
    Variant("no look at usage", "usage only", no_look_at("session_model_usage", "session_model_usage")),
    Variant("no look at calls", "api_call_count only", lambda patch: patch.setattr(stubs_module, "_COUNTERS", ())),
    Variant("no look at titles", "titled", without_term('"title"')),
    Variant("no look at pins", "pinned", without_term('"pinned"')),
    Variant("visibility is evidence", "archived", visibility_is_evidence),
    Variant("sees no file", "named in sessions.json only", deaf_to("sessions/", "runtime/", "cron/jobs")),
    Variant(
        "sees no other database", "named in kanban.db only", deaf_to("kanban.db", "response_store.db", "cron/exec")
    ),
    Variant("sees no plugin's table", "in a plugin's table", deaf_to("plugin ")),
    Variant("sees no marker", "marker only", deaf_to("sessions.model_config")),
    Variant("sees no state_meta", "has a goal", deaf_to("state_meta")),
    Variant("sees no route", "in gateway_routing only", deaf_to("gateway_routing")),
    Variant("sees no transcript", "transcript only, json", always("has_transcript", False)),
    Variant("takes the only continuation", "only continuation", always("_is_only_continuation", False)),
    Variant("sees no live work", "family at work", always("live_work", None)),
    Variant("an hour", "young", idle(HOUR)),
    Variant("five days", "ended tui", idle(5 * DAY)),
    Variant("every open row is fit", "open telegram", every_open_row_is_fit),
    Variant("only ended rows", "open cli", only_ended_rows),
    Variant(
        "every source is safe",
        "ended telegram",
        lambda patch: patch.setattr(orphan_stubs, "_SAFE_GROUPS", frozenset(Group)),
    ),
    Variant("no source is safe", "ended tui", lambda patch: patch.setattr(orphan_stubs, "_SAFE_GROUPS", frozenset())),
)


def test_wrong_checks_are_caught_by_the_case_that_is_there_for_it(planted_by: PlantedBy) -> None:
    planted = planted_by(NEWEST)
    assert planted.named(scan(planted)) == planted.expected
    missed = []
    for variant in VARIANTS:
        with pytest.MonkeyPatch.context() as patch:
            variant.spoil(patch)
            said = planted.named(scan(planted))
        if said.get(variant.caught_by) == planted.expected.get(variant.caught_by):
            missed.append(variant.name)
    assert missed == []
