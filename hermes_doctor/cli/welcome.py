"""`doctor` alone: what this is, and what to type first."""

from __future__ import annotations

from pathlib import Path

import click

#: The commands to begin with, and what each of them does.
_FIRST = (
    ("doctor scan", "looks at the stores of this host and reports every fault"),
    ("doctor fix", "shows what it would mend; nothing is mended without --apply"),
    ("doctor rescue", "saves what can be read of a damaged store into a new file"),
    ("doctor demo", "shows all of it in a minute, on a small home that it makes up"),
)


def welcome() -> None:
    """Say it, in a screen that is smaller than any terminal."""
    from hermes_doctor.host.homes import resolve_targets
    from hermes_doctor.report.words import short_path

    click.echo("doctor finds what is wrong in the state.db of hermes-agent, says it plainly,")
    click.echo("mends it, and takes back whatever it did. Begin with one of these:\n")
    for command, does in _FIRST:
        click.echo(f"  {command:<15}{does}")
    stores = [ref.path for ref in resolve_targets(()) if _there(ref.path)]
    more = f" and {len(stores) - 1:,} more" if len(stores) > 1 else ""
    if stores:
        click.echo(f"\nFound on this host: {short_path(stores[0])}{more}")
    else:
        click.echo(f"\nOn this host there is no {short_path(resolve_targets(())[0].path)}.")
        click.echo("Name another state.db or Hermes home: doctor scan PATH")
    click.echo("All commands: doctor --help. All options of one: doctor scan --help")


def _there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        # Whoever may not look there is told so by a scan.
        return True
