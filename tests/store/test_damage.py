"""Rows that are lost, and indexes that can be made anew, are told apart."""

from __future__ import annotations

import pytest

from hermes_doctor.store.damage import Damage, judge
from hermes_doctor.store.integrity import Kind, Problem
from hermes_doctor.store.trees import SCHEMA, Part, Tree

TREES = [
    Tree(SCHEMA, SCHEMA, 1, Part.SCHEMA, is_index=False),
    Tree("messages", "messages", 5, Part.ROWS, is_index=False),
    Tree("by_session", "messages", 6, Part.INDEX, is_index=True),
    Tree("by_time", "messages", 7, Part.INDEX, is_index=True),
    Tree("some", "messages", 8, Part.INDEX, is_index=True, partial=True),
    Tree("prompts", "prompts", 9, Part.ROWS, is_index=False),
    Tree("by_hash", "prompts", 10, Part.INDEX, is_index=True),
    Tree("messages_fts_data", "messages_fts_data", 11, Part.SEARCH, is_index=False),
]
STOPPED = Problem(Kind.STOPPED)


def count(*names: str) -> list[Problem]:
    return [Problem(Kind.COUNT, name=name) for name in names]


def missing(*names: str) -> list[Problem]:
    return [Problem(Kind.INDEX, name=name) for name in names]


CASES: list[tuple[str, str, list[Problem], list[str], list[str]]] = [
    # what it is; table; problems; tables that lost rows; indexes
    ("a page of the table", "messages", [Problem(Kind.TREE, 5, 82), STOPPED], ["messages"], []),
    ("what follows from it", "messages", [Problem(Kind.TREE, 5, 82), *count("by_time")], ["messages"], []),
    ("a page of an index", "messages", [Problem(Kind.TREE, 6, 40), STOPPED], [], ["by_session"]),
    ("a page of each", "messages", [Problem(Kind.TREE, 5, 82), Problem(Kind.TREE, 6, 4)], ["messages"], ["by_session"]),
    ("one index has lost entries", "messages", count("by_time"), [], ["by_time"]),
    ("one index has, and SQLite cannot read on", "messages", [*count("by_time"), STOPPED], [], ["by_time"]),
    ("all indexes have other numbers", "messages", count("by_time", "by_session"), ["messages"], []),
    ("two indexes changed places", "messages", missing("by_time", "by_session"), [], ["by_session", "by_time"]),
    ("the only index of a table", "prompts", count("by_hash"), [], ["by_hash"]),
    ("nobody knows where", "messages", [STOPPED], ["messages"], []),
    ("rows out of order", "prompts", [Problem(Kind.ROWS, name="prompts")], ["prompts"], []),
    ("an index that a sample met", "messages", [Problem(Kind.STOPPED, name="by_time")], [], ["by_time"]),
]


@pytest.mark.parametrize(
    ("table", "problems", "rows", "indexes"), [case[1:] for case in CASES], ids=[c[0] for c in CASES]
)
def test_rows_and_indexes(table: str, problems: list[Problem], rows: list[str], indexes: list[str]) -> None:
    damage = judge(TREES, {table: problems})
    assert (damage.rows, sorted(damage.indexes), damage.search) == (rows, indexes, [])
    assert set(damage.indexes.values()) <= {table}


def test_the_search_index_is_no_rows() -> None:
    damage = judge(TREES, {"messages_fts_data": [Problem(Kind.TREE, 11, 50)]})
    assert (damage.search, damage.rows, damage.pages_of(damage.search)) == (["messages_fts_data"], [], [50])


def test_the_list_of_free_pages_and_the_schema() -> None:
    assert judge(TREES, {SCHEMA: [Problem(Kind.FREE)]}).free
    assert judge(TREES, {SCHEMA: [Problem(Kind.TREE, 1, 3)]}).schema
    assert judge(TREES, {}, [Problem(Kind.TREE, 1, 3)]).schema


def test_what_only_the_whole_file_shows() -> None:
    shared = judge(TREES, {}, [Problem(Kind.SHARED, 5, 47), Problem(Kind.UNUSED, page=3)])
    assert (shared.shared, shared.rows) == ({47}, [])
    unused = judge(TREES, {}, [Problem(Kind.UNUSED, page=3), Problem(Kind.UNUSED, page=4)])
    assert (unused.unused, unused.shared) == (2, set())
    assert judge(TREES, {}, [Problem(Kind.OTHER)]).unplaced
    # Beside damage to a tree it follows from that.
    damage = judge(TREES, {"messages": [Problem(Kind.TREE, 5, 82)]}, [Problem(Kind.UNUSED, page=3)])
    assert (damage.rows, damage.unused) == (["messages"], 0)


def test_nothing_is_no_damage() -> None:
    assert not judge(TREES, {"messages": []})
    assert judge(TREES, {"messages": []}) == Damage()
