"""The words that every floor shares: Check, Finding, Severity, Safety, ExitCode, and the rules of a check."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from operator import attrgetter
from pathlib import Path
from typing import Any

from hermes_doctor.store.cells import Cell, Key
from hermes_doctor.store.shape import Shape
from hermes_doctor.store.view import StoreView

#: Stands for a table in rules and findings about files around the rows: the store itself, its sidecars, its copies, its
#: home. The key of such a finding is a file's path, relative to the store's folder where it lies in it.
FILES = "(files)"
#: The same for the search index. The key is an index's name, with a range of ids where the finding is about that.
INDEX = "(search index)"

#: What a finding says of its row: ids, counts, column names.
Detail = Mapping[str, str | int | float | bool | Sequence[str] | None]


class Severity(enum.IntEnum):
    """How bad a finding is.

    ERROR: something is lost, hidden or refused now. WARNING: wrong, and it will mislead. INFO: good to know.
    """

    INFO = 1
    WARNING = 2
    ERROR = 3

    @property
    def label(self) -> str:
        """The word that users and scripts see: ``info``, ``warning`` or ``error``."""
        return self.name.lower()


class Safety(enum.StrEnum):
    """Whether a fix may run unasked (SAFE), needs ``--unsafe`` (UNSAFE), or does not exist (NONE)."""

    SAFE = "safe"
    UNSAFE = "unsafe"
    NONE = "none"


class ExitCode(enum.IntEnum):
    """The exit codes of every command."""

    CLEAN = 0
    FINDINGS = 1
    USAGE = 2
    FAILED = 3
    DAMAGED = 4
    REFUSED = 5
    BUSY = 6
    STOPPED = 7


#: Of several stores the most severe counts, in this order.
EXIT_ORDER: tuple[ExitCode, ...] = (
    ExitCode.FAILED,
    ExitCode.DAMAGED,
    ExitCode.REFUSED,
    ExitCode.BUSY,
    ExitCode.STOPPED,
    ExitCode.FINDINGS,
    ExitCode.CLEAN,
)


def worst(codes: Sequence[ExitCode]) -> ExitCode:
    """Return the exit code that counts for a run over several stores; CLEAN for none."""
    return min(codes, key=EXIT_ORDER.index, default=ExitCode.CLEAN)


class Bucket(enum.StrEnum):
    """Where a finding is counted: what can be done about it."""

    SAFE = "safe"
    UNSAFE = "unsafe"
    REFUSED = "refused"
    REPORT = "report"


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault of one row.

    ``key`` is the primary key of the row in ``table``; ``session`` the session it belongs to, if any.
    ``summary`` is one plain sentence; ``detail`` holds ids, counts and column names, never message text,
    titles or prompts. ``action`` says what the fix would do. A finding whose check has a fix in general,
    but which must not be fixed here, has ``fix`` NONE and says why in ``refusal``.
    """

    check: str
    severity: Severity
    table: str
    key: Key
    session: Key
    summary: str
    detail: Detail = field(default_factory=dict)
    fix: Safety = Safety.NONE
    action: str | None = None
    refusal: str | None = None

    def __reduce__(self) -> tuple[type[Finding], tuple[object, ...]]:
        # By position: findings are pickled by the hundred thousand, and this is three times as fast.
        return Finding, _ALL_OF_FINDING(self)

    def of(self, key: Key) -> Finding:
        """Return this finding of the row with that key. (`dataclasses.replace` takes twenty times as long.)"""
        check, severity, table, _key, *rest = _ALL_OF_FINDING(self)
        return Finding(check, severity, table, key, *rest)

    @property
    def row(self) -> tuple[str, Key]:
        """Which row of the store it is: its table and its key there."""
        return self.table, self.key

    @property
    def bucket(self) -> Bucket:
        """Where this finding is counted."""
        if self.fix is Safety.SAFE:
            return Bucket.SAFE
        if self.fix is Safety.UNSAFE:
            return Bucket.UNSAFE
        return Bucket.REFUSED if self.refusal is not None else Bucket.REPORT


_ALL_OF_FINDING: Callable[[Finding], tuple[Any, ...]] = attrgetter(*(field.name for field in fields(Finding)))

Row = Mapping[str, Cell]


@dataclass(frozen=True)
class Sieve:
    """A cheaper way to tell of many rows at once that none of them is suspect.

    ``gathered`` is an aggregate expression of SQL over rows of the table; where ``clean`` holds for what it comes to,
    none of them is suspect but those of which ``rest``, an SQL condition, is true. Where it does not, each row is asked
    by the rule's condition. ``gathered`` has to bound what it takes of one row: that of some thousand rows is kept at
    once.
    """

    gathered: str
    rest: str
    clean: Callable[[Cell], bool]


def _no_sieve(_shape: Shape) -> Sieve | None:
    return None


@dataclass(frozen=True)
class RowRule:
    """A rule over single rows of one table, laid over it together with all others so that it is read once.

    ``condition`` gives an SQL expression over the table's columns (unqualified, quoted by the shape) that preselects
    suspects by what the row itself holds, or None where the store's shape cannot show the fault. ``columns`` are read
    of each suspect beside the key; those that the store lacks come as None. ``judge`` decides, in Python.
    ``functions``: what the condition calls, by name, each of one argument; text goes in as a blob (``CAST(x AS
    BLOB)``), for text that is no text cannot be handed over. ``sieve``: spares such calls for most rows, None where the
    shape does not allow it. ``lasting``: ``judge`` goes by the row and the store's shape alone, so that what it finds
    may be kept for as long as the row is the same.
    """

    table: str
    columns: tuple[str, ...]
    condition: Callable[[Shape], str | None]
    judge: Callable[[Row, StoreView], Finding | None]
    functions: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    sieve: Callable[[Shape], Sieve | None] = _no_sieve
    lasting: bool = False


@dataclass(frozen=True)
class RelationRule:
    """A rule over relations between rows: a generator of findings.

    It may also be one over what lies around the rows: its table is `FILES` or `INDEX` then. ``find`` gets the view
    and, when only some rows are asked about (a confirmation, or the re-check inside a fix's transaction), their keys
    in ``table``; it must then judge just these, by the same rule.
    """

    table: str
    find: Callable[[StoreView, Sequence[Key] | None], Iterator[Finding]]


class Fold:
    """What the rows of a table come to together, as far as they were seen."""

    def see(self, *cells: Cell) -> None:
        """Take in one row: what `Told.cells` comes to."""

    def add(self, *totals: Cell) -> None:
        """Take in what `Told.totals` of some rows comes to; together they are all rows, each once."""

    def findings(self) -> Iterator[Finding]:
        """Give what is wrong, once all rows were seen."""
        raise NotImplementedError


@dataclass(frozen=True)
class Told:
    """What a fold is told of a table: of which rows (an SQL condition), and what (SQL expressions).

    ``where`` looks at the row itself, and at rows at most `hermes_doctor.store.sifting.REACH` rowids away. ``also``: a
    second condition, which those rows are asked by themselves: for what looks up others. ``totals``: aggregate
    expressions of SQL, for what SQLite can add up of all rows by itself: that is many times faster than to be told row
    by row. ``neighbours``: columns of which ``where`` may also name those of the rows with the next rowids, as
    ``column_before`` and ``column_behind``: NULL where there is no such row, or no such column. ``condense``: makes
    less of what each of the totals comes to, which is kept for the next scan. Text goes in as a blob (``CAST(x AS
    BLOB)``), for text that is no text cannot be handed over.
    """

    where: str = "0"
    cells: tuple[str, ...] = ()
    also: str = "1"
    totals: tuple[str, ...] = ()
    neighbours: tuple[str, ...] = ()
    condense: Callable[[Cell], Cell] | None = None


@dataclass(frozen=True)
class FoldRule:
    """A rule over what the rows of a table come to together, seen in the common pass, in the order of their keys.

    ``over`` is the table that is read, ``table`` the one that the findings are about. ``told`` says what the fold is
    told of it, None where the store's shape cannot show the fault. ``start`` begins anew; what it keeps must not grow
    with the table. ``again`` judges the rows with just these keys in ``table``, by the same rule.
    """

    table: str
    over: str
    told: Callable[[Shape], Told | None]
    start: Callable[[StoreView], Fold]
    again: Callable[[StoreView, Sequence[Key]], Iterator[Finding]]


Rule = RowRule | RelationRule | FoldRule


def _never(_finding: Finding) -> bool:
    return False


@dataclass(frozen=True)
class Check:
    """One fault: what it is called, how bad it is, and the rule that finds it.

    ``summary`` is what `doctor checks` lists; ``meaning`` is the "what it means" of a report, in words for the
    person; ``fix`` is the best that a fix of it can be; ``page`` is the module's docstring, shown by
    `doctor explain`. ``wreck`` says of a damaged store that cannot be opened, by its path, what can be told all the
    same. ``condemns`` says of a finding that the store as a whole is damaged; its ``detail["next"]`` is what to do.
    ``rule`` is a tuple where the fault shows in rows of several tables: each rule then finds rows
    of its own table only, and no row is found by two of them.
    """

    name: str
    severity: Severity
    summary: str
    meaning: str
    fix: Safety
    page: str
    rule: Rule | tuple[Rule, ...]
    wreck: Callable[[Path], Iterator[Finding]] | None = None
    condemns: Callable[[Finding], bool] = _never

    @property
    def rules(self) -> tuple[Rule, ...]:
        """All rules of the check, be it one or several."""
        return self.rule if isinstance(self.rule, tuple) else (self.rule,)


def has_table(rule: Rule, shape: Shape) -> bool:
    """Whether the store has the table that the rule's findings are about; files and an index may always be told of."""
    return rule.table in (FILES, INDEX) or shape.has(rule.table)
