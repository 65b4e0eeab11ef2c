"""Opening a store for reading without leaving a trace: no new file, no changed byte, size or modification time.

The rung is chosen before SQLite opens anything, from stat, a hundred header bytes, and a read lease:

====  =================================  =====================================================================
rung  what is found                      how it is read
====  =================================  =====================================================================
a     ``-wal`` and ``-shm`` are there    ``mode=ro&readonly_shm=1``. Left behind by a crash, with nobody having
                                         it open: SQLite builds the log's index in memory
b     rollback mode                      ``mode=ro``: short shared locks. A journal that would have to be rolled
                                         back (SQLite's own test): rung e
c     WAL mode, no ``-wal``, or an       ``immutable=1`` while a lease proves that nobody has it open for
      empty one without ``-shm``         writing. When the lease breaks, `OpenStore.moved` says so: reopen
d     the same, but no lease to be had   a private copy; where there is no room for one, ``mode=ro``, and what
                                         that leaves in the folder is named in `OpenStore.trace`
e     a hot journal, or a ``-wal`` with  a private copy of the bundle in a 0700 temporary folder, recovered
      content but no ``-shm``            there; condition ``needs-recovery`` unless somebody has it open
====  =================================  =====================================================================

SQLite creates a missing ``-wal`` even for a ``mode=ro`` connection on a WAL database, and recovers, that is writes,
where it finds a log without an index; hence c to e. ``immutable`` ignores locks, log and journal; hence the lease.
"""

from __future__ import annotations

import enum
import errno
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import apsw

from hermes_doctor.host.bundle import (
    Bundle,
    Condition,
    StoreProblem,
    copy_file,
    inspect,
    unreadable,
)
from hermes_doctor.host.holders import Holding, find_holding, named
from hermes_doctor.host.lease import Lease, LeaseRefusal, take_lease
from hermes_doctor.host.private_folder import PrivateFolder
from hermes_doctor.host.upstream import for_damage, printable
from hermes_doctor.store.cells import CODECS
from hermes_doctor.store.connecting import BUSY_SECONDS, connect
from hermes_doctor.store.reader import Pace
from hermes_doctor.store.shape import KNOWN_SCHEMA, foreign_collations

#: Looks at a store that changes between look and opening, and the pauses after one, each twice as long.
_TRIES = 12
_PAUSE = 0.02
_LONGEST_PAUSE = 0.2
#: Of these looks, so many wait for the log of somebody who has the store open without one, or try again what SQLite
#: could not open: both may last.
_PATIENT_LOOKS = 4
_COPY_TRIES = 3
#: A file changed more recently than this, in seconds, is not copied yet: modification times are coarse, a second
#: change within the same tick would not show.
_SETTLED = 0.05
#: Free bytes that a private copy leaves in the temporary folder, for the log's index and for sorting.
_SPARE_BYTES = 16 * 1024 * 1024

_CORE = {"sessions": {"id", "source", "started_at"}, "messages": {"id", "session_id", "role"}}


class Rung(enum.StrEnum):
    """How a store was opened; the table above."""

    SHARED_WAL = "a"
    ROLLBACK = "b"
    IMMUTABLE = "c"
    UNLEASED = "d"
    RECOVERED = "e"


class MovedError(Exception):
    """The store changed between the look and the opening."""


class _NoRoom(Exception):  # noqa: N818  # no error: there is another way, or a StoreProblem is made of it
    """A private copy does not fit into the temporary folder."""

    def __init__(self, needed: int, folder: Path) -> None:
        super().__init__(needed)
        self.needed = needed
        self.folder = folder


@dataclass
class OpenStore:
    """A store that is open for reading; close it, or use it as a context manager.

    ``bundle``: the files as they were just before. ``condition``: readable, needs-recovery or newer-schema; the last
    outranks the others. ``trace``: what opening it had to leave in the store's folder, as a rule nothing. ``note``:
    one line about what this view of the store cannot show. ``private``: it is a copy, and nobody waits for us.
    """

    connection: apsw.Connection
    bundle: Bundle
    rung: Rung
    condition: Condition
    holding: Holding
    trace: list[str] = field(default_factory=list)
    lease: Lease | None = None
    private: bool = False
    schema_version: int | None = None
    note: str | None = None
    _cleanup: ExitStack = field(default_factory=ExitStack, repr=False)

    @property
    def pace(self) -> Pace:
        """How fast this store may be read without making anybody wait."""
        if self.private or self.rung is Rung.IMMUTABLE:
            return Pace.FREE
        return Pace.SLICED if self.rung is Rung.ROLLBACK else Pace.SNAPSHOT

    def another(self) -> apsw.Connection:
        """Return one more connection to what this one reads; it is closed with the store.

        It leaves no trace either, since everything that it needs is there. Raises what SQLite raises.
        """
        how = {Rung.IMMUTABLE: "immutable=1", Rung.SHARED_WAL: "readonly_shm=1", Rung.ROLLBACK: "readonly_shm=1"}
        options = "mode=rw" if self.private else f"mode=ro&{how[self.rung]}" if self.rung in how else "mode=ro"
        file = Path(self.connection.filename) if self.private else self.bundle.real_path
        connection = connect(file, options)
        self._cleanup.callback(connection.close)
        return connection

    def undisturbed(self) -> bool:
        """Tell whether it is proven that nobody has been able to write since the store was opened."""
        return self.private or (self.lease is not None and self.lease.intact())

    def moved(self) -> bool:
        """Tell whether this connection no longer shows the store.

        Either somebody opened for writing what is read as immutable: what was read since is void, reopen (rung a or
        b then). Or another file was put in its place, or it was cut off; after a VACUUM, too, it is looked at anew. A
        private copy stays what it is, the moment it was made.
        """
        if self.private:
            return False
        if self.rung is Rung.IMMUTABLE and (self.lease is None or not self.lease.intact()):
            return True
        try:
            status = self.bundle.path.stat()
        except OSError:
            return True
        same = (status.st_dev, status.st_ino) == (self.bundle.device, self.bundle.inode)
        return not same or status.st_size < self.bundle.size

    def close(self) -> None:
        """Close the connection, give the lease back, remove a private copy. May be called more than once."""
        self._cleanup.close()

    def __enter__(self) -> OpenStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_without_trace(
    path: Path,
    *,
    busy_seconds: float = BUSY_SECONDS,
    lease: Lease | LeaseRefusal | None = None,
    temporary: Path | None = None,
    hermes_only: bool = True,
) -> OpenStore:
    """Open a store for reading and leave no trace of it.

    ``busy_seconds``: how long a lock is waited for. ``lease``: an answer of `take_lease` that the caller has already,
    used once. ``temporary``: where private copies go, else the system's temporary folder.
    ``hermes_only``: refuse a database that is not a hermes store; False for hermes's other databases.

    Raises StoreProblem for a store that cannot be read, and RuntimeError where this process has it open already:
    reading its raw header would drop that connection's locks.
    """
    left: list[Path] = []
    pause = _PAUSE
    for look in range(_TRIES):
        with ExitStack() as cleanup:
            try:
                store = _open(path, busy_seconds, lease, temporary, hermes_only, left, look, cleanup)
            except MovedError:
                lease = None
            else:
                store._cleanup = cleanup.pop_all()
                return store
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
    raise StoreProblem(
        Condition.UNREADABLE,
        f"{printable(path)} keeps being opened, closed or replaced while the doctor looks at it",
        "try again in a moment",
    )


@dataclass(frozen=True)
class _Request:
    """What all ways of opening need. What has to be undone on failure and on closing goes to ``cleanup``."""

    bundle: Bundle
    holding: Holding
    busy_seconds: float
    temporary: Path
    hermes_only: bool
    left: list[Path]
    cleanup: ExitStack


@dataclass(frozen=True)
class _Opened:
    """A connection whose schema has been read."""

    connection: apsw.Connection
    schema_version: int | None
    private: bool


def _open(
    path: Path,
    busy_seconds: float,
    given: Lease | LeaseRefusal | None,
    temporary: Path | None,
    hermes_only: bool,
    left: list[Path],
    look: int,
    cleanup: ExitStack,
) -> OpenStore:
    """Look, choose the rung, open. Raises MovedError where the store changed meanwhile."""
    answer = take_lease(inspect(path).real_path) if given is None else given
    lease = answer if isinstance(answer, Lease) else None
    if lease is not None:
        cleanup.callback(lease.release)
    # Again, now that a lease stands guard over what is seen.
    bundle = inspect(path)
    holding = find_holding(bundle, answer)
    rung = _choose(bundle, lease)
    if rung is Rung.UNLEASED and answer is LeaseRefusal.HELD and look < _PATIENT_LOOKS:
        # Somebody is just opening it: the log appears in a moment.
        raise MovedError
    if lease is not None and rung is Rung.RECOVERED:
        lease.release()
    folder = temporary or Path(tempfile.gettempdir())
    request = _Request(bundle, holding, busy_seconds, folder, hermes_only, left, cleanup)
    try:
        rung, opened = _by_rung(rung, request)
    except apsw.Error as error:
        again = isinstance(error, apsw.CantOpenError) and (look < _PATIENT_LOOKS or holding.state == "yes")
        if _sidecars_changed(request) or again:
            raise MovedError from None
        raise _first_read_problem(error, bundle, holding) from None
    if rung is Rung.IMMUTABLE and (
        lease is None or not lease.intact() or bundle.wal_path.exists() != (bundle.wal_bytes is not None)
    ):
        raise MovedError
    if rung is Rung.ROLLBACK and opened.connection.pragma("journal_mode") == "wal":
        raise MovedError
    return OpenStore(
        connection=opened.connection,
        bundle=bundle,
        rung=rung,
        condition=_condition(rung, holding, opened.schema_version),
        holding=holding,
        trace=_trace(left, rung),
        lease=None if rung is Rung.RECOVERED else lease,
        private=opened.private,
        schema_version=opened.schema_version,
        note="somebody has a deleted -wal open: what was last written through it cannot be seen here"
        if holding.deleted_sidecar
        else None,
    )


def _choose(bundle: Bundle, lease: Lease | None) -> Rung:
    if bundle.wal_bytes is not None and bundle.shm:
        return Rung.SHARED_WAL
    if bundle.wal_bytes:
        return Rung.RECOVERED
    if bundle.journal_mode == "rollback":
        return Rung.ROLLBACK
    if bundle.journal_hot:
        return Rung.RECOVERED
    return Rung.UNLEASED if lease is None else Rung.IMMUTABLE


def _condition(rung: Rung, holding: Holding, schema_version: int | None) -> Condition:
    if schema_version is not None and schema_version > KNOWN_SCHEMA:
        return Condition.NEWER_SCHEMA
    # Where somebody has it open, the next access of theirs recovers it.
    recovers = rung is Rung.RECOVERED and holding.state != "yes"
    return Condition.NEEDS_RECOVERY if recovers else Condition.READABLE


def _by_rung(rung: Rung, request: _Request) -> tuple[Rung, _Opened]:
    """Open by the rung; also give the rung that it came to be."""
    if rung is Rung.UNLEASED:
        try:
            return rung, _copied(request)
        except _NoRoom:
            return rung, _leaving_a_trace(request)
    if rung is not Rung.RECOVERED:
        try:
            how = "immutable=1" if rung is Rung.IMMUTABLE else "readonly_shm=1"
            return rung, _in_place(request, f"mode=ro&{how}")
        except (apsw.ReadOnlyError, apsw.ProtocolError):
            # SQLite would have to roll back a journal, or to recover a log, to read it; or the log's index that is
            # there makes no sense to it, however often it looks.
            pass
    try:
        return Rung.RECOVERED, _copied(request)
    except _NoRoom as no_room:
        raise StoreProblem(
            Condition.UNREADABLE,
            f"{printable(request.bundle.path)} needs recovery, which the doctor does on a private copy; that takes "
            f"{no_room.needed:,} bytes, and {printable(no_room.folder)} has not as many free, or is not writable",
            "set TMPDIR to a folder with more room, or start hermes once: it recovers the store itself",
        ) from None


def _in_place(request: _Request, options: str) -> _Opened:
    """Open the store itself. Read-only, so that what needs a write is refused (SQLITE_READONLY), never done."""
    bundle = request.bundle
    with ExitStack() as stack:
        connection = connect(bundle.real_path, options, request.busy_seconds)
        stack.callback(connection.close)
        version = _read_schema(connection, bundle, hermes_only=request.hermes_only)
        request.cleanup.enter_context(stack.pop_all())
    return _Opened(connection, version, private=False)


def _leaving_a_trace(request: _Request) -> _Opened:
    """Open a WAL store without its log and without a lease: SQLite makes the log and its index, and leaves them."""
    bundle = request.bundle
    opened = _in_place(request, "mode=ro")
    if bundle.wal_bytes is None:
        request.left.append(bundle.wal_path)
    if not bundle.shm:
        request.left.append(bundle.shm_path)
    return opened


def _trace(left: list[Path], rung: Rung) -> list[str]:
    """Name what SQLite made in our name and what is still there; a log that somebody has taken over is theirs."""
    if rung is Rung.SHARED_WAL:
        return []
    return [f"{path.name} ({path.stat().st_size:,} bytes)" for path in dict.fromkeys(left) if path.exists()]


def _copied(request: _Request) -> _Opened:
    """Open a private copy of the bundle, writable there, so that SQLite recovers the copy.

    Raises _NoRoom, MovedError, StoreProblem, and what opening raises.
    """
    bundle = request.bundle
    sizes = bundle.size_with_log + (bundle.journal_bytes or 0)
    needed = sizes + _SPARE_BYTES
    with ExitStack() as stack:
        try:
            if shutil.disk_usage(request.temporary).free < needed:
                raise _NoRoom(needed, request.temporary)
            private = PrivateFolder(request.temporary)
        except OSError:
            # It is missing, or not writable.
            raise _NoRoom(needed, request.temporary) from None
        folder = Path(stack.enter_context(private))
        try:
            copy = copy_bundle(bundle, folder, held=request.holding.state == "yes")
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise _NoRoom(needed, request.temporary) from None
            if isinstance(error, FileNotFoundError):
                raise MovedError from None
            raise unreadable(bundle.path, error) from None
        connection = connect(copy, "mode=rw", request.busy_seconds)
        stack.callback(connection.close)
        version = _read_schema(connection, bundle, hermes_only=request.hermes_only)
        request.cleanup.enter_context(stack.pop_all())
    return _Opened(connection, version, private=True)


def copy_bundle(bundle: Bundle, folder: Path, *, held: bool, told: Callable[[int], object] | None = None) -> Path:
    """Copy the main file, the log and the journal as they are at one moment; never the log's index.

    ``told`` hears of the bytes of each piece that was copied; what it raises ends the copying. Raises StoreProblem
    where they never stand still for that long, MovedError where a sidecar came or went, or somebody who has the store
    open wrote meanwhile.
    """
    copy = folder / "state.db"
    sources = {"": bundle.real_path, "-wal": bundle.wal_path, "-journal": bundle.journal_path}
    for _ in range(_COPY_TRIES):
        before = {suffix: _stamp(source) for suffix, source in sources.items()}
        if (before["-wal"] is None) != (bundle.wal_bytes is None):
            raise MovedError
        for suffix, source in sources.items():
            target = copy.with_name(copy.name + suffix)
            target.unlink(missing_ok=True)
            if before[suffix] is not None:
                copy_file(source, target, told)
        if before == {suffix: _stamp(source) for suffix, source in sources.items()}:
            return copy
        if held:
            # Whoever writes to it has a log by now, or will have one in a moment.
            raise MovedError
    raise StoreProblem(
        Condition.UNREADABLE,
        f"{printable(bundle.path)} is written to all the time, and there is no other way to read it than a copy",
        "try again when hermes is less busy, or stop it for a moment",
    )


def _stamp(file: Path) -> tuple[int, int, int] | None:
    """Return what changes when a file does, None where there is none; first lets a change of just now settle."""
    for settled in (False, True):
        try:
            status = file.stat()
        except FileNotFoundError:
            return None
        if not settled and 0 <= time.time() - status.st_mtime_ns / 1e9 < _SETTLED:
            time.sleep(_SETTLED)
            continue
        break
    return status.st_ino, status.st_size, status.st_mtime_ns


def _read_schema(connection: apsw.Connection, bundle: Bundle, *, hermes_only: bool) -> int | None:
    """Read the schema for the first time; return its version, None where it tells none.

    Raises StoreProblem for a database that is not hermes's, unless any will do.
    """
    codec = CODECS.get(str(connection.pragma("encoding")), "utf-8")
    columns = {table: _columns(connection, table, codec) for table in ("sessions", "messages", "schema_version")}
    if hermes_only and not any(core <= columns[table] for table, core in _CORE.items()):
        raise StoreProblem(
            Condition.NOT_HERMES,
            f"{printable(bundle.path)} is a SQLite database, but not hermes's: it has neither sessions nor messages",
            "name a state.db, or the Hermes home that holds it",
        )
    orders = foreign_collations(connection)
    if orders:
        raise StoreProblem(
            Condition.UNREADABLE,
            f"{printable(bundle.path)} orders text in a way that only the program knows that made it so (collation"
            f" {printable(', '.join(orders))})",
            "drop the indexes and columns that use it, which hermes cannot read either",
        )
    if "version" not in columns["schema_version"]:
        return None
    version = connection.execute("SELECT max(version) FROM schema_version WHERE typeof(version) = 'integer'").get
    return version if isinstance(version, int) else None


def _columns(connection: apsw.Connection, table: str, codec: str) -> set[str]:
    """Return the names of a table's columns; asked for as bytes, since a name that is no text must not end it."""
    rows = connection.execute(
        "SELECT CAST(lower(c.name) AS BLOB) FROM sqlite_schema AS t, pragma_table_info(t.name) AS c"
        " WHERE t.type = 'table' AND lower(t.name) = ?",
        (table,),
    )
    return {bytes(name).decode(codec, "replace") for (name,) in rows}


def _sidecars_changed(request: _Request) -> bool:
    """Tell whether the log or its index came or went since the look.

    Where the log went after the look, SQLite has made an empty one for us: it is noted as left behind.
    """
    bundle = request.bundle
    try:
        status = bundle.wal_path.stat()
    except OSError:
        return bundle.wal_bytes is not None
    shm = bundle.shm_path.exists()
    changed = status.st_ino != bundle.wal_inode or status.st_size != bundle.wal_bytes or shm != bundle.shm
    if changed and status.st_size == 0 and not shm:
        request.left.append(bundle.wal_path)
    return changed


def _first_read_problem(error: apsw.Error, bundle: Bundle, holding: Holding) -> Exception:
    problem = damage_of(error, bundle.path, holding=holding)
    if problem is None and isinstance(error, apsw.SQLError):
        # Such as "unsupported file format": the statements are ours and right, the file is not.
        return _damaged(bundle.path, error, None, None)
    return problem or error


def damage_of(
    error: BaseException,
    path: Path,
    profile: str | None = None,
    schema_version: int | None = None,
    holding: Holding | None = None,
) -> StoreProblem | None:
    """Return what an error of SQLite says about the store, None where it says nothing about it.

    ``profile``, ``schema_version``: of the store, as far as known, for the next command to type. ``holding``: who has
    it open, to name who locks it.
    """
    if isinstance(error, apsw.CorruptError | apsw.NotADBError):
        return _damaged(path, error, profile, schema_version)
    if isinstance(error, apsw.IOError):
        if getattr(error, "extendedresult", 0) == apsw.SQLITE_IOERR_SHORT_READ:
            return _damaged(path, error, profile, schema_version)
        return StoreProblem(
            Condition.UNREADABLE, f"reading {printable(path)} failed: {_said(error)}", "check the disk it is on"
        )
    if isinstance(error, apsw.BusyError | apsw.LockedError | apsw.ProtocolError):
        who = named(holding.holders) if holding else ""
        return StoreProblem(
            Condition.UNREADABLE,
            f"{printable(path)} is locked by {who or 'another process'}",
            "try again in a moment; if it stays locked, stop hermes first",
        )
    if isinstance(error, apsw.CantOpenError | apsw.PermissionsError | apsw.AuthError | apsw.ReadOnlyError):
        return StoreProblem(
            Condition.UNREADABLE,
            f"{printable(path)} or a file beside it cannot be opened: {_said(error)}",
            "run the doctor as the user who runs hermes",
        )
    if isinstance(error, apsw.FullError):
        return StoreProblem(
            Condition.UNREADABLE,
            f"there is no room to work on {printable(path)}: {_said(error)}",
            "set TMPDIR to a folder with more room",
        )
    return None


def _damaged(path: Path, error: BaseException, profile: str | None, schema_version: int | None) -> StoreProblem:
    return StoreProblem(
        Condition.DAMAGED,
        f"{printable(path)} is damaged: {_said(error)}",
        for_damage(path, schema_version, profile),
    )


def _said(error: BaseException) -> str:
    """Return SQLite's own words, on one line."""
    return printable(" ".join(str(error).split()) or type(error).__name__)
