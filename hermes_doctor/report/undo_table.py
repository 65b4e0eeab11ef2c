"""`doctor undo` for a person: which rows would go back, or went; which stay, and why; what to type next."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TextIO

from hermes_doctor.engine.undo import CHANGED_SINCE, FAILED, PLANNED, RESTORED, StoreUndo
from hermes_doctor.report.changes_model import ChangesEnd, ChangesStart
from hermes_doctor.report.layout import Look, Paragraphs, header, next_lines, obstacle, row_name, table, wrapped
from hermes_doctor.report.tally import Tally
from hermes_doctor.report.words import counted, duration, number, visible


class UndoTable:
    """`doctor undo` for a person."""

    def __init__(self, stream: TextIO, look: Look, told: str) -> None:
        """``told``: one line about the run itself: which, when."""
        self._page = Paragraphs(stream)
        self._look = look
        self._told = told
        self._applied = False
        self._restored = 0

    def begin(self, start: ChangesStart) -> None:
        """Nothing is said before the store."""
        self._applied = start.applied

    def store(self, result: StoreUndo) -> None:
        """Print what would be, or was, put back in the store."""
        self._restored = result.count(RESTORED if self._applied else PLANNED)
        lines = [header(result.scan, self._look), *self._wrap(self._told, "  ")]
        lines += self._problem(result)
        if result.changes:
            tally = Tally(result.changes, self._look.limit, (CHANGED_SINCE, FAILED))
            lines += ["", self._counts(tally), *self._examples(tally), *self._left(tally)]
        if not self._look.quiet or result.exit_code:
            self._page.add(lines)

    def end(self, end: ChangesEnd) -> None:
        """Print the sum, and what to type next."""
        if self._look.quiet:
            return
        rows = counted(self._restored, "row")
        if not self._restored:
            lines = ["Nothing to do."] if end.outcome == "nothing-to-do" else []
        elif self._applied:
            lines = self._wrap(f"{rows} put back in {duration(end.seconds)}.")
        else:
            lines = self._wrap(f"{rows} would be put back. Nothing was changed.")
        lines += next_lines(end.next_commands, self._look.width)
        if lines:
            self._page.add(lines)

    def _problem(self, result: StoreUndo) -> list[str]:
        told = obstacle(result, self._look)
        if told:
            return told
        # Neither refused nor failed: it is another store, in which nothing can be put back.
        return self._wrap(f"{visible(result.reason)}.", "  ", "    ") if result.reason else []

    def _counts(self, tally: Tally) -> str:
        columns = [("put back", RESTORED)] if self._applied else [("would put back", PLANNED)]
        columns.append(("changed since", CHANGED_SINCE))
        columns += [("failed", FAILED)] if any(tally.of(check)[FAILED] for check in tally.checks) else []
        rows = [
            [check, number(tally.of(check).total()), *(number(tally.of(check)[state]) for _, state in columns)]
            for check in tally.checks
        ]
        heads = ["mended for", "rows", *(title for title, _ in columns)]
        return table(heads, rows, "l" + "r" * (len(columns) + 1), self._look.width)

    def _examples(self, tally: Tally) -> Iterator[str]:
        state = RESTORED if self._applied else PLANNED
        for check in tally.checks:
            shown = tally.examples(check, state)
            if not shown:
                continue
            yield ""
            yield self._look.ink.bold(check)
            for change in shown:
                told = f"{row_name(change.table, change.key)}: {visible(change.action or 'put it back')}"
                yield from self._wrap(told, "  ", "    ")
            yield from tally.more(check, state)

    def _left(self, tally: Tally) -> Iterator[str]:
        """What stays as it is, grouped by the reason."""
        left = list(tally.left())
        if left:
            yield ""
            yield self._look.ink.bold("Not put back" if self._applied else "Would not be put back")
        for line in left:
            yield from self._wrap(line, "  ", "    ")

    def _wrap(self, text: str, indent: str = "", hanging: str | None = None) -> list[str]:
        return wrapped(text, self._look.width, indent, hanging)
