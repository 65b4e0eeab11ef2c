"""Reports for a person: short, plain, and saying what to do next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TextIO

from hermes_doctor.engine.model import Bucket, Check, Finding, Safety
from hermes_doctor.engine.scan import CheckResult, StoreScan
from hermes_doctor.host.bundle import Condition
from hermes_doctor.report.layout import Look, facts, header, next_lines, row_name, table, wrapped
from hermes_doctor.report.model import RunEnd, RunStart
from hermes_doctor.report.sums import Sums
from hermes_doctor.report.words import counted, duration, muted_words, number, short_path, visible
from hermes_doctor.store.shape import KNOWN_SCHEMA

if TYPE_CHECKING:
    from hermes_doctor.engine.since_last import SinceLast

CLOSED = (Condition.DAMAGED, Condition.UNREADABLE, Condition.MISSING, Condition.NOT_HERMES)
CONDITION_WORDS = {
    Condition.DAMAGED: "damaged",
    Condition.UNREADABLE: "cannot be read",
    Condition.MISSING: "missing",
    Condition.NOT_HERMES: "not a store of hermes",
}
#: What is said of a store that was not as it was all the time.
WRITTEN_MEANWHILE = "Somebody wrote to it while it was read: what is reported was confirmed row by row."


class ScanTable:
    """`doctor scan` for a person."""

    def __init__(self, stream: TextIO, look: Look) -> None:
        self._write = stream.write
        self._look = look
        self._printed = False
        self._healthy_last = False
        self._stores = 0
        self._sums = Sums()
        #: What is muted, by check: findings, and in which words.
        self._muted: Counter[str] = Counter()
        self._muted_words: dict[str, str] = {}

    def begin(self, start: RunStart) -> None:
        """Nothing is said before the first store."""

    def store(self, scan: StoreScan) -> None:
        """Print one store: a line if all is well, else what is wrong with it."""
        self._stores += 1
        for result in scan.checks:
            if result.muted is not None:
                self._muted[result.check.name] += result.count
                self._muted_words[result.check.name] = muted_words(result.muted)
        if scan.condition in CLOSED:
            found = [result for result in scan.checks if result.count]
            self._paragraph([*self._closed(scan), *(["", *self._faults(scan, found)] if found else [])])
            return
        notes = notes_of(scan)
        failed = [result for result in scan.checks if result.status == "failed"]
        found = [result for result in scan.checks if result.count]
        if self._look.quiet and all(result.muted for result in found):
            found = []
        if not notes and not failed and not found:
            if not self._look.quiet:
                self._healthy(scan)
            return
        lines = [header(scan, self._look)]
        if found and not scan.consistent:
            notes.append(WRITTEN_MEANWHILE)
        if scan.since_last is not None:
            notes.append(since_last(scan.since_last))
        lines += [line for note in notes for line in self._wrap(note)]
        lines += [line for result in failed for line in self._wrap(failure(result))]
        if found:
            lines += ["", *self._faults(scan, found)]
        self._paragraph(lines)

    def end(self, end: RunEnd) -> None:
        """Print the sums over all stores, and what to type next."""
        if self._look.quiet:
            return
        lines: list[str] = []
        if self._sums.total:
            lines += self._wrap(f"{self._sums.sentence()}. Read in {duration(end.seconds)}, nothing was changed.")
        elif self._stores > 1:
            lines += self._wrap(
                f"{counted(self._stores, 'store')} looked at in {duration(end.seconds)}, nothing was changed."
            )
        for check, count in self._muted.items():
            lines += self._wrap(
                f"{counted(count, 'finding')} of {visible(check)} not counted: {self._muted_words[check]}"
                f" (doctor unmute {visible(check)}).",
                "",
                "  ",
            )
        lines += next_lines(end.next_commands, self._look.width)
        if lines:
            self._paragraph(lines)

    def _healthy(self, scan: StoreScan) -> None:
        # Healthy stores stand line under line, set off from what is wrong elsewhere.
        if self._printed and not self._healthy_last:
            self._write("\n")
        line = f"{self._look.ink.bold(short_path(scan.ref.path))}   {self._look.ink.good('healthy')}"
        more = [] if scan.consistent else ["written to meanwhile"]
        if scan.since_last is not None:
            since = scan.since_last
            more.append(f"{number(since.read)} of {counted(since.read + since.known, 'message')} read")
            more += [visible(since.doubt)] if since.doubt is not None else []
        self._write(" · ".join([line, *facts(scan), *more]) + "\n")
        self._printed = self._healthy_last = True

    def _closed(self, scan: StoreScan) -> list[str]:
        word = self._look.ink.bad(CONDITION_WORDS[scan.condition])
        lines = [f"{self._look.ink.bold(short_path(scan.ref.path))}   {word}"]
        if scan.reason:
            lines += self._wrap(visible(scan.reason), "  ")
        # What is wrong with a file is told with what to do about it.
        if scan.next_step and scan.next_step not in (scan.reason or ""):
            lines += self._wrap(f"Next: {visible(scan.next_step)}", "  ")
        return lines

    def _faults(self, scan: StoreScan, found: list[CheckResult]) -> list[str]:
        examples = self._sums.take(scan, self._look.limit)
        found = sorted(found, key=lambda result: -(result.worst or result.check.severity))
        return [self._counts(found), *self._examples(found, examples)]

    def _counts(self, found: Sequence[CheckResult]) -> str:
        rows = [
            [
                self._look.ink.of(result.worst or result.check.severity, result.check.name),
                number(result.count),
                number(result.buckets[Bucket.SAFE]),
                number(result.count - result.buckets[Bucket.SAFE]),
                result.check.meaning if result.muted is None else "muted",
            ]
            for result in found
        ]
        headers = ["check", "found", "mends safely", "needs you", "what it means"]
        return table(headers, rows, "lrrrl", self._look.width)

    def _examples(self, found: Sequence[CheckResult], examples: dict[str, list[Finding]]) -> Iterable[str]:
        for result in found:
            kept = examples.get(result.check.name, [])
            if not kept:
                continue
            yield ""
            yield self._look.ink.bold(result.check.name)
            for finding in kept:
                yield from self._wrap(told(finding, result.check), "  ", "    ")
                yield from (f"    {place}. {step}" for place, step in enumerate(steps_of(finding), 1))
            if result.count > len(kept):
                yield f"  … and {number(result.count - len(kept))} more"

    def _paragraph(self, lines: Iterable[str]) -> None:
        self._write(("\n" if self._printed else "") + "\n".join(lines) + "\n")
        self._printed, self._healthy_last = True, False

    def _wrap(self, text: str, indent: str = "", hanging: str | None = None) -> list[str]:
        return wrapped(text, self._look.width, indent, hanging)


def checks_table(checks: Sequence[Check], look: Look) -> str:
    """Return `doctor checks` as a table."""
    rows = [
        [look.ink.of(check.severity, check.name), check.severity.label, _fix_word(check.fix), check.summary]
        for check in checks
    ]
    return table(["check", "severity", "fix", "what it finds"], rows, "llll", look.width) + "\n"


def _fix_word(fix: Safety) -> str:
    return {Safety.SAFE: "safe", Safety.UNSAFE: "unsafe", Safety.NONE: "none"}[fix]


def notes_of(scan: StoreScan) -> list[str]:
    """Return what a person should know about the store, even if nothing else is wrong with it."""
    notes: list[str] = []
    if scan.condition is Condition.NEEDS_RECOVERY:
        notes.append("Its last writer did not finish. A private copy was recovered and read; the store is as it was.")
    elif scan.condition is Condition.NEWER_SCHEMA:
        notes.append(
            f"Its schema is newer than what this doctor knows ({KNOWN_SCHEMA}): it can be scanned, not mended."
            " Next: pip install --upgrade hermes-state-doctor"
        )
    if scan.reason:
        notes.append(visible(scan.reason))
    if scan.stopped is not None:
        notes.append(f"Stopped: {scan.stopped}. Next: the same command goes on from there")
    notes += [f"Left behind by the scan: {visible(left)}" for left in scan.trace]
    return notes


def since_last(since: SinceLast) -> str:
    """Return how many messages were read, and of how many an earlier scan's word was taken."""
    if since.doubt is not None:
        return f"{counted(since.read, 'message')} read: {visible(since.doubt)}."
    return (
        f"{counted(since.read, 'message')} read, new or perhaps changed since the last scan;"
        f" {number(since.known)} proven to be as they were."
    )


def failure(result: CheckResult) -> str:
    """Return that a check could not do its work, and why."""
    reason = f": {visible(result.reason)}" if result.reason else ""
    return f"{result.check.name} could not be checked in full{reason}"


def steps_of(finding: Finding) -> list[str]:
    """Return what is to be done in order; never to be wrapped: commands are there to be copied."""
    steps = finding.detail.get("steps")
    return [] if not isinstance(steps, Sequence) or isinstance(steps, str) else [visible(step) for step in steps]


def told(finding: Finding, check: Check) -> str:
    """Return what a finding is about, what is wrong there, and what can be done about it."""
    return f"{row_name(finding.table, finding.key, finding.session)}{what(finding, check)}"


def what(finding: Finding, check: Check) -> str:
    """Return what `told` says behind the name of the row."""
    level = "" if finding.severity is check.severity else f" ({finding.severity.label})"
    action = visible(finding.action or "")
    remedy = {
        Bucket.SAFE: f"Mends safely: {action}",
        Bucket.UNSAFE: f"Needs --unsafe: {action}",
        Bucket.REFUSED: f"Not mended: {visible(finding.refusal or '')}",
        Bucket.REPORT: "",
    }[finding.bucket]
    return f"{level}: {visible(finding.summary)}." + (f" {remedy}." if remedy else "")
