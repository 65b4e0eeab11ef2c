"""Tables of every kind, healthy and damaged: each row is as it was, or is named; nothing is silently missing."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from hermes_doctor.rescue.account import Source
from tests.rescue.lab import (
    account,
    ask,
    hermes,
    hold,
    named,
    page,
    pages_of,
    put,
    read,
    rescue,
    root_of,
    rows_of,
    run,
    swap,
    zero,
)

MANY = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000) INSERT INTO {} FROM n"
WIDE = "CREATE TABLE t({})".format(", ".join(f"c{n}" for n in range(1500)))
WIDE_ROWS = tuple(
    "INSERT INTO t VALUES ({})".format(", ".join(f"'{'v' * (60 + (n + r) % 99)}'" for n in range(1500)))
    for r in range(7)
)


def schema(table: str, sql: str) -> str:
    """Has the schema say something else of a table."""
    return f"UPDATE sqlite_schema SET sql = '{sql.replace(chr(39), chr(39) * 2)}' WHERE name = '{table}'"


#: Tables by what is odd in them: how they are made, and how their rows are asked for.
TABLES: dict[str, tuple[tuple[str, ...], str | None]] = {
    "empty": (("CREATE TABLE t(a)",), "rowid"),
    "one row": (("CREATE TABLE t(a)", "INSERT INTO t VALUES (1)"), "rowid"),
    "no text": (("CREATE TABLE t(a TEXT)", MANY.format("t SELECT CAST(x'ff00fe' || i AS TEXT)")), "rowid"),
    "NULs": (("CREATE TABLE t(a TEXT, b)", MANY.format("t SELECT 'a' || char(0) || i, zeroblob(i % 50)")), "rowid"),
    "blobs of zeros": (
        ("CREATE TABLE t(a, b)", "INSERT INTO t VALUES (zeroblob(9000), 1), (2, zeroblob(99999))"),
        "rowid",
    ),
    "numbers": (("CREATE TABLE t(a REAL, b, c INT, d TEXT)", MANY.format("t SELECT i, i * 1.0, i / 3.0, i")), "rowid"),
    "negative rowids": (("CREATE TABLE t(a)", MANY.format("t(rowid, a) SELECT i - 1000, i")), "rowid"),
    "greatest rowid": (
        ("CREATE TABLE t(a)", "INSERT INTO t(rowid, a) VALUES (9223372036854775807, 1), (-9223372036854775808, 2)"),
        "rowid",
    ),
    "a column named rowid": (
        ('CREATE TABLE t("rowid" TEXT, a)', MANY.format('t("rowid", a) SELECT 9999 - i, i')),
        "oid",
    ),
    "no name for the rowid": (('CREATE TABLE t("rowid", oid, _rowid_)', MANY.format("t SELECT i, 'a', 'b'")), None),
    "INTEGER PRIMARY KEY DESC": (
        ("CREATE TABLE t(a INTEGER PRIMARY KEY DESC, b)", MANY.format("t SELECT 9999 - i, i")),
        "rowid",
    ),
    "without rowids": (
        (
            "CREATE TABLE t(a, b INTEGER, c, PRIMARY KEY (b DESC, a)) WITHOUT ROWID",
            MANY.format("t SELECT 'x', i, hex(i)"),
        ),
        None,
    ),
    "generated": (
        ("CREATE TABLE t(a INT, v AS (a * 2), s TEXT AS (a || 'x') STORED, b)", MANY.format("t(a, b) SELECT i, 'b'")),
        "rowid",
    ),
    "added columns": (
        (
            "CREATE TABLE t(a INT, gone)",
            MANY.format("t SELECT i, 'g'"),
            "ALTER TABLE t ADD COLUMN b TEXT NOT NULL DEFAULT 'd''x'",
            "ALTER TABLE t ADD COLUMN c REAL DEFAULT 5",
            "ALTER TABLE t ADD COLUMN d",
            "INSERT INTO t VALUES (1, 2, '3', 4, 5)",
            "ALTER TABLE t DROP COLUMN gone",
        ),
        "rowid",
    ),
    "strict": (("CREATE TABLE t(a INT, b TEXT, c ANY) STRICT", MANY.format("t SELECT i, 'b', '007'")), "rowid"),
    "a broken CHECK": (
        ("CREATE TABLE t(a)", MANY.format("t SELECT i"), schema("t", "CREATE TABLE t(a CHECK (a > 5))")),
        "rowid",
    ),
    "keys to nowhere": (("CREATE TABLE t(a REFERENCES nowhere(id))", MANY.format("t SELECT i")), "rowid"),
    "1,500 columns": ((WIDE, *WIDE_ROWS), "rowid"),
}


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("encoding", ["UTF-8", "UTF-16le"])
def test_of_a_healthy_store_all_rows_are_saved_and_none_is_in_doubt(
    store: Path, new: Path, name: str, encoding: str
) -> None:
    statements, key = TABLES[name]
    hermes(store, "PRAGMA writable_schema = 1", *statements, encoding=encoding)
    before = rows_of(store, "t", key)
    result = rescue(store, new)
    assert (result.outcome, result.exit_code, result.notes) == ("rescued", 0, [])
    assert rows_of(new, "t", key) == before
    assert account(result, "t").rows == len(before)
    assert rows_of(new, "messages") == rows_of(store, "messages")


@pytest.mark.parametrize("name", [name for name, (_, key) in TABLES.items() if key is not None])
@pytest.mark.parametrize("elsewhere", [True, False], ids=["another table is hit", "it is hit"])
def test_of_a_damaged_one_each_row_is_as_it_was_or_named(store: Path, new: Path, name: str, elsewhere: bool) -> None:
    statements, key = TABLES[name]
    assert key is not None
    hermes(store, "PRAGMA writable_schema = 1", *statements, messages=300)
    before, messages = rows_of(store, "t", key), rows_of(store, "messages")
    leaves = pages_of(store, "messages" if elsewhere else "t", "leaf")
    hit = leaves[len(leaves) // 2]
    zero(store, hit)
    result = rescue(store, new)
    after = hold(before, result, "t", key)
    hold(messages, result)
    if elsewhere:
        assert after == before
        assert len(rows_of(new, "messages")) < len(messages)
    elif len(leaves) > 1:
        assert 0 < len(after) < len(before)
    assert result.exit_code == (1 if after or elsewhere or len(leaves) == 1 else 4)


@pytest.mark.parametrize("encoding", ["UTF-16le", "UTF-16be"])
def test_texts_of_wide_characters_stay_as_they_are(store: Path, new: Path, encoding: str) -> None:
    hermes(
        store,
        "UPDATE messages SET content = char(0xfffe, 0xffff, 65, 0, 0xd7ff, 0x10ffff) || id WHERE id > 200",
        "UPDATE messages SET content = CAST(x'd8410000' AS TEXT) WHERE id > 250",
        messages=300,
        encoding=encoding,
    )
    before = rows_of(store, "messages")
    zero(store, pages_of(store, "messages", "leaf")[0])
    result = rescue(store, new)
    assert len(hold(before, result)) > 200
    assert ask(new, "PRAGMA encoding") == [(encoding,)]


@pytest.mark.parametrize("size", [512, 1024, 8192, 65536])
@pytest.mark.parametrize("vacuum", [0, 1, 2])
def test_pages_of_any_size_with_and_without_pointer_maps(store: Path, new: Path, size: int, vacuum: int) -> None:
    hermes(store, messages=2000, page_size=size, before=f"PRAGMA auto_vacuum = {vacuum}")
    assert ask(store, "PRAGMA auto_vacuum") == [(vacuum,)]
    before = rows_of(store, "messages")
    zero(store, pages_of(store, "messages", "leaf")[1])
    result = rescue(store, new)
    assert 0 < len(hold(before, result)) < 2000
    assert len(account(result, "messages").lost) == 1


def test_a_healthy_first_page_that_leads_to_one_other_is_no_damage(store: Path, new: Path) -> None:
    for length in range(200, 800, 2):
        store.unlink(missing_ok=True)
        hermes(store, f"CREATE TABLE t(a CHECK (a <> '{'x' * length}'))", page_size=1024)
        if page(store, 1)[100] == 0x05 and page(store, 1)[103:105] == bytes(2):
            break
    else:
        pytest.fail("no such file")
    result = rescue(store, new)
    assert (result.outcome, result.notes) == ("rescued", [])


def test_rows_that_their_table_does_not_take_are_named(store: Path, new: Path) -> None:
    hermes(
        store,
        "CREATE TABLE missing(a, b, c)",
        "INSERT INTO missing VALUES (NULL, 2, 3), (2, 'x', 3), (NULL, 4, 3)",
        "CREATE TABLE wrong(a, b)",
        "INSERT INTO wrong VALUES ('x', 2), (1, 'x')",
        "PRAGMA writable_schema = 1",
        schema("missing", "CREATE TABLE missing(a NOT NULL, b, c)"),
        schema("wrong", "CREATE TABLE wrong(a INT, b ANY) STRICT"),
    )
    result = rescue(store, new)
    assert result.exit_code == 1
    for table, saved, lost in (("missing", [2], [(1, 1), (3, 3)]), ("wrong", [2], [(1, 1)])):
        told = account(result, table)
        assert [(each.low, each.high) for each in told.lost] == lost
        assert list(rows_of(new, table)) == saved
        assert told.rows == 1


def test_a_row_that_is_odd_in_itself_does_not_make_its_page_a_torn_one(store: Path, new: Path) -> None:
    """SQLite lets a key be NULL that is no rowid."""
    hermes(
        store,
        "CREATE TABLE t(a TEXT PRIMARY KEY, b)",
        MANY.format("t SELECT 'text ' || i, i"),
        "UPDATE t SET a = NULL WHERE rowid = 7",
    )
    before = rows_of(store, "t")
    zero(store, pages_of(store, "t", "leaf")[2])
    result = rescue(store, new)
    after = hold(before, result, "t")
    told = account(result, "t")
    assert after[7] == before[7]
    assert (told.saved, told.doubtful) == ({Source.IN_PLACE: len(after)}, [])
    assert len(told.lost) == 1


@pytest.mark.parametrize("torn", [False, True])
def test_a_row_whose_chat_is_no_text_is_left_out_where_its_page_is_torn(store: Path, new: Path, torn: bool) -> None:
    """Such a text may be just what hermes wrote; in a torn page it may as well be what tore it."""
    hermes(store, messages=300)
    leaf = pages_of(store, "messages", "leaf")[1]
    with read(store) as pages:
        found = pages.leaf(leaf)
        assert found is not None
        number = found.cells[3].number
    run(store, f"UPDATE messages SET session_id = CAST(x'73ff' AS TEXT) WHERE id = {number}")
    before = rows_of(store, "messages")
    if torn:
        put(store, leaf, b"\xff\xff", 8)
    zero(store, pages_of(store, "messages", "leaf")[-1])
    result = rescue(store, new)
    after = hold(before, result)
    assert (number in after) == (not torn)
    assert (
        any(
            lost.low is None or lost.low <= number <= (lost.high or number) for lost in account(result, "messages").lost
        )
        == torn
    )


@pytest.mark.parametrize("damaged", [False, True])
def test_doubled_values_where_each_may_be_there_once(store: Path, new: Path, damaged: bool) -> None:
    hermes(
        store,
        "CREATE TABLE t(a, b)",
        MANY.format("t SELECT min(i, 1990), i"),
        "CREATE INDEX t_a ON t(b)",
        "PRAGMA writable_schema = 1",
        schema("t_a", "CREATE UNIQUE INDEX t_a ON t(a)"),
        messages=300,
    )
    before = rows_of(store, "t")
    if damaged:
        zero(store, pages_of(store, "messages", "leaf")[1])
    result = rescue(store, new)
    assert rows_of(new, "t") == before
    assert result.exit_code == 1
    assert any("t_a" in note for note in result.notes)


@pytest.mark.parametrize("place", ["first", "middle", "last", "root"])
def test_a_damaged_table_without_rowids_is_read_from_both_ends(store: Path, new: Path, place: str) -> None:
    hermes(store, "CREATE TABLE t(a INTEGER PRIMARY KEY, b) WITHOUT ROWID", MANY.format("t SELECT i, 'text ' || i"))
    before = {row[0][1]: row for row in rows_of(store, "t", None).values()}
    leaves = pages_of(store, "t", "leaf")
    zero(store, root_of(store, "t") if place == "root" else leaves[{"first": 0, "middle": 5, "last": -1}[place]])
    result = rescue(store, new)
    after = {row[0][1]: row for row in rows_of(new, "t", None).values()}
    assert all(before[key] == row for key, row in after.items())
    told = account(result, "t")
    assert told.lost
    assert told.rows == told.doubtful_rows == len(after)
    assert (told.failed is not None) == (place == "root") == (not after)
    if place != "root":
        assert len(after) > 1500


def test_rows_of_sessions_in_a_page_of_messages_are_not_taken_for_messages(store: Path, new: Path) -> None:
    """Both pages fit where they are, and hold as many rows: SQLite finds nothing wrong."""
    hermes(store, messages=0)
    run(
        store,
        MANY.format("sessions SELECT 'session ' || i, 'cli', 1.5 + i").replace("2000", "199"),
        MANY.format("messages(session_id, role, content, timestamp) SELECT 's', 'user', 'short', 1.5 + i"),
    )
    first = "SELECT ncell FROM dbstat WHERE name = ? AND pagetype = 'leaf' ORDER BY path LIMIT 1"
    for longer in range(0, 160, 8):
        # One byte more for a few rows after the others.
        run(store, f"UPDATE messages SET content = substr('.......', 1, 6 + (id < {longer}))", "VACUUM")
        if ask(store, first, "messages") == ask(store, first, "sessions"):
            break
    else:
        pytest.fail("no pages with as many rows")
    before = {table: rows_of(store, table) for table in ("messages", "sessions")}
    swap(store, pages_of(store, "messages", "leaf")[0], pages_of(store, "sessions", "leaf")[0])
    result = rescue(store, new)
    for table in before:
        hold(before[table], result, table)


@pytest.mark.parametrize("same", ["chain", "page"])
def test_two_rows_that_claim_the_same_pages(store: Path, new: Path, same: str) -> None:
    hermes(store, "UPDATE messages SET content = id || hex(zeroblob(7500)) WHERE id < 3", messages=40)
    before = rows_of(store, "messages")
    chain = pages_of(store, "messages", "overflow")
    first, second = chain[: len(chain) // 2], chain[len(chain) // 2 :]
    assert len(first) == len(second) == 3
    if same == "page":
        put(store, second[0], first[1].to_bytes(4, "big"))
    else:
        leaf = next(n for n in pages_of(store, "messages", "leaf") if second[0].to_bytes(4, "big") in page(store, n))
        put(store, leaf, first[0].to_bytes(4, "big"), page(store, leaf).index(second[0].to_bytes(4, "big")))
    result = rescue(store, new)
    after = rows_of(new, "messages")
    told = account(result, "messages")
    wrong = {number for number in before if before[number] != after.get(number)}
    assert wrong == {2}
    assert named(told, 2)
    assert told.cut == 1
    assert after[2][3][1].startswith(b"2000")  # type: ignore[union-attr]  # it is a text
    assert b"is lost" in after[2][3][1]  # type: ignore[operator]  # it is a text


@pytest.mark.parametrize("written", [bytes(3000), b"\xf0\x9f" * 1500])
def test_a_long_text_that_was_written_over_is_named(store: Path, new: Path, written: bytes) -> None:
    hermes(store, "UPDATE messages SET content = id || hex(zeroblob(9000)) WHERE id = 7", messages=300)
    before = rows_of(store, "messages")
    put(store, pages_of(store, "messages", "overflow")[1], written, 1000)
    # Of that alone SQLite finds nothing wrong.
    zero(store, pages_of(store, "messages", "leaf")[-1])
    result = rescue(store, new)
    hold(before, result)
    assert account(result, "messages").doubtful == [(7, 7)]


def test_the_wiped_end_of_a_long_text_is_missed_where_sqlite_finds_nothing_wrong(store: Path, new: Path) -> None:
    hermes(store, "UPDATE messages SET content = id || hex(zeroblob(9000)) WHERE id = 7", messages=300)
    before = rows_of(store, "messages")
    zero(store, pages_of(store, "messages", "overflow")[-1])
    assert ask(store, "PRAGMA quick_check") == [("ok",)]
    result = rescue(store, new)
    after = hold(before, result)
    told = account(result, "messages")
    assert (result.exit_code, told.cut_rows, told.read_by) == (1, [(7, 7)], "pages")
    assert after.keys() == before.keys()
    assert b"\0" not in bytes(after[7][3][1])  # type: ignore[arg-type]  # it is a text


def test_a_long_text_whose_last_page_leads_out_of_the_file_is_saved_and_named(store: Path, new: Path) -> None:
    hermes(store, "UPDATE messages SET content = id || hex(zeroblob(9000)) WHERE id = 7", messages=300)
    before = rows_of(store, "messages")
    put(store, pages_of(store, "messages", "overflow")[-1], b"\x7f\xff\xff\xf0")
    zero(store, pages_of(store, "messages", "leaf")[-1])
    result = rescue(store, new)
    after = hold(before, result)
    assert after[7] == before[7]
    assert account(result, "messages").doubtful == [(7, 7)]


@pytest.mark.parametrize("vacuum", [0, 2], ids=["none", "incremental"])
def test_deleted_rows_are_never_passed_off_as_there(store: Path, new: Path, vacuum: int) -> None:
    """Neither from pages that were given back, nor where the list of those is lost, too."""
    hermes(store, messages=3000, before=f"PRAGMA auto_vacuum = {vacuum}")
    run(store, "PRAGMA secure_delete = 0", "DELETE FROM messages WHERE id BETWEEN 500 AND 2500")
    assert ask(store, "PRAGMA freelist_count")[0][0] > 5
    before = rows_of(store, "messages")
    zero(store, root_of(store, "messages"))
    listed = rescue(store, new)
    told = account(listed, "messages")
    for number in rows_of(new, "messages").keys() - before.keys():
        assert any(low <= number <= high for low, high in told.doubtful)
    assert told.doubtful_rows
    put(store, 1, bytes(8), 32)
    unlisted = rescue(store, new.with_name("unlisted.db"))
    told = account(unlisted, "messages")
    after = rows_of(new.with_name("unlisted.db"), "messages")
    assert after.keys() > before.keys()
    for number in after.keys() - before.keys():
        assert any(low <= number <= high for low, high in told.doubtful), number


def test_pages_behind_the_end_of_the_database_hold_nothing_that_counts(store: Path, new: Path) -> None:
    """A file that was not cut off yet when its end was given back: what is there was deleted."""
    hermes(store, messages=3000)
    whole = store.read_bytes()
    run(store, "PRAGMA secure_delete = 0", "DELETE FROM messages WHERE id > 1500", "VACUUM")
    # Where a page is listed as free, the list is there.
    run(store, "CREATE TABLE passing(a)", "DROP TABLE passing")
    assert ask(store, "PRAGMA freelist_count") == [(1,)]
    before = rows_of(store, "messages")
    with store.open("ab") as file:
        file.write(whole[store.stat().st_size :])
    zero(store, root_of(store, "messages"))
    result = rescue(store, new)
    told = account(result, "messages")
    after = hold(before, result)
    assert after.keys() > before.keys()
    for number in after.keys() - before.keys():
        assert any(low <= number <= high for low, high in told.doubtful), number


def test_ids_that_were_given_are_not_given_again(store: Path, new: Path) -> None:
    hermes(store, messages=300)
    run(store, "INSERT INTO messages(id, session_id, role, timestamp) VALUES (9000, 's', 'user', 1)")
    run(store, "DELETE FROM messages WHERE id = 9000")
    zero(store, pages_of(store, "messages", "leaf")[-1])
    assert rescue(store, new).exit_code == 1
    run(new, "INSERT INTO messages(session_id, role, timestamp) VALUES ('s', 'user', 1)")
    assert ask(new, "SELECT max(id) FROM messages") == [(9001,)]


def test_what_the_planner_counted_is_no_obstacle(store: Path, new: Path) -> None:
    hermes(store, "CREATE INDEX m ON messages(session_id)", "ANALYZE", messages=300)
    assert ask(store, "SELECT count(*) FROM sqlite_stat1")[0][0]
    assert rescue(store, new).outcome == "rescued"


def test_pages_of_the_schema_are_no_rows_of_a_table(store: Path, new: Path) -> None:
    """Of a table whose rows may be short, where the schema has pages of its own."""
    hermes(store, WIDE, *WIDE_ROWS)
    before = rows_of(store, "t")
    zero(store, root_of(store, "t"))
    after = hold(before, rescue(store, new), "t")
    assert after == before


def zeros(store: Path) -> None:
    with store.open("ab") as file:
        file.write(bytes(5 * 4096))


def own_pages(store: Path) -> None:
    zero(store, root_of(store, "messages"))


DAMAGES: dict[str, Callable[[Path], None]] = {"behind it": zeros, "a root": own_pages}


@pytest.mark.parametrize("name", DAMAGES)
def test_pages_of_zeros_that_belong_to_nothing(store: Path, new: Path, name: str) -> None:
    hermes(store, messages=300)
    before = rows_of(store, "messages")
    DAMAGES[name](store)
    assert hold(before, rescue(store, new)) == before


@pytest.mark.parametrize("seed", range(12))
def test_pages_that_are_hit_at_random(store: Path, new: Path, seed: int) -> None:
    chance = random.Random(seed)
    hermes(
        store,
        "UPDATE messages SET content = id || hex(zeroblob(6000)) WHERE id % 40 = 0",
        "DELETE FROM messages WHERE id % 7 = 0 AND id > 300",
        messages=600,
        page_size=1024,
    )
    size, count = 1024, store.stat().st_size // 1024
    before = {table: rows_of(store, table) for table in ("messages", "sessions")}
    long = set(pages_of(store, "messages", "overflow"))
    for _ in range(chance.randint(1, 8)):
        number, other = chance.randint(2, count), chance.randint(2, count)
        at = chance.choice((0, 0, 512))
        if number in long:
            # Of a text that is another's from its middle on, nothing in the file tells.
            at = 0
        put(store, number, chance.choice((bytes(size), page(store, other), chance.randbytes(size)))[at:], at)
    result = rescue(store, new)
    for table in before:
        if result.table(table) is not None:
            hold(before[table], result, table)
