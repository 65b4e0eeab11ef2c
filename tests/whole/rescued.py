"""What ``doctor rescue`` is held to on one damaged store, whatever the damage was.

As many messages as are still somewhere in the file are the concern of whoever counts; here is what must never be: a
row that is handed out as sure and is wrong, a deleted one that is not named as doubtful, a loss that is not told, a
damaged file that is not as it was, an output that is not sound.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.whole.saving import Cell, Counted, Rows, bundle_hash, candidates, count, rows_of
from tests.whole.to_be_wrecked import Wrecked


@dataclass(frozen=True)
class Rescued:
    """What came of a rescue: the report, the output where there is one, and what was counted, by table."""

    code: int
    report: dict[str, Any]
    output: Path | None
    counted: dict[str, Counted] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    @property
    def unsure(self) -> frozenset[Cell]:
        """Of the messages that are wrong, those that the report names as doubtful or cut."""
        ranges = [run for table in _tables(self.report, "messages") for run in _unsure(table)]
        wrong = self.counted["messages"].wrong
        return frozenset(
            key for key in wrong if isinstance(key, int) and any(low <= key <= high for low, high in ranges)
        )

    @property
    def sure_but_wrong(self) -> frozenset[Cell]:
        """The messages that are wrong, and of which the report says nothing."""
        return self.counted["messages"].wrong - self.unsure

    def untold(self, keys: Set[Cell]) -> frozenset[Cell]:
        """Of the messages that were there, those that are lost without a word: in no range that the report tells of."""
        gone = keys - self.counted["messages"].intact - self.unsure
        tables = _tables(self.report, "messages")
        if any(table["failed"] or table["more_lost"] for table in tables):
            return frozenset()
        ranges = [(each["low"], each["high"]) for table in tables for each in table["lost"]]
        return frozenset(
            key
            for key in gone
            if not isinstance(key, int)
            or not any((low is None or low <= key) and (high is None or key <= high) for low, high in ranges)
        )


def before_of(wrecked: Wrecked) -> dict[str, Rows]:
    """The rows that were there before the damage, by table."""
    found = {table: rows_of(wrecked.before, table) for table in ("messages", "sessions")}
    return {table: rows for table, rows in found.items() if rows is not None}


def judged(
    wrecked: Wrecked,
    before: Mapping[str, Rows],
    deleted: frozenset[Cell],
    hashes: Mapping[str, str],
    code: int,
    out: str,
    output: Path,
) -> Rescued:
    """Judge one rescue. ``hashes``: the damaged bundle's before it; ``deleted``: messages that had been deleted."""
    report: dict[str, Any] = json.loads(out) if out.startswith("{") else {}
    made = output if output.exists() else None
    counted = {table: count(rows, candidates(rows, made)) for table, rows in before.items()}
    rescued = Rescued(code, report, made, counted)
    rescued.faults.extend(_faults(wrecked, rescued, before["messages"].keys, deleted, hashes, output))
    return rescued


def _faults(
    wrecked: Wrecked,
    rescued: Rescued,
    keys: Set[Cell],
    deleted: frozenset[Cell],
    hashes: Mapping[str, str],
    output: Path,
) -> Iterator[str]:
    if bundle_hash(wrecked.damaged) != hashes:
        yield "the damaged file, or what lies beside it, is not as it was"
    if not rescued.report:
        yield f"no report (exit code {rescued.code})"
        return
    if rescued.code not in (0, 1, 4) or rescued.report["exit_code"] != rescued.code:
        yield f"exit code {rescued.code}, and {rescued.report['exit_code']} in the report: {rescued.report['reason']}"
    if (rescued.output is not None) != (rescued.code in (0, 1)):
        yield f"exit code {rescued.code}, and {'an' if rescued.output else 'no'} output"
    messages = rescued.counted["messages"]
    if wrong := rescued.sure_but_wrong:
        yield f"{len(wrong)} messages are wrong and not named: {_some(wrong)}"
    if risen := messages.risen(deleted) - rescued.unsure:
        yield f"{len(risen)} deleted messages are there and not named: {_some(risen)}"
    if rescued.code in (0, 1) and (untold := rescued.untold(keys)):
        yield f"{len(untold)} messages are lost and in no range that is told: {_some(untold)}"
    if rescued.code == 0 and (len(messages.intact) < messages.rows or messages.wrong):
        yield f"it says that all was saved, and {messages.rows - len(messages.intact)} messages are not"
    if rescued.output is not None:
        beside = sorted(path.name for path in output.parent.iterdir())
        if beside != [output.name]:
            yield f"beside the output lie {beside}"
        if output.stat().st_mode & 0o777 != 0o600:
            yield f"the output has the mode {output.stat().st_mode & 0o777:o}"


def whole_chats(before: Rows, rescued: Rescued) -> set[str]:
    """The sessions that hold messages, each of which was saved."""
    chat = before.columns.index("session_id")
    lost = before.keys - rescued.counted["messages"].intact
    short = {before.rows[key][chat] for key in lost}
    names = {row[chat] for row in before.rows.values()} - short
    return {name[1].decode() for name in names if isinstance(name, tuple)}


def unsound(scan: Mapping[str, Any]) -> list[str]:
    """What a scan of the output must not say; ``scan``: the database of its report."""
    never = ("file-damage", "search-index", "orphan-messages")
    found = sorted({finding["check"] for finding in scan["findings"] if finding["check"] in never})
    faults = [f"a scan of the output finds {check}" for check in found]
    if scan["condition"] != "readable":
        faults.append(f"a scan calls the output {scan['condition']}: {scan['reason']}")
    return faults


def _tables(report: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    return [table for table in report.get("tables", ()) if table["name"] == name]


def _unsure(table: Mapping[str, Any]) -> Iterator[tuple[int, int]]:
    yield from (*table["doubtful"], *table["cut_rows"])


def _some(keys: frozenset[Cell]) -> str:
    return ", ".join(str(key) for key in sorted(keys, key=str)[:5])
