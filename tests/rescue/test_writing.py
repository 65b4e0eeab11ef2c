"""The new file: rows go in as they are, none is put in twice, and what is broken off leaves nothing half done."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from hermes_doctor.rescue.forms import Form, read_form
from hermes_doctor.rescue.schema import Entry
from hermes_doctor.rescue.writing import NewFile, Row, is_unique
from hermes_doctor.store.cells import BadText, Cell


@pytest.fixture(params=["UTF-8", "UTF-16le", "UTF-16be"])
def new(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[NewFile]:
    file = NewFile(tmp_path / "new.db", page_size=1024, encoding=request.param, stop=lambda: False)
    yield file
    file.close()


def made(new: NewFile, sql: str) -> Form:
    assert new.make([Entry("table", "t", "t", 0, sql)]) == {}
    return read_form(new.connection, "t")


def kept(new: NewFile) -> list[tuple[object, ...]]:
    """As SQLite has them: rowid, type and bytes."""
    rows = new.connection.execute("SELECT _rowid_, typeof(a), CAST(a AS BLOB) FROM t ORDER BY 1").fetchall()
    return [tuple(row) for row in rows]


def test_values_go_in_as_they_are(new: NewFile) -> None:
    form = made(new, "CREATE TABLE t(a)")
    codec = {"UTF-8": "utf-8", "UTF-16le": "utf-16-le", "UTF-16be": "utf-16-be"}[str(new.connection.pragma("encoding"))]
    texts = ["", "ä€😀", "a\0b", "\ufffe\uffff\ufeff", "\ufeffbom"]
    bad = b"\x00\xd8A\x00" if codec == "utf-16-le" else b"\xd8\x00\x00A" if codec == "utf-16-be" else b"a\xff"
    values: list[Cell] = [*texts, BadText(bad), b"\xff\0", None, 5, -0.5, (1 << 63) - 1]
    assert new.put(form, [(n, [value]) for n, value in enumerate(values, 1)]) == len(values)
    rows = kept(new)
    assert [row[2] for row in rows[: len(texts)]] == [text.encode(codec) for text in texts]
    assert [row[1] for row in rows] == ["text"] * 6 + ["blob", "null", "integer", "real", "integer"]
    assert rows[5][2] == bad
    assert rows[6][2] == b"\xff\0"
    assert new.connection.execute("SELECT a FROM t WHERE _rowid_ > 7 ORDER BY _rowid_").fetchall() == [
        (value,) for value in values[7:]
    ]


def test_the_first_row_of_two_stays(new: NewFile) -> None:
    form = made(new, "CREATE TABLE t(a, b UNIQUE)")
    heard: list[int] = []
    refused: list[int] = []
    rows: list[Row] = [(1, ["one", 1]), (1, ["again", 2]), (2, ["two", 1]), (3, ["three", 3])]
    assert new.put(form, rows, heard.append, refused.append) == 2
    assert (heard, refused) == ([1, 3], [1, 2])
    assert [row[0] for row in kept(new)] == [1, 3]


def test_rows_without_a_name_for_their_rowid_are_put_in_once(new: NewFile) -> None:
    form = made(new, 'CREATE TABLE t(a, "rowid", oid, "_rowid_")')
    assert form.rowid_name is None
    assert new.put(form, [(5, ["x", 1, 2, 3]), (6, ["y", 1, 2, 3]), (5, ["x", 1, 2, 3])]) == 2


def test_columns_that_a_row_lacks_get_their_default(new: NewFile) -> None:
    form = made(new, "CREATE TABLE t(a, b TEXT NOT NULL DEFAULT 'd', c AS (a || b) STORED, e DEFAULT 7)")
    new.put(form, [(1, ["x"]), (2, ["y", "z", "ignored"]), (3, ["y", "z", "ignored", None])])
    rows = new.connection.execute("SELECT b, c, e FROM t ORDER BY rowid").fetchall()
    assert rows == [("d", "xd", 7), ("z", "yz", 7), ("z", "yz", None)]


def test_what_a_table_insists_on(new: NewFile) -> None:
    form = made(new, "CREATE TABLE t(a INT NOT NULL CHECK (a > 5), b TEXT) STRICT")
    refused: list[int] = []
    rows: list[Row] = [(1, [None, "x"]), (2, ["no number", "x"]), (3, [1, "breaks the CHECK"]), (4, [7, b"no text"])]
    assert new.put(form, rows, refused=refused.append) == 1
    assert refused == [1, 2, 4]
    assert kept(new)[0][0] == 3


def test_what_fails_leaves_nothing_half_done(new: NewFile) -> None:
    form = made(new, "CREATE TABLE t(a)")

    def rows() -> Iterator[Row]:
        yield 1, ["x"]
        raise apsw.CorruptError

    with pytest.raises(apsw.CorruptError), new.transaction():
        new.put(form, rows())
    assert not new.connection.in_transaction
    assert kept(new) == []
    with new.transaction():
        new.put(form, [(1, ["x"])])
    assert len(kept(new)) == 1


def test_it_is_broken_off_in_the_midst_of_a_statement(tmp_path: Path) -> None:
    ended = [False]
    new = NewFile(tmp_path / "new.db", page_size=4096, encoding="UTF-8", stop=lambda: ended[0])
    made(new, "CREATE TABLE t(a)")
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) INSERT INTO t SELECT i FROM n"
    ended[0] = True
    # A short statement may come to its end before anybody is asked.
    with pytest.raises(apsw.InterruptError), new.transaction():
        new.connection.execute(endless)
    assert kept(new) == []
    new.close()


def test_what_cannot_be_made_is_told(new: NewFile) -> None:
    made(new, "CREATE TABLE t(a)")
    failed = new.make(
        [
            Entry("index", "i", "t", 0, "CREATE INDEX i ON t(nothing)"),
            Entry("index", "j", "t", 0, "CREATE INDEX j ON t(a)"),
            Entry("table", "t", "t", 0, "CREATE TABLE t(a)"),
        ]
    )
    assert failed.keys() == {"i", "t"}


def test_which_index_allows_each_value_once() -> None:
    assert is_unique(Entry("index", "i", "t", 0, "CREATE UNIQUE INDEX i ON t(a)"))
    assert is_unique(Entry("index", "i", "t", 0, "create unique index i on t(a)"))
    assert not is_unique(Entry("index", "unique", "t", 0, 'CREATE INDEX "unique" ON t(a)'))


def test_counters_never_go_back(new: NewFile) -> None:
    made(new, "CREATE TABLE t(a, id INTEGER PRIMARY KEY AUTOINCREMENT)")
    new.connection.execute("INSERT INTO t(id) VALUES (7)")
    new.set_counters({"t": 5})
    assert new.connection.execute("SELECT seq FROM sqlite_sequence").get == 7
    new.set_counters({"t": 50, "another": 3})
    assert dict(new.connection.execute("SELECT * FROM sqlite_sequence")) == {"t": 50, "another": 3}


def test_the_settings_of_a_file(new: NewFile) -> None:
    made(new, "CREATE TABLE t(a)")
    new.settle(application_id=-5, user_version=9, wal=True)
    new.close()
    connection = apsw.Connection(str(new.path))
    told = [connection.pragma(name) for name in ("page_size", "application_id", "user_version", "journal_mode")]
    assert told == [1024, -5, 9, "wal"]
    assert new.path.stat().st_mode & 0o777 == 0o600
    connection.close()
