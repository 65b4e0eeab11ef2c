"""`doctor compact --json` (schemas/compact.json)."""

from __future__ import annotations

from hermes_doctor.engine.compact import StoreCompact
from hermes_doctor.report.changes_json import ChangesJson
from hermes_doctor.report.document import dump
from hermes_doctor.store.compaction import Extent


class CompactJson(ChangesJson):
    """`doctor compact --json`."""

    format = "hermes-doctor.compact"

    def store(self, result: StoreCompact) -> None:
        """Write one store."""
        verified = result.verified
        database = {
            "path": result.ref.path,
            "home": result.ref.home,
            "profile": result.ref.profile,
            "condition": result.scan.condition.value,
            "journal_mode": result.scan.journal_mode,
            "would_be_refused": result.would_be_refused,
            "reason": result.reason,
            "before": _extent(result.before),
            "after": _extent(result.after),
            "gives_back_at_least": result.gives_back,
            "gave_back": result.gave_back,
            "room": [{"folder": room.folder, "needed": room.needed, "free": room.free} for room in result.rooms],
            "verified": None if verified is None else {"tables": verified.tables, "rows": verified.rows},
            "outcome": result.outcome,
            "exit_code": int(result.exit_code),
        }
        self._next_store()
        self._write(dump(database))


def _extent(extent: Extent | None) -> dict[str, int] | None:
    if extent is None:
        return None
    return {
        "bytes": extent.bytes,
        "file_bytes": extent.file_bytes,
        "log_bytes": extent.log_bytes,
        "page_size": extent.page_size,
        "pages": extent.pages,
        "free_pages": extent.free_pages,
        "free_bytes": extent.free_bytes,
    }
