"""Pages of rows that no tree leads to any more: of which table each is, told by what its rows look like.

A page of that kind is what was lost when the page above it was, or what was given back when its rows were deleted.
So a row counts only where the table's tree has a gap for it; all others are older or deleted copies.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from hermes_doctor.rescue.account import Source
from hermes_doctor.rescue.forms import Form
from hermes_doctor.rescue.pages import LEAF, Cell, Pages
from hermes_doctor.rescue.records import Layout
from hermes_doctor.rescue.trees import LostRowids


@dataclass(frozen=True)
class LoosePage:
    """A page that no tree leads to.

    ``table``: whose rows they are; None where that cannot be told, with the ``candidates``. ``cells``: the rows for
    which the table has a gap; ``others``: how many it has besides.
    """

    page: int
    table: str | None
    source: Source
    cells: list[Cell]
    others: int
    candidates: tuple[str, ...] = ()


@dataclass(frozen=True)
class Free:
    """Which pages were given back. ``known``: the list of them is whole; where it is not, any may have been."""

    marks: bytearray
    known: bool


def loose_pages(
    pages: Pages,
    claimed: bytearray,
    forms: Sequence[Form],
    gaps: Mapping[str, LostRowids],
    free: Free,
    numbers: Iterable[int],
) -> Iterator[LoosePage]:
    """Give the pages of rows that no tree claims and that have rows for a gap, or may have.

    ``forms``: of all tables, also those that have no gap, so that their old pages are not taken for another's.
    """
    for number in numbers:
        # Most pages are claimed, or no page of rows: those cost no more than a look at their first byte.
        if claimed[number] or pages.first_byte(number) != LEAF:
            continue
        leaf = pages.leaf(number)
        if leaf is None or not leaf.cells:
            continue
        layouts = [pages.layout(number, cell) for cell in leaf.cells]
        tables = whose(forms, layouts)
        wanted = [table for table in tables if table in gaps]
        if not wanted:
            continue
        if len(tables) > 1:
            if any(cell.number in gaps[table] for table in wanted for cell in leaf.cells):
                yield LoosePage(number, None, Source.LOOSE, [], 0, tuple(wanted))
            continue
        form = next(form for form in forms if form.table == wanted[0])
        gap = gaps[form.table]
        fitting = [cell for cell, layout in zip(leaf.cells, layouts, strict=True) if form.takes(layout)]
        cells = [cell for cell in fitting if cell.number in gap]
        yield LoosePage(
            number,
            form.table,
            _source(number, free, whole=leaf.whole and len(fitting) == len(leaf.cells)),
            cells,
            len(fitting) - len(cells),
        )


def _source(number: int, free: Free, *, whole: bool) -> Source:
    if free.marks[number] or not free.known:
        return Source.FREE
    return Source.LOOSE if whole else Source.TORN


def whose(forms: Sequence[Form], layouts: Sequence[Layout | None]) -> list[str]:
    """Return the tables that the rows of a page look most like: one, several where that cannot be told, or none."""
    best: list[str] = []
    best_score = (0, 0.0)
    for form in forms:
        taken = [layout for layout in layouts if layout is not None and form.takes(layout)]
        # Sums of many shares differ in their last places by the order alone.
        score = (len(taken), round(sum(map(form.likeness, taken)), 6))
        if score > best_score:
            best, best_score = [form.table], score
        elif taken and score == best_score:
            best.append(form.table)
    return best
