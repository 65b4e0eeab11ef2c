"""`doctor runs`: what was done, when, to which store, and whether it still stands."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hermes_doctor.engine.journal import Run
from hermes_doctor.report.document import plain, utc
from hermes_doctor.report.layout import Look, table, wrapped
from hermes_doctor.report.words import ago, counted, number, short_path, size, visible


@dataclass(frozen=True)
class PastRun:
    """A run, the store beside whose journal it was found, that journal, and how many rows it mended, by check."""

    store: Path
    journal: Path
    run: Run
    mended: Mapping[str, int]

    @property
    def state(self) -> str:
        """Whether what it did still stands: ``done``, ``undone``, ``forgotten`` or ``unfinished``."""
        if self.run.undone_at is not None:
            return "undone"
        if self.run.forgotten_at is not None:
            return "forgotten"
        return "unfinished" if self.run.finished_at is None else "done"


def runs_json(runs: Sequence[PastRun], unreadable: Sequence[tuple[Path, str]]) -> str:
    """Return `doctor runs --json` (schemas/runs.json); ``unreadable``: journals that could not be read, and why."""
    document = {
        "runs": [_entry(past) for past in runs],
        "unreadable": [{"path": path, "reason": reason} for path, reason in unreadable],
    }
    return json.dumps(plain(document), indent=1, ensure_ascii=True, allow_nan=False) + "\n"


def runs_table(runs: Sequence[PastRun], now: float, look: Look) -> str:
    """Return `doctor runs` for a person; ``now``: seconds since the epoch, for times as "3 days ago"."""
    rows = [
        [
            past.run.run,
            ago(past.run.at, now),
            f"{short_path(past.store)}: {_changed(past)}{_standing(past, now)}",
        ]
        for past in runs
    ]
    return table(["run", "when", "what changed"], rows, "lll", look.width) + "\n"


def no_runs(look: Look) -> str:
    """Return what a person is told where there is no run."""
    told = "No runs are known here. A run begins with: doctor fix --apply. Of a store elsewhere: doctor runs TARGET."
    return "\n".join(wrapped(told, look.width)) + "\n"


def _entry(past: PastRun) -> dict[str, object]:
    run = past.run
    return {
        "run": run.run,
        "at": utc(run.at),
        "path": past.store,
        "journal": past.journal,
        "applied": sum(past.mended.values()),
        "mended": dict(past.mended),
        "state": past.state,
        "outcome": run.outcome,
        "finished_at": _utc(run.finished_at),
        "undone": run.undone_at is not None,
        "undone_at": _utc(run.undone_at),
        "forgotten": run.forgotten_at is not None,
        "forgotten_at": _utc(run.forgotten_at),
        "backup": run.backup,
        "schema_version": run.schema_version,
    }


def _utc(seconds: float | None) -> str | None:
    return None if seconds is None else utc(seconds)


def _changed(past: PastRun) -> str:
    if not past.mended:
        return "nothing"
    return ", ".join(f"{number(count)} {visible(check)}" for check, count in past.mended.items())


def _standing(past: PastRun, now: float) -> str:
    run = past.run
    if run.undone_at is not None:
        return f" (undone {ago(run.undone_at, now)})"
    if run.forgotten_at is not None:
        return " (forgotten: it can no longer be undone)"
    if run.finished_at is None:
        return " (unfinished: doctor fix --apply carries on)"
    return " (stopped part-way)" if run.outcome == "stopped" else ""


def forgotten_line(runs: Sequence[PastRun], freed: int) -> str:
    """Return what a person is told after runs were forgotten. ``freed``: bytes of changesets."""
    they = "it" if len(runs) == 1 else "they"
    told = f"{counted(len(runs), 'run')} forgotten ({size(freed)}): {they} can no longer be undone."
    return f"{told} What {they} did stays.\n"
