"""What upstream's own prune would do to a row once it is ended.

Prune deletes ended rows and never open ones, so ending a row can be what gets it deleted. By which clock a release
counts depends on the release (`SessionDB.prune_sessions`, read and run):

==============  ===========  ====================================================================================
release         schema       an ended row is deleted when it is older than the retention by ...
==============  ===========  ====================================================================================
0.13.0-0.19.0   11 to 22     its start
0.20.0, 0.20.6  25, 26       its newest message; its start where it has none
0.21.5, 0.22.2  30, 31       its last use; and where it ended as startup_orphan_reap, also by that end
==============  ===========  ====================================================================================

So from schema 30 on a row that is ended now is kept for a whole retention; before that it may go at the next start.
"""

from __future__ import annotations

from hermes_doctor.store.ages import Age
from hermes_doctor.store.clocks import DAY
from hermes_doctor.store.view import StoreView

#: Upstream's default, in days (``sessions.retention_days``).
DEFAULT_DAYS = 90.0

#: The last schema of a release that prunes by the start (0.19.0), and the first that prunes by messages (0.20.0).
_BY_START, _BY_MESSAGE = 22, 25
#: From here on a row ages from its end as startup_orphan_reap (first released in 0.21.5, with schema 30).
_FROM_CLOSE = 30


def retention(view: StoreView) -> float:
    """Return for how long this home keeps ended sessions, in seconds."""
    return (view.settings.retention_days or DEFAULT_DAYS) * DAY


def prune_is_off(view: StoreView) -> bool:
    """Whether this home's config was read and says that ended sessions are not pruned.

    What it does not say is not trusted to stay off: the default has changed between builds (upstream 101316).
    """
    return view.settings.read and view.settings.auto_prune is False


def prune_clock(view: StoreView, age: Age) -> float | None:
    """Return the time from which the store's release counts a row's retention, None where that is the end itself.

    Between two releases, or where the version cannot be read or the columns are newer than it says, the more
    dangerous clock counts.
    """
    version = view.shape.version
    if version >= _FROM_CLOSE:
        return None
    by_message = age.message if age.message is not None else age.started
    clocks = [] if version >= _BY_MESSAGE else [age.started]
    if version > _BY_START or version == 0 or view.shape.has("sessions", "last_activity_at"):
        clocks.append(by_message)
    known = [clock for clock in clocks if clock is not None]
    return min(known, default=0.0)


def pruned_once_ended(view: StoreView, age: Age) -> bool:
    """Whether upstream's next prune would delete the row if it were ended now, going by clocks alone."""
    clock = prune_clock(view, age)
    if clock is None:
        # Only a retention of less than a day leaves no time to notice.
        return view.settings.retention_days is not None and view.settings.retention_days < 1
    return clock < view.now - retention(view)


def ending_is_dangerous(view: StoreView, age: Age) -> bool:
    """Whether ending the row may cost it: prune would take it, and is not known to be off."""
    return pruned_once_ended(view, age) and not prune_is_off(view)
