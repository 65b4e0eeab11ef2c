"""Delete a delivered delegation that is past hermes's own retention.

Only one that is still delivered, that is not under way, and that nobody has touched since it was found.

Beside a living hermes (--live)
No: hermes keeps delegations in memory too, and 0.22.2 may deliver one again.
"""

from __future__ import annotations

from hermes_doctor.engine.cure import Fix, FixRefusedError, Mending, Phase
from hermes_doctor.engine.model import Finding

_DELETE = """
DELETE FROM async_delegations
 WHERE delegation_id = CAST(:key AS TEXT)
   AND delivery_state = 'delivered'
   AND state NOT IN ('running', 'finalizing')
   AND updated_at = :updated
"""


def _mend(mending: Mending, finding: Finding) -> None:
    updated = finding.detail["updated_at"]
    if not isinstance(updated, float):
        raise FixRefusedError("nothing says when it was last changed")
    mending.run(_DELETE, {"key": mending.single(finding.key), "updated": updated})


FIX = Fix(check="stuck-delegations", phase=Phase.LOCKS, uses_clock=True, page=__doc__ or "", mend=_mend)
