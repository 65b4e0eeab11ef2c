"""leaked-prompts: what releases send is found in chats, replies are told apart, and quotes are left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from checks import leaked_prompts
from checks.leaked_prompts import CHECK
from hermes_doctor.engine.model import Bucket, Check, Finding, RowRule, Severity
from hermes_doctor.engine.rows import ask
from hermes_doctor.store import review_prompts
from hermes_doctor.store.counters import BUSY_SECONDS
from tests.checks.leaked_cases import DAY, Leaks, cases, plant
from tests.checks.support import by_key, findings_of, once_a_release
from tests.oracle.home import Home
from tests.oracle.releases import get
from tests.store.views import view_of

STORES = ("0.13.0", "0.16.0", "0.22.2")


@pytest.fixture(scope="module")
def planted(oracle: None, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Leaks]:
    return once_a_release(lambda home, version: plant(home, version, time.time()), tmp_path_factory)


def found_in(leaks: Leaks, check: Check = CHECK) -> list[Finding]:
    return findings_of(leaks.home.store, check, home=leaks.home.path, now=leaks.now)


def wrong(leaks: Leaks, findings: Iterable[Finding]) -> dict[str, Any]:
    """What was said and not wanted, or the other way, by case: the row, its replies, and whether it can be mended."""
    can_hide = get(leaks.version).since("0.16.0")
    wanted = {
        (key, row.replies, row.in_a_row, can_hide and not row.refused)
        for key, (_case, row) in leaks.rows.items()
        if row.replies is not None
    }
    said = {(f.key, f.detail["replies"], f.detail["in_a_row"], f.bucket is Bucket.UNSAFE) for f in findings}
    # Of a row that is left the replies are still counted; how many, only the case says.
    return {leaks.rows[key[0]][0].name: key for key in said ^ wanted}  # type: ignore[index]  # every key is a number


@pytest.mark.parametrize("version", STORES)
def test_each_case_is_judged_right(planted: Callable[[str], Leaks], version: str) -> None:
    leaks = planted(version)
    findings = found_in(leaks)
    assert wrong(leaks, findings) == {}
    assert findings
    for finding in findings:
        assert finding.severity is Severity.WARNING
        assert (finding.table, finding.session) == ("messages", leaks.rows[finding.key][0].name)  # type: ignore[index]  # a number
        assert (finding.refusal is None) is (finding.action is not None)
        # Prompts are not to be told.
        assert "eview the conversation" not in f"{finding.summary}{finding.action}{finding.refusal}{finding.detail}"


@pytest.mark.parametrize("version", ["0.16.0", "0.22.2"])
def test_rows_asked_about_one_by_one_are_judged_alike(planted: Callable[[str], Leaks], version: str) -> None:
    leaks = planted(version)
    with view_of(leaks.home.store, home=leaks.home.path, now=leaks.now) as view:
        one_by_one = [finding for key in leaks.rows for finding in ask(CHECK, [key], view)]
    assert by_key(one_by_one) == by_key(found_in(leaks))


def test_a_chat_in_use_is_left(planted: Callable[[str], Leaks]) -> None:
    """Five minutes from its last message on, and only while somebody has the store open."""
    leaks = planted("0.22.2")
    name = "skills"
    (key,) = (key for key, (case, row) in leaks.rows.items() if case.name == name and row.replies is not None)
    with view_of(leaks.home.store) as view:
        last = view.reader.value("SELECT max(timestamp) FROM messages WHERE session_id = ?", (name,))
    assert isinstance(last, float)
    for held, age, bucket in (
        ("yes", BUSY_SECONDS - 60, Bucket.REFUSED),
        ("unknown", BUSY_SECONDS - 60, Bucket.REFUSED),
        ("yes", BUSY_SECONDS + 60, Bucket.UNSAFE),
        ("no", 1.0, Bucket.UNSAFE),
    ):
        with view_of(leaks.home.store, now=last + age, held=held) as view:
            (finding,) = ask(CHECK, [key], view)
            assert finding.bucket is bucket, (held, age)


def test_a_turn_that_is_over_spares_nothing(planted: Callable[[str], Leaks]) -> None:
    leaks = planted("0.22.2")
    keys = [key for key, (case, row) in leaks.rows.items() if case.leased and row.replies is not None]
    for later, bucket in ((0.0, Bucket.REFUSED), (2 * DAY, Bucket.UNSAFE)):
        with view_of(leaks.home.store, now=leaks.now + later) as view:
            (finding,) = ask(CHECK, keys, view)
            assert finding.bucket is bucket


def test_without_an_index_by_session_nothing_is_judged(home: Home, oracle: None) -> None:
    leaks = plant(home, "0.16.0", time.time(), cases()[:1])
    assert len(found_in(leaks)) == 1
    with view_of(home.store) as view:
        bare = replace(view.shape, indexes={})
    assert review_prompts.suspect_sql(bare) is None


def said_in(conversation: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in conversation]


def test_what_the_releases_leave_out_at_load(oracle: None, planted: Callable[[str], Leaks]) -> None:
    """The reason for the check, and its limits: what is replayed of each chat now that it leaked."""
    old, new = planted("0.16.0"), planted("0.22.2")
    for name, (before, damaged) in {n: (old.before[n], old.damaged[n]) for n in old.before}.items():
        leaked = any(case.name == name and row.leaked and row.dead[0] for case in old.cases for row in case.rows)
        assert (before != damaged) is leaked, name
    healed = {name for name in new.before if new.before[name] == new.damaged[name] and any_leaked(new, name)}
    assert healed == {
        "skills",
        "memory",
        "without the last paragraph",
        "as a system row",
        "no reply, at the end",
        "no reply, the chat goes on",
        "broken off at a call",
        "behind a summary",
        "one review behind the other",
        "two in a row",
        "two in a row in the midst of a turn",
        "three in a row",
        "a person goes on with a review's own session",
        "with a person's focus",
    }


def any_leaked(leaks: Leaks, name: str) -> bool:
    return any(case.name == name and row.leaked for case in leaks.cases for row in case.rows)


def test_older_releases_lose_the_real_reply_of_two_in_a_row(home: Home, oracle: None) -> None:
    (case,) = (case for case in cases() if case.name == "two in a row")
    leaks = plant(home, "0.19.0", time.time(), [case])
    before, damaged = said_in(leaks.before[case.name]), said_in(leaks.damaged[case.name])
    assert [said for said in before if said not in damaged] == [("assistant", "the real one")]


# Deliberately wrong variants: each must get at least one case wrong.


def _opening_only(content: Any) -> bool:
    return isinstance(content, str) and content.startswith(review_prompts._OPENING)


def _both_ends_anywhere(content: Any) -> bool:
    return _opening_only(content) and "You can only call" in content


def _as_releases_know_them(content: Any) -> bool:
    return _PROMPT(content) and review_prompts._ABOUT[2] not in content


def _one_row(rows: Iterable[Any]) -> Any:
    replies, mixed, in_a_row = _REPLIES(rows)
    return replies[:1], mixed, in_a_row


def _never_mixed(rows: Iterable[Any]) -> Any:
    replies, _mixed, in_a_row = _REPLIES(rows)
    return replies, False, in_a_row


def _prompts_have_replies(rows: Iterable[Any]) -> Any:
    return _REPLIES(row for row in rows if not row.prompt)


def _till_the_next_message(rows: Iterable[Any]) -> Any:
    replies = []
    for row in rows:
        if row.role not in ("assistant", "tool"):
            break
        replies.append(row)
    return replies, False, False


def _dead_or_alive(rows: Iterable[Any]) -> Any:
    return _REPLIES(replace(row, live=True) for row in rows)


def _nothing_before(rows: Iterable[Any]) -> Any:
    return review_prompts._Before.FINISHED


def _nearest_only(rows: Iterable[Any]) -> Any:
    for row in rows:
        return _BEFORE([row])
    return review_prompts._Before.FINISHED


def _near_only(view: Any, session: Any, key: int, *, back: bool = False) -> Iterator[Any]:
    return (row for row in _ROWS(view, session, key, back=back) if abs(row.id - key) <= 1_000)


def _nobodys(view: Any, session: Any) -> bool:
    return False


def _whoever_begins(view: Any, session: Any) -> bool:
    first = view.reader.value("SELECT content FROM messages WHERE session_id = ? ORDER BY id", (session,))
    return _PROMPT(first)


_PROMPT = review_prompts.is_prompt
_REPLIES = review_prompts._replies
_BEFORE = review_prompts._before
_ROWS = review_prompts._rows

VARIANTS: dict[str, dict[str, Any]] = {
    "by the opening": {"is_prompt": _opening_only},
    "with its end somewhere": {"is_prompt": _both_ends_anywhere},
    "only those that releases know": {"is_prompt": _as_releases_know_them},
    "the reply is one row": {"_replies": _one_row},
    "never mixed": {"_replies": _never_mixed},
    "each prompt has a reply": {"_replies": _prompts_have_replies},
    "all up to the next message": {"_replies": _till_the_next_message},
    "dead rows are replies": {"_replies": _dead_or_alive},
    "no matter what was before": {"_before": _nothing_before},
    "only the row before": {"_before": _nearest_only},
    "only near ids": {"_rows": _near_only},
    "only a few rows": {"_FAR_ROWS": 0},
    "reviews have no sessions": {"_is_a_reviews_own": _nobodys},
    "who begins with one is a review": {"_is_a_reviews_own": _whoever_begins},
    "dead prompts": {"live_sql": lambda shape: "1"},
    "a running turn is no matter": {"spared": lambda view, session: None},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_wrong_variant_fails(planted: Callable[[str], Leaks], monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    leaks = planted("0.22.2")
    assert isinstance(CHECK.rule, RowRule)
    for attribute, value in VARIANTS[name].items():
        for module in (review_prompts, leaked_prompts):
            if hasattr(module, attribute):
                monkeypatch.setattr(module, attribute, value)
    assert wrong(leaks, found_in(leaks)) != {}
