"""Stores that lost a part of their schema: the tables of releases are told by their pages, those of others are left."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest

from hermes_doctor.rescue.account import Source
from hermes_doctor.rescue.known import known
from hermes_doctor.rescue.pages import Pages
from tests.oracle import known_tables
from tests.oracle.home import Home
from tests.oracle.releases import RELEASES
from tests.oracle.steps import call, close_store, sql
from tests.rescue.lab import make, rescue, run
from tests.whole.breaking import WRECKS
from tests.whole.to_be_wrecked import Sound, shared_lived_in

OLD, NEW = "0.16.0", "0.22.2"
CHAIN = ("0.13.0", "0.22.2")
SIZE = 4096
HEADER = 100

_ORDINARY = """
SELECT name FROM pragma_table_list WHERE type = 'table' AND schema = 'main' AND name NOT LIKE 'sqlite%'
"""

#: A table's rows by their rowids, each with its values by the names of their columns.
Tables = dict[str, dict[int, dict[str, Any]]]


@pytest.fixture
def sound(shared_folder: Path, versions: Sequence[str], oracle: None) -> Sound:
    return shared_lived_in(shared_folder / "to-be-rescued", *versions)


@pytest.mark.parametrize("version", [release.version for release in RELEASES])
def test_the_data_is_what_the_command_makes_of_a_release(version: str, oracle: None) -> None:
    tables, counted = known_tables.made_by(version)
    data = json.loads(known_tables.DATA.read_text())
    order = list(data["releases"])
    new = order[: order.index(version) + 1]

    def without_date(column: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in column.items() if key != "since"}

    assert data["releases"] == {release.version: release.schema for release in RELEASES}
    assert tables == {
        name: [without_date(column) for column in table["columns"] if column.get("since", table["since"]) in new]
        for name, table in data["tables"].items()
        if table["since"] in new
    }
    assert counted == {name: data["tables"][name]["counted"] for name in tables}
    assert known_tables.text_of(data) == known_tables.DATA.read_text()


def test_an_upgrade_appends_what_is_missing(oracle: None) -> None:
    way = ("0.13.0", "0.18.2", "0.22.2")
    tables, _ = known_tables.made_by(*way)
    for name, columns in tables.items():
        assert [column.name for column in known().columns(name, way)] == [column["name"] for column in columns], name
    # Orders do differ, or this would prove nothing.
    assert known().columns("messages", way) != known().columns("messages", (NEW,))


def test_a_statement_makes_the_table_that_the_release_makes(oracle: None, tmp_path: Path) -> None:
    made, counted = known_tables.made_by(NEW)
    built = make(tmp_path / "built.db", *(known().statement(name, (NEW,)) for name in made))
    assert known_tables.read_tables(built) == (made, counted)


@pytest.mark.parametrize(
    ("versions", "lost"),
    [
        ((OLD,), "messages"),
        ((NEW,), "messages"),
        ((NEW,), "state_meta"),
        ((NEW,), "async_delegations"),
        (CHAIN, "messages"),
        (CHAIN, "system_prompts"),
        (CHAIN, "compression_locks"),
        ((OLD,), "all of it"),
        ((NEW,), "all of it"),
        (CHAIN, "all of it"),
        ((OLD,), "all of it, and the first page"),
        ((NEW,), "all of it, and the first page"),
    ],
)
def test_all_rows_come_back_and_the_release_goes_on(sound: Sound, store: Path, tmp_path: Path, lost: str) -> None:
    store.write_bytes(sound.store.read_bytes())
    pages = leaves_with(sound.store, None if lost.startswith("all") else lost)
    named = {name for name, page in tables_of_schema(sound.store).items() if page in pages}
    lose(store, pages, root=lost.startswith("all"), first=lost.endswith("page"))
    rescued = Home(tmp_path / "rescued")
    result = rescue(store, rescued.store)

    assert result.outcome == "partly-rescued"
    assert_told(result.notes, named, sound.release.version, of_chain="+" in sound.name)
    before, after = tables_in(sound.store), tables_in(rescued.store)
    assert before == after
    # By the tree itself: what was deleted, and lies in pages that are free, is not among it.
    assert {table.name: table.saved for table in result.tables if set(table.saved) - {Source.IN_PLACE}} == {}
    assert all(table.is_whole for table in result.tables)
    assert_goes_on(sound, rescued, tmp_path)


@pytest.mark.parametrize("versions", [(OLD,), (NEW,), CHAIN])
@pytest.mark.parametrize("table", ["messages", "sessions"])
def test_a_table_that_was_taken_out_of_a_whole_schema(sound: Sound, store: Path, new: Path, table: str) -> None:
    store.write_bytes(sound.store.read_bytes())
    WRECKS[f"unlist-{table}"].damage(store, 1)
    result = rescue(store, new)
    assert_told(result.notes, {table}, sound.release.version, of_chain="+" in sound.name)
    assert tables_in(new) == tables_in(sound.store)


@pytest.mark.parametrize("versions", [(NEW,)])
def test_the_root_of_the_messages_is_lost_as_well(sound: Sound, store: Path, new: Path) -> None:
    store.write_bytes(sound.store.read_bytes())
    lose(store, {*leaves_with(sound.store, "messages"), root_of(sound.store, "messages")})
    result = rescue(store, new)
    before, after = tables_in(sound.store), tables_in(new)
    messages = result.table("messages")
    assert messages is not None
    assert messages.saved[Source.LOOSE] == len(before["messages"])
    assert before["messages"].items() <= after["messages"].items()
    # Without the tree nobody knows which of the rows in free pages were deleted.
    assert len(after["messages"]) - len(before["messages"]) == messages.doubtful_rows
    assert messages.lost
    assert before["sessions"].items() <= after["sessions"].items()


@pytest.mark.parametrize("versions", [(NEW,)])
def test_no_rowid_is_given_again(sound: Sound, store: Path, new: Path) -> None:
    store.write_bytes(sound.store.read_bytes())
    run(store, "DELETE FROM messages WHERE id = (SELECT max(id) FROM messages)")
    last = counter(store)
    lose(store, leaves_with(store, None), root=True)
    rescue(store, new)
    assert counter(new) == last


@pytest.mark.parametrize("versions", [(OLD,)])
def test_what_a_whole_schema_never_had_is_not_made(sound: Sound, store: Path, new: Path) -> None:
    store.write_bytes(sound.store.read_bytes())
    with Pages(store, SIZE) as pages:
        branch = pages.branch(root_of(store, "messages"))
    assert branch is not None
    lose(store, [branch.children[0][0]])
    result = rescue(store, new)
    assert result.outcome == "partly-rescued"
    assert tables_in(new).keys() == tables_in(sound.store).keys()
    assert not any("statement" in note for note in result.notes)


@pytest.mark.parametrize("versions", [(OLD,)])
def test_a_table_of_later_releases_is_not_made_of_what_looks_like_it(sound: Sound, store: Path, new: Path) -> None:
    store.write_bytes(sound.store.read_bytes())
    run(
        store,
        "CREATE TABLE prompts(hash TEXT PRIMARY KEY, prompt TEXT NOT NULL)",
        "INSERT INTO prompts VALUES (lower(hex(randomblob(32))), 'be brief')",
    )
    lose(store, leaves_with(store, "prompts") | leaves_with(store, "messages"))
    rescue(store, new)
    assert tables_in(new) == tables_in(sound.store)


STRANGERS: dict[str, Callable[[], list[str]]] = {
    "of nobody": lambda: [
        f"CREATE TABLE t{n} (id INTEGER PRIMARY KEY, name TEXT NOT NULL, kind TEXT NOT NULL, note TEXT, a TEXT, b TEXT,"
        f" c TEXT, at REAL NOT NULL, n INTEGER, d TEXT, e TEXT, f TEXT, g TEXT, h TEXT, i TEXT)"
        for n in range(60)
    ],
    "with a table of messages": lambda: [
        "CREATE TABLE messages (id INTEGER PRIMARY KEY, sender TEXT, body TEXT)",
        *(f"CREATE TABLE t{n} (word TEXT PRIMARY KEY, meaning TEXT NOT NULL)" for n in range(60)),
    ],
}


@pytest.mark.parametrize("kind", STRANGERS)
def test_a_strangers_database_gets_no_table_of_hermes(store: Path, new: Path, kind: str) -> None:
    statements = STRANGERS[kind]()
    rows = [
        "INSERT INTO t3(name, kind, note, at) SELECT 'a b c', 'what is it?', hex(randomblob(90)), 3.5 FROM t3_n"
        if kind == "of nobody"
        else "INSERT INTO t3 SELECT hex(randomblob(9)), hex(randomblob(90)) FROM t3_n"
    ]
    make(
        store,
        *statements,
        "CREATE TABLE t3_n (n)",
        "INSERT INTO t3_n WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n LIMIT 400) SELECT * FROM n",
        *rows,
    )
    first = min(tables_of_schema(store).values())
    lost = {name for name, page in tables_of_schema(store).items() if page == first}
    assert "t3" in lost
    lose(store, [first])
    result = rescue(store, new)
    assert not any("hermes" in note for note in result.notes)
    made = set() if result.output is None else set(tables_in(new))
    assert not made & (set(known().tables) - {"messages"})
    assert made.isdisjoint(lost)


def assert_told(notes: Sequence[str], tables: Collection[str], version: str, *, of_chain: bool) -> None:
    wanted = sorted(tables & known().tables.keys()) if isinstance(tables, set) else sorted(tables)
    note = next((note for note in notes if note.startswith("The statement")), "")
    assert all(name in note for name in wanted), note
    if wanted:
        assert f"are those of hermes {version}" in note
        assert ("0.13.0" in note) == of_chain
        assert "guess" not in note


def assert_goes_on(sound: Sound, rescued: Home, tmp_path: Path) -> None:
    """The release replays, finds and writes as it does in the store that was never damaged."""
    as_it_was = Home(tmp_path / "as it was")
    as_it_was.store.write_bytes(sound.store.read_bytes())
    with closing(apsw.Connection(str(as_it_was.store))) as connection:
        sessions = [row[0] for row in connection.execute("SELECT DISTINCT session_id FROM messages")]
    steps = [
        *(call("get_messages_as_conversation", session) for session in sessions),
        call("search_messages", "zeta", limit=1000),
        call("append_message", sessions[0], "user", "the quokka goes on"),
        call("create_session", "one-more", "cli"),
        call("append_message", "one-more", "user", "a quokka more"),
        call("search_messages", "quokka"),
        sql("SELECT max(id) FROM messages"),
        close_store(),
    ]
    expected, found = (home.run(sound.release, steps) for home in (as_it_was, rescued))
    many = len(sessions)
    assert found[:many] == expected[:many]
    for place in (many, many + 4):
        assert {hit["id"] for hit in found[place]} == {hit["id"] for hit in expected[place]} != set()
    assert found[many + 5] == expected[many + 5]
    assert schema_of(rescued.store) >= {name for name in schema_of(as_it_was.store) if not name.endswith("_content")}


def lose(store: Path, pages: Collection[int], *, root: bool = False, first: bool = False) -> None:
    """Fills pages with zeros; ``root``: also the schema's root behind the file's header, ``first``: the header too."""
    with store.open("r+b") as file:
        for page in pages:
            file.seek((page - 1) * SIZE)
            file.write(bytes(SIZE))
        if root or first:
            file.seek(0 if first else HEADER)
            file.write(bytes(SIZE if first else SIZE - HEADER))


def leaves_with(store: Path, table: str | None) -> set[int]:
    """The pages of the schema that hold a table's statement; all of them for None."""
    found = tables_of_schema(store)
    return set(_schema_leaves(store)) if table is None else {found[table]}


def tables_of_schema(store: Path) -> dict[str, int]:
    """The tables that the schema names, with the page where each of them stands."""
    found = {}
    with Pages(store, SIZE) as pages:
        for number in _schema_leaves(store):
            leaf = pages.leaf(number)
            assert leaf is not None
            for cell in leaf.cells:
                record = pages.record(number, cell)
                assert record is not None
                if record.values[0] == "table":
                    found[str(record.values[1])] = number
    return found


def _schema_leaves(store: Path) -> list[int]:
    with Pages(store, SIZE) as pages:
        branch = pages.branch(1)
        assert branch is not None, "all of the schema is on the first page"
        return [*(child for child, _ in branch.children), branch.last]


def root_of(store: Path, table: str) -> int:
    with closing(apsw.Connection(str(store))) as connection:
        return int(str(connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (table,)).get))


def counter(store: Path) -> int:
    with closing(apsw.Connection(str(store))) as connection:
        return int(str(connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'messages'").get))


def schema_of(store: Path) -> set[str]:
    with closing(apsw.Connection(str(store))) as connection:
        return {str(name) for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE sql IS NOT NULL")}


def tables_in(store: Path) -> Tables:
    """All that the ordinary tables hold, whatever the order of their columns."""
    with closing(apsw.Connection(str(store))) as connection:
        return {str(name): _rows(connection, str(name)) for (name,) in connection.execute(_ORDINARY).fetchall()}


def _rows(connection: apsw.Connection, table: str) -> dict[int, dict[str, Any]]:
    columns = [str(name) for (name,) in connection.execute("SELECT name FROM pragma_table_info(?)", (table,))]
    listed = ", ".join(f'"{column}"' for column in columns)
    rows = connection.execute(f'SELECT rowid, {listed} FROM "{table}" NOT INDEXED')
    return {int(str(number)): dict(zip(columns, values, strict=True)) for number, *values in rows}
