"""What is wrong around a store's write-ahead log and its journal, as far as its files and ``/proc`` tell."""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from hermes_doctor.host.bundle import Bundle, StoreProblem, inspect, sidecar
from hermes_doctor.host.nearby import Kind, nearby
from hermes_doctor.host.openers import Opener, openers, without_files
from hermes_doctor.host.shared_disks import Trust, shared_disk
from hermes_doctor.host.wal_files import LOG_HEADER_BYTES, Busy, Log, read_log, size_of, who_is_busy
from hermes_doctor.store.view import StoreView

__all__ = ["MANY_FRAMES", "Fault", "LogFault", "Opener", "faults_of_wreck", "log_faults", "openers_of"]

#: Frames that wait beside a living hermes before it is told: 64 MiB of pages of 4 KiB, what hermes lets a log keep
#: (its journal_size_limit). It checkpoints after each 50 writes, and SQLite from 1,000 frames on with each commit.
MANY_FRAMES = 16_384

#: A log that moves within so many seconds is being carried over.
_PAUSE = 0.25


class Fault(enum.Enum):
    """What can be wrong; the file that it is told of is in the comment."""

    WRITES_TO_DELETED = enum.auto()  # -wal, -shm or the store: what a process has open, and has no name any more
    READS_DELETED = enum.auto()  # the same of one that only reads
    TAKEN_AWAY = enum.auto()  # -wal: it is gone, and its index knows of frames that are nowhere else
    CUT_OFF = enum.auto()  # -wal: it is shorter than its index says
    FOREIGN = enum.auto()  # -wal: beside a store that is not in WAL mode
    ORPHANED = enum.auto()  # -wal: its store is gone, or has no bytes
    WIPED = enum.auto()  # -wal: its store was overwritten
    STUCK = enum.auto()  # -wal: many frames wait, and nobody carries them over
    WAITING = enum.auto()  # -wal: frames wait for the next opening
    PUT_ASIDE = enum.auto()  # a capture: its frames may be nowhere else
    PUT_ASIDE_CARRIED = enum.auto()  # a capture: its frames are in the store's file
    SERVED_DISK = enum.auto()  # the store: WAL mode where another machine serves the file system
    LAID_DISK = enum.auto()  # the store: WAL mode on a file system of FUSE
    HOT_JOURNAL = enum.auto()  # -journal: a transaction is to be taken back


class LogFault(NamedTuple):
    """One fault. ``file``: its name, relative to the store's folder; ``store``: the store that it belongs to.

    ``frames`` and ``bytes``: how much is at stake. ``retired``: who has a deleted file open, ``others``: who else has
    to do with it. ``two``: the others have made a log of their own, so that there are two generations of the store.
    """

    fault: Fault
    file: str
    store: Path
    frames: int = 0
    bytes: int = 0
    retired: tuple[Opener, ...] = ()
    others: tuple[Opener, ...] = ()
    two: bool = False
    disk: str = ""


def log_faults(view: StoreView) -> Iterator[LogFault]:
    """Give what is wrong with the log, the journal and their place; each file is told of once, as its worst."""
    if view.bundle is not None:
        # A private copy has an index of its own, made from the log that was copied.
        yield from _faults(_Seen(view.bundle, view.held, view.opened, lambda: openers_of(view)))


def faults_of_wreck(path: Path) -> Iterator[LogFault]:
    """Give the same of a store that cannot be opened; it may be so because of its log. Nobody here has it open."""
    try:
        bundle = inspect(path)
    except StoreProblem:
        store = path.resolve()
        log = sidecar(store, "-wal")
        size = size_of(log)
        if size is not None and size > LOG_HEADER_BYTES:
            yield LogFault(Fault.WIPED if size_of(store) else Fault.ORPHANED, log.name, store, bytes=size)
        return
    yield from _faults(_Seen(bundle, "unknown", bundle.real_path, cache(lambda: openers(bundle))))


def openers_of(view: StoreView) -> list[Opener]:
    """Return the processes that have the store open; none where nobody has it open for writing."""
    return view.once(_openers)


def _openers(view: StoreView) -> list[Opener]:
    return openers(view.bundle) if view.bundle is not None and view.held != "no" else []


class _Seen(NamedTuple):
    """What is looked at: the store's files, whether it is held, what was opened in its place, and who has it open."""

    bundle: Bundle
    held: str
    opened: Path
    openers: Callable[[], list[Opener]]


def _faults(seen: _Seen) -> Iterator[LogFault]:
    bundle = seen.bundle
    deleted = next(_of_deleted(seen), None)
    if deleted is not None:
        yield deleted
    elif _is_foreign(bundle) and seen.held != "yes":
        yield LogFault(Fault.FOREIGN, *_named(bundle, "-wal"), bytes=bundle.wal_bytes or 0)
    else:
        yield from _of_log(seen)
    yield from _of_captures(bundle)
    if bundle.journal_mode == "wal" and (deleted is None or deleted.file != bundle.real_path.name):
        yield from _of_disk(bundle)
    # Beside a living writer a journal is what a transaction under way looks like.
    if bundle.journal_hot and seen.held == "no":
        yield LogFault(Fault.HOT_JOURNAL, *_named(bundle, "-journal"), bytes=bundle.journal_bytes or 0)


def _of_deleted(seen: _Seen) -> Iterator[LogFault]:
    bundle = seen.bundle
    # Where nobody has this file open, somebody may still have the one that was there before it; hermes is a Python.
    looked_at = seen.openers() if seen.held != "no" else openers(bundle, any_program=False)
    retired = without_files(looked_at, bundle)
    writers = tuple(each for each in retired if each.store.writes)
    readers = tuple(each for each in retired if not each.store.writes)
    pids = {each.pid for each in retired}
    for fault, some in ((Fault.WRITES_TO_DELETED, writers), (Fault.READS_DELETED, readers)):
        if some:
            others = tuple(each for each in seen.openers() if each.pid not in pids and each.store.writes)
            suffix = next(name for name in ("-wal", "-shm", "") if any(name in each.deleted for each in some))
            replaced = any(each.store.inode != bundle.inode for each in some)
            two = bool(others) or replaced or size_of(bundle.wal_path) is not None
            yield LogFault(fault, *_named(bundle, suffix), retired=some, others=others, two=two)


def _is_foreign(bundle: Bundle) -> bool:
    """Whether there is a log that the store's header knows nothing of: SQLite reads it all the same.

    Going over to WAL writes the header first, and going back deletes the log first.
    """
    return bundle.journal_mode == "rollback" and (bundle.wal_bytes or 0) > LOG_HEADER_BYTES


def _of_log(seen: _Seen) -> Iterator[LogFault]:
    bundle = seen.bundle
    log = read_log(bundle.real_path) or read_log(seen.opened)
    if log is None:
        return
    gone, named = not log.bytes, _named(bundle, "-wal")
    if log.missing and (seen.held == "no" or (gone and seen.held != "yes")):
        yield LogFault(Fault.TAKEN_AWAY if gone else Fault.CUT_OFF, *named, frames=log.missing)
    elif log.waiting and seen.held == "no":
        yield LogFault(Fault.WAITING, *named, frames=log.waiting, bytes=log.waiting * log.index.page_size)
    elif log.waiting >= MANY_FRAMES:
        yield from _of_stuck(seen, log)


def _of_stuck(seen: _Seen, log: Log) -> Iterator[LogFault]:
    """Look twice: a checkpoint of much takes its time."""
    bundle = seen.bundle
    if _busy(bundle, log).checkpointing:
        return
    time.sleep(_PAUSE)
    later = read_log(bundle.real_path)
    if later is None or later.waiting < MANY_FRAMES or later.index.carried != log.index.carried:
        return
    busy = _busy(bundle, later)
    if not busy.checkpointing:
        readers = tuple(each for each in seen.openers() if each.pid in busy.readers)
        size = later.waiting * later.index.page_size
        yield LogFault(Fault.STUCK, *_named(bundle, "-wal"), frames=later.waiting, bytes=size, others=readers)


def _busy(bundle: Bundle, log: Log) -> Busy:
    return who_is_busy(bundle.real_path, log.index)


def _of_captures(bundle: Bundle) -> Iterator[LogFault]:
    """Give the logs that hermes (0.21.5 on) put aside when they were deleted under it; nobody has these open."""
    for file in nearby(bundle):
        if file.kind is not Kind.RETIRED_LOG or not file.is_folder:
            continue
        store = file.path / bundle.real_path.name
        size = size_of(sidecar(store, "-wal"))
        log = read_log(store)
        carried = (size or 0) <= LOG_HEADER_BYTES or (log is not None and log.waiting == log.missing == 0)
        fault = Fault.PUT_ASIDE_CARRIED if carried else Fault.PUT_ASIDE
        yield LogFault(fault, file.name, store, frames=log.waiting if log else 0, bytes=size or 0)


def _of_disk(bundle: Bundle) -> Iterator[LogFault]:
    disk = shared_disk(bundle.real_path)
    if disk is not None:
        fault = Fault.SERVED_DISK if disk.trust is Trust.SERVED else Fault.LAID_DISK
        yield LogFault(fault, *_named(bundle, ""), disk=disk.type)


def _named(bundle: Bundle, suffix: str) -> tuple[str, Path]:
    """Return a file's name and the store that it belongs to, as each fault says them."""
    return bundle.real_path.name + suffix, bundle.real_path
