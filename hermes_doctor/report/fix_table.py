"""`doctor fix` for a person: what would be done, or was; what stands in the way; what to type next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TextIO

from hermes_doctor.engine.model import Check, ExitCode, Finding
from hermes_doctor.engine.plan import NEEDS_UNSAFE, StoreFix
from hermes_doctor.engine.transaction import DONE, FAILED, GONE, PLANNED, REFUSED, Change
from hermes_doctor.report.changes_model import ChangesEnd, ChangesStart
from hermes_doctor.report.layout import (
    Look,
    Paragraphs,
    facts,
    header,
    next_lines,
    obstacle,
    row_name,
    some,
    table,
    wrapped,
)
from hermes_doctor.report.words import counted, duration, number, short_path, size, visible

#: What a row of the table counts besides the states of changes.
_UNSAFE, _REPORTED = "needs --unsafe", "reported"

_NO_BACKUP = {
    "never": "There will be no backup (--backup never); what is changed can be undone all the same.",
    "too-large": "There will be no backup of so large a store ({size}) unless you ask for it: --backup always.",
    "no-room": "There will be no backup: there is too little room beside the store ({size}). What is changed can be"
    " undone all the same.",
}


class FixTable:
    """`doctor fix` for a person."""

    def __init__(self, stream: TextIO, look: Look, checks: Sequence[Check]) -> None:
        self._page = Paragraphs(stream)
        self._look = look
        self._checks = checks
        self._applied = False
        self._stores = 0
        self._changed = 0
        self._aside = False
        self._runs: list[str] = []

    def begin(self, start: ChangesStart) -> None:
        """Nothing is said before the first store."""
        self._applied = start.applied

    def store(self, result: StoreFix) -> None:
        """Print one store: a line where there is nothing to do, else what would be, or was, done to it."""
        self._stores += 1
        self._changed += result.count(DONE if self._applied else PLANNED)
        if result.run is not None:
            self._runs.append(result.run)
        if result.outcome == "nothing-to-do" and not result.changes:
            if not self._look.quiet:
                self._page.add([self._nothing(result)])
            return
        if result.scan.bundle is None:
            self._page.add([self._look.ink.bold(short_path(result.ref.path)), *obstacle(result, self._look)])
            return
        self._aside = self._aside or result.count(REFUSED) > 0
        lines = [header(result.scan, self._look), *obstacle(result, self._look)]
        if result.changes:
            lines += ["", self._counts(result), *self._examples(result), *self._set_aside(result)]
        lines += self._around(result)
        self._page.add(lines)

    def end(self, end: ChangesEnd) -> None:
        """Print the sum, and what to type next."""
        if self._look.quiet:
            return
        lines: list[str] = []
        took = duration(end.seconds)
        rows = counted(self._changed, "row")
        if not self._applied and self._changed:
            lines += self._wrap(
                f"{rows} would be mended. Nothing was changed. This is the first round: mending one fault can show"
                " another, which --apply then mends too."
            )
        elif self._applied and self._changed:
            lines += self._wrap(f"{rows} mended in {took}.")
        elif end.exit_code is ExitCode.CLEAN and self._aside:
            lines += self._wrap("Nothing to do: what is named above is not mended by this command.")
        elif end.exit_code is ExitCode.CLEAN and self._stores > 1:
            lines += self._wrap("Nothing to do.")
        for path in end.not_reached:
            lines += self._wrap(f"Not reached: {short_path(path)}")
        lines += next_lines(end.next_commands, self._look.width)
        if lines:
            self._page.add(lines)

    def _nothing(self, result: StoreFix) -> str:
        path = self._look.ink.bold(short_path(result.ref.path))
        word = self._look.ink.good("nothing to do")
        only = len(result.scan.findings)
        told = [f"{counted(only, 'finding')} that no fix is for"] if only else []
        return " · ".join([f"{path}   {word}", *facts(result.scan), *told])

    def _counts(self, result: StoreFix) -> str:
        states = _states_by_check(result)
        found = {each.check.name: each.count for each in result.scan.checks}
        columns = [("found", ""), ("mended", DONE)] if self._applied else [("found", ""), ("would mend", PLANNED)]
        columns += [("refused", REFUSED), ("needs --unsafe", _UNSAFE)]
        seldom = [("failed", FAILED), ("gone", GONE), ("not reached", PLANNED), ("only reported", _REPORTED)]
        for title, state in seldom:
            if any(counts[state] for counts in states.values()) and state not in (each for _, each in columns):
                columns.append((title, state))
        rows = [
            [
                self._look.ink.of(check.severity, check.name),
                *(number(states[check.name][state] if state else found.get(check.name, 0)) for _, state in columns),
            ]
            for check in self._checks
            if states[check.name].total()
        ]
        return table(["check", *(title for title, _ in columns)], rows, "l" + "r" * len(columns), self._look.width)

    def _examples(self, result: StoreFix) -> Iterator[str]:
        """Some rows of each check that would be, or were, mended."""
        state = DONE if self._applied else PLANNED
        summaries = self._summaries(result)
        for check in self._checks:
            changes = [change for change in result.changes if change.check == check.name and change.state == state]
            shown = changes[: self._look.limit]
            if not shown:
                continue
            yield ""
            yield self._look.ink.bold(check.name)
            for change in shown:
                finding = summaries.get((change.check, change.row))
                name = row_name(change.table, change.key, finding.session if finding else None)
                told = f"{visible(finding.summary)}: " if finding and not self._applied else ""
                yield from self._wrap(f"{name}: {told}{visible(change.action or 'mend it')}", "  ", "    ")
            if len(changes) > len(shown):
                yield f"  … and {number(len(changes) - len(shown))} more"

    def _summaries(self, result: StoreFix) -> dict[tuple[str, object], Finding]:
        """The findings of the rows that are shown as examples: memory holds no more than these."""
        kept: dict[tuple[str, object], Finding] = {}
        room = Counter({check.name: self._look.limit for check in self._checks})
        shown = {PLANNED, DONE}
        wanted = {(change.check, change.row) for change in _first(result.changes, shown, room)}
        for finding in result.scan.findings:
            if (finding.check, finding.row) in wanted:
                kept[finding.check, finding.row] = finding
        return kept

    def _set_aside(self, result: StoreFix) -> Iterator[str]:
        """What is not mended, grouped by the reason."""
        groups: dict[tuple[str, str, str], list[Change]] = {}
        for change in result.changes:
            if change.state in (REFUSED, FAILED):
                groups.setdefault((change.state, change.check, change.reason or "no reason is known"), []).append(
                    change
                )
        if groups:
            yield ""
            yield self._look.ink.bold("Not mended" if self._applied else "Would not be mended")
        for (_state, check, reason), changes in groups.items():
            names = some([row_name(change.table, change.key) for change in changes], self._look.limit)
            which = f" ({names})" if names else ""
            yield from self._wrap(f"{number(len(changes))} of {check}: {visible(reason)}{which}", "  ", "    ")

    def _around(self, result: StoreFix) -> list[str]:
        """The backup, the run, what prune would take, how long the store was held."""
        notes: list[str] = []
        if self._applied:
            if result.backup is not None:
                notes.append(f"Backup: {short_path(result.backup)}")
            if result.run is not None:
                longest = result.holds.get("longest", 0.0) * 1000
                notes.append(
                    f"Run {result.run}: {counted(result.transactions, 'transaction')}, of which the longest held the"
                    f" store for {longest:,.0f} ms."
                )
            if result.run is not None and result.still_found:
                left = f", {number(result.left)} of them can be mended by the same command" if result.left else ""
                notes.append(f"{counted(result.still_found, 'finding')} left{left}.")
        elif result.backup_forecast is not None:
            forecast = result.backup_forecast
            notes.append(
                _NO_BACKUP[forecast.why_not].format(size=size(forecast.bytes))
                if forecast.why_not
                else f"There will be a backup first ({size(forecast.bytes)})."
            )
        notes += self._prune(result)
        return ["", *(line for note in notes for line in self._wrap(note))] if notes else []

    def _prune(self, result: StoreFix) -> Iterator[str]:
        prune = result.prune_forecast
        if prune is None or not prune.sessions:
            return
        what = f"{counted(prune.sessions, 'session')} with {counted(prune.messages, 'message')}"
        age = f"older than {prune.retention_days:g} days"
        now = "can now" if self._applied else "would then"
        if prune.pruning == "off":
            yield f"hermes does not prune by itself here; its command {now} delete {what}: {age}, once ended."
        else:
            yield f"hermes's next prune {now} delete {what}: {age}, once ended."

    def _wrap(self, text: str, indent: str = "", hanging: str | None = None) -> list[str]:
        return wrapped(text, self._look.width, indent, hanging)


def _states_by_check(result: StoreFix) -> dict[str, Counter[str]]:
    """Count the changes of each check by state; what is only reported has no change, and waits for --unsafe apart."""
    states = {each.check.name: Counter[str]() for each in result.scan.checks}
    for change in result.changes:
        unsafe = change.state == REFUSED and change.reason == NEEDS_UNSAFE
        states.setdefault(change.check, Counter())[_UNSAFE if unsafe else change.state] += 1
    for each in result.scan.checks:
        told = each.count - states[each.check.name].total()
        if told > 0:
            states[each.check.name][_REPORTED] = told
    return states


def _first(changes: Iterable[Change], states: set[str], room: Counter[str]) -> Iterator[Change]:
    """Give the first changes of each check that are in one of the states, as many as there is room for."""
    for change in changes:
        if change.state in states and room[change.check] > 0:
            room[change.check] -= 1
            yield change
