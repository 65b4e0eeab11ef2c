"""The tree of a conversation, on stores of the releases: who is in it, how joined, and what a name stands for."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from hermes_doctor.engine import lineage_tree
from hermes_doctor.engine.lineage_tree import Node, Tree, match, tree_of
from hermes_doctor.store import lineage
from hermes_doctor.store.cells import Key
from tests.oracle.home import Home
from tests.oracle.steps import Step, call
from tests.report.support import make_finding
from tests.store.views import view_of


@pytest.fixture(scope="module")
def store(oracle: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A conversation with everything that can hang on one, and another beside it."""
    home = Home(tmp_path_factory.mktemp("tree") / "home")
    steps: list[Step] = []

    def add(name: str, said: int, ends: str | None = None, **columns: Any) -> None:
        steps.append(call("create_session", name, columns.pop("source", "cli"), model="m", **columns))
        steps.extend(call("append_message", name, "user", "a private word") for _ in range(said))
        if ends:
            steps.append(call("end_session", name, ends))

    add("talk-1", 3, "compression")
    add("talk-1-delegate", 2, "completed", parent_session_id="talk-1", model_config={"_delegate_from": "talk-1"})
    add("talk-2", 2, "compression", parent_session_id="talk-1")
    add("talk-2-branch", 4, parent_session_id="talk-2", model_config={"_branched_from": "talk-2"})
    add("talk-2-tool", 1, parent_session_id="talk-2", source="tool")
    add("talk-3", 1, parent_session_id="talk-2")
    add("other", 1)
    home.run("0.22.2", steps)
    return home.store


@pytest.fixture
def changed(store: Path, tmp_path: Path) -> Callable[..., Path]:
    """A copy on which these statements ran."""

    def change(*statements: str) -> Path:
        copy = tmp_path / "state.db"
        shutil.copy(store, copy)
        with apsw.Connection(str(copy)) as connection:
            for statement in statements:
                connection.execute(statement)
        connection.close()
        return copy

    return change


def edges(tree: Tree) -> set[tuple[Key, str | None, Key]]:
    """(session, edge, the session it hangs below) as drawn, from the root down."""
    found: set[tuple[Key, str | None, Key]] = set()
    waiting: list[tuple[Node, Key]] = [(tree.root, None)]
    while waiting:
        node, above = waiting.pop()
        found.add((node.id, node.edge.value if node.edge else None, above))
        waiting += [(child, node.id) for child in node.children]
    return found


WHOLE = {
    ("talk-1", None, None),
    ("talk-1-delegate", "delegate", "talk-1"),
    ("talk-2", "continuation", "talk-1"),
    ("talk-2-branch", "branch", "talk-2"),
    ("talk-2-tool", "tool", "talk-2"),
    ("talk-3", "continuation", "talk-2"),
}


@pytest.mark.parametrize(
    ("asked", "resumes"),
    [("talk-1", "talk-3"), ("talk-2", "talk-3"), ("talk-3", "talk-3"), ("talk-2-branch", "talk-2-branch")],
)
def test_the_same_tree_from_any_of_its_sessions(store: Path, asked: str, resumes: str) -> None:
    with view_of(store) as view:
        tree = tree_of(view, asked)
    assert tree is not None
    assert edges(tree) == WHOLE
    assert (tree.asked, tree.resumes, tree.cut) == (asked, resumes, False)
    assert {name: node.messages for name, node in tree.nodes.items()} == {
        "talk-1": 3,
        "talk-1-delegate": 2,
        "talk-2": 2,
        "talk-2-branch": 4,
        "talk-2-tool": 1,
        "talk-3": 1,
    }
    assert tree.nodes["talk-1"].message_count == 3
    assert tree.nodes["talk-1"].end_reason == "compression"
    assert tree.nodes["talk-3"].ended_at is None


def test_findings_hang_on_their_sessions(store: Path) -> None:
    found = [
        make_finding(session="talk-2", key="talk-2"),
        make_finding(session="talk-2", key=7, table="messages"),
        make_finding(session="other", key="other"),
        make_finding(session=None, key=None),
    ]
    with view_of(store) as view:
        tree = tree_of(view, "talk-1", found)
    assert tree is not None
    assert {name: len(node.findings) for name, node in tree.nodes.items() if node.findings} == {"talk-2": 2}


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE sessions SET parent_session_id = 'talk-3' WHERE id = 'talk-1'",
        "UPDATE sessions SET parent_session_id = id WHERE id = 'talk-1'",
    ],
)
def test_a_loop_is_drawn_once(changed: Callable[..., Path], statement: str) -> None:
    with view_of(changed("PRAGMA foreign_keys = OFF", statement)) as view:
        tree = tree_of(view, "talk-2")
    assert tree is not None
    assert {session for session, _edge, _above in edges(tree)} == {session for session, _edge, _above in WHOLE}


def test_a_missing_parent_and_a_missing_session(changed: Callable[..., Path]) -> None:
    orphan = "UPDATE sessions SET parent_session_id = 'gone' WHERE id = 'talk-2'"
    with view_of(changed("PRAGMA foreign_keys = OFF", orphan)) as view:
        tree = tree_of(view, "talk-3")
        assert tree_of(view, "gone") is None
    assert tree is not None
    assert (tree.root.id, tree.root.parent, tree.root.edge) == ("talk-2", "gone", None)


def test_a_tree_that_is_cut_still_has_the_session(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lineage, "FAMILY_LIMIT", 2)
    with view_of(store) as view:
        tree = tree_of(view, "talk-2-branch")
    assert tree is not None
    assert tree.cut
    assert "talk-2-branch" in {session for session, _edge, _above in edges(tree)}


def test_what_a_name_stands_for(store: Path) -> None:
    with view_of(store) as view:
        assert match(view, "talk-2").ids == ("talk-2",)
        assert match(view, "talk-2").exact
        assert match(view, "talk-2-").ids == ("talk-2-branch", "talk-2-tool")
        assert match(view, "oth").ids == ("other",)
        assert not match(view, "oth").exact
        assert match(view, "").ids == ()
        unknown = match(view, "talk-9")
        assert unknown.ids == ()
        assert "talk-1" in unknown.alike
        # A name is no pattern.
        assert match(view, "talk%").ids == ()
        assert match(view, "talk_1").ids == ()


def test_ids_that_are_no_text(changed: Callable[..., Path]) -> None:
    # The column has the affinity of text: only bytes stay what they are.
    insert = "INSERT INTO sessions (id, source, started_at, parent_session_id) VALUES (x'00ff', 'cli', 1, 'talk-3')"
    with view_of(changed(insert)) as view:
        tree = tree_of(view, "talk-1")
        assert match(view, "zzz").alike
    assert tree is not None
    assert b"\x00\xff" in tree.nodes


def test_ids_are_read_in_batches(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lineage_tree, "_AT_ONCE", 1)
    with view_of(store) as view:
        tree = tree_of(view, "talk-1")
    assert tree is not None
    assert edges(tree) == WHOLE
    assert sum(node.messages for node in tree.nodes.values()) == 13
