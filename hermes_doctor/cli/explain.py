"""`doctor explain CHECK`: one check's page."""

from __future__ import annotations

import click

from hermes_doctor.cli.options import Output, page_options
from hermes_doctor.cli.types import CheckName


@click.command(short_help="Show one check's page.")
@click.argument("check", type=CheckName(), metavar="CHECK")
@page_options
def explain(check: str, output: Output) -> None:
    """Show what a check finds, why it matters, how it decides, what its fix does and how safe that is."""
    from hermes_doctor.catalogue import catalogue
    from hermes_doctor.cli.look import width_for
    from hermes_doctor.cli.output import destination
    from hermes_doctor.report.ink import Ink
    from hermes_doctor.report.page import page

    chosen = next(each for each in catalogue().checks if each.name == check)
    fix = catalogue().fixes.get(check)
    with destination(output.file) as stream:
        width, ink = min(width_for(stream), 100), Ink(output.colored(stream))
        stream.write(page(chosen, width, ink, "" if fix is None else fix.page))
