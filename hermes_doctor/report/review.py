"""`doctor fix --review` in words: one finding, what its fix would change, the rows around it, and what was answered."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hermes_doctor.engine.changes import Op
from hermes_doctor.engine.model import Check, Finding
from hermes_doctor.engine.rehearsal import ColumnEffect, Effect, Held
from hermes_doctor.engine.review import Answer
from hermes_doctor.report.ink import Ink
from hermes_doctor.report.layout import row_name, wrapped
from hermes_doctor.report.page import HEADINGS
from hermes_doctor.report.words import ago, counted, duration, key_text, moment, number, size, visible
from hermes_doctor.store.around import Around, Message, Session
from hermes_doctor.store.clocks import trusted

_DONE = {Op.INSERT: "added", Op.UPDATE: "changed", Op.DELETE: "deleted"}
#: Items of a list that are shown before the rest is only counted.
_MOST_ITEMS = 8
#: Longest word from a store that is shown whole.
_LONGEST = 60

#: What may be typed at the question.
KEYS = (
    ("y", "yes, mend it"),
    ("n", "no, leave it; it is asked again only when the finding says something else, or with --again"),
    ("a", "yes to this one and to all that are left of {check} in this store ({left})"),
    ("l", "not now; the next review asks again"),
    ("q", "quit; what was answered is kept"),
    ("r", "the rows around it: ids, roles, times, sizes and flags, no text"),
    ("e", "the whole page of {check}"),
    ("?", "this"),
)


class ReviewWords:
    """The words of a review at one width, for one person at a terminal."""

    def __init__(self, width: int, ink: Ink) -> None:
        self.width = width
        self.ink = ink

    def introduced(self, check: Check) -> Iterator[str]:
        """Say of a check, before the first of its findings, what is thought wrong, and why it needs a person."""
        yield from self._wrap(f"{self.ink.of(check.severity, check.name)}: {check.meaning}.")
        safety = " ".join(_section(check, "Fix safety"))
        if safety:
            yield from self._wrap(f"Why you are asked: {safety}", "  ", "  ")

    def asked(self, finding: Finding, place: str, before: Answer | None, now: float) -> Iterator[str]:
        """Say what was found. ``place``: which question it is. ``before``: what was answered when it was asked last."""
        name = row_name(finding.table, finding.key, finding.session)
        yield from self._wrap(f"{place} · {finding.check} · {finding.severity.label} · {self.ink.bold(name)}")
        yield from self._wrap(f"Found: {visible(finding.summary)}", "  ", "    ")
        told = " · ".join(_told(name, value, now) for name, value in finding.detail.items() if value not in (None, ()))
        if told:
            yield from self._wrap(f"By this: {told}", "  ", "    ")
        if before is not None:
            yield from self._wrap(f"You answered {before.word} {ago(before.at, now)}.", "  ", "    ")

    def would(self, finding: Finding, effect: Effect, now: float) -> Iterator[str]:
        """Say what the fix would do, and what of which columns that would change."""
        yield from self._wrap(f"The fix: {visible(finding.action or 'mend it')}", "  ", "    ")
        if effect.unknown is not None:
            yield from self._wrap(f"What it would change is not known: {visible(effect.unknown)}", "  ", "    ")
        if effect.otherwise is not None:
            yield from self._wrap(f"It would change: {visible(effect.otherwise)}", "  ", "    ")
        for table in effect.tables:
            what = f"{counted(table.rows, 'row')} of {visible(table.table)} {_DONE[table.op]}"
            columns = list(table.columns.values())
            if table.op is Op.UPDATE:
                yield from self._wrap(f"It would change: {what}", "  ", "    ")
                for column in columns:
                    yield from self._wrap(f"{visible(column.column)}: {_became(column, now)}", "    ", "      ")
            else:
                names = ", ".join(visible(column.column) for column in columns)
                yield from self._wrap(f"It would change: {what}{f', with {names}' if names else ''}", "  ", "    ")

    def help(self, check: str, left: int) -> Iterator[str]:
        """Say what may be typed."""
        for key, what in KEYS:
            yield from self._wrap(f"{key}  {what.format(check=check, left=counted(left, 'finding'))}", "  ", "     ")

    def around(self, around: Around, now: float) -> Iterator[str]:
        """Show the rows around one: a line each."""
        if not around.sessions and not around.messages:
            yield from self._wrap("There is no row around it: it belongs to no session that is there.", "  ", "    ")
            return
        for session in around.sessions:
            yield from self._wrap(" · ".join(_session(session, now)), "  ", "      ")
        shown = len(around.messages)
        yield from self._wrap(f"{number(shown)} of {counted(around.count, 'message')}:", "  ", "    ")
        for message in around.messages:
            yield from self._wrap(" · ".join(_message(message, now)), "  > " if message.here else "    ", "      ")

    def _wrap(self, text: str, indent: str = "", hanging: str | None = None) -> list[str]:
        return wrapped(text, self.width, indent, hanging)


def _section(check: Check, heading: str) -> list[str]:
    """Return the lines of one part of a check's page."""
    found: list[str] = []
    inside = False
    for line in check.page.splitlines():
        if line.strip() in HEADINGS:
            inside = line.strip() == heading
        elif inside and line.strip():
            found.append(line.strip())
    return found


def _told(name: str, value: object, now: float) -> str:
    """Return one of a finding's details in words."""
    what = name.removesuffix("_seconds").replace("_", " ")
    if isinstance(value, bool):
        return f"{what} {'yes' if value else 'no'}"
    if isinstance(value, int | float):
        if name.endswith("_seconds"):
            return f"{what} {duration(float(value))}"
        if name.endswith("_at") and trusted(value) is not None:
            return f"{what} {moment(float(value), now)}"
        if name == "bytes" and isinstance(value, int):
            return f"{what} {size(value)}"
        return f"{what} {value:,}"
    if isinstance(value, str):
        return f"{what} {key_text(value)}"
    items = [key_text(str(item)) for item in value] if isinstance(value, Sequence) else [str(value)]
    rest = f" and {len(items) - _MOST_ITEMS:,} more" if len(items) > _MOST_ITEMS else ""
    return f"{what} {', '.join(items[:_MOST_ITEMS])}{rest}"


def _became(effect: ColumnEffect, now: float) -> str:
    """Return what a column held and what it would hold: the values where they are all the same, else their kinds."""
    before, after = ([pair[side] for pair in effect.became] for side in (0, 1))
    rows = f" ({counted(len(effect.became), 'row')})" if len(effect.became) > 1 else ""
    return f"{_held(effect.column, before, now)} -> {_held(effect.column, after, now)}{rows}"


def _held(column: str, cells: Sequence[Held], now: float) -> str:
    kinds = dict.fromkeys(cell.kind for cell in cells)
    return " or ".join(_of_kind(column, kind, [cell for cell in cells if cell.kind == kind], now) for kind in kinds)


def _of_kind(column: str, kind: str, cells: Sequence[Held], now: float) -> str:
    told = {cell.told for cell in cells}
    least, most = min(cell.size for cell in cells), max(cell.size for cell in cells)
    sizes = number(most) if least == most else f"{number(least)} to {number(most)}"
    match kind:
        case "nothing":
            return "NULL"
        case "number":
            if len(told) > 1:
                return "numbers"
            [value] = told
            is_time = column.endswith(("_at", "timestamp", "_activity")) and isinstance(value, float)
            if is_time and isinstance(value, float) and trusted(value) is not None:
                return moment(value, now)
            return f"{value:,}" if isinstance(value, int | float) else str(value)
        case "text":
            if len(told) == 1 and None not in told:
                return _word(str(next(iter(told))))
            return f"text of {sizes} characters"
        case _:
            return f"{sizes} bytes"


def _word(text: str) -> str:
    return key_text(text) if len(text) <= _LONGEST else f"{visible(text[:_LONGEST])}…"


def _session(session: Session, now: float) -> Iterator[str]:
    yield f"{key_text(session.id)} ({session.place})"
    yield _word(session.source or "no source")
    if session.started_at is not None:
        yield f"began {moment(session.started_at, now)}"
    if session.ended_at is not None:
        yield f"ended {moment(session.ended_at, now)}"
    else:
        yield "open"
    if session.end_reason is not None:
        yield _word(session.end_reason)
    if session.messages is not None:
        yield f"counts {counted(session.messages, 'message')}"


def _message(message: Message, now: float) -> Iterator[str]:
    yield key_text(message.id)
    yield message.role
    yield "no time" if message.at is None else moment(message.at, now)
    yield "no content" if message.bytes is None else size(message.bytes)
    yield from message.marks
