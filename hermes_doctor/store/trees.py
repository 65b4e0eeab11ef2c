"""What each tree of a store's file is of: the rows of a table, an index over them, or the search index.

A page that cannot be read is damage to the tree it is in, and what that means depends on whose tree it is: rows that
are lost are lost, an index is made anew from the rows, and the search index from the messages.
"""

from __future__ import annotations

import enum
import re
from typing import NamedTuple

import apsw

from hermes_doctor.store.cells import CODECS

#: The schema's own name, and the page where its tree begins in every file.
SCHEMA, SCHEMA_ROOT = "sqlite_schema", 1

_SHADOWS = ("_data", "_idx", "_content", "_docsize", "_config")
#: The search indexes by their names, where the schema no longer says that a table is part of one; the second are
#: tables that hermes puts aside when it makes an old index anew, and empties little by little (0.20.0 on).
_SEARCH_NAMES = ("messages_fts", "fts_v22_trash_")


class Part(enum.Enum):
    """Of what a tree is: the schema itself, rows, an index that can be made anew from rows, or the search index."""

    SCHEMA = enum.auto()
    ROWS = enum.auto()
    INDEX = enum.auto()
    SEARCH = enum.auto()


class Tree(NamedTuple):
    """One tree of the file.

    ``table``: whose rows they are or whose index it is; ``root``: the number of its first page. ``partial``: an index
    over some of the rows only. ``sql``: the statement that made it, empty where there is none.
    """

    name: str
    table: str
    root: int
    part: Part
    is_index: bool
    partial: bool = False
    sql: str = ""


def read_trees(connection: apsw.Connection) -> list[Tree]:
    """Return all trees that the schema names, the schema's own first. Raises apsw.Error where it cannot be read."""
    codec = CODECS.get(str(connection.pragma("encoding")), "utf-8")
    # As bytes: one name that is no text would end the reading.
    rows = [
        (str(kind), _text(name, codec), _text(table, codec), root, _text(sql, codec))
        for kind, name, table, root, sql in connection.execute(
            "SELECT CAST(type AS TEXT), CAST(name AS BLOB), CAST(tbl_name AS BLOB), rootpage,"
            " CAST(coalesce(sql, '') AS BLOB) FROM sqlite_schema WHERE type IN ('table', 'index')"
        )
    ]
    searched = {name for _kind, name, _table, _root, sql in rows if re.search(r"\bUSING\s+fts\d\b", sql, re.I)}
    shadows = {f"{name}{suffix}" for name in searched for suffix in _SHADOWS}
    trees = [Tree(SCHEMA, SCHEMA, SCHEMA_ROOT, Part.SCHEMA, is_index=False)]
    for kind, name, table, root, sql in rows:
        if not isinstance(root, int) or root < 1:
            continue
        is_index = kind == "index"
        if table in shadows or table.lower().startswith(_SEARCH_NAMES):
            part = Part.SEARCH
        else:
            part = Part.INDEX if is_index else Part.ROWS
        partial = is_index and re.search(r"\bWHERE\b", sql, re.I) is not None
        trees.append(Tree(name, table, root, part, is_index, partial, sql))
    return trees


def _text(raw: object, codec: str) -> str:
    return raw.decode(codec, "backslashreplace") if isinstance(raw, bytes) else ""
