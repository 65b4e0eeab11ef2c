"""Cases of stale-handoffs, stale-locks and stuck-delegations, as data: a row, and what must be said of it.

All are planted into one home for each release: handoffs, locks and leases by the release's own calls, at the time that
the case says; what no release writes is set by SQL. Names of cases are the keys of their rows.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import apsw
import pytest

from hermes_doctor.engine.model import Check, Finding
from tests.checks.support import built_once, findings_of
from tests.fixes.support import Patient
from tests.oracle.home import Home
from tests.oracle.releases import Release, get
from tests.oracle.steps import Step, call, clock, open_store, sql, use

MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0

#: What is said of a row: severity and bucket; None: nothing.
Verdict = tuple[str, str] | None

#: The releases whose stores differ in what these checks look at, and the last of a chain of upgrades.
LIVES = (("0.13.0",), ("0.16.0",), ("0.19.0",), ("0.20.6",), ("0.22.2",), ("0.13.0", "0.16.0", "0.19.0", "0.22.2"))

SAFE: Verdict = ("warning", "safe")
UNSAFE: Verdict = ("info", "unsafe")
NOTE: Verdict = ("info", "report")
LOST: Verdict = ("warning", "report")


@dataclass(frozen=True)
class Facts:
    """What cases refer to: now, a living process and one that is gone, this pid namespace, this host."""

    now: float
    lives: int
    gone: int
    namespace: str
    host: str

    def holder(self, text: str) -> str:
        """A holder in which $lives, $gone and $here stand for what they are."""
        for name, value in (("$lives", self.lives), ("$gone", self.gone), ("$here", self.namespace)):
            text = text.replace(name, str(value))
        return text


@dataclass(frozen=True)
class Handoff:
    """A session in some state of a handoff. Times are seconds before now; ``cells`` are set by SQL at the end."""

    name: str
    state: str | None
    verdict: Verdict
    started: float = 2 * DAY
    message: float | None = None
    activity: float | None = None
    cells: Mapping[str, Any] = field(default_factory=dict)
    since: str = "0.13.0"
    table: str = "sessions"

    def steps(self, facts: Facts, release: Release) -> Iterator[Step]:
        yield clock(facts.now - self.started)
        yield call("create_session", self.name, "cli")
        if self.message is not None:
            yield clock(facts.now - self.message)
            yield call("append_message", self.name, "user", "hello")
        if self.state is not None:
            yield call("request_handoff", self.name, "telegram")
        if self.state in ("running", "completed"):
            yield call("claim_handoff", self.name)
        if self.state == "completed":
            yield call("complete_handoff", self.name)
        if self.state == "failed":
            yield call("fail_handoff", self.name, "timed out")
        cells = dict(self.cells)
        if release.since("0.20.0"):
            cells["last_activity_at"] = None if self.activity is None else facts.now - self.activity
        for column, value in cells.items():
            yield sql(f"UPDATE sessions SET {column} = ? WHERE id = ?", value, self.name)


@dataclass(frozen=True)
class Lock:
    """A lock, or a lease. ``ends``: seconds from now; None: ``cell`` is its end, as it is."""

    name: str
    ends: float | None
    holder: str
    verdict: Verdict
    cell: Any = None
    lease: bool = False

    @property
    def since(self) -> str:
        return "0.20.6" if self.lease else "0.16.0"

    @property
    def table(self) -> str:
        return "session_turn_leases" if self.lease else "compression_locks"

    def steps(self, facts: Facts, release: Release) -> Iterator[Step]:
        take = "try_acquire_session_turn_lease" if self.lease else "try_acquire_compression_lock"
        yield clock(facts.now)
        yield call("create_session", self.name, "cli")
        yield call(take, self.name, facts.holder(self.holder), ttl_seconds=300.0)
        key = "conversation_id" if self.lease else "session_id"
        # Taking a lease sweeps those of days ago: so each gets its times when all are there.
        end = self.cell if self.ends is None else facts.now + self.ends
        began = facts.now if self.ends is None else end - 300.0
        times = "expires_at = ?, acquired_at = ?"
        yield _LATER | sql(f"UPDATE {self.table} SET {times} WHERE {key} = ?", end, began, self.name)
        yield _LATER | sql(f"SELECT 1 FROM {self.table} WHERE {key} = ?", self.name)


@dataclass(frozen=True)
class Beat:
    """A backend's heartbeat, so many seconds ago. ``pid``: of Facts."""

    name: str
    last: Any
    pid: str
    verdict: Verdict
    here: bool = True
    since: str = "0.21.5"
    table: str = "gateway_heartbeats"

    def steps(self, facts: Facts, release: Release) -> Iterator[Step]:
        at = facts.now - self.last if isinstance(self.last, float) else self.last
        yield sql(
            "INSERT INTO gateway_heartbeats (backend_id, pid, started_at, last_heartbeat, profile, host)"
            " VALUES (?, ?, ?, ?, 'default', ?)",
            self.name,
            getattr(facts, self.pid),
            facts.now - 9 * DAY,
            at,
            facts.host if self.here else "elsewhere",
        )


@dataclass(frozen=True)
class Delegation:
    """A background delegation whose row was last touched ``still`` seconds ago."""

    name: str
    state: str
    delivery: str
    still: float
    verdict: Verdict
    pid: str = "gone"
    cells: Mapping[str, Any] = field(default_factory=dict)
    since: str = "0.19.0"
    table: str = "async_delegations"

    def steps(self, facts: Facts, release: Release) -> Iterator[Step]:
        at = facts.now - self.still
        yield call("create_session", f"parent of {self.name}", "cli")
        yield use(
            "running_delegation",
            delegation_id=self.name,
            parent=f"parent of {self.name}",
            session_key="",
            owner_pid=getattr(facts, self.pid),
            dispatched_at=at,
        )
        ended = self.state not in ("running", "finalizing")
        cells = {
            "state": self.state,
            "delivery_state": self.delivery,
            "updated_at": at,
            "completed_at": at if ended else None,
            "delivered_at": at if self.delivery == "delivered" else None,
            "event_json": json.dumps({"type": "async_delegation", "summary": "private"}) if ended else None,
            **self.cells,
        }
        # Each dispatch prunes delivered rows of long ago: so each gets its cells when all are there.
        for column, value in cells.items():
            yield _LATER | sql(f"UPDATE async_delegations SET {column} = ? WHERE delegation_id = ?", value, self.name)
        yield _LATER | sql("SELECT 1 FROM async_delegations WHERE delegation_id = ?", self.name)


Case = Handoff | Lock | Beat | Delegation

#: Marks a step that is to come after those of all cases.
_LATER: Step = {"later": True}

HERE = "pid=$gone:pidns=$here:tid=1:agent=7f00:nonce=0a1b2c3d"
ALIVE = "pid=$lives:pidns=$here:turn=t1:platform=cli"
FOREIGN = "pid=$gone:pidns=1:turn=t1:platform=cli"
UNSTAMPED = "pid=$gone:tid=1:agent=7f00:nonce=0a1b2c3d"

HANDOFFS = (
    Handoff("pending, 6 minutes by message", "pending", SAFE, message=6 * MINUTE),
    Handoff("pending, 4 minutes by message", "pending", None, message=4 * MINUTE),
    Handoff("pending, 6 minutes by start", "pending", SAFE, started=6 * MINUTE),
    Handoff("pending, 4 minutes by start", "pending", None, started=4 * MINUTE),
    Handoff("pending, 6 minutes by activity", "pending", SAFE, activity=6 * MINUTE, message=DAY),
    Handoff("pending, 4 minutes by activity", "pending", None, activity=4 * MINUTE, message=DAY, since="0.20.0"),
    Handoff("running, 16 minutes by message", "running", SAFE, message=16 * MINUTE),
    Handoff("running, 14 minutes by message", "running", None, message=14 * MINUTE),
    Handoff("running, for a month", "running", SAFE, started=30 * DAY, message=30 * DAY),
    Handoff("pending, on an ended row", "pending", SAFE, message=DAY, cells={"ended_at": 1.79e9}),
    Handoff("completed", "completed", None, message=DAY),
    Handoff("failed", "failed", None, message=DAY),
    Handoff("never handed off", None, None, message=DAY),
    Handoff("a state of somebody else's", "pending", None, message=DAY, cells={"handoff_state": "queued"}),
    Handoff("a state in capitals", "pending", None, message=DAY, cells={"handoff_state": "PENDING"}),
    Handoff("started at no time", "pending", None, message=DAY, cells={"started_at": "yesterday"}),
    Handoff("before hermes existed", "pending", None, started=DAY, cells={"started_at": 1000.0}),
)

_EITHER = (
    Lock("expired, its holder is gone", -MINUTE, HERE, SAFE),
    Lock("not yet expired, its holder is gone", MINUTE, HERE, None),
    Lock("not yet expired, its holder lives", MINUTE, ALIVE, None),
    Lock("expired, its holder lives", -HOUR, ALIVE, None),
    Lock("a minute less than a day past, its holder lives", MINUTE - DAY, ALIVE, None),
    Lock("a minute more than a day past, its holder lives", -DAY - MINUTE, ALIVE, SAFE),
    Lock("expired, of another namespace", -HOUR, FOREIGN, None),
    Lock("a day past, of another namespace", -DAY - MINUTE, FOREIGN, SAFE),
    Lock("expired, without a namespace", -HOUR, UNSTAMPED, None),
    Lock("a day past, without a namespace", -DAY - MINUTE, UNSTAMPED, SAFE),
    Lock("expired, of no process", -HOUR, f"job-7:pidns={'$here'}", None),
    Lock("a day past, of no process", -9 * DAY, "job-7", SAFE),
    Lock("expired, an absurd process number", -HOUR, "pid=99999999999:pidns=$here:turn=t", None),
    Lock("ends beyond all times", None, HERE, None, cell=5e246),
    Lock("ends before hermes", None, HERE, None, cell=1000.0),
    Lock("ends at 0", None, HERE, None, cell=0.0),
    Lock("ends never", None, HERE, None, cell="never"),
)
LOCKS: tuple[Case, ...] = (
    *_EITHER,
    *(Lock(f"{each.name} (lease)", each.ends, each.holder, each.verdict, each.cell, lease=True) for each in _EITHER),
    Beat("silent for 12 hours and a minute", 12 * HOUR + MINUTE, "gone", NOTE),
    Beat("silent for a minute less", 12 * HOUR - MINUTE, "gone", None),
    Beat("silent, but its process lives", 3 * DAY, "lives", None),
    Beat("silent, a process of that number lives here", 3 * DAY, "lives", NOTE, here=False),
    Beat("silent since no time", "never", "gone", None),
)

DELEGATIONS = (
    Delegation("running, its owner is gone", "running", "pending", 6 * MINUTE, LOST),
    Delegation("running, its owner went just now", "running", "pending", 4 * MINUTE, None),
    Delegation("finalizing, its owner is gone", "finalizing", "pending", 6 * MINUTE, LOST),
    Delegation("running, its owner lives", "running", "pending", 9 * DAY, None, pid="lives"),
    Delegation(
        "running, its owner's number is another's",
        "running",
        "pending",
        HOUR,
        LOST,
        pid="lives",
        cells={"owner_started_at": 1},
    ),
    Delegation("running, of no owner, for a day", "running", "pending", DAY + MINUTE, LOST, cells={"owner_pid": None}),
    Delegation("running, of no owner, for less", "running", "pending", DAY - MINUTE, None, cells={"owner_pid": None}),
    Delegation("running, but delivered", "running", "delivered", 9 * DAY, NOTE),
    Delegation("running, delivered, its owner lives", "running", "delivered", 9 * DAY, None, pid="lives"),
    Delegation("running, but dropped", "running", "dropped", 9 * DAY, None),
    Delegation("waits for two days", "completed", "pending", 2 * DAY + MINUTE, NOTE),
    Delegation("waits for less", "completed", "pending", 2 * DAY - MINUTE, None),
    Delegation("failed, and waits for a month", "error", "pending", 30 * DAY, NOTE),
    Delegation("of unknown outcome, waits", "unknown", "pending", 3 * DAY, NOTE),
    Delegation("delivered a week ago", "completed", "delivered", 7 * DAY + MINUTE, UNSAFE),
    Delegation("delivered a minute less than that", "completed", "delivered", 7 * DAY - MINUTE, None),
    Delegation("interrupted, delivered a month ago", "interrupted", "delivered", 30 * DAY, UNSAFE),
    Delegation("dispatched long ago, delivered yesterday", "completed", "delivered", DAY, None, cells={}),
    Delegation("dropped a month ago", "completed", "dropped", 30 * DAY, None),
    Delegation("delivered at no time", "completed", "delivered", 9 * DAY, None, cells={"updated_at": "never"}),
    Delegation("delivered beyond all times", "completed", "delivered", 9 * DAY, None, cells={"completed_at": 5e246}),
)

CASES: dict[str, tuple[Case, ...]] = {
    "stale-handoffs": HANDOFFS,
    "stale-locks": LOCKS,
    "stuck-delegations": DELEGATIONS,
}


@cache
def facts() -> Facts:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    [namespace] = re.findall(r"\d+", str(Path("/proc/self/ns/pid").readlink()))
    return Facts(time.time(), os.getpid(), gone.pid, namespace, os.uname().nodename)


def plant(home: Home, life: tuple[str, ...], facts: Facts) -> None:
    """Let each release of a life open the store, and the last one plant what it can show."""
    for older in life[:-1]:
        home.run(older, [open_store()])
    release = get(life[-1])
    steps = [
        step
        for case in (*HANDOFFS, *LOCKS, *DELEGATIONS)
        if release.since(case.since)
        for step in (*case.steps(facts, release), clock(None))
    ]
    first = [step for step in steps if "later" not in step]
    last = [{key: value for key, value in step.items() if key != "later"} for step in steps if "later" in step]
    there = home.run(release, [*first, *last])
    assert all(rows == [[1]] for step, rows in zip(last, there[len(first) :], strict=True) if "SELECT" in step["sql"])


@dataclass(frozen=True)
class Planted:
    """A private copy of a home with all cases, and the moment at which they were planted."""

    home: Home
    release: Release
    now: float

    def expected(self, check: str) -> dict[tuple[str, str], Verdict]:
        """What is to be found of each row that the release can show, by table and key."""
        return {
            (case.table, case.name): case.verdict
            for case in CASES[check]
            if case.verdict is not None and self.release.since(case.since)
        }

    @property
    def patient(self) -> Patient:
        """The store as something to be mended, at the moment at which it was planted."""
        return Patient(self.home.store, self.home.path, self.now)

    def found(self, check: Check, *, alone: bool = False, idle_floor: float = 0.0) -> dict[tuple[str, str], Any]:
        """What the check says of each row; ``alone``: as of a store that stands alone."""
        home = None if alone else self.home.path
        return verdicts(findings_of(self.home.store, check, home=home, now=self.now, idle_floor=idle_floor))

    def rows(self, table: str, key: str) -> dict[str, dict[str, Any]]:
        """All rows of a table by their key."""
        with closing(apsw.Connection(str(self.home.store), flags=apsw.SQLITE_OPEN_READONLY)) as connection:
            if not connection.table_exists("main", table):
                return {}
            names = [row[0] for row in connection.execute("SELECT name FROM pragma_table_info(?)", (table,))]
            listed = connection.execute(f"SELECT * FROM {table}")
            return {str(row[names.index(key)]): dict(zip(names, row, strict=True)) for row in listed}


def verdicts(findings: list[Finding]) -> dict[tuple[str, str], Verdict]:
    """What was said of each row."""
    return {(f.table, str(f.key)): (f.severity.label, f.bucket.value) for f in findings}


class Plots:
    """Homes with all cases, built once for each life and test run, copied for each test."""

    def __init__(self, shared: Path, folder: Path) -> None:
        self._shared, self._folder, self._copies = shared / "left-behind", folder, 0

    def __call__(self, *life: str) -> Planted:
        def build(home: Home) -> float:
            plant(home, life, facts())
            return facts().now

        home, now = built_once(self._shared / "+".join(life), build)
        self._copies += 1
        copy = self._folder / f"left-behind-{self._copies}"
        shutil.copytree(home.path, copy)
        return Planted(Home(copy), get(life[-1]), now)


@pytest.fixture
def plots(oracle: None, shared_folder: Path, tmp_path: Path) -> Plots:
    """Makes private copies of homes with all cases: ``plots("0.22.2")``."""
    return Plots(shared_folder, tmp_path)
