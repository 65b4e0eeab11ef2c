"""double-encoded: found where forks and scripts of real releases left it, and every look-alike left alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from checks import double_encoded
from checks.double_encoded import CHECK
from hermes_doctor.engine.model import Check, Finding, Row, RowRule, Safety, Severity
from hermes_doctor.store import nested_json
from hermes_doctor.store.nested_json import Refusal, Unwrapped, unwrap_cells
from hermes_doctor.store.shape import Shape
from hermes_doctor.store.view import StoreView
from tests.checks.support import findings_of
from tests.oracle.faults import planting
from tests.oracle.history import CALLS, REASONING
from tests.oracle.home import CallError, Home
from tests.oracle.releases import NEWEST, Release, between, get
from tests.oracle.steps import Step, blob, call, ref, sql

WRAPPED = ("reasoning_details", "codex_reasoning_items", "codex_message_items")
RAW = "SELECT id, reasoning_details, codex_reasoning_items, codex_message_items FROM messages WHERE session_id = ?"
#: What must never appear in a finding.
SECRET = "the spare key lies under the mat"


def wrapped(value: Any, layers: int = 1) -> str:
    """JSON of the value, with so many string layers too many around it."""
    text = json.dumps(value)
    for _ in range(layers):
        text = json.dumps(text)
    return text


@dataclass(frozen=True)
class Case:
    """One row: what its cells hold, and what the check must say of it (no columns: nothing)."""

    name: str
    cells: dict[str, Any]
    columns: tuple[str, ...] = ()
    layers: int = 0
    refused: tuple[str, ...] = ()
    severity: Severity = Severity.ERROR
    role: str = "assistant"


SAID = [{"text": SECRET}]

CASES: tuple[Case, ...] = (
    # Faults.
    *(Case(f"{c} in a string", {c: wrapped(SAID)}, (c,), 1) for c in ("tool_calls", *WRAPPED)),
    *(Case(f"{c} in three strings", {c: wrapped(SAID, 3)}, (c,), 3) for c in ("tool_calls", *WRAPPED)),
    Case("details that are an object", {"reasoning_details": wrapped({"a": 1}, 2)}, ("reasoning_details",), 2),
    Case("an empty list", {"codex_message_items": wrapped([])}, ("codex_message_items",), 1),
    Case("leading blanks", {"codex_message_items": " \n\t\r" + wrapped(SAID)}, ("codex_message_items",), 1),
    Case("a list with a wrapped list in it", {"tool_calls": wrapped([wrapped([1])])}, ("tool_calls",), 1),
    Case("all three columns", {c: wrapped(SAID, 2) for c in WRAPPED}, WRAPPED, 2),
    Case(
        "two columns, one deeper, one healthy",
        {
            "reasoning_details": wrapped(SAID),
            "codex_reasoning_items": wrapped(SAID, 4),
            "codex_message_items": json.dumps(SAID),
        },
        ("reasoning_details", "codex_reasoning_items"),
        4,
    ),
    Case("a tool's row", {"codex_message_items": wrapped(SAID)}, ("codex_message_items",), 1, role="tool"),
    Case("a rewound row", {"active": 0, "tool_calls": wrapped(SAID)}, ("tool_calls",), 1),
    Case(
        "metadata in a string, which is read through",
        {"display_metadata": wrapped({"a": 1})},
        ("display_metadata",),
        1,
        severity=Severity.WARNING,
    ),
    Case("metadata in two strings", {"display_metadata": wrapped({"a": 1}, 2)}, ("display_metadata",), 2),
    Case(
        "metadata and details, each in a string",
        {"display_metadata": wrapped({"a": 1}), "reasoning_details": wrapped(SAID)},
        ("reasoning_details", "display_metadata"),
        1,
    ),
    # Faults that are not mended.
    Case("half a surrogate pair", {"tool_calls": '"[\\"\\ud800\\"]"'}, refused=("tool_calls",)),
    Case("nested too deep", {"tool_calls": json.dumps("[" * 501 + "]" * 501)}, refused=("tool_calls",)),
    Case("a number too long", {"tool_calls": f'"[{"9" * 4301}]"'}, refused=("tool_calls",)),
    Case(
        "one column mends, one does not",
        {"reasoning_details": wrapped(SAID, 2), "codex_message_items": '"[\\"\\ud800\\"]"'},
        ("reasoning_details",),
        2,
        ("codex_message_items",),
    ),
    # Look-alikes.
    Case("nothing there", {}),
    Case("healthy", {c: json.dumps(SAID) for c in ("tool_calls", *WRAPPED)}),
    Case("healthy with a wrapped list inside", {"reasoning_details": json.dumps([wrapped([1]), wrapped({})])}),
    Case("a string that is text", {"reasoning_details": wrapped(SECRET)}),
    Case("text in three strings", {"codex_message_items": wrapped(SECRET, 3)}),
    Case("a string that starts with [", {"codex_reasoning_items": wrapped("[sic] he said")}),
    Case("a string that starts with {", {"reasoning_details": wrapped("{not closed")}),
    Case("a string that is a number", {"tool_calls": wrapped("42"), "codex_message_items": wrapped("42")}),
    Case("null in a string", {"reasoning_details": wrapped("null")}),
    Case("true in a string", {"reasoning_details": wrapped("true")}),
    Case("an object where a list belongs", {"tool_calls": wrapped({}), "codex_message_items": wrapped({})}),
    Case("a list where an object belongs", {"display_metadata": wrapped([1])}),
    Case("no JSON at all", {"reasoning_details": '"[1]', "codex_message_items": SECRET}),
    Case("a quoted list in reasoning", {"reasoning": wrapped([1]), "reasoning_content": wrapped([1], 2)}),
    Case("a quoted list in content", {"content": wrapped([1])}),
    Case("structured content that is a string", {"content": "\x00json:" + wrapped([1])}),
    Case("a blob", {"reasoning_details": blob(wrapped([1]).encode())}),
    Case("numbers", {"reasoning_details": 42, "tool_calls": 4.5}),
    Case("empty text", {"reasoning_details": "", "tool_calls": " "}),
)
#: Text that is no text: json over CAST, since no release binds it.
BAD_TEXT = "a string with a byte that is no UTF-8"


@dataclass
class Planted:
    """A store with one row for each case, and one for BAD_TEXT."""

    home: Home
    cases: dict[int, Case] = field(default_factory=dict)

    @property
    def store(self) -> Path:
        return self.home.store


def plant_cases(home: Home, release: Release) -> Planted:
    """One session whose rows are the cases that this release's columns can show."""
    made = home.run(release, [call("create_session", "s1", "cli"), sql("PRAGMA table_info(messages)")])
    columns = {row[1] for row in made[1]}
    cases = [case for case in CASES if set(case.cells) <= columns]
    steps: list[Step] = []
    for case in cases:
        steps.append(call("append_message", "s1", case.role, "x", keep=case.name))
        for column, cell in case.cells.items():
            steps.append(sql(f"UPDATE messages SET {column} = ? WHERE id = ?", cell, ref(case.name)))
    steps.append(call("append_message", "s1", "assistant", "x", keep=BAD_TEXT))
    bad = "UPDATE messages SET reasoning_details = CAST(? AS TEXT) WHERE id = ?"
    steps.append(sql(bad, blob(b'"[\xff]"'), ref(BAD_TEXT)))
    values = home.run(release, steps)
    ids = [value for value, step in zip(values, steps, strict=True) if "as" in step]
    assert len(set(ids)) == len(ids)
    return Planted(home, dict(zip(ids, cases, strict=False)))


def misjudged(planted: Planted, check: Check) -> list[str]:
    """The cases of which the check says something else than it must."""
    found: dict[Any, list[Finding]] = {}
    for finding in findings_of(planted.store, check):
        found.setdefault(finding.key, []).append(finding)
    wrong = [case.name for key, case in planted.cases.items() if not _as_expected(case, found.pop(key, []))]
    return wrong + [BAD_TEXT] * len(found)


def _as_expected(case: Case, findings: Sequence[Finding]) -> bool:
    if not case.columns and not case.refused:
        return not findings
    if len(findings) != 1:
        return False
    finding = findings[0]
    return (
        tuple(_listed(finding, "columns")) == case.columns
        and finding.detail["layers"] == case.layers
        and tuple(_listed(finding, "refused")) == case.refused
        and finding.severity is case.severity
        and finding.fix is (Safety.SAFE if case.columns else Safety.NONE)
        and (finding.action == f"unwrap {', '.join(case.columns)}" if case.columns else finding.action is None)
        and (finding.refusal is None if case.columns else bool(finding.refusal))
        and (finding.table, finding.session, finding.check) == ("messages", "s1", CHECK.name)
    )


def _listed(finding: Finding, name: str) -> Sequence[str]:
    listed = finding.detail.get(name, [])
    assert isinstance(listed, list)
    return listed


#: Releases, and how many of the cases their columns can show.
SHOWN = {"0.13.0": len(CASES) - 5, "0.19.0": len(CASES) - 4, "0.22.2": len(CASES)}


@pytest.mark.parametrize("release", [get(version) for version in SHOWN], ids=str)
def test_every_case_is_judged_rightly(home: Home, release: Release) -> None:
    planted = plant_cases(home, release)
    assert len(planted.cases) == SHOWN[release.version]
    assert misjudged(planted, CHECK) == []


def test_findings_are_in_words_and_hold_nobody_s_text(home: Home) -> None:
    planted = plant_cases(home, NEWEST)
    findings = {planted.cases[int(str(f.key))].name: f for f in findings_of(planted.store, CHECK)}
    assert SECRET not in repr(findings)
    assert "spare" not in repr(findings)
    assert findings["all three columns"].summary == (
        "reasoning_details, codex_reasoning_items, codex_message_items hold JSON inside a string, twice"
    )
    assert findings["tool_calls in a string"].summary == "tool_calls holds JSON inside a string"
    assert findings["tool_calls in three strings"].summary == "tool_calls holds JSON inside a string, 3 times"
    assert findings["nested too deep"].refusal == ("tool_calls: its lists and objects are nested more than 500 deep")
    mixed = findings["one column mends, one does not"]
    assert mixed.summary.startswith("reasoning_details, codex_message_items hold JSON inside a string")


# ---- Deliberately wrong checks: each must be caught by the table above.


def _variant(
    *,
    judge: Callable[[Row, StoreView], Finding | None] | None = None,
    condition: Callable[[Shape], str | None] | None = None,
    columns: tuple[str, ...] | None = None,
) -> Check:
    rule = CHECK.rule
    assert isinstance(rule, RowRule)
    return replace(
        CHECK,
        rule=replace(
            rule,
            judge=judge or rule.judge,
            condition=condition or rule.condition,
            columns=columns or rule.columns,
        ),
    )


def _judging(wrong: Callable[[Row], dict[str, Unwrapped | Refusal]]) -> Callable[[pytest.MonkeyPatch], Check]:
    """A variant that looks into the cells in another way."""

    def make(patch: pytest.MonkeyPatch) -> Check:
        patch.setattr(double_encoded, "unwrap_cells", wrong)
        return CHECK

    return make


def _one_layer_only(row: Row) -> dict[str, Unwrapped | Refusal]:
    return {
        column: result
        for column, result in unwrap_cells(row).items()
        if isinstance(result, Refusal) or result.layers == 1
    }


def _any_string_that_parses(row: Row) -> dict[str, Unwrapped | Refusal]:
    found: dict[str, Unwrapped | Refusal] = {}
    for column, cell in row.items():
        if column != "session_id" and isinstance(cell, str) and cell.startswith('"'):
            found[column] = Unwrapped(1, json.loads(cell)) if cell.endswith('"') else Refusal("")
    return found


def _past_the_first_list(row: Row) -> dict[str, Unwrapped | Refusal]:
    found = unwrap_cells(row)
    for column, cell in row.items():
        try:
            inner = json.loads(found[column].value_text if column in found else cell)  # type: ignore[union-attr,arg-type]  # wrong on purpose
        except (ValueError, TypeError, AttributeError):
            continue
        if isinstance(inner, list) and inner and isinstance(inner[0], str):
            deeper = unwrap_cells({column: inner[0]})
            found |= {c: replace(r, layers=r.layers + 1) for c, r in deeper.items() if isinstance(r, Unwrapped)}
    return found


def _blobs_too(row: Row) -> dict[str, Unwrapped | Refusal]:
    return unwrap_cells({c: v.decode("utf-8", "replace") if isinstance(v, bytes) else v for c, v in row.items()})


def _unguarded(patch: pytest.MonkeyPatch) -> Check:
    for limit in ("MAX_DEPTH", "MAX_DIGITS"):
        patch.setattr(nested_json, limit, 10_000_000)
    return CHECK


def _only_likes(_patch: pytest.MonkeyPatch) -> Check:
    """Preselects by LIKE: misses leading blanks."""
    return _variant(
        condition=lambda shape: " OR ".join(
            f"{column} LIKE '\"%'" for column in nested_json.GOALS if shape.has("messages", column)
        )
    )


def _everything(patch: pytest.MonkeyPatch) -> Check:
    """Looks into any text or blob, and takes what Python's strip() would."""
    patch.setattr(double_encoded, "unwrap_cells", _blobs_too)
    return _variant(condition=lambda _shape: "1")


def _with_goals(**goals: nested_json.Goal | None) -> Callable[[pytest.MonkeyPatch], Check]:
    def make(patch: pytest.MonkeyPatch) -> Check:
        changed = {c: g for c, g in ({**nested_json.GOALS, **goals}).items() if g is not None}
        patch.setattr(nested_json, "GOALS", changed)
        patch.setattr(double_encoded, "GOALS", changed)
        return _variant(columns=("session_id", *changed))

    return make


def _always_an_error(_patch: pytest.MonkeyPatch) -> Check:
    def judge(row: Row, view: StoreView) -> Finding | None:
        finding = _real_judge(row, view)
        return finding and replace(finding, severity=Severity.ERROR)

    return _variant(judge=judge)


def _one_bad_column_spoils_the_row(_patch: pytest.MonkeyPatch) -> Check:
    def judge(row: Row, view: StoreView) -> Finding | None:
        finding = _real_judge(row, view)
        if finding and finding.detail.get("refused"):
            return replace(finding, fix=Safety.NONE, action=None, refusal="no")
        return finding

    return _variant(judge=judge)


def _real_judge(row: Row, view: StoreView) -> Finding | None:
    assert isinstance(CHECK.rule, RowRule)
    return CHECK.rule.judge(row, view)


VARIANTS: dict[str, tuple[Callable[[pytest.MonkeyPatch], Check], str]] = {
    "one layer only": (_judging(_one_layer_only), "all three columns"),
    "any string that parses": (_judging(_any_string_that_parses), "a string that is text"),
    "past the first list": (_judging(_past_the_first_list), "a list with a wrapped list in it"),
    "blobs too": (_everything, "a blob"),
    "no limits": (_unguarded, "a number too long"),
    "preselects by LIKE": (_only_likes, "leading blanks"),
    "unwraps reasoning": (_with_goals(reasoning=nested_json.Goal.EITHER), "a quoted list in reasoning"),
    "unwraps content": (_with_goals(content=nested_json.Goal.EITHER), "a quoted list in content"),
    "details must be a list": (
        _with_goals(reasoning_details=nested_json.Goal.LIST),
        "details that are an object",
    ),
    "an object will do for tool calls": (
        _with_goals(tool_calls=nested_json.Goal.EITHER),
        "an object where a list belongs",
    ),
    "leaves tool calls out": (_with_goals(tool_calls=None), "tool_calls in a string"),
    "leaves metadata out": (_with_goals(display_metadata=None), "metadata in two strings"),
    "read-through metadata is an error": (_always_an_error, "metadata in a string, which is read through"),
    "one bad column spoils the row": (_one_bad_column_spoils_the_row, "one column mends, one does not"),
}


def test_wrong_checks_are_caught(home: Home) -> None:
    planted = plant_cases(home, NEWEST)
    caught = {}
    for name, (make, _) in VARIANTS.items():
        with pytest.MonkeyPatch.context() as patch:
            caught[name] = misjudged(planted, make(patch))
    missed = {name: case for name, (_, case) in VARIANTS.items() if case not in caught[name]}
    assert missed == {}
    assert misjudged(planted, CHECK) == []


# ---- What the releases themselves make of it.

#: The releases whose fork wraps the columns once more, and those whose fork leaves them.
FORK_WRAPS = between("0.15.2", "0.20.0")
FORK_LEAVES = between("0.20.6", None)


def _mend(home: Home, release: Release, findings: Sequence[Finding]) -> None:
    """Put what comes out of the strings into the cells, by plain SQL."""
    columns = ", ".join(WRAPPED)
    steps = [sql(f"SELECT {columns} FROM messages WHERE id = ?", finding.key) for finding in findings]
    updates = []
    for finding, [row] in zip(findings, home.run(release, steps), strict=True):
        for column, result in unwrap_cells(dict(zip(WRAPPED, row, strict=True))).items():
            assert isinstance(result, Unwrapped)
            statement = f"UPDATE messages SET {column} = ? WHERE id = ?"
            updates.append(sql(statement, result.value_text, finding.key))
    home.run(release, updates)


def _replayed(home: Home, release: Release, sessions: Sequence[str]) -> list[list[dict[str, Any]]]:
    """What the release feeds to the model, without what differs from copy to copy."""
    kept = ("role", "content", "tool_calls", "tool_call_id", "reasoning", *WRAPPED)
    conversations = home.conversations(release, sessions)
    return [[{k: m.get(k) for k in kept} for m in conversations[name]] for name in sessions]


@pytest.mark.parametrize("release", FORK_WRAPS, ids=str)
def test_forks_of_a_release_are_found_and_mend_to_what_was_there(home: Home, release: Release) -> None:
    with planting(home, release) as plant:
        fork = plant.fork_double_encoded(3)
    every = [fork.source, *fork.forks]
    raw = dict(zip(every, home.run(release, [sql(RAW, name) for name in every]), strict=True))
    original = [row[1:] for row in raw[fork.source]]
    before = _replayed(home, release, every)
    spoken = [message for message in before[0] if message["role"] == "assistant"]
    assert [[m[c] for c in WRAPPED] for m in spoken] == [[REASONING[c] for c in WRAPPED]] * 2
    for damaged in before[1:]:
        texts = [m[c] for m in damaged if m["role"] == "assistant" for c in WRAPPED]
        assert len(texts) == 6
        assert all(isinstance(text, str) for text in texts), "no release reads it through"

    findings = findings_of(home.store, CHECK)
    expected = {
        row[0]: (name, layers)
        for layers, name in enumerate(fork.forks, start=1)
        for row in raw[name]
        if row[1] is not None
    }
    assert len(expected) == 6
    assert {f.key: (f.session, f.detail["layers"]) for f in findings} == expected
    assert all(f.detail["columns"] == list(WRAPPED) and f.fix is Safety.SAFE for f in findings)

    _mend(home, release, findings)
    assert findings_of(home.store, CHECK) == []
    for mended in home.run(release, [sql(RAW, name) for name in fork.forks]):
        assert [row[1:] for row in mended] == original, "byte for byte"
    assert _replayed(home, release, every) == [before[0]] * 4
    # The newest release migrates the file and replays the same.
    assert _replayed(home, NEWEST, every) == [before[0]] * 4


@pytest.mark.parametrize("release", FORK_LEAVES, ids=str)
def test_forks_of_a_release_that_leaves_strings_alone_are_healthy(home: Home, release: Release) -> None:
    with planting(home, release) as plant:
        fork = plant.fork_double_encoded(2)
    source, *copies = _replayed(home, release, [fork.source, *fork.forks])
    assert copies == [source, source]
    assert findings_of(home.store, CHECK) == []


def test_a_script_of_the_oldest_release_leaves_the_same(home: Home) -> None:
    with planting(home, "0.13.0") as plant:
        session = plant.rewritten_by_a_script(2)
    findings = findings_of(home.store, CHECK)
    assert [(f.session, f.detail["layers"], f.detail["columns"]) for f in findings] == [(session, 2, list(WRAPPED))]
    _mend(home, get("0.13.0"), findings)
    assert home.conversation("0.13.0", session)[1]["codex_message_items"] == REASONING["codex_message_items"]


@pytest.mark.parametrize("release", between("0.13.0", "0.19.0")[::3], ids=str)
def test_tool_calls_that_a_caller_wrapped_are_no_calls_until_they_are_mended(home: Home, release: Release) -> None:
    results = home.run(
        release,
        [
            call("create_session", "s1", "cli"),
            call("append_message", "s1", "assistant", "", tool_calls=json.dumps(CALLS)),
            call("append_message", "s1", "assistant", "", tool_calls=CALLS),
            call("get_messages_as_conversation", "s1"),
        ],
    )
    assert [type(message["tool_calls"]) for message in results[3]] == [str, list]
    [finding] = findings_of(home.store, CHECK)
    assert (finding.key, finding.detail["columns"]) == (results[1], ["tool_calls"])
    [[text]] = home.run(release, [sql("SELECT tool_calls FROM messages WHERE id = ?", results[1])])[0]
    mended = nested_json.unwrap(text, nested_json.Goal.LIST)
    assert isinstance(mended, Unwrapped)
    home.run(release, [sql("UPDATE messages SET tool_calls = ? WHERE id = ?", mended.value_text, results[1])])
    assert [message["tool_calls"] for message in home.conversation(release, "s1")] == [CALLS, CALLS]


def test_metadata_in_one_string_is_read_but_not_found_by_sql(home: Home) -> None:
    """Why a single layer around display_metadata is a warning, and two are an error."""
    reaction = {"reactions": [{"emoji": "x", "author": "user", "at": 1.0}]}
    steps: list[Step] = [call("create_session", "s1", "desktop")]
    update = "UPDATE messages SET display_metadata = ? WHERE id = ?"
    for text in (json.dumps(reaction), wrapped(reaction), wrapped(reaction, 2)):
        steps.append(call("append_message", "s1", "assistant", "x", keep=text))
        steps.append(sql(update, text, ref(text)))
    looks = [call("get_messages_as_conversation", "s1"), call("take_unseen_reactions", "s1")]
    *planted, messages, taken = home.run(NEWEST, [*steps, *looks])
    keys = planted[1::2]
    assert [message.get("display_metadata") for message in messages] == [reaction, reaction, None]
    assert [each["row_id"] for each in taken] == [keys[0]]
    severities = {f.key: f.severity for f in findings_of(home.store, CHECK)}
    assert severities == {keys[1]: Severity.WARNING, keys[2]: Severity.ERROR}


@pytest.mark.parametrize("release", [get("0.13.0"), NEWEST], ids=str)
@pytest.mark.parametrize(
    ("text", "error"),
    [("[" + "9" * 4301 + "]", "ValueError"), ("[" * 200_000 + "]" * 200_000, "RecursionError")],
    ids=["digits", "depth"],
)
def test_what_is_refused_would_keep_a_release_from_loading_the_chat(
    home: Home, release: Release, text: str, error: str
) -> None:
    written = sql("UPDATE messages SET codex_message_items = ?", json.dumps(text))
    *_, [message] = home.run(
        release,
        [
            call("create_session", "s1", "cli"),
            call("append_message", "s1", "assistant", "x"),
            written,
            call("get_messages_as_conversation", "s1"),
        ],
    )
    assert message["codex_message_items"] == text
    [finding] = findings_of(home.store, CHECK)
    assert finding.fix is Safety.NONE
    unwrapped = sql("UPDATE messages SET codex_message_items = ?", text)
    _, failed = home.run(release, [unwrapped, call("get_messages_as_conversation", "s1")], check=False)
    assert isinstance(failed, CallError)
    assert failed.kind == error
