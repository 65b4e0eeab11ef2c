"""The search indexes of real stores: their layouts, keeping one in step with sessions, and seeing whether it is."""

from __future__ import annotations

import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import pytest

from hermes_doctor.store.cells import Cell, quote
from hermes_doctor.store.reader import Pace, Reader
from hermes_doctor.store.search_index import (
    INDEXES,
    Layout,
    check,
    check_rows,
    kept_in_step,
    layouts,
    match_trigrams,
    pending_range,
    stops_at_nul,
    unchecked,
)
from hermes_doctor.store.shape import read_shape
from hermes_doctor.store.view import StoreView
from hermes_doctor.store.writing import open_for_writing
from tests.checks.support import built_once
from tests.oracle.home import Home
from tests.oracle.releases import CHAINS, RELEASES, Chain
from tests.oracle.steps import call, sql
from tests.oracle.templates import LivedIn

STORIES: tuple[Chain, ...] = (*((release.version,) for release in RELEASES), *CHAINS)
DEPENDENT = ("0.21.5", "0.22.2")
BASE, TRIGRAM, CJK = INDEXES
#: Whether the releases run here on a SQLite whose trigrams stop at a NUL.
OLD_SQLITE = sqlite3.sqlite_version_info < (3, 48)
DELEGATED = """json_set(coalesce(model_config, '{}'), '$._delegate_from', 'someone')"""


@contextmanager
def writing(path: Path) -> Iterator[StoreView]:
    """The view that a repair has: on a connection that may write."""
    connection = open_for_writing(path)
    try:
        shape = read_shape(connection)
        yield StoreView(Reader(connection, Pace.FREE, encoding=shape.encoding), shape, now=0.0)
    finally:
        connection.close()


def run(view: StoreView, statement: str, *values: Cell) -> list[tuple[Cell, ...]]:
    return view.reader.connection.execute(statement, values).fetchall()


def failing(view: StoreView) -> list[str]:
    return check(view.reader.connection, view.shape)


def message_ids(view: StoreView) -> list[int]:
    return [int(str(row[0])) for row in run(view, "SELECT id FROM messages ORDER BY id")]


def indexed(view: StoreView, name: str = TRIGRAM) -> set[Cell]:
    return {row[0] for row in run(view, f"SELECT id FROM {name}_docsize")}


def found(view: StoreView, text: str, name: str = TRIGRAM) -> list[Cell]:
    """The messages that a search of the index alone finds."""
    return sorted((row[0] for row in run(view, f"SELECT rowid FROM {name} WHERE {name} MATCH ?", f'"{text}"')), key=str)


def index_contents(view: StoreView) -> list[object]:
    """Everything that an index is made of."""
    return [
        run(view, f"SELECT * FROM {quote(name + suffix)} ORDER BY 1, 2")
        for name in INDEXES
        if name in view.shape.virtual_tables
        for suffix in ("_data", "_idx", "_docsize")
    ]


@pytest.fixture
def chat(oracle: None, shared_folder: Path, tmp_path: Path) -> Home:
    """A chat and a tool's result on the newest release; its messages have the ids 1 to 3."""
    return copy_of(shared_folder / "chat", tmp_path, lambda home: write_chat(home, "0.22.2"))


def copy_of(folder: Path, to: Path, write: Callable[[Home], None]) -> Home:
    """A copy of a home that is written once."""

    def build(home: Home) -> float:
        write(home)
        return time.time()

    made, _now = built_once(folder, build)
    return Home(shutil.copytree(made.path, to / "home"))


def write_chat(home: Home, version: str) -> None:
    home.run(
        version,
        [
            call("create_session", "s1", "cli"),
            call("append_message", "s1", "user", "a needle in the hay"),
            call("append_message", "s1", "tool", "hay " * 4000, tool_name="search"),
            call("append_message", "s1", "assistant", "found the needle"),
            call("create_session", "other", "cli"),
            call("append_message", "other", "user", "another needle"),
        ],
    )


EXPECTED: dict[str, tuple[Layout, Layout]] = {
    "0.13.0": (Layout.INLINE, Layout.INLINE),
    "0.15.2": (Layout.INLINE, Layout.INLINE),
    "0.16.0": (Layout.INLINE, Layout.INLINE),
    "0.17.0": (Layout.INLINE, Layout.INLINE),
    "0.18.0": (Layout.INLINE, Layout.INLINE),
    "0.18.2": (Layout.INLINE, Layout.INLINE),
    "0.19.0": (Layout.INLINE, Layout.INLINE),
    "0.20.0": (Layout.EXTERNAL_1, Layout.EXTERNAL_1),
    "0.20.6": (Layout.EXTERNAL_1, Layout.EXTERNAL_1),
    "0.21.5": (Layout.EXTERNAL_3, Layout.EXTERNAL_3),
    "0.22.2": (Layout.EXTERNAL_3, Layout.EXTERNAL_3),
    "0.13.0+0.16.0+0.19.0+0.22.2": (Layout.INLINE, Layout.INLINE),
    "0.18.2+0.20.6+0.21.5": (Layout.INLINE, Layout.INLINE),
    "0.19.0+0.22.2+0.19.0": (Layout.INLINE, Layout.INLINE),
}


@pytest.mark.parametrize("matched", [False, True])
@pytest.mark.parametrize("story", STORIES, ids="+".join)
def test_real_stores_are_recognised_and_in_step(lived_in: LivedIn, story: Chain, matched: bool) -> None:
    """They hold structured content, which begins with a NUL, and were written by the SQLite of this Python."""
    with writing(lived_in(*story).home.store) as view:
        base, trigram = EXPECTED["+".join(story)]
        assert layouts(view.shape) == {BASE: base, TRIGRAM: trigram, CJK: Layout.ABSENT}
        assert pending_range(view) is None
        before = index_contents(view)
        if matched:
            assert match_trigrams(view.reader.connection, view.shape) is OLD_SQLITE
        assert failing(view) == []
        assert unchecked(view.reader.connection, view.shape) == {}
        ids = message_ids(view)
        assert len(ids) > 10
        assert check_rows(view.reader.connection, view.shape, [*ids, max(ids) + 1, 10**9]) == []
        assert index_contents(view) == before


def test_a_file_of_0_20_that_0_22_opened_has_two_layouts(home: Home) -> None:
    """Its marker says 3, its trigram table is as it was."""
    write_chat(home, "0.20.6")
    home.run("0.22.2", [call("append_message", "s1", "user", "more")])
    with writing(home.store) as view:
        assert layouts(view.shape) == {BASE: Layout.EXTERNAL_3, TRIGRAM: Layout.EXTERNAL_1, CJK: Layout.ABSENT}
        assert run(view, "SELECT value FROM state_meta WHERE key = 'fts_storage_version'") == [("3",)]
        before = index_contents(view)
        with kept_in_step(view.reader.connection, view, ["s1"]):
            run(view, "UPDATE sessions SET source = 'cron' WHERE id = 's1'")
        assert index_contents(view) == before
        assert failing(view) == []


@pytest.mark.parametrize(
    ("declared", "view_text", "layout"),
    [
        ("content", None, Layout.INLINE),
        ("content, tokenize=\"unicode61 tokenchars '=,'\"", None, Layout.INLINE),
        (
            "\"content\", [tool_name], tool_calls, CONTENT = 'messages_src', content_rowid=id",
            "messages",
            Layout.EXTERNAL_1,
        ),
        ("content, tool_name, content='messages_src', content_rowid='id'", "messages", Layout.EXTERNAL_2),
        ("content, tool_name, content=messages_src", "messages JOIN sessions AS s ON s.id = role", Layout.EXTERNAL_3),
        # What no release makes: it may take for ever, or ask for what is not there.
        ("content, tool_name, content=messages_src", "messages JOIN sessions AS s ON 1 JOIN sessions", Layout.UNKNOWN),
        ("content, tool_name, content=messages_src", "messages, messages AS other", Layout.UNKNOWN),
        ("content, tool_name, content=messages_src", "messages WHERE id IN (SELECT id FROM messages)", Layout.UNKNOWN),
        ("content, tool_name, content=messages_src", "messages UNION ALL SELECT * FROM messages", Layout.UNKNOWN),
        ("content, tool_name, content=messages_src", "messages WHERE absent = 1", Layout.UNKNOWN),
        ("content, tool_name, content=messages_src", "messages JOIN sessions AS s ON s.role = role", Layout.UNKNOWN),
        ("content, tool_name, content=messages_src", "messages JOIN sessions ON sessions.role = role", Layout.UNKNOWN),
        ("content, display_kind, content=messages_src", "messages", Layout.UNKNOWN),
        ("content, tool_name, content='messages_src'", None, Layout.UNKNOWN),
        ("content, content=''", None, Layout.UNKNOWN),
        ("body", None, Layout.UNKNOWN),
    ],
)
def test_layouts_are_read_from_the_declaration(declared: str, view_text: str | None, layout: Layout) -> None:
    connection = apsw.Connection(":memory:")
    connection.execute("CREATE TABLE messages(id INTEGER PRIMARY KEY, role, content, tool_name, tool_calls)")
    connection.execute("CREATE TABLE sessions(id)")
    if view_text is not None:
        connection.execute(
            f"CREATE VIEW messages_src AS SELECT messages.id, content, tool_name, tool_calls FROM {view_text}"
        )
    connection.execute(f"CREATE VIRTUAL TABLE Messages_FTS_trigram USING FTS5({declared})")
    assert layouts(read_shape(connection))[TRIGRAM] is layout
    connection.close()


def test_a_store_without_an_index(chat: Home) -> None:
    """Legal: SQLite without FTS5, or a tokenizer that was missing."""
    with writing(chat.store) as view:
        for name in (BASE, TRIGRAM):
            for trigger in ("insert", "update", "delete"):
                run(view, f"DROP TRIGGER {name}_{trigger}")
            run(view, f"DROP TABLE {name}")
    with writing(chat.store) as view:
        assert set(layouts(view.shape).values()) == {Layout.ABSENT}
        with kept_in_step(view.reader.connection, view, ["s1"]):
            run(view, "UPDATE sessions SET source = 'cron'")
        assert failing(view) == []
        assert check_rows(view.reader.connection, view.shape, [1, 2, 3]) == []
        assert pending_range(view) is None


@pytest.mark.parametrize(
    ("progress", "high_water", "pending"),
    [("2", "9", (2, 9)), (None, "9", (-1, 9)), ("9", "9", None), ("2", None, None), ("junk", "9", (0, 9))],
)
def test_a_deferred_rebuild(
    chat: Home, progress: str | None, high_water: str | None, pending: tuple[int, int] | None
) -> None:
    with writing(chat.store) as view:
        for key, value in (("fts_rebuild_progress", progress), ("fts_rebuild_high_water", high_water)):
            if value is not None:
                run(view, "INSERT INTO state_meta(key, value) VALUES (?, ?)", key, value)
        assert pending_range(view) == pending
        assert pending_range(view, CJK) is None


def test_an_inline_index_has_no_deferred_rebuild(home: Home) -> None:
    write_chat(home, "0.19.0")
    with writing(home.store) as view:
        run(view, "INSERT INTO state_meta(key, value) VALUES ('fts_rebuild_high_water', '9')")
        assert pending_range(view) is None


CHANGES = [
    ("UPDATE sessions SET source = 'cron' WHERE id = 's1'", "UPDATE sessions SET source = 'cli' WHERE id = 's1'"),
    (
        f"UPDATE sessions SET model_config = {DELEGATED} WHERE id = 's1'",
        "UPDATE sessions SET model_config = json_remove(model_config, '$._delegate_from') WHERE id = 's1'",
    ),
]


@pytest.mark.parametrize(("there", "back"), CHANGES, ids=["source", "delegate"])
@pytest.mark.parametrize("version", DEPENDENT)
def test_messages_follow_their_session(home: Home, version: str, there: str, back: str) -> None:
    write_chat(home, version)
    with writing(home.store) as view:
        assert found(view, "eedl") == [1, 3, 4]
        with kept_in_step(view.reader.connection, view, ["s1"]):
            run(view, there)
        assert failing(view) == []
        assert found(view, "eedl") == [4]
        assert indexed(view) == {4}
        with kept_in_step(view.reader.connection, view, ["s1"]):
            run(view, back)
        assert failing(view) == []
        assert found(view, "eedl") == [1, 3, 4]
        assert indexed(view, BASE) == {1, 2, 3, 4}
    # And the release goes on with it.
    hits, _, _ = home.run(
        version,
        [
            call("search_messages", "needle"),
            call("append_message", "s1", "user", "one more needle"),
            call("delete_session", "s1"),
        ],
    )
    assert {hit["session_id"] for hit in hits} == {"s1", "other"}
    with writing(home.store) as view:
        assert failing(view) == []
        assert found(view, "eedl") == [4]


@pytest.mark.parametrize(("there", "back"), CHANGES, ids=["source", "delegate"])
@pytest.mark.parametrize("version", DEPENDENT)
def test_without_it_the_index_fails_its_check(home: Home, version: str, there: str, back: str) -> None:
    write_chat(home, version)
    with writing(home.store) as view:
        run(view, there)
        assert failing(view) == [TRIGRAM]
        assert check_rows(view.reader.connection, view.shape, [1, 2, 3, 4]) == [1, 3]
        run(view, back)
        assert failing(view) == []


@pytest.mark.parametrize("version", ["0.13.0", "0.19.0", "0.20.0", "0.20.6"])
def test_the_other_layouts_are_left_alone(home: Home, version: str) -> None:
    write_chat(home, version)
    with writing(home.store) as view:
        before = index_contents(view)
        with kept_in_step(view.reader.connection, view, ["s1", "other"]):
            run(view, "UPDATE sessions SET source = 'cron'")
        assert index_contents(view) == before
        assert failing(view) == []
        assert check_rows(view.reader.connection, view.shape, [1, 2, 3, 4]) == []


def test_a_change_that_moves_nothing_leaves_the_index_right(chat: Home) -> None:
    with writing(chat.store) as view:
        with kept_in_step(view.reader.connection, view, ["s1"]):
            run(view, "UPDATE sessions SET source = 'tui' WHERE id = 's1'")
        assert failing(view) == []
        assert found(view, "eedl") == [1, 3, 4]


def test_many_sessions_at_once(home: Home) -> None:
    names = [f"s{n}" for n in range(1203)]
    steps = [call("create_session", "s0", "cli"), call("append_message", "s0", "user", "needle")]
    home.run("0.22.2", steps)
    with writing(home.store) as view:
        run(view, "BEGIN IMMEDIATE")
        for name in names[1:]:
            run(view, "INSERT INTO sessions(id, source, started_at) VALUES (?, 'cli', 1.0)", name)
            run(
                view,
                "INSERT INTO messages(session_id, role, content, timestamp) VALUES (?, 'user', 'needle', 1.0)",
                name,
            )
        with kept_in_step(view.reader.connection, view, names):
            run(view, "UPDATE sessions SET source = 'cron'")
        run(view, "COMMIT")
        assert indexed(view) == set()
        assert failing(view) == []


@pytest.mark.parametrize("version", DEPENDENT)
def test_a_session_that_is_put_back_after_its_messages_were_written(home: Home, version: str) -> None:
    """They were never indexed: the trigger asks for the session."""
    write_chat(home, version)
    with writing(home.store) as view:
        run(view, "PRAGMA foreign_keys = OFF")
        run(
            view, "INSERT INTO messages(session_id, role, content, timestamp) VALUES ('gone', 'user', 'my needle', 1.0)"
        )
        run(view, "PRAGMA foreign_keys = ON")
        with kept_in_step(view.reader.connection, view, ["gone"]):
            run(view, "INSERT INTO sessions(id, source, started_at) VALUES ('gone', 'recovered', 1.0)")
        assert failing(view) == []
        assert found(view, "my needle") == [5]


@pytest.mark.parametrize("version", DEPENDENT)
def test_a_session_that_is_put_back_under_messages_that_are_still_indexed(home: Home, version: str) -> None:
    """Deleted with foreign keys off: their entries stayed, and must not be there twice."""
    write_chat(home, version)
    with writing(home.store) as view:
        run(view, "PRAGMA foreign_keys = OFF")
        run(view, "DELETE FROM sessions WHERE id = 's1'")
        run(view, "PRAGMA foreign_keys = ON")
        assert failing(view) == [TRIGRAM]
        before = index_contents(view)
        with kept_in_step(view.reader.connection, view, ["s1"]):
            run(view, "INSERT INTO sessions(id, source, started_at) VALUES ('s1', 'recovered', 1.0)")
        assert failing(view) == []
        assert index_contents(view) == before


def test_a_message_that_the_index_lacked_is_not_taken_out_of_it(chat: Home) -> None:
    """It would be counted off what the others have; it is put in when its turn comes."""
    with writing(chat.store) as view:
        run(
            view,
            "INSERT INTO messages_fts_trigram(messages_fts_trigram, rowid, content, tool_name)"
            " SELECT 'delete', id, content, tool_name FROM messages_fts_trigram_src WHERE id = 1",
        )
        for source, there in (("cron", {4}), ("cli", {1, 3, 4})):
            with kept_in_step(view.reader.connection, view, ["s1"]):
                run(view, "UPDATE sessions SET source = ? WHERE id = 's1'", source)
            assert failing(view) == []
            assert indexed(view) == there


def test_what_a_deferred_rebuild_will_come_to_is_left_to_it(chat: Home) -> None:
    """Messages 1 to 3 are still to be indexed by hermes; 4 is newer than the rebuild."""
    with writing(chat.store) as view:
        run(view, "INSERT INTO messages_fts_trigram(messages_fts_trigram) VALUES ('delete-all')")
        run(view, "INSERT INTO messages_fts(messages_fts) VALUES ('delete-all')")
        run(view, "INSERT INTO state_meta VALUES ('fts_rebuild_progress', '0'), ('fts_rebuild_high_water', '3')")
        run(view, "INSERT INTO messages_fts_trigram(rowid, content, tool_name) VALUES (4, 'another needle', NULL)")
        run(view, "UPDATE sessions SET source = 'cron' WHERE id = 's1'")
        with kept_in_step(view.reader.connection, view, ["s1", "other"]):
            run(view, "UPDATE sessions SET source = iif(source = 'cli', 'cron', 'cli')")
        assert indexed(view) == set()
        with kept_in_step(view.reader.connection, view, ["s1", "other"]):
            run(view, "UPDATE sessions SET source = 'cli'")
        assert indexed(view) == {4}
        assert unchecked(view.reader.connection, view.shape) == {
            BASE: "hermes is still rebuilding it",
            TRIGRAM: "hermes is still rebuilding it",
        }
        assert failing(view) == []


def test_a_change_that_fails_is_taken_back_with_its_transaction(chat: Home) -> None:
    with writing(chat.store) as view:
        before = index_contents(view)
        run(view, "BEGIN IMMEDIATE")
        run(view, "SAVEPOINT one_row")
        with pytest.raises(apsw.ConstraintError), kept_in_step(view.reader.connection, view, ["s1"]):
            run(view, "INSERT INTO sessions(id, source, started_at) VALUES ('s1', 'cron', 1.0)")
        run(view, "ROLLBACK TO one_row")
        run(view, "COMMIT")
        assert failing(view) == []
        assert index_contents(view) == before


def test_the_writers_transaction_is_not_ended_by_asking(chat: Home) -> None:
    with writing(chat.store) as view:
        run(view, "BEGIN IMMEDIATE")
        with kept_in_step(view.reader.connection, view, ["s1"]):
            run(view, "UPDATE sessions SET source = 'cron' WHERE id = 's1'")
        failing(view)
        check_rows(view.reader.connection, view.shape, [1])
        assert view.reader.connection.in_transaction
        run(view, "ROLLBACK")
        assert found(view, "eedl") == [1, 3, 4]


@pytest.mark.parametrize("name", [BASE, TRIGRAM])
@pytest.mark.parametrize(
    ("damage", "wrong"),
    [
        ("DELETE FROM {index} WHERE rowid = 3", [3]),
        ("UPDATE {index} SET content = 'something else' WHERE rowid = 1", [1]),
        ("INSERT INTO {index}(rowid, content) VALUES (77, 'of no message')", [77]),
        ("UPDATE {index} SET content = substr(content, 1, 8192) || ' search ' WHERE rowid = 2", []),
        ("UPDATE {index} SET content = substr(content, 1, 8191) || ' search ' WHERE rowid = 2", [2]),
    ],
    ids=["missing", "another text", "left over", "a shortened tool's result", "shortened too much"],
)
def test_drift_of_an_inline_index_is_seen_row_by_row(home: Home, name: str, damage: str, wrong: list[int]) -> None:
    write_chat(home, "0.19.0")
    with writing(home.store) as view:
        assert check_rows(view.reader.connection, view.shape, [1, 2, 3, 4, 77]) == []
        run(view, damage.format(index=name))
        # FTS5's own check sees nothing of it on this layout.
        assert failing(view) == []
        assert check_rows(view.reader.connection, view.shape, [1, 2, 3, 4, 77]) == wrong


def test_only_a_tools_result_may_be_shortened(home: Home) -> None:
    home.run("0.19.0", [call("create_session", "s1", "cli"), call("append_message", "s1", "user", "hay " * 4000)])
    with writing(home.store) as view:
        run(view, "UPDATE messages_fts SET content = substr(content, 1, 8192) || '  ' WHERE rowid = 1")
        assert check_rows(view.reader.connection, view.shape, [1]) == [1]


def test_rows_that_0_22_wrote_into_an_old_index_are_right(home: Home) -> None:
    write_chat(home, "0.19.0")
    long = "hay " * 4000
    home.run(
        "0.22.2",
        [
            call("append_message", "s1", "tool", long, tool_name="search"),
            sql("UPDATE messages SET content = content || '!' WHERE id = 2"),
        ],
    )
    home.run("0.19.0", [call("append_message", "s1", "tool", long, tool_name="search")])
    with writing(home.store) as view:
        assert set(layouts(view.shape).values()) == {Layout.INLINE, Layout.ABSENT}
        lengths = run(view, "SELECT length(c0) > 8300 FROM messages_fts_content ORDER BY id")
        assert {row[0] for row in lengths} == {0, 1}
        assert check_rows(view.reader.connection, view.shape, message_ids(view)) == []


def test_structured_and_odd_contents_are_compared_as_they_are(home: Home) -> None:
    write_chat(home, "0.19.0")
    with writing(home.store) as view:
        run(view, "UPDATE messages SET content = char(0) || 'json:[1]', tool_calls = '[]' WHERE id = 1")
        run(view, "UPDATE messages SET content = x'00ff', tool_name = 5 WHERE id = 3")
        run(view, "UPDATE messages SET content = NULL WHERE id = 4")
        assert check_rows(view.reader.connection, view.shape, [1, 3, 4]) == []


@pytest.mark.parametrize("version", ["0.20.6", "0.22.2"])
def test_drift_of_an_external_index_fails_its_check(home: Home, version: str) -> None:
    write_chat(home, version)
    with writing(home.store) as view:
        run(view, "INSERT INTO messages_fts(rowid, content) VALUES (77, 'of no message')")
        assert failing(view) == [BASE]
        assert check_rows(view.reader.connection, view.shape, [1, 77]) == [77]


def test_a_text_that_changed_under_an_external_index_fails_its_check(chat: Home) -> None:
    with writing(chat.store) as view:
        run(view, "DROP TRIGGER messages_fts_update")
        run(view, "UPDATE messages SET content = 'no such word' WHERE id = 1")
        assert failing(view) == [BASE]


def test_an_index_that_hermes_will_rebuild_is_not_held_against_the_store(chat: Home) -> None:
    with writing(chat.store) as view:
        for trigger in ("insert", "update", "delete"):
            run(view, f"DROP TRIGGER messages_fts_{trigger}")
        run(view, "UPDATE messages SET content = 'no such word' WHERE id = 1")
        assert failing(view) == [BASE]
        run(view, "INSERT INTO state_meta(key, value) VALUES ('fts_stale', '1')")
        assert unchecked(view.reader.connection, view.shape) == dict.fromkeys(
            (BASE, TRIGRAM), "hermes has marked it for a rebuild"
        )
        assert failing(view) == []


def words(connection: apsw.Connection, arguments: list[str]) -> apsw.Tokenizer:
    """Stands in for upstream's own tokenizer, which is a library that has to be built."""
    return connection.fts5_tokenizer("unicode61", arguments)


def add_cjk_index(path: Path) -> None:
    """As 0.20.0 and later make it where the tokenizer has been built."""
    connection = open_for_writing(path)
    connection.register_fts5_tokenizer("cjk_unicode61", words)
    connection.execute(
        "CREATE VIEW messages_fts_cjk_src AS"
        " SELECT id, role, content, tool_name, tool_calls FROM messages WHERE role <> 'tool'"
    )
    connection.execute(
        "CREATE VIRTUAL TABLE messages_fts_cjk USING fts5(content, tool_name, tool_calls,"
        " content='messages_fts_cjk_src', content_rowid='id', tokenize='cjk_unicode61')"
    )
    connection.execute("INSERT INTO messages_fts_cjk(messages_fts_cjk) VALUES ('rebuild')")
    connection.close()


def test_a_tokenizer_that_is_not_here_is_said(chat: Home) -> None:
    add_cjk_index(chat.store)
    with writing(chat.store) as view:
        assert layouts(view.shape)[CJK] is Layout.EXTERNAL_1
        assert unchecked(view.reader.connection, view.shape) == {
            CJK: "this machine lacks its tokenizer (cjk_unicode61)"
        }
        assert failing(view) == []
        assert check_rows(view.reader.connection, view.shape, [1, 2, 3, 4]) == []
        with kept_in_step(view.reader.connection, view, ["s1"]):
            run(view, "UPDATE sessions SET source = 'cron' WHERE id = 's1'")
        assert found(view, "eedl") == [4]


def test_a_tokenizer_that_is_here_is_used(chat: Home) -> None:
    add_cjk_index(chat.store)
    with writing(chat.store) as view:
        view.reader.connection.register_fts5_tokenizer("cjk_unicode61", words)
        assert unchecked(view.reader.connection, view.shape) == {}
        assert failing(view) == []
        run(view, "INSERT INTO messages_fts_cjk(rowid, content) VALUES (77, 'of no message')")
        assert failing(view) == [CJK]
        assert check_rows(view.reader.connection, view.shape, [1, 77]) == [77]


def strict(view: StoreView, name: str = TRIGRAM) -> bool:
    """Whether FTS5 itself finds nothing wrong with an external index."""
    try:
        run(view, f"INSERT INTO {name}({name}, rank) VALUES ('integrity-check', 1)")
    except apsw.CorruptError:
        return False
    return True


@pytest.fixture
def structured(oracle: None, shared_folder: Path, tmp_path: Path) -> Home:
    """As `chat`; message 5 begins with a NUL, as the newest release writes structured content."""

    def write(home: Home) -> None:
        write_chat(home, "0.22.2")
        home.run("0.22.2", [call("append_message", "s1", "user", [{"type": "text", "text": "a picture of a needle"}])])

    return copy_of(shared_folder / "structured-chat", tmp_path, write)


needs_an_old_sqlite = pytest.mark.skipif(not OLD_SQLITE, reason="this Python's SQLite cuts as the doctor's does")


@needs_an_old_sqlite
def test_an_index_of_an_older_sqlite_passes_once_its_trigrams_are_matched(structured: Home) -> None:
    with writing(structured.store) as view:
        assert run(view, "SELECT instr(content, char(0)) FROM messages WHERE id = 5") == [(1,)]
        assert not strict(view)
        assert failing(view) == []
    with writing(structured.store) as view:
        assert match_trigrams(view.reader.connection, view.shape)
        assert strict(view)
        assert found(view, "eedl") == [1, 3, 4]


def there_and_back(view: StoreView) -> None:
    for source in ("cron", "cli"):
        with kept_in_step(view.reader.connection, view, ["s1"]):
            run(view, "UPDATE sessions SET source = ? WHERE id = 's1'", source)


@needs_an_old_sqlite
def test_what_was_matched_is_taken_out_and_put_in_as_hermes_does(structured: Home) -> None:
    """Asked of the release's own SQLite afterwards."""
    with writing(structured.store) as view:
        match_trigrams(view.reader.connection, view.shape)
        there_and_back(view)
        assert indexed(view) == {1, 3, 4, 5}
    question = sql("INSERT INTO messages_fts_trigram(messages_fts_trigram, rank) VALUES ('integrity-check', 1)")
    assert structured.run("0.22.2", [question]) == [[]]


@needs_an_old_sqlite
def test_without_matching_the_index_counts_wrong(structured: Home) -> None:
    """More trigrams are taken out than were put in, until SQLite calls the index malformed."""
    with writing(structured.store) as view, pytest.raises(apsw.CorruptError):
        there_and_back(view)


@needs_an_old_sqlite
@pytest.mark.parametrize("matched", [True, False])
def test_an_inline_index_follows_any_column_and_needs_matching_too(home: Home, matched: bool) -> None:
    """Up to 0.19.0 every change of a row takes its text out of the index and puts it in again."""
    write_chat(home, "0.19.0")
    home.run("0.19.0", [call("append_message", "s1", "user", [{"type": "text", "text": "a picture of a needle"}])])
    with writing(home.store) as view:
        assert match_trigrams(view.reader.connection, view.shape) if matched else True
        run(view, "UPDATE messages SET reasoning_details = '[]' WHERE id = 5")
    question = sql("INSERT INTO messages_fts_trigram(messages_fts_trigram) VALUES ('integrity-check')")
    answer = home.run("0.19.0", [question], check=False)[0]
    assert (answer == []) is matched, answer


@needs_an_old_sqlite
def test_a_row_that_is_missing_is_seen_through_the_difference(structured: Home) -> None:
    with writing(structured.store) as view:
        run(view, "UPDATE sessions SET source = 'cron' WHERE id = 'other'")
        assert failing(view) == [TRIGRAM]


def test_an_index_that_this_sqlite_wrote_needs_no_matching(structured: Home) -> None:
    with writing(structured.store) as view:
        run(view, "INSERT INTO messages_fts_trigram(messages_fts_trigram) VALUES ('rebuild')")
    with writing(structured.store) as view:
        assert not match_trigrams(view.reader.connection, view.shape)
        assert strict(view)
        assert found(view, "eedl") == [1, 3, 4, 5]


def test_the_newest_text_with_a_nul_decides(structured: Home) -> None:
    """Hermes runs on a newer SQLite by now: what it writes from here on is cut as ours is."""
    with writing(structured.store) as view:
        run(
            view,
            "INSERT INTO messages(session_id, role, content, timestamp)"
            " VALUES ('s1', 'user', char(0) || 'json:[1]', 1)",
        )
    with writing(structured.store) as view:
        assert not match_trigrams(view.reader.connection, view.shape)
        assert failing(view) == []


@pytest.mark.parametrize("version", ["0.13.0", "0.20.6", "0.22.2"])
def test_without_such_texts_nothing_is_changed(home: Home, version: str) -> None:
    write_chat(home, version)
    with writing(home.store) as view:
        assert not match_trigrams(view.reader.connection, view.shape)
        run(view, "UPDATE messages SET content = char(0) || 'a' WHERE id = 1")
    with writing(home.store) as view:
        # Too short to tell.
        assert match_trigrams(view.reader.connection, view.shape) is False


@pytest.mark.parametrize("part", ["docsize", "content"])
def test_an_index_that_lost_a_part_tells_nothing(home: Home, part: str) -> None:
    write_chat(home, "0.13.0")
    with writing(home.store) as view:
        run(view, "UPDATE messages SET content = 'abcd' || char(0) || 'efgh' WHERE id = 1")
        assert stops_at_nul(view.reader.connection, view.shape) is not None
        view.reader.connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 0)
        run(view, f"DROP TABLE messages_fts_trigram_{part}")
        assert stops_at_nul(view.reader.connection, view.shape) is None
        assert match_trigrams(view.reader.connection, view.shape) is False
