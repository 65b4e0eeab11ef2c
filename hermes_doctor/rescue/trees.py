"""Following a table's tree from its root to the pages that hold its rows, and saying which rowids are lost on the way.

Each page of a tree leads to rows between two rowids. What a page that is gone, or holds something else, should have led
to is a range that is lost: only there can rows be missing, and only there is anything put in that the tree does not
lead to.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from hermes_doctor.rescue.account import LostRange
from hermes_doctor.rescue.forms import Form
from hermes_doctor.rescue.pages import Branch, Cell, Leaf, Pages
from hermes_doctor.store.trees import SCHEMA_ROOT

#: No tree is deeper: with two children a page it would have a million times a million pages.
_DEEPEST = 40

ZEROS = "a page holds nothing but zeros"
NO_ROOT = "it is not known where the table begins"
BEYOND = "a page lies behind the end of the file"
NO_PAGE = "a page is no page of a table"
OTHER = "a page holds rows of another place"
TWICE = "a page is led to twice"
TORN = "a page is torn"


@dataclass(frozen=True)
class Found:
    """A page that holds rows of a table, and those of them that are its own, all within bounds.

    ``torn``: not all of the page is what it was.
    """

    page: int
    cells: list[Cell]
    torn: bool


class TreeWalk:
    """The way through one table's tree: gives the pages of its rows, in order, and notes what is lost.

    ``claimed`` gets a mark for each page that is the tree's, and no page that has one already is taken for its.
    """

    def __init__(self, pages: Pages, root: int, form: Form, claimed: bytearray | None = None) -> None:
        self.lost: list[LostRange] = []
        self._pages = pages
        self._root = root
        self._form = form
        self._claimed = bytearray(pages.count + 2) if claimed is None else claimed
        self._depth = _usual_depth(pages, root)

    def __iter__(self) -> Iterator[Found]:
        """Give the pages one after the other."""
        if not _is_there(self._pages, self._root):
            self._lose(None, None, self._root, BEYOND if self._root else NO_ROOT, 0)
            return
        yield from self._down(self._root, None, None, 0)

    def _down(self, page: int, low: int | None, high: int | None, depth: int) -> Iterator[Found]:
        """Follow one page, which should lead to the rowids above ``low`` up to ``high``."""
        if not page:
            self._lose(low, high, None, BEYOND, depth)
            return
        if self._claimed[page] or depth > _DEEPEST:
            self._lose(low, high, page, TWICE, depth)
            return
        leaf = self._pages.leaf(page)
        if leaf is not None:
            found = self._rows(page, leaf, low, high, depth)
            if found is not None:
                yield found
            return
        branch = self._pages.branch(page)
        if branch is None:
            self._lose(low, high, page, ZEROS if self._pages.is_zeros(page) else NO_PAGE, depth)
            return
        kept, in_order = _in_bounds(branch, low, high)
        if not kept and branch.children:
            self._lose(low, high, page, OTHER, depth)
            return
        self._claimed[page] = 1
        whole = branch.whole and in_order
        if not whole:
            # Between those that it still leads to, others may have been.
            self._lose(low, high, page, TORN)
        for child, key in kept:
            yield from self._down(child, low, key, depth + 1)
            low = key
        if branch.last:
            yield from self._down(branch.last, low, high, depth + 1)
        else:
            self._lose(low, high, page, BEYOND, depth + 1)

    def _rows(self, page: int, leaf: Leaf, low: int | None, high: int | None, depth: int) -> Found | None:
        within = [cell for cell in leaf.cells if _is_within(cell.number, low, high)]
        layouts = [self._pages.layout(page, cell) for cell in within]
        fitting = [cell for cell, layout in zip(within, layouts, strict=True) if self._form.takes(layout)]
        if leaf.whole and None not in layouts and 2 * len(fitting) > len(leaf.cells):
            # A few rows that are odd in themselves are no sign of another place.
            fitting = within
        empty = not leaf.cells and leaf.whole
        if empty and depth == 0:
            # A table without rows.
            self._claimed[page] = 1
            return None
        if not fitting:
            self._lose(low, high, page, OTHER if leaf.cells else TORN, depth)
            return None
        self._claimed[page] = 1
        torn = not leaf.whole or len(fitting) < len(leaf.cells)
        if torn:
            self._lose(low, high, page, TORN)
        elif depth != self._depth:
            # A page that stands where one above it should: all other rows of that place are lost.
            self._lose(low, high, page, OTHER)
        return Found(page, fitting, torn)

    def _lose(self, low: int | None, high: int | None, page: int | None, why: str, depth: int | None = None) -> None:
        """Note a loss; ``depth``: at which depth all of a page is missing, None where a part of one is."""
        one_page = depth is not None and depth == self._depth and depth > 0
        self.lost.append(LostRange(None if low is None else low + 1, high, page, why, one_page))


class LostRowids:
    """The rowids of a table that are lost, merged: whether one is among them."""

    def __init__(self, lost: Iterable[LostRange]) -> None:
        self._runs: list[tuple[float, float]] = []
        ranges = sorted(
            (float("-inf") if each.low is None else each.low, float("inf") if each.high is None else each.high)
            for each in lost
        )
        for low, high in ranges:
            if self._runs and low <= self._runs[-1][1] + 1:
                self._runs[-1] = (self._runs[-1][0], max(high, self._runs[-1][1]))
            else:
                self._runs.append((low, high))

    def __bool__(self) -> bool:
        return bool(self._runs)

    def __contains__(self, number: int) -> bool:
        place = bisect_right(self._runs, (number, float("inf"))) - 1
        return place >= 0 and self._runs[place][0] <= number <= self._runs[place][1]


def claim(pages: Pages, root: int, claimed: bytearray) -> None:
    """Mark all pages of a tree of rows that is not read here, as far as they can be followed."""
    waiting = [root]
    while waiting:
        page = waiting.pop()
        if not _is_there(pages, page) or claimed[page]:
            continue
        claimed[page] = 1
        branch = pages.branch(page)
        waiting += [] if branch is None else branch.ways


def _in_bounds(branch: Branch, low: int | None, high: int | None) -> tuple[list[tuple[int, int]], bool]:
    """Return the children whose keys ascend within the bounds, and whether all do."""
    kept: list[tuple[int, int]] = []
    for child, key in branch.children:
        if _is_within(key, kept[-1][1] if kept else low, high):
            kept.append((child, key))
    return kept, len(kept) == len(branch.children)


def _is_within(number: int, low: int | None, high: int | None) -> bool:
    return (low is None or number > low) and (high is None or number <= high)


def _is_there(pages: Pages, page: int) -> bool:
    """Whether the file has that page; the first, at which the schema begins, is always there."""
    return page == SCHEMA_ROOT or pages.has(page)


def _usual_depth(pages: Pages, root: int) -> int:
    """Return how deep the rows of a tree lie: all as deep, so what most ways down say holds."""
    depths: Counter[int] = Counter()
    for share in (0.0, 0.2, 0.4, 0.5, 0.6, 0.8, 1.0):
        page, depth = root, 0
        while depth < _DEEPEST:
            branch = pages.branch(page) if _is_there(pages, page) else None
            ways = [] if branch is None else branch.ways
            if not ways:
                break
            page, depth = ways[min(int(share * len(ways)), len(ways) - 1)], depth + 1
        if _is_there(pages, page) and pages.leaf(page) is not None:
            depths[depth] += 1
    return depths.most_common(1)[0][0] if depths else 0
