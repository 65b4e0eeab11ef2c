"""Sessions that wait to be handed over to a chat although nobody is at it any more.

What it finds
Rows of `sessions` whose `handoff_state` is `pending` or `running`, which have been idle for longer
than any handoff takes, in a store that nobody has open.

Why it matters
A session in one of these states refuses every new handoff ("already in flight"). Releases up to
0.20.6 never let go of `running`; later ones do when the gateway starts. A `pending` one is carried
out by the next gateway that starts, however old: a chat then gets a conversation that nobody asked
for any more. And the doctor, for its part, spares such rows.

How it decides
The command that asks waits 60 seconds with the store open and then withdraws; the gateway that
carries it out has the store open too, for at most 15 minutes. So nobody may have the store open;
where that cannot be told, there is no finding. No column says since when the state stands. What
can be known is when the session was last used, from its start, its newest message and its last
activity: 5 minutes ago or more for `pending`, 15 minutes for `running`. A time that cannot be makes
the age unknown, and then there is no finding.

Fix
`handoff_state` becomes `failed`, and `handoff_error` says why in words: what the waiting command
and the gateway do themselves. Only a row that is still in the state in which it was found.

Fix safety
Safe. The conversation is not touched, and the handoff can be asked for again. Failed rather than
done again, as upstream decided for `running`: a gateway that died may have delivered it already.

Upstream
Issues 98225 and 23395. `reclaim_stale_running_handoffs` (0.21.5 on) fails `running` rows at the
gateway's start.
"""

from __future__ import annotations

from hermes_doctor.engine.model import Check, Finding, Row, RowRule, Safety, Severity
from hermes_doctor.store.ages import ages_of
from hermes_doctor.store.cells import Key
from hermes_doctor.store.clocks import MINUTE
from hermes_doctor.store.shape import Shape
from hermes_doctor.store.spans import in_words
from hermes_doctor.store.view import StoreView

NAME = "stale-handoffs"

#: How long after its session was last used a handoff in that state is stale, in seconds.
_LIMITS = {"pending": 5 * MINUTE, "running": 15 * MINUTE}


def _condition(shape: Shape) -> str | None:
    if not shape.has("sessions", "id", "handoff_state"):
        return None
    states = ", ".join(f"'{state}'" for state in _LIMITS)
    return f"{shape.column('sessions', 'handoff_state')} IN ({states})"


def _judge(row: Row, view: StoreView) -> Finding | None:
    if view.held != "no":
        return None
    session: Key = row["id"]
    state = str(row["handoff_state"])
    age = ages_of(view, [session]).get(session)
    if age is None or age.newest is None:
        return None
    idle = view.now - age.newest
    if idle < view.idle_limit(_LIMITS[state]):
        return None
    what = "waits for a handoff" if state == "pending" else "is stuck in a handoff"
    return Finding(
        check=NAME,
        severity=Severity.WARNING,
        table="sessions",
        key=session,
        session=session,
        summary=f"{what} that nobody is at, last used {in_words(idle)} ago",
        detail={"handoff_state": state, "idle_seconds": round(idle), "clock": age.clock},
        fix=Safety.SAFE,
        action="mark the handoff as failed",
    )


CHECK = Check(
    name=NAME,
    severity=Severity.WARNING,
    summary="handoffs to a chat that nobody will carry out",
    meaning="sessions that refuse to be handed to a chat, or will be when nobody expects it",
    fix=Safety.SAFE,
    page=__doc__ or "",
    rule=RowRule("sessions", ("id", "handoff_state"), _condition, _judge),
)
