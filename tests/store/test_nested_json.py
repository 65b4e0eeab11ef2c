"""What is taken out of JSON strings, what is left, what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_doctor.store import nested_json
from hermes_doctor.store.cells import BadText, Cell
from hermes_doctor.store.nested_json import (
    GOALS,
    Goal,
    Refusal,
    Unwrapped,
    is_string_sql,
    unwrap,
    unwrap_cells,
    unwraps_sql,
)

#: Text that a re-serialisation would change: spacing, a doubled key, number forms, escapes, order.
ODD = '[ {"b" : 1.0,"a":1e2, "b":2} ,\t123456789012345678901234567890,"\\u00e9é\\/", -0 ]\n'


def wrapped(text: str, layers: int = 1) -> str:
    for _ in range(layers):
        text = json.dumps(text)
    return text


@dataclass(frozen=True)
class Case:
    name: str
    text: str
    goal: Goal
    expected: Unwrapped | None

    def __str__(self) -> str:
        return self.name


CASES = (
    Case("one layer", wrapped('[{"a": 1}]'), Goal.LIST, Unwrapped(1, '[{"a": 1}]')),
    Case("two layers", wrapped('[{"a": 1}]', 2), Goal.LIST, Unwrapped(2, '[{"a": 1}]')),
    Case("five layers", wrapped("[]", 5), Goal.LIST, Unwrapped(5, "[]")),
    Case("odd text stays as it is", wrapped(ODD, 3), Goal.LIST, Unwrapped(3, ODD)),
    Case("characters beyond ASCII, unescaped", '"[\\"é😀\\"]"', Goal.LIST, Unwrapped(1, '["é😀"]')),
    Case("a surrogate pair in the outer layer", '"[\\"\\ud83d\\ude00\\"]"', Goal.LIST, Unwrapped(1, '["😀"]')),
    Case("half a pair, escaped in the value", wrapped('["\\ud800"]'), Goal.LIST, Unwrapped(1, '["\\ud800"]')),
    Case("blanks in front of each layer", ' \n\t\r"  \\"[1]\\" " ', Goal.LIST, Unwrapped(2, "[1]")),
    Case("blanks around the value", wrapped("\n [1] \n"), Goal.LIST, Unwrapped(1, "\n [1] \n")),
    Case("a list that holds wrapped text", wrapped('["[1]"]'), Goal.LIST, Unwrapped(1, '["[1]"]')),
    Case("NaN, which Python writes and reads", wrapped("[NaN]"), Goal.LIST, Unwrapped(1, "[NaN]")),
    Case("an object for an object", wrapped('{"a": [1]}'), Goal.OBJECT, Unwrapped(1, '{"a": [1]}')),
    Case("an object for either", wrapped("{}"), Goal.EITHER, Unwrapped(1, "{}")),
    Case("a list for either", wrapped("[]"), Goal.EITHER, Unwrapped(1, "[]")),
    Case("an object for a list", wrapped("{}"), Goal.LIST, None),
    Case("a list for an object", wrapped("[]"), Goal.OBJECT, None),
    Case("a healthy list", '[{"a": 1}]', Goal.LIST, None),
    Case("a healthy object", '{"a": "[1]"}', Goal.OBJECT, None),
    Case("a healthy list with wrapped text in it", '["[1]"]', Goal.LIST, None),
    Case("text", wrapped("hello"), Goal.EITHER, None),
    Case("text of text", wrapped("hello", 3), Goal.EITHER, None),
    Case("empty text", wrapped(""), Goal.EITHER, None),
    Case("text that begins like a list", wrapped("[sic] as they say"), Goal.LIST, None),
    Case("text that begins like an object", wrapped("{never closed"), Goal.OBJECT, None),
    Case("a list and more behind it", wrapped("[1] and so on"), Goal.LIST, None),
    Case("a number", wrapped("42"), Goal.EITHER, None),
    Case("null", wrapped("null"), Goal.EITHER, None),
    Case("a bare number", "42", Goal.EITHER, None),
    Case("an empty cell", "", Goal.EITHER, None),
    Case("only blanks", " \n", Goal.EITHER, None),
    Case("a lone quotation mark", '"', Goal.EITHER, None),
    Case("a string that is not closed", '"[1]', Goal.LIST, None),
    Case("two strings", '"[1]" "[2]"', Goal.LIST, None),
    Case("white space that is not JSON's", '\xa0"[1]"', Goal.LIST, None),
    Case("a byte order mark", '\ufeff"[1]"', Goal.LIST, None),
    Case("a raw line break in the string", '"[1,\n2]"', Goal.LIST, None),
    Case("an escape that JSON does not know", '"[\\x31]"', Goal.LIST, None),
    Case("single quotes, as Python prints", wrapped("['a']"), Goal.LIST, None),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_cases(case: Case) -> None:
    assert unwrap(case.text, case.goal) == case.expected


def one_layer_only(text: str, goal: Goal) -> Unwrapped | Refusal | None:
    result = unwrap(text, goal)
    return result if isinstance(result, Unwrapped) and result.layers == 1 else None


def written_anew(text: str, goal: Goal) -> Unwrapped | Refusal | None:
    result = unwrap(text, goal)
    if not isinstance(result, Unwrapped):
        return result
    return Unwrapped(result.layers, json.dumps(json.loads(result.value_text)))


def past_the_first_list(text: str, goal: Goal) -> Unwrapped | Refusal | None:
    result = unwrap(text, goal)
    try:
        value = json.loads(result.value_text if isinstance(result, Unwrapped) else text)
    except ValueError:
        return result
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str):
        return unwrap(json.dumps(value[0]), goal) or result
    return result


def without_blanks(text: str, goal: Goal) -> Unwrapped | Refusal | None:
    result = unwrap(text, goal)
    return Unwrapped(result.layers, result.value_text.strip()) if isinstance(result, Unwrapped) else result


def whatever_is_in_the_string(text: str, goal: Goal) -> Unwrapped | Refusal | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return unwrap(text, goal) or (Unwrapped(1, value) if isinstance(value, str) else None)


def whatever_the_goal(text: str, goal: Goal) -> Unwrapped | Refusal | None:
    return unwrap(text, Goal.EITHER)


def python_blanks(text: str, goal: Goal) -> Unwrapped | Refusal | None:
    return unwrap(text.strip(), goal)


@pytest.mark.parametrize(
    ("wrong", "case"),
    [
        (one_layer_only, "two layers"),
        (written_anew, "odd text stays as it is"),
        (past_the_first_list, "a healthy list with wrapped text in it"),
        (past_the_first_list, "a list that holds wrapped text"),
        (without_blanks, "blanks around the value"),
        (whatever_is_in_the_string, "text that begins like a list"),
        (whatever_the_goal, "a list for an object"),
        (python_blanks, "white space that is not JSON's"),
    ],
)
def test_wrong_ways_are_caught(wrong: Callable[[str, Goal], Unwrapped | Refusal | None], case: str) -> None:
    """Each would pass but for the case that is named."""
    caught = {each.name for each in CASES if wrong(each.text, each.goal) != each.expected}
    assert case in caught


def reason_of(result: Unwrapped | Refusal | None) -> str:
    assert isinstance(result, Refusal), result
    return result.reason


def test_half_a_surrogate_pair_cannot_be_stored() -> None:
    result = unwrap('"[\\"\\ud800\\"]"', Goal.LIST)
    assert "surrogate" in reason_of(result)


def test_the_deepest_nesting_that_is_taken_out() -> None:
    deepest = "[" * 499 + "{}" + "]" * 499
    assert unwrap(wrapped(deepest), Goal.LIST) == Unwrapped(1, deepest)
    assert "500 deep" in reason_of(unwrap(wrapped(f"[{deepest}]"), Goal.LIST))


def test_brackets_in_strings_are_not_nesting() -> None:
    text = json.dumps(["[{" * 1000, 'a"[' * 1000, "\\"])
    assert unwrap(wrapped(text), Goal.LIST) == Unwrapped(1, text)


def test_many_brackets_side_by_side_are_not_nesting() -> None:
    text = "[" + "[],{}," * 5000 + "[]]"
    assert unwrap(wrapped(text), Goal.LIST) == Unwrapped(1, text)


def test_nesting_that_would_exhaust_the_parser_is_refused() -> None:
    assert "deep" in reason_of(unwrap(wrapped("[" * 200_000 + "]" * 200_000), Goal.LIST))
    # Closed first, so that the count never gets above what is open.
    assert unwrap(wrapped("[" + "]" * 200_000 + "[" * 200_000), Goal.LIST) is None


def test_a_deep_stack_of_the_caller_lets_no_error_through() -> None:
    def called_from(depth: int) -> Unwrapped | Refusal | None:
        return called_from(depth - 1) if depth else unwrap(wrapped("[" * 450 + "]" * 450), Goal.LIST)

    verdicts = [called_from(depth) for depth in (0, 300, 600)]
    assert isinstance(verdicts[0], Unwrapped)
    assert all(isinstance(verdict, Unwrapped | Refusal) for verdict in verdicts)


def test_numbers_that_no_release_could_load_are_refused() -> None:
    longest = f"[-{'9' * 4300}]"
    assert unwrap(wrapped(longest), Goal.LIST) == Unwrapped(1, longest)
    assert "digits" in reason_of(unwrap(wrapped(f"[{'9' * 4301}]"), Goal.LIST))
    long_fraction = f"[0.{'3' * 5000}]"
    assert unwrap(wrapped(long_fraction), Goal.LIST) == Unwrapped(1, long_fraction)


@pytest.mark.parametrize("filler", ["x", "é", "😀"])
def test_the_size_limit_counts_bytes(filler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = json.dumps(f'["{filler * 50}"]', ensure_ascii=False)
    size = len(text.encode())
    monkeypatch.setattr(nested_json, "MAX_BYTES", size)
    assert isinstance(unwrap(text, Goal.LIST), Unwrapped)
    monkeypatch.setattr(nested_json, "MAX_BYTES", size - 1)
    assert "longer than" in reason_of(unwrap(text, Goal.LIST))
    # However long: what is no string of JSON is none of ours.
    assert unwrap(f"[{text}]", Goal.LIST) is None


def test_the_real_size_limit() -> None:
    filler = "x" * (64 * 1024 * 1024 - len('"[\\"\\"]"'))
    assert isinstance(unwrap(f'"[\\"{filler}\\"]"', Goal.LIST), Unwrapped)
    assert reason_of(unwrap(f'"[\\"{filler}x\\"]"', Goal.LIST)) == "it is longer than 64 MiB"


def test_the_layer_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert nested_json.MAX_LAYERS == 32
    monkeypatch.setattr(nested_json, "MAX_LAYERS", 6)
    assert unwrap(wrapped("[1]", 6), Goal.LIST) == Unwrapped(6, "[1]")
    assert "more than 6 string layers" in reason_of(unwrap(wrapped("[1]", 7), Goal.LIST))


def test_each_column_has_the_goal_that_releases_write() -> None:
    inner = {"list": wrapped("[]"), "object": wrapped("{}")}
    accepted = {column: {kind for kind, text in inner.items() if unwrap(text, goal)} for column, goal in GOALS.items()}
    assert accepted == {
        "tool_calls": {"list"},
        "codex_reasoning_items": {"list"},
        "codex_message_items": {"list"},
        "reasoning_details": {"list", "object"},
        "display_metadata": {"object"},
    }


def test_a_row_s_cells_of_any_type() -> None:
    row: dict[str, Cell] = {
        "content": wrapped("[1]"),
        "reasoning": wrapped("[1]"),
        "reasoning_content": wrapped("[1]"),
        "tool_calls": wrapped("[1]").encode(),
        "reasoning_details": wrapped("[1]"),
        "codex_reasoning_items": BadText(b'"[\xff]"'),
        "codex_message_items": 7,
        "display_metadata": None,
    }
    assert unwrap_cells(row) == {"reasoning_details": Unwrapped(1, "[1]")}
    assert unwrap_cells({}) == {}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(value=st.lists(json_values) | st.dictionaries(st.text(), json_values), layers=st.integers(1, 5))
def test_what_was_wrapped_comes_out_as_it_went_in(value: object, layers: int) -> None:
    text = json.dumps(value)
    assert unwrap(text, Goal.EITHER) is None
    assert unwrap(wrapped(text, layers), Goal.EITHER) == Unwrapped(layers, text)


@given(text=st.text(alphabet='"\\[]{}:,u0d8 \n\tex1', max_size=30), goal=st.sampled_from(Goal))
def test_nothing_comes_out_that_a_release_would_not_load(text: str, goal: Goal) -> None:
    """Any text: no error escapes, and a value is one that repeated decoding comes to."""
    result = unwrap(text, goal)
    if not isinstance(result, Unwrapped):
        return
    decoded: object = text
    for _ in range(result.layers):
        assert isinstance(decoded, str)
        decoded = json.loads(decoded)
    assert decoded == result.value_text
    assert isinstance(json.loads(result.value_text), list | dict)
    result.value_text.encode("utf-8")


PRESELECTED: tuple[tuple[str, Cell, bool], ...] = (
    ("string", '"[1]"', True),
    ("blanks in front", ' \n\t\r"[1]"', True),
    ("list", '["[1]"]', False),
    ("object", '{"a": "b"}', False),
    ("blanks in front of a list", '  ["a"]', False),
    ("white space that is not JSON's", '\xa0"[1]"', False),
    ("form feed", '\f"[1]"', False),
    ("NUL in front", '\x00"[1]"', False),
    ("NUL behind", '"\x00', True),
    ("empty", "", False),
    ("only blanks", " \n ", False),
    ("NULL", None, False),
    ("blob", b'"[1]"', False),
    ("integer", 5, False),
    ("real", 5.5, False),
)


@pytest.mark.parametrize("encoding", ["UTF-8", "UTF-16le"])
def test_the_preselection_in_sql(encoding: str) -> None:
    connection = apsw.Connection(":memory:")
    connection.execute(f"PRAGMA encoding = '{encoding}'; CREATE TABLE t(name TEXT, c TEXT)")
    connection.executemany("INSERT INTO t VALUES (?, ?)", [(name, cell) for name, cell, _ in PRESELECTED])
    flags = connection.execute(f"SELECT name, ({is_string_sql('c')}) IS TRUE FROM t")
    chosen = {str(name): flag for name, flag in flags}
    # The column's TEXT affinity makes text of the two numbers, as it does in a store.
    assert chosen == {name: int(expected) for name, _, expected in PRESELECTED}


@given(text=st.text(alphabet='" \n\t\r\x00\x0c[a', max_size=6))
def test_the_preselection_misses_nothing_that_could_be_unwrapped(text: str) -> None:
    connection = apsw.Connection(":memory:")
    ((chosen,),) = connection.execute(f"SELECT {is_string_sql('?1')}", (text,)).fetchall()
    assert bool(chosen) == text.lstrip(" \n\t\r").startswith('"')


def unwraps(cell: Cell, goal: Goal) -> bool:
    """What SQL says of a cell."""
    connection = apsw.Connection(":memory:")
    return bool(connection.execute(f"SELECT {unwraps_sql('c', goal)} FROM (SELECT ?1 AS c)", (cell,)).get)


@given(
    text=st.text(alphabet='"\\[]{}:,u0d8 \n\tex1\x00\x01', max_size=30),
    goal=st.sampled_from(Goal),
    layers=st.integers(0, 2),
)
def test_sql_takes_nothing_for_wrapped_that_does_not_unwrap(text: str, goal: Goal, layers: int) -> None:
    text = wrapped(text, layers)
    assert not unwraps(text, goal) or unwrap(text, goal) is not None


texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


@given(value=st.lists(texts | st.integers() | st.none()) | st.dictionaries(texts, texts))
def test_sql_knows_what_was_wrapped_once(value: object) -> None:
    text = json.dumps(value)
    assert unwraps(wrapped(text), Goal.EITHER)
    assert unwraps(wrapped(text), Goal.LIST) is isinstance(value, list)
    assert not unwraps(text, Goal.EITHER)


@pytest.mark.parametrize(
    "cell", [None, 5, wrapped("[1]").encode(), wrapped("[1]") + "\0x", wrapped("[1]\0x"), "[1]", '"']
)
def test_sql_takes_no_other_cell_for_wrapped(cell: Cell) -> None:
    assert not unwraps(cell, Goal.EITHER)
