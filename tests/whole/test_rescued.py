"""Whoever judges a rescue tells of each broken promise, and of none that was kept."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest

from tests.whole.rescued import Rescued, before_of, judged, unsound, whole_chats
from tests.whole.saving import bundle_hash
from tests.whole.to_be_wrecked import Wrecked

_TABLES = """
CREATE TABLE sessions (id TEXT PRIMARY KEY, source TEXT);
CREATE TABLE messages (id INTEGER PRIMARY KEY, session_id TEXT, content TEXT);
INSERT INTO sessions VALUES ('a', 'cli'), ('b', 'cli');
INSERT INTO messages VALUES (1, 'a', 'one'), (2, 'a', 'two'), (3, 'b', 'three');
"""
#: A message that had been deleted.
_DELETED = 9


def made(path: Path, *more: str) -> Path:
    path.parent.mkdir()
    with closing(apsw.Connection(str(path))) as connection:
        for statement in (_TABLES, *more):
            connection.execute(statement)
    path.chmod(0o600)
    return path


@pytest.fixture
def wrecked(tmp_path: Path) -> Wrecked:
    return Wrecked(made(tmp_path / "damaged" / "state.db"), made(tmp_path / "before" / "state.db"))


def rescued(
    wrecked: Wrecked,
    *changes: str,
    code: int = 1,
    unsure: tuple[tuple[int, int], ...] = (),
    lost: tuple[tuple[int | None, int | None], ...] = (),
    folder: str = "new",
    **report: Any,
) -> Rescued:
    """What is said of an output with these changes, of which the report names those messages."""
    output = made(wrecked.before.parent.parent / folder / "state.db", *changes)
    ranges = [{"low": low, "high": high} for low, high in lost]
    table = {"name": "messages", "doubtful": unsure, "cut_rows": [], "lost": ranges, "more_lost": 0, "failed": None}
    told = json.dumps({"exit_code": code, "reason": None, "tables": [table]} | report)
    hashes = bundle_hash(wrecked.damaged)
    return judged(wrecked, before_of(wrecked), frozenset({_DELETED}), hashes, code, told, output)


def test_a_promise_that_was_kept_is_no_fault(wrecked: Wrecked) -> None:
    done = rescued(wrecked, code=0)
    assert done.faults == []
    assert done.counted["messages"].intact == frozenset({1, 2, 3})
    assert whole_chats(before_of(wrecked)["messages"], done) == {"a", "b"}


@pytest.mark.parametrize(
    ("change", "number", "fault"),
    [
        ("UPDATE messages SET content = 'TWO' WHERE id = 2", 2, "1 messages are wrong and not named: 2"),
        ("INSERT INTO messages VALUES (7, 'b', 'three')", 7, "1 messages are wrong and not named: 7"),
        (f"INSERT INTO messages VALUES ({_DELETED}, 'a', 'gone')", _DELETED, "1 deleted messages are there and not"),
    ],
)
def test_what_is_wrong_has_to_be_named(wrecked: Wrecked, change: str, number: int, fault: str) -> None:
    assert any(said.startswith(fault) for said in rescued(wrecked, change).faults)
    # Not by the numbers beside it.
    others = ((number + 1, number + 9), (-5, number - 1))
    assert any(said.startswith(fault) for said in rescued(wrecked, change, unsure=others, folder="others").faults)
    named = rescued(wrecked, change, unsure=((number, number),), folder="named")
    assert named.faults == []
    assert (named.unsure, named.sure_but_wrong) == (frozenset({number}), frozenset())


@pytest.mark.parametrize("told", [(1, 1), (None, 1), (1, None), (-4, 9), (None, None)])
def test_a_loss_is_no_fault_where_it_is_told(wrecked: Wrecked, told: tuple[int | None, int | None]) -> None:
    done = rescued(wrecked, "DELETE FROM messages WHERE id = 1", lost=(told,))
    assert done.faults == []
    assert whole_chats(before_of(wrecked)["messages"], done) == {"b"}


@pytest.mark.parametrize("told", [(2, 3), (None, 0), (2, None)])
def test_a_loss_that_is_not_told(wrecked: Wrecked, told: tuple[int | None, int | None]) -> None:
    loss = "DELETE FROM messages WHERE id = 1"
    said = "1 messages are lost and in no range that is told: 1"
    assert rescued(wrecked, loss, lost=(told,)).faults == [said]
    assert rescued(wrecked, loss, lost=((1, 1),), code=0, folder="other").faults == [
        "it says that all was saved, and 1 messages are not"
    ]


def test_exit_codes_that_do_not_fit(wrecked: Wrecked) -> None:
    assert rescued(wrecked, code=4).faults == ["exit code 4, and an output"]
    assert rescued(wrecked, folder="b", exit_code=0).faults == ["exit code 1, and 0 in the report: None"]
    assert rescued(wrecked, folder="c", code=3, reason="why not").faults == [
        "exit code 3, and 3 in the report: why not",
        "exit code 3, and an output",
    ]
    hashes, nowhere = bundle_hash(wrecked.damaged), wrecked.before.with_name("no.db")
    none = judged(wrecked, before_of(wrecked), frozenset(), hashes, 1, "Traceback", nowhere)
    assert none.faults == ["no report (exit code 1)"]
    told = json.dumps({"exit_code": 1, "reason": None, "tables": []})
    none = judged(wrecked, before_of(wrecked), frozenset(), hashes, 1, told, nowhere)
    assert none.faults == [
        "exit code 1, and no output",
        "3 messages are lost and in no range that is told: 1, 2, 3",
    ]


def test_what_is_left_beside_either_file(wrecked: Wrecked) -> None:
    hashes = bundle_hash(wrecked.damaged)
    done = rescued(wrecked)
    assert done.output is not None
    done.output.with_name("state.db-wal").write_bytes(b"")
    done.output.chmod(0o644)
    wrecked.damaged.with_name("state.db-journal").write_bytes(b"")
    told = json.dumps(done.report)
    again = judged(wrecked, before_of(wrecked), frozenset(), hashes, 1, told, done.output)
    assert again.faults == [
        "the damaged file, or what lies beside it, is not as it was",
        "beside the output lie ['state.db', 'state.db-wal']",
        "the output has the mode 644",
    ]


def test_a_scan_that_finds_what_it_must_not() -> None:
    sound = {"condition": "readable", "reason": None, "findings": [{"check": "open-zombies"}]}
    assert unsound(sound) == []
    assert unsound(sound | {"findings": [{"check": "search-index"}, {"check": "search-index"}]}) == [
        "a scan of the output finds search-index"
    ]
    assert unsound(sound | {"condition": "damaged", "reason": "why"}) == ["a scan calls the output damaged: why"]
