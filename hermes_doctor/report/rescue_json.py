"""`doctor rescue --json` (schemas/rescue.json)."""

from __future__ import annotations

import json

from hermes_doctor.report.document import plain
from hermes_doctor.report.json import run_head
from hermes_doctor.report.model import RunStart
from hermes_doctor.rescue.account import LostRange, Rescue, Source, TableAccount

FORMAT = "hermes-doctor.rescue"


def rescue_json(result: Rescue, start: RunStart) -> str:
    """Return the account of one rescue."""
    document = {
        **run_head(start, FORMAT, 1),
        "store": {
            "path": result.ref.path,
            "home": result.ref.home,
            "profile": result.ref.profile,
            "condition": None if result.condition is None else result.condition.value,
            "schema_version": result.schema_version,
            "bytes": result.bytes,
        },
        "output": result.output,
        "inspect_only": result.inspect_only,
        "tables": [_table(table) for table in result.tables],
        "sessions_given": result.sessions_given,
        "chats_short": result.chats_short,
        "messages_missing": result.messages_missing,
        "index_rebuilt": result.index_rebuilt,
        "verified": result.verified,
        "notes": result.notes,
        "reason": result.reason,
        "next_step": result.next_step,
        "seconds": round(result.seconds, 3),
        "outcome": result.outcome,
        "exit_code": int(result.exit_code),
    }
    return json.dumps(plain(document), indent=1, ensure_ascii=True, allow_nan=False) + "\n"


def _table(table: TableAccount) -> dict[str, object]:
    return {
        "name": table.name,
        "read_by": table.read_by,
        "saved": {source.value: table.saved.get(source, 0) for source in Source},
        "rows": table.rows,
        "cut": table.cut,
        "left_out": table.left_out,
        "lost": [_lost(each) for each in table.lost],
        "more_lost": table.more_lost,
        "doubtful": table.doubtful,
        "cut_rows": table.cut_rows,
        "ambiguous_pages": table.ambiguous_pages,
        "failed": table.failed,
    }


def _lost(lost: LostRange) -> dict[str, object]:
    return {"low": lost.low, "high": lost.high, "page": lost.page, "why": lost.why}
