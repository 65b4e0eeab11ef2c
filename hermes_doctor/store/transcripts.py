"""Transcripts beside a store that tell more than it holds, and what of them may be brought back.

A scan goes by what is cheap: a snapshot that is no newer than its session's last row, or tells no more messages than
there are rows, was written into the store. Only what is left is read and compared, message by message.
"""

from __future__ import annotations

import enum
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import NamedTuple

import apsw

from hermes_doctor.host.transcripts import (
    Transcript,
    ends_of,
    is_spooled,
    line_count,
    records,
    told_count,
    told_session,
    transcripts_of,
)
from hermes_doctor.store.cells import Cell
from hermes_doctor.store.clocks import trusted
from hermes_doctor.store.lineage import COMPRESSION, family_of
from hermes_doctor.store.nul_texts import NUL_REASON
from hermes_doctor.store.profiles import opened, other_stores
from hermes_doctor.store.reader import Reader, in_keys
from hermes_doctor.store.setting_aside import spared
from hermes_doctor.store.told_messages import (
    Message,
    is_diverted,
    is_diverted_lately,
    is_message,
    likeness,
    likeness_of,
    stored_content,
    time_of,
    was_written,
)
from hermes_doctor.store.view import StoreView

#: Messages of one transcript, and rows of one family, that are compared; what has more is only told.
_MOST = 500_000
#: The newest snapshots are asked for their count whatever their time is.
_COUNTED = 200
#: Messages that one fix writes, in one transaction.
_MOST_WRITTEN = 20_000
#: How often a diverted transcript may begin anew, and how long it may be, to be told apart.
_MOST_STARTS, _MOST_UNFOLDED = 200, 20_000
_AT_ONCE = 500


class Kind(enum.StrEnum):
    """What is wrong with a transcript."""

    #: Its last messages are in no row.
    TAIL = "tail"
    #: Messages before or between others that the store holds are in no row.
    HOLE = "hole"
    #: Its session is not in the store.
    MISSING = "missing"
    #: It tells other messages than the store: the one or the other was rewritten.
    OTHER = "other"
    #: It cannot be read or compared.
    UNREAD = "unread"


@dataclass(frozen=True)
class Stray:
    """A transcript that tells more than the store.

    ``messages``: how many are in no row. ``first``: the record of the file with which they begin, where they are its
    last. ``broken``: records that cannot be read. ``sure``: nothing that hermes does on purpose explains it.
    ``refusal``: why it is not to be brought back.
    """

    file: Transcript
    session: str
    kind: Kind
    messages: int = 0
    first: int = 0
    broken: int = 0
    sure: bool = False
    refusal: str | None = None


class _Stored(NamedTuple):
    """A session of the store: how many rows it has, and when the newest was written."""

    rows: int
    newest: Cell
    end_reason: Cell


@dataclass
class _Told:
    """What a file tells: the likeness of each message, the record that it is, and which are the model's answers.

    ``diverted``: lines that a release could not write to the store; ``lately``: by 0.22.2 or newer, all of them;
    ``mixed``: with others among them. ``marked``: a snapshot of 0.18 or newer.
    """

    likenesses: array[int] = field(default_factory=lambda: array("Q"))
    places: array[int] = field(default_factory=lambda: array("Q"))
    answers: set[int] = field(default_factory=set)
    broken: int = 0
    diverted: bool = False
    lately: bool = True
    mixed: bool = False
    marked: bool = False

    def see(self, place: int, record: object) -> None:
        """Take in one record of the file."""
        if not isinstance(record, dict):
            self.broken += 1
            return
        if not is_message(record):
            return
        if is_diverted(record) and not self.diverted:
            # What is before the first diverted line is an old gateway's transcript, and another matter.
            self.diverted, self.broken = True, 0
            del self.likenesses[:], self.places[:]
        self.mixed = self.mixed or (self.diverted and not is_diverted(record))
        self.lately = self.lately and is_diverted_lately(record)
        self.marked = self.marked or was_written(record)
        each = likeness_of(record)
        self.likenesses.append(each)
        self.places.append(place)
        if record["role"] == "assistant" and len(self.answers) < _MOST_UNFOLDED:
            self.answers.add(each)


def strays(view: StoreView, names: Sequence[str] | None = None) -> Iterator[Stray]:
    """Give the transcripts that tell more than the store, in the order of their names; ``names``: only of these."""
    if view.home is None or not view.shape.messages_by_session or not view.shape.has("sessions", "id"):
        return
    files = transcripts_of(view.home)
    documents = sorted((file.changed, file.name) for file in files if not file.lines)
    counted = {name for _changed, name in (documents if view.deep else documents[-_COUNTED:])}
    if names is not None:
        wanted = set(names)
        files = [file for file in files if file.name in wanted]
    for start in range(0, len(files), _AT_ONCE):
        some = files[start : start + _AT_ONCE]
        stored = _stored(view, [file.session for file in some])
        for file in some:
            stray = _looked_at(view, file, stored.get(file.session), counted=file.name in counted)
            if stray is not None:
                yield stray


def unfolded(likenesses: Sequence[int]) -> int | None:
    """Return where the last telling begins, None where that cannot be told.

    A release that cannot write diverts all that waits, each time anew: a telling goes on from the one before it and
    repeats it. Where the first message comes again without that, nothing tells what is a repetition.
    """
    starts = [place for place, each in enumerate(likenesses) if each == likenesses[0]]
    if len(starts) == 1:
        return 0
    if len(starts) > _MOST_STARTS or len(likenesses) > _MOST_UNFOLDED:
        return None
    return next((last for last in reversed(starts[1:]) if _goes_on(likenesses, starts, last)), None)


def _goes_on(likenesses: Sequence[int], starts: Sequence[int], last: int) -> bool:
    """Whether all before ``last`` are beginnings of what comes from there on, none shorter than the one before it."""
    ends = [start for start in starts if start <= last]
    whole = likenesses[last:]
    seen: set[tuple[int, int]] = set()
    waiting = [(0, 1)]
    while waiting:
        start, least = waiting.pop()
        if start == last:
            return True
        if (start, least) in seen:
            continue
        seen.add((start, least))
        for end in ends:
            length = end - start
            if least <= length <= len(whole) and likenesses[start:end] == whole[:length]:
                waiting.append((end, length))
    return False


def missing_messages(stray: Stray) -> Iterator[Message]:
    """Give the messages of a transcript that are in no row, as it tells them. Raises OSError, ValueError."""
    for record in islice(records(stray.file), stray.first, None):
        if isinstance(record, dict) and is_message(record):
            yield record


def _stored(view: StoreView, sessions: Sequence[str]) -> dict[Cell, _Stored]:
    among, cells = in_keys("id", sessions)
    reason, time = view.shape.column("sessions", "end_reason"), view.shape.column("messages", "timestamp")
    rows = view.rows(
        f"""SELECT id, (SELECT count(*) FROM messages WHERE session_id = sessions.id),
                   (SELECT max({time}) FROM messages WHERE session_id = sessions.id), {reason}
              FROM sessions WHERE {among}""",
        cells,
    )
    return {session: _Stored(int(str(count)), newest, reason) for session, count, newest, reason in rows}


def _looked_at(view: StoreView, file: Transcript, stored: _Stored | None, *, counted: bool) -> Stray | None:
    """Look at a file as far as needed. A file that goes away, or cannot be opened, is none."""
    try:
        if stored is None and not file.lines:
            named = told_session(file)
            if named is not None and named != file.session:
                file = replace(file, session=named)
                stored = _stored(view, [named]).get(named)
        if file.size == 0 or (stored is not None and not _is_suspect(file, stored, counted=counted)):
            return None
        return _compared(view, file, stored)
    except FileNotFoundError:
        return None
    except OSError:
        return Stray(file, file.session, Kind.UNREAD, refusal="the file cannot be opened")
    except ValueError as error:
        return Stray(file, file.session, Kind.UNREAD, refusal=f"the file cannot be read ({_reason(error)})")


def _reason(error: ValueError) -> str:
    return str(error) if type(error) is ValueError else "it is no JSON"


def _is_suspect(file: Transcript, stored: _Stored, *, counted: bool) -> bool:
    """Whether the file may tell more than its session's rows, by what can be asked cheaply."""
    if file.lines:
        if any(is_diverted(record) for record in ends_of(file)):
            return True
        return line_count(file) > stored.rows
    newest = trusted(stored.newest)
    # A snapshot is written just before the rows of the same turn, whose times are of the writing.
    if not counted and newest is not None and file.changed <= newest:
        return False
    count = told_count(file)
    return count is None or count > stored.rows


def _compared(view: StoreView, file: Transcript, stored: _Stored | None) -> Stray | None:
    if stored is None and not file.lines:
        # Deleting a session left its snapshot in every release that made one: it is not worth reading.
        if not file.path.name.startswith("session_"):
            return None
        return Stray(file, file.session, Kind.MISSING, refusal="a session that was deleted leaves its snapshot behind")
    told = _told(file)
    if told is None:
        return Stray(file, file.session, Kind.UNREAD, refusal="the file has too many messages to compare")
    if not told.likenesses:
        return None
    begins = (None if told.mixed else unfolded(told.likenesses)) if told.diverted else 0
    if stored is None:
        return _of_missing_session(view, file, told, begins)
    held = _likenesses(view, family_of(view, file.session).ids)
    if held is None:
        return Stray(file, file.session, Kind.UNREAD, refusal="the session has too many messages to compare")
    own = _likenesses(view, [file.session], "AND active = 1" if view.shape.has("messages", "active") else "")
    return _of_session(view, file, told, begins, stored, held, own or array("Q"))


def _of_session(
    view: StoreView,
    file: Transcript,
    told: _Told,
    begins: int | None,
    stored: _Stored,
    held: array[int],
    own: array[int],
) -> Stray | None:
    """Judge a transcript of a session that is there. ``held``: all rows of its family; ``own``: its active ones."""
    likenesses = told.likenesses[begins or 0 :]
    places = told.places[begins or 0 :]
    left = Counter(held)
    there = []
    for each in likenesses:
        there.append(left[each] > 0)
        left[each] -= 1
    if all(there):
        return None
    missing = there.count(False)
    found = Stray(file, file.session, Kind.OTHER, missing, broken=told.broken)
    first = there.index(False)
    if told.diverted:
        kind = Kind.TAIL if not any(there[first:]) and begins is not None else Kind.OTHER
        sure = True
    else:
        matches = likenesses[: len(own)] == own
        kind = Kind.TAIL if matches and first == len(own) and not any(there[first:]) else Kind.OTHER
        if kind is Kind.OTHER and own and _is_within(own, likenesses) and likenesses[-1] == own[-1]:
            kind = Kind.HOLE
        # Since 0.16 what is taken back stays in the store. Before, only the snapshot had it still.
        sure = kind is Kind.TAIL and (file.lines or told.marked)
        if kind is Kind.HOLE:
            # Hermes itself takes notes of its own out, but no answers.
            gone = (each for each, is_there in zip(likenesses, there, strict=True) if not is_there)
            sure = any(each in told.answers for each in gone)
    found = replace(found, kind=kind, sure=sure)
    if kind is not Kind.TAIL:
        return replace(found, refusal=_REPEATS if begins is None else _WHY_NOT[kind])
    found = replace(found, first=places[first])
    if not sure:
        return replace(found, refusal="releases up to 0.15 keep in it what was taken back with /undo")
    return replace(found, refusal=_hindrance(view, found, stored))


_REPEATS = "it repeats messages in a way that nothing tells apart"
_WHY_NOT = {
    Kind.HOLE: "the messages belong before others, which have their places",
    Kind.OTHER: "it does not go on from where the store ends: one of the two was rewritten",
}


def _of_missing_session(view: StoreView, file: Transcript, told: _Told, begins: int | None) -> Stray | None:
    """Judge a transcript of lines whose session the store lacks."""
    found = Stray(file, file.session, Kind.MISSING, len(told.likenesses) - (begins or 0), broken=told.broken)
    if not told.lately:
        return replace(found, refusal="a session that was deleted, with this release or an older one, can leave it")
    elsewhere = view.once(_elsewhere)
    if file.session in elsewhere.sessions:
        return None
    if not elsewhere.complete:
        return replace(found, refusal="another profile's store could not be asked for the session")
    found = replace(found, sure=True, first=told.places[begins or 0])
    return replace(found, refusal=_REPEATS if begins is None else _hindrance(view, found, None))


def _hindrance(view: StoreView, found: Stray, stored: _Stored | None) -> str | None:
    """Return why the messages cannot be brought back now, None where nothing speaks against it."""
    assert view.home is not None
    if view.held != "no":
        return "somebody has the store open, and may still write them; stop hermes first"
    if is_spooled(view.home):
        return "the gateway keeps messages to write at its next start (pending_messages); start it first"
    sign = spared(view, found.session)
    if sign is not None:
        return sign
    if found.messages > _MOST_WRITTEN:
        return f"more than {_MOST_WRITTEN:,} messages are not written in one go"
    if found.broken:
        return "a part of it cannot be read, and may belong among them"
    if stored is not None and stored.end_reason == COMPRESSION:
        return "the session was compressed: nothing may be written after that"
    return _of_content(view, found, stored)


def _of_content(view: StoreView, found: Stray, stored: _Stored | None) -> str | None:
    """Return what in the messages themselves speaks against writing them."""
    newest = trusted(stored.newest) if stored is not None else None
    if stored is not None and stored.rows and newest is None:
        return "when the session's last message was written cannot be told"
    times: list[float] = []
    first: Message | None = None
    trigrams = any("messages_fts_trigram" in sql for sql in view.shape.triggers.values())
    for message in missing_messages(found):
        first = first or message
        at = time_of(message)
        times += [] if at is None else [at]
        content = stored_content(message.get("content")) if trigrams else None
        if isinstance(content, str) and "\x00" in content:
            return NUL_REASON
    begun = min([*times, found.file.changed])
    if newest is not None and newest > begun:
        return "the session has newer messages than these"
    if first is not None and first["role"] == "tool" and not _answers(view, found.session, first):
        return "it begins with a tool's result whose call is missing"
    return None


def _answers(view: StoreView, session: str, result: Message) -> bool:
    """Whether a tool's result is of a call that the session's last turn made."""
    call = result.get("tool_call_id")
    if not isinstance(call, str) or not call:
        return False
    calls = view.shape.column("messages", "tool_calls")
    rows = view.rows(f"SELECT role, {calls} FROM messages WHERE session_id = ? ORDER BY id DESC LIMIT 50", (session,))
    for role, cell in rows:
        if role == "assistant":
            return isinstance(cell, str) and f'"{call}"' in cell
        if role != "tool":
            return False
    return False


def _told(file: Transcript) -> _Told | None:
    """Read what a file tells; None where it is too much."""
    told = _Told()
    for place, record in enumerate(records(file)):
        told.see(place, record)
        if len(told.places) > _MOST:
            return None
    return told


def _likenesses(view: StoreView, sessions: Sequence[object], condition: str = "") -> array[int] | None:
    """Return the likeness of each message of these sessions, in order; None where there are too many."""
    found: array[int] = array("Q")
    calls = view.shape.column("messages", "tool_calls")
    call = view.shape.column("messages", "tool_call_id")
    for session in sessions:
        among, cells = in_keys("session_id", [session])  # type: ignore[list-item]  # ids of one column
        last: Cell = -(1 << 63)
        while True:
            rows = view.rows(
                f"SELECT id, role, content, {calls}, {call} FROM messages"
                f" WHERE {among} AND id > ? AND role <> 'session_meta' {condition} ORDER BY id LIMIT {_AT_ONCE}",
                (*cells, last),
            )
            found.extend(likeness(*row[1:]) for row in rows)
            if len(rows) < _AT_ONCE:
                break
            if len(found) > _MOST:
                return None
            last = rows[-1][0]
    return found


def _is_within(own: Sequence[int], likenesses: Sequence[int]) -> bool:
    """Whether all rows come in the transcript, in their order."""
    waiting = iter(likenesses)
    return all(any(each == other for other in waiting) for each in own)


class _Elsewhere(NamedTuple):
    """What the other stores of the home say: the sessions that one of them has; ``complete``: all could be asked."""

    sessions: frozenset[Cell]
    complete: bool


def _elsewhere(view: StoreView) -> _Elsewhere:
    """Ask the other stores of the home, each once, for the sessions of all transcripts of lines."""
    assert view.home is not None
    named = [file.session for file in transcripts_of(view.home) if file.lines]
    found: set[Cell] = set()
    complete = True
    for ref in other_stores(view):
        with opened(ref) as other:
            try:
                found |= set() if other is None else _those_in(other[0], named)
                complete = complete and other is not None
            except apsw.Error:
                complete = False
    return _Elsewhere(frozenset(found), complete)


def _those_in(reader: Reader, sessions: Sequence[str]) -> set[Cell]:
    """Return those of the sessions that a store has."""
    found: set[Cell] = set()
    for start in range(0, len(sessions), _AT_ONCE):
        among, cells = in_keys("id", sessions[start : start + _AT_ONCE])
        found |= {session for (session,) in reader.rows(f"SELECT id FROM sessions WHERE {among}", cells)}
    return found
