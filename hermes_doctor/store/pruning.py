"""What hermes's own prune, as this home's config has it, will delete when hermes next starts.

Prune runs once in 24 hours, at the start of the command line, a gateway or cron. What the releases make of the
settings (executed with 0.19.0, 0.20.6, 0.21.5 and 0.22.2):

==================  ===================================================================================
auto_prune          on or off as Python takes a value: the text ``"false"`` is on. Not set: off up to
                    0.20.6, on from 0.21.5 on
retention_days      cut down to a whole number: 0.5 is 0, ``true`` is 1. 0 takes every ended session.
                    Below 0: up to 0.20.6 every ended session, from 0.21.5 on none. What is no number:
                    prune does not run, and says so nowhere
null                up to 0.20.6 it is what it is: prune is off; from 0.21.5 on as if not set
==================  ===================================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import NamedTuple

from hermes_doctor.store.ages import Age, age_columns, age_from
from hermes_doctor.store.cells import Cell
from hermes_doctor.store.clocks import DAY, trusted
from hermes_doctor.store.retention import DEFAULT_DAYS, prune_clock
from hermes_doctor.store.view import StoreView

#: The last schema of a release that does not prune unless it is told to (0.20.6), and the first that does (0.21.5).
OFF_BY_DEFAULT, ON_BY_DEFAULT = 26, 30
#: So many sessions are counted.
MOST_COUNTED = 500
#: Prune ran so lately, in seconds, that what is due since is its daily work.
_LATELY = 2 * DAY
#: More days than these are as good as these.
_MOST_DAYS = 1_000_000


class Pruning(NamedTuple):
    """Whether hermes prunes by itself, and how long it keeps ended sessions.

    ``chosen``: the config says so, rather than the release. ``days``: a whole number, None where hermes cannot take
    it for one, so that prune does not run. ``runs``: whether it will delete anything, as far as the settings go.
    """

    on: bool
    chosen: bool
    days: int | None
    runs: bool


class Due(NamedTuple):
    """Sessions that the next prune takes; ``more``: there are more than were counted."""

    sessions: int
    more: bool


def pruning(view: StoreView, values: Mapping[str, object]) -> Pruning:
    """Return what the settings of the section ``sessions`` come to for the store's release."""
    if view.shape.version > OFF_BY_DEFAULT:
        values = {name: value for name, value in values.items() if value is not None}
    chosen = "auto_prune" in values
    on = bool(values["auto_prune"]) if chosen else view.shape.version > OFF_BY_DEFAULT
    days = whole_days(values.get("retention_days", DEFAULT_DAYS))
    runs = on and days is not None and (days >= 0 or view.shape.version < ON_BY_DEFAULT)
    return Pruning(on, chosen, days, runs)


def whole_days(value: object) -> int | None:
    """Return a number of days as hermes takes it, None where it cannot."""
    if not isinstance(value, int | float | str):
        return None
    try:
        return int(value)
    except (ValueError, OverflowError):
        return None


def pruned_lately(view: StoreView) -> bool:
    """Whether prune has run on this store within two days, by its own note: then it takes what each day brings."""
    if not view.shape.has("state_meta", "key", "value"):
        return False
    noted = view.reader.value("SELECT value FROM state_meta WHERE key = 'last_auto_prune'")
    try:
        at = float(noted) if isinstance(noted, str | int | float) else 0.0
    except ValueError:
        return False
    return 0 <= view.now - at < _LATELY


def due(view: StoreView, days: int) -> Due:
    """Count the ended sessions that a prune with that retention takes, going by clocks; pinned ones it never does.

    Sessions that were archived or go on in another one are not counted, for some releases keep these.
    """
    return _counted(view, days, "ended_at IS NOT NULL")


def due_once_ended(view: StoreView, days: int) -> Due:
    """Count the open sessions that a prune with that retention takes as soon as they are ended (up to 0.20.6)."""
    if view.shape.version >= ON_BY_DEFAULT:
        return Due(0, more=False)
    return _counted(view, days, "ended_at IS NULL")


def _counted(view: StoreView, days: int, which: str) -> Due:
    shape = view.shape
    if not shape.has("sessions", "id", "started_at", "ended_at", "end_reason"):
        return Due(0, more=False)
    before = view.now - max(-_MOST_DAYS, min(days, _MOST_DAYS)) * DAY
    kept = " + ".join(f"coalesce({shape.column('sessions', name, absent='0')}, 0)" for name in ("pinned", "archived"))
    where = f"{which} AND started_at < {before!r} AND {kept} = 0 AND coalesce(end_reason, '') <> 'compression'"
    rows = view.reader.walk(shape.tables["sessions"], ["ended_at", "end_reason", *age_columns(shape)], where)
    taken = (1 for ended_at, reason, *times in rows if is_due(view, age_from(times), ended_at, reason, before))
    count = sum(islice(taken, MOST_COUNTED + 1))
    return Due(min(count, MOST_COUNTED), more=count > MOST_COUNTED)


def is_due(view: StoreView, age: Age, ended_at: Cell, reason: Cell, before: float) -> bool:
    """Whether a session, once ended, is older than that moment by the clock of the store's release (`retention`)."""
    if age.newest is None:
        return False
    clock = prune_clock(view, age)
    if clock is not None:
        return clock < before
    ended = trusted(ended_at)
    reaped = reason == "startup_orphan_reap" and ended is not None and ended >= before
    return age.newest < before and not reaped
