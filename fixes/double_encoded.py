"""Take JSON out of the strings around it.

Each column that comes to its list or object gets that text, character by character; a column that does not is left.
Nothing else of the row is named. `tool_calls` is indexed for search, and the store's own triggers keep the index.

A row is refused whose text holds a NUL (pictures and other structured contents, all releases) where a trigger would put
it into the trigram index anew: older versions of SQLite stop at the NUL and newer ones go on behind it, so that
hermes's own could no longer take the row out of the index.

Beside a living hermes (--live)
Safe: the value stays the same. A hermes that has the chat in memory has it as it read it, and may write that again
with a whole transcript; then the fault is back, and nothing else has happened.
"""

from __future__ import annotations

from hermes_doctor.engine.cure import Fix, FixRefusedError, Mending, Phase, RowMovedError, always_live
from hermes_doctor.engine.model import Finding
from hermes_doctor.store.nested_json import GOALS, Unwrapped, unwrap_cells
from hermes_doctor.store.nul_texts import NUL_REASON, indexed_with_nul
from hermes_doctor.store.view import StoreView


def _mend(mending: Mending, finding: Finding) -> None:
    view = mending.view
    columns, question = view.once(_cells_of_a_row)
    cells = view.reader.row(question, (_row_id(finding),))
    row = dict(zip(columns, cells or (), strict=bool(cells)))
    good = {name: found for name, found in unwrap_cells(row).items() if isinstance(found, Unwrapped)}
    if not good:
        raise RowMovedError("no column of the message is wrapped any more")
    if indexed_with_nul(view, [_row_id(finding)], good):
        raise FixRefusedError(NUL_REASON)
    mending.set(
        "messages",
        finding.key,
        to={name: found.value_text for name, found in good.items()},
        expects={name: row[name] for name in good},
    )


def _cells_of_a_row(view: StoreView) -> tuple[list[str], str]:
    """Return the JSON columns that the store has, and the query for what they hold in a row."""
    columns = [column for column in GOALS if view.shape.has("messages", column)]
    listed = ", ".join(view.shape.column("messages", column) for column in columns)
    return columns, f"SELECT {listed} FROM messages WHERE id = ?"


def _row_id(finding: Finding) -> int:
    if not isinstance(finding.key, int):
        raise FixRefusedError("the message has no whole number for a key")
    return finding.key


FIX = Fix(
    check="double-encoded", phase=Phase.RESTORE, uses_clock=False, page=__doc__ or "", mend=_mend, live=always_live
)
