"""End a compressed session when its continuation began.

Its reason says that the conversation went on elsewhere, and where it did, the start says when. Nothing else is
written.

Beside a living hermes (--live)
Safe: hermes decides by the row at that moment whether a session has ended, and the end of a compressed one is written
once.
"""

from __future__ import annotations

from hermes_doctor.engine.cure import Fix, FixRefusedError, Mending, Phase, always_live
from hermes_doctor.engine.model import Finding
from hermes_doctor.store.lineage import COMPRESSION

#: An end that is there lies before the start: that is what is wrong with it.
_END = """
UPDATE sessions SET ended_at = :at
 WHERE id = CAST(:session AS TEXT)
   AND end_reason = :compression
   AND (ended_at IS NULL OR ended_at < started_at)
   AND started_at <= :at
"""


def _mend(mending: Mending, finding: Finding) -> None:
    at = finding.detail.get("ends_at")
    if not isinstance(at, int | float):
        raise FixRefusedError("when it ended does not follow from the rest")
    mending.run(_END, {"at": at, "session": mending.single(finding.key), "compression": COMPRESSION})


FIX = Fix(check="crossed-ends", phase=Phase.LINEAGE, uses_clock=True, page=__doc__ or "", mend=_mend, live=always_live)
