"""Stores made by hand, damaged by hand, and rescued. What is compared is bytes and types, as SQLite tells them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import apsw

from hermes_doctor.catalogue import catalogue
from hermes_doctor.engine.plan import Chosen
from hermes_doctor.engine.stopping import Stop
from hermes_doctor.host.homes import StoreRef
from hermes_doctor.rescue.account import Rescue, TableAccount
from hermes_doctor.rescue.pages import Pages
from hermes_doctor.rescue.run import rescue_store

#: The least that makes a database a store of hermes.
HERMES = (
    "CREATE TABLE sessions (id TEXT PRIMARY KEY, source TEXT NOT NULL, started_at REAL NOT NULL)",
    "CREATE TABLE messages (id INTEGER PRIMARY KEY AUTOINCREMENT, session_id TEXT NOT NULL REFERENCES sessions(id),"
    " role TEXT NOT NULL, content TEXT, timestamp REAL NOT NULL)",
    "INSERT INTO sessions VALUES ('s', 'cli', 1.5)",
)
#: Many messages of one session, each of which tells its number.
MESSAGES = (
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count})"
    " INSERT INTO messages(session_id, role, content, timestamp)"
    " SELECT 's', 'user', 'message ' || i || ' ' || hex(zeroblob({length})), 1000.0 + i FROM n"
)
#: A row as it is in the file: each value's type, and its bytes.
Row = tuple[tuple[str, bytes | int | float | None], ...]


def make(path: Path, *statements: str, page_size: int = 4096, encoding: str = "UTF-8", before: str = "") -> Path:
    """Makes a database, and leaves no sidecar."""
    with closing(apsw.Connection(str(path))) as connection:
        connection.pragma("page_size", page_size)
        connection.pragma("encoding", encoding)
        for statement in (before, *statements):
            connection.execute(statement)
    return path


def hermes(path: Path, *statements: str, messages: int = 3, length: int = 20, **how: Any) -> Path:
    """A small store of hermes, and what else is wanted in it."""
    filled = [MESSAGES.format(count=messages, length=length)] if messages else []
    return make(path, *HERMES, *filled, *statements, **how)


def run(path: Path, *statements: str) -> None:
    """Has SQLite do something to a database that may hold anything."""
    with closing(apsw.Connection(str(path))) as connection:
        connection.pragma("writable_schema", True)
        for statement in statements:
            connection.execute(statement)


def ask(path: Path, sql: str, *values: Any) -> list[Any]:
    with closing(apsw.Connection(str(path))) as connection:
        return connection.execute(sql, values).fetchall()


def rows_of(path: Path, table: str, key: str | None = "rowid") -> dict[Any, Row]:
    """All rows of a table by their rowid, each value by its type and its bytes; just counted where there is no key."""
    with closing(apsw.Connection(str(path))) as connection:
        quoted = '"' + table.replace('"', '""') + '"'
        columns = [
            '"' + str(name).replace('"', '""') + '"'
            for (name,) in connection.execute(
                "SELECT name FROM pragma_table_xinfo(?) WHERE hidden IN (0, 2, 3)", (table,)
            )
        ]
        # A result has no more columns than a table, and each value is asked for with its type.
        found: dict[Any, Row] = {}
        for begin in range(0, len(columns), 900):
            cells = ", ".join(
                f"typeof({c}), CASE WHEN typeof({c}) IN ('text', 'blob') THEN CAST({c} AS BLOB) ELSE {c} END"
                for c in columns[begin : begin + 900]
            )
            for n, (own, *values) in enumerate(
                connection.execute(f"SELECT {key or 'NULL'}, {cells} FROM {quoted} NOT INDEXED")
            ):
                row = tuple(zip(values[::2], values[1::2], strict=True))
                own = own if key else n
                found[own] = (*found.get(own, ()), *row)
        return found


def chosen() -> Chosen:
    names = ("orphan-messages", "search-index")
    found = catalogue()
    return Chosen(
        [check for check in found.checks if check.name in names],
        {name: fix for name, fix in found.fixes.items() if name in names},
        unsafe=True,
    )


def rescue(store: Path, output: Path | None = None, **how: Any) -> Rescue:
    """Rescues a store, and makes sure that nothing of it was touched, and that nothing else was left behind."""
    how.setdefault("inspect_only", output is None)
    how.setdefault("chosen", chosen())
    how.setdefault("stop", Stop())
    with untouched(store, () if output is None or how["inspect_only"] else (output,)):
        result = rescue_store(StoreRef(store, None, "default"), output, **how)
    if result.output is not None:
        assert not [
            name for name in ("-wal", "-shm", "-journal") if output and output.with_name(output.name + name).exists()
        ]
    return result


@contextmanager
def untouched(store: Path, new: Iterable[Path] = ()) -> Iterator[None]:
    """The store's folder, and all that is in it, is as it was; but for what may be new."""
    folders = {store.absolute().parent, *(file.absolute().parent for file in new if file.parent.is_dir())}
    before = {folder: listing(folder) for folder in folders}
    yield
    for folder in folders:
        after = listing(folder)
        for file in new:
            if file.absolute().parent == folder and file.name not in before[folder]:
                after.pop(file.name, None)
        assert after == before[folder]


def listing(folder: Path) -> dict[str, tuple[int, int, str]]:
    """What is in a folder: modes, times of change, and sums."""
    found = {}
    for path in folder.rglob("*"):
        status = path.lstat()
        data = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        found[str(path.relative_to(folder))] = (status.st_mode, status.st_mtime_ns, hashlib.sha256(data).hexdigest())
    return found


def account(result: Rescue, table: str) -> TableAccount:
    found = result.table(table)
    assert found is not None, [each.name for each in result.tables]
    return found


def hold(before: dict[Any, Row], result: Rescue, table: str = "messages", key: str = "rowid") -> dict[Any, Row]:
    """What must always be so: a row is as it was, or it is named. Returns those that were saved."""
    told = account(result, table)
    after = {} if result.output is None else rows_of(result.output, table, key)
    assert told.rows == len(after)
    for number in before.keys() | after.keys():
        assert before.get(number) == after.get(number) or named(told, number), number
    return after


def named(account: TableAccount, number: int) -> bool:
    """Whether an account names a row as one that is not, or may not be, as it was."""
    ranges = [(each.low, each.high) for each in account.lost] + list(account.doubtful) + list(account.cut_rows)
    return any((low is None or low <= number) and (high is None or number <= high) for low, high in ranges)


def size_of_page(store: Path) -> int:
    raw = int.from_bytes(store.read_bytes()[16:18], "big")
    return 65536 if raw == 1 else raw


def pages_of(store: Path, name: str, kind: str | None = None) -> list[int]:
    """The pages of a table or index, as SQLite tells them. ``kind``: leaf, internal or overflow."""
    sql = "SELECT pageno, pagetype FROM dbstat WHERE name = ? ORDER BY path"
    return [number for number, told in ask(store, sql, name) if kind in (None, told)]


def root_of(store: Path, name: str) -> int:
    return int(ask(store, "SELECT rootpage FROM sqlite_schema WHERE name = ?", name)[0][0])


def page(store: Path, number: int) -> bytes:
    size = size_of_page(store)
    return store.read_bytes()[(number - 1) * size : number * size]


def put(store: Path, number: int, data: bytes, at: int = 0) -> None:
    """Writes into a page, past SQLite."""
    size = size_of_page(store)
    with store.open("r+b") as file:
        file.seek((number - 1) * size + at)
        file.write(data)


def zero(store: Path, *numbers: int) -> None:
    size = size_of_page(store)
    for number in numbers:
        put(store, number, bytes(size))


def swap(store: Path, one: int, other: int) -> None:
    first, second = page(store, one), page(store, other)
    put(store, one, second)
    put(store, other, first)


@contextmanager
def read(store: Path, reserved: int = 0, encoding: str = "UTF-8") -> Iterator[Pages]:
    with Pages(store, size_of_page(store), reserved, encoding) as pages:
        yield pages


Damage = Callable[[Path], object]
