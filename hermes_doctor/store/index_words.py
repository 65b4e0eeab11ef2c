"""What is wrong with a search index, in words, and what is to be done about it."""

from __future__ import annotations

from collections.abc import Sequence

from hermes_doctor.host.repairs import Loss, way_out
from hermes_doctor.store.hermes_command import hermes
from hermes_doctor.store.index_drift import Drift
from hermes_doctor.store.index_faults import IndexFault, Trouble
from hermes_doctor.store.nul_texts import NUL_REASON
from hermes_doctor.store.view import StoreView

#: The first schema of which a release makes missing triggers anew (0.16.0).
_REMADE_SCHEMA = 14

Detail = dict[str, str | int | Sequence[str] | None]


def summary_of(fault: IndexFault) -> str:
    """Say what is wrong, without the index's name."""
    state, sample = fault.state, fault.sample
    low, high = state.pending or (0, 0)
    events = _and([f"{event}s" for event in state.missing])
    said = {
        Trouble.NO_INDEX: "it is not there, but triggers write to it: every new message is refused",
        Trouble.NO_SOURCE: f"it takes its texts from {state.sourceless}, which is not there: searching it fails",
        Trouble.TRIGGERS: f"its triggers on {events} are missing: it falls behind",
        Trouble.DETACHED: "hermes has detached it, and will make it anew",
        Trouble.PENDING: f"hermes is still filling it: messages {low + 1:,} to {high:,} are not in it yet",
        Trouble.TOKENIZER: f"its tokenizer {state.lacks} is not on this machine: it was not looked at",
        Trouble.UNKNOWN: "its layout is none that a release makes: it was not looked at",
        Trouble.BROAD: "its update trigger fires whatever column is changed",
    }
    if fault.trouble is Trouble.SEARCH:
        if fault.error is None:
            return "it fails SQLite's check of its own tables"
        place = "the file is damaged where it lies" if fault.error.structural else str(fault.error)
        return f"searching it fails ({place})"
    if sample is not None:
        return f"{sample.lost} of {sample.asked} messages that it holds are not found in it by their own words"
    return said.get(fault.trouble) or _drift_in_words(fault.drift or Drift(0, 0))


def refusal_of(view: StoreView, fault: IndexFault) -> str | None:
    """Say why it is not mended here, and what to do; None where it is, or where nothing has to be."""
    command = hermes(view)
    if fault.trouble is Trouble.TRIGGERS:
        if view.shape.version < _REMADE_SCHEMA:
            return "no hermes below 0.16 makes them anew: upgrade it and start it once, which fills the index, too"
        return f"hermes makes them anew and fills the index when it is started: {command}"
    if fault.trouble in (Trouble.NO_INDEX, Trouble.NO_SOURCE):
        return f"hermes makes it anew when it is started: {command}; what is missing from it then is mended here"
    if fault.hopeless:
        return NUL_REASON
    if fault.trouble in (Trouble.SEARCH, Trouble.LOST, Trouble.LEFTOVERS):
        if fault.error is not None and (fault.error.structural or fault.error.refused):
            return _way_out(view, command)
        if fault.state.pending is not None:
            return f"hermes is still filling it: {command} sessions optimize-storage has to be through first"
    return None


def action_of(fault: IndexFault) -> str:
    """Say what mending it does."""
    if fault.trouble is not Trouble.DRIFT or fault.drift is None:
        return "let FTS5 make the index anew from its texts"
    drift = fault.drift
    put_in, take_out, replace = drift.missing - fault.waiting, drift.surplus + drift.gone, drift.stale
    parts = [
        f"{verb} {count:,}"
        for verb, count in (("put in", put_in), ("take out", take_out), ("replace", replace))
        if count
    ]
    entries = "entry" if put_in + take_out + replace == 1 else "entries"
    return f"{_and(parts)} {entries}"


def detail_of(fault: IndexFault) -> Detail:
    """Return the numbers of it: ids, counts, names."""
    state, drift = fault.state, fault.drift
    detail: Detail = {"index": state.name, "layout": state.layout.value}
    if drift is not None:
        detail |= {"low": drift.low, "high": drift.high, "missing": drift.missing, "surplus": drift.surplus}
        detail |= {"gone": drift.gone, "stale": drift.stale}
    if fault.sample is not None:
        detail |= {"asked": fault.sample.asked, "lost": fault.sample.lost}
    if state.missing:
        detail["triggers_missing"] = [f"{state.name}_{event}" for event in state.missing]
    if state.pending is not None:
        detail |= {"progress": state.pending[0], "high_water": state.pending[1]}
    return detail


def _drift_in_words(drift: Drift) -> str:
    counts = (
        (drift.missing, "message is missing from it", "messages are missing from it"),
        (drift.surplus, "message is in it and should not be", "messages are in it and should not be"),
        (drift.gone, "entry belongs to no message", "entries belong to no message"),
        (drift.stale, "entry holds another text than its message", "entries hold other texts than their messages"),
    )
    return ", ".join(f"{count:,} {one if count == 1 else many}" for count, one, many in counts if count)


def _way_out(view: StoreView, command: str) -> str:
    if view.bundle is None:
        return f"{command} sessions repair"
    return way_out(Loss.SEARCH, view.bundle.path, view.shape.schema_version, view.profile)


def _and(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
