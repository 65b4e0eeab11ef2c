"""Signs of life, written by the releases themselves, and what cannot be read counting as there."""

from __future__ import annotations

import json
import os
import time
from typing import Any

import pytest

from hermes_doctor.store.cells import Cell
from hermes_doctor.store.liveness import (
    Sign,
    expired,
    guards,
    heartbeat,
    kept,
    lease_alive,
    live_work,
    lock_alive,
    routed,
    routes,
    session_ids_in,
)
from tests.oracle.home import Home
from tests.oracle.releases import RELEASES, Release, between
from tests.oracle.steps import Step, call, clock, ref, sql, use
from tests.store.views import view_of

HOUR = 3600.0
DAY = 86_400.0
PEER = {"platform": "telegram", "chat_id": "1001", "user_id": "u1", "chat_type": "dm"}


def asked(home: Home, session: str) -> Sign | None:
    """What keeps the session, as of now."""
    with view_of(home.store, home=home.path) as view:
        return kept(view, [session]) or live_work(view, session)


def family(*, ended: bool = True) -> list[Step]:
    """A root, compressed into a tip which has a delegate; and a stranger."""
    return [
        call("create_session", "root", "cli"),
        *([call("end_session", "root", "compression")] if ended else []),
        call("create_session", "tip", "cli", parent_session_id="root"),
        call("create_session", "delegate", "subagent", parent_session_id="tip", model_config={"_delegate_from": "tip"}),
        call("create_session", "stranger", "cli"),
    ]


def test_a_chat_of_the_gateway_is_routed_and_the_one_before_new_is_not(home: Home, release: Release) -> None:
    chat, after = home.run(
        release,
        [
            use("gateway_message", keep="chat", **PEER),
            use("gateway_reset", session_key=ref("chat", "session_key")),
        ],
    )
    with view_of(home.store, home=home.path) as view:
        assert routed(view, after["session_id"])
        assert routes(view).complete
        assert not routed(view, chat["session_id"])
    assert asked(home, after["session_id"]) is Sign.ROUTED


@pytest.mark.parametrize("release", [RELEASES[0], RELEASES[-1]], ids=str)
def test_without_its_home_a_stores_routes_are_known_only_from_its_own_table(home: Home, release: Release) -> None:
    chat = home.run(release, [use("gateway_message", **PEER)])[0]
    with view_of(home.store) as view:
        in_table = release.since("0.18.2")
        assert routes(view).complete is in_table
        assert routed(view, chat["session_id"]) is in_table


@pytest.mark.parametrize("broken", ["{", '"text"', "[1", ""])
def test_a_broken_sessions_json_means_that_routes_cannot_be_seen(home: Home, broken: str) -> None:
    home.run("0.16.0", [call("create_session", "s1", "telegram")])
    (home.path / "sessions").mkdir(exist_ok=True)
    (home.path / "sessions" / "sessions.json").write_text(broken)
    with view_of(home.store, home=home.path) as view:
        assert not routes(view).complete


def test_an_unreadable_entry_means_that_routes_cannot_be_seen(home: Home) -> None:
    home.run(
        "0.22.2",
        [
            call("create_session", "s1", "telegram"),
            sql("INSERT INTO gateway_routing (scope, session_key, entry_json, updated_at) VALUES ('x', 'k', '{', 1.0)"),
            sql(
                "INSERT INTO gateway_routing (scope, session_key, entry_json, updated_at) VALUES ('y', 'k', ?, 1.0)",
                json.dumps({"session_key": "k", "metadata": {"deep": [{"prev_session_id": "s1"}]}}),
            ),
        ],
    )
    with view_of(home.store, home=home.path) as view:
        assert not routes(view).complete
        assert routed(view, "s1")


@pytest.mark.parametrize("release", [RELEASES[0], RELEASES[-1]], ids=str)
def test_a_topic_binding_is_a_route(home: Home, release: Release) -> None:
    home.run(
        release,
        [
            call("create_session", "s1", "telegram", user_id="u1"),
            call("apply_telegram_topic_migration"),
            call("enable_telegram_topic_mode", chat_id="1", user_id="u1"),
            call("bind_telegram_topic", chat_id="1", thread_id="7", user_id="u1", session_key="k", session_id="s1"),
        ],
    )
    assert asked(home, "s1") is Sign.ROUTED


@pytest.mark.parametrize("release", between("0.16.0"), ids=str)
def test_a_compression_lock_keeps_its_whole_lineage_until_it_expires(home: Home, release: Release) -> None:
    home.run(release, [*family(), call("try_acquire_compression_lock", "delegate", "me", ttl_seconds=60.0)])
    now = time.time()
    for session in ("root", "tip", "delegate"):
        with view_of(home.store, home=home.path, now=now + 50) as view:
            assert live_work(view, session) is Sign.LOCK
            assert live_work(view, "stranger") is None
            assert lock_alive(view, [session]) is (session == "delegate")
        with view_of(home.store, home=home.path, now=now + 70) as view:
            assert live_work(view, session) is None
            assert not lock_alive(view, ["delegate"])


@pytest.mark.parametrize("release", between("0.20.6"), ids=str)
def test_a_turn_lease_keeps_its_whole_lineage_until_it_expires(home: Home, release: Release) -> None:
    home.run(
        release,
        [
            *family(),
            call("try_acquire_session_turn_lease", "tip", f"pid={os.getpid()}", ttl_seconds=60.0),
        ],
    )
    now = time.time()
    with view_of(home.store, home=home.path, now=now + 50) as view:
        assert [live_work(view, session) for session in ("root", "tip", "delegate")] == [Sign.LEASE] * 3
        assert live_work(view, "stranger") is None
        # The release takes it on the conversation's root.
        assert lease_alive(view, ["root"])
        assert not lease_alive(view, ["tip", "stranger"])
    with view_of(home.store, home=home.path, now=now + 70) as view:
        assert live_work(view, "tip") is None


@pytest.mark.parametrize(
    ("cell", "over"),
    [
        (0.0, True),
        (999.0, True),
        (1000, True),
        (1000.5, False),
        (5e246, False),
        ("900", False),
        (b"\x00", False),
        (None, False),
    ],
)
def test_an_expiry_that_cannot_be_told_is_not_over(cell: Cell, over: bool) -> None:
    assert expired(cell, 1000.0) is over


def test_an_absurd_expiry_in_the_store_spares(home: Home) -> None:
    lock = "INSERT INTO compression_locks (session_id, holder, acquired_at, expires_at) VALUES (?, 'x', 1.0, ?)"
    home.run(
        "0.22.2",
        [
            *[call("create_session", name, "cli") for name in ("s1", "s2", "s3")],
            sql(lock, "s1", "soon"),
            sql(lock, "s2", 5e246),
            sql(lock, "s3", time.time() - 1),
        ],
    )
    with view_of(home.store, home=home.path) as view:
        assert guards(view).locks == {"s1", "s2"}


def delegation(**columns: Any) -> Step:
    row = {
        "delegation_id": "d1",
        "origin_session": "",
        "state": "running",
        "dispatched_at": 1.0,
        "updated_at": 1.0,
        "delivery_state": "pending",
    } | columns
    names, marks = ", ".join(row), ", ".join("?" * len(row))
    return sql(f"INSERT INTO async_delegations ({names}) VALUES ({marks})", *row.values())


@pytest.mark.parametrize(
    ("state", "delivery", "alive"),
    [
        ("running", "pending", True),
        ("finalizing", "pending", True),
        ("running", "delivered", True),
        ("something new", "delivered", True),
        ("completed", "pending", True),
        ("unknown", "pending", True),
        ("completed", "delivered", False),
        ("error", "dropped", False),
        ("unknown", "delivered", False),
    ],
)
def test_a_delegation_keeps_a_session_until_it_is_over_and_delivered(
    home: Home, state: str, delivery: str, alive: bool
) -> None:
    home.run(
        "0.19.0",
        [*family(), delegation(parent_session_id="tip", state=state, delivery_state=delivery)],
    )
    with view_of(home.store, home=home.path) as view:
        assert (live_work(view, "root") is Sign.DELEGATION) is alive
        assert live_work(view, "stranger") is None


@pytest.mark.parametrize("release", between("0.19.0"), ids=str)
def test_a_delegation_of_the_releases_own_journal_keeps_its_parents_lineage(home: Home, release: Release) -> None:
    running = use(
        "running_delegation",
        delegation_id="d1",
        parent="tip",
        session_key="",
        owner_pid=os.getpid(),
        dispatched_at=time.time() - 30 * DAY,
    )
    home.run(release, [*family(), running])
    with view_of(home.store, home=home.path) as view:
        assert live_work(view, "delegate") is Sign.DELEGATION
        assert live_work(view, "stranger") is None


@pytest.mark.parametrize("column", ["origin_session", "origin_ui_session_id", "parent_session_id", "origin_session_id"])
def test_every_column_that_can_name_a_session_counts(home: Home, column: str) -> None:
    home.run("0.22.2", [call("create_session", "s1", "tui"), delegation(**{column: "s1"})])
    assert asked(home, "s1") is Sign.DELEGATION


def test_a_delegation_names_a_chat_by_its_routing_key(home: Home) -> None:
    home.run(
        "0.22.2",
        [
            call("create_session", "s1", "telegram", session_key="agent:main:telegram:dm:1"),
            call("create_session", "s2", "telegram", session_key="agent:main:telegram:dm:2"),
            delegation(origin_session="agent:main:telegram:dm:1"),
        ],
    )
    with view_of(home.store, home=home.path) as view:
        assert live_work(view, "s1") is Sign.DELEGATION
        assert live_work(view, "s2") is None


def test_a_heartbeat_keeps_what_its_backend_could_own(home: Home) -> None:
    now = time.time()
    used = now - 2 * DAY
    beat = "register_backend_heartbeat"
    home.run(
        "0.22.2",
        [
            call("create_session", "s1", "tui"),
            call(beat, backend_id="b1", pid=os.getpid(), started_at=used + 12 * HOUR, last_heartbeat=now - 180),
        ],
    )
    with view_of(home.store, home=home.path, now=now - 1) as view:
        for source in ("tui", "desktop", "subagent", "cli", "tool", "oneshot", "unknown"):
            assert heartbeat(view, source, used)
        others: tuple[Cell, ...] = ("cron", "kanban", "acp", "api_server", "telegram", "recovered", None, b"tui")
        assert not any(heartbeat(view, source, used) for source in others)
        # A backend that came twelve hours and a minute after the last use never had it.
        assert not heartbeat(view, "tui", used - 60)
    with view_of(home.store, home=home.path, now=now + 1) as view:
        assert not heartbeat(view, "tui", used)


def test_a_pin_and_a_handoff_keep_a_session(home: Home) -> None:
    home.run(
        "0.22.2",
        [
            *[call("create_session", name, "cli") for name in ("pinned", "pending", "running", "failed", "plain")],
            call("set_session_pinned", "pinned", True),
            *[call("request_handoff", name, "telegram") for name in ("pending", "running", "failed")],
            call("claim_handoff", "running"),
            call("fail_handoff", "failed", "no such chat"),
        ],
    )
    signs = {name: asked(home, name) for name in ("pinned", "pending", "running", "failed", "plain")}
    assert signs == {
        "pinned": Sign.PINNED,
        "pending": Sign.HANDOFF,
        "running": Sign.HANDOFF,
        "failed": None,
        "plain": None,
    }


def test_a_store_without_any_of_the_tables_has_no_signs(home: Home) -> None:
    home.run("0.13.0", [clock(time.time() - DAY), *family()])
    with view_of(home.store, home=home.path) as view:
        assert guards(view).leases == guards(view).locks == guards(view).delegations == frozenset()
        assert kept(view, ["tip", "root"]) is live_work(view, "tip") is None
        assert not heartbeat(view, "tui", time.time())


def test_ids_are_found_at_any_depth_and_only_under_keys_that_say_so() -> None:
    parsed = json.loads(
        '{"session_id": "a", "x": [{"prev_session_id": "b", "id": "c"}], "session_ids": ["d"], "session_id2": "e"}'
    )
    assert set(session_ids_in(parsed)) == {"a", "b"}
