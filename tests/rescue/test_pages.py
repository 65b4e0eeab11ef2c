"""Pages are read as SQLite wrote them, whatever their size, and what is broken in them is seen."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes_doctor.rescue.pages import Cell, Pages, encoding_of, free_pages, mark_behind_the_end
from tests.rescue.lab import ask, hermes, make, page, pages_of, put, read, root_of, run, size_of_page, zero

#: Short and long texts, whose rows lie at all borders of what a page keeps of them.
FILL = (
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 400)"
    " INSERT INTO t SELECT i, 'text ' || i || hex(zeroblob(i * {step})) FROM n"
)


def all_rows(store: Path, table: str, pages: Pages) -> dict[int, list[object]]:
    found: dict[int, list[object]] = {}
    for number in pages_of(store, table, "leaf"):
        leaf = pages.leaf(number)
        assert leaf is not None
        assert leaf.whole
        for cell in leaf.cells:
            record = pages.record(number, cell)
            assert record is not None
            found[cell.number] = list(record.values)
    return found


@pytest.mark.parametrize(
    ("size", "reserved"), [(512, 0), (512, 32), (1024, 8), (4096, 0), (4096, 32), (65536, 0), (65536, 8)]
)
def test_every_size_of_page(store: Path, size: int, reserved: int) -> None:
    make(store, "CREATE TABLE t(a)", "DROP TABLE t", "VACUUM", page_size=size)
    assert store.stat().st_size == size
    # What SQLite leaves to others at the end of each page.
    put(store, 1, bytes([reserved]), 20)
    put(store, 1, ((size - reserved) % 65536).to_bytes(2, "big"), 105)
    run(store, "CREATE TABLE t(id INTEGER PRIMARY KEY, a)", FILL.format(step=min(90, size // 200)))
    rows = {int(number): [None, text] for number, text in ask(store, "SELECT id, a FROM t")}
    assert ask(store, "PRAGMA integrity_check") == [("ok",)]
    with read(store, reserved) as pages:
        assert all_rows(store, "t", pages) == rows
        assert pages.count == ask(store, "PRAGMA page_count")[0][0]


def test_rowids_from_the_least_to_the_greatest(store: Path) -> None:
    numbers = [-(1 << 63), -(1 << 55), -1, 0, 1, 127, 128, (1 << 56) - 1, 1 << 56, (1 << 63) - 1]
    make(store, "CREATE TABLE t(id INTEGER PRIMARY KEY, a)", *(f"INSERT INTO t VALUES ({n}, {n})" for n in numbers))
    with read(store) as pages:
        assert [*all_rows(store, "t", pages)] == numbers


def test_a_header_that_goes_on_in_other_pages(store: Path) -> None:
    columns = ", ".join(f"c{n}" for n in range(1500))
    values = ", ".join(f"'{'v' * (70 + n % 9)}'" for n in range(1500))
    make(store, f"CREATE TABLE t({columns})", f"INSERT INTO t VALUES ({values})", page_size=1024)
    with read(store) as pages:
        [row] = all_rows(store, "t", pages).values()
        assert row == ["v" * (70 + n % 9) for n in range(1500)]
        [number] = pages_of(store, "t", "leaf")
        leaf = pages.leaf(number)
        assert leaf is not None
        layout = pages.layout(number, leaf.cells[0])
        assert layout is not None
        assert len(layout.types) == 1500
    zero(store, pages_of(store, "t", "overflow")[0])
    with read(store) as pages:
        assert pages.layout(number, leaf.cells[0]) is None
        assert pages.record(number, leaf.cells[0]) is None


def test_a_page_that_leads_to_others(store: Path) -> None:
    hermes(store, messages=2000)
    with read(store) as pages:
        branch = pages.branch(root_of(store, "messages"))
        assert branch is not None
        assert branch.whole
        assert [*(child for child, _ in branch.children), branch.last] == pages_of(store, "messages", "leaf")
        for child, key in branch.children:
            leaf = pages.leaf(child)
            assert leaf is not None
            assert leaf.cells[-1].number == key
        assert pages.leaf(root_of(store, "messages")) is None
        assert pages.branch(branch.last) is None


def test_the_first_page_may_lead_to_a_single_one(store: Path) -> None:
    """What does not fit behind its header any more may just fit into one other page."""
    for length in range(300, 420, 2):
        make(store, f"CREATE TABLE t(a CHECK (a <> '{'x' * length}'))", page_size=512)
        if page(store, 1)[100] == 0x05:
            break
        store.unlink()
    assert page(store, 1)[103:105] == bytes(2), "a page without a cell"
    with read(store) as pages:
        branch = pages.branch(1)
        assert branch is not None
        assert (branch.children, branch.last > 1, branch.whole) == ([], True, True)


def long_row(store: Path, value: str = "'a' || hex(zeroblob(10500))") -> list[int]:
    make(store, "CREATE TABLE t(a, b)", f"INSERT INTO t VALUES ({value}, 'behind')")
    return pages_of(store, "t", "overflow")


def the_row(pages: Pages, used: bytearray | None = None) -> list[object] | None:
    leaf = pages.leaf(2)
    assert leaf is not None
    record = pages.record(2, leaf.cells[0], used)
    assert record is not None
    return None if record.is_cut else list(record.values)


@pytest.mark.parametrize("place", range(5))
def test_a_wiped_page_of_a_long_row_is_missed(store: Path, place: int) -> None:
    chain = long_row(store)
    assert len(chain) == 5
    with read(store) as pages:
        assert the_row(pages) == ["a" + "0" * 21000, "behind"]
    zero(store, chain[place])
    with read(store) as pages:
        assert the_row(pages) is None
        leaf = pages.leaf(2)
        assert leaf is not None
        record = pages.record(2, leaf.cells[0])
        assert record is not None
        assert record.partial == "a" + "0" * (
            len(pages.payload(2, leaf.cells[0])[: record.held]) - record.layout.header_bytes - 1
        )


def test_zeros_at_the_end_of_a_blob_may_be_right(store: Path) -> None:
    make(store, "CREATE TABLE t(a)", "INSERT INTO t VALUES (zeroblob(9000))")
    with read(store) as pages:
        leaf = pages.leaf(2)
        assert leaf is not None
        record = pages.record(2, leaf.cells[0])
        assert record is not None
        assert (record.values, record.odd_end) == ([bytes(9000)], True)


@pytest.mark.parametrize(
    ("place", "leads_to"),
    [
        pytest.param(0, lambda chain: chain[0], id="to itself"),
        pytest.param(2, lambda chain: chain[0], id="back"),
        pytest.param(4, lambda chain: chain[0], id="on from the last"),
        pytest.param(1, lambda chain: chain[3], id="past one"),
        pytest.param(1, lambda chain: 0, id="nowhere"),
        pytest.param(1, lambda chain: 1, id="to the first page"),
        pytest.param(1, lambda chain: 0xFFFFFFFF, id="out of the file"),
    ],
)  # fmt: skip
def test_a_chain_that_leads_elsewhere_is_not_followed(store: Path, place: int, leads_to: object) -> None:
    chain = long_row(store)
    assert callable(leads_to)
    put(store, chain[place], leads_to(chain).to_bytes(4, "big"))
    with read(store) as pages:
        assert the_row(pages, bytearray(pages.count + 2)) is None


def test_a_last_page_that_leads_out_of_the_file_may_be_right(store: Path) -> None:
    """SQLite does not look where the last page of a row leads to."""
    chain = long_row(store)
    with read(store) as pages:
        before = the_row(pages)
    put(store, chain[-1], (0x7FFFFFF0).to_bytes(4, "big"))
    with read(store) as pages:
        leaf = pages.leaf(2)
        assert leaf is not None
        record = pages.record(2, leaf.cells[0])
    assert record is not None
    assert (record.values, record.odd_end, record.is_cut) == (before, True, False)


def test_pages_that_another_row_has_are_not_followed(store: Path) -> None:
    long_row(store)
    with read(store) as pages:
        used = bytearray(pages.count + 2)
        assert the_row(pages, used) is not None
        assert sum(used) == 5
        assert the_row(pages, used) is None


@pytest.mark.parametrize(
    ("at", "bytes_"),
    [
        pytest.param(3, b"\xff\xff", id="more cells than fit"),
        pytest.param(3, b"\x00\x05", id="more cells than there are"),
        pytest.param(8, b"\xff\xff", id="a cell behind the page"),
        pytest.param(8, b"\x00\x01", id="a cell in the header"),
        pytest.param(8, b"\x0f\xff", id="a cell at the last byte"),
    ],
)
def test_a_torn_page_is_known_as_one(store: Path, at: int, bytes_: bytes) -> None:
    make(store, "CREATE TABLE t(a)", "INSERT INTO t VALUES ('one'), ('two'), ('three')")
    put(store, 2, bytes_, at)
    with read(store) as pages:
        leaf = pages.leaf(2)
        assert leaf is not None
        assert not leaf.whole
        assert all(cell.number in (1, 2, 3) for cell in leaf.cells)


def test_cells_that_overlap_or_are_out_of_order(store: Path) -> None:
    make(store, "CREATE TABLE t(a)", "INSERT INTO t VALUES ('one'), ('two'), ('three')")
    places = page(store, 2)[8:14]
    for torn in (places[2:4] + places[:2] + places[4:], places[:2] * 3):
        put(store, 2, torn, 8)
        with read(store) as pages:
            leaf = pages.leaf(2)
            assert leaf is not None
            assert not leaf.whole


def test_free_pages_and_whether_their_list_is_whole(store: Path) -> None:
    hermes(store, "DELETE FROM messages WHERE id > 100", messages=30_000, length=60, page_size=512)
    count = ask(store, "PRAGMA freelist_count")[0][0]
    trunk = int.from_bytes(page(store, 1)[32:36], "big")
    following = int.from_bytes(page(store, trunk)[:4], "big")
    assert following, "a list of several pages"
    used = {number for (name,) in ask(store, "SELECT name FROM dbstat GROUP BY 1") for number in pages_of(store, name)}
    with read(store) as pages:
        marks, whole = free_pages(pages)
        assert whole
        assert {number for number in range(2, pages.count + 1) if marks[number]} == set(
            range(2, pages.count + 1)
        ) - used
        assert sum(marks) == count
    for leads_to in (trunk, following, 0xFFFFFFFF, 0):
        put(store, following, leads_to.to_bytes(4, "big"))
        with read(store) as pages:
            assert not free_pages(pages)[1]


def test_pages_behind_the_end_that_the_header_gives(store: Path) -> None:
    hermes(store, messages=300)

    def marked() -> list[int]:
        with read(store) as pages:
            marks = bytearray(pages.count + 2)
            mark_behind_the_end(pages, marks)
            assert len(marks) == pages.count + 2
            return [number for number, mark in enumerate(marks) if mark]

    count = ask(store, "PRAGMA page_count")[0][0]
    assert marked() == []
    put(store, 1, (count - 2).to_bytes(4, "big"), 28)
    assert marked() == [count - 1, count]
    # Whoever wrote last did not keep the count.
    put(store, 1, b"\xff", 95)
    assert marked() == []


@pytest.mark.parametrize(
    ("number", "name"),
    [(1, "UTF-8"), (2, "UTF-16le"), (3, "UTF-16be"), (0, "UTF-8"), (6, "UTF-16le"), (255, "UTF-16be")],
)
def test_the_encoding_is_what_sqlite_takes_it_for(store: Path, number: int, name: str) -> None:
    make(store, "CREATE TABLE t(a)", "DROP TABLE t")
    put(store, 1, number.to_bytes(4, "big"), 56)
    assert encoding_of(store.read_bytes()[:100]) == name
    assert ask(store, "PRAGMA encoding") == [(name,)]


def test_what_is_no_header_names_no_encoding() -> None:
    assert encoding_of(b"\xd3" * 56 + (3).to_bytes(4, "big") + bytes(40)) == "UTF-8"


def test_a_file_that_ends_in_the_midst_of_a_page(store: Path) -> None:
    hermes(store, messages=200)
    size = size_of_page(store)
    with store.open("r+b") as file:
        file.truncate(3 * size + 100)
    with read(store) as pages:
        assert pages.count == 4
        assert len(pages.page(4)) == size
        assert pages.page(4)[100:] == bytes(size - 100)
        assert pages.page(9) == bytes(size)
        assert [pages.first_byte(number) for number in (9, 4)] == [0, pages.page(4)[0]]
        assert not pages.has(5)


@settings(max_examples=60, deadline=None)
@given(data=st.binary(min_size=1, max_size=1500), size=st.sampled_from([512, 1024]))
def test_whatever_the_pages_hold_nothing_is_raised(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, size: int
) -> None:
    file = tmp_path_factory.mktemp("pages") / "any.db"
    file.write_bytes((b"\x0d" + data).ljust(size, b"\x01") + b"\x05" + data + b"\x0d\x00\x00\x00\x04" + data * 3)
    with Pages(file, size, reserved=20) as pages:
        free_pages(pages)
        for number in range(1, pages.count + 2):
            branch, leaf = pages.branch(number), pages.leaf(number)
            assert branch is None or all(not child or pages.has(child) for child, _ in branch.children)
            for cell in leaf.cells if leaf else ():
                pages.layout(number, cell)
                pages.record(number, cell, bytearray(pages.count + 2))


def test_a_cell_says_where_it_lies(store: Path) -> None:
    make(store, "CREATE TABLE t(a)", "INSERT INTO t VALUES ('one')")
    with read(store) as pages:
        leaf = pages.leaf(2)
        assert leaf is not None
        assert leaf.cells == [Cell(number=1, length=5, start=4089, body=4091, end=4096, overflow=0)]
