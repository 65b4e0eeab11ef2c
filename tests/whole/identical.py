"""Logically identical: what a person and a release can tell of a store, in full, and what differs between two.

The schema's text; every row of every ordinary table, by the type and bytes of each cell; and, for the search
indexes, their own integrity check, their texts where they hold any, and the answers to a few words. Not the rowid
counters of ``sqlite_sequence``, not the index's own tables, not the keys of ``state_meta`` that hermes rewrites.

It knows nothing of the doctor's own code, so that the two cannot be wrong together. The indexes are asked through
Python's own sqlite3, as the releases do: the trigram tokenizer of newer versions goes on behind a NUL, older ones
stop there, and each finds fault with what the other wrote.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import apsw

#: Keys of state_meta that a release writes for itself, whatever was done to the store.
HERMES_KEYS = frozenset(
    {
        "last_auto_prune",
        "last_vacuum",
        "last_auto_archive",
        "ghost_session_prune_v1",
        "orphaned_compression_finalize_v1",
        "fts_rebuild_deferral",
    }
)

#: Asked of every index: words of contents, tool names and tool calls of the homes that the tests make.
WORDS = ("hello", "terminal", "function", "files", "zombie", "reasoning", "ls", "file")

#: Steps of SQLite's that are enough to compare any index of the tests with its source.
_MOST_STEPS = 50_000_000

#: A cell: its type and its value, bytes for text and blobs.
Cell = tuple[str, object]
Row = tuple[Cell, ...]


@dataclass(frozen=True)
class Image:
    """One store, as compared. ``rows``: by table, each row with how often it is there."""

    schema: dict[str, str]
    columns: dict[str, tuple[str, ...]]
    keys: dict[str, tuple[int, ...]]
    rows: dict[str, Counter[Row]]
    index: dict[str, object] = field(default_factory=dict)

    def table(self, name: str) -> list[dict[str, object]]:
        """The rows of a table as plain values by column name (bytes for text)."""
        return [
            {column: value for column, (_type, value) in zip(self.columns[name], row, strict=True)}
            for row in self.rows[name].elements()
        ]

    def ids(self, table: str = "sessions", column: str = "id") -> set[str]:
        """The text ids of a table's rows."""
        return {value.decode() for row in self.table(table) if isinstance(value := row[column], bytes)}


def image_of(store: Path) -> Image:
    """Read a store, from a copy of its files, so that looking changes nothing."""
    with _copied(store) as (connection, releases):
        objects = connection.execute("SELECT type, name, sql FROM sqlite_schema").fetchall()
        listed = connection.execute("SELECT name, type FROM pragma_table_list WHERE schema = 'main'").fetchall()
        kinds = {str(name): str(kind) for name, kind in listed}
        plain = sorted(name for name, kind in kinds.items() if kind == "table" and not name.startswith("sqlite_"))
        columns, keys, rows = {}, {}, {}
        for table in plain:
            described = connection.execute("SELECT name, pk FROM pragma_table_xinfo(?)", (table,)).fetchall()
            columns[table] = tuple(str(name) for name, _pk in described)
            keys[table] = tuple(place for place, (_name, pk) in enumerate(described) if pk)
            rows[table] = Counter(_rows(connection, table, columns[table]))
        schema = {f"{kind} {name}": str(sql) for kind, name, sql in objects if kinds.get(str(name)) != "shadow"}
        return Image(schema, columns, keys, rows, _index(connection, releases))


def difference(before: Image, after: Image, *, but_for: Collection[str] = HERMES_KEYS) -> list[str]:
    """Say what differs, one line each, empty where the two are logically identical.

    ``but_for``: keys of state_meta that do not count. Cells are named, their contents are shown cut short.
    """
    lines = [
        f"schema of {name}: {before.schema.get(name)!r} is now {after.schema.get(name)!r}"
        for name in sorted(before.schema.keys() | after.schema.keys())
        if before.schema.get(name) != after.schema.get(name)
    ]
    for table in sorted(before.rows.keys() & after.rows.keys()):
        if before.columns[table] != after.columns[table]:
            lines.append(f"{table}: columns {before.columns[table]} are now {after.columns[table]}")
            continue
        lines += _row_differences(before, after, table, but_for)
    for name in sorted(before.index.keys() | after.index.keys()):
        if before.index.get(name) != after.index.get(name):
            lines.append(f"{name}: {_short(before.index.get(name))} is now {_short(after.index.get(name))}")
    return lines


def index_faults(store: Path) -> list[str]:
    """Say in what a search index is out of step with the messages: its check fails, or a text is not the row's."""
    faults = []
    with _copied(store) as (connection, releases):
        for name, sql in _indexes(connection):
            faults += [f"{name}: {error}" for error in [_check(releases, name, sql)] if error]
            if not _is_external(sql):
                faults += [f"{name}: message {key} has another text" for key in _stale(connection, name)]
            else:
                faults += [
                    f"{name}: message {key} is missing or left over" for key in _misplaced(connection, name, sql)
                ]
    return faults


@contextmanager
def _copied(store: Path) -> Iterator[tuple[apsw.Connection, sqlite3.Connection]]:
    """A copy, open through APSW and as the releases open it."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy.db"
        for suffix in ("", "-wal", "-journal"):
            source = store.with_name(store.name + suffix)
            if source.exists():
                shutil.copy(source, copy.with_name(copy.name + suffix))
        with closing(apsw.Connection(str(copy))) as connection, closing(sqlite3.connect(copy)) as releases:
            # Without isolation_level a check would begin a transaction.
            releases.isolation_level = None
            # Nothing of the copy is to last.
            releases.execute("PRAGMA synchronous=OFF")
            connection.pragma("synchronous", "OFF")
            yield connection, releases


def _rows(connection: apsw.Connection, table: str, columns: tuple[str, ...]) -> Iterator[Row]:
    # Text as bytes: it may hold NULs, or be no text at all.
    cells = ", ".join(
        f"""typeof("{c}"), CASE WHEN typeof("{c}") IN ('text', 'blob') THEN CAST("{c}" AS BLOB) ELSE "{c}" END"""
        for c in columns
    )
    for row in connection.execute(f'SELECT {cells} FROM "{table}"'):
        yield tuple((str(row[n]), row[n + 1]) for n in range(0, len(row), 2))


def _row_differences(before: Image, after: Image, table: str, but_for: Collection[str]) -> Iterator[str]:
    lost, new = before.rows[table] - after.rows[table], after.rows[table] - before.rows[table]
    if table == "state_meta":
        ignored = {("text", key.encode()) for key in but_for}
        lost, new = (Counter({row: n for row, n in rows.items() if row[0] not in ignored}) for rows in (lost, new))
    key = before.keys[table] or tuple(range(len(before.columns[table])))
    by_key = {tuple(row[place] for place in key): row for row in new}
    for row in lost:
        name = tuple(row[place] for place in key)
        other = by_key.pop(name, None)
        shown = ", ".join(_short(value) for _type, value in name[:3])
        if other is None:
            yield f"{table} {shown}: the row is gone"
            continue
        for column, old, now in zip(before.columns[table], row, other, strict=True):
            if old != now:
                yield f"{table} {shown}: {column} {_short(old)} is now {_short(now)}"
    for name in by_key:
        yield f"{table} {', '.join(_short(value) for _type, value in name[:3])}: the row is new"


def _indexes(connection: apsw.Connection) -> list[tuple[str, str]]:
    return [
        (str(name), str(sql))
        for name, sql in connection.execute("SELECT name, sql FROM sqlite_schema WHERE sql LIKE 'CREATE VIRTUAL%fts5%'")
    ]


def _is_external(sql: str) -> bool:
    return "content=" in sql.replace(" ", "")


def _index(connection: apsw.Connection, releases: sqlite3.Connection) -> dict[str, object]:
    """What the indexes say: their check, the texts that they hold themselves, and their answers."""
    found: dict[str, object] = {}
    for name, sql in _indexes(connection):
        found[f"check of {name}"] = _check(releases, name, sql)
        if not _is_external(sql):
            found[f"texts of {name}"] = sorted(_rows(connection, f"{name}_content", ("id", "c0")))
        for word in WORDS:
            matched = releases.execute(f'SELECT rowid FROM "{name}" WHERE "{name}" MATCH ? ORDER BY 1', (f'"{word}"',))
            found[f"{word} in {name}"] = [row[0] for row in matched]
    return found


def _check(releases: sqlite3.Connection, name: str, sql: str) -> str | None:
    rank = int(_is_external(sql))
    try:
        releases.execute(f'INSERT INTO "{name}"("{name}", rank) VALUES (?, ?)', ("integrity-check", rank))
    except sqlite3.DatabaseError as error:
        return f"fails its check ({error})"
    return None


def _stale(connection: apsw.Connection, name: str) -> list[int]:
    """The messages whose text in an inline index is not theirs; long tool results may be cut short (0.21.5 on)."""
    text = "coalesce({}, '') || ' ' || coalesce(tool_name, '') || ' ' || coalesce(tool_calls, '')"
    whole, cut = text.format("content"), text.format("substr(content, 1, 8192)")
    right = f"c0 IS {whole} OR (role = 'tool' AND c0 IS {cut})"
    wrong = connection.execute(
        f'SELECT coalesce(m.id, i.id) FROM messages AS m FULL JOIN "{name}_content" AS i ON i.id = m.id'
        f" WHERE m.id IS NULL OR i.id IS NULL OR NOT ({right})"
    )
    return [row[0] for row in wrong]


def _misplaced(connection: apsw.Connection, name: str, sql: str) -> list[int]:
    """The messages that an external index lacks although its source shows them, or holds although it does not."""
    source = sql.replace(" ", "").split("content=")[1].split(",")[0].strip("')\n")
    connection.set_progress_handler(lambda: True, _MOST_STEPS)
    try:
        # Through a view the row is called id.
        wrong = connection.execute(
            f'SELECT coalesce(s.id, d.id) FROM "{source}" AS s FULL JOIN "{name}_docsize" AS d ON d.id = s.id'
            " WHERE s.id IS NULL OR d.id IS NULL"
        )
        return [row[0] for row in wrong]
    except apsw.InterruptError:
        # Of a stranger's view that never ends nothing can be said; no release's has what it takes for that.
        if "RECURSIVE" not in str(connection.execute("SELECT sql FROM sqlite_schema WHERE name = ?", (source,)).get):
            raise
        return []
    finally:
        connection.set_progress_handler(None)


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 80 else f"{shown[:60]}… ({len(shown)})"
