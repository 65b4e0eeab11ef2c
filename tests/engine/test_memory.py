"""What a scan keeps for the next one: it comes back as it was, for the same question only, or not at all."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from hermes_doctor.engine.memory import FILE, Kept, Memory, Recalled, brief, findings_in
from hermes_doctor.engine.model import Check, Finding, Row, RowRule, Safety, Severity
from hermes_doctor.engine.scan import ScanOptions, scan_store
from hermes_doctor.host.homes import StoreRef
from hermes_doctor.store.cells import BadText, Key
from hermes_doctor.store.file_mark import FileMark
from hermes_doctor.store.stretches import Stretch
from hermes_doctor.store.view import StoreView
from tests.oracle.home import Home
from tests.oracle.steps import call, sql

STORE, OTHER = Path("/somewhere/state.db"), Path("/elsewhere/state.db")
MARK = FileMark((1, 2, 3), None, (4, 5), "00", "", "7 frames", 10**18, settled=True)


def kept(low: int, found: str | None = None) -> Kept:
    stretch = Stretch(low, low + 9, 2, b"linkage", b"leaves", b"runs", b"digest")
    return Kept(stretch, 10, b"before", b"", ("1,2", 1.5, None), found)


def recalled(memory: Memory, question: str, store: Path = STORE) -> list[Kept] | None:
    found = memory.recall(store, question)
    return None if found is None else list(found.kept)


def test_what_is_kept_comes_back_for_its_question_only(tmp_path: Path) -> None:
    memory = Memory(tmp_path)
    assert memory.recall(STORE, "a") is None
    assert memory.keep(STORE, "a", MARK, (), [kept(50, "[]"), kept(1)])
    assert memory.keep(OTHER, "a", None, (), [kept(7)])
    assert memory.recall(STORE, "a") == Recalled([kept(1), kept(50, "[]")], MARK)
    assert memory.recall(OTHER, "a") == Recalled([kept(7)], None)
    assert memory.recall(STORE, "b") is None
    assert memory.keep(STORE, "a", None, [kept(1)], [kept(60)])
    assert memory.recall(STORE, "a") == Recalled([kept(50, "[]"), kept(60)], None)
    # Answers to the other question are of no use any more.
    assert memory.keep(STORE, "b", MARK, (), [kept(20)])
    assert recalled(memory, "b") == [kept(20)]
    assert recalled(memory, "a") is None
    assert recalled(memory, "a", OTHER) == [kept(7)]


def test_a_store_without_messages_is_known_as_that(tmp_path: Path) -> None:
    memory = Memory(tmp_path)
    assert memory.keep(STORE, "a", MARK, (), ())
    assert memory.recall(STORE, "a") == Recalled([], MARK)


@pytest.mark.parametrize("table", ["stores", "stretches"])
def test_what_another_doctor_laid_out_is_made_anew(tmp_path: Path, table: str) -> None:
    memory = Memory(tmp_path)
    assert memory.keep(STORE, "a", MARK, (), [kept(1)])
    with closing(sqlite3.connect(tmp_path / FILE)) as connection:
        connection.execute(f"ALTER TABLE {table} ADD COLUMN later")
    assert memory.keep(STORE, "a", MARK, (), [kept(50)])
    assert recalled(memory, "a") == [kept(50)]


def finding(key: Key, session: Key, severity: Severity = Severity.ERROR, summary: str = "s") -> Finding:
    detail: Mapping[str, Sequence[str] | int] = {"columns": ["content"], "layers": 2}
    return Finding("c", severity, "messages", key, session, summary, detail, Safety.SAFE, "an action", "a refusal")


@pytest.mark.parametrize(
    "findings",
    [
        [],
        [finding(1, "s1"), finding(2, None), finding(None, "s1"), finding("text \udc80 \0", 5)],
        [finding(1, "s1"), finding(1, "s2", Severity.INFO), finding(1, "s1", summary="other"), finding(2, "s2")],
        [Finding("c", Severity.INFO, "messages", 1, None, "bare")],
    ],
)
def test_findings_come_back_as_they_were(findings: Sequence[Finding]) -> None:
    said = brief(findings)
    assert said is not None
    assert findings_in(said) == findings


@pytest.mark.parametrize("cell", [BadText(b"\xff"), b"blob", 1.5, (1, 2)], ids=str)
def test_what_json_cannot_say_is_not_kept(cell: Key) -> None:
    assert brief([finding(1, "s1"), finding(cell, "s1")]) is None
    assert brief([finding(1, "s1"), finding(1, cell)]) is None


@pytest.mark.parametrize(
    "text", ["", "null", "[[], [], [1, 0, 0]]", '[[], ["s"], [1, 0]]', '[[["c", 99]], ["s"], [1, 0, 0]]', "[1, 2, 3]"]
)
def test_what_are_no_findings_is_told(text: str) -> None:
    assert findings_in(text) is None


def test_a_rule_that_goes_by_the_release_is_asked_again_after_an_upgrade(home: Home, tmp_path: Path) -> None:
    """Its rows are as they were then, and so are their pages."""
    home.run("0.19.0", [call("create_session", "s1", "cli"), call("append_message", "s1", "user", "text")])

    def judge(_row: Row, view: StoreView) -> Finding:
        return Finding("c", Severity.INFO, "messages", None, None, f"schema {view.shape.schema_version}")

    check = Check(
        "c", Severity.INFO, "", "", Safety.NONE, "", RowRule("messages", (), lambda _: "1", judge, lasting=True)
    )

    def found() -> list[str]:
        scan = scan_store(StoreRef(home.store, home.path, "default"), [check], ScanOptions(memory=Memory(tmp_path)))
        with scan.findings:
            return [each.summary for each in scan.findings]

    assert found() == found() == ["schema 22"]
    home.run("0.19.0", [sql("UPDATE schema_version SET version = 25")])
    assert found() == ["schema 25"]
