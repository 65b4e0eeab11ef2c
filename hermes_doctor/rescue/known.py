"""The tables that releases of hermes make: what stands in for a statement that a damaged store has lost.

The facts are in ``known.json``, which ``tests/oracle/known_tables.py`` makes by running the releases. An upgrade puts
the columns that a table lacks behind those that it has, in the order of the newer release: so the order of columns
tells which releases a store went through, and where that is known the order follows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from itertools import combinations
from typing import Any

from hermes_doctor.rescue.forms import Form, FormColumn
from hermes_doctor.store.shape import affinity_of

#: The releases that opened a store and changed its tables, oldest first.
Way = tuple[str, ...]

#: The search indexes that releases make; the tables in which they keep what they hold are named after them.
SEARCH_TABLES = ("messages_fts", "messages_fts_trigram", "messages_fts_cjk")


@dataclass(frozen=True)
class KnownColumn:
    """One column.

    ``key``: its place in the table's key, from 1, 0 where it is no part of it. ``needed``: NULL is refused.
    ``default``: as SQL writes it. ``references``: the table and the column, and what a deletion there does, where it
    does something. ``since``: the first release that has it.
    """

    name: str
    declared: str
    since: str
    key: int = 0
    needed: bool = False
    default: str | None = None
    references: tuple[str, ...] = ()


@dataclass(frozen=True)
class KnownTable:
    """One table. ``counted``: a rowid that was given is never given again. ``columns``: as the newest release has."""

    name: str
    since: str
    counted: bool
    columns: tuple[KnownColumn, ...]


class Known:
    """What is known. ``releases``: oldest first, each with the version of its schema; ``tables``: by their names."""

    def __init__(self, releases: dict[str, int], tables: dict[str, KnownTable]) -> None:
        self.releases = releases
        self.tables = tables
        self._places = {version: place for place, version in enumerate(releases)}
        self._orders: dict[tuple[str, Way], tuple[KnownColumn, ...]] = {}

    def ways(self) -> Iterator[Way]:
        """Give all ways through the releases, the shortest first, and of those as long, the newest."""
        newest_first = list(reversed(self.releases))
        for length in range(1, len(newest_first) + 1):
            for way in combinations(newest_first, length):
                yield tuple(reversed(way))

    def columns(self, table: str, way: Way) -> tuple[KnownColumn, ...]:
        """Return a table's columns in the order in which that way leaves them; none where no release of it has any."""
        if not way or not self.has(table, way[-1]):
            return ()
        known = self._orders.get((table, way))
        if known is None:
            before = self.columns(table, way[:-1])
            names = {column.name for column in before}
            newest = self._places[way[-1]]
            new = [c for c in self.tables[table].columns if c.name not in names and newest >= self._places[c.since]]
            # A column that is added to a table that is there gets no reference.
            known = (*before, *((replace(column, references=()) for column in new) if before else new))
            self._orders[table, way] = known
        return known

    def lengths(self, table: str, way: Way) -> frozenset[int]:
        """Return how many values a row can have: as many as there were columns when it was written."""
        return frozenset(len(self.columns(table, way[: n + 1])) for n in range(len(way))) - {0}

    def has(self, table: str, version: str) -> bool:
        """Whether a release makes a table."""
        return self._places[version] >= self._places[self.tables[table].since]

    def statement(self, table: str, way: Way) -> str:
        """Return a statement that makes a table as that way leaves it."""
        columns = self.columns(table, way)
        keys = sorted((column for column in columns if column.key), key=lambda column: column.key)
        alone = keys[0].name if len(keys) == 1 else None
        counted = " AUTOINCREMENT" if self.tables[table].counted else ""
        parts = [_defined(column, f" PRIMARY KEY{counted}" if column.name == alone else "") for column in columns]
        if len(keys) > 1:
            parts.append(f"PRIMARY KEY ({', '.join(column.name for column in keys)})")
        return f"CREATE TABLE {table} ({', '.join(parts)})"


@cache
def known() -> Known:
    """Return what is known of the releases' tables."""
    data = json.loads(files("hermes_doctor.rescue").joinpath("known.json").read_text(encoding="utf-8"))
    tables = {
        name: KnownTable(
            name,
            table["since"],
            table["counted"],
            tuple(_column(column, table["since"]) for column in table["columns"]),
        )
        for name, table in data["tables"].items()
    }
    return Known(data["releases"], tables)


def form_of(table: str, columns: Sequence[KnownColumn]) -> Form:
    """Return what the rows of a table with these columns look like in the file."""
    alone = sum(column.key > 0 for column in columns) == 1
    return Form(
        table,
        tuple(
            FormColumn(
                column.name,
                affinity_of(column.declared),
                needed=column.needed or column.key > 0,
                has_default=column.default is not None,
                is_rowid=alone and column.key > 0 and column.declared == "INTEGER",
            )
            for column in columns
        ),
    )


def _defined(column: KnownColumn, key: str) -> str:
    parts = f"{column.name} {column.declared}{key}"
    parts += " NOT NULL" if column.needed else ""
    parts += f" DEFAULT {column.default}" if column.default is not None else ""
    if column.references:
        target, name, *deleted = column.references
        parts += f" REFERENCES {target}({name})" + (f" ON DELETE {deleted[0]}" if deleted else "")
    return parts


def _column(facts: dict[str, Any], since: str) -> KnownColumn:
    return KnownColumn(
        facts["name"],
        facts["type"],
        facts.get("since", since),
        facts.get("key", 0),
        facts.get("needed", False),
        facts.get("default"),
        tuple(facts.get("references", ())),
    )
