"""dangling-routes: what names a session that is gone is told, and what hermes mends by itself is left."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import apsw
import pytest

from checks import dangling_routes
from checks.dangling_routes import CHECK
from hermes_doctor.engine.model import Check, RowRule, Safety, Severity
from hermes_doctor.engine.rows import find_again
from hermes_doctor.store.orphans import FAMILY, Remedy
from hermes_doctor.store.shape import Shape
from tests.checks.orphan_cases import NOW, SAID, chat, said_to_nobody, without_foreign_keys
from tests.checks.support import findings_of
from tests.oracle.home import Home
from tests.oracle.releases import NEWEST, Release, get
from tests.oracle.steps import Step, call, open_store, sql, use
from tests.store.views import view_of

HOUR = 3600.0
SOME = pytest.mark.parametrize("release", [get("0.19.0"), NEWEST], ids=str)

_ROUTE = "INSERT INTO gateway_routing (scope, session_key, entry_json, updated_at) VALUES ('', ?, ?, ?)"
_USAGE = "INSERT INTO session_model_usage (session_id, model, task, input_tokens) VALUES (?, 'm', ?, 5)"
_DELEGATION = (
    "INSERT INTO async_delegations (delegation_id, origin_session, parent_session_id, state, dispatched_at, updated_at)"
    " VALUES (?, '', ?, 'completed', ?, ?)"
)
_TOPIC = (
    "INSERT INTO telegram_dm_topic_bindings"
    " (chat_id, thread_id, user_id, session_key, session_id, managed_mode, linked_at, updated_at)"
    " VALUES ('1', ?, 'u', ?, ?, 'auto', 0, 0)"
)


@dataclass(frozen=True)
class Case:
    """A row that names a session. ``severity`` None: it is well."""

    table: str
    name: str
    steps: list[Step]
    severity: Severity | None
    fix: Safety = Safety.NONE
    refused: bool = False


def route(name: str, entry: str, *, ago: float = 48 * HOUR, key: str = "agent:main:telegram:dm:") -> list[Step]:
    return [sql(_ROUTE, key + name, entry.replace("ID", name), NOW - ago)]


def cases() -> list[Case]:
    warning, info = Severity.WARNING, Severity.INFO
    entry = '{"session_id": "ID", "was_auto_reset": false, "last_prompt_tokens": 7}'
    routes = [
        ("r-gone", route("r-gone", entry), warning),
        ("r-there", [*chat("r-there"), *route("r-there", entry)], None),
        ("r-ended", [*chat("r-ended"), call("end_session", "r-ended", "idle"), *route("r-ended", entry)], None),
        ("r-young", route("r-young", entry, ago=HOUR - 60), None),
        ("r-old", route("r-old", entry, ago=HOUR + 60), warning),
        ("r-work", route("r-work", entry, key="agent:work:telegram:dm:"), None),
        ("r-broken", route("r-broken", '{"session_id": "ID"'), None),
        ("r-other", [*chat("r-other"), *route("r-other", '{"session_id": "ID", "x_session_id": "nobody"}')], None),
        ("r-empty", route("r-empty", '{"session_id": ""}'), None),
    ]
    usage = [
        ("u-gone", [sql(_USAGE, "u-gone", "")], warning, Safety.UNSAFE, False),
        ("u-title", [sql(_USAGE, "u-title", "title")], warning, Safety.UNSAFE, False),
        ("u-there", [*chat("u-there"), sql(_USAGE, "u-there", "")], None, Safety.NONE, False),
        ("u-left", [sql(_USAGE, "u-left", ""), *said_to_nobody("u-left", SAID)], warning, Safety.NONE, True),
    ]
    delegations = [
        ("d-gone", [sql(_DELEGATION, "d-gone", "d-gone", SAID, SAID)], info),
        ("d-there", [*chat("d-there"), sql(_DELEGATION, "d-there", "d-there", SAID, SAID)], None),
        ("d-none", [sql(_DELEGATION, "d-none", "", SAID, SAID)], None),
    ]
    topics = [
        ("t-gone", [sql(_TOPIC, "11", "k11", "t-gone")], warning),
        ("t-there", [*chat("t-there"), sql(_TOPIC, "12", "k12", "t-there")], None),
    ]
    return [
        *(Case("gateway_routing", name, steps, severity) for name, steps, severity in routes),
        *(Case("session_model_usage", *each) for each in usage),
        *(Case("async_delegations", name, steps, severity) for name, steps, severity in delegations),
        *(Case("telegram_dm_topic_bindings", name, steps, severity) for name, steps, severity in topics),
    ]


def plant(home: Home, release: Release) -> list[Case]:
    """The cases, planted; the tables that a release makes when they are first needed are made by it."""
    made = cases()
    first = [
        call("apply_telegram_topic_migration"),
        # The journal of delegations makes its table itself.
        use("recover_delegations"),
    ]
    home.run(release, [*first, *(step for case in made for step in without_foreign_keys(*case.steps))])
    return made


@pytest.fixture(scope="module")
def planted(oracle: None, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Release], tuple[Home, list[Case]]]:
    folder, known = tmp_path_factory.mktemp("routes"), dict[str, tuple[Home, list[Case]]]()

    def get_planted(release: Release) -> tuple[Home, list[Case]]:
        if release.version not in known:
            home = Home(folder / release.version)
            known[release.version] = home, plant(home, release)
        return known[release.version]

    return get_planted


def wrong(home: Home, made: list[Case], check: Check) -> list[str]:
    """The cases of which the check says something else than it should."""
    found = {(f.table, f.session): f for f in findings_of(home.store, check, home=home.path, now=NOW)}
    bad = []
    for case in made:
        finding = found.pop((case.table, case.name), None)
        said = finding and (finding.severity, finding.fix, finding.refusal is not None)
        if said != (case.severity and (case.severity, case.fix, case.refused)):
            bad.append(case.name)
    return bad + [f"{session!r} in {table}" for table, session in found]


@SOME
def test_each_row_that_names_a_missing_session_is_told(planted: Any, release: Release) -> None:
    home, made = planted(release)
    assert wrong(home, made, CHECK) == []


def test_asking_again_about_each_row_says_the_same(planted: Any) -> None:
    home, _made = planted(NEWEST)
    found = findings_of(home.store, CHECK, home=home.path, now=NOW)
    with view_of(home.store, home=home.path, now=NOW) as view:
        assert sorted(find_again(CHECK, found, view), key=str) == sorted(found, key=str)


def _rules(**changed: Any) -> Check:
    """The check with its rules over rows changed."""
    assert isinstance(CHECK.rule, tuple)
    rules = tuple(replace(rule, **changed) if isinstance(rule, RowRule) else rule for rule in CHECK.rule)
    return replace(CHECK, rule=rules)


def _every_row(shape: Shape) -> str | None:
    return "1" if shape.has("sessions") else None


def test_wrong_rules_are_caught(planted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    home, made = planted(NEWEST)
    assert wrong(home, made, _rules(condition=_every_row)) != []
    with monkeypatch.context() as patch:
        patch.setattr(dangling_routes, "_of_another_profile", lambda *_: False)
        assert wrong(home, made, CHECK) == ["r-work"]
    with monkeypatch.context() as patch:
        patch.setattr(dangling_routes, "YOUNG_SECONDS", 0.0)
        assert wrong(home, made, CHECK) == ["r-young"]
    with monkeypatch.context() as patch:
        patch.setattr(dangling_routes, "has_messages", lambda *_: False)
        assert wrong(home, made, CHECK) == ["u-left"]


def old_keys(store: Path) -> None:
    """The two tables as they stand in stores that were made in between two releases (73541, 73823)."""
    connection = apsw.Connection(str(store))
    connection.execute(
        """
        PRAGMA foreign_keys=OFF;
        DROP TABLE gateway_routing;
        CREATE TABLE gateway_routing (session_key TEXT PRIMARY KEY, entry_json TEXT, updated_at REAL, scope TEXT);
        INSERT INTO gateway_routing (session_key, entry_json, updated_at) VALUES ('k1', '{}', 1), ('k2', '{}', 1);
        CREATE TABLE new AS SELECT * FROM session_model_usage;
        DROP TABLE session_model_usage;
        CREATE TABLE session_model_usage (
            session_id TEXT NOT NULL REFERENCES sessions(id) ON DELETE CASCADE, model TEXT NOT NULL,
            billing_provider TEXT NOT NULL DEFAULT '', billing_base_url TEXT NOT NULL DEFAULT '',
            billing_mode TEXT NOT NULL DEFAULT '', api_call_count INTEGER DEFAULT 0, input_tokens INTEGER DEFAULT 0,
            output_tokens INTEGER DEFAULT 0, cache_read_tokens INTEGER DEFAULT 0,
            cache_write_tokens INTEGER DEFAULT 0, reasoning_tokens INTEGER DEFAULT 0,
            estimated_cost_usd REAL DEFAULT 0, actual_cost_usd REAL DEFAULT 0, cost_status TEXT, cost_source TEXT,
            first_seen REAL, last_seen REAL, task TEXT,
            PRIMARY KEY (session_id, model, billing_provider, billing_base_url, billing_mode)
        );
        DROP TABLE new;
        """
    )
    connection.close()


def test_old_keys_are_told_until_hermes_renews_them(home: Home) -> None:
    home.run(NEWEST, chat("s1"))
    old_keys(home.store)
    found = findings_of(home.store, CHECK, home=home.path, now=NOW)
    assert [(f.table, f.key, f.detail["lacks"], f.detail["rows_without"]) for f in found] == [
        ("gateway_routing", None, "scope", 2),
        ("session_model_usage", None, "task", 0),
    ]
    assert {f.severity for f in found} == {Severity.WARNING}
    assert all(f"HERMES_HOME={home.path} hermes sessions repair-routing" in f.summary for f in found)
    with view_of(home.store, home=home.path, now=NOW) as view:
        assert list(find_again(CHECK, found, view)) == found
    # What the command does first is to open the store for writing.
    home.run(NEWEST, [open_store()])
    assert findings_of(home.store, CHECK, home=home.path, now=NOW) == []


def test_a_route_is_left_dangling_by_releases_themselves(home: Home) -> None:
    peer = {"platform": "telegram", "chat_id": "1", "user_id": "u1", "chat_type": "dm"}
    (entry,) = home.run("0.19.0", [use("gateway_message", **peer)])
    home.run("0.19.0", [call("delete_session", entry["session_id"])])
    (found,) = findings_of(home.store, CHECK, home=home.path, now=NOW + 10 * 365 * 24 * HOUR)
    assert (found.table, found.session) == ("gateway_routing", entry["session_id"])
    # /new in that chat leads it to a session that is there.
    home.run("0.19.0", [use("gateway_reset", session_key=entry["session_key"])])
    assert findings_of(home.store, CHECK, home=home.path, now=NOW + 10 * 365 * 24 * HOUR) == []


def test_the_family_is_what_the_checks_go_through() -> None:
    looked_at = {(rule.table, rule.columns[0]) for rule in CHECK.rules if isinstance(rule, RowRule)}
    assert looked_at | {("messages", "session_id")} == {(link.table, link.column) for link in FAMILY}
    assert [link.table for link in FAMILY if link.remedy is Remedy.DELETE] == ["session_model_usage"]
