"""Sessions that have the same title.

What it finds
Sessions with a title that another session has, too. Every release keeps titles apart by a unique
index; such a store has lost it (a copy made by hand, a restore, a script), or has one of its name
that is not unique.

Why it matters
A release up to 0.18.2 makes the index when it opens the store, fails on the equal titles, and
cannot be started at all. Releases from 0.19 to 0.21.5 then clear the title of all but one; 0.22.2
numbers those that a person gave and clears the others. Until then, resuming by title opens one of
them, and which one is chance.

How it decides
By the rows, where no unique index covers the titles. Titles are compared byte by byte, as the index
does. Who keeps a title is who 0.22.2 lets keep it: of those that a person gave, or that are older
than the record of who gave them, the session that began first; where a program gave all of them,
the newest of the best. A bot's own hidden chat keeps the title that it is found by.

Fix
The others get the next free number, " #2", " #3" and so on, in the order in which they began:
one more than the highest that any title of that base has, as hermes itself numbers continuations.
No title is cleared. The release makes the index itself when it opens the store next.

Fix safety
Unsafe: titles are how a person finds a chat, and resuming by the plain title opens the session with
the latest number. A title that is no text cannot be numbered and is refused.

Upstream
0.19.0 first mended such a store, by clearing titles; 0.22.2 numbers them (issue 126764). Issues
60020 and 48989 (continuations get a number, the hidden first session keeps the title).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hermes_doctor.engine.model import Check, Finding, RelationRule, Safety, Severity
from hermes_doctor.store.cells import Key
from hermes_doctor.store.shape import Shape
from hermes_doctor.store.titles import has_index_of_that_name, same_titles
from hermes_doctor.store.view import StoreView

NAME = "same-titles"

#: From this schema on (0.19.0) a release opens a store with equal titles, and clears some; older ones cannot open it.
OPENS = 22

_REFUSAL = "its title is no text that could be numbered: give it another with hermes sessions rename"


def _find(view: StoreView, keys: Sequence[Key] | None) -> Iterator[Finding]:
    cannot_open = _cannot_open(view.shape)
    for same in same_titles(view, keys):
        numbered = same.number is not None
        others = f"{same.count - 1:,} other session{'' if same.count == 2 else 's'}"
        yield Finding(
            check=NAME,
            severity=Severity.ERROR if cannot_open else Severity.WARNING,
            table="sessions",
            key=same.session,
            session=same.session,
            summary=f"has the title of {others}"
            + (", so that this release cannot open the store" if cannot_open else ""),
            detail={
                "keeps": same.keeper.hex() if isinstance(same.keeper, bytes) else str(same.keeper),
                "count": same.count,
                "number": same.number,
            },
            fix=Safety.UNSAFE if numbered else Safety.NONE,
            action=f"add #{same.number} to its title" if numbered else None,
            refusal=None if numbered else _REFUSAL,
        )


def _cannot_open(shape: Shape) -> bool:
    return shape.version < OPENS and not has_index_of_that_name(shape)


CHECK = Check(
    name=NAME,
    severity=Severity.ERROR,
    summary="sessions that have the same title",
    meaning="chats that share a title; releases up to 0.18.2 cannot open such a store",
    fix=Safety.UNSAFE,
    page=__doc__ or "",
    rule=RelationRule("sessions", _find),
)
