"""Bring the messages of a transcript back into the store, behind the last one or into a new session.

Each becomes the row that the release's flush would write, as far as the transcript tells it: what it does not tell is
not made up. The file stays, and is found no more once its messages are in the store.

Beside a living hermes (--live)
No: a hermes that has the chat in memory does not see what is put behind its last message.
"""

from __future__ import annotations

import apsw

from hermes_doctor.engine.cure import Fix, FixRefusedError, Mending, Phase, RowMovedError
from hermes_doctor.engine.model import Finding
from hermes_doctor.store.cells import Cell, quote
from hermes_doctor.store.orphans import RECOVERED
from hermes_doctor.store.told_messages import calls_in, row_of, time_of
from hermes_doctor.store.transcripts import Kind, Stray, missing_messages, strays

#: Upstream takes no longer title (0.13.0 on).
_LONGEST_TITLE = 100

_INSERT = "INSERT INTO {table} ({columns}) VALUES ({values})"
_TAKEN = "SELECT 1 FROM sessions WHERE title = ?"


def _mend(mending: Mending, finding: Finding) -> None:
    name = finding.key
    if not isinstance(name, str):
        raise FixRefusedError("the file has no name")
    stray = next(strays(mending.view, [name]), None)
    if stray is None or stray.refusal is not None:
        raise RowMovedError(f"{name} is not what it was")
    try:
        if stray.kind is Kind.MISSING:
            _make_session(mending, stray)
        written, calls = _write(mending, stray)
        _count(mending, stray.session, written, calls)
    except (OSError, ValueError) as error:
        raise RowMovedError(f"{name} cannot be read any more") from error
    except apsw.SQLError as error:
        raise FixRefusedError(f"the search index cannot be written here ({type(error).__name__})") from error
    if written != stray.messages:
        raise RowMovedError(f"{name} has changed")


def _make_session(mending: Mending, stray: Stray) -> None:
    """Make the row that the messages need, as upstream's recovery does; what only the lost one knew is not made up."""
    times = [at for message in missing_messages(stray) if (at := time_of(message)) is not None]
    title = f"Recovered {stray.session}"
    fits = title.isprintable() and len(title) <= _LONGEST_TITLE
    if fits and mending.view.shape.has("sessions", "title"):
        fits = not mending.view.rows(_TAKEN, (title,))
    _insert(
        mending,
        "sessions",
        {
            "id": stray.session,
            "source": RECOVERED,
            "started_at": min(times, default=stray.file.changed),
            "last_activity_at": max([*times, stray.file.changed]),
            "title": title if fits else None,
            "message_count": 0,
            "tool_call_count": 0,
        },
    )


def _write(mending: Mending, stray: Stray) -> tuple[int, int]:
    """Write the messages, in their order; return how many, and how many calls they hold."""
    written = calls = 0
    for message in missing_messages(stray):
        at = time_of(message)
        cells = row_of(message, stray.session, stray.file.changed if at is None else at, mending.view.shape)
        _insert(mending, "messages", cells)
        written += 1
        calls += calls_in(message)
    return written, calls


def _count(mending: Mending, session: str, written: int, calls: int) -> None:
    """Raise the session's counts, as every append of a release does."""
    added = {"message_count": written, "tool_call_count": calls}
    shape = mending.view.shape
    known = {name: number for name, number in added.items() if number and shape.has("sessions", name)}
    if known:
        sums = ", ".join(f"{name} = coalesce({name}, 0) + :{name}" for name in known)
        mending.run(f"UPDATE sessions SET {sums} WHERE id = :session", {**known, "session": session})


def _insert(mending: Mending, table: str, cells: dict[str, Cell]) -> None:
    known = {name: cell for name, cell in cells.items() if mending.view.shape.has(table, name)}
    mending.run(
        _INSERT.format(
            table=table,
            columns=", ".join(quote(name) for name in known),
            values=", ".join(f":{name}" for name in known),
        ),
        known,
    )


FIX = Fix(
    check="stray-transcripts", phase=Phase.RESTORE, uses_clock=False, page=__doc__ or "", mend=_mend, reindexes=True
)
