"""The formats of a scan's report, by the names that ``--format`` takes. A new one is a module and one line here.

Each is a class that is made of the stream it writes to and the `Look` that was asked for (most formats use nothing but
its ``limit``, or nothing at all), and that does what `hermes_doctor.report.model.ScanReporter` says.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, TextIO, cast

if TYPE_CHECKING:
    # Every command knows the names; only the one format that was asked for is imported.
    from hermes_doctor.report.layout import Look
    from hermes_doctor.report.model import ScanReporter

#: What `doctor scan` can write: name -> module and class, in the order of `doctor scan --help`.
SCAN = {
    "table": ("hermes_doctor.report.table", "ScanTable"),
    "json": ("hermes_doctor.report.json", "ScanJson"),
    "ndjson": ("hermes_doctor.report.ndjson", "ScanLines"),
    "markdown": ("hermes_doctor.report.markdown", "ScanMarkdown"),
    "html": ("hermes_doctor.report.html.scan", "ScanHtml"),
    "junit": ("hermes_doctor.report.junit", "ScanJunit"),
    "prometheus": ("hermes_doctor.report.prometheus", "ScanMetrics"),
}

#: Of these, what a program of another user reads, as node_exporter does: a file of it is 0644, not 0600.
FOR_OTHERS = frozenset({"prometheus"})

#: What every other command with ``--format`` can write.
COMMON = ("table", "json")


def scan_reporter(name: str, stream: TextIO, look: Look) -> ScanReporter:
    """Return the reporter of that name, which writes to the stream; KeyError where there is none."""
    module, attribute = SCAN[name]
    return cast("ScanReporter", getattr(importlib.import_module(module), attribute)(stream, look))
