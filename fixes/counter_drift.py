"""Recount what a session counts wrongly: its active rows, and the entries of their tool calls.

A counter that the rows explain is left as it is. It comes after whatever changes rows, and before whatever ends or
deletes a session.

Beside a living hermes (--live)
Safe: hermes adds to the counters in SQL, or sets them to what it counts there; it keeps no copy.
"""

from __future__ import annotations

from hermes_doctor.engine.cure import Fix, Mending, Phase, always_live
from hermes_doctor.engine.model import Finding
from hermes_doctor.store.counters import drifts


def _mend(mending: Mending, finding: Finding) -> None:
    for drift in drifts(mending.view, [mending.single(finding.key)]):
        mending.set(
            "sessions",
            finding.key,
            to={each.column: each.explained.right for each in drift.miscounts},
            expects={each.column: each.holds for each in drift.miscounts},
        )


FIX = Fix(check="counter-drift", phase=Phase.COUNT, uses_clock=False, page=__doc__ or "", mend=_mend, live=always_live)
