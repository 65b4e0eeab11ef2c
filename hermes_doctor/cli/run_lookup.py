"""Finding past runs: beside the stores that are named, or that the index knows, or that this host has."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click

from hermes_doctor.cli.lazy import did_you_mean
from hermes_doctor.engine.journal import FILE, Journal, folder_of
from hermes_doctor.engine.run_index import RunIndex
from hermes_doctor.host.homes import StoreRef, real, resolve_targets
from hermes_doctor.report.runs import PastRun
from hermes_doctor.report.words import short_path

#: Runs that an error names.
_NAMED = 5


@dataclass
class PastRuns:
    """Runs, newest first, the stores that they belong to, and the journals that could not be read, with the reason."""

    runs: list[PastRun] = field(default_factory=list)
    refs: dict[tuple[Path, str], StoreRef] = field(default_factory=dict)
    unreadable: list[tuple[Path, str]] = field(default_factory=list)

    def ref(self, past: PastRun) -> StoreRef:
        """Return the store that a run belongs to."""
        return self.refs[past.journal, past.run.run]


def past_runs(targets: Sequence[Path], index: RunIndex) -> PastRuns:
    """Return the runs of these stores; without targets, of those that the index knows and of this host's."""
    found = PastRuns()
    for ref in _stores(targets, index):
        try:
            journal = Journal.beside(ref.path)
            if journal is None:
                continue
            with journal:
                for run in journal.runs():
                    # Stores in one folder share its journal, and a home may have been moved: the file's name tells.
                    if Path(run.path).name == ref.path.name or real(Path(run.path)) == real(ref.path):
                        past = PastRun(ref.path, journal.path, run, journal.mended(run.run))
                        found.runs.append(past)
                        found.refs[past.journal, run.run] = ref
        except (OSError, sqlite3.Error) as error:
            found.unreadable.append((folder_of(ref.path) / FILE, str(error)))
    found.runs.sort(key=lambda past: (past.run.at, past.run.run), reverse=True)
    return found


def _stores(targets: Sequence[Path], index: RunIndex) -> list[StoreRef]:
    if targets:
        return resolve_targets(targets)
    here = resolve_targets(())
    known = resolve_targets(stores) if (stores := index.stores()) else []
    return list({real(ref.path): ref for ref in (*here, *known)}.values())


def one_run(name: str, found: PastRuns) -> PastRun:
    """Return the run of that name, or the only one whose name begins so; anything else is a usage error."""
    matching = [past for past in found.runs if past.run.run == name]
    matching = matching or [past for past in found.runs if name and past.run.run.startswith(name)]
    if len(matching) == 1:
        return matching[0]
    if matching:
        names = ", ".join(f"{past.run.run} ({short_path(past.store)})" for past in matching[:_NAMED])
        raise click.UsageError(f"'{name}' is the beginning of {len(matching)} runs: {names}. Type more of it.")
    if not found.runs:
        raise click.UsageError(
            f"there is no run '{name}', nor any other that is known here. Name the store, too, if it is elsewhere."
        )
    raise click.UsageError(
        f"there is no run '{name}'.{did_you_mean(name, [past.run.run for past in found.runs[:_NAMED]])}"
        " doctor runs lists all that are known here; name the store, too, if it is elsewhere."
    )
