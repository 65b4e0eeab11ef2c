"""What is wrong with the search indexes: of each as a whole, or of ranges of its messages."""

from __future__ import annotations

import enum
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import NamedTuple

from hermes_doctor.store.cells import quote
from hermes_doctor.store.index_drift import WIDTH, Drift, comparison, drift_in, drifts, suspects
from hermes_doctor.store.index_probe import Sample, SearchFailedError, fits, misfits, probe, texts_of
from hermes_doctor.store.index_state import IndexState, comparable, index_states, is_trigram
from hermes_doctor.store.nul_texts import cut_unknown
from hermes_doctor.store.reader import Pace
from hermes_doctor.store.search_index import Layout
from hermes_doctor.store.view import StoreView

#: Surplus entries of an index that are looked at more closely, to tell whether they can be taken out one by one.
_CLOSELY = 64
#: Entries up to which FTS5's own check is run where somebody has the store open: it takes one statement.
_CHECKED_IN_USE = 400_000


class Trouble(enum.Enum):
    """What is the matter with an index as a whole.

    NO_INDEX: triggers write to it, but it is not there. NO_SOURCE: the view of its texts is gone. SEARCH: searching it
    fails. LOST: it does not find messages that it holds, or holds other texts than theirs. LEFTOVERS: entries that
    cannot be taken out one by one, for what they hold is not known any more. TRIGGERS: some are missing. DETACHED,
    PENDING: hermes will rebuild it, or is at it. TOKENIZER: this machine has not got it. UNKNOWN: a layout of no
    release. BROAD: an update of any column writes to it. DRIFT: of a range of its messages.
    """

    NO_INDEX = enum.auto()
    NO_SOURCE = enum.auto()
    SEARCH = enum.auto()
    LOST = enum.auto()
    LEFTOVERS = enum.auto()
    TRIGGERS = enum.auto()
    DETACHED = enum.auto()
    PENDING = enum.auto()
    TOKENIZER = enum.auto()
    UNKNOWN = enum.auto()
    BROAD = enum.auto()
    DRIFT = enum.auto()


#: With these, what single messages show is beside the point.
_WHOLE = frozenset(Trouble) - {Trouble.PENDING, Trouble.BROAD, Trouble.DRIFT}


class IndexFault(NamedTuple):
    """One fault of one index; ``drift`` tells of which messages, or in sum, ``sample`` of which entries.

    ``error``: what a search raised. ``waiting``: of the missing messages those that cannot be put in from here, for
    their texts hold a NUL and nothing tells how hermes's SQLite cuts such texts.
    """

    state: IndexState
    trouble: Trouble
    drift: Drift | None = None
    sample: Sample | None = None
    error: SearchFailedError | None = None
    waiting: int = 0

    @property
    def hopeless(self) -> bool:
        """Whether nothing of it can be mended from here."""
        return (
            self.drift is not None
            and self.waiting > 0
            and self.drift == Drift(self.drift.low, self.drift.high, missing=self.waiting)
        )

    @property
    def key(self) -> str:
        """By what the fault is known: the index's name, and the ids of the messages where it is of some only."""
        if self.trouble is not Trouble.DRIFT or self.drift is None:
            return self.state.name
        return f"{self.state.name}:{self.drift.low}-{self.drift.high}"


def index_faults(view: StoreView) -> Iterator[IndexFault]:
    """Give what is wrong with all indexes.

    Raises apsw.CorruptError, with the fault that it causes given before, where the file itself is damaged.
    """
    if not view.shape.has("messages", "id", "content"):
        return
    whole = view.once(_whole)
    states = list(view.once(index_states).values())
    sound = [state for state in states if _is_sound(state, whole)]
    off = sound if view.deep else suspects(view, sound)
    ranges: list[IndexFault] = []
    told = view.reader.on_share
    for place, state in enumerate(states):
        if told is not None:
            view.reader.on_share = partial(_tell_part, told, place, len(states))
        found = list(_compared(view, state)) if state in off else []
        # One fault of an index as a whole is enough, the worst of them.
        of_whole = [fault for fault in found if fault.key == state.name]
        yield from of_whole or _at_rest(state, whole.get(state.name))
        ranges += (fault for fault in found if fault.key != state.name)
    # Behind those: while one index keeps messages out, none can be proven to be right.
    yield from ranges
    structural = [fault.error for fault in whole.values() if fault.error is not None and fault.error.structural]
    if structural:
        raise structural[0].error


def _tell_part(told: Callable[[float], None], place: int, parts: int, share: float) -> None:
    """Tell how much of all is done, by how much of one of its parts is."""
    told((place + share) / parts)


def index_faults_again(view: StoreView, keys: Sequence[object]) -> Iterator[IndexFault]:
    """Give those of the faults that are known by these keys, as `index_faults` does.

    Of a range of messages every row and text is compared, also where that was found by a sample.
    """
    names = {key for key in keys if isinstance(key, str)}
    ranges = {key: parsed for key in names if (parsed := _range(key)) is not None}
    if names - ranges.keys():
        yield from (fault for fault in index_faults(view) if fault.key in names - ranges.keys())
    whole = view.once(_whole)
    states = view.once(index_states)
    for name, low, high in ranges.values():
        state = states.get(name)
        if state is None or not _is_sound(state, whole):
            continue
        drift = drift_in(view, state, low, high)
        if drift and not (state.layout is not Layout.INLINE and drift.gone):
            yield _of_range(view, state, drift)


def _range(key: str) -> tuple[str, int, int] | None:
    """Return the index and the ids of a range's key, None for a key that is of none."""
    match = re.fullmatch(r"(\w+):(-?\d+)-(-?\d+)", key, re.ASCII)
    if match is None:
        return None
    low, high = int(match.group(2)), int(match.group(3))
    return (match.group(1), low, high) if low % WIDTH == 0 and high == low + WIDTH - 1 else None


def _is_sound(state: IndexState, whole: Mapping[str, IndexFault]) -> bool:
    return comparable(state) and not (state.name in whole and whole[state.name].trouble in _WHOLE)


def _at_rest(state: IndexState, fault: IndexFault | None) -> Iterator[IndexFault]:
    """Give what is to be said of an index as a whole when its messages have nothing to tell."""
    if fault is not None:
        yield fault
    elif state.broad:
        yield IndexFault(state, Trouble.BROAD)


def _whole(view: StoreView) -> dict[str, IndexFault]:
    """Return the fault of each index as a whole, as far as no message has to be compared for it."""
    found = {name: _of_whole(view, state) for name, state in view.once(index_states).items()}
    return {name: fault for name, fault in found.items() if fault is not None}


def _of_whole(view: StoreView, state: IndexState) -> IndexFault | None:
    certain = {
        Trouble.NO_INDEX: state.layout is Layout.ABSENT,
        Trouble.DETACHED: state.detached,
        Trouble.TOKENIZER: state.lacks is not None,
        Trouble.NO_SOURCE: state.sourceless is not None,
        Trouble.UNKNOWN: state.layout is Layout.UNKNOWN,
    }
    trouble = next((trouble for trouble, is_it in certain.items() if is_it), None)
    if trouble is not None:
        return IndexFault(state, trouble)
    try:
        sample = probe(view, state)
    except SearchFailedError as error:
        return IndexFault(state, Trouble.SEARCH, error=error)
    if state.missing:
        return IndexFault(state, Trouble.TRIGGERS)
    if sample.lost:
        return IndexFault(state, Trouble.LOST, sample=sample)
    return None if state.pending is None else IndexFault(state, Trouble.PENDING)


def _compared(view: StoreView, state: IndexState) -> Iterator[IndexFault]:
    """Hold an index against all messages."""
    found = {drift.low: drift for drift in drifts(view, state)}
    if state.layout is Layout.INLINE:
        yield from (_of_range(view, state, drift) for drift in found.values())
    else:
        if view.deep:
            for low, stale in sorted(Counter(key - key % WIDTH for key in misfits(view, state)).items()):
                found[low] = replace(found.get(low, Drift(low, low + WIDTH - 1)), stale=stale)
        ranges = sorted(found.values(), key=lambda drift: drift.low)
        if any(drift.gone or drift.stale for drift in ranges) or not _removable(view, state, ranges):
            yield IndexFault(state, Trouble.LEFTOVERS, _sum(ranges))
            return
        yield from (_of_range(view, state, drift) for drift in ranges)
    if view.deep and not found and not _passes(view, state):
        yield IndexFault(state, Trouble.SEARCH)


def _of_range(view: StoreView, state: IndexState, drift: Drift) -> IndexFault:
    waiting: set[int] = set()
    if drift.missing and is_trigram(state):
        how = comparison(view.shape, state)
        waiting = cut_unknown(view, how.missing.ids(view, drift.low, drift.high))
    return IndexFault(state, Trouble.DRIFT, drift, waiting=len(waiting))


def _removable(view: StoreView, state: IndexState, ranges: Sequence[Drift]) -> bool:
    """Whether surplus entries hold the texts that their messages have, as far as a few of them tell."""
    how = comparison(view.shape, state)
    surplus = (key for drift in ranges if drift.surplus for key in how.surplus.ids(view, drift.low, drift.high))
    for key in islice(surplus, _CLOSELY):
        texts = texts_of(view, state, key, "messages")
        if texts is not None and fits(view, state, key, texts) is False:
            return False
    return True


def _sum(ranges: Sequence[Drift]) -> Drift:
    return Drift(
        ranges[0].low,
        ranges[-1].high,
        missing=sum(drift.missing for drift in ranges),
        surplus=sum(drift.surplus for drift in ranges),
        gone=sum(drift.gone for drift in ranges),
        stale=sum(drift.stale for drift in ranges),
    )


def _passes(view: StoreView, state: IndexState) -> bool:
    """Whether an index passes FTS5's own check of its own tables, where that may be run."""
    if view.reader.pace is Pace.SLICED and view.held != "no":
        return True
    entries = view.reader.value(f"SELECT count(*) FROM {quote(state.name + '_docsize')}")
    if view.held != "no" and isinstance(entries, int) and entries > _CHECKED_IN_USE:
        return True
    if view.rows(f"PRAGMA quick_check({quote(state.name)})") == [("ok",)]:
        return True
    # Another SQLite cuts texts with a NUL otherwise, so that an inline index fails although nothing is wrong.
    content = f"{state.name}_content"
    return state.layout is Layout.INLINE and (
        view.reader.value(f"SELECT 1 FROM {quote(content)} WHERE instr(c0, char(0)) > 0 LIMIT 1") is not None
    )
