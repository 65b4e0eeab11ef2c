"""What the problems that SQLite tells of mean: rows that are lost, or an index that can be made anew from rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from hermes_doctor.store.integrity import Kind, Problem
from hermes_doctor.store.trees import SCHEMA, SCHEMA_ROOT, Part, Tree


@dataclass
class Damage:
    """What is damaged in a store's file.

    ``rows``: tables of which rows are lost, out of reach, or doubled; ``indexes``: indexes over rows that are all
    there, with their tables; ``search``: tables of the search index. ``schema``: the list of all these. ``free``: the
    list of free pages. ``shared``: pages that two places lead to; ``unused``: pages that nothing leads to.
    ``unplaced``: SQLite finds fault with the file and does not say where. ``pages``: the numbers of damaged pages by
    tree, as far as SQLite names them; ``problems``: how many lines it had to say.
    """

    rows: list[str] = field(default_factory=list)
    indexes: dict[str, str] = field(default_factory=dict)
    search: list[str] = field(default_factory=list)
    schema: bool = False
    free: bool = False
    shared: set[int] = field(default_factory=set)
    unused: int = 0
    unplaced: bool = False
    pages: dict[str, set[int]] = field(default_factory=dict)
    problems: int = 0

    def __bool__(self) -> bool:
        return bool(self.trees or self.free or self.shared or self.unused or self.unplaced)

    @property
    def trees(self) -> list[str]:
        """All tables and indexes that are damaged."""
        return [*self.rows, *self.indexes, *self.search, *([SCHEMA] if self.schema else [])]

    def pages_of(self, names: Iterable[str]) -> list[int]:
        """Return the numbers of the damaged pages in these trees, in their order."""
        return sorted({page for name in names for page in self.pages.get(name, ())})


def judge(trees: Sequence[Tree], by_table: Mapping[str, Sequence[Problem]], whole: Sequence[Problem] = ()) -> Damage:
    """Say what is damaged.

    ``by_table``: what SQLite says of each table by itself, its indexes included, and of the schema. ``whole``: what it
    says of the file as a whole; of that only what no table shows by itself counts.
    """
    damage = Damage()
    for table, problems in by_table.items():
        if problems:
            damage.problems += len(problems)
            _judge_table([tree for tree in trees if tree.table == table], table, problems, damage)
    _judge_the_rest(whole, damage)
    return damage


def _judge_table(trees: Sequence[Tree], table: str, problems: Sequence[Problem], damage: Damage) -> None:
    by_root = {tree.root: tree for tree in trees}
    by_name = {tree.name: tree for tree in trees}
    hit: set[str] = set()
    for problem in problems:
        tree = by_root.get(problem.root or 0)
        if problem.kind is Kind.FREE:
            damage.free = True
        elif problem.kind in (Kind.TREE, Kind.SHARED):
            name = tree.name if tree is not None else table
            hit.add(name)
            if problem.page is not None:
                damage.pages.setdefault(name, set()).add(problem.page)
        elif problem.kind is Kind.ROWS:
            hit.add(table)
        elif problem.kind is Kind.STOPPED and problem.name is not None:
            hit.add(problem.name)
    misfits = _names(problems, Kind.COUNT, Kind.INDEX)
    unplaced = [problem for problem in problems if problem.kind in (Kind.PAGE, Kind.STOPPED, Kind.OTHER)]
    if not hit:
        # Where an index that SQLite can read does not fit the rows, it is the index that is wrong. But where no index
        # has as many entries as there are rows, rows went, or came back.
        hit = {table} if _is_about_rows(trees, _names(problems, Kind.COUNT)) or (unplaced and not misfits) else misfits
    elif table not in hit:
        hit |= misfits
    for problem in unplaced:
        if problem.kind is Kind.PAGE and problem.page is not None and len(hit) == 1:
            damage.pages.setdefault(next(iter(hit)), set()).add(problem.page)
    for name in hit:
        _note(by_name.get(name), name, table, damage)


def _names(problems: Sequence[Problem], *kinds: Kind) -> set[str]:
    return {problem.name for problem in problems if problem.kind in kinds and problem.name is not None}


def _is_about_rows(trees: Sequence[Tree], miscounted: set[str]) -> bool:
    """Whether all indexes over all rows of a table disagree with it on their number, and there are several."""
    full = {tree.name for tree in trees if tree.is_index and not tree.partial}
    return len(full) > 1 and full <= miscounted


def _note(tree: Tree | None, name: str, table: str, damage: Damage) -> None:
    part = Part.ROWS if tree is None else tree.part
    if part is Part.SCHEMA:
        damage.schema = True
    elif part is Part.SEARCH:
        damage.search.append(name)
    elif part is Part.INDEX:
        damage.indexes[name] = table
    else:
        damage.rows.append(name)


def _judge_the_rest(whole: Sequence[Problem], damage: Damage) -> None:
    """Take from what is said of the whole file what no table shows by itself."""
    damage.free = damage.free or any(problem.kind is Kind.FREE for problem in whole)
    damage.schema = damage.schema or any(problem.kind is Kind.TREE and problem.root == SCHEMA_ROOT for problem in whole)
    if damage:
        # What else is said follows from it: a tree that cannot be read on leaves its pages unused, and one that leads
        # to a page of another tree is out of order itself.
        return
    damage.problems = len(whole)
    damage.shared = {problem.page for problem in whole if problem.kind is Kind.SHARED and problem.page is not None}
    damage.unused = sum(problem.kind is Kind.UNUSED for problem in whole)
    damage.unplaced = bool(whole) and not damage.shared and not damage.unused
