"""Bring the search index back in step with the messages, entry by entry or, where that cannot be, as a whole.

Entries are put in and taken out a range of messages at a time; where they cannot be taken out one by one, or searching
fails, FTS5 makes the index anew from its texts, under hermes's own `fts_rebuild.lock`. In the same transaction it is
compared again and searched, and a message is stored, found and deleted, which is taken back; if any of that fails,
nothing is changed.

There is nothing to take back afterwards: the messages are as they were, and `doctor undo` leaves the index as it is.

Beside a living hermes (--live)
No: an index is compared and mended as a whole, for longer than anybody should wait.
"""

from __future__ import annotations

from hermes_doctor.engine.cure import Fix, FixRefusedError, Mending, Phase
from hermes_doctor.engine.model import Finding
from hermes_doctor.store.index_faults import Trouble, index_faults_again
from hermes_doctor.store.index_mending import NotMendedError, mend_range, rebuild


def _mend(mending: Mending, finding: Finding) -> None:
    for fault in index_faults_again(mending.view, [mending.single(finding.key)]):
        try:
            if fault.trouble is Trouble.DRIFT:
                mend_range(mending.connection, mending.view, fault)
            else:
                rebuild(mending.connection, mending.view, fault.state)
        except NotMendedError as error:
            raise FixRefusedError(str(error)) from error


FIX = Fix(
    check="search-index",
    phase=Phase.INDEX,
    uses_clock=False,
    page=__doc__ or "",
    mend=_mend,
    reindexes=True,
    derived=True,
)
