"""`doctor fix` for a person: what would be done, or was; what stands in the way; what to type next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TextIO

from hermes_doctor.engine.model import Check, ExitCode, Finding
from hermes_doctor.engine.plan import StoreFix
from hermes_doctor.engine.transaction import DONE, FAILED, GONE, PLANNED, REFUSED
from hermes_doctor.report.changes_model import ChangesEnd, ChangesStart
from hermes_doctor.report.layout import (
    Look,
    Paragraphs,
    facts,
    header,
    next_lines,
    obstacle,
    row_name,
    table,
    wrapped,
)
from hermes_doctor.report.tally import Tally
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

    def __init__(self, stream: TextIO, look: Look, checks: Sequence[Check], others: str = "only reported") -> None:
        """Write to a stream. ``others``: what findings are called of which the run was not to mend any."""
        self._others = others
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
            tally = Tally(result.changes, self._look.limit, (REFUSED, FAILED))
            lines += ["", self._counts(result, tally), *self._examples(result, tally), *self._set_aside(tally)]
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

    def _counts(self, result: StoreFix, tally: Tally) -> str:
        states = _states_by_check(result, tally)
        found = {each.check.name: each.count for each in result.scan.checks}
        columns = [("found", ""), ("mended", DONE)] if self._applied else [("found", ""), ("would mend", PLANNED)]
        columns += [("refused", REFUSED), ("needs --unsafe", _UNSAFE)]
        seldom = [("failed", FAILED), ("gone", GONE), ("not reached", PLANNED), (self._others, _REPORTED)]
        for title, state in seldom:
            if any(counts[state] for counts in states.values()) and state not in (each for _, each in columns):
                columns.append((title, state))
        rows = [
            [
                self._look.ink.of(check.severity, check.name),
                *(number(states[check.name][state] if state else found.get(check.name, 0)) for _, state in columns),
            ]
            for check in self._checks
            if check.name in states and states[check.name].total()
        ]
        return table(["check", *(title for title, _ in columns)], rows, "l" + "r" * len(columns), self._look.width)

    def _examples(self, result: StoreFix, tally: Tally) -> Iterator[str]:
        """Some rows of each check that would be, or were, mended."""
        state = DONE if self._applied else PLANNED
        summaries = self._summaries(result, tally)
        for check in self._checks:
            shown = tally.examples(check.name, state)
            if not shown:
                continue
            yield ""
            yield self._look.ink.bold(check.name)
            for change in shown:
                finding = summaries.get((change.check, change.row))
                name = row_name(change.table, change.key, finding.session if finding else None)
                told = f"{visible(finding.summary)}: " if finding and not self._applied else ""
                yield from self._wrap(f"{name}: {told}{visible(change.action or 'mend it')}", "  ", "    ")
            yield from tally.more(check.name, state)

    def _summaries(self, result: StoreFix, tally: Tally) -> dict[tuple[str, object], Finding]:
        """The findings of the rows that are shown as examples: memory holds no more than these."""
        wanted = {
            (change.check, change.row)
            for check in self._checks
            for state in (PLANNED, DONE)
            for change in tally.examples(check.name, state)
        }
        return {
            (finding.check, finding.row): finding
            for finding in result.scan.findings
            if (finding.check, finding.row) in wanted
        }

    def _set_aside(self, tally: Tally) -> Iterator[str]:
        """What is not mended, grouped by the reason."""
        left = list(tally.left())
        if left:
            yield ""
            yield self._look.ink.bold("Not mended" if self._applied else "Would not be mended")
        for line in left:
            yield from self._wrap(line, "  ", "    ")

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
                them = "it" if result.still_found == 1 else "them"
                left = (
                    f", {number(result.left)} of them can be mended by the same command"
                    if result.left
                    else f" that this command does not mend (doctor scan shows {them})"
                )
                notes.append(f"{counted(result.still_found, 'finding')} left{left}.")
            if result.left_to_hermes:
                notes.append(
                    f"{number(result.left_to_hermes)} of them are left to the living hermes: stop it, or wait until"
                    " their sessions are quiet."
                )
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


def _states_by_check(result: StoreFix, tally: Tally) -> dict[str, Counter[str]]:
    """Count the changes of each check by state; what is only reported has no change, and waits for --unsafe apart."""
    states = {
        check: tally.of(check).copy() for check in (*(each.check.name for each in result.scan.checks), *tally.checks)
    }
    for check, waiting in tally.waiting.items():
        states[check].update({_UNSAFE: waiting, REFUSED: -waiting})
    for each in result.scan.checks:
        told = each.count - states[each.check.name].total()
        if told > 0:
            states[each.check.name][_REPORTED] = told
    return states
