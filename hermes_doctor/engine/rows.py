"""Laying all row rules over a table at once, so that it is read once, and asking one rule about single rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from hermes_doctor.engine.model import Check, Finding, RelationRule, RowRule, Rule
from hermes_doctor.store.cells import BadText, Cell, Key, quote
from hermes_doctor.store.reader import Values, in_keys
from hermes_doctor.store.shape import Table
from hermes_doctor.store.view import StoreView


@dataclass(frozen=True)
class _Laid:
    """One rule as it lies over a table: its condition in SQL, and where its columns stand in the row."""

    check: Check
    rule: RowRule
    condition: str
    places: tuple[int | None, ...]


@dataclass(frozen=True)
class Pass:
    """Several row rules over one table, in one statement."""

    table: Table
    columns: tuple[str, ...]
    laid: tuple[_Laid, ...]
    key_width: int

    @property
    def where(self) -> str:
        """What at least one rule suspects."""
        return " OR ".join(f"({laid.condition})" for laid in self.laid)


def row_passes(checks: Sequence[Check], view: StoreView) -> list[Pass]:
    """Return one pass for each table that the row rules of these checks look at and that the store has."""
    by_table: dict[str, list[tuple[Check, RowRule]]] = {}
    for check in checks:
        for rule in check.rules:
            if isinstance(rule, RowRule) and view.shape.has(rule.table):
                by_table.setdefault(rule.table.lower(), []).append((check, rule))
    passes = (lay(view.shape.tables[name], rules, view) for name, rules in by_table.items())
    return [laid for laid in passes if laid is not None]


def lay(table: Table, rules: Sequence[tuple[Check, RowRule]], view: StoreView) -> Pass | None:
    """Lay rules over a table; None where none of them applies to this store's shape."""
    key = [quote(column) for column in table.primary_key] or [table.rowid or "NULL"]
    wanted: list[str] = list(key)
    laid: list[_Laid] = []
    for check, rule in rules:
        condition = rule.condition(view.shape)
        if condition is None:
            continue
        places: list[int | None] = []
        for column in rule.columns:
            if not table.has(column):
                places.append(None)
                continue
            name = view.shape.column(table.name, column)
            if name not in wanted:
                wanted.append(name)
            places.append(wanted.index(name))
        laid.append(_Laid(check, rule, condition, tuple(places)))
    if not laid:
        return None
    # Behind the columns stands, for each rule, whether it is that rule that suspects the row.
    flags = [f"({each.condition}) IS TRUE" for each in laid]
    return Pass(table, (*wanted, *flags), tuple(laid), len(key))


def run_pass(laid_over: Pass, view: StoreView, failed: Callable[[Check, Exception], None]) -> Iterator[Finding]:
    """Read the table once and give what the rules find; a rule that fails on a row is reported to ``failed``."""
    for values in view.reader.walk(laid_over.table, laid_over.columns, laid_over.where):
        yield from _judge(laid_over, values, view, failed)


def find(checks: Sequence[Check], view: StoreView) -> Iterator[Finding]:
    """Give what the checks find in the whole store, row rules first; raises what a rule raises."""
    for laid_over in row_passes(checks, view):
        yield from run_pass(laid_over, view, _reraise)
    for check in checks:
        for rule in relations(check, view):
            yield from rule.find(view, None)


def relations(check: Check, view: StoreView) -> list[RelationRule]:
    """Return the check's rules over relations whose table the store has."""
    return [rule for rule in check.rules if isinstance(rule, RelationRule) and view.shape.has(rule.table)]


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
    if not isinstance(rule, RowRule):
        yield from rule.find(view, keys)
        return
    table = view.shape.tables.get(rule.table.lower())
    laid_over = lay(table, [(check, rule)], view) if table else None
    among = _among(table, keys) if table else None
    if laid_over is None or among is None:
        return
    condition, cells = among
    sql = (
        f"SELECT {', '.join(laid_over.columns)} FROM {quote(laid_over.table.name)}"
        f" WHERE ({condition}) AND ({laid_over.where})"
    )
    for values in view.rows(sql, cells):
        yield from _judge(laid_over, values, view, _reraise)


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


def _judge(
    laid_over: Pass, values: Values, view: StoreView, failed: Callable[[Check, Exception], None]
) -> Iterator[Finding]:
    key: Key = values[0] if laid_over.key_width == 1 else values[: laid_over.key_width]
    flags = values[len(values) - len(laid_over.laid) :]
    for each, suspected in zip(laid_over.laid, flags, strict=True):
        if not suspected:
            continue
        row: dict[str, Cell] = {
            column: None if place is None else values[place]
            for column, place in zip(each.rule.columns, each.places, strict=True)
        }
        try:
            finding = each.rule.judge(row, view)
        except Exception as error:  # one bad cell costs one row its verdict, never the scan
            failed(each.check, error)
            continue
        if finding is not None:
            yield finding if finding.key is not None else replace(finding, key=key)


def _reraise(_check: Check, error: Exception) -> None:
    raise error
