"""Edges and walks, on stores that real releases made; where a release can be asked, it is asked too."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from shutil import copyfile
from typing import Any

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes_doctor.store import lineage
from hermes_doctor.store.cells import BadText
from hermes_doctor.store.lineage import (
    Edge,
    ancestors_of,
    chain_links,
    chain_of,
    continuations_of,
    descendants_of,
    edge_sql,
    family_of,
    has_lineage,
    loop_of,
    marker_loop_of,
    parent_of,
    root_of,
)
from hermes_doctor.store.lineage_suspects import loop_heads, suspects
from hermes_doctor.store.reader import Pace, Reader
from hermes_doctor.store.shape import read_shape
from hermes_doctor.store.view import StoreView
from tests.oracle.home import Home
from tests.oracle.steps import Step, call, open_store, sql_many

NOW = 1_795_000_000.0
VERSIONS = ("0.13.0", "0.17.0", "0.20.6", "0.22.2")


class Store:
    """An empty store of a release, that the test fills through APSW and looks at."""

    def __init__(self, path: Path) -> None:
        self.connection = apsw.Connection(str(path))
        self.path = path

    def add(self, session: Any, parent: Any = None, **cells: Any) -> None:
        """One row of sessions."""
        row = {"id": session, "source": "cli", "started_at": NOW - 1000.0, "parent_session_id": parent} | cells
        marks = ", ".join("CAST(? AS TEXT)" if isinstance(cell, BadText) else "?" for cell in row.values())
        self.connection.execute(f"INSERT INTO sessions ({', '.join(row)}) VALUES ({marks})", tuple(row.values()))

    def view(self) -> StoreView:
        """A view of what is there now."""
        shape = read_shape(self.connection)
        return StoreView(Reader(self.connection, Pace.FREE), shape, now=NOW)

    def compressed(self, session: Any, parent: Any = None, **cells: Any) -> None:
        """A row that was ended by compression."""
        self.add(session, parent, **({"ended_at": NOW - 500.0, "end_reason": "compression"} | cells))


@pytest.fixture(scope="module")
def empty_stores(oracle: None, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Stores with no session, one of each release, made once."""
    made: dict[str, Path] = {}

    def make(version: str) -> Path:
        if version not in made:
            home = Home(tmp_path_factory.mktemp("empty") / version)
            home.run(version, [open_store()])
            made[version] = home.store
        return made[version]

    return make


@pytest.fixture
def store(empty_stores: Callable[[str], Path], tmp_path: Path) -> Iterator[Store]:
    """An empty store of the newest release."""
    copyfile(empty_stores("0.22.2"), tmp_path / "state.db")
    opened = Store(tmp_path / "state.db")
    yield opened
    opened.connection.close()


# Edges.


@dataclass(frozen=True)
class Pair:
    """A parent ``p`` and a child ``c``, and what joins them. ``marks``: of the child's model_config."""

    name: str
    edge: Edge
    reason: str | None = "compression"
    source: str = "cli"
    marks: dict[str, Any] = field(default_factory=dict)
    keys: tuple[str | None, str | None] = (None, None)
    #: Seconds between the parent's end and the child's start.
    after: float = 1.0
    config: Any = None
    #: Whether releases read it in the same way; they take an inherited mark for a mark of their own.
    as_releases: bool = True

    def row(self, of: str) -> str:
        """The id of the parent or of the child."""
        return f"{self.name}: {of}"


PAIRS = (
    Pair("continuation", Edge.CONTINUATION),
    Pair("continuation with the same key", Edge.CONTINUATION, keys=("k", "k")),
    Pair("child of before the end", Edge.CONTINUATION, after=-100.0, as_releases=False),
    Pair("tool's child", Edge.TOOL, source="tool"),
    Pair("branch after compression", Edge.BRANCH, marks={"_branched_from": "p"}),
    Pair("branch of an open parent", Edge.BRANCH, reason=None, marks={"_branched_from": "p"}),
    Pair("old branch", Edge.BRANCH, reason="branched"),
    Pair("child of before the branching", Edge.SUBAGENT, reason="branched", after=-1.0),
    Pair("delegate", Edge.DELEGATE, reason=None, marks={"_delegate_from": "p"}),
    Pair("delegate after compression", Edge.DELEGATE, marks={"_delegate_from": "p"}),
    Pair("inherited delegate mark", Edge.CONTINUATION, marks={"_delegate_from": "q"}, as_releases=False),
    Pair("inherited branch mark", Edge.CONTINUATION, marks={"_branched_from": "q"}, as_releases=False),
    Pair("inherited reset mark", Edge.CONTINUATION, marks={"_reset_from": "q"}, as_releases=False),
    Pair(
        "inherited and own mark", Edge.BRANCH, marks={"_delegate_from": "q", "_branched_from": "p"}, as_releases=False
    ),
    Pair("reset", Edge.RESET, reason="session_reset", marks={"_reset_from": "p"}),
    Pair("reset after compression", Edge.RESET, marks={"_reset_from": "p"}),
    *(
        Pair(f"old reset by {reason}", Edge.RESET, reason=reason, keys=("k", "k"))
        for reason in sorted(lineage.RESET_REASONS)
    ),
    Pair("old reset with another key", Edge.SUBAGENT, reason="session_reset", keys=("k", "l")),
    Pair("old reset with empty keys", Edge.SUBAGENT, reason="session_reset", keys=("", "")),
    Pair("old reset without keys", Edge.SUBAGENT, reason="session_reset"),
    Pair("same key after /new", Edge.SUBAGENT, reason="new_session", keys=("k", "k")),
    Pair("child of an open parent", Edge.SUBAGENT, reason=None),
    Pair("child of a closed parent", Edge.SUBAGENT, reason="cli_close"),
    Pair("no JSON", Edge.CONTINUATION, config="{_branched_from", as_releases=False),
    Pair("JSON of another kind", Edge.CONTINUATION, config="[1]"),
    Pair("a blob", Edge.CONTINUATION, config={"blob": "00ff"}, as_releases=False),
    Pair("no config", Edge.CONTINUATION, config=""),
)


def _suits(pair: Pair, version: str) -> bool:
    """Up to 0.17.0 there is no column for routing keys."""
    return pair.keys == (None, None) or version not in ("0.13.0", "0.17.0")


def _steps(pair: Pair) -> list[Step]:
    def value(mark: Any) -> Any:
        return pair.row(mark) if mark in ("p", "q") else mark

    config = json.dumps({name: value(mark) for name, mark in pair.marks.items()} | {"max_iterations": 90})
    ended = None if pair.reason is None else NOW - 500.0
    columns = ["id", "source", "parent_session_id", "started_at", "ended_at", "end_reason", "model_config"]
    rows = [
        [pair.row("p"), "cli", None, NOW - 1000.0, ended, pair.reason, None],
        [pair.row("c"), pair.source, pair.row("p"), NOW - 500.0 + pair.after, None, None, pair.config or config],
    ]
    if pair.keys != (None, None):
        columns.append("session_key")
        rows = [[*row, key] for row, key in zip(rows, pair.keys, strict=True)]
    marks = ", ".join("?" for _ in columns)
    return [sql_many(f"INSERT INTO sessions ({', '.join(columns)}) VALUES ({marks})", rows)]


@pytest.mark.parametrize("version", VERSIONS)
def test_edges(home: Home, version: str) -> None:
    pairs = [pair for pair in PAIRS if _suits(pair, version)]
    home.run(version, [step for pair in pairs for step in _steps(pair)])
    opened = Store(home.store)
    view = opened.view()
    joined = view.rows(
        f"SELECT c.id, {edge_sql(view.shape)} FROM sessions p JOIN sessions c ON c.parent_session_id = p.id"
    )
    # Asked under other names, from the table itself, it must say the same.
    looked_up = view.rows(
        f"SELECT sessions.id, (SELECT {edge_sql(view.shape, 'sessions', 'up')} FROM sessions up"
        " WHERE up.id = sessions.parent_session_id) FROM sessions WHERE parent_session_id IS NOT NULL"
    )
    opened.connection.close()
    wanted = {(pair.row("c"), pair.edge.value) for pair in pairs}
    assert set(joined) == wanted
    assert set(looked_up) == wanted


@pytest.mark.parametrize("version", ["0.18.0", "0.20.6", "0.22.2"])
def test_releases_follow_the_same_edges(home: Home, version: str) -> None:
    """A release goes from parent to child where we say continuation, and lists the child as a chat of its own else."""
    pairs = [pair for pair in PAIRS if pair.as_releases and (version != "0.18.0" or pair.edge is not Edge.RESET)]
    if version == "0.20.6":
        # Its tip walk does not look at reset marks yet; its list does.
        pairs = [pair for pair in pairs if pair.name != "reset after compression"]
    steps = [step for pair in pairs for step in _steps(pair)]
    steps += [call("get_compression_tip", pair.row("p")) for pair in pairs]
    steps.append(call("list_sessions_rich", limit=1000, project_compression_tips=False))
    results = home.run(version, steps)
    tips = dict(zip([pair.name for pair in pairs], results[-len(pairs) - 1 : -1], strict=True))
    assert tips == {pair.name: pair.row("c" if pair.edge is Edge.CONTINUATION else "p") for pair in pairs}
    listed = {row["id"] for row in results[-1]}
    for pair in pairs:
        assert (pair.row("c") in listed) == (pair.edge in (Edge.BRANCH, Edge.RESET)), pair.name


@pytest.mark.parametrize("version", ["0.20.6", "0.22.2"])
def test_releases_take_inherited_marks_for_continuations_where_it_matters(home: Home, version: str) -> None:
    """Reopening is refused while a continuation is there: the readers that decide it compare the mark's value."""
    pairs = [pair for pair in PAIRS if pair.name.startswith("inherited") or pair.edge is Edge.DELEGATE]
    pairs = [pair for pair in pairs if pair.reason == "compression"]
    steps = [step for pair in pairs for step in _steps(pair)]
    results = home.run(version, [*steps, *(call("reopen_orphaned_compression_session", p.row("p")) for p in pairs)])
    reopened = dict(zip([pair.name for pair in pairs], results[-len(pairs) :], strict=True))
    assert reopened == {pair.name: pair.edge is not Edge.CONTINUATION for pair in pairs}


# Walks.


def test_a_tree(store: Store) -> None:
    store.compressed("root")
    store.compressed("mid", "root", started_at=NOW - 499.0)
    store.add("tip", "mid", started_at=NOW - 400.0)
    store.add("branch", "root", model_config='{"_branched_from": "root"}')
    store.add("delegate", "tip", source="subagent", model_config='{"_delegate_from": "tip"}')
    store.add("stranger")
    view = store.view()
    assert root_of(view, "delegate") == "root"
    assert root_of(view, "root") == "root"
    assert ancestors_of(view, "delegate").ids == ("tip", "mid", "root")
    assert set(descendants_of(view, "root")) == {"mid", "tip", "branch", "delegate"}
    assert descendants_of(view, "branch").ids == ()
    assert set(family_of(view, "branch")) == {"root", "mid", "tip", "branch", "delegate"}
    assert family_of(view, "branch").ids[0] == "root"
    for session in ("root", "mid", "tip"):
        assert chain_of(view, session).ids == ("root", "mid", "tip")
    assert chain_of(view, "branch").ids == ("branch",)
    assert chain_of(view, "delegate").ids == ("delegate",)
    assert family_of(view, "stranger").ids == ("stranger",)
    assert parent_of(view, "tip") == "mid"
    assert parent_of(view, "root") is None
    assert [chain_links(view, session, 100) for session in ("root", "mid", "tip", "branch")] == [2, 1, 0, 0]


def test_an_unknown_session_is_its_own_family(store: Store) -> None:
    view = store.view()
    assert root_of(view, "nobody") == "nobody"
    assert family_of(view, "nobody").ids == ("nobody",)
    assert chain_of(view, "nobody").ids == ("nobody",)
    assert ancestors_of(view, "nobody").ids == ()
    assert continuations_of(view, "nobody") == []


def test_a_missing_parent_is_no_ancestor(store: Store) -> None:
    store.add("child", "gone")
    store.add("grandchild", "child")
    view = store.view()
    assert parent_of(view, "child") == "gone"
    assert root_of(view, "grandchild") == "child"
    assert ancestors_of(view, "grandchild").ids == ("child",)


def test_continuations_in_the_order_of_tips(store: Store) -> None:
    store.compressed("p")
    store.add("ended", "p", ended_at=NOW, end_reason="cli_close")
    store.add("old", "p", started_at=NOW - 400.0)
    store.add("new", "p", started_at=NOW - 300.0)
    store.compressed("passed-on", "p")
    store.add("branch", "p", model_config='{"_branched_from": "p"}')
    view = store.view()
    found = continuations_of(view, "p")
    assert [each.id for each in found] == ["passed-on", "new", "old", "ended"]
    assert [each.open for each in found] == [False, True, True, False]
    assert found[3].end_reason == "cli_close"
    assert continuations_of(view, "old") == []


def test_loops_end_every_walk(store: Store) -> None:
    store.compressed("self", "self")
    for own, parent in (("b", "a"), ("c", "b"), ("a", "c")):
        store.compressed(own, parent)
    store.add("tail", "b")
    view = store.view()
    assert root_of(view, "self") == "self"
    assert loop_of(view, "self") == ("self",)
    assert ancestors_of(view, "self").ids == descendants_of(view, "self").ids == ()
    assert continuations_of(view, "self") == []
    assert chain_of(view, "self").ids == ("self",)
    for session in ("a", "b", "c"):
        assert root_of(view, session) == "a"
        assert sorted(str(each) for each in loop_of(view, session)) == ["a", "b", "c"]
        assert set(chain_of(view, session)) == {"a", "b", "c", "tail"}
    assert loop_of(view, "tail") == ()
    assert root_of(view, "tail") == "a"
    assert set(family_of(view, "tail")) == {"a", "b", "c", "tail"}
    assert chain_links(view, "a", 7) == 8


def test_rings_of_marks(store: Store) -> None:
    for own, other in (("a", "b"), ("b", "a"), ("outside", "a"), ("self", "self"), ("lost", "gone")):
        store.add(own, model_config=json.dumps({"_delegate_from": other}))
    store.add("list", model_config='{"_delegate_from": ["list"]}')
    store.add("broken", model_config="{")
    store.add("plain")
    view = store.view()
    assert set(marker_loop_of(view, "a")) == set(marker_loop_of(view, "b")) == {"a", "b"}
    assert marker_loop_of(view, "self") == ("self",)
    for session in ("outside", "lost", "list", "broken", "plain"):
        assert marker_loop_of(view, session) == ()


def test_large_families_are_cut_and_say_so(store: Store) -> None:
    store.compressed("root")
    with store.connection:
        store.connection.executemany(
            "INSERT INTO sessions (id, source, parent_session_id, started_at) VALUES (?, 'cli', 'root', ?)",
            [(f"{n:05}", NOW) for n in range(lineage.FAMILY_LIMIT + 50)],
        )
    view = store.view()
    for kin in (family_of(view, "root"), descendants_of(view, "root"), chain_of(view, "root")):
        assert kin.cut
        assert len(kin) <= lineage.FAMILY_LIMIT
    last = f"{lineage.FAMILY_LIMIT + 49:05}"
    assert last in family_of(view, last)
    assert not family_of(store.view(), "nobody").cut


def test_ids_of_any_kind(store: Store) -> None:
    bad, blob = BadText(b"\xff\xfe"), b"\x00\x01"
    store.compressed(bad)
    store.add("child", bad)
    store.add(blob)
    store.add("of a blob", blob)
    store.add(7)
    store.add("of a number", 7)
    view = store.view()
    assert root_of(view, "child") == bad
    assert isinstance(root_of(view, "child"), BadText)
    assert [each.id for each in continuations_of(view, bad)] == ["child"]
    assert descendants_of(view, bad).ids == ("child",)
    assert root_of(view, "of a blob") == blob
    assert descendants_of(view, blob).ids == ("of a blob",)
    assert root_of(view, "of a number") == "7"
    assert suspects(view, 100) == [bad]


def test_a_store_without_lineage(tmp_path: Path) -> None:
    opened = Store(tmp_path / "other.db")
    opened.connection.execute("CREATE TABLE sessions (id TEXT PRIMARY KEY)")
    opened.connection.execute("INSERT INTO sessions VALUES ('a')")
    view = opened.view()
    assert not has_lineage(view.shape)
    assert root_of(view, "a") == "a"
    assert family_of(view, "a").ids == chain_of(view, "a").ids == ("a",)
    assert ancestors_of(view, "a").ids == descendants_of(view, "a").ids == loop_of(view, "a") == ()
    assert continuations_of(view, "a") == []
    assert suspects(view, 100) == []
    opened.connection.close()


def test_a_row_without_an_id_is_no_suspect(store: Store) -> None:
    store.compressed(None)
    store.add(None, "gone")
    assert suspects(store.view(), 100) == []


def test_walks_use_the_index(store: Store) -> None:
    """A walk over a large store may not read it: every step is an index look-up."""
    plans: list[str] = []
    view = store.view()
    view.shape.column("sessions", "id")

    def note(_cursor: Any, statement: str, _bindings: Any) -> bool:
        if not statement.lstrip().startswith("EXPLAIN"):
            count = statement.count("?")
            plan = apsw.Connection(str(store.path)).execute(f"EXPLAIN QUERY PLAN {statement}", ("x",) * count)
            plans.extend(row[3] for row in plan)
        return True

    store.connection.exec_trace = note
    for walk in (root_of, family_of, chain_of, descendants_of, continuations_of, loop_of, marker_loop_of):
        walk(view, "x")
    store.connection.exec_trace = None
    scans = [step for step in plans if step.startswith("SCAN") and step.split()[1] not in ("up", "down", "named")]
    assert plans
    assert scans == []


# Random forests with loops, against the plain meaning of the words.

LINKS = st.lists(st.one_of(st.none(), st.integers(0, 9)), min_size=1, max_size=10)


@pytest.fixture(scope="module")
def shared_store(empty_stores: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """One store for all examples, emptied by each."""
    path = tmp_path_factory.mktemp("forests") / "state.db"
    copyfile(empty_stores("0.22.2"), path)
    opened = Store(path)
    opened.connection.execute("PRAGMA synchronous=OFF")
    yield opened
    opened.connection.close()


@settings(max_examples=60, deadline=None)
@given(links=LINKS)
def test_walks_of_random_forests(shared_store: Store, links: list[int | None]) -> None:
    parents = {f"s{own}": None if up is None else f"s{up}" for own, up in enumerate(links)}
    with shared_store.connection:
        shared_store.connection.execute("DELETE FROM sessions")
        for own, up in parents.items():
            shared_store.add(own, up)
    view = shared_store.view()
    looped = set()
    for own in parents:
        above: list[str] = []
        here = parents[own]
        while here in parents and here not in above:
            above.append(here)
            here = parents[here]
        in_loop = own in above
        assert set(ancestors_of(view, own)) == set(above) - {own}
        assert set(loop_of(view, own)) == (set(above) if in_loop else set())
        if in_loop:
            looped.add(min(above))
            assert root_of(view, own) == min(above)
        elif not above:
            assert root_of(view, own) == own
        below = {other for other in parents if own in set(ancestors_of(view, other))}
        assert set(descendants_of(view, own)) == below
        assert {root_of(view, member) for member in family_of(view, own)} == {root_of(view, own)}
    assert set(loop_heads({own: up for own, up in parents.items() if up is not None})) == looped
    missing = {own for own, up in parents.items() if up is not None and up not in parents}
    own_parents = {own for own, up in parents.items() if own == up}
    assert set(suspects(view, 100)) == looped | missing | own_parents
