"""Forgetting old runs by itself: journals hold private text, and they grow."""

from __future__ import annotations

from hermes_doctor.engine.journal import Journal
from hermes_doctor.store.clocks import DAY

#: How long a run can be undone, in seconds.
KEPT_SECONDS = 90 * DAY
#: How many bytes of changesets the journal of a store keeps.
KEPT_BYTES = 2 << 30


def forget_old_runs(
    journal: Journal, now: float, *, spare: str | None = None, most_bytes: int = KEPT_BYTES
) -> list[str]:
    """Forget the runs that are too old, then the oldest until the rest fits; return their names, oldest first.

    ``spare``: a run that is kept however large it is, the one that has just been made. Receipts stay.
    """
    kept = [run for run in reversed(journal.runs()) if run.forgotten_at is None]
    held = journal.changeset_bytes_by_run()
    total = sum(held.values())
    forgotten: list[str] = []
    for run in kept:
        if run.run != spare and (run.at < now - KEPT_SECONDS or total > most_bytes):
            forgotten.append(run.run)
            total -= held.get(run.run, 0)
    if forgotten:
        journal.forget(*forgotten)
    return forgotten
