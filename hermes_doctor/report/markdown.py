"""`doctor scan --format markdown`: the table's report as GitHub's Markdown, for an issue, a wiki or a chat.

What comes from a store reads as it is and is never taken for markup: names of rows are code, other text is escaped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TextIO

from hermes_doctor.engine.model import Bucket, Finding
from hermes_doctor.report.layout import facts, holding, row_name
from hermes_doctor.report.sums import Sums
from hermes_doctor.report.table import (
    CLOSED,
    CONDITION_WORDS,
    WRITTEN_MEANWHILE,
    failure,
    notes_of,
    since_last,
    steps_of,
    what,
)
from hermes_doctor.report.words import counted, duration, muted_words, number, short_path, size, visible

if TYPE_CHECKING:
    from hermes_doctor.engine.scan import CheckResult, StoreScan
    from hermes_doctor.report.layout import Look
    from hermes_doctor.report.model import RunEnd, RunStart

#: What would act as markup wherever it stands in a line; behind a backslash it is itself.
_ACTS = re.compile(
    r"[\\`*\[<|~$]"
    # These only at the edge of a word, as an entity, or where GitHub makes a link of what follows.
    r"|(?<![^\W_])_|_(?![^\W_])|&(?=#?\w)|:(?=//)|(?<=www)\.",
    re.IGNORECASE,
)
#: What would act at the beginning of a line: lists, headings, quotes, rules. Of a number, what follows it.
_BEGINS = re.compile(r"[-+=#>]|\d+(?=[.)])")


class ScanMarkdown:
    """The report: a heading and a table for each store, its first findings, and the sums."""

    def __init__(self, stream: TextIO, look: Look) -> None:
        self._write = stream.write
        self._look = look
        self._sums = Sums()
        self._stores = 0

    def begin(self, start: RunStart) -> None:
        """Write the heading."""
        at = datetime.fromtimestamp(start.started_at, UTC)
        self._write(f"# doctor scan, {at:%Y-%m-%d %H:%M} UTC\n")

    def store(self, scan: StoreScan) -> None:
        """Write one store; where only what is wrong is wanted, not one that is well."""
        self._stores += 1
        found = [result for result in scan.checks if result.count]
        found.sort(key=lambda result: -(result.worst or result.check.severity))
        examples = self._sums.take(scan, self._look.limit)
        failed = any(result.status == "failed" for result in scan.checks)
        if self._look.quiet and all(result.muted for result in found):
            # As in the table: what is muted is no reason to tell of a store.
            found = []
        well = not (found or failed or notes_of(scan) or scan.condition in CLOSED)
        if well and self._look.quiet:
            return
        self._paragraphs(f"## {code(short_path(scan.ref.path))}", _introduced(scan, well=well))
        notes = [*_notes(scan), *(_muted(result) for result in scan.checks if result.muted is not None)]
        if notes:
            self._paragraphs("\n".join(f"- {line(note)}" for note in notes))
        if found:
            self._paragraphs(_counts(found))
        for result in found:
            kept = examples.get(result.check.name)
            if kept:
                self._paragraphs(f"### {line(result.check.name)}", "\n".join(_examples(result, kept)))

    def end(self, end: RunEnd) -> None:
        """Write the sums, and what to type next."""
        if end.not_scanned:
            unread = ", ".join(code(short_path(path)) for path in end.not_scanned)
            self._paragraphs(f"Not read, because the scan was stopped: {unread}")
        if self._look.quiet:
            return
        if self._sums.total:
            said = f"{self._sums.sentence()}. Read in {duration(end.seconds)}, nothing was changed."
        else:
            said = f"{counted(self._stores, 'store')} looked at in {duration(end.seconds)}, nothing was changed."
        self._paragraphs("---", said)
        if end.next_commands:
            self._paragraphs("Next: " + ", ".join(_command(command) for command in end.next_commands))

    def _paragraphs(self, *paragraphs: str) -> None:
        self._write("".join(f"\n{paragraph}\n" for paragraph in paragraphs))


def _introduced(scan: StoreScan, *, well: bool) -> str:
    """Return what the store is like and what it holds."""
    if scan.condition in CLOSED:
        return f"**{CONDITION_WORDS[scan.condition]}**"
    sized = [size(scan.bytes)] if scan.bytes is not None else []
    holds = [inline(fact) for fact in [*facts(scan), *sized, holding(scan)]]
    return " · ".join([*(["**healthy**"] if well else []), *holds])


def inline(text: str) -> str:
    """Return text, to stand behind other text on a line, so that it reads as it is and is no markup."""
    return _ACTS.sub(lambda found: "\\" + found[0], visible(text))


def line(text: str) -> str:
    """Return the same for text that a line begins with."""
    text = inline(text.strip(" "))
    begins = _BEGINS.match(text)
    if begins is None:
        return text
    return f"{begins[0]}\\{text[begins.end() :]}" if begins[0].isdigit() else f"\\{text}"


def code(text: str) -> str:
    """Return text as code: between more backticks than it has in a row, set off by a space where it needs that."""
    text = visible(text)
    fence = "`" * (max((len(run) for run in re.findall("`+", text)), default=0) + 1)
    # Spaces alone stay as they are, and so does one at one end.
    spaced = text[:1] == text[-1:] == " " and text.strip(" ") != ""
    apart = " " if text.startswith("`") or text.endswith("`") or spaced else ""
    return f"{fence}{apart}{text}{apart}{fence}"


def _notes(scan: StoreScan) -> list[str]:
    notes = notes_of(scan)
    if scan.next_step:
        notes.append(f"Next: {scan.next_step}")
    if scan.since_last is not None:
        notes.append(since_last(scan.since_last))
    if not scan.consistent:
        notes.append(WRITTEN_MEANWHILE)
    return notes + [failure(result) for result in scan.checks if result.status == "failed"]


def _muted(result: CheckResult) -> str:
    assert result.muted is not None
    name = result.check.name
    return (
        f"{counted(result.count, 'finding')} of {name} not counted: {muted_words(result.muted)} (doctor unmute {name})"
    )


def _counts(found: Iterable[CheckResult]) -> str:
    lines = ["| check | severity | found | mends safely | needs you | what it means |", "|---|---|--:|--:|--:|---|"]
    for result in found:
        cells = [
            inline(result.check.name),
            (result.worst or result.check.severity).label,
            number(result.count),
            number(result.buckets[Bucket.SAFE]),
            number(result.count - result.buckets[Bucket.SAFE]),
            inline(result.check.meaning if result.muted is None else "muted"),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _examples(result: CheckResult, kept: list[Finding]) -> Iterable[str]:
    for finding in kept:
        where = row_name(finding.table, finding.key, finding.session)
        yield f"- {code(where)}{inline(what(finding, result.check))}"
        yield from (f"  {place}. {code(step)}" for place, step in enumerate(steps_of(finding), 1))
    if result.count > len(kept):
        yield f"- … and {number(result.count - len(kept))} more"


def _command(command: str) -> str:
    """Return a command as code, and behind it what it does."""
    typed, bracket, does = command.rpartition(" (")
    return f"{code(typed)} ({inline(does)}" if bracket else code(command)
