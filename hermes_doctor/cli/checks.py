"""`doctor checks`: the list of what the doctor looks for."""

from __future__ import annotations

import click

from hermes_doctor.cli.options import Output, output_options


@click.command(short_help="List what the doctor looks for.")
@output_options
def checks(output: Output) -> None:
    """List every check: how bad its finding is, whether it can be mended, and what it finds."""
    from hermes_doctor.cli.catalogue import known
    from hermes_doctor.cli.output import destination

    listed = known().checks
    with destination(output.file) as stream:
        if output.format == "json":
            from hermes_doctor.report.json import checks_json

            stream.write(checks_json(listed))
            return
        from hermes_doctor.cli.look import look_for
        from hermes_doctor.report.table import checks_table

        stream.write(checks_table(listed, look_for(output, stream)))
        if not output.quiet and output.file is None:
            stream.write("\nNext: doctor explain CHECK (why it matters, how it decides, what the fix does)\n")
