"""Laying rules over a table: read once, each rule by itself, and the same answer when asked about single rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import apsw
import pytest

from hermes_doctor.engine.model import (
    Check,
    Finding,
    Fold,
    FoldRule,
    RelationRule,
    Row,
    RowRule,
    Safety,
    Severity,
    Told,
)
from hermes_doctor.engine.rows import ask, find, find_again, row_passes, run_pass
from hermes_doctor.store.cells import BadText, Cell, Key
from hermes_doctor.store.reader import Pace, Reader
from hermes_doctor.store.shape import Shape, read_shape
from hermes_doctor.store.sifting import RANGE
from hermes_doctor.store.view import StoreView

BAD = BadText(b"caf\xe9")


class Recorder:
    """A check that finds every row which its condition suspects, and notes the rows it was shown."""

    def __init__(
        self,
        name: str,
        condition: str | None,
        *,
        table: str = "t",
        columns: tuple[str, ...] = ("v",),
        fails_on: Cell = "never",
        ignores: Cell = "never",
    ) -> None:
        self.shown: list[dict[str, Cell]] = []
        self._condition = condition
        self._fails_on, self._ignores = fails_on, ignores
        self.check = Check(
            name=name,
            severity=Severity.WARNING,
            summary="",
            meaning="",
            fix=Safety.NONE,
            page="",
            rule=RowRule(table, columns, self._suspects, self._judge),
        )

    def _suspects(self, _shape: Shape) -> str | None:
        return self._condition

    def _judge(self, row: Row, _view: StoreView) -> Finding | None:
        self.shown.append(dict(row))
        if row.get("v") == self._fails_on:
            raise ValueError(f"cannot judge {self._fails_on!r}")
        if row.get("v") == self._ignores:
            return None
        return Finding(self.check.name, Severity.WARNING, "t", None, None, "found")


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[apsw.Connection]:
    made = apsw.Connection(str(tmp_path / "store.db"))
    made.pragma("synchronous", "off")
    yield made
    made.close()


def view_of(connection: apsw.Connection, *statements: str, pace: Pace = Pace.FREE) -> StoreView:
    for statement in statements:
        connection.execute(statement)
    return StoreView(Reader(connection, pace), read_shape(connection), now=0.0)


def numbered(connection: apsw.Connection, count: int = 1000) -> StoreView:
    """A table t of that many rows, id and v from 1 on."""
    rows = f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count})"
    return view_of(
        connection, "CREATE TABLE t(id INTEGER PRIMARY KEY, v, w)", f"{rows} INSERT INTO t(id, v) SELECT i, i FROM n"
    )


def found(recorders: Sequence[Recorder], view: StoreView) -> dict[str, list[Key]]:
    """What each check finds, by key; a rule that fails is an error of the test."""
    keys: dict[str, list[Key]] = {recorder.check.name: [] for recorder in recorders}
    for finding in find([recorder.check for recorder in recorders], view):
        keys[finding.check].append(finding.key)
    return keys


def test_each_rule_sees_just_the_rows_that_it_suspects(connection: apsw.Connection) -> None:
    view = numbered(connection)
    few, many = Recorder("few", "v = 3 OR v = 997"), Recorder("many", "v % 100 = 0")
    none, null = Recorder("none", "0"), Recorder("null", "w > 1")
    assert found([few, many, none, null], view) == {
        "few": [3, 997],
        "many": list(range(100, 1001, 100)),
        "none": [],
        "null": [],
    }
    assert [row["v"] for row in few.shown] == [3, 997]
    assert none.shown == null.shown == []


def test_a_rule_that_is_no_condition_of_this_shape_is_left_out(connection: apsw.Connection) -> None:
    view = numbered(connection)
    inapplicable, other = Recorder("inapplicable", None), Recorder("other", "v = 3")
    assert found([inapplicable, other], view) == {"inapplicable": [], "other": [3]}
    assert list(row_passes([inapplicable.check], view)) == []
    assert list(row_passes([Recorder("elsewhere", "1", table="missing").check], view)) == []


def test_all_rules_over_a_table_share_one_reading(connection: apsw.Connection) -> None:
    view = numbered(connection, 2 * RANGE)
    statements: list[str] = []

    def note(_cursor: apsw.Cursor, sql: str, _values: object) -> bool:
        statements.append(sql)
        return True

    recorders = [Recorder(f"c{n}", f"v = {n}", table="T" if n % 2 else "t") for n in range(1, 6)]
    connection.exec_trace = note
    assert found(recorders, view) == {f"c{n}": [n] for n in range(1, 6)}
    connection.exec_trace = None
    # The suspects of each rule are read by their keys: just one statement goes through all rows, range by range.
    reading = [sql for sql in statements if "json_each" not in sql and "WHERE" in sql]
    assert len(set(reading)) == 1
    assert len(reading) == 2


def test_rows_come_with_the_columns_that_the_rule_asked_for(connection: apsw.Connection) -> None:
    """Missing ones as None, in any order, however the rules overlap, whatever the case of the names."""
    view = view_of(
        connection,
        'CREATE TABLE t("odd name" TEXT, V TEXT, id INTEGER PRIMARY KEY)',
        "INSERT INTO t VALUES ('o', 'v', 9)",
    )
    one = Recorder("one", "1", columns=("v", "missing", "id"))
    two = Recorder("two", "1", columns=("odd name", "v"))
    nothing = Recorder("nothing", "1", columns=())
    assert found([one, two, nothing], view) == {"one": [9], "two": [9], "nothing": [9]}
    assert one.shown == [{"v": "v", "missing": None, "id": 9}]
    assert two.shown == [{"odd name": "o", "v": "v"}]
    assert nothing.shown == [{}]


def test_a_row_that_one_rule_cannot_judge_costs_that_verdict_only(connection: apsw.Connection) -> None:
    view = numbered(connection)
    weak, sound = Recorder("weak", "v IN (3, 5, 7)", fails_on=5), Recorder("sound", "v IN (5, 9)")
    failures: list[tuple[str, str]] = []
    [laid_over] = row_passes([weak.check, sound.check], view)
    findings = list(run_pass(laid_over, view, lambda check, error: failures.append((check.name, str(error)))))
    assert [(finding.check, finding.key) for finding in findings] == [
        ("weak", 3),
        ("weak", 7),
        ("sound", 5),
        ("sound", 9),
    ]
    assert failures == [("weak", "cannot judge 5")]
    with pytest.raises(ValueError, match="cannot judge 5"):
        list(find([weak.check], view))
    with pytest.raises(ValueError, match="cannot judge 5"):
        list(ask(weak.check, [5], view))


def test_bad_text_in_one_row_costs_no_other(connection: apsw.Connection) -> None:
    view = numbered(connection, 20)
    connection.execute("UPDATE t SET v = CAST(? AS TEXT) WHERE id = 5", (bytes(BAD),))
    recorder = Recorder("all", "1")
    assert found([recorder], view) == {"all": list(range(1, 21))}
    assert [row["v"] for row in recorder.shown] == [1, 2, 3, 4, BAD, *range(6, 21)]


def test_a_finding_may_name_its_own_key(connection: apsw.Connection) -> None:
    view = numbered(connection, 3)

    def judge(row: Row, _view: StoreView) -> Finding | None:
        return Finding("own", Severity.INFO, "t", f"row {row['v']!r}", None, "found")

    rule = RowRule("t", ("v",), lambda _shape: "v = 2", judge)
    check = Check("own", Severity.INFO, "", "", Safety.NONE, "", rule)
    assert [finding.key for finding in find([check], view)] == ["row 2"]


@pytest.mark.parametrize(("totals", "expected"), [(("NULL", "count(*)"), [None, 0]), (("NULL",), [None])])
def test_a_fold_over_a_table_without_rows_and_rowids_is_told_as_ever(
    connection: apsw.Connection, totals: tuple[str, ...], expected: list[Cell]
) -> None:
    view = view_of(connection, "CREATE TABLE t(k TEXT PRIMARY KEY, v) WITHOUT ROWID")
    told: list[Cell] = []

    class Noting(Fold):
        def add(self, *totals: Cell) -> None:
            told.extend(totals)

        def findings(self) -> Iterator[Finding]:
            return iter(())

    rule = FoldRule("t", "t", lambda _shape: Told(totals=totals), lambda _view: Noting(), lambda _view, _keys: iter(()))
    assert list(find([Check("own", Severity.INFO, "", "", Safety.NONE, "", rule)], view)) == []
    assert told == expected


# ---- Asking about single rows

TABLES: dict[str, tuple[str, list[tuple[Cell, ...]], list[Key]]] = {
    "integer key": ("CREATE TABLE t(k INTEGER PRIMARY KEY, v)", [(1, 1), (2, 2), (-(2**63), 3)], [1, 2, -(2**63)]),
    "text key": (
        "CREATE TABLE t(k TEXT PRIMARY KEY, v)",
        [("a", 1), ("5", 2), (b"a", 3), (None, 4), ("", 5), (BAD, 6)],
        ["a", "5", b"a", None, "", BAD],
    ),
    "text key without rowid": (
        "CREATE TABLE t(k TEXT PRIMARY KEY, v) WITHOUT ROWID",
        [("a", 1), ("b", 2), (BAD, 3)],
        ["a", "b", BAD],
    ),
    "no key": ("CREATE TABLE t(k, v)", [("a", 1), ("a", 2)], [1, 2]),
    "composite key": (
        "CREATE TABLE t(k TEXT, v, l TEXT, PRIMARY KEY(l, k))",
        [("a", 1, "x"), ("a", 2, "y"), ("b", 3, "x"), (None, 4, "x"), (BAD, 5, "x")],
        [("x", "a"), ("y", "a"), ("x", "b"), ("x", None), ("x", BAD)],
    ),
}


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("pace", list(Pace))
def test_a_row_asked_about_gets_the_verdict_of_the_full_run(connection: apsw.Connection, name: str, pace: Pace) -> None:
    create, rows, keys = TABLES[name]
    view = view_of(connection, create, pace=pace)
    for row in rows:
        marks = ", ".join("CAST(? AS TEXT)" if isinstance(cell, BadText) else "?" for cell in row)
        connection.execute(f"INSERT INTO t VALUES ({marks})", row)
    recorder = Recorder("r", "v <> 99", ignores=2)
    by_key = {finding.key: finding for finding in find([recorder.check], view)}
    assert set(by_key) == {key for key, row in zip(keys, rows, strict=True) if row[1] != 2}
    for key in keys:
        assert list(ask(recorder.check, [key], view)) == ([by_key[key]] if key in by_key else [])
    asked = list(ask(recorder.check, [*keys, "nobody", ("x", "nobody")] if "comp" in name else keys, view))
    assert {finding.key for finding in asked} == set(by_key)
    assert len(asked) == len(by_key)
    assert list(ask(recorder.check, [], view)) == []


def test_rows_that_mended_meanwhile_are_not_found_again(connection: apsw.Connection) -> None:
    view = numbered(connection, 10)
    recorder = Recorder("r", "v = 3 OR v = 4")
    connection.execute("UPDATE t SET v = 0 WHERE id = 3")
    connection.execute("DELETE FROM t WHERE id = 9")
    # Row 5 is none of the condition's: an OR in it must not let it in.
    assert [finding.key for finding in ask(recorder.check, [3, 4, 5, 9], view)] == [4]


def test_a_table_that_the_store_lacks_has_no_faulty_rows(connection: apsw.Connection) -> None:
    view = numbered(connection, 10)
    assert list(ask(Recorder("r", "1", table="missing").check, [1], view)) == []
    assert list(ask(Recorder("r", None).check, [1], view)) == []


def test_a_rule_over_relations_is_asked_with_the_keys(connection: apsw.Connection) -> None:
    view = numbered(connection, 10)
    asked: list[Sequence[Key] | None] = []

    def look(_view: StoreView, keys: Sequence[Key] | None) -> Iterator[Finding]:
        asked.append(keys)
        yield Finding("rel", Severity.INFO, "t", 1, None, "found")

    here, elsewhere = (
        Check("rel", Severity.INFO, "", "", Safety.NONE, "", RelationRule(table, look)) for table in ("t", "missing")
    )
    assert len(list(ask(here, [4, 5], view))) == 1
    assert len(list(find([here, elsewhere], view))) == 1
    assert asked == [[4, 5], None]


# ---- One check with rules over several tables

SAME_KEYS = (
    "CREATE TABLE a(k TEXT PRIMARY KEY, v)",
    "CREATE TABLE b(k TEXT PRIMARY KEY, v)",
    "INSERT INTO a VALUES ('x', 1), ('y', 0), ('only a', 1)",
    "INSERT INTO b VALUES ('x', 1), ('y', 1), ('only b', 1)",
)


def of_several_tables() -> Check:
    """A check of rows with v = 1: by a row rule in table a, by a rule over relations in b, and in c, which is not."""

    def judge(row: Row, _view: StoreView) -> Finding | None:
        return Finding("several", Severity.INFO, "a", row["k"], None, "found")

    def look(view: StoreView, keys: Sequence[Key] | None) -> Iterator[Finding]:
        for (key,) in view.rows("SELECT k FROM b WHERE v = 1"):
            if keys is None or key in keys:
                yield Finding("several", Severity.INFO, "b", key, None, "found")

    def never(_view: StoreView, _keys: Sequence[Key] | None) -> Iterator[Finding]:
        raise AssertionError("there is no table c")

    rules = (RowRule("A", ("k",), lambda _shape: "v = 1", judge), RelationRule("b", look), RelationRule("c", never))
    return Check("several", Severity.INFO, "", "", Safety.NONE, "", rules)


FOUND_IN_SEVERAL = {("a", "x"), ("a", "only a"), ("b", "x"), ("b", "y"), ("b", "only b")}


def test_a_check_may_have_rules_over_several_tables(connection: apsw.Connection) -> None:
    view, check = view_of(connection, *SAME_KEYS), of_several_tables()
    findings = list(find([check], view))
    assert {finding.row for finding in findings} == FOUND_IN_SEVERAL
    assert len(findings) == len(FOUND_IN_SEVERAL)


def test_rows_of_several_tables_are_asked_about_each_in_its_own(connection: apsw.Connection) -> None:
    view, check = view_of(connection, *SAME_KEYS), of_several_tables()
    findings = list(find([check], view))
    assert {finding.row for finding in find_again(check, findings, view)} == FOUND_IN_SEVERAL
    for finding in findings:
        assert list(find_again(check, [finding], view)) == [finding]
    connection.execute("UPDATE a SET v = 0 WHERE k = 'x'")
    assert {finding.row for finding in find_again(check, findings, view)} == FOUND_IN_SEVERAL - {("a", "x")}
    assert [finding.row for finding in ask(check, ["x", "y"], view, "A")] == []
    assert [finding.row for finding in ask(check, ["x", "only a"], view, "B")] == [("b", "x")]
    with pytest.raises(ValueError, match="several tables"):
        list(ask(check, ["x"], view))
