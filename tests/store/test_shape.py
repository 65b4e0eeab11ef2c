"""The shape of stores: as real releases make them, and as nobody should."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from hermes_doctor.store.shape import KNOWN_SCHEMA, Shape, read_shape
from tests.oracle.home import Home
from tests.oracle.releases import CHAINS, RELEASES, Release, get
from tests.oracle.steps import sql
from tests.oracle.templates import LivedIn


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[apsw.Connection]:
    made = apsw.Connection(str(tmp_path / "store.db"))
    made.pragma("synchronous", "off")
    yield made
    made.close()


def shape_of(connection: apsw.Connection, *statements: str) -> Shape:
    for statement in statements:
        connection.execute(statement)
    return read_shape(connection)


def shape_in(path: Path) -> Shape:
    connection = apsw.Connection(f"{path.as_uri()}?mode=ro", flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
    try:
        return read_shape(connection)
    finally:
        connection.close()


# ---- Real stores


COLUMNS = (
    'SELECT t.name, c.name, c.type, c."notnull", c.pk FROM sqlite_master AS t JOIN pragma_table_info(t.name) AS c'
    " WHERE t.type = 'table' AND t.sql NOT LIKE 'CREATE VIRTUAL%' ORDER BY t.rowid, c.cid"
)
VIRTUAL = "SELECT name FROM sqlite_master WHERE type = 'table' AND sql LIKE 'CREATE VIRTUAL%'"


def test_the_shape_of_a_release_is_what_its_own_sqlite_says(home: Home, release: Release) -> None:
    listed, virtual = home.run(release, [sql(COLUMNS), sql(VIRTUAL)])
    hidden = (*(f"{name}_" for [name] in virtual), "sqlite_")
    expected: dict[str, list[list[object]]] = {}
    for table, *column in listed:
        if not table.startswith(hidden):
            expected.setdefault(table, []).append(column)

    shape = shape_in(home.store)
    columns = {
        table.name: [[c.name, c.type, int(c.not_null), c.key_place] for c in table.columns.values()]
        for table in shape.tables.values()
    }
    assert columns == expected
    assert {"sessions", "messages", "schema_version"} <= set(expected)
    assert set(shape.virtual_tables) == {name for [name] in virtual}
    assert shape.unreadable == ()
    assert shape.schema_version == shape.version == release.schema
    assert shape.tables["sessions"].primary_key == ("id",)
    assert shape.tables["messages"].primary_key == ("id",)
    assert shape.has("messages", "display_metadata") == release.since("0.20.0")
    assert shape.has("sessions", "pinned") == release.since("0.20.0")


def test_the_newest_release_is_the_newest_that_is_known() -> None:
    assert max(release.schema for release in RELEASES) == KNOWN_SCHEMA


@pytest.mark.parametrize("chain", CHAINS, ids="-".join)
def test_stores_that_went_through_releases(lived_in: LivedIn, chain: tuple[str, ...]) -> None:
    """Columns stand in another order than in a new file, and an older release takes none away."""
    home = lived_in(*chain).home
    columns, version = home.run(chain[-1], [sql(COLUMNS), sql("SELECT max(version) FROM schema_version")])
    shape = shape_in(home.store)
    names = [column.name for column in shape.tables["messages"].columns.values()]
    assert names == [column for table, column, *_ in columns if table == "messages"]
    newest = max((get(version) for version in chain), key=lambda release: release.order)
    assert shape.schema_version == version[0][0]
    assert shape.has("messages", "display_metadata") == newest.since("0.20.0")


# ---- Made stores


def test_only_ordinary_tables_are_tables(connection: apsw.Connection) -> None:
    shape = shape_of(
        connection,
        "CREATE TABLE Plain(a)",
        "CREATE VIRTUAL TABLE search USING fts5(a)",
        "create  virtual table lower_search using fts5(a, content='')",
        "CREATE VIEW seen AS SELECT a FROM Plain",
        "CREATE TRIGGER fires AFTER INSERT ON Plain BEGIN SELECT 1; END",
        "CREATE INDEX found ON Plain(a)",
        "CREATE TABLE counted(id INTEGER PRIMARY KEY AUTOINCREMENT)",
        "CREATE TABLE search_notes(a)",
        'CREATE TABLE "create virtual table"(a)',
    )
    assert set(shape.tables) == {"plain", "counted", "search_notes", "create virtual table"}
    assert set(shape.virtual_tables) == {"search", "lower_search"}
    assert (set(shape.views), set(shape.triggers), set(shape.indexes)) == ({"seen"}, {"fires"}, {"found"})
    assert shape.tables["plain"].name == "Plain"


def test_names_compare_as_sqlite_compares_them(connection: apsw.Connection) -> None:
    shape = shape_of(connection, 'CREATE TABLE Odd("Some Name" TEXT, "a""b", plain)')
    assert shape.has("ODD", "some name", "PLAIN")
    assert not shape.has("odd", "some name", "missing")
    assert not shape.has("missing")
    assert shape.has("odd")
    assert shape.column("odd", "SOME NAME") == '"Some Name"'
    assert shape.column("odd", 'A"B', alias="o") == 'o."a""b"'
    assert shape.column("odd", "missing", alias="o") == "NULL"
    assert shape.column("odd", "missing", absent="0") == "0"
    assert shape.column("missing", "plain", absent="''") == "''"


def test_columns_that_a_store_lacks_read_as_their_default(connection: apsw.Connection) -> None:
    shape = shape_of(connection, "CREATE TABLE sessions(id)", "INSERT INTO sessions VALUES ('s1')")
    pinned = shape.column("sessions", "pinned", alias="s", absent="0")
    assert connection.execute(f"SELECT s.id, {pinned} FROM sessions AS s WHERE {pinned} = 0").fetchall() == [("s1", 0)]


@pytest.mark.parametrize(
    ("create", "key", "rowid"),
    [
        ("CREATE TABLE t(id INTEGER PRIMARY KEY, v)", ("id",), "rowid"),
        ("CREATE TABLE t(id TEXT PRIMARY KEY, v)", ("id",), "rowid"),
        ("CREATE TABLE t(v)", (), "rowid"),
        ("CREATE TABLE t(a, b, c, PRIMARY KEY(c, a))", ("c", "a"), "rowid"),
        ("CREATE TABLE t(a, b, PRIMARY KEY(b, a)) WITHOUT ROWID", ("b", "a"), None),
        ("CREATE TABLE t(RowID TEXT, v)", (), "_rowid_"),
        ("CREATE TABLE t(rowid, _rowid_, v)", (), "oid"),
        ("CREATE TABLE t(rowid, _rowid_, oid)", (), None),
    ],
)
def test_keys_and_rowids(connection: apsw.Connection, create: str, key: tuple[str, ...], rowid: str | None) -> None:
    table = shape_of(connection, create).tables["t"]
    assert table.primary_key == key
    assert table.rowid == rowid
    if rowid is not None:
        connection.execute("INSERT INTO t DEFAULT VALUES")
        assert connection.execute(f"SELECT typeof({rowid}) FROM t").get == "integer"


def test_generated_columns_are_columns(connection: apsw.Connection) -> None:
    table = shape_of(
        connection, "CREATE TABLE t(a NOT NULL, v AS (a + 1), s INTEGER AS (a + 2) STORED, h TEXT)"
    ).tables["t"]
    assert [(c.name, c.type, c.not_null, c.generated) for c in table.columns.values()] == [
        ("a", "", True, False),
        ("v", "", False, True),
        ("s", "INTEGER", False, True),
        ("h", "TEXT", False, False),
    ]


def test_no_rule_looks_at_what_is_computed_at_each_look(connection: apsw.Connection) -> None:
    shape = shape_of(connection, "CREATE TABLE messages(id, content AS (hex(zeroblob(400000000))), role)")
    assert not shape.has("messages", "content")
    assert shape.has("messages", "id", "role")
    assert shape.column("messages", "content", absent="''") == "''"


@pytest.mark.parametrize(
    ("statements", "version"),
    [
        ((), None),
        (("CREATE TABLE schema_version(version INTEGER)",), None),
        (("CREATE TABLE schema_version(version INTEGER)", "INSERT INTO schema_version VALUES (22)"), 22),
        (("CREATE TABLE schema_version(version INTEGER)", "INSERT INTO schema_version VALUES (22), (31), (19)"), 31),
        (("CREATE TABLE schema_version(version)", "INSERT INTO schema_version VALUES ('31'), (NULL), (9.5)"), None),
        (("CREATE TABLE schema_version(version)", "INSERT INTO schema_version VALUES ('99'), (14)"), 14),
        (("CREATE TABLE schema_version(other)", "INSERT INTO schema_version VALUES (22)"), None),
        (("CREATE VIEW schema_version AS SELECT 22 AS version",), None),
    ],
)
def test_the_schema_version(connection: apsw.Connection, statements: tuple[str, ...], version: int | None) -> None:
    shape = shape_of(connection, *statements)
    assert shape.schema_version == version
    assert shape.version == (version or 0)


@pytest.mark.parametrize("encoding", ["UTF-8", "UTF-16le", "UTF-16be"])
def test_the_encoding_of_names(connection: apsw.Connection, encoding: str) -> None:
    shape = shape_of(
        connection, f"PRAGMA encoding = '{encoding}'", 'CREATE TABLE "tä"("spälte")', "CREATE VIEW é AS SELECT 1"
    )
    assert shape.encoding == encoding
    assert shape.has("tä", "spälte")
    assert shape.views == {"é": "CREATE VIEW é AS SELECT 1"}


def _spoil(connection: apsw.Connection, table: str, name: bytes | None, create: bytes) -> None:
    """Writes bytes that are no text into the schema, as damage or another tool may leave them."""
    connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 0)
    connection.pragma("writable_schema", 1)
    connection.execute(
        "UPDATE sqlite_schema SET name = CAST(?1 AS TEXT), tbl_name = CAST(?1 AS TEXT), sql = CAST(?2 AS TEXT)"
        " WHERE name = ?3",
        (name or table.encode(), create, table),
    )


def test_names_that_are_no_text_cost_their_table_only(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    connection = apsw.Connection(str(path))
    connection.execute("CREATE TABLE good(a); CREATE TABLE name_gone(a); CREATE TABLE column_gone(a)")
    connection.execute("CREATE TABLE comment_gone(a, b)")
    _spoil(connection, "name_gone", b"caf\xe9", b"CREATE TABLE caf\xe9(a)")
    _spoil(connection, "column_gone", None, b"CREATE TABLE column_gone(caf\xe9)")
    _spoil(connection, "comment_gone", None, b"CREATE TABLE comment_gone(a, /* caf\xe9 */ b)")
    connection.close()
    shape = shape_in(path)
    assert set(shape.tables) == {"good", "comment_gone"}
    assert shape.has("comment_gone", "a", "b")
    assert set(shape.unreadable) == {"caf\\xe9", "column_gone"}
