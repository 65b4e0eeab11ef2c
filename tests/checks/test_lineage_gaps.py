"""lineage-gaps: every gap is found, every look-alike is left alone, and the repairs do to a release what is said."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import apsw
import pytest

from checks.lineage_gaps import CHECK
from hermes_doctor.engine.model import Finding, Severity
from hermes_doctor.engine.rows import ask
from hermes_doctor.store import lineage, lineage_faults, lineage_suspects, liveness
from hermes_doctor.store.cells import Key
from hermes_doctor.store.lineage_faults import Kind
from hermes_doctor.store.reader import Pace, Reader
from hermes_doctor.store.references import References, references
from hermes_doctor.store.shape import Shape, read_shape
from hermes_doctor.store.view import StoreView
from tests.checks.lineage_cases import (
    CASES,
    DAY,
    FAULTS,
    HOUR,
    MINUTE,
    Case,
    Session,
    compressed,
    lock,
    plant,
)
from tests.checks.support import findings_of
from tests.oracle.faults import LineageGap, planting
from tests.oracle.home import CallError, Home
from tests.oracle.releases import Release, get
from tests.oracle.steps import Step, call, clock, sql

#: Releases with different answers: no locks yet; resuming goes to the tip; the last that takes writes; refuses; newest.
STORES = ("0.13.0", "0.17.0", "0.19.0", "0.20.6", "0.22.2")

Said = dict[str, tuple[object, str, object]]


@dataclass(frozen=True)
class Planted:
    """A store with all the cases that its release can show, and what the check found in it."""

    home: Home
    release: Release
    now: float
    cases: tuple[Case, ...]
    findings: tuple[Finding, ...]


class Plant(Protocol):
    """Hands out stores with the cases; ``only`` those whose chains are short."""

    def __call__(self, version: str, only: Literal["short"] | None = None) -> Planted: ...


@pytest.fixture(scope="module")
def planted(oracle: None, tmp_path_factory: pytest.TempPathFactory) -> Plant:
    """The cases in a store of a release, built and scanned once per worker."""
    made: dict[tuple[str, str | None], Planted] = {}

    def make(version: str, only: Literal["short"] | None = None) -> Planted:
        if (version, only) not in made:
            home, now = Home(tmp_path_factory.mktemp("planted") / "home"), time.time()
            chosen = CASES if only is None else tuple(case for case in CASES if len(case.sessions) < 50)
            assert only is None or 0 < len(CASES) - len(chosen) < 10
            cases = plant(home, get(version), now, chosen)
            found = findings_of(home.store, CHECK, home=home.path, now=now)
            made[version, only] = Planted(home, get(version), now, cases, tuple(found))
        return made[version, only]

    return make


def said_of(case: Case, findings: Sequence[Finding]) -> Said:
    """What was found in the rows of a case, by the names that it uses."""
    names = {case.id(row.name): row.name for row in case.sessions}
    return {
        names[finding.key]: (finding.detail["kind"], finding.bucket, finding.detail.get("reopen"))
        for finding in findings
        if isinstance(finding.key, str) and finding.key in names
    }


def expected_of(case: Case, said: Said) -> Said:
    """What the case wants said; where it leaves open how a parent is mended, what was said of that is right."""
    return {
        name: (want.kind, want.bucket, said[name][2] if want.reopen is None and name in said else want.reopen)
        for name, want in case.found.items()
    }


def wrong_cases(cases: Sequence[Case], findings: Sequence[Finding]) -> list[str]:
    """The names of the cases of which something else was said than they want."""
    return [case.name for case in cases if said_of(case, findings) != expected_of(case, said_of(case, findings))]


@pytest.mark.parametrize(
    ("version", "case"),
    [
        pytest.param(version, case, id=f"{version}-{case.name}")
        for version in STORES
        for case in CASES
        if case.suits(get(version))
    ],
)
def test_case(planted: Plant, version: str, case: Case) -> None:
    said = said_of(case, planted(version).findings)
    assert said == expected_of(case, said)


@pytest.mark.parametrize("version", STORES)
def test_nothing_else_is_found_and_all_rows_agree(planted: Plant, version: str) -> None:
    """No row is found twice; asking about all rows by key gives what the scan gave."""
    store = planted(version)
    wanted = {case.id(name) for case in store.cases for name in case.found}
    assert sorted(str(finding.key) for finding in store.findings) == sorted(wanted)
    with view_of(store) as view:
        ids = [row[0] for row in view.rows("SELECT id FROM sessions")]
        again = [f for start in range(0, len(ids), 700) for f in ask(CHECK, ids[start : start + 700], view)]
        one_by_one = [f for finding in store.findings for f in ask(CHECK, [finding.key], view)]
    key = lambda finding: str(finding.key)  # noqa: E731  # sorted three times by the same key
    assert sorted(again, key=key) == sorted(store.findings, key=key)
    assert one_by_one == list(store.findings)


SEVERITIES: dict[Kind, dict[str, Severity]] = {
    Kind.OWN_PARENT: dict.fromkeys(STORES, Severity.ERROR),
    Kind.LOOP: dict.fromkeys(STORES, Severity.ERROR),
    Kind.CLOSED: {
        version: Severity.INFO if version in ("0.13.0", "0.17.0", "0.19.0") else Severity.WARNING for version in STORES
    },
    Kind.EMPTY_CONTINUATION: {version: Severity.INFO if version == "0.13.0" else Severity.ERROR for version in STORES},
    Kind.SEVERAL: dict.fromkeys(STORES, Severity.WARNING),
    Kind.DELEGATE_LOOP: dict.fromkeys(STORES, Severity.WARNING),
    Kind.LONG_CHAIN: dict.fromkeys(STORES, Severity.INFO),
}


@pytest.mark.parametrize("version", STORES)
def test_severity_follows_the_release(planted: Plant, version: str) -> None:
    seen = set()
    for finding in planted(version).findings:
        kind = Kind(str(finding.detail["kind"]))
        seen.add(kind)
        if kind is Kind.MISSING_PARENT:
            background = any(word in str(finding.key) for word in ("run", "delegate", "no messages"))
            shown = background and not any(word in str(finding.key) for word in ("api_server", "unknown", "mark of"))
            assert finding.severity is (Severity.INFO if shown else Severity.ERROR), finding.key
        else:
            assert finding.severity is SEVERITIES[kind][version], finding.key
    assert seen == set(Kind)


def test_findings_say_what_would_be_done_and_no_text(planted: Plant) -> None:
    store = planted("0.22.2")
    by_key = {finding.key: finding for finding in store.findings}
    cases = {case.name: case for case in store.cases}

    def of(name: str, session: str) -> Finding:
        return by_key[cases[name].id(session)]

    assert of("goes on nowhere", "p").action == "make its reason startup_orphan_reap, so that it takes messages again"
    assert of("goes on nowhere, used lately", "p").action == "clear its end, so that it takes messages again"
    assert of("its own parent", "s").action == "detach it from itself"
    assert of("goes on in an empty row", "p").detail["empty"] == "goes on in an empty row: stub"
    assert "gateway_routing" in str(of("an empty row that a chat is routed to", "p").refusal)
    assert "orphan-messages" in str(of("parent gone, its messages left", "c").refusal)
    assert of("a loop of three with a tail", "a").detail["count"] == 3
    for finding in store.findings:
        assert finding.table == "sessions"
        assert finding.session == finding.key
        assert finding.summary[0].islower()
        assert not finding.summary.endswith(".")
        assert (finding.action is not None) == (finding.bucket in ("safe", "unsafe"))
        assert "mine" not in str(finding)


def test_routes_that_cannot_be_read_stand_in_the_way(home: Home) -> None:
    """A broken sessions.json may name the missing parent; a store without its home has no such file to read."""
    names = {"a cli chat without its parent", "goes on nowhere", "goes on in an empty row"}
    now = time.time()
    planted = plant(home, get("0.18.0"), now, tuple(case for case in FAULTS if case.name in names))
    orphan, closed, emptied = (case.id(name) for case, name in zip(planted, "cpp", strict=True))

    def buckets(**where: Any) -> dict[Any, str]:
        return {f.key: f.bucket for f in findings_of(home.store, CHECK, now=now, **where)}

    assert buckets(home=home.path) == {orphan: "safe", closed: "safe", emptied: "unsafe"}
    assert buckets() == {orphan: "safe", closed: "safe", emptied: "unsafe"}
    (home.path / "sessions" / "sessions.json").write_text("{")
    assert buckets(home=home.path) == {orphan: "refused", closed: "safe", emptied: "unsafe"}


# Thresholds: a minute before and after, for every clock.


@dataclass(frozen=True)
class Edge:
    """A row that is found (or mended so) from ``limit`` seconds on, and not a minute before."""

    name: str
    sessions: Callable[[float], tuple[Session, ...]]
    limit: float
    before: Any
    after: Any
    rows: Callable[[float], tuple[Any, ...]] = lambda age: ()


def _closed(age: float, **more: Any) -> tuple[Session, ...]:
    return (compressed("p", **({"ended": age} | more)),)


def _emptied(**cells: Any) -> tuple[Session, ...]:
    return (compressed("p"), Session("s", "p", said="", **cells))


EDGES = (
    Edge("ended", _closed, 5 * MINUTE, None, True),
    Edge("ended, then reason", _closed, DAY, True, False),
    Edge("message", lambda age: _closed(9 * DAY, said_ago=age), DAY, True, False),
    Edge("start", lambda age: _closed(9 * DAY, said="", started=age), DAY, True, False),
    Edge("activity", lambda age: _closed(9 * DAY, cells={"last_activity_at": ("ago", age)}), DAY, True, False),
    Edge("empty row's start", lambda age: _emptied(started=age), DAY, None, False),
    Edge(
        "empty row's activity",
        lambda age: _emptied(started=9 * DAY, cells={"last_activity_at": ("ago", age)}),
        DAY,
        None,
        False,
    ),
    Edge("lock's expiry", lambda age: _closed(9 * DAY), 0.0, None, False, lambda age: (lock("@p", -age),)),
    Edge(
        "lease's expiry",
        lambda age: _closed(9 * DAY),
        0.0,
        None,
        False,
        lambda age: (lock("@p", -age, "session_turn_leases", "conversation_id"),),
    ),
)


@pytest.mark.parametrize("source", ["cli", "telegram", "api_server"])
def test_thresholds(home: Home, source: str) -> None:
    now, release = time.time(), get("0.22.2")
    cases = []
    wanted: dict[str, Any] = {}
    for edge in EDGES:
        for when, age in (("before", edge.limit - MINUTE), ("after", edge.limit + MINUTE)):
            rows = tuple(replace(row, source=source) for row in edge.sessions(age))
            case = Case(f"{edge.name} {when}", rows, rows=edge.rows(age))
            cases.append(case)
            wanted[case.id("p")] = edge.before if when == "before" else edge.after
    plant(home, release, now, tuple(cases))
    found = {f.key: f.detail["reopen"] for f in findings_of(home.store, CHECK, home=home.path, now=now)}
    assert {key: found.get(key) for key in wanted} == wanted
    # A longer --idle leaves alone what ended since; a shorter one changes nothing.
    floored = findings_of(home.store, CHECK, home=home.path, now=now, idle_floor=2 * DAY)
    assert {f.key for f in floored} < set(found)
    assert "ended, then reason after: p" in found
    assert "ended, then reason after: p" not in {f.key for f in floored}
    lowered = findings_of(home.store, CHECK, home=home.path, now=now, idle_floor=1.0)
    assert {f.key for f in lowered} == set(found)


# Deliberately wrong variants: each must get at least one case wrong.

Patch = Callable[[pytest.MonkeyPatch], None]
EDGE_SQL = lineage.edge_sql


def _edge(rewrite: Callable[[str, str, str], str]) -> Patch:
    """Another meaning of edges; ``rewrite`` gets the right SQL and the aliases of child and parent."""

    def wrong(_shape: Shape, child: str = "c", parent: str = "p") -> str:
        return rewrite(EDGE_SQL(_shape, child, parent), child, parent)

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        for module in (lineage, lineage_faults, lineage_suspects):
            monkeypatch.setattr(module, "edge_sql", wrong)

    return patch


def _instead(name: str, value: Any) -> Patch:
    return lambda monkeypatch: monkeypatch.setattr(lineage_faults, name, value)


def _every_row(_view: StoreView, _longest: int) -> list[Any]:
    return [row[0] for row in _view.rows("SELECT id FROM sessions")]


def _any_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lineage_faults, "suspects", _every_row)
    monkeypatch.setattr(lineage_faults._Row, "compressed", property(lambda row: row.ended_at is not None))


def _without_messages(view: StoreView, session: Any) -> bool:
    return not view.rows("SELECT 1 FROM messages WHERE session_id = ? LIMIT 1", (session,))


def _counter_is_zero(view: StoreView, session: Any) -> bool:
    return bool(view.rows("SELECT 1 FROM sessions WHERE id = ? AND coalesce(message_count, 0) = 0", (session,)))


VARIANTS: dict[str, Patch] = {
    "any mark makes a child no continuation": _edge(
        lambda right, c, p: f"CASE WHEN {c}.model_config LIKE '%_delegate_from%' THEN 'delegate' ELSE {right} END"
    ),
    "no mark does": _edge(
        lambda right, c, p: f"CASE WHEN {p}.end_reason = 'compression' THEN 'continuation' ELSE {right} END"
    ),
    "a branch is a continuation": _edge(lambda right, c, p: f"replace({right}, 'branch', 'continuation')"),
    "a delegate is": _edge(lambda right, c, p: f"replace({right}, 'delegate', 'continuation')"),
    "a reset chat is": _edge(lambda right, c, p: f"replace({right}, 'reset', 'continuation')"),
    "a tool's child is": _edge(lambda right, c, p: f"replace({right}, 'tool', 'continuation')"),
    "a child must start after its parent's end": _edge(
        lambda right, c, p: f"CASE WHEN {c}.started_at < {p}.ended_at THEN 'subagent' ELSE {right} END"
    ),
    "only open children count": _edge(
        lambda right, c, p: f"CASE WHEN {c}.ended_at IS NOT NULL THEN 'subagent' ELSE {right} END"
    ),
    "leases and locks are ignored": _instead("_is_guarded", lambda _view, _sessions: False),
    "leases are": _instead("lease_alive", lambda _view, _sessions: False),
    "locks are": _instead("lock_alive", lambda _view, _sessions: False),
    "its chain is not asked for leases": _instead("chain_of", lambda _view, session: (session,)),
    "its root is not asked for leases": _instead("root_of", lambda _view, session: session),
    "rotations are not waited for": _instead("ROTATION_SECONDS", 0.0),
    "any end is a compression": _any_end,
    "an empty row is one without messages": _instead("is_stub", _without_messages),
    "an empty row is one that counts none": _instead("is_stub", _counter_is_zero),
    "empty rows do not exist": _instead("is_stub", lambda _view, _session: False),
    "nobody names empty rows": _instead("references", lambda _view, _sessions: References({}, ())),
    "a subagent's run is detached": _instead("_BACKGROUND", frozenset()),
    "delegates are detached": _instead("DELEGATE_MARKER", "_no_such_marker"),
    "anything is a chat": _instead("_CHATS", frozenset({"cli", "webui", "api_server", "unknown", "cron"})),
    "only the CLI has chats": _instead("_CHATS", frozenset({"cli"})),
    "what is left of a parent is no obstacle": _instead("_can_be_rebuilt", lambda _view, _parent: None),
    "always opened again": _instead("RECENT_SECONDS", float("inf")),
    "never opened again": _instead("RECENT_SECONDS", float("-inf")),
    "routes are ignored": _instead("routes", lambda view: replace(liveness.routes(view), ids=frozenset())),
    "absurd ends are ends": _instead("trusted", lambda cell: 1.0 if cell is not None else None),
    "every release follows 100 links": _instead("longest_chain", lambda _shape: 100),
    "no release's limit is known": _instead("longest_chain", lambda _shape: 10**6),
    "old delegates are continuations": _instead("_was_delegated", lambda _child, _ended: False),
    "loops are not looked for": lambda monkeypatch: monkeypatch.setattr(
        lineage_suspects, "loop_heads", lambda _above: iter(())
    ),
    "every row below a loop is in it": lambda monkeypatch: (
        monkeypatch.setattr(lineage_faults, "suspects", _every_row),
        monkeypatch.setattr(
            lineage_faults, "loop_of", lambda view, key: (key, key) if lineage.root_of(view, key) != key else ()
        ),
    )[0],
}


def test_the_right_check_gets_every_case_right(planted: Plant) -> None:
    store = planted("0.22.2")
    assert wrong_cases(store.cases, store.findings) == []
    assert len(FAULTS) > 40


@pytest.mark.parametrize("name", VARIANTS)
def test_wrong_variant_fails(planted: Plant, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    # What takes each link of a long chain for a fault is slow to tell so: the short ones are asked first.
    stores = planted("0.22.2", only="short"), planted("0.22.2")
    assert wrong_cases(stores[0].cases, stores[0].findings) == []
    VARIANTS[name](monkeypatch)
    scans = (findings_of(store.home.store, CHECK, home=store.home.path, now=store.now) for store in stores)
    assert any(wrong_cases(store.cases, found) for store, found in zip(stores, scans, strict=False)), name


# What releases do with the damage, and after the repair.


GAPS: dict[LineageGap, Kind] = {
    "no-continuation": Kind.CLOSED,
    "empty-continuation": Kind.EMPTY_CONTINUATION,
    "missing-parent": Kind.MISSING_PARENT,
    "self-parent": Kind.OWN_PARENT,
    "loop": Kind.LOOP,
}


@pytest.mark.parametrize("version", ["0.13.0", "0.19.0", "0.22.2"])
def test_what_a_killed_release_leaves_is_found(home: Home, version: str) -> None:
    """The store as the kill left it, with its sidecars."""
    wanted = {}
    with planting(home, version) as plant_one:
        plant_one.dies = True
        for gap, kind in GAPS.items():
            damaged, other = plant_one.lineage_gap(gap)
            wanted[min(damaged, str(other)) if kind is Kind.LOOP else damaged] = kind
    found = findings_of(home.store, CHECK, home=home.path)
    assert {finding.key: finding.detail["kind"] for finding in found} == wanted


def _chat(name: str, started: float, parent: str | None = None, said: str = "hello") -> list[Step]:
    steps = [clock(started), call("create_session", name, "cli", **({"parent_session_id": parent} if parent else {}))]
    if said:
        steps += [
            call("append_message", name, "user", f"{said} from {name}"),
            call("append_message", name, "assistant", f"answer in {name}"),
        ]
    return steps


DAMAGE = ("orphan", "own", "closed", "recent", "emptied", "deleted", "deleted-tip", "ring-a", "ring-b")


def _damage(now: float) -> list[Step]:
    """Chats that end up in each kind of gap, as far as calls go by the release's own."""
    steps = [*_chat("gone", now - 6 * DAY), call("end_session", "gone", "compression")]
    steps += [*_chat("orphan", now - 5 * DAY, "gone"), call("end_session", "orphan", "cli_close")]
    steps += [*_chat("own", now - 5 * DAY), call("end_session", "own", "cli_close")]
    steps += [*_chat("closed", now - 5 * DAY), call("end_session", "closed", "compression")]
    steps += [*_chat("recent", now - 5 * HOUR), call("end_session", "recent", "compression")]
    steps += [*_chat("emptied", now - 5 * DAY), call("end_session", "emptied", "compression")]
    steps += _chat("empty", now - 4 * DAY, "emptied", said="")
    steps += [*_chat("deleted", now - 5 * DAY), call("end_session", "deleted", "compression")]
    steps += [*_chat("deleted-tip", now - 4 * DAY, "deleted"), call("delete_session", "deleted-tip")]
    steps += [*_chat("ring-a", now - 5 * DAY), *_chat("ring-b", now - 5 * DAY, "ring-a")]
    steps += [
        clock(None),
        sql("PRAGMA foreign_keys=OFF"),
        sql("DELETE FROM messages WHERE session_id = 'gone'"),
        sql("DELETE FROM sessions WHERE id = 'gone'"),
        sql("UPDATE sessions SET parent_session_id = id WHERE id = 'own'"),
        sql("UPDATE sessions SET parent_session_id = 'ring-b' WHERE id = 'ring-a'"),
    ]
    return steps


#: What the fix will do, as plain SQL.
REPAIRS = (
    sql("UPDATE sessions SET parent_session_id = NULL WHERE id IN ('orphan', 'own')"),
    sql("DELETE FROM sessions WHERE id = 'empty'"),
    sql(
        "UPDATE sessions SET end_reason = 'startup_orphan_reap', ended_at = ?"
        " WHERE id IN ('closed', 'emptied', 'deleted')",
        time.time(),
    ),
    sql("UPDATE sessions SET end_reason = NULL, ended_at = NULL WHERE id = 'recent'"),
)
CLOSED = ("closed", "recent", "emptied", "deleted")


def _looks() -> list[Step]:
    return [
        call("list_sessions_rich", limit=1000),
        *(call("resolve_resume_session_id", name) for name in ("orphan", "own", *CLOSED)),
        *(call("get_compression_tip", name) for name in CLOSED),
        *(call("append_message", name, "user", "more") for name in CLOSED),
    ]


def _seen(results: list[Any]) -> tuple[set[str], dict[str, Any], dict[str, Any], dict[str, bool]]:
    """Listed ids, where resuming leads, tips, and whether a message was taken."""
    listed = {row["id"] for row in results[0]}
    resumed = dict(zip(("orphan", "own", *CLOSED), results[1:7], strict=True))
    tips = dict(zip(CLOSED, results[7:11], strict=True))
    taken = {name: not isinstance(value, CallError) for name, value in zip(CLOSED, results[11:], strict=True)}
    return listed, resumed, tips, taken


def test_what_the_release_does_before_and_after(home: Home, release: Release) -> None:
    now = time.time()
    home.run(release, _damage(now))
    found = {finding.key: finding for finding in findings_of(home.store, CHECK, home=home.path)}
    assert {key: finding.detail["kind"] for key, finding in found.items()} == {
        "orphan": Kind.MISSING_PARENT,
        "own": Kind.OWN_PARENT,
        "closed": Kind.CLOSED,
        "recent": Kind.CLOSED,
        "deleted": Kind.CLOSED,
        "emptied": Kind.EMPTY_CONTINUATION,
        "ring-a": Kind.LOOP,
    }
    assert found["recent"].detail["reopen"]
    # A person who deleted the end of a chat leaves the same as a crash: never an error.
    assert found["deleted"].severity < Severity.ERROR

    looks = _looks()
    results = home.run(release, [*looks, *REPAIRS, *looks], check=False)
    before, after = _seen(results[: len(looks)]), _seen(results[-len(looks) :])

    listed, resumed, tips, taken = before
    assert not listed & {"orphan", "own", "ring-a", "ring-b"}
    assert taken == dict.fromkeys(CLOSED, not release.since("0.20.0"))
    resumes_empty = release.since("0.17.0")
    assert resumed["emptied"] == ("empty" if resumes_empty else "emptied")
    assert tips["emptied"] == "empty"
    assert (found["emptied"].severity is Severity.ERROR) == resumes_empty
    assert (found["closed"].severity is Severity.WARNING) == (not taken["closed"])

    listed, resumed, tips, taken = after
    assert {"orphan", "own", *CLOSED} <= listed
    assert resumed == {name: name for name in resumed}
    assert tips == {name: name for name in CLOSED}
    assert all(taken.values())
    left = findings_of(home.store, CHECK, home=home.path)
    assert [finding.key for finding in left] == ["ring-a"]


@pytest.mark.parametrize("version", ["0.13.0", "0.19.0", "0.20.6", "0.21.5", "0.22.2"])
def test_repairs_make_no_prey_of_prune(make_home: Callable[[str], Home], version: str) -> None:
    """What hermes's own prune takes after the repairs, it would have taken before: also of rows past retention."""
    kept = []
    for name, repairs in (("damaged", ()), ("repaired", REPAIRS)):
        home = make_home(name)
        steps = _damage(time.time() - 200 * DAY)
        results = home.run(version, [*steps, *repairs, call("prune_sessions", 90), sql("SELECT id FROM sessions")])
        kept.append({row[0] for row in results[-1]})
    damaged, repaired = kept
    assert damaged - {"empty"} <= repaired
    # Ended now, by the reason that newer releases age from the close.
    assert (CLOSED[0] in repaired) == get(version).since("0.21.5")


def test_upstreams_recursive_delete_can_take_the_parent(home: Home, oracle: None) -> None:
    """Why delegates that name each other are worth a word (0.17.0)."""
    results = home.run(
        "0.17.0",
        [
            call("create_session", "a", "cli", model_config={"_delegate_from": "b"}),
            call("create_session", "b", "cli", parent_session_id="a", model_config={"_delegate_from": "a"}),
            call("append_message", "a", "user", "hello"),
            call("delete_session", "b"),
            sql("SELECT id FROM sessions"),
        ],
    )
    assert results[-1] == []


# A view of a store without the scan around it.


class view_of:  # noqa: N801  # reads as a function: it is a context manager
    """A view of a planted store, for asking about single rows."""

    def __init__(self, store: Planted) -> None:
        self._connection = apsw.Connection(str(store.home.store), flags=apsw.SQLITE_OPEN_READONLY)
        self._store = store

    def __enter__(self) -> StoreView:
        return StoreView(
            reader=Reader(self._connection, Pace.FREE),
            shape=read_shape(self._connection),
            now=self._store.now,
            held="no",
            home=self._store.home.path,
        )

    def __exit__(self, *_: object) -> None:
        self._connection.close()


def test_references_are_looked_for_once_however_many_rows_there_are(
    planted: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It walks every table: once for each few hundred rows took minutes on a store of some ten thousand."""
    store = planted("0.22.2")
    asked: list[int] = []

    def counted(view: StoreView, sessions: Sequence[Key]) -> Any:
        asked.append(len(sessions))
        return references(view, sessions)

    monkeypatch.setattr(lineage_faults, "references", counted)
    monkeypatch.setattr(lineage_faults, "_AT_ONCE", 3)
    found = findings_of(store.home.store, CHECK, home=store.home.path, now=store.now)
    assert len(asked) == 1
    assert asked[0] == sum(finding.detail["kind"] == Kind.EMPTY_CONTINUATION for finding in found) > 3
    assert sorted(found, key=str) == sorted(store.findings, key=str)
