"""Reports for a person: short, plain, and saying what to do next."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TextIO

from tabulate import tabulate

from hermes_doctor.engine.model import Bucket, Check, Finding, Safety, Severity
from hermes_doctor.engine.scan import CheckResult, StoreScan
from hermes_doctor.host.bundle import Condition
from hermes_doctor.report.ink import Ink
from hermes_doctor.report.model import RunEnd, RunStart
from hermes_doctor.report.words import counted, duration, key_text, number, short_path, size, visible
from hermes_doctor.store.shape import KNOWN_SCHEMA

#: Holders that are named before the rest is only counted.
_NAMED_HOLDERS = 3
#: Narrowest that the last column of a table may get.
_NARROWEST = 12

#: What one row of a table is called.
_NOUNS = {"messages": "message"}

_CLOSED = (Condition.DAMAGED, Condition.UNREADABLE, Condition.MISSING, Condition.NOT_HERMES)
_CONDITION_WORDS = {
    Condition.DAMAGED: "damaged",
    Condition.UNREADABLE: "cannot be read",
    Condition.MISSING: "missing",
    Condition.NOT_HERMES: "not a store of hermes",
}


@dataclass
class Look:
    """How a report is drawn: ``width`` in columns, ``limit`` examples for each check, ``quiet``: only faults."""

    width: int = 80
    limit: int = 3
    quiet: bool = False
    ink: Ink = field(default_factory=Ink)


class ScanTable:
    """`doctor scan` for a person."""

    def __init__(self, stream: TextIO, look: Look) -> None:
        self._write = stream.write
        self._look = look
        self._printed = False
        self._healthy_last = False
        self._stores = 0
        self._found: Counter[Severity] = Counter()
        self._buckets: Counter[Bucket] = Counter()

    def begin(self, start: RunStart) -> None:
        """Nothing is said before the first store."""

    def store(self, scan: StoreScan) -> None:
        """Print one store: a line if all is well, else what is wrong with it."""
        self._stores += 1
        if scan.condition in _CLOSED:
            self._paragraph(self._closed(scan))
            return
        notes = _notes(scan)
        failed = [result for result in scan.checks if result.status == "failed"]
        found = [result for result in scan.checks if result.count]
        if not notes and not failed and not found:
            if not self._look.quiet:
                self._healthy(scan)
            return
        lines = [self._header(scan)]
        if found and not scan.consistent:
            notes.append("Somebody wrote to it while it was read: what is reported was confirmed row by row.")
        lines += [line for note in notes for line in self._wrap(note)]
        lines += [line for result in failed for line in self._wrap(_failure(result))]
        if found:
            lines += ["", *self._faults(scan, found)]
        self._paragraph(lines)

    def end(self, end: RunEnd) -> None:
        """Print the sums over all stores, and what to type next."""
        if self._look.quiet:
            return
        lines: list[str] = []
        total = self._found.total()
        if total:
            lines += self._wrap(
                f"{counted(total, 'finding')} ({self._severities()}), {self._mendable(total)}."
                f" Read in {duration(end.seconds)}, nothing was changed."
            )
        elif self._stores > 1:
            lines += self._wrap(
                f"{counted(self._stores, 'store')} looked at in {duration(end.seconds)}, nothing was changed."
            )
        if end.next_commands:
            lines += self._wrap(f"Next: {', '.join(end.next_commands)}")
        if lines:
            self._paragraph(lines)

    def _header(self, scan: StoreScan) -> str:
        """The store's path and what it holds, broken between two facts where the line is too narrow."""
        sized = [size(scan.bytes)] if scan.bytes is not None else []
        path = short_path(scan.ref.path)
        line, lines = f"{path}  ", []
        for fact in [*_facts(scan), *sized, _holding(scan)]:
            joint = " · " if line.strip() and line != f"{path}  " else " "
            if len(line + joint + fact) > self._look.width and line.strip():
                lines.append(line.rstrip())
                line, joint = " ", " "
            line += joint + fact
        text = "\n".join([*lines, line])
        return self._look.ink.bold(path) + text[len(path) :]

    def _healthy(self, scan: StoreScan) -> None:
        # Healthy stores stand line under line, set off from what is wrong elsewhere.
        if self._printed and not self._healthy_last:
            self._write("\n")
        line = f"{self._look.ink.bold(short_path(scan.ref.path))}   {self._look.ink.good('healthy')}"
        moved = [] if scan.consistent else ["written to meanwhile"]
        self._write(" · ".join([line, *_facts(scan), *moved]) + "\n")
        self._printed = self._healthy_last = True

    def _closed(self, scan: StoreScan) -> list[str]:
        word = self._look.ink.bad(_CONDITION_WORDS[scan.condition])
        lines = [f"{self._look.ink.bold(short_path(scan.ref.path))}   {word}"]
        if scan.reason:
            lines += self._wrap(visible(scan.reason), "  ")
        if scan.next_step:
            lines += self._wrap(f"Next: {visible(scan.next_step)}", "  ")
        return lines

    def _faults(self, scan: StoreScan, found: list[CheckResult]) -> list[str]:
        examples: dict[str, list[Finding]] = {}
        for finding in scan.findings:
            self._found[finding.severity] += 1
            kept = examples.setdefault(finding.check, [])
            if len(kept) < self._look.limit:
                kept.append(finding)
        for result in found:
            self._buckets.update(result.buckets)
        found = sorted(found, key=lambda result: -(result.worst or result.check.severity))
        return [self._counts(found), *self._examples(found, examples)]

    def _counts(self, found: Sequence[CheckResult]) -> str:
        rows = [
            [
                self._look.ink.of(result.worst or result.check.severity, result.check.name),
                number(result.count),
                number(result.buckets[Bucket.SAFE]),
                number(result.count - result.buckets[Bucket.SAFE]),
                result.check.meaning,
            ]
            for result in found
        ]
        headers = ["check", "found", "mends safely", "needs you", "what it means"]
        return _table(headers, rows, "lrrrl", self._look.width)

    def _examples(self, found: Sequence[CheckResult], examples: dict[str, list[Finding]]) -> Iterable[str]:
        for result in found:
            kept = examples.get(result.check.name, [])
            if not kept:
                continue
            yield ""
            yield self._look.ink.bold(result.check.name)
            for finding in kept:
                yield from self._wrap(_example(finding, result.check), "  ", "    ")
            if result.count > len(kept):
                yield f"  … and {number(result.count - len(kept))} more"

    def _severities(self) -> str:
        named = [
            counted(self._found[severity], severity.label)
            if severity is not Severity.INFO
            else f"{number(self._found[severity])} info"
            for severity in sorted(Severity, reverse=True)
            if self._found[severity]
        ]
        return ", ".join(named)

    def _mendable(self, total: int) -> str:
        safe = self._buckets[Bucket.SAFE]
        if safe == 0:
            return "none of them mends safely"
        if safe == total:
            return "it mends safely" if total == 1 else "all of them mend safely"
        return f"{number(safe)} of them {'mends' if safe == 1 else 'mend'} safely"

    def _paragraph(self, lines: Iterable[str]) -> None:
        self._write(("\n" if self._printed else "") + "\n".join(lines) + "\n")
        self._printed, self._healthy_last = True, False

    def _wrap(self, text: str, indent: str = "", hanging: str | None = None) -> list[str]:
        return textwrap.wrap(
            text,
            self._look.width,
            initial_indent=indent,
            subsequent_indent=indent if hanging is None else hanging,
            break_long_words=False,
            break_on_hyphens=False,
        )


def checks_table(checks: Sequence[Check], look: Look) -> str:
    """Return `doctor checks` as a table."""
    rows = [
        [look.ink.of(check.severity, check.name), check.severity.label, _fix_word(check.fix), check.summary]
        for check in checks
    ]
    return _table(["check", "severity", "fix", "what it finds"], rows, "llll", look.width) + "\n"


def _table(headers: list[str], rows: list[list[str]], align: str, width: int) -> str:
    """Return a table of which the last column is wrapped so that all of it fits the width."""
    lengths = [
        max(len(headers[place]), *(len(_without_color(row[place])) for row in rows))
        for place in range(len(headers) - 1)
    ]
    room = max(width - sum(length + 2 for length in lengths), _NARROWEST)
    wrapped = [[*row[:-1], textwrap.fill(row[-1], room, break_on_hyphens=False)] for row in rows]
    widest = max(len(line) for row in [headers, *wrapped] for line in row[-1].splitlines())
    # The heads are rows like any other: as headers tabulate would pad them by two more columns each.
    rules = ["-" * length for length in [*lengths, widest]]
    sides = [{"l": "left", "r": "right"}[side] for side in align]
    text = tabulate([headers, rules, *wrapped], tablefmt="plain", colalign=sides, disable_numparse=True)
    return "\n".join(line.rstrip() for line in text.splitlines())


def _without_color(text: str) -> str:
    return text.split("m", 1)[1].removesuffix("\x1b[0m") if text.startswith("\x1b[") else text


def _fix_word(fix: Safety) -> str:
    return {Safety.SAFE: "safe", Safety.UNSAFE: "unsafe", Safety.NONE: "none"}[fix]


def _facts(scan: StoreScan) -> list[str]:
    facts: list[str] = []
    if scan.schema_version is not None:
        facts.append(f"schema {scan.schema_version}")
    if scan.sessions is not None:
        facts.append(counted(scan.sessions, "session"))
    if scan.messages is not None:
        facts.append(counted(scan.messages, "message"))
    return facts


def _holding(scan: StoreScan) -> str:
    if scan.held == "no":
        return "nobody has it open"
    if scan.held != "yes":
        return "who has it open cannot be seen"
    if not scan.holders:
        return "somebody has it open"
    named = [f"{visible(holder.name)} ({holder.pid})" for holder in scan.holders[:_NAMED_HOLDERS]]
    rest = len(scan.holders) - len(named)
    return "open in " + ", ".join(named) + (f" and {rest} more" if rest else "")


def _notes(scan: StoreScan) -> list[str]:
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
    notes += [f"Left behind by the scan: {visible(left)}" for left in scan.trace]
    return notes


def _failure(result: CheckResult) -> str:
    reason = f": {visible(result.reason)}" if result.reason else ""
    return f"{result.check.name} could not be checked in full{reason}"


def _example(finding: Finding, check: Check) -> str:
    where = key_text(finding.key)
    if finding.table != "sessions":
        where = f"{_NOUNS.get(finding.table, finding.table)} {where}"
        if finding.session is not None:
            where += f" of session {key_text(finding.session)}"
    level = "" if finding.severity is check.severity else f" ({finding.severity.label})"
    action = visible(finding.action or "")
    remedy = {
        Bucket.SAFE: f"Mends safely: {action}",
        Bucket.UNSAFE: f"Needs --unsafe: {action}",
        Bucket.REFUSED: f"Not mended: {visible(finding.refusal or '')}",
        Bucket.REPORT: "",
    }[finding.bucket]
    return f"{where}{level}: {visible(finding.summary)}." + (f" {remedy}." if remedy else "")
