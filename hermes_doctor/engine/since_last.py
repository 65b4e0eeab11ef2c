"""Reading of messages only what came or may have changed since the last scan that kept what it read.

What each stretch of rows came to is kept with what proves, by the store's own pages, that its rows are the same
(`hermes_doctor.store.stretches`), and so is what the lasting rules found there. Those that are proven are not read
again; all others are. From there on nothing is different: all other rules judge what comes out of the ranges, kept or
new, with all the rest of the store as it is now.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from hermes_doctor import __version__
from hermes_doctor.engine.memory import NOTHING, Kept, Memory, brief, findings_in
from hermes_doctor.engine.model import Finding
from hermes_doctor.engine.rows import Pass, Range, sifter_of
from hermes_doctor.host.bundle import open_here
from hermes_doctor.store.file_mark import FileMark
from hermes_doctor.store.library import library
from hermes_doctor.store.reader import Pace
from hermes_doctor.store.sifting import REACH, Sifted, Sifter, sift
from hermes_doctor.store.stretches import Stretch, record, unchanged
from hermes_doctor.store.view import StoreView

#: The table that this is worth it for: the others are read whole.
TABLE = "messages"


@dataclass
class SinceLast:
    """One scan of one store that goes on from what an earlier one kept.

    ``store``: its file. ``mark``: its files at the opening. ``doubt``: why everything was read, None where not all was.
    ``read``, ``known``: messages that were read, and that were known to be as they were.
    """

    memory: Memory
    store: Path
    mark: FileMark | None
    doubt: str | None = None
    read: int = 0
    known: int = 0
    _question: str = ""
    _gone: list[Kept] = field(default_factory=list)
    _new: list[Kept] = field(default_factory=list)
    _begun: bool = False

    def sift(self, laid_over: Pass, view: StoreView) -> Generator[Range, None, None]:
        """Give what each range of the table comes to, reading of it what has to be."""
        sifter = sifter_of(laid_over, view)
        if laid_over.table.name.lower() != TABLE:
            yield from map(Range, sift(view.reader, sifter))
            return
        yield from _Reading(self, view, laid_over, sifter).ranges()

    def keep(self, *, whole: bool) -> None:
        """Keep what was read for the next scan. ``whole``: everything was, and nobody wrote meanwhile."""
        if self._begun:
            mark = self.mark if whole else None
            self.memory.keep(self.store, self._question, mark, self._gone, self._new)


class _Reading:
    """Going through a table's rows in order, by stretches: those that are proven as they were kept, the others anew."""

    def __init__(self, scan: SinceLast, view: StoreView, laid_over: Pass, sifter: Sifter) -> None:
        self._scan, self._view, self._reader = scan, view, view.reader
        self._table, self._sifter = laid_over.table, sifter
        #: The digest of the stretch that was given last; NOTHING before the first, None where there is none to tell.
        self._last: bytes | None = NOTHING
        self._moment = self._reader.moment

    def ranges(self) -> Iterator[Range]:
        ends = self._sifter.ends(self._reader)
        if ends is None:
            return
        scan = self._scan
        scan._question = _question(self._sifter, self._view)
        scan._begun = True
        usable = self._usable(*ends)
        low = ends[0]
        for kept in usable:
            if low < kept.stretch.low:
                yield from self._anew(low, kept.stretch.low - 1)
                # Between two that are known there is nothing to note, and the moment need not be asked for.
                self._border(kept.stretch)
            scan.known += kept.rows
            self._last = kept.stretch.digest
            sifted = Sifted(kept.stretch.low, kept.stretch.high, kept.rows, kept.values)
            found = None if kept.found is None else findings_in(kept.found)
            yield Range(sifted, found, None if found is not None else self._taking(kept))
            low = kept.stretch.high + 1
        if low <= ends[1]:
            yield from self._anew(low, ends[1])
        self._border(None)

    def _usable(self, first: int, last: int) -> list[Kept]:
        """Return what may be taken as it was kept; note the rest as gone."""
        scan = self._scan
        recalled = scan.memory.recall(scan.store, scan._question)
        if recalled is None:
            scan.doubt = "nothing was kept of an earlier scan by this doctor with these checks"
            return []
        if scan.mark is not None and recalled.mark is not None and scan.mark.shows_no_change_since(recalled.mark):
            return list(recalled.kept)
        found = unchanged(
            self._reader,
            self._table,
            [kept.stretch for kept in recalled.kept],
            self._reader.threads,
            _descriptor(self._view.opened),
        )
        scan.doubt = found.doubt
        proven = {stretch.low for stretch in found.stretches}
        usable = [
            kept
            for place, kept in enumerate(recalled.kept)
            if kept.stretch.low in proven
            and _has_neighbours(recalled.kept, place, -1, proven, first)
            and _has_neighbours(recalled.kept, place, +1, proven, last)
        ]
        taken = {kept.stretch.low for kept in usable}
        scan._gone += [kept for kept in recalled.kept if kept.stretch.low not in taken]
        return usable

    def _anew(self, low: int, high: int) -> Iterator[Range]:
        """Read the rows from ``low`` to ``high``, and keep what their stretches come to."""
        ranges = self._recorded(low, high)
        # A slice lasts as long as a stretch is given: where somebody may wait, nothing is made of it meanwhile.
        yield from list(ranges) if self._reader.pace is Pace.SLICED and self._reader.rests else ranges

    def _recorded(self, low: int, high: int) -> Iterator[Range]:
        begin = self._sifter.following(self._reader, low - 1) if low > -(1 << 63) else low
        if begin is None or begin > high:
            return
        recording = record(self._reader, self._table, begin, high)
        for stretch in recording:
            # Whole leaves: where the tree has changed since, a stretch may reach into what is known already.
            first, last = max(stretch.low, begin), min(stretch.high, high)
            rows, values = self._sifter.one(self._reader, first, last)
            begin = stretch.high + 1
            if not rows:
                continue
            self._scan.read += rows
            sifted = Sifted(first, last, rows, values)
            if (first, last) == (stretch.low, stretch.high):
                self._border(stretch)
                note = self._taking(Kept(stretch, rows, self._last or b"", b"", values))
                self._last = stretch.digest
                yield Range(sifted, note=note)
            else:
                self._last = None
                yield Range(sifted)
        if recording.doubt is not None:
            self._scan.doubt = recording.doubt
            self._last = None
            for sifted in sift(self._reader, self._sifter, begin, high):
                self._scan.read += sifted.rows
                yield Range(sifted)

    def _taking(self, kept: Kept) -> Callable[[Sequence[Finding]], None]:
        """Take in a stretch to be kept, and return what is to be told what was found there."""
        new, place, moment = self._scan._new, len(self._scan._new), self._moment
        new.append(kept)

        def note(found: Sequence[Finding]) -> None:
            # Where somebody has written since, it may be of other rows than the stretch.
            if moment == self._reader.moment:
                new[place] = replace(new[place], found=brief(found))

        return note

    def _border(self, following: Stretch | None) -> None:
        """Note in what is new which stretch is behind it: this one, or none."""
        new, moment = self._scan._new, self._reader.moment
        if moment != self._moment:
            self._moment, self._last = moment, None
        elif new and new[-1].stretch.digest == self._last:
            new[-1] = replace(new[-1], behind=NOTHING if following is None else following.digest)


def _has_neighbours(recalled: Sequence[Kept], place: int, step: int, proven: set[int], end: int) -> bool:
    """Whether the rows next to a stretch, as far as rules look, are those that they were when it was asked.

    ``step``: 1 for those behind it, -1 for those before. ``end``: the rowid of the table's last row on that side.
    """
    rows = 0
    while rows < REACH:
        kept = recalled[place]
        said = kept.behind if step > 0 else kept.before
        if said == NOTHING:
            return end == (kept.stretch.high if step > 0 else kept.stretch.low)
        place += step
        if not 0 <= place < len(recalled) or recalled[place].stretch.digest != said:
            return False
        if recalled[place].stretch.low not in proven:
            return False
        rows += recalled[place].rows
    return True


def _descriptor(opened: Path) -> int | None:
    """Return the descriptor by which SQLite has the file open: what reads by another drops its locks on closing."""
    try:
        status = opened.stat()
    except OSError:
        return None
    return open_here(status.st_dev, status.st_ino)


def _question(sifter: Sifter, view: StoreView) -> str:
    """Return what tells one way of asking from another: kept values are answers to just this."""
    schema = str(view.shape.schema_version)
    versions = (__version__, platform.python_version(), library().version, schema, view.shape.encoding)
    asked = "\n".join((*versions, sifter.totals_sql))
    return hashlib.blake2b(asked.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
