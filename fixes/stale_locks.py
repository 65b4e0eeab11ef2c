"""Delete a compression lock or a turn lease that was left behind.

Only if it still ends when it did: one that was renewed, or that somebody else has taken since, has another end.

Beside a living hermes (--live)
Safe: it is expired, and hermes itself takes such a row over or deletes it, by its end as we do.
"""

from __future__ import annotations

from hermes_doctor.engine.cure import Fix, FixRefusedError, Mending, Phase, always_live
from hermes_doctor.engine.model import Finding

_DELETES = {
    "compression_locks": "DELETE FROM compression_locks WHERE session_id = CAST(:key AS TEXT) AND expires_at = :end",
    "session_turn_leases": (
        "DELETE FROM session_turn_leases WHERE conversation_id = CAST(:key AS TEXT) AND expires_at = :end"
    ),
}


def _mend(mending: Mending, finding: Finding) -> None:
    end = finding.detail["expires_at"]
    if not isinstance(end, float):
        raise FixRefusedError("its end is no time")
    mending.run(_DELETES[finding.table], {"key": mending.single(finding.key), "end": end})


FIX = Fix(check="stale-locks", phase=Phase.LOCKS, uses_clock=True, page=__doc__ or "", mend=_mend, live=always_live)
