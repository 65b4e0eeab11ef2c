"""Mending a store beside a living hermes (`doctor fix --live`): what must hold, and giving way.

Before, while and after anything is written, all of this holds, or nothing is written any more:

* APSW's SQLite is fit, and the schema is known (`gates`, as ever);
* the store is in WAL mode, on a file system that this machine alone serves, its log and the log's index beside it;
* everybody who has it open can be seen, and has just these three files open, none of them deleted;
* hermes uses the index, so that opening the store makes nothing anew;
* the three files are the same ones all through: looked at when the store is opened, in every transaction just before
  the commit, every second, and before it is closed.

What is never done, on no path, so that a kill cannot leave it half done: a checkpoint, the removal of a log (both are
switched off on the connection before it reads), a change of the journal mode. Nor does a write of ours begin a log
anew beside a busy hermes: where its SQLite has the WAL-reset bug, that is what a checkpoint of its own must not meet.

Which rows: those whose fix declares itself (`Fix.live`), and whose session nobody may be using (`store.in_use`).
"""

from __future__ import annotations

import itertools
import random
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import apsw

from hermes_doctor.engine.cure import Fix
from hermes_doctor.engine.model import Finding
from hermes_doctor.engine.stopping import Stop
from hermes_doctor.host.bundle import Bundle
from hermes_doctor.host.holders import Holder, look_around, named
from hermes_doctor.host.lease import on_local_disk
from hermes_doctor.host.live_files import Generation, generation, strangers
from hermes_doctor.host.upstream import printable
from hermes_doctor.host.wal_files import LogIndex, index_users, read_log, who_is_busy
from hermes_doctor.store.cells import Key
from hermes_doctor.store.in_use import QUIET_SECONDS, in_use
from hermes_doctor.store.view import StoreView
from hermes_doctor.store.writing import BUSY_MILLISECONDS

#: How reasons begin why a row is left to hermes, so that they can be told from others.
LEFT = "left to the living hermes: "
_NOT_LIVE = f"{LEFT}this fix is carried out only while nobody has the store open"

_ASKED_AT_ONCE = 1000

#: One try for the write lock: so often it is asked for, at so many seconds' distance. Asking keeps nobody waiting; but
#: between two writes of a busy hermes the lock is free for a fraction of a millisecond.
_ASKED, _ASKED_EVERY = 50, 0.001
#: Pauses between tries, in seconds: the first, and the longest; each is about twice the one before.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0
#: Where the lock was not to be had for so long, in seconds, hermes is left alone for good.
PATIENCE_SECONDS = 30.0
#: How long hermes is waited for to begin its log anew itself, in seconds. If it does not write meanwhile, it is idle.
_RESTART_SECONDS = 2.0
#: A write of somebody else's within this time after one of ours, in seconds, may have waited for it.
_AFTER_OURS = 0.02


class GaveWayError(Exception):
    """The work beside a living hermes ends here; the text is one line for a person. What was committed stands."""


def obstacles(bundle: Bundle) -> Iterator[str]:
    """Give what keeps a store that somebody has open from being mended meanwhile, as clauses; nothing is opened."""
    name = printable(bundle.path)
    if not sys.platform.startswith("linux"):
        yield f"only on Linux can it be seen whether hermes and the doctor have the same files of {name} open"
        return
    if bundle.journal_mode != "wal":
        yield f"{name} is in rollback mode, in which a writer and a reader wait for one another, not in WAL mode"
        return
    if not on_local_disk(bundle.real_path):
        yield f"{name} is not on a file system that is known to be this machine's own, so locks on it may not hold"
        return
    files = generation(bundle.real_path)
    if files is None or files.store != (bundle.device, bundle.inode):
        yield f"the write-ahead log of {name}, or its index, is not beside it, although it is open"
        return
    stands = _out_of_sight(bundle, files) or others_astray(bundle, files)
    if stands is not None:
        yield stands
    elif all(inode != files.index[1] for _pid, inode in index_users()):
        yield f"nobody who has {name} open holds the lock on the index of its log, so opening it might make that anew"


def others_astray(bundle: Bundle, files: Generation) -> str | None:
    """Return who may write to other files than those that lie there, as a clause; None where nobody does."""
    astray = [Holder(each.pid, each.name) for each in strangers(bundle, files)]
    if astray:
        return f"{named(astray)} has not just the files open that lie there: they were deleted, moved, or replaced"
    return None


def _out_of_sight(bundle: Bundle, files: Generation) -> str | None:
    """Return who cannot be looked at although it may have the store open, as a clause; None for nobody."""
    holding = look_around(bundle)
    if holding.confined:
        return "not everybody who may have it open can be seen from here (another container, or another user)"
    # Who has a store in WAL mode open uses a log's index; so one that uses none has not, and one that uses another may.
    hidden = [pid for pid, inode in index_users() if pid in holding.unseen and inode != files.index[1]]
    if hidden:
        return f"process {hidden[0]} cannot be looked into, and it may have another log of the store open"
    return None


def quiet_seconds(idle_floor: float) -> float:
    """How long a session must not have been used: ten minutes, or longer where ``--idle`` says so."""
    return max(QUIET_SECONDS, idle_floor)


def left_to_hermes(finding: Finding, fix: Fix, used: Mapping[Key, str]) -> str | None:
    """Return why a row is left alone beside a living hermes, None where it may be mended.

    ``used``: what `used_sessions` says of the sessions of the findings that are asked about.
    """
    if not fix.live(finding):
        return _NOT_LIVE
    why = used.get(finding.session)
    return None if why is None else f"{LEFT}{why}"


def is_left_to_hermes(reason: str | None) -> bool:
    """Whether a change's reason is one of `left_to_hermes`."""
    return reason is not None and reason.startswith(LEFT)


def used_sessions(view: StoreView, findings: Iterable[Finding]) -> dict[Key, str]:
    """Return which sessions of the findings may be in use, and why; a bounded number is asked about at once."""
    used: dict[Key, str] = {}
    sessions = (finding.session for finding in findings if finding.session is not None)
    while some := set(itertools.islice(sessions, _ASKED_AT_ONCE)):
        used.update(in_use(view, some, quiet=quiet_seconds(view.idle_floor)))
    return used


class Beside:
    """One run's place beside a living hermes: it takes the write lock only where nobody is kept waiting."""

    def __init__(self, bundle: Bundle, stop: Stop) -> None:
        """Look at the files. Raises GaveWayError where they are not as `obstacles` wants them."""
        self._path: Path = bundle.real_path
        self._bundle = bundle
        self._stop = stop
        self._version: int | None = None
        #: Whether somebody else was found writing when the lock was last asked for.
        self.crowded = False
        files = generation(self._path)
        if files is None:
            raise GaveWayError("hermes closed the store meanwhile; type the same command again")
        self._files = files

    def opened(self) -> None:
        """Make sure that what SQLite has opened is what was looked at. Raises GaveWayError."""
        self.check()
        if not self._files.is_open_here():
            raise GaveWayError("the store was replaced while the doctor opened it; type the same command again")

    def check(self) -> None:
        """Make sure that the files are the same. Raises GaveWayError."""
        if generation(self._path) != self._files:
            raise GaveWayError(
                "the store, its log, or the log's index was replaced or deleted while the doctor worked: "
                "look what did it before you type the same command again"
            )

    def look_around(self) -> None:
        """Make sure that everybody has the same files. Raises GaveWayError."""
        self.check()
        astray = others_astray(self._bundle, self._files)
        if astray is not None:
            raise GaveWayError(astray)

    def begin(self, connection: apsw.Connection) -> None:
        """Begin a write transaction; steps back at the first sign of somebody else's. Raises GaveWayError."""
        begun, pause = time.monotonic(), _FIRST_PAUSE
        self.crowded = False
        # Of the log that hermes is waited for to begin anew: which one it is, and since when it is as it is.
        waiting_for: tuple[bytes, int] | None = None
        since = begun
        while True:
            if self._try(connection):
                carried = self._all_carried()
                known = None if carried is None else (carried.salts, carried.frames)
                if carried is None or (known == waiting_for and self._is_idle(carried, since)):
                    return
                connection.execute("ROLLBACK")
                if known != waiting_for:
                    waiting_for, since = known, time.monotonic()
                self._pause(begun, _FIRST_PAUSE)
            else:
                self.crowded = True
                self._pause(begun, pause)
                pause = min(2 * pause, _LONGEST_PAUSE)

    def _pause(self, begun: float, seconds: float) -> None:
        """Leave the store to hermes for about so long. Raises GaveWayError where it lasts, or an end was asked for."""
        waited = time.monotonic() - begun
        if self._stop:
            raise GaveWayError(self._stop.reason or "")
        if waited > PATIENCE_SECONDS:
            raise GaveWayError(
                f"hermes has been writing for {waited:.0f} seconds without a pause; the same command carries on"
            )
        # By chance, as hermes's own writers do it, so that two never keep meeting.
        time.sleep(seconds * random.uniform(0.5, 1.0))

    def wrote(self, connection: apsw.Connection) -> None:
        """Note that a transaction of ours has just been committed."""
        self._version = _data_version(connection)

    def somebody_waited(self, connection: apsw.Connection) -> bool:
        """Whether somebody wrote right after our last transaction, as one does who had to wait for it."""
        time.sleep(_AFTER_OURS)
        return self._version is not None and _data_version(connection) != self._version

    def _try(self, connection: apsw.Connection) -> bool:
        connection.set_busy_handler(_ask_again)
        try:
            connection.execute("BEGIN IMMEDIATE")
        except apsw.BusyError:
            return False
        finally:
            connection.set_busy_timeout(BUSY_MILLISECONDS)
        return True

    def _all_carried(self) -> LogIndex | None:
        """Return the log's index where all of it has been carried over, so that the next page begins it anew.

        The write lock is ours, so that stays as it is. The next write of hermes's own is to do that, not ours.
        """
        log = read_log(self._path)
        if log is None or not log.index.frames or log.index.carried < log.index.frames:
            return None
        return log.index

    def _is_idle(self, log: LogIndex, since: float) -> bool:
        """Whether nobody has written since then, for long enough, and no checkpoint is under way."""
        return time.monotonic() - since >= _RESTART_SECONDS and not who_is_busy(self._path, log).checkpointing


def _ask_again(asked: int) -> bool:
    time.sleep(_ASKED_EVERY)
    return asked < _ASKED


def _data_version(connection: apsw.Connection) -> int:
    """Return SQLite's count of what others have committed: it stays the same over our own writes."""
    return int(str(connection.pragma("data_version")))
