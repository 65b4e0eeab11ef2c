"""Finding past runs: beside the stores that are named, or that the index knows, or that this host has."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hermes_doctor.cli.lazy import did_you_mean
from hermes_doctor.report.words import short_path

if TYPE_CHECKING:
    from hermes_doctor.engine.journal import Run
    from hermes_doctor.engine.run_index import RunIndex
    from hermes_doctor.host.homes import StoreRef

#: Runs that an error names.
_NAMED = 5


@dataclass(frozen=True)
class PastRun:
    """A run and the store whose journal has it; ``mended``: how many rows, by check."""

    ref: StoreRef
    run: Run
    mended: dict[str, int]


@dataclass
class PastRuns:
    """Runs, newest first, and the journals that could not be read, each with the reason."""

    runs: list[PastRun] = field(default_factory=list)
    unreadable: list[tuple[Path, str]] = field(default_factory=list)


def past_runs(targets: Sequence[Path], index: RunIndex) -> PastRuns:
    """Return the runs of these stores; without targets, of those that the index knows and of this host's."""
    from hermes_doctor.engine.journal import Journal
    from hermes_doctor.host.homes import resolve_targets

    refs = resolve_targets(targets)
    if not targets:
        known = {ref.path.absolute() for ref in refs}
        refs += [ref for ref in resolve_targets(index.stores() or [Path()]) if index.stores()]
        refs = list({ref.path.absolute(): ref for ref in refs}.values()) if known else refs
    found = PastRuns()
    for ref in refs:
        try:
            journal = Journal.beside(ref.path)
            if journal is None:
                continue
            with journal:
                # Stores that share a folder share its journal, and a home may have been moved: the name tells.
                found.runs += [
                    PastRun(ref, run, journal.mended(run.run))
                    for run in journal.runs()
                    if Path(run.path).name == ref.path.name
                ]
        except (OSError, sqlite3.Error) as error:
            found.unreadable.append((ref.path, str(error)))
    found.runs.sort(key=lambda past: (past.run.at, past.run.run), reverse=True)
    return found


def one_run(name: str, found: PastRuns) -> PastRun:
    """Return the run of that name, or the only one whose name begins so; anything else is a usage error."""
    matching = [past for past in found.runs if past.run.run == name]
    matching = matching or [past for past in found.runs if name and past.run.run.startswith(name)]
    if len(matching) == 1:
        return matching[0]
    if matching:
        names = ", ".join(f"{past.run.run} ({short_path(past.ref.path)})" for past in matching[:_NAMED])
        raise click.UsageError(f"'{name}' is the beginning of {len(matching)} runs: {names}. Type more of it.")
    if not found.runs:
        raise click.UsageError(
            f"there is no run '{name}', nor any other that is known here. Name the store, too, if it is elsewhere."
        )
    raise click.UsageError(
        f"there is no run '{name}'.{did_you_mean(name, [past.run.run for past in found.runs[:_NAMED]])}"
        " doctor runs lists all that are known here; name the store, too, if it is elsewhere."
    )
