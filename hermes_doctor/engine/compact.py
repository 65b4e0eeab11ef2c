"""`doctor compact`: what a VACUUM would give back of a store, what stands in its way, and the VACUUM itself.

Nothing is journaled, for there is nothing to take back: rows stay what they are, and SQLite does it all in one
transaction. Whatever ends it half-way, the store is as it was before.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import apsw

from hermes_doctor.engine.gates import Planned, Refusal, another_doctor, busy, refusal
from hermes_doctor.engine.halts import halt_of_moved
from hermes_doctor.engine.journal import folder_of
from hermes_doctor.engine.model import ExitCode
from hermes_doctor.engine.plan import Outcome
from hermes_doctor.engine.scan import Progress, ScanOptions, StoreScan, scan_store
from hermes_doctor.engine.steps import Step, reach
from hermes_doctor.engine.stopping import Stop, Stopped
from hermes_doctor.host.bundle import Bundle, Condition
from hermes_doctor.host.holders import named, others_at
from hermes_doctor.host.homes import StoreRef
from hermes_doctor.host.locks import LockTakenError, doctor_lock, upstream_maintenance_lock
from hermes_doctor.host.same_files import SameFiles, StoreMovedError
from hermes_doctor.host.upstream import for_damage, printable, quoted
from hermes_doctor.store.cells import quote
from hermes_doctor.store.compaction import Extent, Room, extent, room_for_vacuum
from hermes_doctor.store.integrity import ask
from hermes_doctor.store.opening import damage_of
from hermes_doctor.store.shape import read_shape
from hermes_doctor.store.view import StoreView
from hermes_doctor.store.writing import keep_log, open_for_writing

_AGAIN = "then type the same command again"
_AS_BEFORE = "the store is as it was before"
#: What SQLite is asked for of a file that it finds damaged: any line will do.
_LINES = 20
#: Steps of SQLite between two questions whether to stop.
_STEPS = 2000

#: Of a VACUUM less than the first half is the copying of rows, by which it can be told how far it is; what follows, in
#: which SQLite answers nothing, takes somewhat longer.
_COPYING = 2.2

#: What a VACUUM must leave as it was.
_SETTINGS = ("journal_mode", "page_size", "auto_vacuum", "encoding", "application_id", "user_version")


@dataclass(frozen=True)
class Verified:
    """What was proved after a VACUUM, beside that SQLite finds the file sound and its settings are as before.

    ``tables`` and ``rows``: how many were compared by number; None where somebody wrote to the store meanwhile.
    """

    tables: int | None
    rows: int | None


@dataclass
class StoreCompact:
    """What a plan to compact a store, or the work of it, came to.

    ``before`` and ``after``: what the store took up, None where that was not come to. ``rooms``: what is needed where.
    """

    ref: StoreRef
    scan: StoreScan
    applied: bool
    before: Extent | None = None
    after: Extent | None = None
    rooms: tuple[Room, ...] = ()
    verified: Verified | None = None
    would_be_refused: str | None = None
    reason: str | None = None
    outcome: Outcome = "nothing-to-do"
    exit_code: ExitCode = ExitCode.CLEAN

    def __post_init__(self) -> None:
        # No check looks for anything.
        self.scan.findings.close()

    @property
    def gives_back(self) -> int:
        """Bytes that a VACUUM would give back at least."""
        return self.before.free_bytes if self.before is not None else 0

    @property
    def gave_back(self) -> int | None:
        """Bytes of file and log that the disk has back; negative where the store takes up more than before."""
        return None if self.before is None or self.after is None else self.before.bytes - self.after.bytes

    def end(self, outcome: Outcome, code: ExitCode, reason: str | None = None) -> None:
        """Say how it ended, and where it did not end well, why, and what to type."""
        self.outcome, self.exit_code, self.reason = outcome, code, reason


def compact_store(
    ref: StoreRef, *, apply: bool, stop: Stop, options: ScanOptions | None = None, progress: Progress | None = None
) -> StoreCompact:
    """Plan to compact one store, or with ``apply`` do it.

    Never raises for what stands in the way: the outcome, the exit code and the reason say it. A plan changes nothing
    and leaves no trace.
    """
    another = another_doctor(ref.path) if apply else None
    if another is not None:
        result = StoreCompact(ref, StoreScan(ref), applied=True)
        result.end("refused", another.code, another.reason)
        return result
    result, stands = _plan(ref, options or ScanOptions(), progress, applied=apply)
    if result.outcome != "planned":
        return result
    if not apply:
        result.would_be_refused = stands.reason if stands is not None else None
    elif stands is not None:
        result.end("refused", stands.code, stands.reason)
    else:
        _do(result, stop, progress)
    return result


def _plan(
    ref: StoreRef, options: ScanOptions, progress: Progress | None, *, applied: bool
) -> tuple[StoreCompact, Refusal | None]:
    found: list[Extent] = []

    def look(scan: StoreScan, view: StoreView) -> None:
        assert scan.bundle is not None, "what is looked at has been found"
        found[:] = [extent(view.reader.connection, scan.bundle.size, scan.bundle.wal_bytes or 0)]

    scan = scan_store(ref, [], options, progress, look)
    result = StoreCompact(ref, scan, applied)
    code = scan.exit_code(None)
    if code is not ExitCode.CLEAN or not found:
        result.end("failed", code or ExitCode.FAILED, scan.reason or "the store could not be read")
        return result, None
    result.before = found[0]
    if not result.before.free_pages:
        return result, None
    result.end("planned", ExitCode.FINDINGS)
    try:
        result.rooms = tuple(room_for_vacuum(_bundle(scan).real_path, result.before.bytes))
    except OSError as error:
        return result, Refusal(ExitCode.REFUSED, f"it cannot be told how much room there is: {error.strerror}")
    return result, _obstacle(result)


def _bundle(scan: StoreScan) -> Bundle:
    assert scan.bundle is not None, "a store that was read has been looked at"
    return scan.bundle


def _obstacle(result: StoreCompact) -> Refusal | None:
    """Return what stands in the way of a VACUUM: of all that writes, then what is its own."""
    stands = refusal(result.scan, Planned(0, 0, False), backup="never", command=("compact",), free=sys.maxsize)
    if stands is not None:
        return stands
    replica = _replica(_bundle(result.scan))
    if replica is not None:
        return Refusal(
            ExitCode.REFUSED,
            f"Litestream replicates this store ({printable(replica)}), and a VACUUM has broken such replicas: stop "
            f"Litestream, move {quoted(replica)} away so that it begins anew afterwards, {_AGAIN}",
        )
    for room in result.rooms:
        if not room.is_enough:
            elsewhere = " (SQLITE_TMPDIR names another folder)" if room is not result.rooms[0] else ""
            return Refusal(
                ExitCode.REFUSED,
                f"there is too little room on the file system of {printable(room.folder)}{elsewhere}: {room.needed:,} "
                f"bytes are needed meanwhile, {room.free:,} are free: free some, {_AGAIN}",
            )
    return None


def _replica(bundle: Bundle) -> Path | None:
    """Return what Litestream keeps beside a store that it replicates (upstream 57752)."""
    for path in dict.fromkeys((bundle.path, bundle.real_path)):
        for name in (f".{path.name}-litestream", f"{path.name}-litestream"):
            if path.with_name(name).exists():
                return path.with_name(name)
    return None


def _do(result: StoreCompact, stop: Stop, progress: Progress | None) -> None:
    """Do it under the locks that keep other doctors, and the maintenance of hermes, away."""
    folder = folder_of(result.ref.path)
    work = _Work(result, stop, progress)
    try:
        with ExitStack() as locks:
            folder.mkdir(mode=0o700, exist_ok=True)
            locks.enter_context(doctor_lock(folder))
            locks.enter_context(upstream_maintenance_lock(result.ref.path))
            reach(Step.COMPACT_LOCKED)
            work.run()
    except LockTakenError as taken:
        result.end("refused", ExitCode.BUSY, busy(taken.holder))
    except Stopped as stopped:
        after = "it is compacted, but not all of it was verified" if work.done else _AS_BEFORE
        result.end("stopped", ExitCode.STOPPED, f"{stopped}; {after}")
    except StoreMovedError as moved:
        code, reason = halt_of_moved(moved, result.scan)
        result.end("stopped" if code is ExitCode.STOPPED else "failed", code, reason)
    except _Damaged as damaged:
        result.scan.condition = Condition.DAMAGED
        result.scan.next_step = for_damage(result.ref.path, result.scan.schema_version, result.ref.profile)
        result.end("failed", ExitCode.DAMAGED, str(damaged))
    except (OSError, apsw.Error) as error:
        work.failed(error)


class _Damaged(Exception):  # noqa: N818  # it describes the store, not an error of the program
    """SQLite finds the file damaged."""


class _Work:
    """The VACUUM of one store, with what is looked at before and after it."""

    def __init__(self, result: StoreCompact, stop: Stop, progress: Progress | None) -> None:
        self.result = result
        self.bundle = _bundle(result.scan)
        self.stop = stop
        self.progress = progress
        #: Whether the VACUUM is committed.
        self.done = False

    def run(self) -> None:
        """Check, VACUUM, empty the log, check again, and measure."""
        connection = open_for_writing(self.bundle.real_path)
        try:
            # Without them a check does not go into the texts of search indexes, which takes long and finds fault with
            # what other versions of SQLite wrote; and no tokenizer is asked for that this machine may lack.
            connection.drop_modules(None)
            if self.bundle.journal_mode == "wal":
                # Nobody else can open it from the first look to the last, so that the log may be cut. In rollback
                # mode this would leave an old journal behind if the work were killed, and there is no log.
                connection.pragma("locking_mode", "exclusive")
            self._check(connection, "checking", "VACUUM could spread the damage, nothing was changed")
            with self._watched(connection, "checking"):
                before = _Sight.of(connection)
            files = SameFiles(self.bundle)
            files.opened()
            others = named(others_at(self.bundle))
            if others:
                raise Stopped(f"{others} opened the store meanwhile")
            self.result.before = self._extent(connection)
            reach(Step.COMPACT_CHECKED)
            files.check()
            with self._watched(connection, "compacting"):
                connection.execute("VACUUM")
            self.done = True
            reach(Step.COMPACTED)
            if self.bundle.journal_mode == "wal":
                alone = not others_at(self.bundle)
                mode = apsw.SQLITE_CHECKPOINT_TRUNCATE if alone else apsw.SQLITE_CHECKPOINT_PASSIVE
                # All is safe in the log: where it cannot be cut now, hermes does it later.
                with suppress(apsw.Error):
                    connection.wal_checkpoint(mode=mode)
                # A log that was not there goes with its last connection, as ever; locks keep everybody else out.
                keep_log(connection, keep=not alone or self.bundle.wal_bytes is not None)
            files.note()
            reach(Step.COMPACT_CUT)
            self.result.after = self._extent(connection)
            self._verify(connection, before)
            files.check()
            reach(Step.COMPACT_VERIFIED)
        finally:
            connection.close()
        self.result.end("compacted", ExitCode.CLEAN)

    def failed(self, error: OSError | apsw.Error) -> None:
        """Say what the machine, or SQLite, could not do."""
        stands = "it is compacted, but was not verified" if self.done else _AS_BEFORE
        if isinstance(error, (apsw.CantOpenError, OSError)) and not self.result.ref.path.exists():
            self.result.scan.condition = Condition.MISSING
            name = printable(self.result.ref.path)
            self.result.end("failed", ExitCode.DAMAGED, f"{name} was moved away or deleted meanwhile")
            return
        problem = damage_of(error, self.result.ref.path, self.result.ref.profile, self.result.scan.schema_version)
        if isinstance(error, apsw.BusyError | apsw.LockedError):
            self.result.end("stopped", ExitCode.STOPPED, f"somebody else is at work on the store; {stands}")
        elif isinstance(error, apsw.FullError):
            self.result.end("failed", ExitCode.FAILED, f"the disk is full: {stands}; free some room, {_AGAIN}")
        elif problem is not None:
            code = ExitCode.DAMAGED if problem.condition is Condition.DAMAGED else ExitCode.FAILED
            self.result.scan.condition, self.result.scan.next_step = problem.condition, problem.next_step
            self.result.end("failed", code, f"{problem.reason}: {stands}")
        else:
            self.result.end("failed", ExitCode.FAILED, f"the machine stopped the work ({error}): {stands}")

    def _check(self, connection: apsw.Connection, step: str, means: str) -> None:
        share = _share(connection, 2.0)
        answer = ask(connection, _LINES, how="quick_check", stop=lambda: self._asked(step, share))
        self.stop.check()
        if not answer.finished and not answer.problems:
            raise apsw.SQLError("this machine lacks what a check of the whole file needs")
        if answer.problems:
            raise _Damaged(f"{printable(self.result.ref.path)} is damaged: {means}")

    def _verify(self, connection: apsw.Connection, before: _Sight) -> None:
        self._check(connection, "verifying", "it was sound before the VACUUM: keep it as it is")
        with self._watched(connection, "verifying"):
            after = _Sight.of(connection)
        differing = before.differences(after)
        if differing:
            raise _Damaged(f"{printable(self.result.ref.path)} is not what it was in {', '.join(differing)}")
        alone = before.version == after.version
        self.result.verified = Verified(len(after.rows) if alone else None, sum(after.rows.values()) if alone else None)

    @contextmanager
    def _watched(self, connection: apsw.Connection, step: str) -> Iterator[None]:
        """Break off whatever SQLite does inside where an end was asked for. It is rolled back."""
        mark = object()
        share = _share(connection, _COPYING)
        connection.set_progress_handler(lambda: self._asked(step, share), _STEPS, id=mark)
        try:
            self.stop.check()
            self._asked(step, share)
            yield
        except apsw.InterruptError:
            self.stop.check()
            raise
        finally:
            connection.set_progress_handler(None, id=mark)

    def _asked(self, step: str, share: Callable[[], float]) -> bool:
        """Tell what is under way, and whether an end was asked for."""
        if self.progress is not None:
            self.progress(self.result.ref.path, step, share())
        return bool(self.stop)

    def _extent(self, connection: apsw.Connection) -> Extent:
        return extent(connection, self.bundle.real_path.stat().st_size, _size_of(self.bundle.wal_path))


def _share(connection: apsw.Connection, readings: float) -> Callable[[], float]:
    """Return what tells how much is done of something that reads every page in use so many times, 0 to 1."""
    pages, free = (int(str(connection.pragma(name))) for name in ("page_count", "freelist_count"))
    read = partial(connection.status, apsw.SQLITE_DBSTATUS_CACHE_MISS, False)
    before = read()[0]
    return lambda: min((read()[0] - before) / (readings * max(pages - free, 1)), 1.0)


def _size_of(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


@dataclass(frozen=True)
class _Sight:
    """What a VACUUM must leave as it was. ``version`` changes when somebody else writes to the store."""

    settings: dict[str, str]
    rows: dict[str, int]
    highest: int | None
    counters: tuple[tuple[str, int], ...]
    version: int

    @classmethod
    def of(cls, connection: apsw.Connection) -> _Sight:
        """Look at all ordinary tables."""
        version = int(str(connection.pragma("data_version")))
        settings = {name: str(connection.pragma(name)) for name in _SETTINGS}
        shape = read_shape(connection)
        rows = {
            table.name: int(str(connection.execute(f"SELECT count(*) FROM {quote(table.name)}").get))
            for table in shape.tables.values()
        }
        highest = None
        if shape.has("messages", "id"):
            highest = connection.execute("SELECT max(id) FROM messages").get
        counters: tuple[tuple[str, int], ...] = ()
        if connection.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'sqlite_sequence'").get:
            counters = tuple(connection.execute("SELECT name, seq FROM sqlite_sequence ORDER BY 1, 2"))
        return cls(settings, rows, highest, counters, version)

    def differences(self, after: _Sight) -> list[str]:
        """Name what is not as it was; rows and ids only where nobody else has written meanwhile."""
        differing = [name for name in _SETTINGS if self.settings[name] != after.settings[name]]
        if self.version != after.version:
            return differing
        tables = sorted(self.rows.keys() | after.rows.keys())
        differing += [
            f"the rows of {printable(name)}" for name in tables if self.rows.get(name) != after.rows.get(name)
        ]
        differing += ["the highest id of messages"] if self.highest != after.highest else []
        return differing + (["the counters of ids"] if self.counters != after.counters else [])
