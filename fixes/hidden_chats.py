"""Take the mark of an upgrade off a chat, so that it is listed again.

The mark is cut out of the text of `model_config`; no other character of it changes. Messages of a marked session are
not in the trigram index of 0.21.5 on: they are put in, in the same transaction.

Beside a living hermes (--live)
No: hermes reads `model_config`, changes it and writes the whole of it back; and moving a chat's messages into the
index holds the store for too long.
"""

from __future__ import annotations

import apsw

from hermes_doctor.engine.cure import Fix, FixRefusedError, Mending, Phase
from hermes_doctor.engine.model import Finding
from hermes_doctor.store.hidden_chats import without_mark
from hermes_doctor.store.search_index import kept_in_step


def _mend(mending: Mending, finding: Finding) -> None:
    session = mending.single(finding.key)
    old = mending.view.reader.value("SELECT model_config FROM sessions WHERE id = CAST(? AS TEXT)", (session,))
    new = without_mark(old) if isinstance(old, str) else None
    if new is None:
        raise FixRefusedError("the mark is not to be found in the text of its model_config")
    # Hermes writes no empty object: NULL is what it fills in later, and what was there before the mark.
    cell = None if new.strip().replace(" ", "") == "{}" else new
    try:
        with kept_in_step(mending.connection, mending.view, [session]):
            mending.set("sessions", session, to={"model_config": cell}, expects={"model_config": old})
    except apsw.SQLError as error:
        raise FixRefusedError(f"the search index cannot be kept in step on this machine ({error})") from error


FIX = Fix(check="hidden-chats", phase=Phase.LINEAGE, uses_clock=False, page=__doc__ or "", mend=_mend, reindexes=True)
