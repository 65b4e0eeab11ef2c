"""Fail a handoff that nobody will carry out.

What hermes's own waiting command does when it gives up: the state is `failed`, and the reason stands beside it. The
session may then be handed off again, in every release.

Beside a living hermes (--live)
No: while somebody has the store open a handoff may be under way, so there is no finding.
"""

from __future__ import annotations

from hermes_doctor.engine.cure import Fix, Mending, Phase
from hermes_doctor.engine.model import Finding

#: At most 500 characters, as every release cuts them.
_REASONS = {
    "pending": "no gateway picked it up before hermes was closed",
    "running": "the gateway stopped before the handoff was done; it may have been delivered",
}


def _mend(mending: Mending, finding: Finding) -> None:
    state = str(finding.detail["handoff_state"])
    told = {"handoff_error": _REASONS[state]} if mending.view.shape.has("sessions", "handoff_error") else {}
    mending.set("sessions", finding.key, to={"handoff_state": "failed", **told}, expects={"handoff_state": state})


FIX = Fix(check="stale-handoffs", phase=Phase.LOCKS, uses_clock=True, page=__doc__ or "", mend=_mend)
