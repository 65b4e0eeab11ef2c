"""What a rescue came to: for each table what was saved, from where, and what could not be, and why."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from hermes_doctor.engine.model import ExitCode
from hermes_doctor.host.bundle import Condition
from hermes_doctor.host.homes import StoreRef

RescueOutcome = Literal["rescued", "partly-rescued", "nothing-saved", "refused", "failed", "stopped"]


class Source(enum.StrEnum):
    """Where a row was found, from the surest to the least sure."""

    #: Where the table's own tree has it.
    IN_PLACE = "in-place"
    #: In a page that no tree leads to any more, within a range of rowids that is lost, and not given back.
    LOOSE = "loose"
    #: In a page of which only a part is what it was: a text may be mixed up.
    TORN = "torn"
    #: In a page that was given back: the row may have been deleted, or changed later.
    FREE = "free"
    #: In a part of the log that SQLite does not go by, for a frame before it is broken.
    LOG = "log"


@dataclass(frozen=True)
class LostRange:
    """A range of rowids that the table's tree does not lead to any more: what was in it and was not found is lost.

    ``low`` and ``high``: both may have been in use; None where there is no bound. ``page``: the page that should lead
    there, None where it is not known. ``why``: a few words. ``one_page``: no more than one page of rows should be
    there, so that nothing is lost where that page is found elsewhere.
    """

    low: int | None
    high: int | None
    page: int | None
    why: str
    one_page: bool = False


@dataclass
class TableAccount:
    """What became of one table.

    ``saved``: rows in the new file (with an inspection: that would be), by where they were found. ``read_by``: whether
    SQLite read the table or its pages were walked. ``cut``: rows of which a value is missing or cut short; ``doubtful``
    and ``cut_rows``: runs of rowids, both ends included. ``left_out``: older or deleted copies of rows that were seen
    and not taken. ``ambiguous_pages``: pages that may be this table's or another's. ``failed``: why nothing of it
    could be read, None else.
    """

    name: str
    read_by: Literal["sqlite", "pages"] = "sqlite"
    saved: dict[Source, int] = field(default_factory=dict)
    cut: int = 0
    left_out: int = 0
    lost: list[LostRange] = field(default_factory=list)
    #: Ranges beyond those that are listed.
    more_lost: int = 0
    doubtful: list[tuple[int, int]] = field(default_factory=list)
    cut_rows: list[tuple[int, int]] = field(default_factory=list)
    ambiguous_pages: int = 0
    failed: str | None = None

    @property
    def rows(self) -> int:
        """Rows that were saved, wherever they were found."""
        return sum(self.saved.values())

    @property
    def doubtful_rows(self) -> int:
        """Rows of which it is not sure that they are as the store last had them."""
        return sum(self.saved.get(source, 0) for source in (Source.TORN, Source.FREE, Source.LOG))

    @property
    def is_whole(self) -> bool:
        """Whether all of the table was saved, beyond doubt."""
        return not (
            self.lost or self.more_lost or self.cut or self.doubtful_rows or self.ambiguous_pages or self.failed
        )


@dataclass
class Rescue:
    """What the rescue of one store came to.

    ``output``: the new file, None where none was written. ``condition``: of the store, as a scan would say. ``notes``:
    what a person has to know besides, a sentence each. ``sessions_given``: sessions made for messages whose own is
    lost. ``chats_short``: sessions that hold fewer messages than they counted, and ``messages_missing``: how many fewer
    altogether; None where that cannot be told. ``verified``: what was proved of the new file, a sentence.
    """

    ref: StoreRef
    inspect_only: bool
    condition: Condition | None = None
    schema_version: int | None = None
    bytes: int | None = None
    tables: list[TableAccount] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    sessions_given: int = 0
    chats_short: int | None = None
    messages_missing: int | None = None
    index_rebuilt: bool = False
    verified: str | None = None
    output: Path | None = None
    seconds: float = 0.0
    outcome: RescueOutcome = "failed"
    exit_code: ExitCode = ExitCode.FAILED
    reason: str | None = None
    next_step: str | None = None

    def end(
        self, outcome: RescueOutcome, code: ExitCode, reason: str | None = None, next_step: str | None = None
    ) -> None:
        """Say how it ended, and where it did not end well, why, and what to type."""
        self.outcome, self.exit_code, self.reason, self.next_step = outcome, code, reason, next_step

    def table(self, name: str) -> TableAccount | None:
        """Return the account of a table, None where the store has none of that name."""
        return next((table for table in self.tables if table.name == name), None)
