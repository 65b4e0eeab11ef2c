"""A store that is open for writing, with the view that rules look through and the journal of what is done to it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import apsw

from hermes_doctor.engine.changes import ColumnOrder
from hermes_doctor.engine.file_changes import FileChange
from hermes_doctor.engine.identity import identify
from hermes_doctor.engine.journal import APPLIED, Journal, Receipt, Reference
from hermes_doctor.engine.scan import ScanOptions, StoreScan
from hermes_doctor.engine.steps import Step, reach
from hermes_doctor.engine.stopping import Stop
from hermes_doctor.host.bundle import Bundle
from hermes_doctor.host.holders import named, others_at
from hermes_doctor.host.lease import Lease, take_lease
from hermes_doctor.host.same_files import SameFiles
from hermes_doctor.host.settings import NO_SETTINGS, read_settings
from hermes_doctor.store.reader import Pace, Reader
from hermes_doctor.store.shape import read_shape
from hermes_doctor.store.strangers import refuse_strangers
from hermes_doctor.store.view import StoreView
from hermes_doctor.store.writing import open_for_writing

if TYPE_CHECKING:
    from hermes_doctor.engine.live import Beside

#: Seconds between two looks whether somebody else has opened the store meanwhile.
_LOOK_EVERY = 1.0


@dataclass
class Writer:
    """An open store, for one run.

    ``beside``: how the work fits in with that of a living hermes, None without one, when ``files`` are watched instead.
    ``disk_seconds``: how long it took to put the last transaction, and its record, on the disk. ``looked_at``: when it
    was last looked who else is there, by the monotonic clock. ``unsettled``: the changeset that is in the store while
    the journal calls it pending.
    """

    connection: apsw.Connection
    view: StoreView
    journal: Journal
    bundle: Bundle
    run: str = ""
    beside: Beside | None = None
    files: SameFiles | None = None
    disk_seconds: float = 0.0
    looked_at: float = float("-inf")
    unsettled: int | None = None

    def begin(self) -> None:
        """Begin a write transaction. Raises apsw.BusyError, StoreMovedError, or beside a living hermes GaveWayError."""
        if self.files is not None:
            self.files.check()
        if self.beside is None:
            self.connection.execute("BEGIN IMMEDIATE")
        else:
            self.beside.begin(self.connection)

    def commit(self) -> None:
        """Commit it, if the store still is the one that was opened. Raises StoreMovedError, or GaveWayError."""
        if self.beside is not None:
            self.beside.check()
        if self.files is not None:
            self.files.check()
        self.connection.execute("COMMIT")
        if self.files is not None:
            self.files.note()

    def write_pending(
        self,
        check: str,
        changeset: bytes,
        columns: ColumnOrder,
        dangling: Iterable[Reference],
        receipts: Sequence[Receipt],
        file: FileChange | None = None,
    ) -> int:
        """Put a changeset into the journal before it is in the store, and with it that the one before is there."""
        applied, journal = self.unsettled, self.journal
        number = journal.write_pending(self.run, check, changeset, columns, dangling, receipts, file, applied)
        self._settled()
        reach(Step.PENDING)
        return number

    def settle(self) -> None:
        """Tell the journal of the last changeset that it is in the store, where no other one does so."""
        if self.unsettled is not None:
            self.journal.settle(self.unsettled, APPLIED)
            self._settled()

    def _settled(self) -> None:
        if self.unsettled is not None:
            self.unsettled = None
            reach(Step.APPLIED)

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Look at the whole store: at one moment of it, or beside a living hermes at as many as it asks for."""
        if self.beside is None:
            with self.view.reader.pinned():
                yield
            return
        try:
            yield
        finally:
            self.view.reader.finish()

    def watch_for_others(self, stop: Stop) -> None:
        """Ask for an end where somebody opened the store meanwhile: what was decided without them may no longer hold.

        Where hermes had it open from the start, make sure that everybody has the same files still. Looks about once in
        a second. Raises GaveWayError.
        """
        now = time.monotonic()
        if now - self.looked_at < _LOOK_EVERY:
            return
        self.looked_at = now
        if self.beside is not None:
            self.beside.look_around()
            return
        others = others_at(self.bundle)
        if others:
            stop.ask(f"{named(others)} opened the store meanwhile")

    def identity(self) -> dict[str, Any]:
        """By what this store can be known again, and told from another one that lies in its place later."""
        return identify(self.connection, self.view.shape, self.bundle)


@contextmanager
def open_writer(
    scan: StoreScan, journal: Journal, options: ScanOptions, beside: Beside | None = None
) -> Iterator[Writer]:
    """Open a scanned store for writing.

    Raises apsw.Error where that fails, StoreMovedError, or beside a living hermes GaveWayError, where it was replaced.
    """
    assert scan.bundle is not None, "a store that was scanned has been looked at"
    ref, bundle = scan.ref, scan.bundle
    connection = open_for_writing(bundle.real_path)
    try:
        shape = read_shape(connection)
        refuse_strangers(connection, shape)
        # In rollback mode a commit counts once its journal is removed. With FULL a power failure may bring that back,
        # and the store to what it was, when the doctor's own records say already that a change was taken back.
        connection.pragma("synchronous", "extra")
        if beside is not None:
            beside.opened()
        pace = Pace.FREE if beside is None else Pace.SNAPSHOT
        view = StoreView(
            reader=Reader(connection, pace, encoding=shape.encoding),
            shape=shape,
            now=time.time() if options.now is None else options.now,
            held=scan.held,
            home=ref.home,
            profile=ref.profile,
            idle_floor=options.idle_floor,
            settings=read_settings(ref.home) if ref.home else NO_SETTINGS,
            bundle=bundle,
            deep=options.deep,
        )
        files = SameFiles(bundle) if beside is None else None
        if files is not None:
            files.opened()
        yield Writer(connection, view, journal, bundle, beside=beside, files=files)
        if beside is not None:
            beside.check()
    finally:
        connection.close()


def checkpoint_if_alone(bundle: Bundle) -> None:
    """Move what a run wrote from the write-ahead log into the store, where a lease proves that nobody else is there.

    PASSIVE, so that it waits for nobody; the log itself stays. Without proof nothing is done: hermes checkpoints
    by itself.
    """
    lease = take_lease(bundle.real_path)
    if not isinstance(lease, Lease):
        return
    lease.release()
    connection = open_for_writing(bundle.real_path)
    try:
        # All is done and safe in the log: where there is no room to move it, hermes does it later.
        with contextlib.suppress(apsw.Error):
            # Only a connection that has read the store knows of the log; without that nothing is moved.
            connection.execute("SELECT count(*) FROM sqlite_schema")
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
    finally:
        connection.close()
