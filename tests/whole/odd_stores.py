"""Odd stores, by a seed: what no release writes, but a file may hold all the same.

Each begins as the tables of a real release and is then bent: columns lost, renamed, retyped, generated or added, tables
lost, turned into views, made STRICT or WITHOUT ROWID, strangers' triggers and views beside them, any value in any
cell, any page size and encoding. The same seed makes the same store, but for what SQLite itself writes at random.

``python -m tests.whole.odd_stores FOLDER SEED`` makes one by hand and says what is odd about it.
"""

from __future__ import annotations

import contextlib
import json
import random
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

import apsw

from tests.oracle.home import Home
from tests.oracle.releases import RELEASES
from tests.oracle.steps import open_store

#: The present, as the stores see it: seconds since the epoch.
NOW = 1_750_000_000.0

Cell = str | int | float | bytes | None


@dataclass(frozen=True)
class Text:
    """Text that may be none: the bytes that a cell of type text is to hold."""

    raw: bytes


@dataclass(frozen=True)
class Column:
    """One column of a table to be: ``extra`` is what stands behind its type."""

    name: str
    type: str
    extra: str = ""
    generated: bool = False


@dataclass(frozen=True)
class Table:
    """A table to be: ``key`` names the primary key's columns, ``tail`` is what stands behind the closing bracket."""

    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    tail: str = ""
    autoincrement: bool = False

    @property
    def sql(self) -> str:
        """The statement that makes it."""
        lines = []
        for column in self.columns:
            line = f"{quoted(column.name)} {column.type} {column.extra}"
            if self.key == (column.name,):
                line += " PRIMARY KEY" + (" AUTOINCREMENT" if self.autoincrement else "")
            lines.append(line)
        if len(self.key) > 1:
            lines.append(f"PRIMARY KEY ({', '.join(quoted(name) for name in self.key)})")
        return f"CREATE TABLE {quoted(self.name)} ({', '.join(lines)}) {self.tail}"


@dataclass(frozen=True)
class Schema:
    """What a release makes: its tables, and the statements of all else in their order."""

    release: str
    tables: tuple[Table, ...]
    others: tuple[str, ...]
    version: int


@dataclass
class Odd:
    """A store that was made. ``notes``: what is odd about it, one line each. ``home``: the folder that it lies in."""

    seed: int
    store: Path
    notes: list[str] = field(default_factory=list)

    @property
    def home(self) -> Path:
        """The folder that the store lies in."""
        return self.store.parent


def quoted(name: str) -> str:
    """A name as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def schemas(folder: Path) -> tuple[Schema, ...]:
    """What each release makes of an empty folder; asked once, and kept in ``folder``."""
    found = []
    for release in RELEASES:
        home = Home(folder / f"empty-{release}")
        if not home.store.exists():
            home.run(release, [open_store()])
        with closing(apsw.Connection(str(home.store))) as connection:
            found.append(_schema(connection, release.version, release.schema))
    return tuple(found)


def _schema(connection: apsw.Connection, release: str, version: int) -> Schema:
    tables, others = [], []
    listed = connection.execute("SELECT name, type FROM pragma_table_list WHERE schema = 'main'").fetchall()
    kinds = {str(name): str(kind) for name, kind in listed}
    for kind, name, sql in connection.execute("SELECT type, name, sql FROM sqlite_schema WHERE sql IS NOT NULL"):
        if kinds.get(str(name)) == "shadow" or str(name).startswith("sqlite_"):
            continue
        if kind != "table" or kinds[str(name)] == "virtual":
            others.append(str(sql))
            continue
        described = connection.execute(
            'SELECT name, type, "notnull", dflt_value, pk FROM pragma_table_xinfo(?)', (name,)
        )
        rows = described.fetchall()
        columns = tuple(
            Column(
                str(column),
                str(declared),
                ("NOT NULL" if not_null else "") + (f" DEFAULT {default}" if default is not None else ""),
            )
            for column, declared, not_null, default, _pk in rows
        )
        key = tuple(str(row[0]) for row in sorted((row for row in rows if row[4]), key=lambda row: int(str(row[4]))))
        tables.append(Table(str(name), columns, key, autoincrement="AUTOINCREMENT" in str(sql)))
    return Schema(release, tuple(tables), tuple(others), version)


def make(folder: Path, known: Sequence[Schema], seed: int) -> Odd:
    """Make the odd store of that seed in a folder that is not there yet."""
    return _Maker(folder, known, seed).make()


#: What a terminal, a page or a path would act on, were it shown or followed as it stands.
ACTING = (
    "\x1b[31mred\x1b]0;title\x07",
    "\u202egnp.exe",
    "\u2066mixed\u2069\u200b",
    "line\nfeed\rreturn\ttab\x7f\x9b",
    "\x00nul\x00",
    "<script>alert(1)</script>&amp;'\"",
    "../../../../etc/passwd",
    "/etc/passwd",
    "..\\..\\windows",
    "a/../../outside",
    "outside",
    ".",
    "..",
    "~root",
    "-rf",
    "*",
    "%s%n{0}",
    "'; DROP TABLE sessions; --",
    '"]`',
    "\ufeff\ufffe\uffff",
    "\U0001f600" * 40,
    "\ud7ff\ue000",
    "s" * 300,
    "e\u0301" * 50,
)

#: Numbers at edges.
NUMBERS: tuple[Cell, ...] = (
    0,
    1,
    -1,
    2,
    2**31,
    -(2**31),
    2**53,
    2**53 + 1,
    2**63 - 1,
    -(2**63),
    10**18,
    0.0,
    -0.0,
    0.5,
    1e-320,
    1e18,
    -1e18,
    1e300,
    -1e308,
    float("inf"),
    float("-inf"),
    NOW * 1000,
    NOW * 1e6,
    253402300800.0,
)

_BAD_TEXT = (b"\xff\xfe", b"\x80abc", b"a\xc3", b"\xed\xa0\x80", b"\xf8\x88\x80\x80\x80", b"ok\x00\xff", b"\xc0\x80")


def _documents(chance: random.Random) -> str:
    """JSON that is well, odd, broken, or absurdly deep."""
    depth = chance.choice((3, 100, 999, 1001, 3000, 100_000))
    plain = {"id": "call_1", "type": "function", "function": {"name": "terminal", "arguments": "{}"}}
    return chance.choice(
        (
            lambda: json.dumps([plain]),
            lambda: json.dumps(json.dumps([plain])),
            lambda: json.dumps(json.dumps(json.dumps([plain]))),
            lambda: json.dumps(plain),
            lambda: json.dumps([plain] * 50),
            lambda: json.dumps({"_delegate_from": "s1", "_branched_from": "s2"}),
            lambda: json.dumps({"_delegate_from": {"a": []}, "_branched_from": 5, "session_id": [1]}),
            lambda: json.dumps({"_branched_from": "s3", "session_id": "s4", "_reset_from": "../../x"}),
            lambda: json.dumps({"session_id": None, "origin": {"platform": 3, "chat_id": ["x"]}}),
            lambda: json.dumps({"session_id": chance.choice(ACTING), "session_key": chance.choice(ACTING)}),
            lambda: json.dumps({"origin": None, "session_id": "s5", "updated_at": "never", "platform": {}}),
            lambda: "[" * depth + "]" * depth,
            lambda: '{"a":' * depth + "1" + "}" * depth,
            lambda: "[" * depth,
            lambda: '"\\ud800"',
            lambda: '{"a": 1, "a": 2}',
            lambda: "[NaN, Infinity, -Infinity]",
            lambda: "[1e400, -1e400, 1e-400]",
            lambda: "9" * chance.choice((30, 5000)),
            lambda: '[{"function": null, "id": 3}, null, 7, "x"]',
            lambda: '[{"function": {"arguments": {"a": 1}, "name": 5}}]',
            lambda: '{"role": "user"}',
            lambda: '"' + "\\" * 301,
            lambda: "{a: 1, // five\n}",
            lambda: "null",
            lambda: "[]",
            lambda: "{}",
            lambda: " ",
            lambda: "[1,]",
            lambda: "{'a': 0x10}",
            lambda: '\ufeff{"a":1}',
            lambda: json.dumps({"": {"\x00": "\u2028"}}),
        )
    )()


#: What a column of that name usually holds.
_USUAL: dict[str, Callable[[random.Random], Cell | Text]] = {
    **dict.fromkeys(
        ("session_id", "parent_session_id", "origin_session", "origin_session_id", "conversation_id"),
        lambda c: f"s{c.randrange(14)}",
    ),
    "role": lambda c: c.choice(("user", "assistant", "tool", "system", "session_meta")),
    "source": lambda c: c.choice(("cli", "tui", "telegram", "cron", "subagent", "recovered", "desktop", "api_server")),
    "end_reason": lambda c: c.choice(
        (None, "compression", "branched", "cron_complete", "tui_shutdown", "new_session", "startup_orphan_reap")
    ),
    "title": lambda c: c.choice((None, "A talk", "A talk", "A talk #2", "Other")),
    "state": lambda c: c.choice(("running", "pending", "done", "failed", "completed")),
    "delivery_state": lambda c: c.choice(("pending", "claimed", "delivered")),
    "handoff_state": lambda c: c.choice((None, "pending", "running", "done", "failed")),
    "holder": lambda c: c.choice(("pid:1", "host:99999:abc", "1", "pid=4242 host=x", "")),
    "owner_pid": lambda c: c.choice((1, 99999, None)),
    "content": lambda c: c.choice(
        ("hello", "", None, "word " * 20, "\x00json:[1]", "[CONTEXT COMPACTION] so far", "tool output", "pic\x00ture")
    ),
    "finish_reason": lambda c: c.choice((None, "stop", "tool_calls", "length")),
    "tool_call_id": lambda c: c.choice((None, "call_1", "call_2")),
    "tool_name": lambda c: c.choice((None, "terminal", "read_file")),
    "display_kind": lambda c: c.choice((None, "hidden", "notice")),
    "active": lambda c: c.choice((1, 1, 1, 0, None)),
    "compacted": lambda c: c.choice((0, 0, 1, None)),
    "model": lambda c: c.choice(("model", "other", None)),
    "session_key": lambda c: c.choice((None, "telegram:1", "cli", "agent:main:telegram:dm:5")),
    "user_id": lambda c: c.choice((None, "u1", "u2")),
    "chat_id": lambda c: c.choice((None, "5", "6")),
    "chat_type": lambda c: c.choice((None, "dm", "group")),
    "profile_name": lambda c: c.choice((None, "default", "work")),
    "message_uid": lambda c: c.choice((None, f"{c.getrandbits(128):032x}", "same")),
    "system_prompt_hash": lambda c: c.choice((None, "h1", "h2")),
    "hash": lambda c: c.choice(("h1", "h2", "h3")),
    "key": lambda c: c.choice(
        (
            "fts_rebuild_high_water",
            "fts_rebuild_progress",
            "fts_stale",
            "last_auto_prune",
            "last_vacuum",
            "fts_storage_version",
            "message_uid_backfill",
            f"k{c.randrange(99)}",
        )
    ),
    "value": lambda c: c.choice(("1", "0", "5", str(NOW), "x", None)),
    "scope": lambda c: c.choice(("", "default")),
    "version": lambda c: c.choice((11, 16, 22, 25, 30, 31)),
}
_TIMES = ("_at", "timestamp", "_until", "_deadline", "_seen", "heartbeat")
_COUNTS = (
    "_count",
    "_tokens",
    "_streak",
    "_attempts",
    "generation",
    "archived",
    "pinned",
    "hidden",
    "observed",
    "_cost_usd",
)
_JSON = (
    "_json",
    "tool_calls",
    "model_config",
    "reasoning_details",
    "codex_reasoning_items",
    "codex_message_items",
    "display_metadata",
    "_uids",
    "tool_names",
)


#: Rows without an end.
_ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)"


#: Steps of SQLite between two questions whether a statement should go on, and how often that may be asked.
_STEPS, _MOST_ASKED = 10_000, 300


class _Maker:
    """Makes one store."""

    def __init__(self, folder: Path, known: Sequence[Schema], seed: int) -> None:
        self.chance = random.Random(seed)
        self.schema = self.chance.choice(known)
        self.folder = folder
        self.seed = seed
        #: How much is bent, from nearly nothing to nearly everything.
        self.oddness = self.chance.choice((0.0, 0.02, 0.05, 0.15, 0.4))
        #: How many cells hold what they should not.
        self.wildness = self.chance.choice((0.0, 0.02, 0.1, 0.3, 0.8))
        self.odd = Odd(
            seed,
            folder / "state.db",
            [f"release {self.schema.release}, oddness {self.oddness}, wildness {self.wildness}"],
        )
        self.encoding = "UTF-8"
        #: How often the statement that is running was asked whether it should go on.
        self._asked = 0

    def make(self) -> Odd:
        """Make the folder and all in it."""
        self.folder.mkdir(parents=True)
        with closing(apsw.Connection(str(self.odd.store))) as connection:
            self._settings(connection)
            connection.set_progress_handler(self._is_too_long, _STEPS)
            connection.create_collation("STRANGE", lambda a, b: (a > b) - (a < b))
            connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 0)
            connection.execute("BEGIN")
            tables = [bent for table in self.schema.tables if (bent := self._bend(table)) is not None]
            made = [table for table in tables if self._create(connection, table)]
            rows_first = self._maybe(0.5)
            if rows_first:
                self._fill(connection, made)
            for sql in self.schema.others:
                if not self._maybe(self.oddness / 2):
                    self._try(connection, sql)
            if not rows_first:
                self._fill(connection, made)
            elif self._maybe(0.7):
                for index in ("messages_fts", "messages_fts_trigram"):
                    self._try(connection, f"INSERT INTO {index}({index}) VALUES ('rebuild')")
            self._strangers(connection)
            if connection.in_transaction:
                connection.execute("COMMIT")
            if self._maybe(self.oddness / 2):
                self._tamper(connection)
            if self.chance.random() < 0.15:
                connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        self._beside()
        return self.odd

    def _maybe(self, share: float) -> bool:
        return self.chance.random() < share

    def _note(self, line: str) -> None:
        self.odd.notes.append(line)

    def _try(self, connection: apsw.Connection, sql: str, values: Sequence[Cell] = ()) -> bool:
        """Run a statement that what is bent may not allow, or lead to no end."""
        self._asked = 0
        try:
            connection.execute(sql, tuple(values)).fetchall()
        except (apsw.Error, UnicodeDecodeError):
            return False
        return True

    def _is_too_long(self) -> bool:
        """Whether a statement is to be broken off, by steps, not time: strangers' triggers may set off one another."""
        self._asked += 1
        return self._asked > _MOST_ASKED

    def _settings(self, connection: apsw.Connection) -> None:
        chance = self.chance
        if self._maybe(0.3):
            connection.pragma("page_size", chance.choice((512, 1024, 2048, 8192, 16384, 32768, 65536)))
        if self._maybe(0.25):
            self.encoding = chance.choice(("UTF-16le", "UTF-16be"))
            connection.execute(f"PRAGMA encoding = '{self.encoding}'")
            self._note(self.encoding)
        if self._maybe(0.15):
            connection.execute(f"PRAGMA auto_vacuum = {chance.choice((1, 2))}")
        connection.execute(f"PRAGMA journal_mode = {chance.choice(('wal', 'delete'))}").fetchall()
        connection.execute("PRAGMA synchronous = off")
        if self._maybe(0.1):
            connection.execute(f"PRAGMA user_version = {chance.choice((-1, 2**31 - 1))}")
            connection.execute(f"PRAGMA application_id = {chance.choice((-5, 2**31 - 1))}")

    # --- tables -------------------------------------------------------------------------------------------------------

    def _bend(self, table: Table) -> Table | None:
        chance, odd = self.chance, self.oddness
        core = table.name in ("sessions", "messages")
        if self._maybe(odd * (0.1 if core else 0.7)):
            self._note(f"no {table.name}")
            return None
        columns: list[Column] = []
        for column in table.columns:
            bent = self._bend_column(table, column, core=core)
            columns += [] if bent is None else [bent]
        for _ in range(chance.choice((0, 0, 1, 2)) if self._maybe(odd) else 0):
            columns.insert(chance.randrange(len(columns) + 1), self._extra_column([c.name for c in columns]))
        known = [column.name for column in columns if not column.generated]
        lower = {name.lower(): name for name in known}
        key = tuple(lower[name.lower()] for name in table.key if name.lower() in lower)
        tail = ""
        if self._maybe(odd / 2) and key:
            self._note(f"{table.name}: no primary key")
            key = ()
        elif self._maybe(odd / 3) and known:
            key = tuple(chance.sample(known, min(len(known), chance.choice((1, 2, 3)))))
            self._note(f"{table.name}: primary key {key}")
        if self._maybe(odd / 3) and key:
            self._note(f"{table.name}: WITHOUT ROWID")
            tail = "WITHOUT ROWID"
        if self._maybe(odd / 3):
            strict = ("INTEGER", "INT", "REAL", "TEXT", "BLOB", "ANY")
            columns = [c if c.type in strict else replace(c, type="ANY") for c in columns]
            tail = f"{tail}, STRICT" if tail else "STRICT"
            self._note(f"{table.name}: STRICT")
        name = table.name
        if self._maybe(odd / 3):
            name = chance.choice((name.upper(), name.title()))
            self._note(f"{name} in that case")
        whole = len(key) == 1 and any(c.name == key[0] and c.type.upper() == "INTEGER" for c in columns)
        return Table(name, tuple(columns), key, tail, table.autoincrement and whole and not tail)

    def _bend_column(self, table: Table, column: Column, *, core: bool) -> Column | None:
        chance, odd = self.chance, self.oddness
        needed = core and column.name in ("id", "source", "started_at", "session_id", "role")
        if self._maybe(odd / (20 if needed else 4)):
            self._note(f"{table.name}.{column.name} is missing")
            return None
        if self._maybe(odd / 8):
            column = replace(column, name=chance.choice((column.name.upper(), column.name.title())))
        if self._maybe(odd / 6):
            column = replace(
                column,
                type=chance.choice(
                    (
                        "",
                        "TEXT",
                        "INTEGER",
                        "INT",
                        "REAL",
                        "BLOB",
                        "NUMERIC",
                        "ANY",
                        "VARCHAR(5)",
                        "BOOLEAN",
                        "DATETIME",
                    )
                ),
            )
        if self._maybe(odd / 6):
            column = replace(column, extra="")
        if self._maybe(odd / 12):
            column = replace(
                column, extra=f"{column.extra} COLLATE {chance.choice(('NOCASE', 'RTRIM') * 20 + ('STRANGE',))}"
            )
            self._note(f"{table.name}.{column.name} {column.extra}")
        if self._maybe(odd / 25):
            value = chance.choice(("'x'", "5", "NULL", "abs(-7)", "hex(zeroblob(3))", "json_array(1)", "char(27, 0)"))
            kind = chance.choice(("VIRTUAL", "STORED"))
            column = replace(column, extra=f"GENERATED ALWAYS AS ({value}) {kind}", generated=True)
            self._note(f"{table.name}.{column.name} is generated: {value}")
        if self._maybe(odd / 25) and not column.generated:
            column = replace(
                column, extra=f"{column.extra} {chance.choice(('UNIQUE', 'CHECK (1)', 'CHECK (typeof(1) = 1)'))}"
            )
        return column

    def _extra_column(self, taken: Sequence[str]) -> Column:
        names = (
            "rowid",
            "oid",
            "_rowid_",
            "ROWID",
            "",
            " ",
            'a"b',
            "\x1b[31m",
            "select",
            "\u202ex",
            "new_column",
            "\U0001f600",
            "x" * 500,
        )
        free = [name for name in names if name.lower() not in {each.lower() for each in taken}]
        name = self.chance.choice(free)
        self._note(f"a column {name!r}")
        return Column(name, self.chance.choice(("", "TEXT", "INTEGER")))

    def _create(self, connection: apsw.Connection, table: Table) -> bool:
        if not self._maybe(self.oddness / 15):
            if self._try(connection, table.sql):
                return True
            self._note(f"{table.name} could not be made")
            return False
        listed = ", ".join(quoted(column.name) for column in table.columns)
        view = self.chance.choice(
            (
                f"AS SELECT {', '.join('NULL AS ' + quoted(c.name) for c in table.columns)}",
                f"AS {_ENDLESS} SELECT " + ", ".join(f"i AS {quoted(c.name)}" for c in table.columns) + " FROM n",
                "virtual fts5",
                "virtual rtree",
            )
        )
        self._note(f"{table.name} is a view or virtual table: {view[:40]}")
        if view == "virtual fts5":
            self._try(connection, f"CREATE VIRTUAL TABLE {quoted(table.name)} USING fts5({listed})")
        elif view == "virtual rtree":
            self._try(connection, f"CREATE VIRTUAL TABLE {quoted(table.name)} USING rtree(id, a, b)")
        else:
            self._try(connection, f"CREATE VIEW {quoted(table.name)} {view}")
        return False

    # --- rows ---------------------------------------------------------------------------------------------------------

    def _fill(self, connection: apsw.Connection, tables: Sequence[Table]) -> None:
        huge = self._maybe(0.02)
        many = self._maybe(0.05)
        for table in tables:
            rows = {
                "sessions": 14,
                "messages": self.chance.choice((0, 5, 30, 80)),
                "schema_version": 1,
            }.get(table.name.lower(), self.chance.choice((0, 1, 3, 8)))
            if many and table.name.lower() == "messages":
                rows = 700
            for number in range(rows):
                self._row(connection, table, number)
            if huge and rows and (column := self._plain_column(table)) is not None:
                size = self.chance.choice((1 << 20, 3 << 20, 6 << 20))
                what = self.chance.choice(
                    (
                        "zeroblob(?)",
                        "CAST(zeroblob(?) AS TEXT)",
                        "replace(hex(zeroblob(? / 2)), '0', 'x')",
                        "hex(randomblob(? / 2))",
                    )
                )
                if self._try(
                    connection, f"UPDATE {quoted(table.name)} SET {quoted(column)} = {what}", (size // rows + 1,)
                ):
                    self._note(f"{table.name}.{column} holds {size:,} bytes: {what}")

    def _plain_column(self, table: Table) -> str | None:
        plain = [column.name for column in table.columns if not column.generated and column.name not in table.key]
        return self.chance.choice(plain) if plain else None

    def _row(self, connection: apsw.Connection, table: Table, number: int) -> None:
        cells = {c.name: self._cell(table, c, number) for c in table.columns if not c.generated}
        marks = ", ".join("CAST(? AS TEXT)" if isinstance(cell, Text) else "?" for cell in cells.values())
        values = [cell.raw if isinstance(cell, Text) else cell for cell in cells.values()]
        names = ", ".join(quoted(name) for name in cells)
        how = self.chance.choice(("INSERT", "INSERT OR IGNORE", "INSERT OR REPLACE"))
        self._try(connection, f"{how} INTO {quoted(table.name)} ({names}) VALUES ({marks})", values)

    def _cell(self, table: Table, column: Column, number: int) -> Cell | Text:
        chance, name = self.chance, column.name.lower()
        if self._maybe(self.wildness / 3):
            return self._wild()
        if name == "id":
            if table.name.lower() == "sessions":
                return f"s{number}" if not self._maybe(self.wildness / 2) else chance.choice(ACTING)
            if self._maybe(self.wildness / 4):
                return chance.choice((-5, 0, 2**63 - 1, 2**62, -(2**63), 10**15, None))
            return number + 1
        if name == "delegation_id":
            return f"d{number}"
        if name in _USUAL:
            return _USUAL[name](chance)
        if name.endswith(_TIMES):
            if "ended" in name and self._maybe(0.5):
                return None
            return NOW - chance.choice((5.0, 3600.0, 86400.0 * 3, 86400.0 * 200)) - number
        if name.endswith(_COUNTS):
            return chance.choice((0, 0, 1, 3, 7))
        if name.endswith(_JSON):
            return None if self._maybe(0.4) else _documents(chance)
        return None if "NOT NULL" not in column.extra and self._maybe(0.6) else chance.choice(("x", "y", 1))

    def _wild(self) -> Cell | Text:
        chance = self.chance
        kind = chance.randrange(8)
        if kind == 0:
            return None
        if kind == 1:
            return chance.choice(NUMBERS)
        if kind == 2:
            return chance.choice(ACTING)
        if kind == 3:
            return Text(chance.choice(_BAD_TEXT))
        if kind == 4:
            return Text(chance.randbytes(chance.randrange(1, 9)))
        if kind == 5:
            return chance.choice(
                (b"", b"\x00", b"{}", b'[{"a":1}]', struct.pack(">d", float("nan")), chance.randbytes(20))
            )
        if kind == 6:
            return f"s{chance.randrange(14)}"
        return _documents(chance)

    # --- strangers ----------------------------------------------------------------------------------------------------

    def _strangers(self, connection: apsw.Connection) -> None:
        for name, sql in STRANGERS.items():
            if self._maybe(self.oddness / 6) and self._try(connection, sql):
                self._note(f"a stranger's {name}")

    def _tamper(self, connection: apsw.Connection) -> None:
        """Change the schema behind SQLite's back."""
        chance = self.chance
        deeds = (
            "UPDATE sqlite_schema SET sql = replace(sql, 'TEXT', 'TEXTILE') WHERE type = 'table'",
            "UPDATE sqlite_schema SET sql = sql || ' -- \x1b[31m' WHERE type = 'index'",
            "UPDATE sqlite_schema SET rootpage = (SELECT rootpage FROM sqlite_schema WHERE name = 'messages') "
            "WHERE name = 'sessions'",
            "UPDATE sqlite_schema SET rootpage = 99999 WHERE name = 'state_meta'",
            "UPDATE sqlite_schema SET sql = 'nonsense' WHERE type = 'trigger'",
            "UPDATE sqlite_schema SET sql = NULL WHERE type = 'view'",
            "UPDATE sqlite_schema SET name = CAST(x'ff' AS TEXT) WHERE type = 'index'",
            "UPDATE sqlite_schema SET name = CAST(x'6dff' AS TEXT), tbl_name = CAST(x'6dff' AS TEXT) WHERE "
            "name = 'state_meta'",
            "UPDATE sqlite_schema SET type = 'view' WHERE name = 'messages'",
            "UPDATE sqlite_schema SET tbl_name = 'nowhere' WHERE type IN ('trigger', 'index')",
            "UPDATE sqlite_schema SET name = 5 WHERE name = 'state_meta'",
            "UPDATE sqlite_schema SET sql = replace(sql, 'session_id', 'session_\x1bid') WHERE name = 'messages'",
            "UPDATE sqlite_schema SET sql = sql || x'00' WHERE type = 'table'",
            "INSERT INTO sqlite_schema VALUES ('table', 'ghost', 'ghost', 0, 'CREATE TABLE ghost(a)')",
            "INSERT INTO sqlite_schema VALUES ('trigger', 'ghost', 'ghost', 0, 'CREATE TRIGGER ghost AFTER "
            "INSERT ON ghost BEGIN SELECT 1; END')",
            "DELETE FROM sqlite_schema WHERE name LIKE 'sqlite_autoindex%'",
            "DELETE FROM sqlite_schema WHERE name = 'messages_fts_data'",
            "UPDATE sqlite_schema SET sql = replace(sql, 'content=', 'content_=') WHERE name LIKE 'messages_fts%'",
            "UPDATE sqlite_schema SET sql = 'CREATE VIRTUAL TABLE messages_fts USING absent(content)' WHERE "
            "name = 'messages_fts'",
            "UPDATE sqlite_schema SET sql = 'CREATE VIRTUAL TABLE messages_fts USING fts5(content, "
            "tokenize=''absent'')' WHERE name = 'messages_fts'",
            "UPDATE sqlite_schema SET sql = 'CREATE VIRTUAL TABLE messages_fts USING rtree(id, a, b)' WHERE "
            "name = 'messages_fts'",
            "DELETE FROM messages_fts_data WHERE id > 10",
            "UPDATE messages_fts_data SET block = randomblob(100)",
            "UPDATE messages_fts_config SET v = 99",
            "DROP TABLE messages_fts_docsize",
            "INSERT INTO messages_fts_docsize VALUES (-5, x'00'), (9223372036854775807, x'ff')",
        )
        deed = chance.choice(deeds)
        connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 0)
        connection.execute("PRAGMA writable_schema = ON")
        if self._try(connection, deed):
            self._note(f"behind SQLite's back: {deed}")
        connection.execute("PRAGMA writable_schema = OFF")

    def _beside(self) -> None:
        """What may lie around a store."""
        chance = self.chance
        wal = self.odd.store.with_name("state.db-wal")
        shm = self.odd.store.with_name("state.db-shm")
        if wal.exists() and self._maybe(0.5):
            shm.unlink(missing_ok=True)
        if wal.exists() and self._maybe(0.1):
            wal.write_bytes(wal.read_bytes()[: -chance.randrange(1, 5000)])
        if self._maybe(0.1):
            (self.folder / "sessions").mkdir()
            for name in ("s1.jsonl", "s2.json", "request_dump_s3_1.json", "\x1b[31m.jsonl", "sessions.json"):
                with contextlib.suppress(OSError):
                    (self.folder / "sessions" / name).write_bytes(
                        chance.choice(
                            (b"", b"{}", b"[" * 5000, b"\xff\xfe", b'{"a": {"session_id": "s1"}}', b"null\n3\n")
                        )
                    )
        if self._maybe(0.1):
            (self.folder / "config.yaml").write_bytes(
                chance.choice(
                    (
                        b"",
                        b"\xff",
                        b"sessions: 5",
                        b"sessions: {auto_prune: {a: 1}}",
                        b"a: &a [*a]",
                        b"sessions:\n  auto_prune: true\n  retention_days: .inf\n",
                        b"- 1",
                        b"{" * 500,
                    )
                )
            )


#: Triggers, views and tables of strangers. What they do beyond their table, a doctor's writing must not set off.
STRANGERS: dict[str, str] = {
    "trigger that deletes messages": "CREATE TRIGGER t1 AFTER UPDATE ON sessions BEGIN DELETE FROM messages; END",
    "trigger that empties sessions": "CREATE TRIGGER t2 AFTER UPDATE ON messages BEGIN UPDATE sessions SET "
    "title = 'gone'; END",
    "trigger that rolls back": "CREATE TRIGGER t3 BEFORE UPDATE ON sessions BEGIN SELECT RAISE(ROLLBACK, 'no "
    "\x1b[31m'); END",
    "trigger that aborts": "CREATE TRIGGER t4 BEFORE UPDATE ON messages BEGIN SELECT RAISE(ABORT, 'no \x1b[31m'); END",
    "trigger that ignores": "CREATE TRIGGER t5 BEFORE UPDATE ON sessions BEGIN SELECT RAISE(IGNORE); END",
    "trigger that loads": "CREATE TRIGGER t6 AFTER UPDATE ON sessions BEGIN SELECT load_extension('/tmp/x'); END",
    "trigger that writes a file": "CREATE TRIGGER t7 AFTER UPDATE ON messages BEGIN SELECT writefile('/tmp/x', "
    "'x'); END",
    "trigger that never ends": "CREATE TRIGGER t8 AFTER UPDATE ON sessions BEGIN"
    f" INSERT INTO state_meta(key, value) {_ENDLESS} SELECT i, i FROM n; END",
    "trigger on deletion": "CREATE TRIGGER t9 AFTER DELETE ON messages BEGIN DELETE FROM sessions; END",
    "trigger on a lock": "CREATE TRIGGER t10 AFTER DELETE ON compression_locks BEGIN DELETE FROM sessions; END",
    "trigger on insertion": "CREATE TRIGGER t11 AFTER INSERT ON sessions BEGIN DELETE FROM messages; END",
    "trigger under hermes's name": "CREATE TRIGGER messages_display_order_insert2 AFTER INSERT ON messages "
    "BEGIN DELETE FROM sessions; END",
    "trigger in hermes's place": "CREATE TRIGGER messages_message_uid_insert AFTER UPDATE ON messages BEGIN "
    "DELETE FROM sessions; END",
    "log": "CREATE TABLE audit_log(at, what)",
    "log trigger": "CREATE TRIGGER t12 AFTER UPDATE ON sessions BEGIN INSERT INTO audit_log VALUES (1, new.id); END",
    "view": "CREATE VIEW v1 AS SELECT * FROM nowhere",
    "endless view": f"CREATE VIEW v2 AS {_ENDLESS} SELECT i FROM n",
    "trigger on a view": "CREATE TRIGGER t13 INSTEAD OF INSERT ON v1 BEGIN DELETE FROM sessions; END",
    "dbstat table": "CREATE VIRTUAL TABLE pages USING dbstat",
    "rtree": "CREATE VIRTUAL TABLE boxes USING rtree(id, a, b)",
    "fts4": "CREATE VIRTUAL TABLE words USING fts4(content)",
    "fts5 of nothing": "CREATE VIRTUAL TABLE messages_fts_cjk USING fts5(content, content='nowhere')",
    "index on an expression": "CREATE INDEX i1 ON messages(length(content) + abs(timestamp))",
    "partial index": "CREATE INDEX i2 ON sessions(json_extract(model_config, '$.a')) WHERE json_valid(model_config)",
    "strange index": "CREATE INDEX i3 ON sessions(title COLLATE STRANGE)",
    "table with an odd name": 'CREATE TABLE "\x1b[31m\u202e\'"""(a PRIMARY KEY, b) WITHOUT ROWID',
    "cascade": "CREATE TABLE children(id INTEGER PRIMARY KEY, session_id REFERENCES sessions(id) ON DELETE "
    "CASCADE ON UPDATE SET NULL)",
    "endless source": f"CREATE VIEW IF NOT EXISTS messages_fts_src AS {_ENDLESS}"
    " SELECT i AS id, i AS content, '' AS tool_name, '' AS tool_calls FROM n",
    "crossed source": "CREATE VIEW IF NOT EXISTS messages_fts_trigram_src AS SELECT a.id, a.role, a.content,"
    " a.tool_name, a.tool_calls FROM messages AS a, messages AS b, messages AS c, messages AS d",
}


def _main(arguments: Sequence[str]) -> Iterator[str]:
    folder, seed = Path(arguments[0]), int(arguments[1])
    yield from make(folder / f"odd-{seed}", schemas(folder / "schemas"), seed).notes


if __name__ == "__main__":
    for line in _main(sys.argv[1:]):
        sys.stdout.write(f"{line!r}\n")
