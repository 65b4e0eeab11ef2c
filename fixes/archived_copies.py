"""Mark archived copies of live messages as superseded: `compacted` becomes 0, as 0.21.5 and newer write such rows.

Nothing else of them is named. The store's own triggers move the display order of what stays visible (0.21.5 on).

Beside a living hermes (--live)
No: a hermes that shows the chat at that moment may rely on which rows are visible, and in which order.
"""

from __future__ import annotations

import json

from hermes_doctor.engine.cure import Fix, Mending, Phase, RowMovedError
from hermes_doctor.engine.model import Finding
from hermes_doctor.store.archived_copies import archived_copies


def _mend(mending: Mending, finding: Finding) -> None:
    copies = next(archived_copies(mending.view, [finding.key]), None)
    if copies is None:
        raise RowMovedError("no live message is the same any more")
    mending.run(
        "UPDATE messages SET compacted = 0"
        " WHERE active = 0 AND compacted = 1 AND id IN (SELECT value FROM json_each(:ids))",
        {"ids": json.dumps(copies.ids)},
        rows=len(copies.ids),
    )


FIX = Fix(check="archived-copies", phase=Phase.HIDE, uses_clock=False, page=__doc__ or "", mend=_mend)
