"""Making what is not rows in the new file: indexes, search indexes, views and triggers, counters and settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

import apsw

from hermes_doctor.rescue.account import Rescue
from hermes_doctor.rescue.copying import Copy
from hermes_doctor.rescue.pages import HEADER_BYTES, Pages
from hermes_doctor.rescue.schema import SEQUENCE_FORM, Entry
from hermes_doctor.rescue.trees import TreeWalk
from hermes_doctor.rescue.writing import NewFile, is_unique


def finish(
    copy: Copy, new: NewFile, result: Rescue, entries: Sequence[Entry], counters: Mapping[str, int], *, wiped: bool
) -> None:
    """Make all but the rows and what is unique, which are there. ``wiped``: pages of the copy are.

    ``counters``: the highest rowids that were ever given. Raises apsw.Error and OSError.
    """
    of_kind: dict[str, list[Entry]] = {"index": [], "view": [], "trigger": []}
    for entry in entries:
        if entry.kind in of_kind and not (entry.kind == "index" and is_unique(entry)):
            of_kind[entry.kind].append(entry)
    failed = new.make(of_kind["index"])
    virtual = [entry for entry in entries if entry.is_virtual]
    failed |= new.make(virtual)
    failed |= new.make(of_kind["view"])
    source = None if wiped else copy.connection
    unfilled = [name for name in new.fill_indexes() if source is None or not new.copy_search(name, source)]
    failed |= new.make(of_kind["trigger"])
    result.index_rebuilt = bool(virtual) and not unfilled
    with suppress(apsw.SQLError):
        new.set_counters(counters)
    note_failed(result, failed)
    for name in unfilled:
        result.notes.append(f"The search index {name} could not be filled here: it is empty")
    header = copy.pages.page(1) if copy.header else bytes(HEADER_BYTES)
    new.settle(
        application_id=int.from_bytes(header[68:72], "big", signed=True),
        user_version=int.from_bytes(header[60:64], "big", signed=True),
        wal=header[18:20] == b"\x02\x02",
    )


def note_failed(result: Rescue, failed: Mapping[str, str]) -> None:
    """Tell what could not be made in the new file, by its name, and why."""
    for name, why in failed.items():
        result.notes.append(f"{name} could not be made again ({why})")


def counters_of(pages: Pages, entries: Sequence[Entry], tables: set[str]) -> dict[str, int]:
    """Return the highest rowids that were ever given in these tables, as far as SQLite's own table of them is left."""
    entry = next((entry for entry in entries if entry.name == SEQUENCE_FORM.table), None)
    if entry is None:
        return {}
    counters: dict[str, int] = {}
    for found in TreeWalk(pages, entry.root, SEQUENCE_FORM):
        for cell in found.cells:
            record = pages.record(found.page, cell)
            if record is not None and not record.is_cut:
                name, number = record.values
                if name in tables and isinstance(number, int):
                    counters[str(name)] = max(number, counters.get(str(name), number))
    return counters
