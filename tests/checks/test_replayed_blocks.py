"""replayed-blocks: only copies that time proves are called so, down to each column, and the rest is left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from checks import replayed_blocks as check
from checks.replayed_blocks import CHECK
from hermes_doctor.engine.model import Bucket, Severity
from hermes_doctor.store import copies, replays
from hermes_doctor.store.replays import blocks
from tests.checks.copies_cases import REPLAYS, CopyCase, asked, found_in, wrong_cases
from tests.checks.support import Planted, by_key, findings_of, once_a_release
from tests.oracle.home import Home
from tests.oracle.steps import call, ref, sql
from tests.store.views import view_of

STORES = ("0.13.0", "0.16.0", "0.22.2")


def plant_cases(home: Home, version: str, cases: tuple[CopyCase, ...] = REPLAYS) -> Planted[CopyCase]:
    return found_in(home, version, cases, CHECK)


@pytest.fixture(scope="module")
def planted(oracle: None, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Planted[CopyCase]]:
    return once_a_release(plant_cases, tmp_path_factory)


@pytest.mark.parametrize("version", STORES[1:])
def test_each_case_is_judged_right(planted: Callable[[str], Planted[CopyCase]], version: str) -> None:
    store = planted(version)
    assert wrong_cases(store, CHECK, blocks) == {}
    counted: Counter[tuple[Any, Bucket]] = Counter()
    for finding in store.findings:
        assert (finding.severity is Severity.WARNING) == ("written again" in finding.summary)
        messages, last, first = (int(str(finding.detail[name])) for name in ("messages", "last", "copy_of"))
        assert last >= int(str(finding.key)) > first
        counted[finding.session, finding.bucket] += messages
    wanted = {(case.name, Bucket.UNSAFE): len(case.copies) for case in store.cases}
    wanted |= {(case.name, Bucket.REFUSED): len(case.doubted + case.refused) for case in store.cases}
    # No case has both.
    assert counted == {key: count for key, count in wanted.items() if count}


def test_a_store_without_rewinds_is_only_told(planted: Callable[[str], Planted[CopyCase]]) -> None:
    store = planted("0.13.0")
    certain = {case.name for case in store.cases if case.copies or case.refused}
    assert certain == {finding.session for finding in store.findings if finding.severity is Severity.WARNING}
    assert {finding.bucket for finding in store.findings} == {Bucket.REFUSED}


@pytest.mark.parametrize("version", STORES)
def test_rows_asked_about_one_by_one_are_judged_alike(
    planted: Callable[[str], Planted[CopyCase]], version: str
) -> None:
    store = planted(version)
    assert asked(store, CHECK) == [by_key(store.findings)] * 3


def test_a_session_in_use_is_left(planted: Callable[[str], Planted[CopyCase]]) -> None:
    store = planted("0.22.2")
    with view_of(store.home.store, now=store.now - 10 * 86_400 + 100, held="yes") as view:
        found = list(CHECK.rules[0].find(view, None))  # type: ignore[union-attr]
    assert {finding.bucket for finding in found} == {Bucket.REFUSED}
    assert {finding.key for finding in found} == {finding.key for finding in store.findings}


def test_a_store_without_the_index_is_not_judged(home: Home, oracle: None) -> None:
    store = plant_cases(home, "0.16.0", REPLAYS[:1])
    assert store.findings
    names = ("idx_messages_session", "idx_messages_session_active")
    home.run("0.16.0", [*(sql(f"DROP INDEX {name}") for name in names)])
    assert findings_of(home.store, CHECK) == []


@pytest.mark.parametrize("version", ["0.20.0", "0.22.2"])
def test_what_a_release_writes_again_is_found(home: Home, oracle: None, version: str) -> None:
    """A history that is loaded and flushed once more keeps its times, and all else."""
    answer = {"role": "assistant", "content": "one", "reasoning": "thought", "finish_reason": "stop"}
    said = [{"role": "user", "content": "first"}, answer, {"role": "user", "content": "first"}, answer]
    flushes = [call("append_messages_batch", "s", [message]) for message in said]
    load = call("get_messages_as_conversation", "s")
    *_, history = home.run(version, [call("create_session", "s", "cli"), *flushes, load])
    again = [{key: cell for key, cell in message.items() if key[0] != "_"} for message in history]
    home.run(version, [call("append_messages_batch", "s", again), call("append_messages_batch", "s", again)])
    (finding,) = findings_of(home.store, CHECK, home=home.path)
    assert (finding.session, finding.key, finding.detail["messages"]) == ("s", 5, 8)


def test_a_branch_is_no_copy(home: Home, oracle: None) -> None:
    said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    load = [call("create_session", "s", "cli"), call("append_messages_batch", "s", said)]
    branch = [call("create_session", "branch", "cli"), call("replace_messages", "branch", ref("history"))]
    home.run("0.22.2", [*load, call("get_messages_as_conversation", "s", keep="history"), *branch])
    (counts,) = home.ask("0.22.2", sql("SELECT count(*), count(DISTINCT timestamp) FROM messages"))
    assert counts == [4, 2]
    assert findings_of(home.store, CHECK, home=home.path) == []


# Deliberately wrong variants: each must get at least one case wrong.


def _by(*names: str) -> Callable[..., list[str]]:
    return lambda _shape: list(names)


VARIANTS: dict[str, tuple[Any, str, Any]] = {
    "any copy is proof": (replays, "_is_proof", lambda _copies, _firsts: True),
    "two copies are proof": (replays, "_is_proof", lambda found, _firsts: len(found) > 1),
    "two moments are proof": (replays, "_is_proof", lambda found, _firsts: len({copy.time for copy in found}) > 1),
    "order is proof": (
        replays,
        "_is_proof",
        lambda found, firsts: any(firsts[a.id] < firsts[b.id] for a, b in pairwise(found)),
    ),
    "summaries do not matter": (replays, "_summaries", lambda *_rest: []),
    "what shares its moment is told": (replays, "_is_alone", lambda _view, _session, _each: True),
    "nobody is spared": (check, "spared", lambda _view, _session: None),
    "the text alone counts": (copies, "_said", _by("content")),
    "the call id alone counts": (copies, "_said", _by("tool_call_id")),
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
    assert wrong_cases(planted("0.22.2"), CHECK, blocks) != {}
