"""weights: images and their copies, dead rows, waiting results and what prune would free, from a mebibyte on."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

import apsw
import pytest

from checks import weights as check_module
from checks.weights import CHECK
from hermes_doctor.engine.model import Finding, Safety, Severity
from hermes_doctor.engine.rows import find, find_again
from hermes_doctor.store import weights
from hermes_doctor.store.prompts import MEBIBYTE
from hermes_doctor.store.weights import MessageLoads, prunable, weigh_messages
from tests.checks.support import findings_of
from tests.oracle.home import Home
from tests.oracle.steps import Step, call, clock, sql
from tests.store.views import view_of

DAY = 86_400.0


def picture(n: int, size: int = 600_000) -> list[dict[str, Any]]:
    """Structured content with an image of about that many bytes; each ``n`` is another one."""
    url = f"data:image/png;base64,{n:08}" + "A" * size
    return [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": url}}]


def stored(content: Any) -> int:
    return len(content if isinstance(content, str) else "\0json:" + json.dumps(content))


def by_kind(findings: Sequence[Finding]) -> dict[str, Finding]:
    """The findings by what they tell of; each is of the whole store."""
    kinds = {
        "images": "hold",
        "compacted": "put away",
        "rewound": "were rewound",
        "waiting": "delegations",
        "old": "past",
    }
    found: dict[str, Finding] = {}
    for finding in findings:
        assert (finding.severity, finding.fix, finding.key, finding.session) == (Severity.INFO, Safety.NONE, None, None)
        (kind,) = (kind for kind, words in kinds.items() if words in finding.summary)
        assert kind not in found
        found[kind] = finding
    return found


def weighed(finding: Finding) -> tuple[Any, Any]:
    return finding.detail["rows"], finding.detail["bytes"]


@pytest.mark.parametrize("version", ["0.13.0", "0.22.2"])
def test_images_and_their_exact_copies(home: Home, oracle: None, version: str) -> None:
    text = "a page: <img src='data:image/jpeg;base64," + "B" * 40_000 + "'>"
    contents: list[Any] = [picture(1), picture(1), picture(1), picture(2), text, text]
    # An icon, a short text, and long text without an image: none of them weighs.
    others: list[Any] = [picture(3, 100), text[:30_000], "data:image/png;base64, is how it begins " * 50, "x;" * 40_000]
    home.run(
        version,
        [call("create_session", "s", "cli"), *(call("append_message", "s", "user", c) for c in (*contents, *others))],
    )
    (finding,) = findings_of(home.store, CHECK, home=home.path)
    assert weighed(finding) == (6, sum(map(stored, contents)))
    copies = 2 * stored(picture(1)) + len(text)
    assert (finding.detail["copied_rows"], finding.detail["copied_bytes"]) == (3, copies)
    assert finding.summary == "6 messages hold images: 2.4 MiB, 1.2 MiB of them in 3 exact copies"
    with view_of(home.store, home=home.path) as view:
        assert list(find_again(CHECK, [finding], view)) == [finding]
    # Whoever takes LIKE, or length(), for it sees nothing behind the NUL (upstream 69672).
    like = sql("SELECT count(*) FROM messages WHERE content LIKE '%data:image/%;base64,%' AND length(content) > 32768")
    assert home.ask(version, like) == [[2]]


def test_less_than_a_mebibyte_is_nothing_to_tell(home: Home, oracle: None) -> None:
    mark = stored(picture(1, 0))
    home.run(
        "0.22.2",
        [
            call("create_session", "s", "cli"),
            call("append_message", "s", "user", picture(1, MEBIBYTE - mark - 1)),
        ],
    )
    assert findings_of(home.store, CHECK, home=home.path) == []
    home.run("0.22.2", [sql("DELETE FROM messages"), call("append_message", "s", "user", picture(1, MEBIBYTE - mark))])
    (finding,) = findings_of(home.store, CHECK, home=home.path)
    assert weighed(finding) == (1, MEBIBYTE)
    assert finding.summary == "1 message holds images: 1.0 MiB"


def test_copies_beyond_what_is_told_apart_are_at_least(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "DISTINCT_AT_MOST", 2)
    loads = MessageLoads()
    for n in (1, 2, 3, 1, 2, 3):
        loads.see(b"data:image/png;base64,%d" % n)
    assert (loads.images.rows, loads.copies.rows, loads.all_copies_known) == (6, 2, False)
    assert "at least" in next(check_module._of_messages(_of_a_size(loads))).summary


def _of_a_size(loads: MessageLoads) -> MessageLoads:
    loads.images.bytes += MEBIBYTE
    return loads


def test_dead_rows_are_weighed_by_all_their_columns(home: Home, oracle: None) -> None:
    steps = [call("create_session", "s", "cli")]
    for _ in range(4):
        steps.append(call("append_message", "s", "assistant", "ä" * 300_000, reasoning="r" * 600_000))
    steps += [
        sql("UPDATE messages SET active = 0 WHERE id = 1"),
        sql("UPDATE messages SET active = 0, compacted = 1 WHERE id IN (2, 3)"),
    ]
    home.run("0.22.2", steps)
    found = by_kind(findings_of(home.store, CHECK, home=home.path))
    assert {kind: weighed(finding) for kind, finding in found.items()} == {
        "rewound": (1, 1_200_000),
        "compacted": (2, 2_400_000),
    }
    assert found["compacted"].summary == "2 messages were put away by compactions: 2.3 MiB"
    with view_of(home.store, home=home.path) as view:
        # Added up once in a scan; and the same where nothing was added up before.
        first = list(find([CHECK], view))
        assert list(find_again(CHECK, first, view)) == first
        assert weigh_messages(view).compacted == weights.Load(2, 2_400_000)


def test_what_is_confirmed_is_not_added_up_again(home: Home, oracle: None) -> None:
    home.run("0.22.2", [call("create_session", "s", "cli"), call("append_message", "s", "user", picture(1, MEBIBYTE))])
    with view_of(home.store, home=home.path) as view:
        first = list(find([CHECK], view))
        # As a scan does before it asks again about a store that moved meanwhile.
        view.forget()
        read = list[bool]()

        def noting(_cursor: apsw.Cursor, statement: str, _values: Any) -> bool:
            read.append("messages" in statement)
            return True

        view.reader.connection.exec_trace = noting
        assert list(find_again(CHECK, first, view)) == first != []
        assert not any(read)
        # Another pass begins anew.
        assert list(find([CHECK], view)) == first
        assert any(read)


def test_results_that_nobody_took(home: Home, oracle: None) -> None:
    insert = (
        "INSERT INTO async_delegations (delegation_id, origin_session, state, delivery_state, result_json,"
        " dispatched_at, updated_at) VALUES (?, 's', ?, ?, ?, 1, 1)"
    )
    rows = [("a", "completed", "pending"), ("b", "error", "dropped"), ("c", "completed", "delivered")]
    rows.append(("d", "running", "pending"))
    home.run("0.22.2", [sql(insert, *row, "r" * 600_000) for row in rows])
    (finding,) = findings_of(home.store, CHECK, home=home.path)
    assert weighed(finding) == (2, 1_200_000)
    assert (finding.table, finding.detail["pending"], finding.detail["dropped"]) == ("async_delegations", 1, 1)
    assert "hermes delivers what is pending when it starts" in finding.summary


#: Session: days since its start, since its only message, whether it is ended, and other columns.
SESSIONS: dict[str, tuple[float, float, bool, dict[str, Any]]] = {
    "old": (120, 100, True, {}),
    "old, open": (120, 100, False, {}),
    "old, used lately": (120, 10, True, {}),
    "young": (10, 9, True, {}),
    "pinned": (120, 100, True, {"pinned": 1}),
    "swept lately": (120, 100, True, {"end_reason": "startup_orphan_reap"}),
    "went on": (120, 100, True, {"end_reason": "compression"}),
    "goes on": (95, 5, False, {"parent_session_id": "went on"}),
    "ended chain": (120, 100, True, {"end_reason": "compression"}),
    "its end": (110, 95, True, {"parent_session_id": "ended chain"}),
}


def planted_sessions(now: float, version: str, size: int) -> list[Step]:
    steps: list[Step] = []
    for name, (started, said, ended, columns) in SESSIONS.items():
        steps += [clock(now - started * DAY), call("create_session", name, "cli"), clock(now - said * DAY)]
        steps.append(call("append_message", name, "user", "x" * size))
        if ended:
            steps.append(sql("UPDATE sessions SET ended_at = ?, end_reason = 'cli_close' WHERE id = ?", now - 9, name))
        for column, value in columns.items():
            if column != "pinned" or version >= "0.20":
                steps.append(sql(f"UPDATE sessions SET {column} = ? WHERE id = ?", value, name))
        # What counts is the message: a release may note the last use by another clock.
        if version >= "0.20":
            steps.append(sql("UPDATE sessions SET last_activity_at = NULL WHERE id = ?", name))
    return [*steps, clock(None)]


@pytest.mark.parametrize("version", ["0.20.0", "0.20.6", "0.22.2"])
def test_what_prune_would_free_is_what_it_takes(home: Home, oracle: None, version: str) -> None:
    now = time.time()
    home.run(version, planted_sessions(now, version, 400_000))
    with view_of(home.store, home=home.path) as view:
        expected = prunable(view)
        used = home.store.stat().st_size
    (finding,) = findings_of(home.store, CHECK, home=home.path)
    assert (finding.table, *weighed(finding)) == ("sessions", expected.sessions, expected.bytes)
    assert f"{expected.sessions} ended sessions with {expected.messages} messages are past 90 days" in finding.summary
    assert "hermes sessions prune" in finding.summary
    taken = home.ask(version, call("prune_sessions", 90))
    assert taken == expected.sessions > 0
    (left,) = home.ask(version, sql("SELECT count(*) FROM messages"))
    assert len(SESSIONS) - left[0] == expected.messages
    # By its share of the messages.
    assert expected.bytes == pytest.approx(used * expected.messages / len(SESSIONS), rel=0.1)
    assert findings_of(home.store, CHECK, home=home.path) == []


def test_a_home_that_prunes_by_itself_is_not_told_to(home: Home, oracle: None) -> None:
    home.run("0.13.0", planted_sessions(time.time(), "0.13.0", 400_000))
    config = home.path / "config.yaml"
    for text, days in (("sessions: {retention_days: 30}", "30"), ("sessions: {auto_prune: false}", "90")):
        config.write_text(text)
        (finding,) = findings_of(home.store, CHECK, home=home.path)
        assert f"are past {days} days" in finding.summary
    config.write_text("sessions: {auto_prune: true}")
    assert findings_of(home.store, CHECK, home=home.path) == []


@pytest.mark.parametrize("wrong", ["length() instead of bytes", "images by LIKE", "every inactive row is rewound"])
def test_wrong_variants_are_caught(home: Home, oracle: None, monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    contents = [picture(1), picture(2), "ä" * 600_000]
    home.run(
        "0.19.0",
        [
            call("create_session", "s", "cli"),
            *(call("append_message", "s", "user", content) for content in contents),
            sql("UPDATE messages SET active = 0, compacted = 1 WHERE id = 3"),
        ],
    )

    def wanted() -> bool:
        found = by_kind(findings_of(home.store, CHECK, home=home.path))
        sizes = {kind: weighed(finding) for kind, finding in found.items()}
        return sizes == {"images": (2, sum(map(stored, contents[:2]))), "compacted": (1, 1_200_000)}

    assert wanted()
    images, dead = weights.image_rows, weights.dead_totals
    with view_of(home.store, home=home.path) as view:
        shape = view.shape
    match wrong:
        case "length() instead of bytes":
            in_characters = [total.replace("octet_length", "length") for total in dead(shape)]
            monkeypatch.setattr(check_module, "dead_totals", lambda _shape: tuple(in_characters))
        case "images by LIKE":
            monkeypatch.setattr(
                check_module, "image_rows", lambda shape: ("content LIKE '%data:image/%'", images(shape)[1])
            )
        case _:
            all_alike = [total.replace('("compacted" = 1)', "0") for total in dead(shape)]
            monkeypatch.setattr(check_module, "dead_totals", lambda _shape: tuple(all_alike))
    assert not wanted()
