"""How a table is to look on the stream that it goes to."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, TextIO

from hermes_doctor.cli.options import Output

if TYPE_CHECKING:
    from hermes_doctor.report.layout import Look

#: Columns of a table: no wider than reads well, no narrower than its columns need.
_WIDEST = 120
_NARROWEST = 60


def width_for(stream: TextIO) -> int:
    """Return the width in columns: the terminal's (or COLUMNS), 80 where the result goes elsewhere."""
    columns = shutil.get_terminal_size().columns if stream.isatty() else 80
    return min(max(columns, _NARROWEST), _WIDEST)


def look_for(output: Output, stream: TextIO) -> Look:
    """Return what the options say about the look of a table."""
    from hermes_doctor.report.ink import Ink
    from hermes_doctor.report.layout import Look

    return Look(width=width_for(stream), limit=output.limit, quiet=output.quiet, ink=Ink(output.colored(stream)))
