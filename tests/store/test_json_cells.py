"""What is wrong with a cell; and that SQL suspects all of it, and nothing healthy."""

from __future__ import annotations

import json
from dataclasses import dataclass

import apsw
import pytest

from hermes_doctor.store.cells import BadText, Cell
from hermes_doctor.store.json_cells import (
    MESSAGE_COLUMNS,
    ORIGIN,
    ROUTE,
    Effect,
    Fault,
    JsonColumn,
    cell_fault,
    message_faults,
    suspect_marks_sql,
    suspect_sql,
)

CALLS, DETAILS = MESSAGE_COLUMNS["tool_calls"], MESSAGE_COLUMNS["reasoning_details"]
MARKS, UIDS = MESSAGE_COLUMNS["display_metadata"], MESSAGE_COLUMNS["tool_call_uids"]


@dataclass(frozen=True)
class Case:
    column: JsonColumn
    cell: Cell
    fault: Fault | None
    #: Healthy, and yet looked at in Python: SQL is not to let anything pass that is wrong.
    looked_at: bool = False


CASES: tuple[Case, ...] = (
    Case(CALLS, None, None),
    Case(CALLS, "", None),
    Case(CALLS, "[]", None),
    Case(CALLS, '[{"a": "]"}]', None),
    Case(CALLS, "\n [1]", None, looked_at=True),
    Case(CALLS, "null", None, looked_at=True),
    Case(CALLS, "[NaN, -Infinity]", None, looked_at=True),
    Case(CALLS, " ", Fault.NO_JSON),
    Case(CALLS, "[", Fault.NO_JSON),
    Case(CALLS, "[1] [2]", Fault.NO_JSON),
    Case(CALLS, "[1,]", Fault.NO_JSON),
    Case(CALLS, "['a']", Fault.NO_JSON),
    Case(CALLS, '["a\nb"]', Fault.NO_JSON),
    Case(CALLS, "\ufeff[1]", Fault.NO_JSON),
    Case(CALLS, "\xa0[1]", Fault.NO_JSON),
    Case(CALLS, "{}", Fault.WRONG_KIND),
    Case(CALLS, '"[1]"', Fault.WRONG_KIND),
    Case(CALLS, "false", Fault.WRONG_KIND),
    Case(CALLS, "0", Fault.WRONG_KIND),
    Case(CALLS, "1", Fault.NUMBER),
    Case(CALLS, "true", Fault.NUMBER),
    Case(CALLS, "1e3", Fault.NUMBER),
    Case(CALLS, 5, Fault.NO_JSON),
    Case(CALLS, 0.5, Fault.NO_JSON),
    Case(CALLS, b"", Fault.BLOB),
    Case(CALLS, b"[1]", Fault.BLOB),
    Case(CALLS, "[1]".encode("utf-16"), Fault.BLOB),
    Case(CALLS, b"{}", Fault.WRONG_KIND),
    Case(CALLS, b"[", Fault.NO_JSON),
    Case(CALLS, b"[\xff\xff\xff\xff]", Fault.UNLOADABLE),
    Case(CALLS, "[" * 100_000 + "]" * 100_000, Fault.UNLOADABLE),
    Case(CALLS, BadText(b"[\xff"), None, looked_at=True),
    Case(DETAILS, "{}", None),
    Case(DETAILS, "[]", None),
    Case(DETAILS, "7", Fault.NUMBER),
    Case(MARKS, "{}", None),
    Case(MARKS, "null", Fault.WRONG_KIND),
    Case(MARKS, "", Fault.NO_JSON),
    Case(MARKS, b"{}", Fault.BLOB),
    Case(UIDS, b"", Fault.BLOB),
    Case(UIDS, '{"a": ["b"]}', None),
    Case(ORIGIN, "", None),
    Case(ORIGIN, b"{}", Fault.BLOB),
    Case(ROUTE, "", Fault.NO_JSON),
    Case(ROUTE, "null", Fault.WRONG_KIND),
    Case(ROUTE, "{}", None),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: repr(case.cell)[:30])
def test_a_cell(case: Case) -> None:
    assert cell_fault(case.column, case.cell) is case.fault
    cast = "CAST(? AS TEXT)" if isinstance(case.cell, BadText) else "?"
    asked = f"SELECT {suspect_sql('x', case.column)} FROM (SELECT {cast} AS x)"
    suspected = bool(apsw.Connection(":memory:").execute(asked, (case.cell,)).get)
    assert suspected == (case.fault is not None or case.looked_at)


def test_numbers_too_long_for_python_are_unloadable() -> None:
    assert cell_fault(CALLS, f"[{'1' * 4301}]") is Fault.UNLOADABLE


@pytest.mark.parametrize(
    ("authors", "twice"), [((), False), (("a",), False), (("a", "b"), False), (("a", "b", "a"), True), ((1, 1), True)]
)
def test_two_reactions_of_one_author(authors: tuple[object, ...], twice: bool) -> None:
    cell = json.dumps({"reactions": [*({"author": author} for author in authors), "x"], "b": [1, 1]})
    found = message_faults({"display_metadata": cell}, 31)
    assert [broken.fault for broken in found.values()] == ([Fault.TWICE] if twice else [])
    asked = f"SELECT {suspect_marks_sql('x')} FROM (SELECT ? AS x)"
    assert bool(apsw.Connection(":memory:").execute(asked, (cell,)).get) or not twice


def test_what_a_schema_makes_of_it() -> None:
    number = {"tool_calls": "42"}
    assert message_faults(number, 19)["tool_calls"].effect is Effect.LOSES
    assert message_faults(number, 22)["tool_calls"].effect is Effect.FAILS
    hidden: dict[str, Cell] = {"display_metadata": "{", "display_kind": "hidden"}
    assert message_faults(hidden, 26)["display_metadata"].effect is Effect.LOSES
    assert message_faults(hidden, 30)["display_metadata"].effect is Effect.FAILS
    nan = {"display_metadata": '{"a": NaN}'}
    assert message_faults(nan, 26) == {}
    assert message_faults(nan, 30)["display_metadata"].fault is Fault.NOT_SQL
