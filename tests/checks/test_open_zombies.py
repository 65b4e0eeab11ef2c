"""open-zombies on the stores of all releases: what it finds and leaves, at the edges, and wrong variants of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from checks.open_zombies import CHECK
from hermes_doctor.engine.model import Check, Finding, RelationRule, Safety, Severity
from hermes_doctor.host.state_files import Mentions
from hermes_doctor.store import open_rows
from hermes_doctor.store.ages import Age, age_from
from hermes_doctor.store.cells import BadText, Cell, Key
from hermes_doctor.store.clocks import DAY, HOUR
from hermes_doctor.store.lineage import Kin
from hermes_doctor.store.view import StoreView
from tests.checks.support import built_once, findings_of
from tests.checks.zombie_cases import CASES, Case, Plot, expected_of, planted
from tests.oracle.faults import planting
from tests.oracle.home import Home
from tests.oracle.process import HermesProcess
from tests.oracle.releases import CHAINS, RELEASES, Release, get
from tests.oracle.steps import blob, call, clock, sql
from tests.oracle.templates import LivedIn
from tests.store.views import view_of


def open_zombie(home: Home, release: Release | str, *, idle: float = 3 * DAY) -> str:
    """A cli conversation whose process was killed so long ago."""
    with planting(home, release) as plant:
        return plant.open_zombie(idle=idle)


@dataclass(frozen=True)
class Planted:
    """A home with all cases of one release; ``now``: the moment at which it is scanned."""

    home: Home
    release: Release
    now: float

    def found(self, check: Check = CHECK) -> dict[str, tuple[str, str]]:
        """Session -> (severity, fix) of all findings."""
        found = findings_of(self.home.store, check, home=self.home.path, now=self.now)
        assert len({finding.key for finding in found}) == len(found)
        return {str(finding.key): (finding.severity.label, str(finding.fix)) for finding in found}


@pytest.fixture(scope="module")
def plot(oracle: None, shared_folder: Path) -> Callable[[Release], Planted]:
    """Homes with all cases, one a release, built once per test run; scanning leaves no trace in them."""

    def make(release: Release) -> Planted:
        def build(home: Home) -> float:
            now = time.time()
            home.run(release, planted(release, now))
            return now

        home, now = built_once(shared_folder / "zombies" / release.version, build)
        return Planted(home, release, now)

    return make


_scanned: dict[str, dict[str, tuple[str, str]]] = {}


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_a_case_on_every_release_that_can_show_it(case: Case, plot: Callable[[Release], Planted]) -> None:
    wanted, found = {}, {}
    for release in RELEASES:
        if not case.shown_by(release):
            continue
        if release.version not in _scanned:
            _scanned[release.version] = plot(release).found()
        wanted[release.version] = {
            Plot(case.name, release, 0.0).id(part): verdict for part, verdict in case.expected(release).items()
        }
        found[release.version] = {
            session: verdict
            for session, verdict in _scanned[release.version].items()
            if session == case.name or session.startswith(f"{case.name}/")
        }
    assert found == wanted


@pytest.mark.parametrize("release", RELEASES, ids=str)
def test_nothing_else_is_found(release: Release, plot: Callable[[Release], Planted]) -> None:
    assert plot(release).found() == expected_of(release)


@pytest.mark.parametrize("release", [get("0.13.0"), get("0.19.0"), get("0.22.2")], ids=str)
def test_asked_about_single_rows_it_says_the_same(release: Release, plot: Callable[[Release], Planted]) -> None:
    scene = plot(release)
    with view_of(scene.home.store, home=scene.home.path, now=scene.now) as view:
        keys: list[Key] = [row[0] for row in view.rows("SELECT id FROM sessions")]
        assert isinstance(CHECK.rule, RelationRule)
        everything = {finding.key: finding for finding in CHECK.rule.find(view, None)}
        for key in keys:
            assert list(CHECK.rule.find(view, [key])) == [f for f in everything.values() if f.key == key]
        assert {finding.key: finding for finding in CHECK.rule.find(view, keys)} == everything


def test_a_finding_says_how_long_why_and_by_which_clock(plot: Callable[[Release], Planted]) -> None:
    scene = plot(get("0.22.2"))
    found = {f.key: f for f in findings_of(scene.home.store, CHECK, home=scene.home.path, now=scene.now)}
    one = found["cron 61 minutes by message"]
    assert one.summary == "open for 1 hour, its cron run is gone"
    assert one.detail == {
        "source": "cron",
        "idle_seconds": pytest.approx(3660, abs=3),
        "clock": "messages.timestamp",
    }
    assert (one.table, one.session, one.action) == ("sessions", one.key, "end it as startup_orphan_reap")
    assert found["kanban 61 minutes by start"].detail["clock"] == "started_at"
    assert found["tool 61 minutes by activity"].detail["clock"] == "last_activity_at"
    assert found["chat taken over/old"].detail["successor"] == "chat taken over/new"
    assert found["no end but a reason"].refusal is not None
    assert found["unknown a minute over a day by start"].refusal is None
    assert found["unknown a minute over a day by start"].action is None


# --- healthy homes ---------------------------------------------------------------------------------------------------

LIVES = [(release.version,) for release in RELEASES] + list(CHAINS)


@pytest.mark.parametrize("versions", LIVES, ids=" ".join)
def test_a_home_that_was_lived_in_is_silent_above_info(lived_in: LivedIn, versions: tuple[str, ...]) -> None:
    lived = lived_in(*versions)
    found = findings_of(lived.home.store, CHECK, home=lived.home.path)
    assert [finding.summary for finding in found if finding.severity > Severity.INFO] == []
    standing = {stage.ids[name] for stage in lived.stages for name in ("api", "acp", "fork") if name in stage.ids}
    assert {finding.key for finding in found} == standing


@pytest.mark.parametrize("release", [get("0.13.0"), get("0.20.0"), get("0.22.2")], ids=str)
def test_a_killed_process_leaves_a_zombie_which_its_living_one_is_not(home: Home, release: Release) -> None:
    session = open_zombie(home, release, idle=3 * HOUR)
    with HermesProcess(home, release):
        assert findings_of(home.store, CHECK, home=home.path) == []
        # Held, a day must have gone by.
        later = findings_of(home.store, CHECK, home=home.path, now=time.time() + 22 * HOUR)
        assert [finding.key for finding in later] == [session]
    assert [finding.key for finding in findings_of(home.store, CHECK, home=home.path)] == [session]


def test_a_delegate_that_is_done_is_left_open_by_old_releases(home: Home, release: Release) -> None:
    with planting(home, release) as plant:
        _parent, child = plant.delegate_left_open()
        half_way = plant.killed_mid_turn("cron")
    found = {f.key: f.fix for f in findings_of(home.store, CHECK, home=home.path)}
    assert found == {child: Safety.SAFE, half_way: Safety.SAFE}


@pytest.mark.parametrize("held", ["no", "yes", "unknown"])
def test_what_counts_where_somebody_has_the_store_open(home: Home, held: str) -> None:
    now = time.time()
    ages = {"cli": 25 * HOUR, "cron": 23 * HOUR, "tui": 30 * DAY, "desktop": 30 * DAY, "webui": 25 * HOUR}
    steps = [step for s, ago in ages.items() for step in (clock(now - ago), call("create_session", s, s))]
    home.run("0.19.0", steps)
    assert isinstance(CHECK.rule, RelationRule)
    with view_of(home.store, home=home.path, now=now, held=held) as view:
        found = {finding.key for finding in CHECK.rule.find(view, None)}
    assert found == ({"cli", "webui"} if held != "no" else set(ages))


# --- settings, heartbeats, routes out of sight, --idle -----------------------------------------------------------


@pytest.mark.parametrize("release", [get("0.19.0"), get("0.20.6"), get("0.22.2")], ids=str)
def test_with_prune_off_ending_an_old_row_is_safe(home: Home, release: Release) -> None:
    session = open_zombie(home, release, idle=100 * DAY)

    def fix() -> Safety:
        (finding,) = findings_of(home.store, CHECK, home=home.path)
        assert finding.key == session
        return finding.fix

    assert fix() is (Safety.SAFE if release.schema >= 30 else Safety.UNSAFE)
    (home.path / "config.yaml").write_text("sessions:\n  auto_prune: false\n")
    assert fix() is Safety.SAFE


def test_the_homes_own_retention_counts(home: Home) -> None:
    now = time.time()
    steps = []
    for source, days in (("api_server", 8), ("acp", 6), ("recovered", 8), ("telegram", 40)):
        steps += [clock(now - days * DAY), call("create_session", source, source)]
    home.run("0.22.2", steps)
    (home.path / "config.yaml").write_text("sessions:\n  retention_days: 7\n")
    found = {f.key: f.severity for f in findings_of(home.store, CHECK, home=home.path)}
    assert found == {"api_server": Severity.WARNING, "acp": Severity.INFO, "recovered": Severity.WARNING}


def test_a_living_backend_keeps_what_it_could_own(home: Home) -> None:
    now = time.time()
    steps = []
    for source in ("cli", "tui", "cron"):
        for ago in (2 * DAY, 3 * DAY):
            steps += [clock(now - ago), call("create_session", f"{source} {ago / DAY:.0f}", source)]
    beat = call(
        "register_backend_heartbeat",
        backend_id="b",
        pid=1,
        started_at=now - 2 * DAY + 11 * HOUR,
        last_heartbeat=now - 170,
    )
    home.run("0.21.5", [*steps, clock(None), beat])
    found = {f.key for f in findings_of(home.store, CHECK, home=home.path, now=now)}
    assert found == {"cli 3", "tui 3", "cron 2", "cron 3"}
    found = {f.key for f in findings_of(home.store, CHECK, home=home.path, now=now + 20)}
    assert found == {"cli 2", "cli 3", "tui 2", "tui 3", "cron 2", "cron 3"}


@pytest.mark.parametrize("seen", [True, False])
def test_where_routes_cannot_be_seen_chats_are_left(home: Home, seen: bool) -> None:
    columns = {"telegram": "telegram", "plugin": "some_platform", "unknown": "unknown", "handed": "cli", "cli": "cli"}
    steps = [clock(time.time() - 3 * DAY)]
    steps += [call("create_session", name, source) for name, source in columns.items()]
    steps += [call("create_session", "telegram new", "telegram")]
    steps += [sql("UPDATE sessions SET session_key = 'k' WHERE source = 'telegram'")]
    steps += [sql("UPDATE sessions SET started_at = started_at + 60 WHERE id = 'telegram new'")]
    steps += [sql("UPDATE sessions SET handoff_state = 'completed' WHERE id = 'handed'")]
    home.run("0.18.0", steps)
    (home.path / "sessions").mkdir(exist_ok=True)
    (home.path / "sessions" / "sessions.json").write_text("{}" if seen else "{")
    found = {f.key for f in findings_of(home.store, CHECK, home=home.path)}
    assert found == ({"telegram", "plugin", "unknown", "handed", "cli"} if seen else {"unknown", "cli"})


def test_idle_only_raises_a_threshold(home: Home) -> None:
    session = open_zombie(home, "0.19.0", idle=3 * HOUR)
    assert [f.key for f in findings_of(home.store, CHECK, home=home.path, idle_floor=60.0)] == [session]
    assert findings_of(home.store, CHECK, home=home.path, idle_floor=4 * HOUR) == []


def test_a_store_that_lacks_columns_and_tables_is_judged_by_what_it_has(home: Home) -> None:
    session = open_zombie(home, "0.22.2")
    lacking = ("async_delegations", "gateway_heartbeats", "session_turn_leases", "compression_locks", "gateway_routing")
    home.run("0.22.2", [*[sql(f"DROP TABLE {table}") for table in lacking]])
    # Reopening makes them anew, so they go once more, on a connection of their own.
    import apsw

    connection = apsw.Connection(str(home.store))
    for table in lacking:
        connection.execute(f"DROP TABLE IF EXISTS {table}")
    connection.close()
    assert [f.key for f in findings_of(home.store, CHECK, home=home.path)] == [session]


def test_ids_of_any_type_are_judged(home: Home) -> None:
    """Text that is no text, bytes: each once left behind, and once with a fresh message and a fresh child."""
    old, fresh = time.time() - 3 * DAY, time.time() - 60
    rename = "UPDATE {} SET {} = CASE WHEN ?2 THEN CAST(?1 AS TEXT) ELSE ?1 END WHERE {} = ?3"
    steps = [sql("PRAGMA foreign_keys=OFF")]
    for name, data, as_text in (("bytes", b"\x01\xff", 0), ("bad", b"\xff\xfe", 1)):
        for kind, at in (("old", old), ("said", fresh), ("born", fresh)):
            session = f"{name} {kind}"
            steps += [clock(old), call("create_session", session, "cli")]
            steps += [clock(at if kind == "said" else old), call("append_message", session, "user", "hello")]
            steps += [clock(at), call("create_session", f"{session} child", "cli", parent_session_id=session)]
            steps += [call("end_session", f"{session} child", "cli_close")] if kind != "born" else []
            new = blob(data + kind.encode())
            for table, column in (("sessions", "id"), ("messages", "session_id"), ("sessions", "parent_session_id")):
                steps.append(sql(rename.format(table, column, column), new, as_text, session))
    home.run("0.22.2", steps)
    found = findings_of(home.store, CHECK, home=home.path)
    assert {finding.key for finding in found} == {b"\x01\xffold", BadText(b"\xff\xfeold")}


# --- wrong variants --------------------------------------------------------------------------------------------------

Patch = Callable[[pytest.MonkeyPatch], Check | None]


def _every_open_row(view: StoreView, keys: Sequence[Key] | None) -> Iterator[Finding]:
    for (session,) in view.rows("SELECT id FROM sessions WHERE ended_at IS NULL"):
        yield Finding(CHECK.name, Severity.WARNING, "sessions", session, session, "open", {}, Safety.SAFE)


def _set(name: str, value: Any) -> Patch:
    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(name, value)

    return patch


def _limit(seconds: float) -> Patch:
    return _set("hermes_doctor.store.open_rows.idle_limit", lambda group, held, retention: seconds)


def _only(*clocks: str) -> Patch:
    """Idle by these clocks alone; absurd ones count as absent."""

    def age(cells: Sequence[Cell]) -> Age:
        started, activity, message, _absurd, _any = cells
        named = {"started_at": started, "last_activity_at": activity, "messages.timestamp": message}
        return age_from([named[c] if c in clocks else None for c in named] + [0, 0])

    return _set("hermes_doctor.store.open_rows.age_from", age)


def _absurd_is_old(cells: Sequence[Cell]) -> Age:
    known = [cell for cell in cells[:3] if isinstance(cell, int | float) and cell < 4e9]
    return Age(max(known, default=0.0), "started_at", max(known, default=0.0))


def _rows_without(**values: Any) -> Patch:
    real = open_rows._row
    return _set("hermes_doctor.store.open_rows._row", lambda cells: replace(real(cells), **values))


WRONG: dict[str, Patch] = {
    "every open row is a zombie": lambda _m: replace(CHECK, rule=RelationRule("sessions", _every_open_row)),
    "five minutes": _limit(300.0),
    "a day for all": _limit(DAY),
    "five days": _limit(5 * DAY),
    "idle by the start alone": _only("started_at"),
    "idle by messages alone": _only("messages.timestamp"),
    "no last activity": _only("started_at", "messages.timestamp"),
    "no start": _only("last_activity_at", "messages.timestamp"),
    "what is absurd is old": _set("hermes_doctor.store.open_rows.age_from", _absurd_is_old),
    "no chain": _rows_without(continues=False),
    "nothing below": _rows_without(has_children=False),
    "no work in the lineage spares": _set("hermes_doctor.store.open_rows.live_work", lambda view, session: None),
    "a handoff does not spare": _set("hermes_doctor.store.open_rows.HANDING_OFF", frozenset()),
    "a route does not spare": _set("hermes_doctor.store.open_rows.routed", lambda view, session: False),
    "a pin or route up the chain is not seen": _set("hermes_doctor.store.open_rows.kept", lambda *a: None),
    "only the row's own lock or lease": _set(
        "hermes_doctor.store.liveness.family_of", lambda view, session: Kin((session,))
    ),
    "no routes": _set("hermes_doctor.store.liveness.routed_session_ids", lambda home: Mentions()),
    "an expired lock still holds": _set("hermes_doctor.store.liveness.expired", lambda cell, now: False),
    "an absurd expiry is over": _set(
        "hermes_doctor.store.liveness.expired", lambda cell, now: not isinstance(cell, float) or cell <= now
    ),
    "any pending delegation is over": _set("hermes_doctor.store.liveness._delegating", lambda view: frozenset()),
    "prune never takes anything": _set("checks.open_zombies.ending_is_dangerous", lambda view, age: False),
    "prune takes everything old": _set(
        "checks.open_zombies.ending_is_dangerous", lambda view, age: age.started < view.now - 90 * DAY
    ),
    "every newer sibling takes over": _set("hermes_doctor.store.open_rows.descendants_of", lambda view, key: Kin(())),
    "a fork is no matter": _set("hermes_doctor.store.open_rows.goes_on_in", lambda view, session: ()),
    "chats like any other": _set("hermes_doctor.store.open_rows._successor", lambda asked, row: "somebody"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_variant_fails_a_case(
    name: str, plot: Callable[[Release], Planted], monkeypatch: pytest.MonkeyPatch
) -> None:
    variant = WRONG[name](monkeypatch) or CHECK
    differing: list[str] = []
    for version in ("0.13.0", "0.20.6", "0.22.2"):
        scene = plot(get(version))
        wanted, found = expected_of(scene.release), scene.found(variant)
        differing += [key for key in wanted.keys() | found.keys() if wanted.get(key) != found.get(key)]
    assert differing
