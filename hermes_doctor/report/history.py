"""`doctor history` and the list of mutes: what became of what was found, and what is not to be heard of for a while."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from hermes_doctor.nightly.history import HOUR, Entry
from hermes_doctor.nightly.mutes import Mute
from hermes_doctor.nightly.trends import Became, Trend
from hermes_doctor.report.document import plain, utc
from hermes_doctor.report.layout import Look, table, wrapped
from hermes_doctor.report.words import ago, counted, duration, moment, number, short_path, size, visible

HISTORY_FORMAT, MUTES_FORMAT = "hermes-doctor.history", "hermes-doctor.mutes"
FORMAT_VERSION = 1


@dataclass(frozen=True)
class StoreHistory:
    """What the history tells of one store: its scans, the oldest first (at least one), and what became of each check.

    ``mutes``: those that stand on it, by check.
    """

    store: Path
    entries: Sequence[Entry]
    trends: Sequence[Trend]
    mutes: dict[str, Mute]


def history_json(stores: Sequence[StoreHistory], now: float, period: float) -> str:
    """Return `doctor history --json` (schemas/history.json); ``now``, ``period``: in seconds."""
    document = {
        "format": HISTORY_FORMAT,
        "format_version": FORMAT_VERSION,
        "at": utc(now),
        "period_seconds": period,
        "databases": [
            {
                "path": told.store,
                "scans": [_scan(entry) for entry in told.entries],
                "checks": [_trend(trend, told.mutes.get(trend.check)) for trend in told.trends],
                "muted": [_mute(mute) for mute in told.mutes.values()],
            }
            for told in stores
        ],
    }
    return _dumped(document)


def history_table(stores: Sequence[StoreHistory], now: float, period: float, look: Look) -> str:
    """Return `doctor history` for a person; ``now``, ``period``: in seconds."""
    return "\n".join("\n".join(_store(told, now, period, look)) + "\n" for told in stores)


def no_history(look: Look, named: Sequence[Path]) -> str:
    """Return what a person is told where no scan is kept; ``named``: the stores that were asked for."""
    what = f"No scan of {short_path(named[0])} is kept." if len(named) == 1 else "No scan is kept here yet."
    return "\n".join(wrapped(f"{what} Each is from now on, with: doctor scan", look.width)) + "\n"


def mutes_json(mutes: Sequence[Mute]) -> str:
    """Return `doctor mute --json` (schemas/mutes.json)."""
    return _dumped({"format": MUTES_FORMAT, "format_version": FORMAT_VERSION, "muted": [_mute(each) for each in mutes]})


def mutes_table(mutes: Sequence[Mute], now: float, look: Look) -> str:
    """Return the list of mutes for a person; ``now``: seconds since the epoch."""
    if not mutes:
        return "Nothing is muted.\n"
    rows = [[visible(mute.check), moment(mute.until, now), _extent(mute)] for mute in mutes]
    lines = table(["check", "muted until", "on which store"], rows, "lll", look.width)
    return f"{lines}\n\nNext: doctor unmute {visible(mutes[0].check)}\n"


def _store(told: StoreHistory, now: float, period: float, look: Look) -> Iterator[str]:
    entries = told.entries
    path = short_path(told.store)
    scans = (
        f"{counted(len(entries), 'scan')} kept since {moment(entries[0].at, now)}, the last {ago(entries[-1].at, now)}"
    )
    head = wrapped(f"{path}   {scans}", look.width, "", "  ")
    yield look.ink.bold(path) + head[0][len(path) :]
    yield from head[1:]
    yield from (line for fact in _facts(told, now, period) for line in wrapped(fact, look.width, "  ", "  "))
    if not told.trends:
        yield "  No check has found anything."
        return
    yield ""
    rows = [
        [
            _inked(trend, look),
            number(trend.count),
            "" if trend.before is None else number(trend.before),
            _became(trend, told.mutes.get(trend.check), told.entries[-1].at, now),
        ]
        for trend in told.trends
    ]
    before = f"{_span(period)} ago" if entries[0].at <= now - period else "at first"
    yield table(["check", "now", before, "what became of it"], rows, "lrrl", look.width)


def _facts(told: StoreHistory, now: float, period: float) -> Iterator[str]:
    last = told.entries[-1]
    whole = [entry for entry in told.entries if entry.read]
    if not last.read:
        read = f"was read last {ago(whole[-1].at, now)}" if whole else "was never read"
        yield f"It could not be read at the last scan ({last.condition}); it {read}. Next: doctor scan"
    elif failed := [entry for entry in told.entries if not entry.read and entry.at >= now - period]:
        yield f"It could not be read at {counted(len(failed), 'scan')} in the last {_span(period)}."
    if last.failed:
        yield f"Could not be checked in full at the last scan: {', '.join(map(visible, last.failed))}."
    if len(whole) > 1:
        old = min(whole[:-1], key=lambda entry: abs(entry.at - (now - period)))
        grown = [
            f"{number(new_count)} {noun} ({new_count - old_count:+,})"
            for noun, new_count, old_count in (
                ("sessions", whole[-1].sessions, old.sessions),
                ("messages", whole[-1].messages, old.messages),
            )
            if new_count is not None and old_count is not None
        ]
        if whole[-1].bytes is not None and old.bytes is not None:
            change = whole[-1].bytes - old.bytes
            grown.append(f"{size(whole[-1].bytes)} ({'-' if change < 0 else '+'}{size(abs(change))})")
        if grown:
            yield f"{' · '.join(grown)} since {moment(old.at, now)}"


def _became(trend: Trend, mute: Mute | None, last: float, now: float) -> str:
    there = f"{_day(trend.since)}{'' if trend.since_known else ' or longer'}"
    told = {
        Became.NEW: f"new since {moment(trend.since, now)}",
        Became.GROWS: f"grows; there since {there}",
        Became.SHRINKS: f"fewer; there since {there}",
        Became.GONE: f"gone since {moment(trend.since, now)}",
        Became.SAME: f"as it was; there since {there}",
    }[trend.became]
    if trend.deep:
        told += "; seen by --deep"
    if trend.seen < last - HOUR:
        told += f"; last looked for {ago(trend.seen, now)}"
    return told if mute is None else f"{told}; muted until {_day(mute.until)}"


def _day(then: float) -> str:
    return f"{datetime.fromtimestamp(then):%Y-%m-%d}"


def _inked(trend: Trend, look: Look) -> str:
    name = visible(trend.check)
    if trend.became in (Became.NEW, Became.GROWS):
        return look.ink.bad(name)
    return look.ink.good(name) if trend.became is Became.GONE else name


def _span(seconds: float) -> str:
    return duration(seconds) if seconds >= 60 else f"{seconds:.0f} s"


def _extent(mute: Mute) -> str:
    extent = "every store" if mute.store is None else short_path(mute.store)
    if mute.until_worse:
        extent += ", until more are found there"
    if mute.ended_on:
        extent += f"; ended on {', '.join(map(short_path, mute.ended_on))}"
    return extent


def _scan(entry: Entry) -> dict[str, object]:
    return {
        "at": utc(entry.at),
        "condition": entry.condition,
        "stopped": entry.stopped,
        "deep": entry.deep,
        "idle_seconds": entry.idle,
        "version": entry.version,
        "schema_version": entry.schema_version,
        "sessions": entry.sessions,
        "messages": entry.messages,
        "bytes": entry.bytes,
        "seconds": entry.seconds,
        "counts": dict(entry.counts),
        "failed": list(entry.failed),
    }


def _trend(trend: Trend, mute: Mute | None) -> dict[str, object]:
    return {
        "check": trend.check,
        "became": trend.became.value,
        "count": trend.count,
        "before": trend.before,
        "since": utc(trend.since),
        "since_known": trend.since_known,
        "seen": utc(trend.seen),
        "deep": trend.deep,
        "muted_until": None if mute is None else utc(mute.until),
    }


def _mute(mute: Mute) -> dict[str, object]:
    return {
        "check": mute.check,
        "path": mute.store,
        "since": utc(mute.since),
        "until": utc(mute.until),
        "until_worse": mute.until_worse,
        "ended_on": list(mute.ended_on),
    }


def _dumped(document: dict[str, object]) -> str:
    return json.dumps(plain(document), indent=1, ensure_ascii=True, allow_nan=False) + "\n"
