"""Finding out of which tree a problem is, where SQLite names a page only, or says no more than that it cannot read on.

It matters: the same words may mean that rows are lost, or that an index is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import apsw

from hermes_doctor.store.integrity import Kind, Problem, Stop, ask, stopped_by
from hermes_doctor.store.trees import Tree

#: What `_tree_of` needs of SQLite: the one virtual table that lists the pages of a tree.
NEEDED_MODULE = "dbstat"

_UNPLACED = frozenset({Kind.PAGE, Kind.STOPPED, Kind.OTHER})


def placed(
    connection: apsw.Connection,
    trees: Sequence[Tree],
    table: str,
    problems: Sequence[Problem],
    begin: Callable[[], Stop | None],
) -> list[Problem]:
    """Return the problems of one table, each with its tree as far as that can be found out.

    ``begin`` gives what stops one question. Raises no apsw.CorruptError.
    """
    trees = [tree for tree in trees if tree.table == table]
    found = []
    for problem in problems:
        tree = _tree_of(connection, trees, problem.page, begin()) if problem.kind is Kind.PAGE else None
        found.append(problem if tree is None else Problem(Kind.TREE, tree.root, problem.page))
    if found and all(problem.kind in _UNPLACED and problem.name is None for problem in found):
        indexes = [tree.name for tree in trees if tree.is_index]
        if indexes and _rows_can_be_read(connection, table, begin()):
            # Looking rows up in an index is what failed. Which one is not told.
            found += [Problem(Kind.INDEX, name=name) for name in indexes]
    return found


def _tree_of(connection: apsw.Connection, trees: Sequence[Tree], page: int | None, stop: Stop | None) -> Tree | None:
    for tree in trees:
        try:
            with stopped_by(connection, stop):
                sql = "SELECT 1 FROM dbstat WHERE name = ? AND pageno = ? LIMIT 1"
                if connection.execute(sql, (tree.name, page)).fetchall():
                    return tree
        except (apsw.CorruptError, apsw.InterruptError, apsw.SQLError):
            continue
    return None


def _rows_can_be_read(connection: apsw.Connection, table: str, stop: Stop | None) -> bool:
    answer = ask(connection, table, stop=stop, how="quick_check")
    return answer.finished and not answer.problems
