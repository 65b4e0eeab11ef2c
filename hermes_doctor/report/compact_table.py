"""`doctor compact` for a person: what it would give back, or gave; what stands in the way; what to type next."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TextIO

from hermes_doctor.engine.compact import StoreCompact
from hermes_doctor.report.changes_model import ChangesEnd, ChangesStart
from hermes_doctor.report.layout import Look, Paragraphs, facts, header, next_lines, obstacle, table, wrapped
from hermes_doctor.report.words import counted, duration, number, short_path, size
from hermes_doctor.store.compaction import Extent


class CompactTable:
    """`doctor compact` for a person."""

    def __init__(self, stream: TextIO, look: Look) -> None:
        self._page = Paragraphs(stream)
        self._look = look
        self._applied = False
        self._compacted = 0
        self._bytes = 0

    def begin(self, start: ChangesStart) -> None:
        """Nothing is said before the first store."""
        self._applied = start.applied

    def store(self, result: StoreCompact) -> None:
        """Print one store: a line where there is nothing to do, else what it takes up, would, or does now."""
        bold = self._look.ink.bold
        if result.outcome == "nothing-to-do":
            if not self._look.quiet:
                word = self._look.ink.good("nothing to do")
                path = bold(short_path(result.ref.path))
                self._page.add([" · ".join([f"{path}   {word}", *facts(result.scan), "no free pages"])])
            return
        known = result.scan.bundle is not None
        first = header(result.scan, self._look) if known else bold(short_path(result.ref.path))
        lines = [first, *obstacle(result, self._look)]
        if result.before is not None and (result.outcome == "planned" or result.after is not None):
            lines += ["", self._sizes(result.before, result.after), *self._told(result)]
        self._page.add(lines)
        if result.outcome in ("planned", "compacted"):
            self._compacted += 1
            self._bytes += result.gives_back if result.gave_back is None else result.gave_back

    def end(self, end: ChangesEnd) -> None:
        """Print the sum, and what to type next."""
        if self._look.quiet:
            return
        lines: list[str] = []
        if self._compacted and not self._applied:
            lines += self._wrap(f"{size(self._bytes)} or more would be given back. Nothing was changed.")
        elif self._compacted:
            lines += self._wrap(f"{counted(self._compacted, 'store')} compacted in {duration(end.seconds)}.")
        for path in end.not_reached:
            lines += self._wrap(f"Not reached: {short_path(path)}")
        lines += next_lines(end.next_commands, self._look.width)
        if lines:
            self._page.add(lines)

    def _sizes(self, before: Extent, after: Extent | None) -> str:
        columns = [before] if after is None else [before, after]
        rows = [
            ["file", *(size(each.file_bytes) for each in columns)],
            ["write-ahead log", *(size(each.log_bytes) for each in columns)],
            ["together", *(size(each.bytes) for each in columns)],
            ["pages", *(number(each.pages) for each in columns)],
            ["free pages", *(f"{number(each.free_pages)} ({each.free_share:.0%})" for each in columns)],
            [f"pages x {number(before.page_size)}", *(size(each.pages * each.page_size) for each in columns)],
        ]
        heads = ["", "now"] if after is None else ["", "before", "after"]
        return table(heads, rows, "l" + "r" * len(columns), self._look.width)

    def _told(self, result: StoreCompact) -> Iterator[str]:
        """What is given back, the room for it, what was proved."""
        yield ""
        if result.gave_back is None:
            least = f"VACUUM would give back {size(result.gives_back)} at least; half-empty pages come on top."
            yield from self._wrap(least, "  ", "    ")
            for room in result.rooms:
                told = f"Room: it needs {size(room.needed)} meanwhile on the disk of {short_path(room.folder)}"
                yield from self._wrap(f"{told}, {size(room.free)} are free.", "  ", "    ")
            yield from self._wrap("Rows stay as they are, so that there is nothing to undo.", "  ", "    ")
            return
        gave = result.gave_back
        told = f"Given back: {size(gave)}." if gave >= 0 else f"It takes up {size(-gave)} more than before."
        yield from self._wrap(told, "  ", "    ")
        if result.verified is not None:
            proved = result.verified
            counts = (
                "somebody wrote to it meanwhile, so rows were not compared"
                if proved.tables is None or proved.rows is None
                else f"{counted(proved.tables, 'table')} with {counted(proved.rows, 'row')}, the highest message and "
                "the counters of ids are as before"
            )
            yield from self._wrap(f"Verified: SQLite finds it sound; {counts}.", "  ", "    ")

    def _wrap(self, text: str, indent: str = "", hanging: str | None = None) -> list[str]:
        return wrapped(text, self._look.width, indent, hanging)
