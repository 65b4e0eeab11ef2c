"""`doctor scan --format ndjson`: one JSON object a line (schemas/scan-lines.json), for what reads a line at a time.

The lines, by their ``type``: ``start``; for each store ``store``, then a ``finding`` each, a ``check`` for each check
and ``store-end``; at last ``end``. All but ``start`` and ``end`` name their store in ``path``, so that each can be
understood alone. A run that was cut off has no ``end``. The fields are those of `doctor scan --json`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TextIO

from hermes_doctor.report.document import dump
from hermes_doctor.report.json import check_fields, finding_fields, run_head, run_tail, store_head, store_tail

if TYPE_CHECKING:
    from hermes_doctor.engine.scan import StoreScan
    from hermes_doctor.report.layout import Look
    from hermes_doctor.report.model import RunEnd, RunStart

LINES_FORMAT = "hermes-doctor.scan-lines"
LINES_FORMAT_VERSION = 1


class ScanLines:
    """The lines, each written as soon as what it tells is known; whoever reads along gets whole stores."""

    def __init__(self, stream: TextIO, _look: Look | None = None) -> None:
        self._stream = stream

    def begin(self, start: RunStart) -> None:
        """Write the first line: which format this is, and when the run began."""
        self._line("start", run_head(start, LINES_FORMAT, LINES_FORMAT_VERSION))
        self._stream.flush()

    def store(self, scan: StoreScan) -> None:
        """Write the lines of one store."""
        path: dict[str, object] = {"path": scan.ref.path}
        self._line("store", store_head(scan))
        for finding in scan.findings:
            self._line("finding", path | finding_fields(finding))
        for result in scan.checks:
            self._line("check", path | check_fields(result))
        self._line("store-end", path | store_tail(scan))
        self._stream.flush()

    def end(self, end: RunEnd) -> None:
        """Write the last line: the totals."""
        self._line("end", run_tail(end))
        self._stream.flush()

    def _line(self, kind: str, fields: dict[str, object]) -> None:
        self._stream.write(dump({"type": kind, **fields}) + "\n")
