"""Turns: what looks whole to SQL is whole, however sessions are mixed; and the machine that counts, by itself."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from checks.broken_turns import CHECK
from hermes_doctor.store import turns
from hermes_doctor.store.reader import Pace
from hermes_doctor.store.sifting import Sifter, sift
from hermes_doctor.store.turns import broken_turns, ids_of_calls
from tests.checks.support import by_key, findings_of
from tests.oracle.home import Home
from tests.oracle.steps import open_store
from tests.store.views import view_of

SESSIONS, ROWS = 60, 1500


@pytest.fixture(scope="module")
def made(oracle: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of 0.22.2 without rows."""
    home = Home(tmp_path_factory.mktemp("turns"))
    home.run("0.22.2", [open_store()])
    return home.store


def _written(made: Path, path: Path, seed: int) -> Path:
    """The store, with sessions whose rows are mixed: mostly whole turns, in one go or not, and odd rows among them."""
    shutil.copy(made, path)
    chance = random.Random(seed)
    with apsw.Connection(str(path)) as store:
        for n in range(SESSIONS):
            ended = chance.choice([None, 1790000000.0])
            store.execute(
                "INSERT INTO sessions (id, source, started_at, ended_at) VALUES (?, 'cli', 1, ?)", (f"s{n}", ended)
            )
        row = 0
        for cells in _rows(chance):
            # Ids have gaps, where something was deleted.
            row += chance.choices([1, 2, 50], weights=[30, 1, 1])[0]
            store.execute(
                "INSERT INTO messages (id, session_id, role, content, tool_calls, tool_call_id, active, display_kind,"
                " observed, timestamp) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 1790000000)",
                (row, *cells),
            )
    store.close()
    return path


def _rows(chance: random.Random) -> Iterator[tuple[str | int | None, ...]]:
    waiting: dict[str, list[tuple[str | int | None, ...]]] = {}
    for _ in range(ROWS):
        session = f"s{int(chance.triangular(0, SESSIONS, 0))}"
        turn = waiting.pop(session, None) or list(_turn(session, chance))
        # The whole turn at once, or only the next row of it; now and then a row is lost.
        cut = chance.choice([1, len(turn), len(turn)])
        yield from (cells for cells in turn[:cut] if chance.random() > 0.01)
        if turn[cut:]:
            waiting[session] = turn[cut:]


def _turn(session: str, chance: random.Random) -> Iterator[tuple[str | int | None, ...]]:
    active = chance.choices([1, 0], weights=[20, 1])[0]
    kind = chance.choices([None, "model_switch", "steer"], weights=[20, 1, 1])[0]
    observed = chance.choices([0, 1], weights=[20, 1])[0]
    content = chance.choices(["hello", "[CONTEXT COMPACTION — REFERENCE ONLY] of old"], weights=[20, 1])[0]
    yield session, "user", content, None, None, active, kind, observed
    for _ in range(chance.randrange(3)):
        ids = [f"c{chance.randrange(12)}" for _ in range(chance.choices([1, 2, 3], weights=[6, 1, 1])[0])]
        calls = json.dumps(
            [{"id": each, "function": {"name": "f", "arguments": '{"a": [{"id": "c1"}, {"b": 1}]}'}} for each in ids]
        )
        yield session, "assistant", "", calls, None, active, None, 0
        for each in ids:
            yield session, "tool", "out", None, each, active, None, 0
    yield session, "assistant", "fine", None, None, active, None, 0


@pytest.mark.parametrize("seed", range(4))
def test_no_broken_session_looks_whole(made: Path, tmp_path: Path, seed: int) -> None:
    """The look at neighbours chooses; reading each session through says what it should have chosen."""
    store = _written(made, tmp_path / "state.db", seed)
    with view_of(store) as view:
        everything = {each.session for each in broken_turns(view, [f"s{n}" for n in range(SESSIONS)])}
    found = by_key(findings_of(store, CHECK))
    assert {finding.key for finding in found} == everything
    assert 5 < len(everything) < SESSIONS


def test_whole_turns_are_not_doubtful(made: Path, tmp_path: Path) -> None:
    """Otherwise all would be right, but every session would be read twice."""
    store = tmp_path / "state.db"
    shutil.copy(made, store)
    with apsw.Connection(str(store)) as connection:
        for session in "ab":
            connection.execute(
                "INSERT INTO sessions (id, source, started_at, ended_at) VALUES (?, 'cli', 1, 2)", (session,)
            )
            for ids in (["c1"], ["c1"], ["c1", "c2"], ["c3", "c1", "c2"], []):
                calls = json.dumps([{"id": each, "function": {"arguments": '{"a": "}, {"}'}} for each in ids])
                rows: list[tuple[str, str | None, str | None]] = [
                    ("user", None, None),
                    *([("assistant", calls, None)] if ids else []),
                ]
                rows += [*(("tool", None, each) for each in reversed(ids)), ("assistant", None, None)]
                connection.executemany(
                    "INSERT INTO messages (session_id, role, content, tool_calls, tool_call_id, timestamp)"
                    " VALUES (?, ?, 'x', ?, ?, 1)",
                    [(session, *row) for row in rows],
                )
    connection.close()
    with view_of(store) as view:
        doubtful = f"group_concat(messages.id) FILTER (WHERE {turns.doubtful_sql(view.shape)})"
        neighbours = {column: column for column in turns.NEIGHBOURS}
        [found] = sift(
            view.reader, Sifter(view.shape.tables["messages"], [doubtful, "count(*)"], neighbours=neighbours)
        )
        assert found.values == (None, 42)


def test_a_long_session_is_read_in_slices_where_statements_must_be_short(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = _written(made, tmp_path / "state.db", 9)
    ids = [f"s{n}" for n in range(SESSIONS)]
    with view_of(store) as view:
        whole = list(broken_turns(view, ids))
        assert whole
        monkeypatch.setattr(turns, "_SLICE", 3)
        view.reader.pace = Pace.SLICED
        assert list(broken_turns(view, ids)) == whole


def test_odd_ids_do_no_harm(made: Path, tmp_path: Path) -> None:
    store = tmp_path / "state.db"
    shutil.copy(made, store)
    with apsw.Connection(str(store)) as connection:
        for session in ("CAST(x'ff41' AS TEXT)", "x'ff41'", "7", "NULL"):
            connection.execute(f"INSERT INTO sessions (id, source, started_at) VALUES ({session}, 'cli', 1)")
            for _ in range(2):
                connection.execute("PRAGMA foreign_keys = OFF")
                value = "'nobody'" if session == "NULL" else session
                connection.execute(
                    f"INSERT INTO messages (session_id, role, content, timestamp) VALUES ({value}, 'user', 'x', 1)"
                )
    connection.close()
    # An id that is no text is none of hermes's; messages of no session are another check's.
    assert {bytes(f.key) for f in findings_of(store, CHECK) if isinstance(f.key, bytes)} == {b"\xffA"}
    assert {f.key for f in findings_of(store, CHECK) if not isinstance(f.key, bytes)} == {"7"}


@pytest.mark.parametrize(
    ("cell", "ids"),
    [
        (None, []),
        ("null", []),
        ("[]", []),
        ('[{"id": "a"}]', [{"a"}]),
        ('[{"id": " a ", "call_id": "b|c"}, {}]', [{"a", "b|c", "b", "c"}, set()]),
        ('[{"id": 5}]', [set()]),
        ('["a"]', [None]),
        ('"[]"', [None]),
        ("[", [None]),
        (b"[]", [None]),
        (7, [None]),
    ],
)
def test_calls_are_known_by_each_of_their_ids(cell: str, ids: list[set[str] | None]) -> None:
    assert ids_of_calls(cell) == ids
