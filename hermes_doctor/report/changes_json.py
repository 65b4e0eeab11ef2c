"""`doctor fix --json` and `doctor undo --json` (schemas/fix.json, schemas/undo.json)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import TextIO

from hermes_doctor.engine.plan import StoreFix
from hermes_doctor.engine.transaction import DONE, Change
from hermes_doctor.engine.undo import RESTORED, StoreUndo
from hermes_doctor.report.changes_model import ChangesEnd, ChangesStart
from hermes_doctor.report.document import dump, opened
from hermes_doctor.report.json import run_head
from hermes_doctor.store.cells import json_key

FIX_FORMAT, UNDO_FORMAT = "hermes-doctor.fix", "hermes-doctor.undo"
FORMAT_VERSION = 1


class ChangesJson:
    """One document, complete as soon as `end` has been called; stores, and changes, are written one by one."""

    format = ""

    def __init__(self, stream: TextIO) -> None:
        self._write = stream.write
        self._stores = 0

    def begin(self, start: ChangesStart) -> None:
        """Write the head of the document."""
        head = {**run_head(start, self.format, FORMAT_VERSION), "applied": start.applied}
        self._write(f'{opened(head)}, "databases": [')

    def end(self, end: ChangesEnd) -> None:
        """Write the totals, which complete the document."""
        tail = {
            "not_reached": [str(path) for path in end.not_reached],
            "seconds": round(end.seconds, 3),
            "outcome": end.outcome,
            "exit_code": int(end.exit_code),
        }
        self._write(f"],\n {dump(tail)[1:]}\n")

    def _next_store(self) -> None:
        self._write(",\n " if self._stores else "\n ")
        self._stores += 1

    def _database(self, head: Mapping[str, object], changes: Iterable[Change], tail: Mapping[str, object]) -> None:
        self._next_store()
        self._write(f'{opened(head)}, "changes": [')
        separator = "\n  "
        for change in changes:
            self._write(separator + dump(_change(change)))
            separator = ",\n  "
        self._write(f"], {dump(tail)[1:]}")


class FixJson(ChangesJson):
    """`doctor fix --json`."""

    format = FIX_FORMAT

    def store(self, result: StoreFix) -> None:
        """Write one store: what stood in the way, its changes one by one, then what they came to."""
        backup, prune = result.backup_forecast, result.prune_forecast
        head = {
            **_head(result),
            "backup": result.backup,
            "backup_planned": None if backup is None else asdict(backup),
            "journal": result.journal if result.run else None,
            "prune_forecast": None if prune is None else asdict(prune),
            "live": result.live,
        }
        tail = {
            "transactions": result.transactions,
            "hold_seconds": _holds(result.holds),
            "found": len(result.scan.findings),
            "fixed": result.count(DONE),
            "left": result.still_found,
            "mendable": result.left,
            "left_to_hermes": result.left_to_hermes,
            "outcome": result.outcome,
            "exit_code": int(result.exit_code),
        }
        self._database(head, result.changes, tail)


class UndoJson(ChangesJson):
    """`doctor undo --json`."""

    format = UNDO_FORMAT

    def store(self, result: StoreUndo) -> None:
        """Write the store: what stood in the way, the rows one by one, then what they came to."""
        head = {
            **_head(result),
            "journal": result.journal,
        }
        restored = result.count(RESTORED)
        tail = {
            "transactions": result.transactions,
            "hold_seconds": _holds(result.holds),
            "found": len(result.changes),
            "fixed": restored,
            "left": len(result.changes) - restored,
            "outcome": result.outcome,
            "exit_code": int(result.exit_code),
        }
        self._database(head, result.changes, tail)


def _head(result: StoreFix | StoreUndo) -> dict[str, object]:
    return {
        "path": result.ref.path,
        "home": result.ref.home,
        "profile": result.ref.profile,
        "condition": result.scan.condition.value,
        "run": result.run,
        "would_be_refused": result.would_be_refused,
        "reason": result.reason,
    }


def _change(change: Change) -> dict[str, object]:
    return {
        "check": change.check,
        "table": change.table,
        "key": json_key(change.key),
        "action": change.action,
        "state": change.state,
        "reason": change.reason,
    }


def _holds(holds: Mapping[str, float]) -> dict[str, float] | None:
    return {name: round(seconds, 4) for name, seconds in holds.items()} or None
