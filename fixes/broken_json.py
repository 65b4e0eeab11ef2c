"""Take a `model_config` that is no JSON away, so that the lists of sessions work again.

NULL is what hermes itself leaves where it has nothing to put there. The cell is compared with what was read, so that
nothing is lost that was not seen; the journal keeps it. Should the search index of 0.21.5 on see the session's
messages otherwise than before, they are moved in the same transaction.

Beside a living hermes (--live)
No: hermes reads `model_config`, changes it and writes the whole of it back.
"""

from __future__ import annotations

import apsw

from hermes_doctor.engine.cure import Fix, FixRefusedError, Mending, Phase
from hermes_doctor.engine.model import Finding
from hermes_doctor.store.json_cells import Fault, broken_config
from hermes_doctor.store.reader import in_keys
from hermes_doctor.store.search_index import kept_in_step


def _mend(mending: Mending, finding: Finding) -> None:
    if finding.table != "sessions":
        raise FixRefusedError(f"a row of {finding.table} is only reported")
    session = mending.single(finding.key)
    among, cells = in_keys("id", [session])
    old = mending.view.reader.value(f"SELECT model_config FROM sessions WHERE {among}", cells)
    broken = broken_config(mending.view, old, child=False)
    if broken is None or broken.fault is not Fault.NO_JSON:
        raise FixRefusedError("its model_config is JSON by now")
    try:
        with kept_in_step(mending.connection, mending.view, [session]):
            mending.set("sessions", session, to={"model_config": None}, expects={"model_config": old})
    except apsw.SQLError as error:
        raise FixRefusedError(f"the search index cannot be kept in step on this machine ({error})") from error


FIX = Fix(check="broken-json", phase=Phase.LINEAGE, uses_clock=False, page=__doc__ or "", mend=_mend, reindexes=True)
