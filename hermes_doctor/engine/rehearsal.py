"""What a fix would change, row by row: carried out on a private copy of the store, looked at, and taken back there.

Of what the rows hold only the kinds of the values leave this module: numbers, times and the words that hermes itself
writes, never what anybody said.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import apsw

from hermes_doctor.engine.backup import AUTO_BYTES, AUTO_SPARE_BYTES
from hermes_doctor.engine.changes import Op, RowChange
from hermes_doctor.engine.cure import Fix
from hermes_doctor.engine.defects import defect
from hermes_doctor.engine.journal import Journal
from hermes_doctor.engine.model import Check, Finding
from hermes_doctor.engine.transaction import DONE, UncoveredError, rehearse
from hermes_doctor.engine.writer import Writer
from hermes_doctor.host.private_folder import PrivateFolder
from hermes_doctor.host.room import free_bytes
from hermes_doctor.store.cells import BadText, Cell
from hermes_doctor.store.reader import Pace, Reader
from hermes_doctor.store.search_index import match_trigrams
from hermes_doctor.store.strangers import refuse_strangers
from hermes_doctor.store.view import StoreView
from hermes_doctor.store.writing import open_for_writing

#: Pages that are copied at once.
_STEP_PAGES = 8192

#: Columns whose text is an id, or one of the words that hermes itself puts there.
_TOLD = frozenset({"id", "session_id", "parent_session_id", "source", "role", "end_reason", "handoff_state", "state"})
#: Longest text that is taken for such a word.
_LONGEST_WORD = 80


@dataclass(frozen=True, slots=True)
class Held:
    """What a cell holds, as far as it may be told.

    ``kind``: nothing, number, text or bytes. ``told``: the value itself, where it is a number, an id or a word of
    hermes's own. ``size``: characters of a text, else bytes.
    """

    kind: str
    told: str | int | float | None = None
    size: int = 0


@dataclass
class ColumnEffect:
    """What becomes of one column: for each row that it changes in, what it held and what it holds then."""

    column: str
    became: list[tuple[Held, Held]] = field(default_factory=list)


@dataclass
class TableEffect:
    """What becomes of one table. ``columns``: those of changed rows, and of new ones where they hold something."""

    table: str
    op: Op
    rows: int = 0
    columns: dict[str, ColumnEffect] = field(default_factory=dict)


@dataclass(frozen=True)
class Effect:
    """What a fix would do to the store's rows.

    ``otherwise``: what it would do instead, if it is nothing of that. ``unknown``: why it could not be tried.
    """

    tables: Sequence[TableEffect] = ()
    otherwise: str | None = None
    unknown: str | None = None


class Rehearsal:
    """A private copy of the moment that a view shows, on which fixes are tried; close it, or use it in a ``with``."""

    def __init__(self, view: StoreView) -> None:
        """Copy the store. Where that cannot be, `why_not` says why, and nothing is tried."""
        self.why_not = _obstacle(view)
        self._cleanup = ExitStack()
        self._writer: Writer | None = None
        self._indexes = False
        if self.why_not is not None:
            return
        with ExitStack() as cleanup:
            try:
                self._writer = _copy(view, cleanup)
            except (apsw.Error, OSError) as error:
                self.why_not = f"no private copy could be made to try it on ({' '.join(str(error).split())})"
            else:
                self._cleanup = cleanup.pop_all()

    def of(self, check: Check, fix: Fix, finding: Finding) -> Effect:
        """Say what the fix of a finding would change. Never raises for what is wrong with the fix or the copy."""
        if fix.files is not None:
            return Effect(otherwise="a file beside the store; no row of the store")
        if fix.derived:
            return Effect(otherwise="only what is derived from the rows; no row")
        if self._writer is None:
            return Effect(unknown=self.why_not)
        try:
            if fix.reindexes and not self._indexes:
                match_trigrams(self._writer.connection, self._writer.view.shape)
                self._indexes = True
            change, rows = rehearse(self._writer, check, fix, finding)
        except (apsw.Error, OSError, UncoveredError) as error:
            return Effect(unknown=f"trying it on a private copy failed ({' '.join(str(error).split())})")
        except Exception as error:
            return Effect(unknown=f"trying it on a private copy failed: {defect(error)}")
        if change.state != DONE:
            return Effect(otherwise=f"nothing: {change.reason or change.state}")
        return Effect(_effects(rows))

    def close(self) -> None:
        """Let the copy go."""
        self._cleanup.close()


def _obstacle(view: StoreView) -> str | None:
    """Return why no copy is made, None where nothing speaks against it."""
    assert view.bundle is not None, "a store that is examined has been looked at"
    if view.reader.pace is Pace.SLICED and view.held != "no":
        return "hermes has the store open in a mode in which it would have to wait while it is copied"
    size = view.bundle.size_with_log
    if size > AUTO_BYTES or free_bytes(Path(tempfile.gettempdir())) < 2 * size + AUTO_SPARE_BYTES:
        return "the store is too large to try it on a private copy first"
    return None


def _copy(view: StoreView, cleanup: ExitStack) -> Writer:
    """Copy what the view shows, and open that as `open_writer` opens a store."""
    folder = cleanup.enter_context(PrivateFolder(Path(tempfile.gettempdir())))
    copy = folder / "state.db"
    os.close(os.open(copy, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    with contextlib.closing(apsw.Connection(str(copy))) as target:
        target.pragma("journal_mode", "memory")
        target.pragma("synchronous", "off")
        with view.reader.pinned(), target.backup("main", view.reader.connection, "main") as copying:
            while not copying.done:
                copying.step(_STEP_PAGES)
    connection = open_for_writing(copy)
    cleanup.callback(connection.close)
    # What is written here is never kept.
    connection.pragma("journal_mode", "memory")
    connection.pragma("synchronous", "off")
    refuse_strangers(connection, view.shape)
    assert view.bundle is not None
    journal = cleanup.enter_context(Journal(folder))
    reader = Reader(connection, Pace.FREE, encoding=view.shape.encoding)
    return Writer(connection, replace(view, reader=reader, damage=[]), journal, view.bundle)


def _effects(rows: Sequence[RowChange]) -> list[TableEffect]:
    tables: dict[tuple[str, Op], TableEffect] = {}
    for row in rows:
        table = tables.setdefault((row.table, row.op), TableEffect(row.table, row.op))
        table.rows += 1
        for name, after in ({} if row.op is Op.DELETE else row.after).items():
            if row.op is Op.INSERT and after is None:
                continue
            effect = table.columns.setdefault(name, ColumnEffect(name))
            effect.became.append((_held(name, row.before.get(name)), _held(name, after)))
    return list(tables.values())


def _held(column: str, cell: Cell) -> Held:
    if cell is None:
        return Held("nothing")
    if isinstance(cell, int | float):
        return Held("number", cell)
    if isinstance(cell, BadText | bytes):
        return Held("bytes", size=len(cell))
    word = column.lower() in _TOLD and len(cell) <= _LONGEST_WORD
    return Held("text", cell if word else None, len(cell))
