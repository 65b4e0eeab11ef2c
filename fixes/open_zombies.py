"""End a session that nobody will end.

The reason is `startup_orphan_reap` and the time is now, in every release: resuming such a session opens it again, and
releases from 0.21 on count its age from this end.

Beside a living hermes (--live)
Safe: where somebody has the store open the check waits a day at least and leaves terminals alone. A hermes that had
the session all the same goes on writing to it, since only an end by compression stops it, and from 0.21 on clears
such an end; 0.20.6 on end sessions in this way themselves beside others that run.
"""

from __future__ import annotations

from hermes_doctor.engine.cure import Fix, Mending, Phase, always_live
from hermes_doctor.engine.model import Finding
from hermes_doctor.store.lineage import ORPHAN_REAP

#: A row that carries a reason without an end is open too; the reason that it got first is upstream's to keep.
_END = """
UPDATE sessions
   SET ended_at = :now, end_reason = coalesce(end_reason, :reason)
 WHERE id = CAST(:session AS TEXT) AND ended_at IS NULL
"""


def _mend(mending: Mending, finding: Finding) -> None:
    mending.run(_END, {"now": mending.view.now, "reason": ORPHAN_REAP, "session": mending.single(finding.key)})


FIX = Fix(check="open-zombies", phase=Phase.END, uses_clock=True, page=__doc__ or "", mend=_mend, live=always_live)
