"""The harness itself: what releases write comes back, a kill leaves what a crash leaves."""

from __future__ import annotations

import time

from tests.oracle.home import KILLED, CallError, Home
from tests.oracle.process import HermesProcess
from tests.oracle.releases import Release
from tests.oracle.steps import call, clock, die_in_transaction, kill, ref, sql

DAY = 86_400.0


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
        ],
        check=False,
    )
    assert results[3] == [["user", "hi"]]
    assert abs(results[4]["started_at"] - yesterday) < 60
    times = [message["timestamp"] for message in results[7]]
    assert DAY - 60 < times[1] - times[0] < DAY + 60
    assert isinstance(results[8], CallError)
    assert results[8].kind == "AttributeError"


def test_the_file_is_what_the_table_of_releases_says(home: Home, release: Release) -> None:
    schema, sqlite = home.run(
        release, [sql("SELECT version FROM schema_version"), sql("SELECT sqlite_version()")]
    )
    assert schema == [[release.schema]]
    assert home.sidecars() == set()
    vulnerable = tuple(int(part) for part in sqlite[0][0].split(".")) < (3, 44, 6)
    if not release.prefers_delete:
        assert home.journal_mode() == "wal"
    elif vulnerable:
        assert home.journal_mode() == "delete"


def test_a_store_can_be_made_wal_for_every_release(home: Home, release: Release) -> None:
    home.use_wal(release)
    home.run(release, [call("create_session", "s1", "cli")])
    assert home.journal_mode() == "wal"


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
    home.run(release, [call("create_session", "s1", "cli"), call("append_message", "s1", "user", "hi")])
    size = home.store.stat().st_size
    insert = "INSERT INTO messages (session_id, role, content, timestamp) VALUES ('s1', 'user', ?, 1.0)"
    home.run(release, [die_in_transaction(*[(insert, "x" * 50_000)] * 5)])
    if home.journal_mode() == "wal":
        assert home.sidecars() == {"-wal", "-shm"}
        assert home.store.with_name("state.db-wal").stat().st_size > 200_000
    else:
        assert home.sidecars() == {"-journal"}
        assert home.store.stat().st_size > size
    assert len(home.conversation(release, "s1")) == 1


def test_a_living_process_holds_the_store_and_writes(home: Home, release: Release) -> None:
    with HermesProcess(home, release) as hermes:
        hermes.call("create_session", "s1", "cli")
        hermes.call("append_message", "s1", "user", "hi")
        assert hermes.alive
        assert ("-wal" in home.sidecars()) == (home.journal_mode() == "wal")
    assert not hermes.alive
    assert len(home.conversation(release, "s1")) == 1
