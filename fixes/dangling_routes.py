"""Delete usage that was counted for a session which is gone.

One row a finding, found by its whole key; the WHERE asks once more that there is neither the session nor a message of
it. Routes, bindings and delegations are only reported.

Beside a living hermes (--live)
No: a hermes that still has the lost session in memory counts usage for it, and whether one has cannot be told of a
session without a row.
"""

from __future__ import annotations

from hermes_doctor.engine.cure import Fix, FixRefusedError, Mending, Phase
from hermes_doctor.engine.model import Finding
from hermes_doctor.store.cells import BadText, Cell, quote
from hermes_doctor.store.orphans import USAGE

#: {key} names the row by the columns of the key that this store has.
_DELETE = """
DELETE FROM session_model_usage
 WHERE {key}
   AND NOT EXISTS (SELECT 1 FROM sessions WHERE sessions.id = session_model_usage.session_id)
   AND NOT EXISTS (SELECT 1 FROM messages WHERE messages.session_id = session_model_usage.session_id)
"""


def _mend(mending: Mending, finding: Finding) -> None:
    if finding.table != USAGE.table:
        raise FixRefusedError(f"a row of {finding.table} is only reported")
    columns = mending.primary_key(USAGE.table)
    parts = finding.key if isinstance(finding.key, tuple) else (finding.key,)
    values: dict[str, Cell] = {f"part{n}": part for n, part in enumerate(parts)}
    equal = [
        f"{quote(column)} IS {f'CAST(:{name} AS TEXT)' if isinstance(part, BadText) else f':{name}'}"
        for column, (name, part) in zip(columns, values.items(), strict=True)
    ]
    mending.run(_DELETE.format(key=" AND ".join(equal)), values)


FIX = Fix(check="dangling-routes", phase=Phase.TAKE, uses_clock=False, page=__doc__ or "", mend=_mend)
