"""What was saved is counted right: by hand-made stores of which it is known what differs, and by real ones."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from tests.checks.damaged_files import large_enough
from tests.whole.breaking import DAMAGES, at_rest, write_messages_into_log
from tests.whole.saving import (
    Rows,
    bundle_hash,
    candidates,
    copy_bundle,
    count,
    recovered_by_shell,
    rows_of,
    shell_that_recovers,
)
from tests.whole.traces import places_of, still_there

MESSAGES = (
    "CREATE TABLE messages (id INTEGER PRIMARY KEY, session_id TEXT, role TEXT, content TEXT, at REAL, more TEXT)"
)
ROWS = """
INSERT INTO messages VALUES
  (1, 's', 'user', 'one', 5, NULL), (2, 's', 'tool', 'two', 1.5, 'x'), (3, 's', 'user', x'00ff', 3, '');
"""


def made(path: Path, *statements: str) -> Path:
    with closing(apsw.Connection(str(path))) as connection:
        for statement in statements:
            connection.execute(statement)
    return path


@pytest.fixture
def before(tmp_path: Path) -> Rows:
    found = rows_of(made(tmp_path / "before.db", MESSAGES, ROWS), "messages")
    assert found is not None
    return found


def counted(before: Rows, output: Path) -> tuple[set[object], set[object]]:
    told = count(before, candidates(before, output))
    assert told.rows == 3
    return set(told.intact), set(told.wrong)


def test_what_is_as_it_was_is_intact(before: Rows, tmp_path: Path) -> None:
    assert counted(before, made(tmp_path / "a.db", MESSAGES, ROWS)) == ({1, 2, 3}, set())


@pytest.mark.parametrize(
    "change",
    [
        "content = 'One'",
        "content = 'one' || char(0)",
        "content = x'6f6e65'",
        "content = CAST(x'6f6eff' AS TEXT)",
        "content = NULL",
        "at = 5.0000001",
        "role = 'tool'",
        "more = ''",
        "more = 0",
    ],
)
def test_any_column_counts(before: Rows, tmp_path: Path, change: str) -> None:
    output = made(tmp_path / "a.db", MESSAGES, ROWS, f"UPDATE messages SET {change} WHERE id = 1")
    assert counted(before, output) == ({2, 3}, {1})


def test_a_row_under_another_number_is_wrong_and_one_that_was_not_there_too(before: Rows, tmp_path: Path) -> None:
    output = made(tmp_path / "a.db", MESSAGES, ROWS, "UPDATE messages SET id = 9 WHERE id = 2")
    assert counted(before, output) == ({1, 3}, {9})
    assert count(before, candidates(before, output)).risen({9, 10, 1}) == {9}


def test_other_columns_in_another_order_do_not_count_but_lost_ones_do(before: Rows, tmp_path: Path) -> None:
    columns = "more TEXT, at REAL, added TEXT, id INTEGER PRIMARY KEY, role TEXT, session_id TEXT"
    fill = "INSERT INTO messages SELECT more, at, 'new', id, role, session_id{} FROM old.messages"
    attach = f"ATTACH '{tmp_path / 'before.db'}' AS old"
    whole = made(
        tmp_path / "a.db", attach, f"CREATE TABLE main.messages ({columns}, content TEXT)", fill.format(", content")
    )
    assert counted(before, whole) == ({1, 2, 3}, set())
    less = made(tmp_path / "b.db", attach, f"CREATE TABLE main.messages ({columns})", fill.format(""))
    assert counted(before, less) == (set(), {1, 2, 3})


def test_what_hermes_makes_up_for_messages_that_have_none_does_not_count(tmp_path: Path) -> None:
    made_by = "CREATE TABLE messages (id INTEGER PRIMARY KEY, role TEXT, message_uid TEXT)"
    rows = "INSERT INTO messages VALUES (1, 'user', NULL), (2, 'user', 'u2'), (3, NULL, NULL)"
    before = rows_of(made(tmp_path / "before.db", made_by, rows), "messages")
    assert before is not None
    filled = made(tmp_path / "a.db", made_by, rows, "UPDATE messages SET message_uid = 'new', role = 'user'")
    assert counted(before, filled) == ({1}, {2, 3})


def test_nothing_is_saved_by_an_output_that_is_not_there_or_has_no_such_table(before: Rows, tmp_path: Path) -> None:
    assert counted(before, tmp_path / "none.db") == (set(), set())
    assert counted(before, made(tmp_path / "a.db", "CREATE TABLE messages (other)")) == (set(), set())
    (tmp_path / "b.db").write_bytes(b"no database at all" * 300)
    assert counted(before, tmp_path / "b.db") == (set(), set())


def test_what_recover_could_not_place_counts_where_it_is_the_row(before: Rows, tmp_path: Path) -> None:
    output = made(
        tmp_path / "a.db",
        MESSAGES,
        "INSERT INTO messages VALUES (3, 's', 'user', 'older', 3, '')",
        "CREATE TABLE lost_and_found (rootpgno, pgno, nfield, id, c0, c1, c2, c3, c4, c5)",
        # As it was, of whole numbers in a REAL column and without a column that was added later.
        "INSERT INTO lost_and_found VALUES (2, 3, 5, 1, NULL, 's', 'user', 'one', 5, NULL)",
        # Another text; a row that was never there; a page of an index; something of a search index.
        "INSERT INTO lost_and_found VALUES (2, 3, 6, 2, NULL, 's', 'tool', 'TWO', 1.5, 'x')",
        "INSERT INTO lost_and_found VALUES (2, 3, 6, 77, NULL, 's', 'user', 'gone', 1.5, 'x')",
        "INSERT INTO lost_and_found VALUES (2, 3, 2, NULL, 's', 5, NULL, NULL, NULL, NULL)",
        "INSERT INTO lost_and_found VALUES (2, 3, 2, 78, NULL, x'00', NULL, NULL, NULL, NULL)",
        # It is there twice, once right.
        "INSERT INTO lost_and_found VALUES (2, 3, 6, 3, NULL, 's', 'user', x'00ff', 3, '')",
    )
    assert counted(before, output) == ({1, 3}, {2, 77})


def test_the_shell_saves_all_of_a_sound_store(before: Rows, tmp_path: Path) -> None:
    shell = shell_that_recovers()
    if shell is None:
        pytest.skip("needs a sqlite3 whose .recover works: that of Debian has no sqlite_dbpage")
    output = recovered_by_shell(shell, tmp_path / "before.db", tmp_path / "work")
    assert output is not None
    assert counted(before, output) == ({1, 2, 3}, set())


@pytest.mark.usefixtures("oracle")
class TestTraces:
    """Rows that are still in a file are found by where they were."""

    @pytest.fixture
    def store(self, shared_folder: Path, tmp_path: Path) -> Path:
        return large_enough(shared_folder, tmp_path / "home", "0.22.2")

    def test_every_row_has_its_place(self, store: Path) -> None:
        with closing(apsw.Connection(str(store))) as connection:
            asked = connection.execute("SELECT id, length(content) FROM messages")
            lengths = {int(str(key)): int(str(length)) for key, length in asked}
        places = places_of(store, "messages")
        assert sorted(place.rowid for place in places) == sorted(lengths)
        assert {place.rowid for place in places if place.more} == {key for key, long in lengths.items() if long > 4000}

    def test_what_was_zeroed_is_not_there_and_all_else_is(self, store: Path, tmp_path: Path) -> None:
        damaged = Path(shutil.copyfile(store, tmp_path / "damaged.db"))
        (page,) = DAMAGES["zero-table-leaf"](damaged, 3).pages
        lost = {place.rowid for place in places_of(store, "messages") if place.leaf == page}
        every = {place.rowid for place in places_of(store, "messages")}
        assert lost
        assert still_there(store, "messages", damaged) == every - lost

    def test_a_row_whose_chain_is_cut_is_not_there(self, store: Path, tmp_path: Path) -> None:
        damaged = Path(shutil.copyfile(store, tmp_path / "damaged.db"))
        (page,) = DAMAGES["cut-overflow"](damaged, 3).pages
        every = {place.rowid for place in places_of(store, "messages")}
        (lost,) = every - still_there(store, "messages", damaged)
        assert page in next(place.more for place in places_of(store, "messages") if place.rowid == lost)

    def test_what_is_in_the_log_only_is_there(self, store: Path, tmp_path: Path) -> None:
        write_messages_into_log(store, 1)
        rest = copy_bundle(store, tmp_path / "rest")
        at_rest(rest)
        every = {place.rowid for place in places_of(rest, "messages")}
        assert still_there(rest, "messages", store) == every
        log = store.with_name("state.db-wal")
        log.unlink()
        assert len(still_there(rest, "messages", store)) < len(every)
        assert list(bundle_hash(store)) == ["state.db"]
