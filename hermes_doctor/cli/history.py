"""`doctor history`: what earlier scans came to, and what became of it since."""

from __future__ import annotations

import time
from pathlib import Path

import click

from hermes_doctor.cli.options import Output, output_options
from hermes_doctor.cli.types import Duration, Target


@click.command(short_help="What is new, what is gone, what grows, since when.")
@click.argument("targets", nargs=-1, type=Target(), metavar="[TARGET]...")
@click.option(
    "--since",
    type=Duration(),
    default="7d",
    show_default=True,
    metavar="DURATION",
    help="What became of the findings within this time (24h, 7d, 4w).",
)
@output_options
@click.pass_context
def history(context: click.Context, targets: tuple[Path, ...], since: float, output: Output) -> None:
    """Tell what is new, what is gone and what grows, and since when, by the scans of each store.

    With no TARGET: of every store that this user has scanned, but for those that were not looked at for 400 days.

    Each `doctor scan` is kept in your own state folder: how many were found by each check, never what. All of a day
    are kept, then the last of each hour for 30 days, of each week for a year, and one a month.
    """
    from hermes_doctor.cli.look import look_for
    from hermes_doctor.cli.output import destination
    from hermes_doctor.host.homes import real, resolve_targets
    from hermes_doctor.nightly.history import History
    from hermes_doctor.nightly.mutes import Mutes
    from hermes_doctor.nightly.trends import trends
    from hermes_doctor.report.history import StoreHistory, history_json, history_table, no_history

    now = time.time()
    kept = History.of_user().entries()
    named = [real(ref.path) for ref in resolve_targets(targets)] if targets else list(kept)
    standing = Mutes.of_user().standing(now)
    told = [
        StoreHistory(
            store,
            kept[store],
            trends(kept[store], now, since),
            {mute.check: mute for mute in standing if mute.holds_on(store)},
        )
        for store in named
        if store in kept
    ]
    with destination(output.file) as stream:
        if output.format == "json":
            stream.write(history_json(told, now, since))
        elif told:
            stream.write(history_table(told, now, since, look_for(output, stream)))
        elif not output.quiet:
            stream.write(no_history(look_for(output, stream), named))
    context.exit(0)
