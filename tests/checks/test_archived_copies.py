"""archived-copies: what a compaction put away and the chat still holds is told, never as more than a note."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from checks import archived_copies as check
from checks.archived_copies import CHECK
from hermes_doctor.engine.model import Bucket, Severity
from hermes_doctor.store import archived_copies as rule
from hermes_doctor.store import copies
from hermes_doctor.store.archived_copies import archived_copies
from hermes_doctor.store.copies import Standing
from tests.checks.copies_cases import ARCHIVED, REPLAYS, CopyCase, asked, found_in, wrong_cases
from tests.checks.support import Planted, by_key, findings_of, once_a_release
from tests.oracle.history import SUMMARY_PREFIX
from tests.oracle.home import Home
from tests.oracle.releases import get
from tests.oracle.steps import call, sql

STORES = ("0.18.0", "0.22.2")


def plant_cases(home: Home, version: str, cases: tuple[CopyCase, ...] = ARCHIVED) -> Planted[CopyCase]:
    return found_in(home, version, cases, CHECK)


@pytest.fixture(scope="module")
def planted(oracle: None, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Planted[CopyCase]]:
    return once_a_release(plant_cases, tmp_path_factory)


@pytest.mark.parametrize("version", STORES)
def test_each_case_is_judged_right(planted: Callable[[str], Planted[CopyCase]], version: str) -> None:
    store = planted(version)
    assert wrong_cases(store, CHECK, archived_copies) == {}
    for finding in store.findings:
        assert finding.severity is Severity.INFO
        assert finding.bucket is (Bucket.REFUSED if finding.refusal else Bucket.UNSAFE)
    counted = sum(int(str(finding.detail["messages"])) for finding in store.findings)
    assert counted == sum(len(case.copies + case.refused) for case in store.cases)


def test_what_copies_weigh_is_told(home: Home, oracle: None) -> None:
    cells = {"A": {"content": "ä" * 1000, "reasoning": None, "role": "user"}}
    (finding,) = plant_cases(home, "0.18.0", (CopyCase("heavy", "~A ~B S A", (0,), cells=cells),)).findings
    # Its role, its text in bytes, and that nobody observed it (0).
    assert (finding.detail["bytes"], finding.summary.partition("(")[2]) == (4 + 2000 + 1, "2.0 KiB)")


@pytest.mark.parametrize("version", STORES)
def test_rows_asked_about_one_by_one_are_judged_alike(
    planted: Callable[[str], Planted[CopyCase]], version: str
) -> None:
    store = planted(version)
    assert asked(store, CHECK) == [by_key(store.findings)] * 3


def test_what_the_other_check_looks_for_is_none(home: Home, oracle: None) -> None:
    """Live copies have no archived one, but for the case that says so."""
    store = plant_cases(home, "0.20.6", REPLAYS)
    assert {finding.session for finding in store.findings} == {"archived copies", "archived behind"}


def compacted(home: Home, version: str, times: int, **options: Any) -> None:
    """Let the release compact a chat in place so often; its last three messages, with their times, stay each time."""
    began = time.time() - 1000.5
    said = [{"role": ("user", "assistant")[n % 2], "content": f"word {n}", "timestamp": began + n} for n in range(6)]
    summary = {"role": "user", "content": f"{SUMMARY_PREFIX} so far", "_compressed_summary": True}
    if get(version).since("0.20.0"):
        flush = [call("append_messages_batch", "s", said)]
    else:
        flush = [{"call": "append_message", "args": ["s"], "kwargs": {**message, "token_count": 7}} for message in said]
    compaction = call("archive_and_compact", "s", [summary, *said[-3:]], **options)
    home.run(version, [call("create_session", "s", "cli"), *flush, *[compaction] * times])


@pytest.mark.parametrize("version", ["0.18.0", "0.20.0", "0.20.6"])
def test_releases_leave_a_copy_of_what_stays(home: Home, oracle: None, version: str) -> None:
    compacted(home, version, 2)
    (finding,) = findings_of(home.store, CHECK, home=home.path)
    assert (finding.session, finding.key, finding.detail["messages"]) == ("s", 4, 6)


def test_newer_releases_mark_it(home: Home, oracle: None) -> None:
    compacted(home, "0.22.2", 2, tail_count=3)
    assert findings_of(home.store, CHECK, home=home.path) == []
    rows = home.ask("0.22.2", sql("SELECT id FROM messages WHERE active = 0 AND compacted = 0"))
    assert rows == [[4], [5], [6], [8], [9], [10]]


# Deliberately wrong variants: each must get at least one case wrong.


class _RewoundToo:
    """Rewound rows taken for archived ones."""

    LIVE, ARCHIVED = Standing.LIVE, Standing.ASIDE


VARIANTS: dict[str, tuple[Any, str, Any]] = {
    "rewound rows are archived": (rule, "Standing", _RewoundToo),
    "nobody is spared": (check, "spared", lambda _view, _session: None),
    "the text alone counts": (copies, "_said", lambda _shape: ["content"]),
    "the call id alone counts": (copies, "_said", lambda _shape: ["tool_call_id"]),
    "uids count": (copies, "_OWN", copies._OWN - {"message_uid"}),
    "token counts count": (copies, "_OWN", copies._OWN - {"token_count"}),
    "nothing is compared": (copies, "_TRIES", 0),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_wrong_variant_fails(
    planted: Callable[[str], Planted[CopyCase]], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    module, what, wrong = VARIANTS[name]
    monkeypatch.setattr(module, what, wrong)
    assert wrong_cases(planted("0.22.2"), CHECK, archived_copies) != {}
