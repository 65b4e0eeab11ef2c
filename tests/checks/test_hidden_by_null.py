"""hidden-by-null: every row with NULL in `active` is found, and what it was before is told as far as it can be."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from checks import hidden_by_null
from checks.hidden_by_null import CHECK
from hermes_doctor.engine.model import Bucket, Severity
from hermes_doctor.engine.rows import ask
from hermes_doctor.store import null_active
from hermes_doctor.store.null_active import Standing
from tests.checks.null_cases import ARCHIVED, LIVE, MISSED, NullCase, cases_of, plant, without_default
from tests.checks.support import Planted, findings_of, once_a_release
from tests.oracle.home import Home
from tests.oracle.steps import call, open_store, sql
from tests.store.views import view_of
from tests.whole.identical import image_of

STORES = ("0.16.0", "0.22.2")
BUCKETS = {LIVE: Bucket.SAFE, ARCHIVED: Bucket.SAFE, MISSED: Bucket.UNSAFE}


def plant_cases(home: Home, version: str) -> Planted[NullCase]:
    cases = plant(home, version)
    now = time.time()
    return Planted(home, now, cases, tuple(findings_of(home.store, CHECK, home=home.path, now=now)))


@pytest.fixture(scope="module")
def planted(oracle: None, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Planted[NullCase]]:
    return once_a_release(plant_cases, tmp_path_factory)


def taken_for(planted: Planted[NullCase], findings: tuple[Any, ...]) -> dict[tuple[str, int], tuple[Bucket, Any]]:
    """What the check said of each message: by session and place in it."""
    ids: dict[str, list[Any]] = {}
    for row in sorted(image_of(planted.home.store).table("messages"), key=lambda row: str(row["id"]).zfill(9)):
        assert isinstance(row["session_id"], bytes)
        ids.setdefault(row["session_id"].decode(), []).append(row["id"])
    return {(f.session, ids[f.session].index(f.key)): (f.bucket, f.detail["becomes"]) for f in findings}


def wanted(planted: Planted[NullCase]) -> dict[tuple[str, int], tuple[Bucket, Any]]:
    return {
        (case.name, place): (BUCKETS[line.was], int(line.was is LIVE))
        for case in planted.cases
        for place, line in enumerate(case.lines)
        if line.was is not None
    }


@pytest.mark.parametrize("version", STORES)
def test_each_row_is_judged_right(planted: Callable[[str], Planted[NullCase]], version: str) -> None:
    store = planted(version)
    assert taken_for(store, store.findings) == wanted(store)
    assert store.cases == cases_of(version)
    for finding in store.findings:
        lost = version != "0.22.2" and finding.detail["becomes"] == 1
        assert finding.severity is (Severity.ERROR if lost else Severity.WARNING)
        assert (finding.table, set(finding.detail)) == ("messages", {"column", "becomes"})
    with view_of(store.home.store) as view:
        assert [one for finding in store.findings for one in ask(CHECK, [finding.key], view)] == list(store.findings)


@pytest.mark.parametrize("version", ["0.16.0", "0.18.0", "0.18.2"])
def test_releases_hide_such_rows_until_they_heal_them(home: Home, oracle: None, version: str) -> None:
    without_default(home)
    writing = [call("create_session", "a", "cli"), *(call("append_message", "a", "user", text) for text in "xyz")]
    home.run(version, writing)
    healed = version == "0.18.2"
    assert len(findings_of(home.store, CHECK)) == (0 if healed else 3)
    assert [row["content"] for row in home.conversation(version, "a")] == (["x", "y", "z"] if healed else [])
    if version == "0.18.0":
        home.run("0.18.2", [open_store()])
        assert findings_of(home.store, CHECK) == []


def test_a_chat_that_may_be_in_use_is_left(planted: Callable[[str], Planted[NullCase]]) -> None:
    store = planted("0.22.2")
    keys = [finding.key for finding in store.findings]
    written = time.time() - 3600
    left, mends = {Bucket.REFUSED}, {Bucket.SAFE, Bucket.UNSAFE}
    for held, now, wanted in (("yes", written + 60, left), ("yes", written + 900, mends), ("no", written + 60, mends)):
        with view_of(store.home.store, held=held, now=now) as view:
            found = list(ask(CHECK, keys, view))
        assert [finding.key for finding in found] == keys
        assert {finding.bucket for finding in found} == wanted


def test_a_store_without_what_the_question_needs(home: Home, oracle: None) -> None:
    """A row is found all the same where there is no counter, no mark and no session."""
    without_default(home)
    home.run(
        "0.16.0",
        [
            sql("PRAGMA foreign_keys=OFF"),
            sql("INSERT INTO messages(session_id, role, timestamp) VALUES ('gone', 'user', 1.0)"),
            sql("ALTER TABLE sessions DROP COLUMN message_count"),
        ],
    )
    (finding,) = findings_of(home.store, CHECK)
    assert (finding.bucket, finding.session) == (Bucket.SAFE, "gone")


# Deliberately wrong variants: each must get at least one row wrong.


def _always(was: Standing) -> Callable[..., Standing]:
    return lambda *_asked: was


def _by_its_mark(_view: Any, _session: Any, _row: Any, compacted: Any) -> Standing:
    return ARCHIVED if compacted else LIVE


VARIANTS: dict[str, tuple[Any, str, Any]] = {
    "all of them were live": (hidden_by_null, "standing", _always(LIVE)),
    "only the mark tells": (hidden_by_null, "standing", _by_its_mark),
    "who counts less was compacted": (null_active, "is_summary_sql", lambda _shape: "1"),
    "a summary is not to be found": (null_active, "is_summary_sql", lambda _shape: "0"),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_wrong_variant_fails(
    planted: Callable[[str], Planted[NullCase]], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    store = planted("0.22.2")
    monkeypatch.setattr(*VARIANTS[name])
    assert taken_for(store, tuple(findings_of(store.home.store, CHECK))) != wanted(store)
