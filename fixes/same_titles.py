"""Number a title that another session has.

The title gets the number that was found free in the same transaction, and nothing else of the row is named. The
session that keeps the title is not touched, and the index is the release's to make.

Beside a living hermes (--live)
No: hermes shows and writes titles from what it has in memory.
"""

from __future__ import annotations

from hermes_doctor.engine.cure import Fix, FixRefusedError, Mending, Phase
from hermes_doctor.engine.model import Finding
from hermes_doctor.store.titles import base_of

_RENAME = """
UPDATE sessions SET title = :new
 WHERE id = CAST(:session AS TEXT)
   AND title = :old
   AND EXISTS (SELECT 1 FROM sessions AS other WHERE other.title = :old AND other.id IS NOT sessions.id)
   AND NOT EXISTS (SELECT 1 FROM sessions AS other WHERE other.title = :new)
"""


def _mend(mending: Mending, finding: Finding) -> None:
    session = mending.single(finding.key)
    old = mending.view.reader.value("SELECT title FROM sessions WHERE id = CAST(? AS TEXT)", (session,))
    number = finding.detail.get("number")
    if not isinstance(old, str) or not isinstance(number, int):
        raise FixRefusedError("its title is no text that could be numbered")
    mending.run(_RENAME, {"session": session, "old": old, "new": f"{base_of(old)} #{number}"})


FIX = Fix(check="same-titles", phase=Phase.LINEAGE, uses_clock=False, page=__doc__ or "", mend=_mend)
