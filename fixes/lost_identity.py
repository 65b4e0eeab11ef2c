"""Give a continuation what its parent has and it lacks.

Only columns that are NULL are written, and only while all of them still are and the parent is the same. The values
are read in the same transaction, by the rule that found them missing.

Beside a living hermes (--live)
No: the gateway writes the routing of a session itself, from what it has in memory.
"""

from __future__ import annotations

from hermes_doctor.engine.cure import Fix, FixRefusedError, Mending, Phase
from hermes_doctor.engine.model import Finding
from hermes_doctor.store.identity import losses


def _mend(mending: Mending, finding: Finding) -> None:
    session = mending.single(finding.key)
    lost = next(losses(mending.view, [session]), None)
    if lost is None or not lost.values:
        raise FixRefusedError("there is nothing that it could be given")
    parent = mending.single(lost.parent)
    expected = {"parent_session_id": parent, **dict.fromkeys(lost.columns)}
    mending.set("sessions", session, to=dict(lost.values), expects=expected)


FIX = Fix(check="lost-identity", phase=Phase.LINEAGE, uses_clock=False, page=__doc__ or "", mend=_mend)
