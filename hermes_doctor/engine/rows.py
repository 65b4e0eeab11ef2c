"""Laying all row rules over a table at once, so that it is read once, and asking one rule about single rows."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

from hermes_doctor.engine.model import (
    Check,
    Finding,
    Fold,
    FoldRule,
    RelationRule,
    RowRule,
    Rule,
    Sieve,
    Told,
    has_table,
)
from hermes_doctor.store.cells import BadText, Cell, Key, quote
from hermes_doctor.store.reader import Values, in_keys
from hermes_doctor.store.shape import Table
from hermes_doctor.store.sifting import Sifted, Sifter, sift
from hermes_doctor.store.view import StoreView

#: So many rows of a range that is not clean are asked by the rule's own condition.
_ASKED_ONE_BY_ONE = 128


@dataclass(frozen=True)
class _Laid:
    """One rule as it lies over a table: its condition, and what is read of a suspect: its key, then the rule's columns.

    ``key_width``: how many columns the key has.
    """

    check: Check
    rule: RowRule
    condition: str
    columns: tuple[str, ...]
    key_width: int
    sieve: Sieve | None


@dataclass(frozen=True)
class _Folded:
    """One fold as it lies over a table: what it is told."""

    check: Check
    rule: FoldRule
    told: Told


@dataclass(frozen=True)
class Pass:
    """Several rules over one table, in one reading."""

    table: Table
    laid: tuple[_Laid, ...]
    folded: tuple[_Folded, ...]

    @property
    def names(self) -> set[str]:
        """The checks whose rules these are."""
        return {each.check.name for each in self.laid} | {each.check.name for each in self.folded}


@dataclass(frozen=True, slots=True)
class Range:
    """What a range of a pass's table comes to.

    ``found``: what the lasting rules find there, where that is known; else ``note``, where there is one, wants to hear.
    """

    sifted: Sifted
    found: Sequence[Finding] | None = None
    note: Callable[[Sequence[Finding]], None] | None = None


def row_passes(checks: Sequence[Check], view: StoreView) -> list[Pass]:
    """Return one pass for each table that row rules and folds of these checks read and that the store has."""
    rules: dict[str, list[tuple[Check, RowRule]]] = {}
    folds: dict[str, list[tuple[Check, FoldRule]]] = {}
    for check in checks:
        for rule in check.rules:
            if isinstance(rule, RowRule) and view.shape.has(rule.table):
                rules.setdefault(rule.table.lower(), []).append((check, rule))
            elif isinstance(rule, FoldRule) and view.shape.has(rule.over) and view.shape.has(rule.table):
                folds.setdefault(rule.over.lower(), []).append((check, rule))
    tables = dict.fromkeys([*rules, *folds])
    passes = (lay(view.shape.tables[name], rules.get(name, ()), view, folds.get(name, ())) for name in tables)
    return [laid for laid in passes if laid is not None]


def lay(
    table: Table,
    rules: Sequence[tuple[Check, RowRule]],
    view: StoreView,
    folds: Sequence[tuple[Check, FoldRule]] = (),
) -> Pass | None:
    """Lay rules over a table; None where none of them applies to this store's shape.

    What the rules' conditions call is known to the connection from here on.
    """
    key = [quote(column) for column in table.primary_key] or [table.rowid or "NULL"]
    laid: list[_Laid] = []
    for check, rule in rules:
        condition = rule.condition(view.shape)
        if condition is None:
            continue
        for function, called in rule.functions.items():
            view.reader.define(function, called)
        columns = (*key, *(view.shape.column(table.name, column) for column in rule.columns))
        laid.append(_Laid(check, rule, condition, columns, len(key), rule.sieve(view.shape)))
    tellings = ((check, rule, rule.told(view.shape)) for check, rule in folds)
    folded = tuple(_Folded(check, rule, told) for check, rule, told in tellings if told is not None)
    if not laid and not folded:
        return None
    return Pass(table, tuple(laid), folded)


def run_pass(
    laid_over: Pass,
    view: StoreView,
    failed: Callable[[Check, Exception], None],
    sifting: Sifting | None = None,
    concluding: Callable[[Check], None] | None = None,
) -> Iterator[Finding]:
    """Read the table once and give what the rules find; a rule that fails on a row is reported to ``failed``.

    ``sifting``: where what the ranges come to is from, if not from reading them. ``concluding``: told, once the table
    is read, which check makes something of what it was told of it, which may take as long again.
    """
    folds = [(each, each.rule.start(view)) for each in laid_over.folded]
    if laid_over.table.rowid is not None:
        # Whatever breaks this off ends the reading at once, and not when somebody lets go of the error.
        with closing((sifting or sift_pass)(laid_over, view)) as ranges:
            yield from _by_ranges(ranges, laid_over, folds, view, failed)
    else:
        yield from _at_once(laid_over, folds, view, failed)
    for each, fold in folds:
        if concluding is not None:
            concluding(each.check)
        try:
            yield from fold.findings()
        except Exception as error:
            failed(each.check, error)


def _by_ranges(
    ranges: Iterator[Range],
    laid_over: Pass,
    folds: Sequence[tuple[_Folded, Fold]],
    view: StoreView,
    failed: Callable[[Check, Exception], None],
) -> Iterator[Finding]:
    """Sift the table range after range, and look at those rows that come out."""
    rowid = laid_over.table.rowid
    listed = f"{rowid} IN (SELECT value FROM json_each('[' || ?1 || ']'))"
    failures: list[Exception] = []

    def not_judged(check: Check, error: Exception) -> None:
        failures.append(error)
        failed(check, error)

    for each_range in ranges:
        sifted, lasting = each_range.sifted, list[Finding]()
        values = iter(sifted.values)
        for laid in laid_over.laid:
            keys, clean = next(values), laid.sieve is None or next(values)
            if laid.rule.lasting and each_range.found is not None:
                continue
            suspects = [str(keys)] if keys else []
            if laid.sieve is not None and not clean:
                suspects += _among_doubtful(laid_over, laid, laid.sieve, view, sifted.low, sifted.high)
            if suspects:
                rows = view.reader.rows(_rows_sql(laid_over, laid.columns, listed), (",".join(suspects),))
                for finding in _judged(laid, rows, view, not_judged):
                    if laid.rule.lasting and each_range.note is not None:
                        lasting.append(finding)
                    yield finding
        if each_range.found is not None:
            yield from each_range.found
        elif each_range.note is not None and not failures:
            each_range.note(lasting)
        for each, fold in folds:
            if each.told.totals:
                _told(fold.add, tuple(next(values) for _ in each.told.totals), each.check, failed)
            keys = next(values)
            if keys:
                where = f"{listed} AND ({each.told.also})"
                for row in view.reader.rows(_rows_sql(laid_over, each.told.cells, where), (keys,)):
                    _told(fold.see, row, each.check, failed)
        if view.reader.on_range is not None:
            view.reader.on_range(sifted.high)


def sift_pass(laid_over: Pass, view: StoreView) -> Generator[Range, None, None]:
    """Read the table of a pass once, whole."""
    yield from map(Range, sift(view.reader, sifter_of(laid_over, view)))


#: Gives what each range of a pass comes to, in order; together they are the whole table. Closed, it reads no more.
Sifting = Callable[[Pass, StoreView], Generator[Range, None, None]]


def sifter_of(laid_over: Pass, view: StoreView) -> Sifter:
    """Return what is asked of each range for a pass. What comes out, in this order:

    of each row rule the rowids of its suspects, with commas between, and where it has a sieve, whether that was clean;
    of each fold its totals, and the rowids that it is to be told of. Rowids are None where there are none.
    """
    totals: list[str] = []
    less: dict[int, Callable[[Cell], Cell]] = {}
    for laid in laid_over.laid:
        totals.append(_keys_of(laid_over, laid.condition if laid.sieve is None else laid.sieve.rest))
        if laid.sieve is not None:
            less[len(totals)] = laid.sieve.clean
            totals.append(laid.sieve.gathered)
    for each in laid_over.folded:
        if each.told.condense is not None:
            less |= dict.fromkeys(range(len(totals), len(totals) + len(each.told.totals)), each.told.condense)
        totals += each.told.totals
        totals.append(_keys_of(laid_over, each.told.where))

    def condense(values: Values) -> Values:
        return tuple(less[place](value) if place in less else value for place, value in enumerate(values))

    neighbours = {
        column: view.shape.column(laid_over.table.name, column)
        for each in laid_over.folded
        for column in each.told.neighbours
    }
    return Sifter(laid_over.table, totals, condense, neighbours)


def _keys_of(laid_over: Pass, condition: str) -> str:
    table = laid_over.table
    return f"group_concat({quote(table.name)}.{table.rowid}) FILTER (WHERE {condition})"


def _among_doubtful(laid_over: Pass, laid: _Laid, sieve: Sieve, view: StoreView, low: int, high: int) -> Iterator[str]:
    """Give the rowids that a rule suspects in a range that is not clean, halved as long as gathering is cheaper."""
    table, rowid = laid_over.table, laid_over.table.rowid
    within = f"FROM {quote(table.name)} WHERE {rowid} >= ?1 AND {rowid} <= ?2"
    if high - low < _ASKED_ONE_BY_ONE:
        keys = view.reader.value(f"SELECT {_keys_of(laid_over, laid.condition)} {within}", (low, high))
        yield from [str(keys)] if keys else []
        return
    middle = (low + high) // 2
    for half in ((low, middle), (middle + 1, high)):
        if not sieve.clean(view.reader.value(f"SELECT {sieve.gathered} {within}", half)):
            yield from _among_doubtful(laid_over, laid, sieve, view, *half)


def _rows_sql(laid_over: Pass, columns: Sequence[str], where: str) -> str:
    """Return a query for rows in the order of their keys, as far as they have one."""
    table = laid_over.table
    order = f" ORDER BY {table.rowid}" if table.rowid is not None else ""
    return f"SELECT {', '.join(columns)} FROM {quote(table.name)} WHERE {where}{order}"


def _at_once(
    laid_over: Pass, folds: Sequence[tuple[_Folded, Fold]], view: StoreView, failed: Callable[[Check, Exception], None]
) -> Iterator[Finding]:
    """Read a table that has no rowid to cut it by, for each rule: no release makes a large one of that kind."""
    for laid in laid_over.laid:
        rows = view.reader.rows(_rows_sql(laid_over, laid.columns, laid.condition))
        yield from _judged(laid, rows, view, failed)
    for each, fold in folds:
        told = each.told
        if told.totals:
            totals = view.reader.row(f"SELECT {', '.join(told.totals)} FROM {quote(laid_over.table.name)}")
            # A table without rows has none to tell where nothing is summed up.
            _told(fold.add, totals or (None,) * len(told.totals), each.check, failed)
        if told.cells:
            for row in view.reader.rows(_rows_sql(laid_over, told.cells, f"({told.where}) AND ({told.also})")):
                _told(fold.see, row, each.check, failed)


def _told(tell: Callable[..., None], cells: Values, check: Check, failed: Callable[[Check, Exception], None]) -> None:
    try:
        tell(*cells)
    except Exception as error:  # as with row rules: one bad cell, one row
        failed(check, error)


def find(checks: Sequence[Check], view: StoreView) -> Iterator[Finding]:
    """Give what the checks find in the whole store, row rules first; raises what a rule raises."""
    for laid_over in row_passes(checks, view):
        yield from run_pass(laid_over, view, _reraise)
    for check in checks:
        for rule in relations(check, view):
            yield from rule.find(view, None)


def relations(check: Check, view: StoreView) -> list[RelationRule]:
    """Return the check's rules over relations whose table the store has."""
    return [rule for rule in check.rules if isinstance(rule, RelationRule) and has_table(rule, view.shape)]


def find_again(check: Check, findings: Iterable[Finding], view: StoreView) -> Iterator[Finding]:
    """Ask a check about the rows that it found, each in its own table: which of them still show the fault."""
    keys: dict[str, list[Key]] = {}
    for finding in findings:
        keys.setdefault(finding.table, []).append(finding.key)
    for table, some in keys.items():
        yield from ask(check, some, view, table)


def ask(check: Check, keys: Sequence[Key], view: StoreView, table: str | None = None) -> Iterator[Finding]:
    """Ask a check about single rows of a table, by its own rules: what it finds wrong with just these.

    ``table`` may be left out where all rules of the check look at one table. Raises ValueError otherwise.
    """
    tables = {rule.table.lower() for rule in check.rules}
    if table is None and len(tables) > 1:
        raise ValueError(f"{check.name} looks at several tables: say which one the keys are of")
    for rule in check.rules:
        if table is None or rule.table.lower() == table.lower():
            yield from _ask(check, rule, keys, view)


def _ask(check: Check, rule: Rule, keys: Sequence[Key], view: StoreView) -> Iterator[Finding]:
    if isinstance(rule, RelationRule):
        yield from rule.find(view, keys)
        return
    if isinstance(rule, FoldRule):
        if view.shape.has(rule.over) and rule.told(view.shape) is not None:
            yield from rule.again(view, keys)
        return
    table = view.shape.tables.get(rule.table.lower())
    laid_over = lay(table, [(check, rule)], view) if table else None
    among = _among(table, keys) if table else None
    if laid_over is None or among is None:
        return
    (laid,), (condition, cells) = laid_over.laid, among
    where = f"({condition}) AND ({laid.condition})"
    rows = view.rows(f"SELECT {', '.join(laid.columns)} FROM {quote(laid_over.table.name)} WHERE {where}", cells)
    yield from _judged(laid, rows, view, _reraise)


def _among(table: Table, keys: Sequence[Key]) -> tuple[str, tuple[Cell, ...]] | None:
    """Return an SQL condition, and its values, that a row is one of these; None where rows have no key at all."""
    names = [quote(column) for column in table.primary_key] or ([table.rowid] if table.rowid else [])
    if not names:
        return None
    if len(names) == 1:
        condition, cells = in_keys(names[0], [key for key in keys if key is not None])
        # A primary key that is no rowid may be NULL, in SQLite.
        return (f"{condition} OR {names[0]} IS NULL" if None in keys else condition), cells
    rows = [key for key in keys if isinstance(key, tuple) and len(key) == len(names)]
    parts = [(name, cell) for key in rows for name, cell in zip(names, key, strict=True)]
    equal = [f"{name} IS {'CAST(? AS TEXT)' if isinstance(cell, BadText) else '?'}" for name, cell in parts]
    width = len(names)
    each = [" AND ".join(equal[start : start + width]) for start in range(0, len(equal), width)]
    return " OR ".join(f"({one})" for one in each) or "0", tuple(cell for _, cell in parts)


def _judged(
    laid: _Laid, suspects: Iterable[Values], view: StoreView, failed: Callable[[Check, Exception], None]
) -> Iterator[Finding]:
    """Give what a rule finds wrong with the rows that it suspects."""
    judge, columns, width = laid.rule.judge, laid.rule.columns, laid.key_width
    for values in suspects:
        try:
            finding = judge(dict(zip(columns, values[width:], strict=True)), view)
        except Exception as error:  # one bad cell costs one row its verdict, never the scan
            failed(laid.check, error)
            continue
        if finding is not None:
            yield finding if finding.key is not None else finding.of(values[0] if width == 1 else values[:width])


def _reraise(_check: Check, error: Exception) -> None:
    raise error
