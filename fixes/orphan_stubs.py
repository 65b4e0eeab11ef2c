"""Delete a session that never held anything.

The row alone goes: that nothing belongs to it or refers to it was found in the same transaction, and a foreign key
that says otherwise stops the deletion.

Beside a living hermes (--live)
No: a hermes at its prompt may have the empty session in memory; its first message would find no row.
"""

from __future__ import annotations

from hermes_doctor.engine.cure import Fix, Mending, Phase
from hermes_doctor.engine.model import Finding

_DELETE = """
DELETE FROM sessions
 WHERE id = CAST(:session AS TEXT)
   AND NOT EXISTS (SELECT 1 FROM messages WHERE session_id = sessions.id)
   AND NOT EXISTS (SELECT 1 FROM sessions AS child WHERE child.parent_session_id = sessions.id)
"""


def _mend(mending: Mending, finding: Finding) -> None:
    mending.run(_DELETE, {"session": mending.single(finding.key)})


FIX = Fix(check="orphan-stubs", phase=Phase.TAKE, uses_clock=True, page=__doc__ or "", mend=_mend)
