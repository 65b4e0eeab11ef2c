"""The harness itself: what releases write comes back, a kill leaves what a crash leaves."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.oracle import faults
from tests.oracle.history import DAY, HOUR, REASONING, held_cli
from tests.oracle.home import KILLED, CallError, Home, OracleError
from tests.oracle.process import HermesProcess
from tests.oracle.releases import CHAINS, RELEASES, Chain, Release, between, get
from tests.oracle.steps import call, clock, die_in_transaction, kill, ref, sql, use
from tests.oracle.templates import LivedIn


def test_a_step_list_reaches_the_release(home: Home, release: Release) -> None:
    yesterday = time.time() - DAY
    results = home.run(
        release,
        [
            clock(yesterday),
            call("create_session", "s1", "cli", model="m"),
            call("append_message", "s1", "user", "hi", keep="first"),
            sql("SELECT role, content FROM messages WHERE id = ?", ref("first")),
            call("get_session", "s1"),
            clock(None),
            call("append_message", "s1", "assistant", "yo"),
            call("get_messages", "s1"),
            call("no_such_method"),
            sql("SELECT version FROM schema_version"),
            sql("SELECT sqlite_version()"),
        ],
        check=False,
    )
    assert results[3] == [["user", "hi"]]
    assert abs(results[4]["started_at"] - yesterday) < 60
    times = [message["timestamp"] for message in results[7]]
    assert DAY - 60 < times[1] - times[0] < DAY + 60
    assert isinstance(results[8], CallError)
    assert results[8].kind == "AttributeError"
    assert results[9] == [[release.schema]]
    assert home.sidecars() == set()
    vulnerable = tuple(int(part) for part in results[10][0][0].split(".")) < (3, 44, 6)
    if not release.prefers_delete:
        assert home.journal_mode() == "wal"
    elif vulnerable:
        assert home.journal_mode() == "delete"


def test_a_fork_is_as_a_python_that_was_just_started(make_home: Callable[[str], Home], release: Release) -> None:
    forked, fresh = make_home("forked"), make_home("afresh")
    steps = [use("surroundings")]
    told = json.dumps(forked.run(release, steps)[0], indent=1).replace(str(forked.path), str(fresh.path))
    assert told == json.dumps(fresh.run(release, steps, fresh=True)[0], indent=1)
    assert '"of the release before": []' in told
    assert '"hermes_state"' in told


def test_a_kill_leaves_the_sidecars_of_a_crash(home: Home, release: Release) -> None:
    results = home.run(
        release,
        [
            call("create_session", "s1", "cli"),
            call("append_message", "s1", "user", "hi"),
            kill(),
            call("get_session", "s1"),
        ],
    )
    assert results[2:] == [KILLED, KILLED]
    assert home.sidecars() == ({"-wal", "-shm"} if home.journal_mode() == "wal" else set())
    assert [message["content"] for message in home.conversation(release, "s1")] == ["hi"]


def test_dying_in_a_transaction_leaves_a_hot_journal(home: Home, release: Release) -> None:
    insert = "INSERT INTO messages (session_id, role, content, timestamp) VALUES ('s1', 'user', ?, 1.0)"
    home.run(
        release,
        [
            call("create_session", "s1", "cli"),
            call("append_message", "s1", "user", "hi"),
            die_in_transaction(*[(insert, "x" * 100_000)] * 5),
        ],
    )
    if home.journal_mode() == "wal":
        assert home.sidecars() == {"-wal", "-shm"}
        assert home.store.with_name("state.db-wal").stat().st_size > 500_000
    else:
        # Pages of the lost transaction are in the file already: only the journal can take them back.
        assert home.sidecars() == {"-journal"}
        assert home.store.stat().st_size > 500_000
    assert len(home.conversation(release, "s1")) == 1


def test_a_conversation_comes_back_as_written(lived_in: LivedIn, release: Release) -> None:
    lived = lived_in(release)
    stage = lived.stages[0]
    replayed = lived.home.conversations(release, [stage.ids[name] for name in stage.written])
    for name, written in stage.written.items():
        found = [(message["role"], message.get("content")) for message in replayed[stage.ids[name]]]
        assert found == written, name
    assert {"ended-cli", "ended-structured", "chain-tip", "branch-child", "routed"} <= set(stage.written)
    last = replayed[lived["ended-cli"]][3]
    assert {column: last[column] for column in REASONING} == REASONING
    assert lived.home.ask(release, sql("SELECT version FROM schema_version")) == [[release.schema]]


def test_a_healthy_home_is_what_it_says_it_is(lived_in: LivedIn, release: Release) -> None:
    lived = lived_in(release)
    home = lived.home
    rows, tip, resumed, list_rows, missing, integrity = home.run(
        release,
        [
            sql("SELECT id, source, parent_session_id, end_reason, ended_at FROM sessions"),
            call("get_compression_tip", lived["chain-root"]),
            call("resolve_resume_session_id", lived["chain-live-root"]),
            call("list_sessions_rich", limit=1000),
            sql("PRAGMA foreign_key_check"),
            sql("PRAGMA integrity_check"),
        ],
    )
    by_id = {row[0]: row for row in rows}
    assert len(by_id) == len(lived.ids) == len(set(lived.ids.values()))
    names = {name: by_id[session] for name, session in lived.ids.items()}
    open_names = {name for name, row in names.items() if row[4] is None}
    expected = {"routed", "fresh", "mid-turn", "chain-live", "handoff", "api", "acp", "tui"}
    if release.since("0.15.2"):
        expected |= {"fork"}
    if release.since("0.16.0"):
        expected |= {"compressing"}
    if release.since("0.19.0"):
        expected |= {"delegating"}
    if release.since("0.20.0"):
        expected |= {"pinned"}
    if release.since("0.20.6"):
        expected |= {"turn"}
    if not release.since("0.18.0"):
        expected |= {"delegate-parent", "delegate-child"}
    assert open_names == expected
    assert names["rotated"][3] == "session_reset"
    assert names["branch-parent"][3] == "branched"
    assert tip == lived["chain-tip"]
    # Up to 0.16 a resume stays on a parent that has messages.
    assert resumed == lived["chain-live" if release.since("0.17.0") else "chain-live-root"]
    listed = [row["id"] for row in list_rows]
    assert lived["branch-child"] in listed
    assert lived["delegate-child"] not in listed
    assert missing == []
    assert integrity == [["ok"]]


def test_the_evidence_of_life_is_there(lived_in: LivedIn, release: Release) -> None:
    lived = lived_in(release)
    home, now = lived.home, time.time()
    routes = json.loads((home.path / "sessions" / "sessions.json").read_text())
    assert lived["routed"] in {entry["session_id"] for entry in routes.values() if isinstance(entry, dict)}
    queries = {
        "gateway_routing": ("0.18.2", "SELECT entry_json FROM gateway_routing"),
        "compression_locks": ("0.16.0", "SELECT session_id, expires_at FROM compression_locks"),
        "async_delegations": (
            "0.19.0",
            "SELECT parent_session_id, state, owner_pid, owner_started_at FROM async_delegations",
        ),
        "session_turn_leases": ("0.20.6", "SELECT conversation_id, expires_at FROM session_turn_leases"),
    }
    there = {table: query for table, (since, query) in queries.items() if release.since(since)}
    handoff, names, *values = home.run(
        release,
        [
            call("get_handoff_state", lived["handoff"]),
            sql("SELECT name FROM sqlite_master WHERE type = 'table'"),
            *[sql(query) for query in there.values()],
        ],
    )
    assert handoff["state"] == "failed"
    assert {name for [name] in names} & set(queries) == set(there)
    rows = dict(zip(there, values, strict=True))
    if "gateway_routing" in rows:
        [[entry]] = rows["gateway_routing"]
        assert json.loads(entry)["session_id"] == lived["routed"]
    if "compression_locks" in rows:
        [[session, expires]] = rows["compression_locks"]
        assert session == lived["compressing"]
        assert expires > now + HOUR
    if "async_delegations" in rows:
        [[parent, state, owner, started]] = rows["async_delegations"]
        assert (parent, state) == (lived["delegating"], "running")
        # The release's own recovery would call it lost if its owner were not a living process.
        os.kill(owner, 0)
        assert started
    if "session_turn_leases" in rows:
        [[conversation, expires]] = rows["session_turn_leases"]
        assert conversation == lived["turn-root"]
        assert expires > now + HOUR


def test_a_release_finds_nothing_to_clean_in_a_healthy_home(lived_in: LivedIn, release: Release) -> None:
    home = lived_in(release).home
    sessions = sql("SELECT id, ended_at, end_reason FROM sessions ORDER BY id")
    steps = [
        sessions,
        call("prune_empty_ghost_sessions"),
        call("finalize_orphaned_compression_sessions"),
        call("maybe_auto_prune_and_vacuum", vacuum=False),
    ]
    if release.since("0.19.0"):
        steps.append(use("recover_delegations"))
    if release.since("0.20.6"):
        steps.append(call("sweep_orphaned_sessions", max_idle_seconds=6 * HOUR))
    before, ghosts, finalized, pruned, *more, after = home.run(release, [*steps, sessions])
    assert (ghosts, finalized, pruned["pruned"]) == (0, 0, 0)
    assert [value for value in more if value not in (0, [])] == []
    assert after == before


@pytest.mark.parametrize("chain", CHAINS, ids=" ".join)
def test_a_home_goes_through_several_releases(lived_in: LivedIn, chain: Chain) -> None:
    lived = lived_in(*chain)
    newest = max((get(version) for version in chain), key=lambda release: release.order)
    assert lived.home.ask(lived.release, sql("SELECT version FROM schema_version")) == [[newest.schema]]
    assert [stage.release.version for stage in lived.stages] == list(chain)
    for stage in lived.stages:
        replayed = lived.home.conversations(lived.release, [stage.ids[name] for name in stage.written])
        for name, written in stage.written.items():
            found = [(message["role"], message.get("content")) for message in replayed[stage.ids[name]]]
            assert found == written, f"{name} of {stage.release}"


def test_a_copy_is_the_template_byte_for_byte(lived_in: LivedIn, shared_folder: Path) -> None:
    first, second = lived_in("0.19.0"), lived_in("0.19.0")
    template = shared_folder / "lived-in" / "0.19.0" / "home" / "state.db"
    assert first.home.path != second.home.path
    digests = {
        hashlib.sha256(path.read_bytes()).hexdigest() for path in (template, first.home.store, second.home.store)
    }
    assert len(digests) == 1
    assert template.stat().st_mtime_ns == second.home.store.stat().st_mtime_ns


@pytest.mark.parametrize("release", between("0.20.0"), ids=str)
def test_a_lived_in_store_can_be_wal(lived_in: LivedIn, release: Release) -> None:
    assert lived_in(release, wal=True).home.journal_mode() == "wal"


def test_a_held_session_has_a_living_holder(home: Home, release: Release) -> None:
    hermes, session = held_cli(home, release)
    with hermes:
        row = hermes.call("get_session", session)
        assert row["ended_at"] is None
        assert 3 * HOUR - 60 < time.time() - row["started_at"] < 3 * HOUR + 60
        assert ("-wal" in home.sidecars()) == (home.journal_mode() == "wal")
        descriptors = Path(f"/proc/{hermes.pid}/fd")
        assert home.store.resolve() in {entry.readlink() for entry in descriptors.iterdir()}
    assert not hermes.alive
    assert home.sidecars() == set()


@pytest.mark.parametrize("release", between("0.15.2"), ids=str)
def test_a_fork_wraps_once_per_level(home: Home, release: Release) -> None:
    with faults.planting(home, release) as plant:
        made = plant.fork_double_encoded(3)
    column = "SELECT reasoning_details FROM messages WHERE session_id = ? AND role = 'assistant' ORDER BY id"
    stored = home.run(release, [sql(column, session) for session in (made.source, *made.forks)])
    wraps = not release.since("0.20.6")
    for n, rows in enumerate(stored):
        value: Any = rows[0][0]
        for _ in range(1 + (n if wraps else 0)):
            assert isinstance(value, str)
            value = json.loads(value)
        assert value == REASONING["reasoning_details"]


def test_planted_rows_are_there(home: Home, release: Release) -> None:
    with faults.planting(home, release) as plant:
        zombie = plant.open_zombie("cron", idle=5 * DAY)
        mid_turn = plant.killed_mid_turn()
        stub = plant.orphan_stub()
        ended = plant.orphan_stub(end_reason="tui_shutdown")
        _, delegate = plant.delegate_left_open()
        rewritten = plant.rewritten_by_a_script(2)
        alone, _ = plant.lineage_gap()
        parent, empty = plant.lineage_gap("empty-continuation")
        child, missing = plant.lineage_gap("missing-parent")
        own, _ = plant.lineage_gap("self-parent")
        one, other = plant.lineage_gap("loop")
    query = """SELECT s.id, s.source, s.ended_at IS NULL, s.end_reason, s.parent_session_id, COUNT(m.id),
                      s.started_at
               FROM sessions s LEFT JOIN messages m ON m.session_id = s.id GROUP BY s.id"""
    replay, rows, listed = home.run(
        release,
        [
            call("get_messages_as_conversation", rewritten),
            sql(query),
            call("list_sessions_rich", limit=1000),
        ],
    )
    found = {row[0]: row[1:6] for row in rows}
    assert found[zombie] == ["cron", 1, None, None, 2]
    started = next(row[6] for row in rows if row[0] == zombie)
    assert 5 * DAY - 60 < time.time() - started < 5 * DAY + 60
    assert found[mid_turn] == ["cli", 1, None, None, 2]
    assert found[stub] == ["tui", 1, None, None, 0]
    assert found[ended] == ["tui", 0, "tui_shutdown", None, 0]
    assert found[delegate][:2] == ["subagent" if release.since("0.17.0") else "cli", 1]
    assert isinstance(replay[1]["reasoning_details"], list if release.since("0.20.6") else str)
    assert found[alone] == ["cli", 0, "compression", None, 2]
    assert alone not in {row[4] for row in rows}
    assert found[parent][2] == "compression"
    assert empty is not None
    assert found[empty] == ["cli", 1, None, parent, 0]
    assert missing not in found
    assert found[child][3] == missing
    assert child not in {row["id"] for row in listed}
    assert found[own][3] == own
    assert other is not None
    assert (found[one][3], found[other][3]) == (other, one)


def test_a_release_has_no_network(home: Home) -> None:
    # The driver's guard, reached through the audit event itself: no packet is sent where it fails.
    found, resolved = home.run(
        "0.19.0",
        [use("signature", method="append_message"), use("resolve", host="example.invalid")],
        check=False,
    )
    assert "session_id" in found
    assert isinstance(resolved, CallError)
    assert "no network" in resolved.text


def test_an_unexpected_death_fails_the_test(home: Home) -> None:
    with pytest.raises(OracleError, match="no_such_method"):
        home.run("0.19.0", [call("no_such_method")])
    hermes = HermesProcess(home, "0.19.0")
    hermes.kill()
    with pytest.raises((OracleError, BrokenPipeError, ValueError)):
        hermes.call("session_count")


def test_pythons_sqlite3_is_seen(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    from tests import conftest

    sqlite3.connect(tmp_path / "other.db").close()
    assert conftest._opened_by_sqlite3 == []
    sqlite3.connect(f"file:{tmp_path}/state.db?mode=rwc", uri=True).close()
    assert len(conftest._opened_by_sqlite3) == 1
    conftest._opened_by_sqlite3.clear()


def test_no_network_is_a_loud_skip_and_in_ci_a_failure(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-n", "0", "-p", "no:cacheprovider", __file__]
    command += ["-k", "step_list", f"--basetemp={tmp_path / 'base'}"]
    offline = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "CI"))}
    offline |= {"PIP_NO_INDEX": "1", "HERMES_DOCTOR_TEST_CACHE": str(tmp_path / "cache")}
    at_home = subprocess.run(command, env=offline, capture_output=True, text=True)
    assert at_home.returncode == 0, at_home.stdout
    assert f"{len(RELEASES)} skipped" in at_home.stdout
    assert f"NOT RUN: {len(RELEASES)} tests against real releases" in at_home.stdout
    in_ci = subprocess.run(command, env=offline | {"CI": "true"}, capture_output=True, text=True)
    assert in_ci.returncode == 1
    assert f"{len(RELEASES)} errors" in in_ci.stdout


@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare")
def test_a_holder_may_live_in_another_pid_namespace(home: Home) -> None:
    wrapper = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if subprocess.run([*wrapper, "true"], capture_output=True).returncode:
        pytest.skip("this machine lets nobody unshare a pid namespace")
    with HermesProcess(home, "0.22.2", wrapper=wrapper) as hermes:
        assert hermes.step({"pid": True}) == 1
        hermes.call("create_session", "s1", "cli")
    assert home.session("0.22.2", "s1") is not None


def test_every_release_is_pinned() -> None:
    assert len({release.sha256 for release in RELEASES}) == len(RELEASES) == 11
    assert [release.order for release in RELEASES] == sorted(release.order for release in RELEASES)
    assert [release.schema for release in RELEASES] == sorted(release.schema for release in RELEASES)
