"""Sessions that a running hermes may be using: what is mended beside it leaves them alone.

No column says which process has a session in hand. Told are work that is going on (`liveness`), a session that a
process has registered as its own, and when it was last used. What cannot be told counts as in use.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hermes_doctor.host.state_files import Mentions, active_sessions_ids
from hermes_doctor.store.ages import ages_of
from hermes_doctor.store.cells import Key
from hermes_doctor.store.clocks import MINUTE
from hermes_doctor.store.liveness import HANDING_OFF, Sign, live_work
from hermes_doctor.store.reader import in_keys
from hermes_doctor.store.view import StoreView

#: A session that was used more recently is in use, in seconds: longer than a turn pauses between two messages, and
#: than a turn's lease or a compression's lock is good for (5 minutes, all releases).
QUIET_SECONDS = 10 * MINUTE

_AT_ONCE = 500


def in_use(view: StoreView, sessions: Iterable[Key], *, quiet: float = QUIET_SECONDS) -> dict[Key, str]:
    """Return those of the sessions that may be in use, each with why, in words.

    ``quiet``: seconds since its last use from which on a session is not. A session that has no row is in nobody's use.
    """
    asked = list(dict.fromkeys(session for session in sessions if session is not None))
    found: dict[Key, str] = {}
    for start in range(0, len(asked), _AT_ONCE):
        some = asked[start : start + _AT_ONCE]
        handed = _handed_off(view, some)
        for session, age in ages_of(view, some).items():
            sign = live_work(view, session) or (Sign.HANDOFF if session in handed else None)
            if sign is not None:
                found[session] = str(sign)
            elif age.newest is None:
                found[session] = "when it was last used cannot be told"
            elif view.now - age.newest < quiet:
                found[session] = f"it was used less than {quiet / MINUTE:.0f} minutes ago"
            elif not _registered(view).readable:
                found[session] = "which sessions hermes has open cannot be told (runtime/active_sessions.json)"
            elif session in _registered(view).ids:
                found[session] = "a process has registered it as its own"
    return found


def _handed_off(view: StoreView, sessions: Sequence[Key]) -> set[Key]:
    if not view.shape.has("sessions", "id", "handoff_state"):
        return set()
    among, cells = in_keys("id", sessions)
    states = ", ".join(f"'{state}'" for state in sorted(HANDING_OFF))
    return {
        row[0] for row in view.rows(f"SELECT id FROM sessions WHERE {among} AND handoff_state IN ({states})", cells)
    }


def _registered(view: StoreView) -> Mentions:
    return view.once(_load_registered)


def _load_registered(view: StoreView) -> Mentions:
    return Mentions() if view.home is None else active_sessions_ids(view.home)
