"""counter-drift on real stores: what it finds and leaves, on single rows, while held, and wrong variants of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from checks.counter_drift import CHECK
from hermes_doctor.engine.rows import find
from hermes_doctor.store import counters
from hermes_doctor.store.cells import Cell
from hermes_doctor.store.counters import Explained, calls_in
from hermes_doctor.store.reader import Pace
from hermes_doctor.store.shape import Shape
from tests.checks.ends_and_counts import DRIFT, SHOWN, scene
from tests.oracle.home import Home
from tests.oracle.releases import Release, get
from tests.oracle.steps import call
from tests.store.views import view_of

OLD, NEW = get("0.18.2"), get("0.22.2")


@pytest.mark.parametrize("release", SHOWN, ids=str)
def test_all_cases(release: Release, oracle: None, shared_folder: Path) -> None:
    home = scene(shared_folder, release)
    found = {key: verdict for key, verdict in home.found(CHECK).items() if key.startswith(DRIFT)}
    assert found == home.expected(CHECK)


@pytest.mark.parametrize("release", SHOWN, ids=str)
def test_rows_of_other_cases_count_right(release: Release, oracle: None, shared_folder: Path) -> None:
    assert [key for key in scene(shared_folder, release).found(CHECK) if not key.startswith(DRIFT)] == []


@pytest.mark.parametrize("release", [OLD, NEW], ids=str)
def test_asked_about_single_rows_it_says_the_same(release: Release, oracle: None, shared_folder: Path) -> None:
    assert scene(shared_folder, release).judged_otherwise_alone(CHECK) == []


def test_a_finding_says_what_is_there(oracle: None, shared_folder: Path) -> None:
    found = scene(shared_folder, OLD).findings(CHECK)
    one = found[f"{DRIFT}: rewound, more than all"]
    assert one.summary == "message_count is 5, its rows say 3 to 4 messages"
    assert one.detail == {
        "columns": ["message_count"],
        "message_count": 5,
        "message_count_right": 3,
        "message_count_explained_up_to": 4,
    }
    assert one.action == "recount message_count"
    assert found[f"{DRIFT}: no number of messages"].detail["message_count"] == "no number"
    both = found[f"{DRIFT}: too many messages, too few calls"]
    assert both.detail["columns"] == ["message_count", "tool_call_count"]


@pytest.mark.parametrize("release", [OLD, NEW], ids=str)
def test_it_warns_of_the_deletion_that_the_release_would_do(
    release: Release, oracle: None, shared_folder: Path, tmp_path: Path
) -> None:
    home = scene(shared_folder, release)
    name = f"{DRIFT}: no messages, it says"
    warned = {key for key, finding in home.findings(CHECK).items() if "hermes takes it for empty" in finding.summary}
    copy = home.copy(tmp_path)
    copy.home.run(release, [call("delete_empty_sessions")])
    deleted = name not in copy.rows()
    assert deleted == (release is OLD)
    assert warned == ({name} if deleted else set())


def test_in_slices_it_says_the_same(oracle: None, shared_folder: Path) -> None:
    home = scene(shared_folder, NEW)
    with view_of(home.home.store, home=home.home.path, now=home.now) as view:
        everything = list(find([CHECK], view))
        view.reader.finish()
        view.reader.pace = Pace.SLICED
        assert list(find([CHECK], view)) == everything


@pytest.mark.parametrize(("ago", "spared"), [(4 * 60, True), (6 * 60, False)])
def test_a_running_turn_is_spared_where_the_store_is_held(ago: float, spared: bool, home: Home, oracle: None) -> None:
    home.run(
        NEW,
        [
            call("create_session", "s", "cli"),
            call("append_message", "s", "user", "hello"),
            call("end_session", "s", "x"),
        ],
    )
    connection = apsw.Connection(str(home.store))
    connection.execute("UPDATE sessions SET message_count = 7")
    (at,) = connection.execute("SELECT max(timestamp) FROM messages").fetchone() or (0.0,)
    connection.close()
    for held, expected in (("yes", not spared), ("unknown", not spared), ("no", True)):
        with view_of(home.store, held=held, now=float(at) + ago) as view:
            assert bool(list(find([CHECK], view))) == expected, held


def test_without_an_index_to_messages_nothing_is_judged(tmp_path: Path, oracle: None, shared_folder: Path) -> None:
    copy = scene(shared_folder, NEW).copy(tmp_path)
    connection = apsw.Connection(str(copy.home.store))
    # One that leads elsewhere is no help; the releases' own are made anew at each open.
    for (name,) in connection.execute(
        "SELECT name FROM sqlite_schema WHERE type = 'index' AND tbl_name = 'messages' AND sql IS NOT NULL"
    ).fetchall():
        connection.execute(f'DROP INDEX "{name}"')
    connection.execute("CREATE INDEX elsewhere ON messages(timestamp, session_id)")
    connection.close()
    assert copy.found(CHECK) == {}


@pytest.mark.parametrize("declared", ["TEXT", "REAL"])
@pytest.mark.parametrize(
    ("table", "columns"), [("sessions", ("message_count", "tool_call_count")), ("messages", ("active",))]
)
def test_where_numbers_become_something_else_nothing_is_judged(
    table: str, columns: tuple[str, ...], declared: str, tmp_path: Path, oracle: None, shared_folder: Path
) -> None:
    copy = scene(shared_folder, NEW).copy(tmp_path)
    assert copy.found(CHECK)
    connection = apsw.Connection(str(copy.home.store))
    connection.pragma("writable_schema", True)
    for column in columns:
        connection.execute(
            "UPDATE sqlite_schema SET sql = replace(sql, ?1 || ' INTEGER', ?1 || ' ' || ?3) WHERE name = ?2",
            (column, table, declared),
        )
    connection.close()
    # What a fix writes would be a text again, and no number.
    assert copy.found(CHECK) == {}


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ("[]", Explained(0, 0, 0)),
        ("[1, 2, 3]", Explained(3, 3, 3)),
        ('"[1, 2, 3]"', Explained(1, 3, 3)),
        ('"[]"', Explained(0, 0, 1)),
        ('"words"', Explained(1, 1, 1)),
        ("{}", Explained(0, 0, 1)),
        ('{"id": 1}', Explained(1, 1, 1)),
        ("", None),
        ("[", None),
        ("[" * 100_000, None),
        (b"[1]", None),
        (7, None),
    ],
)
def test_what_a_cell_stands_for(cell: Cell, expected: Explained | None) -> None:
    assert calls_in(cell) == expected


_STANDINGS = counters._standings


def _all_rows(_shape: Shape) -> tuple[str, str, str]:
    return "1", "1", "1"


def _rewound_rows_left_out(shape: Shape) -> tuple[str, str, str]:
    certain, counted, _perhaps = _STANDINGS(shape)
    return certain, counted, counted


def _strings_are_lists(cell: Cell) -> Explained | None:
    length = calls_in(cell)
    return None if length is None else Explained(length.right, length.right, length.right)


def _unreadable_is_none(cell: Cell) -> Explained:
    return calls_in(cell) or Explained()


@pytest.mark.parametrize(
    ("name", "variant", "release"),
    [
        ("_standings", _all_rows, NEW),
        ("_standings", _rewound_rows_left_out, OLD),
        ("calls_in", _strings_are_lists, NEW),
        ("calls_in", _unreadable_is_none, OLD),
        ("CALLS", "message_count", OLD),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_wrong_variants_fail(
    name: str,
    variant: Callable[..., object] | str,
    release: Release,
    oracle: None,
    shared_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    home = scene(shared_folder, release)
    monkeypatch.setattr(counters, name, variant)
    found = {key: verdict for key, verdict in home.found(CHECK).items() if key.startswith(DRIFT)}
    assert found != home.expected(CHECK)
