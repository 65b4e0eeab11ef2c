"""What SQLite says of a file, word by word, and that asking it can be stopped."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from hermes_doctor.store.integrity import Answer, Kind, Problem, after, ask, read_line

#: As SQLite 3.54.1 writes them.
LINES = {
    "Tree 5 page 82: btreeInitPage() returns error code 11": Problem(Kind.TREE, 5, 82),
    "Tree 5 page 82: free space corruption": Problem(Kind.TREE, 5, 82),
    "Tree 5 page 82 cell 21: Rowid 0 out of order": Problem(Kind.TREE, 5, 82),
    "Tree 5 page 462 cell 0: invalid page number 2147483632": Problem(Kind.TREE, 5, 462),
    "Tree 5 page 182 cell 0: overflow list length is 3 but should be 5": Problem(Kind.TREE, 5, 182),
    "Tree 5 page 5 right child: Child page depth differs": Problem(Kind.TREE, 5, 5),
    "Tree 5 page 5 cell 1: 2nd reference to page 47": Problem(Kind.SHARED, 5, 47),
    "Freelist: size is 1 but should be 22": Problem(Kind.FREE),
    "Freelist: freelist leaf count too big on page 596": Problem(Kind.FREE),
    "Page 466: never used": Problem(Kind.UNUSED, page=466),
    "Page 4: pointer map referenced": Problem(Kind.UNUSED, page=4),
    "Fragmentation of 85 bytes reported as 0 on page 5": Problem(Kind.PAGE, page=5),
    "Multiple uses for byte 3269 of page 304": Problem(Kind.PAGE, page=304),
    "wrong # of entries in index idx_a": Problem(Kind.COUNT, name="idx_a"),
    "row 7 missing from index idx of\nmine": Problem(Kind.INDEX, name="idx of\nmine"),
    "row 7 values differ from index idx_a": Problem(Kind.INDEX, name="idx_a"),
    "rowid not at end-of-record for row 7 of index idx_a": Problem(Kind.INDEX, name="idx_a"),
    "non-unique entry in index idx_a": Problem(Kind.INDEX, name="idx_a"),
    "row not in PRIMARY KEY order for messages_fts_config": Problem(Kind.ROWS, name="messages_fts_config"),
    "database disk image is malformed": Problem(Kind.STOPPED),
    "something that only a later SQLite says": Problem(Kind.OTHER),
    "ok": None,
    "": None,
    "*** in database main ***": None,
    "NULL value in messages.timestamp": None,
    "NUMERIC value in sessions.origin_json": None,
    "TEXT value in sessions.started_at": None,
    "non-INT value in strict.id": None,
    "CHECK constraint failed in sessions": None,
    "malformed inverted index for FTS5 table main.messages_fts_trigram": None,
    "unable to validate the inverted index for FTS5 table main.messages_fts_cjk: SQL logic error": None,
}


@pytest.mark.parametrize("line", LINES)
def test_a_line_is_read(line: str) -> None:
    assert read_line(line) == LINES[line]


@pytest.fixture
def connection(tmp_path: Path) -> apsw.Connection:
    connection = apsw.Connection(str(tmp_path / "file.db"))
    connection.execute('CREATE TABLE "a ""quoted"" name"(id INTEGER PRIMARY KEY, text)')
    connection.execute('CREATE INDEX by_text ON "a ""quoted"" name"(text)')
    connection.execute(
        'INSERT INTO "a ""quoted"" name"(text) WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n'
        " WHERE i < 3000) SELECT hex(randomblob(20)) FROM n"
    )
    return connection


def test_a_sound_file_has_no_problems(connection: apsw.Connection) -> None:
    for about in (100, 'a "quoted" name', "sqlite_schema"):
        assert ask(connection, about) == Answer([], finished=True)


def test_it_stops_when_it_is_told_to(connection: apsw.Connection) -> None:
    assert ask(connection, 100, stop=after(-1)) == Answer([], finished=False)
    assert ask(connection, 100, stop=after(60)).finished
    # Nothing of it is left behind.
    assert connection.execute('SELECT count(*) FROM "a ""quoted"" name"').get == 3000


def test_ctrl_c_is_heard_meanwhile(connection: apsw.Connection) -> None:
    def stop() -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ask(connection, 100, stop=stop)


def test_what_the_connection_does_not_know_is_no_damage(connection: apsw.Connection, tmp_path: Path) -> None:
    connection.create_scalar_function("known_here", _first, 1, deterministic=True)
    connection.execute('CREATE INDEX by_function ON "a ""quoted"" name"(known_here(text))')
    connection.close()
    other = apsw.Connection(str(tmp_path / "file.db"))
    assert ask(other, 'a "quoted" name') == Answer([], finished=False)


def _first(*values: apsw.SQLiteValue) -> apsw.SQLiteValue:
    return values[0]
