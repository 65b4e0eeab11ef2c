"""Open a chat again that was ended by accident: clear the end and its reason, as long as they are the same.

Nothing else is written: routes, handoff and messages stay as they are.

Beside a living hermes (--live)
No: whoever runs the chat at that moment may be about to end it, or to go on in another session.
"""

from __future__ import annotations

from hermes_doctor.engine.cure import Fix, FixRefusedError, Mending, Phase
from hermes_doctor.engine.model import Finding


def _mend(mending: Mending, finding: Finding) -> None:
    ended, reason = finding.detail.get("ended_at"), finding.detail.get("end_reason")
    if not isinstance(ended, int | float) or not isinstance(reason, str):
        raise FixRefusedError("its end is not known")
    mending.set(
        "sessions",
        finding.key,
        to={"ended_at": None, "end_reason": None},
        expects={"ended_at": ended, "end_reason": reason},
    )


FIX = Fix(check="wrongly-ended", phase=Phase.LINEAGE, uses_clock=False, page=__doc__ or "", mend=_mend)
