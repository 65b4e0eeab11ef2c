"""What all reports for a person share: paragraphs, tables that fit the width, and how a store is introduced."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TextIO

from hermes_doctor.engine.model import FILES, INDEX
from hermes_doctor.report.ink import Ink
from hermes_doctor.report.words import counted, key_text, short_path, size, visible
from hermes_doctor.store.cells import Key

if TYPE_CHECKING:
    # A scan needs nothing of what plans and undoes, nor the packages that these need.
    from hermes_doctor.engine.compact import StoreCompact
    from hermes_doctor.engine.plan import StoreFix
    from hermes_doctor.engine.scan import StoreScan
    from hermes_doctor.engine.undo import StoreUndo

#: Holders that are named before the rest is only counted.
_NAMED_HOLDERS = 3
#: Narrowest that the last column of a table may get.
_NARROWEST = 12

#: What one row of a table is called.
_NOUNS = {"messages": "message", FILES: "file", INDEX: "search index"}


@dataclass
class Look:
    """How a report is drawn: ``width`` in columns, ``limit`` examples for each check, ``quiet``: only faults."""

    width: int = 80
    limit: int = 3
    quiet: bool = False
    ink: Ink = field(default_factory=Ink)


class Paragraphs:
    """Writes groups of lines with an empty line between them."""

    def __init__(self, stream: TextIO) -> None:
        self._write = stream.write
        self._begun = False

    def add(self, lines: Iterable[str]) -> None:
        """Write one group of lines."""
        self._write(("\n" if self._begun else "") + "\n".join(lines) + "\n")
        self._begun = True


def wrapped(text: str, width: int, indent: str = "", hanging: str | None = None) -> list[str]:
    """Return the text in lines of at most that width; ``hanging``: the indent of all lines but the first."""
    return textwrap.wrap(
        text,
        width,
        initial_indent=indent,
        subsequent_indent=indent if hanging is None else hanging,
        break_long_words=False,
        break_on_hyphens=False,
    )


def table(headers: list[str], rows: list[list[str]], align: str, width: int) -> str:
    """Return a table of which the last column is wrapped so that all of it fits the width.

    ``align``: a letter for each column, ``l`` or ``r``.
    """
    lengths = [
        max(len(headers[place]), *(len(_without_color(row[place])) for row in rows))
        for place in range(len(headers) - 1)
    ]
    room = max(width - sum(length + 2 for length in lengths), _NARROWEST)
    cells = [[*row[:-1], textwrap.fill(row[-1], room, break_on_hyphens=False)] for row in rows]
    widest = max(len(line) for row in [headers, *cells] for line in row[-1].splitlines() or [""])
    # Here, and not with the others: most stores are well and get no table.
    from tabulate import tabulate

    # The heads are rows like any other: as headers tabulate would pad them by two more columns each.
    rules = ["-" * length for length in [*lengths, widest]]
    sides = [{"l": "left", "r": "right"}[side] for side in align]
    text = tabulate([headers, rules, *cells], tablefmt="plain", colalign=sides, disable_numparse=True)
    return "\n".join(line.rstrip() for line in text.splitlines())


def header(scan: StoreScan, look: Look) -> str:
    """Return the store's path and what it holds, broken between two facts where the line is too narrow."""
    sized = [size(scan.bytes)] if scan.bytes is not None else []
    path = short_path(scan.ref.path)
    line, lines = f"{path}  ", []
    for fact in [*facts(scan), *sized, holding(scan)]:
        joint = " · " if line.strip() and line != f"{path}  " else " "
        if len(line + joint + fact) > look.width and line.strip():
            lines.append(line.rstrip())
            line, joint = " ", " "
        line += joint + fact
    text = "\n".join([*lines, line])
    return look.ink.bold(path) + text[len(path) :]


def facts(scan: StoreScan) -> list[str]:
    """Return what a store holds: its schema, its sessions, its messages, as far as they are known."""
    known: list[str] = []
    if scan.schema_version is not None:
        known.append(f"schema {scan.schema_version}")
    if scan.sessions is not None:
        known.append(counted(scan.sessions, "session"))
    if scan.messages is not None:
        known.append(counted(scan.messages, "message"))
    return known


def holding(scan: StoreScan) -> str:
    """Return who has the store open, in words."""
    if scan.held == "no":
        return "nobody has it open"
    if scan.held != "yes":
        return "who has it open cannot be seen"
    if not scan.holders:
        return "somebody has it open"
    named = [f"{visible(holder.name)} ({holder.pid})" for holder in scan.holders[:_NAMED_HOLDERS]]
    rest = len(scan.holders) - len(named)
    return "open in " + ", ".join(named) + (f" and {rest} more" if rest else "")


def row_name(table_name: str, key: Key, session: Key = None) -> str:
    """Return what a row is called: a session by its id, any other row by its kind, its key and its session.

    A finding without a key is about its table as a whole.
    """
    if key is None:
        return f"table {table_name}"
    where = key_text(key)
    if table_name == "sessions":
        return where
    where = f"{_NOUNS.get(table_name, table_name)} {where}"
    return where if session is None else f"{where} of session {key_text(session)}"


def next_lines(commands: Sequence[str], width: int) -> list[str]:
    """Return what may be typed next: on one line where that fits, else each on its own, never broken, to be copied."""
    together = f"Next: {', '.join(commands)}"
    if not commands or len(together) <= width:
        return [together] if commands else []
    return [f"{'  or' if place else 'Next'}: {command}" for place, command in enumerate(commands)]


def obstacle(result: StoreFix | StoreUndo | StoreCompact, look: Look) -> list[str]:
    """What stands in the way of a change, planned or carried out, or went wrong with it, and what to type next."""
    # Only here: it is built on this module.
    from hermes_doctor.report.table import CLOSED, CONDITION_WORDS

    word = {"refused": "Refused", "failed": "Failed", "stopped": "Stopped"}.get(result.outcome)
    if result.outcome == "failed" and result.scan.condition in CLOSED:
        word = CONDITION_WORDS[result.scan.condition].capitalize()
    if word is not None and result.reason:
        lines = wrapped(f"{look.ink.bad(word)}: {visible(result.reason)}.", look.width, "  ", "    ")
        if result.scan.next_step and result.outcome == "failed":
            lines += wrapped(f"Next: {visible(result.scan.next_step)}", look.width, "  ", "    ")
        return lines
    if result.would_be_refused:
        word = look.ink.bad("It would be refused now")
        return wrapped(f"{word}: {visible(result.would_be_refused)}.", look.width, "  ", "    ")
    return []


def _without_color(text: str) -> str:
    return text.split("m", 1)[1].removesuffix("\x1b[0m") if text.startswith("\x1b[") else text
