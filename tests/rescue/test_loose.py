"""Pages that no tree leads to: whose rows they hold is told by what those look like, and else they are left alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hermes_doctor.rescue.account import LostRange, Source
from hermes_doctor.rescue.forms import Form, FormColumn
from hermes_doctor.rescue.loose import Free, LoosePage, loose_pages, whose
from hermes_doctor.rescue.records import Layout
from hermes_doctor.rescue.trees import LostRowids
from tests.rescue.lab import account, ask, hermes, hold, page, pages_of, put, read, rescue, root_of, rows_of, run, zero

TEXTS = Form("texts", (FormColumn("id", "INTEGER", is_rowid=True), FormColumn("a", "TEXT", needed=True)))
PAIRS = Form("pairs", (FormColumn("a", "TEXT"), FormColumn("b", "REAL")))
LONGER = Form("longer", (FormColumn("a", "TEXT"), FormColumn("b", "REAL"), FormColumn("c", "BLOB")))
ALL = LostRowids([LostRange(None, None, None, "")])


def test_whose_rows_they_are() -> None:
    text = Layout((0, 21), 3, 7)
    pair = Layout((21, 7), 3, 15)
    forms = [TEXTS, PAIRS, LONGER]
    assert whose(forms, [text, text]) == ["texts"]
    assert whose(forms, [pair]) == ["pairs"], "it has all columns of that, and not of the other"
    assert whose(forms, [pair, Layout((21, 7, 1), 4, 17)]) == ["longer"], "of more rows"
    assert whose([*forms, Form("twin", PAIRS.columns)], [pair]) == ["pairs", "twin"]
    assert whose(forms, [Layout((1, 1, 1, 1), 5, 9)]) == []
    assert whose(forms, [None, None]) == []
    assert whose([], [pair]) == []


@pytest.fixture
def three(store: Path) -> Path:
    """Tables whose roots are lost, two of which look alike."""
    many = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1500) INSERT INTO {} FROM n"
    hermes(
        store,
        "CREATE TABLE one(a TEXT, b REAL)",
        many.format("one SELECT 'text ' || i, i / 3.0"),
        "CREATE TABLE other(a TEXT, b REAL)",
        many.format("other(rowid, a, b) SELECT 5000 + i, 'text ' || i, i / 3.0"),
        messages=1500,
    )
    return store


def found_in(store: Path, gaps: dict[str, LostRowids], free: list[int], *, known: bool = True) -> Iterator[LoosePage]:
    from hermes_doctor.rescue.schema import forms_of, read_entries

    with read(store) as pages:
        marks = bytearray(pages.count + 2)
        for number in free:
            marks[number] = 1
        forms = [form for _, form in forms_of(read_entries(pages, []))]
        claimed = bytearray(pages.count + 2)
        yield from loose_pages(pages, claimed, forms, gaps, Free(marks, known), range(2, pages.count + 1))


def test_pages_of_one_table_only_for_its_gaps(store: Path) -> None:
    hermes(store, messages=1500)
    leaves = pages_of(store, "messages", "leaf")
    found = list(found_in(store, {"messages": ALL}, []))
    assert [each.page for each in found] == leaves
    assert {each.source for each in found} == {Source.LOOSE}
    assert sum(len(each.cells) for each in found) == 1500
    gap = LostRowids([LostRange(10, 20, None, "")])
    found = list(found_in(store, {"messages": gap}, [leaves[3]], known=True))
    assert [cell.number for each in found for cell in each.cells] == list(range(10, 21))
    assert sum(len(each.cells) + each.others for each in found) == 1500
    assert [each.source for each in found if each.page == leaves[3]] == [Source.FREE]
    assert {each.source for each in found_in(store, {"messages": ALL}, [], known=False)} == {Source.FREE}
    [found_page] = found_in(store, {"sessions": gap}, [])
    assert (found_page.page, found_page.cells, found_page.others) == (root_of(store, "sessions"), [], 1)
    assert list(found_in(store, {}, [])) == []


def test_torn_pages_are_told_as_such(store: Path) -> None:
    hermes(store, messages=1500)
    leaf = pages_of(store, "messages", "leaf")[4]
    put(store, leaf, bytes(100), 3900)
    assert [each.page for each in found_in(store, {"messages": ALL}, []) if each.source is Source.TORN] == [leaf]


def test_what_may_be_of_two_tables_is_of_neither(three: Path, new: Path) -> None:
    before = {table: rows_of(three, table) for table in ("one", "other", "messages")}
    zero(three, root_of(three, "one"), root_of(three, "other"), root_of(three, "messages"))
    result = rescue(three, new)
    for table in before:
        hold(before[table], result, table)
    assert rows_of(new, "messages") == before["messages"]
    assert rows_of(new, "one") == rows_of(new, "other") == {}
    assert account(result, "one").ambiguous_pages > 5
    assert not account(result, "one").is_whole


def test_what_may_be_of_two_tables_of_which_one_is_whole(three: Path, new: Path) -> None:
    before = {table: rows_of(three, table) for table in ("one", "other")}
    zero(three, root_of(three, "one"))
    result = rescue(three, new)
    for table in before:
        hold(before[table], result, table)
    assert rows_of(new, "other") == before["other"]
    assert account(result, "other").is_whole


def test_the_older_of_two_copies_of_a_page_does_not_come_first(store: Path, new: Path) -> None:
    """A page of the tree stays what counts, and one that was given back fills a gap only."""
    hermes(store, messages=1500)
    leaves = pages_of(store, "messages", "leaf")
    old = store.read_bytes()[(leaves[2] - 1) * 4096 : leaves[2] * 4096]
    before = rows_of(store, "messages")
    with store.open("ab") as file:
        file.write(old.replace(b"message", b"MESSAGE"))
        file.write(old.replace(b"message", b"MESSAGE"))
    zero(store, leaves[7])
    result = rescue(store, new)
    after = hold(before, result)
    assert not any(b"MESSAGE" in bytes(row[3][1]) for row in after.values() if isinstance(row[3][1], bytes))


def test_the_same_rows_found_twice_are_put_in_once(store: Path, new: Path) -> None:
    hermes(
        store,
        'CREATE TABLE t("rowid", oid, _rowid_)',
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 900)"
        " INSERT INTO t SELECT i, 1, 2 FROM n",
    )
    leaf = pages_of(store, "t", "leaf")[1]
    data = store.read_bytes()[(leaf - 1) * 4096 : leaf * 4096]
    with store.open("ab") as file:
        file.write(data * 2)
    zero(store, root_of(store, "t"))
    result = rescue(store, new)
    rows = ask(new, 'SELECT "rowid" FROM t')
    assert len(rows) == len(set(rows)) == account(result, "t").rows


@pytest.mark.parametrize("twice", [False, True])
def test_a_page_that_is_found_again_leaves_unnamed_only_what_was_taken_of_it(
    store: Path, new: Path, twice: bool
) -> None:
    """Its place in the tree leads to another; of its rows, one may have a value that another row has already."""
    hermes(
        store,
        "CREATE TABLE t(a, b TEXT)",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 900)"
        " INSERT INTO t SELECT i, 'text ' || i FROM n",
        "CREATE INDEX t_a ON t(a)",
    )
    root, leaf = root_of(store, "t"), pages_of(store, "t", "leaf")[1]
    with read(store) as pages:
        found = pages.leaf(leaf)
        assert found is not None
        number = found.cells[3].number
    if twice:
        run(store, f"UPDATE t SET a = 5 WHERE rowid = {number}")
    run(store, "UPDATE sqlite_schema SET sql = 'CREATE UNIQUE INDEX t_a ON t(a)' WHERE name = 't_a'")
    before = rows_of(store, "t")
    put(store, root, root_of(store, "sessions").to_bytes(4, "big"), int.from_bytes(page(store, root)[14:16], "big"))
    result = rescue(store, new)
    after = hold(before, result, "t")
    told = account(result, "t")
    assert told.saved[Source.LOOSE] == len(found.cells) - twice
    assert after.keys() == before.keys() - ({number} if twice else set())
    assert (told.lost != []) == twice
