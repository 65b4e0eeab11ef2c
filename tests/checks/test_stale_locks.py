"""stale-locks: what expired and is proven ownerless is found, whatever may still be somebody's is left."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import apsw
import pytest

from checks.stale_locks import CHECK
from hermes_doctor.engine.model import Check
from hermes_doctor.engine.rows import ask, find, find_again
from hermes_doctor.host.processes import process_exists
from hermes_doctor.store.owners import holder_is_dead
from tests.checks.left_behind_cases import DAY, LIVES, Plots
from tests.checks.support import findings_of
from tests.oracle.releases import CHAINS, RELEASES
from tests.oracle.steps import call
from tests.oracle.templates import LivedIn
from tests.store.views import view_of


@pytest.mark.parametrize("life", LIVES, ids="→".join)
def test_each_case_gets_its_verdict(plots: Plots, life: tuple[str, ...]) -> None:
    planted = plots(*life)
    assert planted.found(CHECK) == planted.expected(CHECK.name)


def test_asked_about_single_rows_it_says_the_same(plots: Plots) -> None:
    planted = plots("0.22.2")
    with view_of(planted.home.store, home=planted.home.path, now=planted.now) as view:
        everything = {finding.row: finding for finding in find([CHECK], view)}
        assert {finding.row: finding for finding in find_again(CHECK, everything.values(), view)} == everything
        for table, column in (
            ("compression_locks", "session_id"),
            ("session_turn_leases", "conversation_id"),
            ("gateway_heartbeats", "backend_id"),
        ):
            for (key,) in view.rows(f"SELECT {column} FROM {table}"):
                wanted = [everything[table, key]] if (table, key) in everything else []
                assert list(ask(CHECK, [key], view, table)) == wanted


def test_a_finding_says_what_is_known(plots: Plots) -> None:
    planted = plots("0.22.2")
    by_row = {f.row: f for f in findings_of(planted.home.store, CHECK, home=planted.home.path, now=planted.now)}
    one = by_row["compression_locks", "expired, its holder is gone"]
    assert one.summary == "compression lock that ended 1 minute ago, its holder is gone"
    assert one.detail == {"expired_seconds": 60, "expires_at": pytest.approx(planted.now - 60), "holder_is_gone": True}
    assert (one.session, one.action) == (one.key, "delete the compression lock")
    other = by_row["session_turn_leases", "a day past, without a namespace (lease)"]
    assert other.summary == "turn lease that ended 1 day ago, nobody has renewed or released it"
    silent = by_row["gateway_heartbeats", "silent for 12 hours and a minute"]
    assert (silent.summary, silent.session) == ("a backend that has been silent for 12 hours", None)


def test_in_a_store_that_stands_alone_no_process_is_proven_gone(plots: Plots) -> None:
    planted = plots("0.22.2")
    left = set(planted.expected(CHECK.name)) - set(planted.found(CHECK, alone=True))
    assert left == {
        ("compression_locks", "expired, its holder is gone"),
        ("session_turn_leases", "expired, its holder is gone (lease)"),
    }


def test_idle_raises_the_days_and_not_the_proof(plots: Plots) -> None:
    planted = plots("0.22.2")
    locks = {key for table, key in planted.found(CHECK, idle_floor=5 * DAY) if table == "compression_locks"}
    assert locks == {"expired, its holder is gone", "a day past, of no process"}


def test_a_store_without_any_of_the_tables_has_none(plots: Plots) -> None:
    assert plots("0.13.0").found(CHECK) == {}


def test_the_newest_release_takes_just_the_holder_for_dead_that_we_do(plots: Plots) -> None:
    """Each lock that has not expired: hermes takes it from a holder that is proven gone, and from no other."""
    planted = plots("0.22.2")
    connection = apsw.Connection(str(planted.home.store))
    connection.execute("UPDATE compression_locks SET expires_at = ?", (planted.now + DAY,))
    holders = connection.execute("SELECT session_id, holder FROM compression_locks").fetchall()
    connection.close()
    sessions = [str(session) for session, _ in holders]
    taken = planted.home.run(
        planted.release, [call("try_acquire_compression_lock", session, "pid=1:tid=1") for session in sessions]
    )
    with view_of(planted.home.store, home=planted.home.path) as view:
        ours = {str(session) for session, holder in holders if holder_is_dead(view, holder)}
    theirs = {session for session, got in zip(sessions, taken, strict=True) if got}
    # A number that no process can have: hermes looks for it all the same, we do not take it for a number.
    assert theirs - ours <= {"expired, an absurd process number"}
    assert ours <= theirs
    assert len(ours) >= 5


@pytest.mark.parametrize("life", [(RELEASES[-1].version,), CHAINS[0]], ids="→".join)
def test_a_lived_in_home_has_none(lived_in: LivedIn, life: tuple[str, ...]) -> None:
    home = lived_in(*life).home
    assert findings_of(home.store, CHECK, home=home.path) == []
    later = findings_of(home.store, CHECK, home=home.path, now=Path(home.store).stat().st_mtime + 9 * DAY)
    assert {f.table for f in later} == {"compression_locks", "session_turn_leases"}


Patch = Callable[[pytest.MonkeyPatch], Check | None]


def _patch(name: str, value: object) -> Patch:
    return lambda monkeypatch: monkeypatch.setattr(name, value)


def _any_namespace(_view: object, holder: object) -> bool:
    number = re.search(r"pid=(\d{1,10}):", str(holder))
    return number is not None and not process_exists(int(number.group(1)))


_RULES = CHECK.rules
WRONG: dict[str, Patch] = {
    "expired is enough": _patch("checks.stale_locks.holder_is_dead", lambda view, holder: True),
    "only a day past": _patch("checks.stale_locks.holder_is_dead", lambda view, holder: False),
    "an hour is enough": _patch("checks.stale_locks.DAY", 1800.0),
    "any namespace": _patch("hermes_doctor.store.owners.pid_namespace", lambda: "1"),
    "a holder of any namespace, or none, is looked for": _patch("checks.stale_locks.holder_is_dead", _any_namespace),
    "no disk is this host's": _patch("hermes_doctor.store.owners.on_local_disk", lambda path: False),
    "every process lives": _patch("hermes_doctor.store.owners.process_exists", lambda pid: True),
    "no process lives": _patch("hermes_doctor.store.owners.process_exists", lambda pid: False),
    "a time is a time": _patch("checks.stale_locks.EARLIEST", 0.0),
    "an end in the future counts": _patch("checks.stale_locks._since", lambda cell, view: 1e6),
    "locks only": lambda _: replace(CHECK, rule=_RULES[0]),
    "no heartbeats": lambda _: replace(CHECK, rule=_RULES[:2]),
    "a heartbeat is over after three minutes": _patch("checks.stale_locks.OWNERSHIP_GRACE", 180.0),
    "a silent backend is dead": _patch("checks.stale_locks.backend_may_live", lambda view, host, pid: False),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_variant_fails_a_case(name: str, plots: Plots, monkeypatch: pytest.MonkeyPatch) -> None:
    planted = plots("0.22.2")
    variant = WRONG[name](monkeypatch) or CHECK
    assert planted.found(variant) != planted.expected(CHECK.name)
