"""Faults of text are seen by their bytes, told by kind and place, and nothing else is suspected."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import apsw
import pytest

from hermes_doctor.store import text_faults
from hermes_doctor.store.cells import Cell
from hermes_doctor.store.reader import Pace, Reader, Values
from hermes_doctor.store.shape import read_shape
from hermes_doctor.store.text_faults import (
    SENTINEL,
    SUSPECTS,
    Fault,
    TextFault,
    escapes_sql,
    faults_of,
    suspect_row_sql,
    suspect_sql,
)

BYTES, SURROGATE, ESCAPE, NUL = TextFault.BYTES, TextFault.SURROGATE, TextFault.ESCAPE, TextFault.NUL

#: The cell's bytes (text), and the faults by kind with their offsets. In the column `content`.
CONTENTS: dict[bytes, dict[TextFault, int]] = {
    b"": {},
    b"plain": {},
    "äö 你好 😀 \ufffd".encode(): {},
    b"caf\xe9": {BYTES: 3},
    b"caf\xe9 au lait": {BYTES: 3},
    b"a\x80b": {BYTES: 1},
    b"\xff": {BYTES: 0},
    # Cut in the middle of a character.
    "你".encode()[:2]: {BYTES: 0},
    b"\xc0\x80": {BYTES: 0},
    b"\xf4\x90\x80\x80": {BYTES: 0},
    "ä".encode() + b"\xed\xa0\xbd": {SURROGATE: 2},
    b"\xed\xa0\xbd\xed\xb8\x80": {SURROGATE: 0},
    b"\xff\xed\xa0\x80": {SURROGATE: 1, BYTES: 0},
    # The last characters before and the first behind the surrogates.
    b"\xed\x9f\xbf\xee\x80\x80": {},
    b"a\0b": {NUL: 1},
    "你\0".encode(): {NUL: 3},
    b"\0a": {NUL: 0},
    b"\0": {NUL: 0},
    SENTINEL.encode(): {},
    SENTINEL.encode() + b'[{"text":"\\n \\u00e4 \\ud83d\\ude00"}]': {},
    SENTINEL.encode() + b'["\0"]': {NUL: 8},
    SENTINEL.encode() + b'["\\ud83d"]': {ESCAPE: 8},
    SENTINEL.encode() + b'["\\uD83D"]': {ESCAPE: 8},
    SENTINEL.encode() + b'["\\uDe00"]': {ESCAPE: 8},
    SENTINEL.encode() + b'["\\ude00\\ud83d"]': {ESCAPE: 8},
    SENTINEL.encode() + b'["\\ud83d\\ud83d\\ude00"]': {ESCAPE: 8},
    SENTINEL.encode() + b'["\\ud83d\\ude00\\ud83d"]': {ESCAPE: 20},
    # A backslash and letters: no escape.
    SENTINEL.encode() + b'["\\\\ud83d"]': {},
    SENTINEL.encode() + b'["\\\\\\ud83d"]': {ESCAPE: 10},
    SENTINEL.encode() + b'["\\"\\ud83d"]': {ESCAPE: 10},
    # Plain text may say what it likes.
    b"\\ud83d": {},
}


@pytest.fixture(params=["UTF-8", "UTF-16le", "UTF-16be"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[apsw.Connection, str]]:
    connection = apsw.Connection(str(tmp_path / "store.db"))
    connection.pragma("encoding", request.param)
    connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, content TEXT, data TEXT)")
    for name, called in SUSPECTS.items():
        connection.create_scalar_function(name, called, 1, deterministic=True)
    yield connection, request.param
    connection.close()


def read(connection: apsw.Connection, encoding: str) -> list[Values]:
    return list(Reader(connection, Pace.FREE, encoding, rests=False).rows("SELECT id, content FROM t"))


def suspected(connection: apsw.Connection, condition: str | None) -> set[int]:
    assert condition is not None
    return {row[0] for row in connection.execute(f"SELECT id FROM t WHERE {condition}")}


@pytest.mark.parametrize("store", ["UTF-8"], indirect=True)
def test_every_fault_is_told_and_no_fault_is_missed_beforehand(
    store: tuple[apsw.Connection, str],
) -> None:
    connection, encoding = store
    connection.executemany("INSERT INTO t (content) VALUES (CAST(? AS TEXT))", [(raw,) for raw in CONTENTS])
    shape = read_shape(connection)
    wanted = dict(enumerate(CONTENTS.values(), 1))
    told = {}
    for key, cell in read(connection, encoding):
        found = faults_of({"content": cell}, ["content"], [], encoding)
        told[key] = {fault.kind: fault.offset for fault in found}
    assert told == wanted
    faulty = {key for key, faults in wanted.items() if faults}
    for condition in (suspect_sql(shape, "t", ["content"]), suspect_row_sql(shape, "t", ["content", "none"])):
        assert suspected(connection, condition) >= faulty
    # Of what is healthy only pairs and doubled backslashes in structured content are looked at once more.
    pairs = {key for key, raw in enumerate(CONTENTS, 1) if b"\\ud" in raw and raw.startswith(b"\0")}
    assert suspected(connection, suspect_sql(shape, "t", ["content"])) <= faulty | pairs


@pytest.mark.parametrize("store", ["UTF-16le", "UTF-16be"], indirect=True)
def test_utf_16_is_judged_by_its_own_rules(store: tuple[apsw.Connection, str]) -> None:
    connection, encoding = store
    codec = encoding.replace("UTF-16", "utf-16-")
    cases: dict[bytes, list[Fault]] = {
        "plain ä 你好 😀".encode(codec): [],
        "ab".encode(codec) + "\ud83d".encode(codec, "surrogatepass"): [Fault("content", SURROGATE, 4)],
        "\ud83dab".encode(codec, "surrogatepass"): [Fault("content", SURROGATE, 0)],
        "你\0b".encode(codec): [Fault("content", NUL, 2)],
        f"{SENTINEL}[1]".encode(codec): [],
    }
    connection.executemany("INSERT INTO t (content) VALUES (CAST(? AS TEXT))", [(raw,) for raw in cases])
    told = [faults_of({"content": cell}, ["content"], [], encoding) for _key, cell in read(connection, encoding)]
    assert told == list(cases.values())
    faulty = {key for key, faults in enumerate(cases.values(), 1) if faults}
    condition = suspect_row_sql(read_shape(connection), "t", ["content", "data"])
    assert faulty <= suspected(connection, condition) <= faulty | {5}


@pytest.mark.parametrize("store", ["UTF-8"], indirect=True)
def test_faults_do_not_make_each_other_good(store: tuple[apsw.Connection, str]) -> None:
    """Half a character at the end of one cell, and its other half in the next."""
    connection, _encoding = store
    first, second = "你".encode()[:2], "你".encode()[2:]
    connection.execute("INSERT INTO t (content, data) VALUES (CAST(? AS TEXT), CAST(? AS TEXT))", (first, second))
    assert suspected(connection, suspect_row_sql(read_shape(connection), "t", ["content", "data"])) == {1}


@pytest.mark.parametrize("store", ["UTF-8"], indirect=True)
def test_numbers_blobs_and_null_are_not_ours(store: tuple[apsw.Connection, str]) -> None:
    connection, encoding = store
    cells: list[Cell] = [None, 5, 5.5, b"\xff", b"a\0b", b"[\\ud83d]"]
    connection.executemany("INSERT INTO t (content, data) VALUES (?1, ?1)", [(cell,) for cell in cells])
    shape = read_shape(connection)
    # Nothing raises, whatever is suspected.
    for condition in (suspect_sql(shape, "t", ["content"]), suspect_row_sql(shape, "t", ["content", "data"])):
        suspected(connection, condition)
    suspected(connection, escapes_sql(shape, "t", ["data"]))
    for cell in cells:
        assert faults_of({"content": cell, "data": cell}, ["content", "data"], ["data"], encoding) == []


def test_null_where_the_table_allows_none(store: tuple[apsw.Connection, str]) -> None:
    """As a damaged page may have it; SQLite takes the table's word, and calls us."""
    connection, _encoding = store
    connection.execute("INSERT INTO t (content) VALUES (NULL), ('plain'), (char(0))")
    connection.pragma("writable_schema", True)
    connection.execute("UPDATE sqlite_schema SET sql = replace(sql, 'content TEXT', 'content TEXT NOT NULL')")
    connection.pragma("writable_schema", "reset")
    assert connection.execute("SELECT count(*) FROM t WHERE content IS NULL").get == 0
    assert suspected(connection, suspect_sql(read_shape(connection), "t", ["content"])) == {3}


@pytest.mark.parametrize("store", ["UTF-8"], indirect=True)
def test_escapes_in_json_are_met_wherever_they_stand(store: tuple[apsw.Connection, str]) -> None:
    connection, encoding = store
    texts = ['["\\ud83d"]', '["\\n\\n\\uDC00"]', '["\\ud83d\\ude00"]', '["\\u00e4"]', "[]"]
    connection.executemany("INSERT INTO t (data) VALUES (?)", [(text,) for text in texts])
    assert suspected(connection, escapes_sql(read_shape(connection), "t", ["data"])) == {1, 2, 3}
    found = [[f.offset for f in faults_of({"data": text}, ["data"], ["data"], encoding)] for text in texts]
    assert found == [[2], [6], [], [], []]
    # Where it is no JSON, backslashes are characters.
    assert faults_of({"data": texts[0]}, ["data"], [], encoding) == []


def test_columns_that_are_not_there_are_not_asked_for(store: tuple[apsw.Connection, str]) -> None:
    shape = read_shape(store[0])
    assert suspect_sql(shape, "t", ["none"]) is suspect_row_sql(shape, "t", ["none"]) is None
    assert escapes_sql(shape, "u", ["data"]) is None


def test_a_long_text_of_escapes_is_read_in_one_go() -> None:
    """No stack and no backtracking grows with the text."""
    text = SENTINEL + '"' + r"\ud83d\ude00\n" * 200_000
    assert faults_of({"content": text + '"'}, ["content"], [], "UTF-8") == []
    (fault,) = faults_of({"content": text + '\\ud83d"'}, ["content"], [], "UTF-8")
    assert fault == Fault("content", ESCAPE, len(text))


def test_long_texts_are_decoded_in_pieces_as_they_are_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever a piece ends, be it within a character; a character that is cut through shows at any place."""
    monkeypatch.setattr(text_faults, "_PIECE", 4)
    parts = ["a", "ä", "你", "😀"]
    for text in ("".join(chosen) for chosen in product(parts, repeat=5)):
        raw = text.encode()
        assert not text_faults.is_clean(raw + b"\xff")
        for end in range(len(raw) + 1):
            cut = raw[:end]
            whole = cut == cut.decode(errors="ignore").encode()
            assert text_faults.is_clean(cut) is whole
