"""One table while it is read: what was found of it so far, what is to be read later, and what is lost."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import apsw

from hermes_doctor.rescue.account import LostRange, Source, TableAccount
from hermes_doctor.rescue.forms import Form
from hermes_doctor.rescue.pages import Cell
from hermes_doctor.rescue.schema import Entry
from hermes_doctor.store.cells import quote

#: Ranges and runs that an account names; there may be any number of them.
LISTED = 1000

_REFUSED = "its table does not take such a row: a value that may be there once is there twice, or one is missing"


class LaterPage(NamedTuple):
    """A page that is read later: those of its rows that count, by their place in it."""

    number: int
    starts: array[int]

    @classmethod
    def of(cls, number: int, cells: Iterable[Cell]) -> LaterPage:
        """Return a page with some of its rows. Where they begin is less than the rows: there may be a great many."""
        return cls(number, array("i", (cell.start for cell in cells)))


class CutRow(NamedTuple):
    """A row that is cut, or may be, and where its page was found. ``held``: so many bytes of it are its own."""

    page: int
    cell: Cell
    source: Source
    held: int


@dataclass
class Table:
    """One table while it is read.

    ``later`` and ``cut``: what is read last. ``doubtful``: rowids of rows that were saved and are not sure.
    ``refused``: those of rows that are there, and that the new table does not take; None where it cannot be told.
    """

    entry: Entry
    form: Form
    account: TableAccount
    lost: list[LostRange] = field(default_factory=list)
    later: dict[Source, list[LaterPage]] = field(default_factory=dict)
    cut: list[CutRow] = field(default_factory=list)
    doubtful: list[int] = field(default_factory=list)
    refused: list[int | None] = field(default_factory=list)

    def found_again(self, cells: list[Cell]) -> None:
        """Take out the range whose one page these rows are: nothing else was there."""
        first, last = cells[0].number, cells[-1].number
        for place, each in enumerate(self.lost):
            fits = (each.low is None or each.low <= first) and (each.high is None or last <= each.high)
            if each.one_page and fits:
                del self.lost[place]
                return

    def settle(self, new: apsw.Connection) -> None:
        """Give the account what is lost and what is not sure, once all rows that were found are in the new file."""
        self.account.doubtful = runs(self.doubtful)[:LISTED]
        refused = runs(number for number in self.refused if number is not None)
        self.lost += [LostRange(low, high, None, _REFUSED) for low, high in refused]
        if None in self.refused:
            self.lost.append(LostRange(None, None, None, _REFUSED))
        lost = _joined(each for each in self.lost if not self._is_filled(new, each))
        self.account.lost, self.account.more_lost = lost[:LISTED], max(0, len(lost) - LISTED)

    def _is_filled(self, new: apsw.Connection, lost: LostRange) -> bool:
        """Whether a row is there for each rowid of a range."""
        key = self.form.rowid_name
        if lost.high is None or key is None:
            return False
        # SQLite gives no rowid below 1 by itself.
        low = 1 if lost.low is None else lost.low
        if lost.high < low:
            return lost.low is not None
        sql = f"SELECT count(*) FROM {quote(self.form.table)} WHERE {key} BETWEEN ? AND ?"
        return bool(new.execute(sql, (low, lost.high)).get == lost.high - low + 1)


def runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Return the runs of numbers that follow one another, both ends included."""
    found: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if found and number == found[-1][1] + 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found


def _joined(lost: Iterable[LostRange]) -> list[LostRange]:
    """Make one range of those that follow one another and are lost for the same reason."""
    joined: list[LostRange] = []
    for each in lost:
        last = joined[-1] if joined else None
        if last is not None and last.high is not None and (each.low, each.why) == (last.high + 1, last.why):
            page = last.page if last.page == each.page else None
            joined[-1] = LostRange(last.low, each.high, page, last.why)
        else:
            joined.append(each)
    return joined
