"""What tests of transactions share: a real store, open for writing under a run of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hermes_doctor.engine.journal import FOLDER, Journal
from hermes_doctor.engine.scan import scan_store
from hermes_doctor.engine.writer import Writer, open_writer
from tests.fixes.support import Patient


@contextmanager
def writing(patient: Patient) -> Iterator[Writer]:
    """Opens the store as a run does."""
    scan = scan_store(patient.ref, [], patient.options)
    scan.findings.close()
    folder = patient.store.parent / FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    with Journal(folder) as journal, open_writer(scan, journal, patient.options) as writer:
        writer.run = journal.start_run(patient.store, writer.identity(), scan.schema_version, None)
        yield writer
