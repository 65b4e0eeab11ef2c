"""Mend the lineage of a session: detach it from a parent that is none, or let a closed conversation go on.

A parent that was closed for a continuation that is not there is opened again where it is in use, and else gets a
reason that lets it take messages. A continuation that never held anything is deleted first, in the same transaction.

Beside a living hermes (--live)
Safe, but for that deletion: a hermes at its prompt may have the empty session in memory, and its first message would
find no row. Parents are written once, when a session is made; a chat that is opened again, or ended otherwise, takes
the next message of a hermes that has it in memory, which before was refused.
"""

from __future__ import annotations

from hermes_doctor.engine.cure import Fix, FixRefusedError, Mending, Phase
from hermes_doctor.engine.model import Finding
from hermes_doctor.store.lineage import COMPRESSION, ORPHAN_REAP
from hermes_doctor.store.lineage_faults import Kind

_DETACH_FROM_ITSELF = """
UPDATE sessions SET parent_session_id = NULL
 WHERE id = CAST(:session AS TEXT) AND parent_session_id = id
"""

_DETACH_FROM_MISSING = """
UPDATE sessions SET parent_session_id = NULL
 WHERE id = CAST(:session AS TEXT)
   AND parent_session_id IS NOT NULL
   AND NOT EXISTS (SELECT 1 FROM sessions AS parent WHERE parent.id = sessions.parent_session_id)
"""

_REOPEN = """
UPDATE sessions SET ended_at = NULL, end_reason = NULL
 WHERE id = CAST(:session AS TEXT) AND end_reason = :compression
"""

_MAKE_WRITABLE = """
UPDATE sessions SET ended_at = :now, end_reason = :reason
 WHERE id = CAST(:session AS TEXT) AND end_reason = :compression
"""

_DELETE_EMPTY = """
DELETE FROM sessions
 WHERE id = CAST(:empty AS TEXT)
   AND parent_session_id = CAST(:session AS TEXT)
   AND NOT EXISTS (SELECT 1 FROM messages WHERE session_id = sessions.id)
   AND NOT EXISTS (SELECT 1 FROM sessions AS child WHERE child.parent_session_id = sessions.id)
"""


def _mend(mending: Mending, finding: Finding) -> None:
    session = mending.single(finding.key)
    match finding.detail.get("kind"):
        case Kind.OWN_PARENT:
            mending.run(_DETACH_FROM_ITSELF, {"session": session})
        case Kind.MISSING_PARENT:
            mending.run(_DETACH_FROM_MISSING, {"session": session})
        case Kind.EMPTY_CONTINUATION:
            mending.run(_DELETE_EMPTY, {"empty": str(finding.detail["empty"]), "session": session})
            _let_go_on(mending, finding)
        case Kind.CLOSED:
            _let_go_on(mending, finding)
        case other:
            raise FixRefusedError(f"{other} is only reported")


def _let_go_on(mending: Mending, finding: Finding) -> None:
    values = {"session": mending.single(finding.key), "compression": COMPRESSION}
    if finding.detail.get("reopen"):
        mending.run(_REOPEN, values)
    else:
        mending.run(_MAKE_WRITABLE, {**values, "now": mending.view.now, "reason": ORPHAN_REAP})


def _live(finding: Finding) -> bool:
    return finding.detail.get("kind") != Kind.EMPTY_CONTINUATION


FIX = Fix(check="lineage-gaps", phase=Phase.LINEAGE, uses_clock=True, page=__doc__ or "", mend=_mend, live=_live)
