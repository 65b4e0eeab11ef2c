"""Walking a tree: all of a sound one, and of a damaged one what is its own, with what is lost as ranges."""

from __future__ import annotations

from pathlib import Path

import pytest

from hermes_doctor.rescue.forms import Form, FormColumn
from hermes_doctor.rescue.pages import Pages
from hermes_doctor.rescue.trees import BEYOND, LostRowids, TreeWalk, claim
from tests.rescue.lab import ask, hermes, make, page, pages_of, put, read, root_of, swap, zero

MESSAGES = Form(
    "messages",
    (
        FormColumn("id", "INTEGER", needed=True, is_rowid=True),
        FormColumn("session_id", "TEXT", needed=True),
        FormColumn("role", "TEXT", needed=True),
        FormColumn("content", "TEXT"),
        FormColumn("timestamp", "REAL", needed=True),
    ),
)
COUNT = 3000


@pytest.fixture
def deep(store: Path) -> Path:
    """A store whose messages have pages on three floors."""
    hermes(store, messages=COUNT, page_size=512)
    assert len({len(path) for (path,) in ask(store, "SELECT path FROM dbstat WHERE name = 'messages'")}) > 2
    return store


def walk(store: Path, name: str = "messages", form: Form = MESSAGES) -> tuple[set[int], TreeWalk, set[int]]:
    """The rowids that are found in pages that are whole, the walk, and the rowids in torn pages."""
    with read(store) as pages:
        way = TreeWalk(pages, root_of(store, name), form, bytearray(pages.count + 2))
        found: set[int] = set()
        torn: set[int] = set()
        for each in way:
            numbers = {cell.number for cell in each.cells}
            assert not numbers & (found | torn)
            (torn if each.torn else found).update(numbers)
    return found, way, torn


def is_lost(way: TreeWalk, numbers: set[int]) -> set[int]:
    lost = LostRowids(way.lost)
    return {number for number in numbers if number in lost}


EVERY = set(range(1, COUNT + 1))


def test_a_sound_tree_is_read_to_its_end(deep: Path) -> None:
    found, way, torn = walk(deep)
    assert (found, torn, way.lost) == (EVERY, set(), [])


def test_a_table_without_rows_and_one_with_a_single_row(store: Path) -> None:
    hermes(store, messages=0)
    found, way, _ = walk(store)
    assert (found, way.lost) == (set(), [])
    one = hermes(store.with_name("one.db"), messages=1)
    found, way, _ = walk(one)
    assert (found, way.lost) == ({1}, [])


@pytest.mark.parametrize("place", [0, 1, 100, -1])
def test_a_leaf_that_is_gone(deep: Path, place: int) -> None:
    number = pages_of(deep, "messages", "leaf")[place]
    with read(deep) as pages:
        leaf = pages.leaf(number)
        assert leaf is not None
        gone = {cell.number for cell in leaf.cells}
    zero(deep, number)
    found, way, torn = walk(deep)
    assert (found, torn) == (EVERY - gone, set())
    assert is_lost(way, EVERY) == gone
    [lost] = way.lost
    assert (lost.page, lost.one_page) == (number, True)
    # The last leaf has no end.
    assert (lost.low is None, lost.high is None) == (place == 0, place == -1)


@pytest.mark.parametrize("place", [0, 1, -1])
def test_a_page_that_leads_to_leaves_is_gone(deep: Path, place: int) -> None:
    root = root_of(deep, "messages")
    number = [each for each in pages_of(deep, "messages", "internal") if each != root][place]
    zero(deep, number)
    found, way, torn = walk(deep)
    assert not torn
    assert is_lost(way, EVERY) == EVERY - found != set()
    [lost] = way.lost
    assert not lost.one_page


def test_the_root_is_gone(deep: Path) -> None:
    zero(deep, root_of(deep, "messages"))
    found, way, _ = walk(deep)
    assert found == set()
    assert is_lost(way, {-5, 1, COUNT, 1 << 62}) == {-5, 1, COUNT, 1 << 62}
    assert not any(lost.one_page for lost in way.lost)


@pytest.mark.parametrize("root", [0, 1 << 31, 999_999])
def test_a_root_that_is_nowhere(deep: Path, root: int) -> None:
    with read(deep) as pages:
        way = TreeWalk(pages, root, MESSAGES, bytearray(pages.count + 2))
        assert list(way) == []
        assert len(way.lost) == 1


def test_leaves_that_changed_places_count_for_nothing(deep: Path) -> None:
    leaves = pages_of(deep, "messages", "leaf")
    with read(deep) as pages:
        gone = {cell.number for n in (3, 90) for cell in (pages.leaf(leaves[n]) or pytest.fail("no leaf")).cells}
    swap(deep, leaves[3], leaves[90])
    found, way, torn = walk(deep)
    assert (found | torn) == EVERY - gone
    assert is_lost(way, EVERY) == gone


def test_an_interior_page_in_the_place_of_a_leaf(deep: Path) -> None:
    root = root_of(deep, "messages")
    inner = [each for each in pages_of(deep, "messages", "internal") if each != root][2]
    leaf = pages_of(deep, "messages", "leaf")[5]
    put(deep, leaf, page(deep, inner))
    found, way, torn = walk(deep)
    assert (found | torn) <= EVERY
    assert is_lost(way, EVERY) >= EVERY - found


def test_a_leaf_in_the_place_of_a_page_above_others(deep: Path) -> None:
    root = root_of(deep, "messages")
    inner = [each for each in pages_of(deep, "messages", "internal") if each != root][2]
    with read(deep) as pages:
        branch = pages.branch(inner)
        assert branch is not None
        leaf = pages.leaf(branch.children[4][0])
        assert leaf is not None
    put(deep, inner, page(deep, branch.children[4][0]))
    found, way, torn = walk(deep)
    assert {cell.number for cell in leaf.cells} <= found
    assert not torn
    assert is_lost(way, EVERY) >= EVERY - found != set()


@pytest.mark.parametrize("to", ["itself", "the root", "another"])
def test_ways_that_lead_back_come_to_an_end(deep: Path, to: str) -> None:
    root = root_of(deep, "messages")
    inner = [each for each in pages_of(deep, "messages", "internal") if each != root]
    target = {"itself": inner[1], "the root": root, "another": inner[0]}[to]
    place = int.from_bytes(page(deep, inner[1])[12:14], "big")
    put(deep, inner[1], target.to_bytes(4, "big"), place)
    put(deep, inner[1], target.to_bytes(4, "big"), 8)
    found, way, torn = walk(deep)
    assert is_lost(way, EVERY) >= EVERY - found - torn


def test_a_root_that_leads_to_itself_only(deep: Path) -> None:
    root = root_of(deep, "messages")
    data = bytearray(page(deep, root))
    data[8:12] = root.to_bytes(4, "big")
    for cell in range(int.from_bytes(data[3:5], "big")):
        place = int.from_bytes(data[12 + 2 * cell : 14 + 2 * cell], "big")
        data[place : place + 4] = root.to_bytes(4, "big")
    put(deep, root, bytes(data))
    found, way, torn = walk(deep)
    assert (found, torn) == (set(), set())
    assert is_lost(way, EVERY) == EVERY


def test_a_page_that_was_claimed_by_another_tree_is_not_read_again(deep: Path) -> None:
    with read(deep) as pages:
        claimed = bytearray(pages.count + 2)
        claim(pages, root_of(deep, "messages"), claimed)
        own = {number for number in pages_of(deep, "messages") if claimed[number]}
        assert own == {
            *pages_of(deep, "messages", "leaf"),
            *pages_of(deep, "messages", "internal"),
        }
        assert sum(claimed) == len(own)
        way = TreeWalk(pages, root_of(deep, "messages"), MESSAGES, claimed)
        assert list(way) == []
        assert is_lost(way, EVERY) == EVERY


@pytest.mark.parametrize(
    ("at", "written"),
    [
        pytest.param(3, bytes(2), id="it says that it leads to one page only"),
        pytest.param(12, (8).to_bytes(2, "big"), id="a cell lies in its header"),
        pytest.param(12, bytes.fromhex("ffff"), id="a cell lies behind its end"),
    ],
)
def test_of_a_torn_page_above_others_all_that_it_does_not_lead_to_is_lost(deep: Path, at: int, written: bytes) -> None:
    root = root_of(deep, "messages")
    number = [each for each in pages_of(deep, "messages", "internal") if each != root][1]
    with read(deep) as pages:
        before = pages.branch(number)
        assert before is not None
        assert before.whole
    put(deep, number, written, at)
    with read(deep) as pages:
        torn = pages.branch(number)
        assert torn is not None
        assert not torn.whole
        assert set(torn.children) < set(before.children)
        assert torn.last == before.last
    found, way, in_torn = walk(deep)
    assert found < EVERY
    assert not in_torn
    assert is_lost(way, EVERY) >= EVERY - found != set()
    assert {each.page for each in way.lost} == {number}


def test_a_torn_leaf_is_told_as_one(deep: Path) -> None:
    number = pages_of(deep, "messages", "leaf")[50]
    with read(deep) as pages:
        leaf = pages.leaf(number)
        assert leaf is not None
        own = {cell.number for cell in leaf.cells}
    # The first cells lie at the end of the page.
    put(deep, number, bytes(256), 256)
    found, way, torn = walk(deep)
    assert found == EVERY - own
    assert torn < own
    assert is_lost(way, EVERY) == own


def test_the_schemas_tree_begins_on_the_first_page(store: Path) -> None:
    from hermes_doctor.rescue.schema import SCHEMA_FORM

    make(store, *(f"CREATE TABLE t{n}(a CHECK (a <> '{'x' * 100}'))" for n in range(40)), page_size=512)
    with read(store) as pages:
        way = TreeWalk(pages, 1, SCHEMA_FORM, bytearray(pages.count + 2))
        assert sum(len(found.cells) for found in way) == 40
        assert way.lost == []


def test_lost_rowids_are_merged() -> None:
    from hermes_doctor.rescue.account import LostRange

    lost = LostRowids(
        [
            LostRange(5, 9, None, ""),
            LostRange(10, 12, None, ""),
            LostRange(None, -3, None, ""),
            LostRange(7, 8, None, ""),
        ]
    )
    inside = {number for number in range(-20, 20) if number in lost}
    assert inside == {*range(-20, -2), *range(5, 13)}
    assert -(1 << 63) in lost
    assert (1 << 63) - 1 not in lost
    assert (1 << 63) - 1 in LostRowids([LostRange(8, None, None, "")])
    assert not LostRowids([])


def test_pages_that_all_lead_to_two_others_end_at_some_depth(tmp_path: Path) -> None:
    """As many floors as there are pages: no tree of SQLite's is so deep, and nothing breaks."""
    size, count = 512, 3000
    data = bytearray(size)
    for number in range(2, count):
        body = bytearray(size)
        body[0] = 0x05
        body[3:5] = (1).to_bytes(2, "big")
        body[5:7] = (500).to_bytes(2, "big")
        body[8:12] = (number + 1).to_bytes(4, "big")
        body[12:14] = (500).to_bytes(2, "big")
        body[500:504] = (number + 1).to_bytes(4, "big")
        body[504] = number % 100
        data += body
    file = tmp_path / "deep.db"
    file.write_bytes(bytes(data))
    with Pages(file, size) as pages:
        way = TreeWalk(pages, 2, MESSAGES, bytearray(pages.count + 2))
        assert list(way) == []
        assert is_lost(way, {1, 500}) == {1, 500}


def test_of_a_file_that_was_cut_off_only_the_rows_behind_its_end_are_lost(deep: Path) -> None:
    with read(deep) as pages:
        leaves = {number: pages.leaf(number) for number in pages_of(deep, "messages", "leaf")}
        branches = {number: pages.branch(number) for number in pages_of(deep, "messages", "internal")}
    # What leads to pages behind the end says which rows those had.
    ways = [(number, child) for number, branch in branches.items() if branch for child, _ in branch.children]
    left = max(child for number, child in ways if child > number) - 1
    behind = {cell.number for number, leaf in leaves.items() if number > left and leaf for cell in leaf.cells}
    root = root_of(deep, "messages")
    with deep.open("r+b") as file:
        file.truncate(left * 512)
    with read(deep) as pages:
        way = TreeWalk(pages, root, MESSAGES, bytearray(pages.count + 2))
        found = {cell.number for each in way for cell in each.cells}
    assert behind
    assert not found & behind
    assert {each.why for each in way.lost} == {BEYOND}
    assert is_lost(way, EVERY) == EVERY - found
