"""Adding up a table's rows in the common pass: every row once, in order, beside the rules over single rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import apsw
import pytest

from hermes_doctor.engine.model import Check, Finding, Fold, FoldRule, Row, RowRule, Safety, Severity, Told
from hermes_doctor.engine.rows import ask, find, row_passes, run_pass
from hermes_doctor.store.cells import Cell, Key
from hermes_doctor.store.reader import Pace, Reader
from hermes_doctor.store.shape import Shape, read_shape
from hermes_doctor.store.view import StoreView

ROWS = 1000


@dataclass
class Sums(Fold):
    """Adds up the cells that it is told, for each group, and finds the groups that come to more than a limit."""

    limit: int
    fails_on: Cell = None
    told: list[Cell] = field(default_factory=list)

    def see(self, *cells: Cell) -> None:
        if cells[0] == self.fails_on:
            raise ValueError(f"cannot add {cells[0]!r}")
        self.told.append(cells[0])

    def findings(self) -> Iterator[Finding]:
        total = sum(cell for cell in self.told if isinstance(cell, int))
        if total > self.limit:
            yield Finding("sums", Severity.INFO, "t", None, None, f"comes to {total}")


def folding(fold: Sums, where: str = "1", cell: str = "v", name: str = "sums") -> Check:
    def again(_view: StoreView, keys: Sequence[Key]) -> Iterator[Finding]:
        yield from (Finding("sums", Severity.INFO, "t", key, None, "asked again") for key in keys)

    def told(shape: Shape) -> Told | None:
        return Told(where, (cell,)) if shape.has("t", "v") else None

    rule = FoldRule("t", "t", told, lambda _view: fold, again)
    return Check(name, Severity.INFO, "", "", Safety.NONE, "", rule)


def suspecting(condition: str) -> Check:
    """A check that finds each row of which the condition is true."""

    def judge(_row: Row, _view: StoreView) -> Finding:
        return Finding("rows", Severity.INFO, "t", None, None, "found")

    return Check("rows", Severity.INFO, "", "", Safety.NONE, "", RowRule("t", ("v",), lambda _shape: condition, judge))


@pytest.fixture
def view(tmp_path: Path) -> Iterator[StoreView]:
    connection = apsw.Connection(str(tmp_path / "store.db"))
    connection.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, v, w)")
    with connection:
        connection.executemany("INSERT INTO t VALUES (?, ?, 'text')", [(n, n) for n in range(1, ROWS + 1)])
    yield StoreView(Reader(connection, Pace.FREE), read_shape(connection), now=0.0)
    connection.close()


def test_a_fold_is_told_of_every_row_once_and_in_order(view: StoreView) -> None:
    fold = Sums(limit=0)
    [finding] = find([folding(fold)], view)
    assert fold.told == list(range(1, ROWS + 1))
    assert finding.summary == f"comes to {sum(range(ROWS + 1))}"


def test_a_fold_is_told_of_the_rows_that_it_asks_for(view: StoreView) -> None:
    fold = Sums(limit=ROWS * ROWS)
    assert list(find([folding(fold, where="v % 100 = 0", cell="v / 100")], view)) == []
    assert fold.told == list(range(1, 11))


def test_rows_that_other_rules_suspect_are_told_all_the_same(view: StoreView) -> None:
    one, other = Sums(limit=0), Sums(limit=0)
    checks = [suspecting("v > 990"), folding(one), folding(other, where="v > 500", name="others")]
    found = [(finding.check, finding.key) for finding in find(checks, view)]
    assert found == [*(("rows", n) for n in range(991, ROWS + 1)), ("sums", None), ("sums", None)]
    assert (len(one.told), len(other.told)) == (ROWS, ROWS - 500)


@pytest.mark.parametrize("pace", Pace)
def test_bad_text_has_no_row_told_twice(view: StoreView, pace: Pace) -> None:
    """The statement that meets it is run anew: from its first row."""
    view.reader.connection.execute("UPDATE t SET w = CAST(x'ff' AS TEXT) WHERE id IN (3, 700)")
    view.reader = Reader(view.reader.connection, pace)
    fold, rows = Sums(limit=0), suspecting("id % 100 = 0 OR id = 3")
    assert isinstance(rows.rule, RowRule)
    checks = [replace(rows, rule=replace(rows.rule, columns=("w",))), folding(fold)]
    assert len(list(find(checks, view))) == 10 + 1 + 1
    assert fold.told == list(range(1, ROWS + 1))


def test_a_row_that_a_fold_cannot_take_costs_that_row_only(view: StoreView) -> None:
    failed: list[str] = []
    fold = Sums(limit=0, fails_on=7)
    [laid_over] = row_passes([suspecting("v = 7"), folding(fold)], view)
    found = list(run_pass(laid_over, view, lambda check, error: failed.append(f"{check.name}: {error}")))
    assert failed == ["sums: cannot add 7"]
    assert [finding.key for finding in found] == [7, None]
    assert fold.told == [n for n in range(1, ROWS + 1) if n != 7]


def test_each_reading_begins_anew(view: StoreView) -> None:
    check = folding(Sums(limit=0))
    assert isinstance(check.rule, FoldRule)
    anew = replace(check, rule=replace(check.rule, start=lambda _view: Sums(limit=0)))
    first, second = ([finding.summary for finding in find([anew], view)] for _ in range(2))
    assert first == second == [f"comes to {sum(range(ROWS + 1))}"]


def test_a_fold_is_asked_about_single_rows_by_its_own_means(view: StoreView) -> None:
    fold = Sums(limit=0)
    assert [finding.key for finding in ask(folding(fold), [5, 6], view)] == [5, 6]
    assert fold.told == []


def test_a_fold_that_the_shape_cannot_show_is_left_out(view: StoreView) -> None:
    view.reader.connection.execute("ALTER TABLE t RENAME COLUMN v TO x")
    view.shape = read_shape(view.reader.connection)
    check = folding(Sums(limit=-1))
    assert row_passes([check], view) == []
    assert list(ask(check, [1], view)) == []


def test_a_condition_may_call_a_function_of_the_rule(view: StoreView) -> None:
    view.reader.connection.execute("UPDATE t SET w = 'caf' || char(233) WHERE id IN (3, 700)")
    check = suspecting("NOT doctor_is_ascii(CAST(w AS BLOB))")
    assert isinstance(check.rule, RowRule)
    ascii_only = replace(check, rule=replace(check.rule, functions={"doctor_is_ascii": bytes.isascii}))
    assert [finding.key for finding in find([ascii_only], view)] == [3, 700]
    assert [finding.key for finding in ask(ascii_only, [2, 3], view)] == [3]
