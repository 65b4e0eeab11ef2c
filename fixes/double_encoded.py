"""Take JSON out of the strings around it.

Each column that comes to its list or object gets that text, character by character; a column that does not is left.
Nothing else of the row is named. `tool_calls` is indexed for search, and the store's own triggers keep the index.

A row is refused whose text holds a NUL (pictures and other structured contents, all releases) where a trigger would put
it into the trigram index anew: older versions of SQLite stop at the NUL and newer ones go on behind it, so that
hermes's own could no longer take the row out of the index.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from hermes_doctor.engine.cure import Fix, FixRefusedError, Mending, Phase, RowMovedError
from hermes_doctor.engine.model import Finding
from hermes_doctor.store.nested_json import GOALS, Unwrapped, unwrap_cells
from hermes_doctor.store.shape import Shape

#: When an update of a message fires a trigger: of these columns, or (no list) of any.
_UPDATES = re.compile(r"\bUPDATE(?:\s+OF\s+(?P<columns>.+?))?\s+ON\s+[\"'`\[]?messages\b", re.IGNORECASE | re.DOTALL)

_HOLDS_NUL = """
SELECT 1 FROM messages
 WHERE id = ? AND (instr({content}, char(0)) OR instr({tool_name}, char(0)) OR instr({tool_calls}, char(0)))
"""


def _mend(mending: Mending, finding: Finding) -> None:
    view = mending.view
    columns = [column for column in GOALS if view.shape.has("messages", column)]
    listed = ", ".join(view.shape.column("messages", column) for column in columns)
    cells = view.reader.row(f"SELECT {listed} FROM messages WHERE id = ?", (_row_id(finding),))
    row = dict(zip(columns, cells or (), strict=bool(cells)))
    good = {name: found for name, found in unwrap_cells(row).items() if isinstance(found, Unwrapped)}
    if not good:
        raise RowMovedError("no column of the message is wrapped any more")
    if _goes_into_trigrams(view.shape, good):
        texts = {name: view.shape.column("messages", name) for name in ("content", "tool_name", "tool_calls")}
        if view.rows(_HOLDS_NUL.format(**texts), (_row_id(finding),)):
            raise FixRefusedError("its text holds a NUL, on which hermes's search index and ours do not agree")
    mending.set(
        "messages",
        finding.key,
        to={name: found.value_text for name, found in good.items()},
        expects={name: row[name] for name in good},
    )


def _goes_into_trigrams(shape: Shape, columns: Collection[str]) -> bool:
    """Whether updating these columns makes a trigger write to the trigram index."""
    for sql in shape.triggers.values():
        fired = _UPDATES.search(sql) if "messages_fts_trigram" in sql else None
        if fired is None:
            continue
        named = fired["columns"]
        if named is None or not {name.strip(" \t\n\"'`[]").lower() for name in named.split(",")}.isdisjoint(columns):
            return True
    return False


def _row_id(finding: Finding) -> int:
    if not isinstance(finding.key, int):
        raise FixRefusedError("the message has no whole number for a key")
    return finding.key


FIX = Fix(check="double-encoded", phase=Phase.RESTORE, uses_clock=False, page=__doc__ or "", mend=_mend)
