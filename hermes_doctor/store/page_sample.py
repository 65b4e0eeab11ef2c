"""Looking at some pages of a large store: small tables whole, of large ones a few rows and index entries by chance."""

from __future__ import annotations

import random
import re
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import apsw

from hermes_doctor.store.cells import quote
from hermes_doctor.store.integrity import Kind, Problem, after, ask
from hermes_doctor.store.trees import Part, Tree

#: Seconds for the tables, all together and one at most, and for the rows of those that were too large for that.
_TABLES_SECONDS, _TABLE_SECONDS, _ROWS_SECONDS = 0.025, 0.002, 0.025
#: Rows that are looked for at most.
_ROWS = 400

#: A search index keeps its lists of words in runs of numbers, each of which begins at a multiple of this.
_RUN_BITS = 37


class _Looks(NamedTuple):
    """What is looked at of one tree: a query that reads a row, one that has no answer in a sound tree; the numbers."""

    table: str
    name: str
    row: str
    sql: str
    numbers: Iterator[int]


@dataclass
class Sample:
    """What a sample came to.

    ``by_table``: the problems of the tables that have any. ``pages``: how many were read. ``page_seconds``: how long
    one took while whole tables were read; None where that was over too soon to tell.
    """

    by_table: dict[str, list[Problem]] = field(default_factory=dict)
    pages: int = 0
    page_seconds: float | None = None


def take_sample(connection: apsw.Connection, trees: Sequence[Tree], chance: random.Random, patience: float) -> Sample:
    """Look at a sample. ``patience``: how many times the usual seconds it may take."""
    sample = Sample()
    _read_pages(connection)
    large = _whole_tables(connection, trees, chance, patience, sample)
    _single_rows(connection, large, trees, chance, patience, sample)
    sample.pages = _read_pages(connection)
    return sample


def _whole_tables(
    connection: apsw.Connection, trees: Sequence[Tree], chance: random.Random, patience: float, sample: Sample
) -> list[Tree]:
    """Ask about each table for a moment; return those that were not done in that time, or not reached."""
    tables = [tree for tree in trees if not tree.is_index]
    # The schema, and with it the list of free pages, comes first.
    waiting = [*tables[:1], *chance.sample(tables[1:], len(tables) - 1)]
    end = time.monotonic() + _TABLES_SECONDS * patience
    unfinished: list[Tree] = []
    read, spent = 0, 0.0
    for tree in waiting:
        began = time.monotonic()
        if began >= end:
            unfinished.append(tree)
            continue
        before = _pages_so_far(connection)
        limit = min(_TABLE_SECONDS * patience, end - began)
        answer = ask(connection, tree.name, stop=after(limit))
        if answer.problems:
            sample.by_table.setdefault(tree.name, []).extend(answer.problems)
        if not answer.finished:
            unfinished.append(tree)
            read += _pages_so_far(connection) - before
            spent += time.monotonic() - began
    sample.page_seconds = spent / read if read else None
    return [tree for tree in unfinished if tree.part is not Part.SCHEMA]


def _single_rows(
    connection: apsw.Connection,
    large: Sequence[Tree],
    trees: Sequence[Tree],
    chance: random.Random,
    patience: float,
    sample: Sample,
) -> None:
    """Look for rows of the large tables, and for entries of their indexes, by turns."""
    end = time.monotonic() + _ROWS_SECONDS * patience
    looks: deque[_Looks] = deque()
    for table in large:
        if table.name in sample.by_table:
            continue
        try:
            numbers = _some_rowids(connection, table.name, chance)
            row = _row_question(connection, table)
        except (apsw.CorruptError, apsw.NotADBError):
            sample.by_table[table.name] = [Problem(Kind.STOPPED, name=table.name)]
            continue
        except (apsw.SQLError, UnicodeDecodeError):
            # A table without such numbers, or one with a column whose name is no text.
            continue
        looks.append(_Looks(table.name, table.name, row, row, iter(numbers)))
        for index in trees:
            entry = _entry_question(connection, table, index) if index.is_index and index.table == table.name else None
            if entry is not None:
                looks.append(_Looks(table.name, index.name, row, entry, iter(numbers)))
    for _ in range(_ROWS):
        if not looks or time.monotonic() >= end:
            return
        look = looks.popleft()
        number = next(look.numbers, None)
        if number is None:
            continue
        try:
            problem = _looked(connection, look, number)
        except apsw.SQLError:
            # SQLite cannot use the index for such a question, or does not know a function that is in it.
            continue
        if problem is None:
            looks.append(look)
        else:
            sample.by_table.setdefault(look.table, []).append(problem)


def _looked(connection: apsw.Connection, look: _Looks, number: int) -> Problem | None:
    """Ask about one row; return what is wrong."""
    name = look.table
    try:
        connection.execute(look.row, (number,)).fetchall()
        name = look.name
        missing = connection.execute(look.sql, (number,)).fetchall() if look.sql != look.row else []
    except (apsw.CorruptError, apsw.NotADBError):
        return Problem(Kind.STOPPED, name=name)
    return Problem(Kind.INDEX, name=name) if missing else None


def _some_rowids(connection: apsw.Connection, table: str, chance: random.Random) -> list[int]:
    """Return numbers, by chance, near which the table has rows. Raises apsw.SQLError for a table without numbers."""
    name = quote(table)
    first = _number(connection, f"SELECT min(rowid) FROM {name} WHERE rowid >= ?", -(1 << 63))
    last = _number(connection, f"SELECT max(rowid) FROM {name} WHERE rowid <= ?", (1 << 63) - 1)
    if first is None or last is None:
        return []
    runs = [(first, last)]
    if last - first >> _RUN_BITS:
        runs = []
        low: int | None = first
        while low is not None and len(runs) < _ROWS:
            end = low | (1 << _RUN_BITS) - 1
            runs.append((low, _number(connection, f"SELECT max(rowid) FROM {name} WHERE rowid <= ?", end) or low))
            low = _number(connection, f"SELECT min(rowid) FROM {name} WHERE rowid > ?", end)
    chosen = chance.choices(runs, weights=[high - low + 1 for low, high in runs], k=_ROWS)
    # Both ends in any case: what was written last is what is torn first.
    return [last, first, *(chance.randint(low, high) for low, high in chosen)]


def _number(connection: apsw.Connection, sql: str, value: int) -> int | None:
    answer = connection.execute(sql, (value,)).fetchall()[0][0]
    return answer if isinstance(answer, int) else None


def _row_question(connection: apsw.Connection, table: Tree) -> str:
    """Return the query that reads a row with all of its columns, those in pages of their own included."""
    row = (
        f"SELECT {touching(connection, table.name)} AS x FROM {quote(table.name)} NOT INDEXED WHERE rowid >= ? LIMIT 1"
    )
    return f"SELECT 1 FROM ({row}) WHERE x < 0"


def _entry_question(connection: apsw.Connection, table: Tree, index: Tree) -> str | None:
    """Return the query that goes down an index to where a row should be, and has an answer where it is not there.

    None where the index is over an expression.
    """
    columns = connection.execute(
        "SELECT name FROM pragma_index_xinfo(?) WHERE key ORDER BY seqno", (index.name,)
    ).fetchall()
    if not columns or any(name is None for (name,) in columns):
        return None
    # A partial index can be used only by a question that holds its own condition.
    match = re.search(r"\bWHERE\b(.*)", index.sql, re.I | re.S) if index.partial else None
    condition = f"({match[1]})" if match else "1"
    names, rows = [quote(str(name)) for (name,) in columns], quote(table.name)
    row = f"SELECT rowid AS number, {condition} AS wanted, {', '.join(names)} FROM {rows} NOT INDEXED"
    same = " AND ".join(f"t.{name} IS r.{name}" for name in names)
    entry = f"SELECT 1 FROM {rows} AS t INDEXED BY {quote(index.name)}"
    return (
        f"SELECT 1 FROM ({row} WHERE rowid >= ? LIMIT 1) AS r"
        f" WHERE r.wanted AND NOT EXISTS ({entry} WHERE {same} AND t.rowid = r.number AND {condition})"
    )


def touching(connection: apsw.Connection, table: str) -> str:
    """Return an SQL expression that reads every column of a row to its end; it is never negative.

    A comparison: the length of a text is told without reading it, and text that is no text could not be handed over.
    """
    columns = connection.execute("SELECT name FROM pragma_table_info(?)", (table,)).fetchall()
    return " + ".join(f"({quote(str(name))} IS x'00')" for (name,) in columns) or "0"


def _read_pages(connection: apsw.Connection) -> int:
    """Return how many pages the connection has read since it was asked last."""
    return connection.status(apsw.SQLITE_DBSTATUS_CACHE_MISS, True)[0]


def _pages_so_far(connection: apsw.Connection) -> int:
    return connection.status(apsw.SQLITE_DBSTATUS_CACHE_MISS, False)[0]
