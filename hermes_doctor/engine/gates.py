"""What stands in the way of writing to a store: asked in the same words by the plan and by the work.

A store that needs recovery is no obstacle: nobody has it open, and SQLite recovers it at the first opening for
writing, as it would for hermes.
"""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hermes_doctor.engine.backup import BackupMode as BackupMode
from hermes_doctor.engine.backup import will_back_up
from hermes_doctor.engine.journal import FOLDER, folder_of
from hermes_doctor.engine.live import obstacles
from hermes_doctor.engine.model import ExitCode
from hermes_doctor.engine.scan import StoreScan
from hermes_doctor.host.bundle import Bundle, Condition
from hermes_doctor.host.holders import named
from hermes_doctor.host.locks import doctor_at_work
from hermes_doctor.host.room import free_bytes, same_filesystem
from hermes_doctor.host.upstream import hermes_command, printable, quoted
from hermes_doctor.store.clocks import DAY, HOUR, MINUTE
from hermes_doctor.store.library import Library, library
from hermes_doctor.store.shape import KNOWN_SCHEMA

#: Bytes that must stay free beyond what the work is expected to write.
MARGIN = 16 << 20
#: How far a time in the store may lie ahead of the clock, in seconds: two machines' clocks differ, a little.
_AHEAD = 10 * MINUTE

_UNREADABLE = frozenset({Condition.DAMAGED, Condition.UNREADABLE, Condition.MISSING, Condition.NOT_HERMES})
_AGAIN = "then type the same command again"


@dataclass(frozen=True)
class Refusal:
    """Why a store is not written to. ``reason``: one plain line, who or what stands in the way and what to type."""

    code: ExitCode
    reason: str


@dataclass(frozen=True)
class Planned:
    """What a run is expected to write: ``rows`` of the store and ``bytes`` of its pages.

    ``uses_clock``: a fix among them stamps the present time or judges by age.
    """

    rows: int
    bytes: int
    uses_clock: bool


def refusal(
    scan: StoreScan,
    planned: Planned,
    *,
    backup: BackupMode,
    command: Sequence[str] = ("fix",),
    live: bool = False,
    free: int | None = None,
    fitness: Library | None = None,
) -> Refusal | None:
    """Return why this store must not be written to now, None where nothing stands in the way.

    ``command``: what is to be typed to have it done, as another user: the command's name and what comes before TARGET.
    ``live``: it is to be written to while somebody has it open, too (`live.obstacles` says what stands in its way).
    ``free``: bytes free where the store lies, and ``fitness``: of SQLite, are found out unless they are given.
    """
    another = another_doctor(scan.ref.path)
    if another is not None:
        return another
    if scan.condition in _UNREADABLE or scan.bundle is None:
        told = (scan.reason or f"{printable(scan.ref.path)} could not be read", scan.next_step)
        return Refusal(ExitCode.DAMAGED, ": ".join(part for part in told if part))
    reasons = _reasons(scan, scan.bundle, planned, backup, command, free, fitness or library(), live=live)
    reason = next(reasons, None)
    return None if reason is None else Refusal(ExitCode.REFUSED, reason)


def another_doctor(store: Path) -> Refusal | None:
    """Return that another doctor is at work on a store, None where none is.

    It has the store open, as a hermes would have, but it is done by itself.
    """
    holder = doctor_at_work(folder_of(store))
    return None if holder is None else Refusal(ExitCode.BUSY, busy(holder))


def busy(holder: str) -> str:
    """Say who else is at work on a store, and what to do."""
    return f"{holder} is at work on this store: wait until it is done, {_AGAIN}"


def clock_doubt(scan: StoreScan, last_run_at: float | None) -> str | None:
    """Return why the clock cannot be trusted for ends and deletions, None where nothing speaks against it.

    ``last_run_at``: when the doctor last changed this store, in seconds since the epoch.
    """
    newest = scan.newest_time
    if newest is not None and newest > scan.now + _AHEAD:
        what = f"the store has a time {_span(newest - scan.now)} ahead of it"
    elif last_run_at is not None and last_run_at > scan.now:
        what = f"the doctor's last run on this store is {_span(last_run_at - scan.now)} ahead of it"
    else:
        return None
    clock = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(scan.now))
    return f"the clock seems to be off: it shows {clock}, but {what}; set the clock, {_AGAIN}"


def _reasons(
    scan: StoreScan,
    bundle: Bundle,
    planned: Planned,
    backup: BackupMode,
    command: Sequence[str],
    free: int | None,
    fitness: Library,
    *,
    live: bool,
) -> Iterator[str]:
    """Give what stands in the way, the most telling first."""
    name = printable(scan.ref.path)
    if scan.condition is Condition.NEWER_SCHEMA or (scan.schema_version or 0) > KNOWN_SCHEMA:
        yield (
            f"{name} was written by a newer hermes (schema {scan.schema_version}, this doctor knows up to "
            f"{KNOWN_SCHEMA}): upgrade the doctor (pipx upgrade hermes-state-doctor), {_AGAIN}"
        )
    if scan.encoding not in (None, "UTF-8"):
        # SQLite mends half a pair of UTF-16 on its way into a changeset: taking back would not be exact.
        yield f"{name} keeps its text as {scan.encoding}, as no hermes does: it is scanned, but not mended"
    if not fitness.fit:
        yield f"SQLite {fitness.version} of APSW is not fit for writing to a store: {fitness.advice}, {_AGAIN}"
    yield from _wrong_user(scan, bundle, command)
    if live:
        yield from _held_live(scan, bundle)
    else:
        yield from _held(scan, name, "; or mend beside it what is safe there: --live" if command == ("fix",) else "")
    yield from _read_only(bundle)
    yield from _no_room(bundle, planned, backup, free)


def _wrong_user(scan: StoreScan, bundle: Bundle, command: Sequence[str]) -> Iterator[str]:
    """Only the owner writes: files that another user makes beside the store are ones that hermes cannot open."""
    if sys.platform == "win32" or os.geteuid() == bundle.owner:
        return
    import pwd

    try:
        owner = pwd.getpwuid(bundle.owner).pw_name
        login = owner
    except KeyError:
        owner, login = f"user {bundle.owner}", f"'#{bundle.owner}'"
    yield (
        f"{printable(scan.ref.path)} belongs to {owner}: run it as {owner}: "
        f"sudo -u {login} doctor {' '.join(map(quoted, command))} {quoted(scan.ref.path.absolute())} --apply"
    )


def _held_live(scan: StoreScan, bundle: Bundle) -> Iterator[str]:
    if scan.held == "no":
        return
    for obstacle in obstacles(bundle):
        yield f"{obstacle}: it cannot be mended beside hermes; {_stop_hermes(scan)}, {_AGAIN}"


def _stop_hermes(scan: StoreScan) -> str:
    hermes = hermes_command(scan.ref.path, scan.ref.profile) or "hermes"
    return f"stop it first ({hermes} gateway stop; close the CLI, the TUI and the desktop app)"


def _held(scan: StoreScan, name: str, way_out: str) -> Iterator[str]:
    """``way_out``: what else may be done about a holder that can be named."""
    if scan.held == "no":
        return
    stop = f"{_stop_hermes(scan)}, {_AGAIN}"
    holders = named(scan.holders)
    if holders:
        yield f"{holders} {'has' if len(scan.holders) == 1 else 'have'} {name} open: {stop}{way_out}"
    elif scan.held == "yes":
        yield f"a process that cannot be seen from here (of another container or user) has {name} open: {stop}"
    else:
        yield (
            f"it cannot be seen from here whether a process of another container or user has {name} open: "
            f"run the doctor where hermes runs, as its user, {_AGAIN}"
        )


def _read_only(bundle: Bundle) -> Iterator[str]:
    folder = bundle.real_path.parent
    places = [(bundle.real_path, os.W_OK), (folder, os.W_OK | os.X_OK)]
    ours = folder / FOLDER
    if ours.exists():
        if not ours.is_dir():
            yield f"{printable(ours)}, where the doctor keeps its journal, is not a folder: move it away, {_AGAIN}"
        places.append((ours, os.W_OK | os.X_OK))
    for sidecar in (bundle.wal_path, bundle.shm_path, bundle.journal_path):
        if sidecar.exists():
            places.append((sidecar, os.W_OK))
    for place, mode in places:
        if not _writable(place, mode):
            yield (
                f"{printable(place)} cannot be written to: make it writable (chmod u+w {quoted(place)}), or remount "
                f"its file system, {_AGAIN}"
            )


def _writable(place: Path, mode: int) -> bool:
    """Whether this user may write there; root is held to the owner's bits, which it could overrule."""
    effective = os.access in os.supports_effective_ids
    allowed = os.access(place, mode, effective_ids=True) if effective else os.access(place, mode)
    return allowed and bool(place.stat().st_mode & stat.S_IWUSR)


def _no_room(bundle: Bundle, planned: Planned, backup: BackupMode, free: int | None) -> Iterator[str]:
    """Journal, backup, and twice what is written: a write-ahead log also keeps pages that are written again."""
    store, ours = bundle.real_path.parent, bundle.real_path.parent / FOLDER
    log = 2 * planned.bytes + MARGIN
    records = planned.bytes
    available = free_bytes(ours) if free is None else free
    size = bundle.size_with_log
    saved = size if will_back_up(size, available, backup) else 0
    if free is None and not same_filesystem(store, ours):
        shares = [(ours, records + saved + MARGIN, available), (store, log, free_bytes(store))]
    else:
        shares = [(store, records + saved + log, available)]
    for folder, needed, there in shares:
        if needed > there:
            without = needed - saved if folder is ours or len(shares) == 1 else needed
            spare = ", or go without a backup (--backup never)" if saved and without <= there else ""
            yield (
                f"there is too little room on the file system of {printable(folder)}: {needed:,} bytes are needed, "
                f"{there:,} are free: free some{spare}, {_AGAIN}"
            )


def _span(seconds: float) -> str:
    """Return a time span in the largest unit that says something."""
    for unit, word in ((365 * DAY, "year"), (DAY, "day"), (HOUR, "hour"), (MINUTE, "minute"), (1.0, "second")):
        count = int(seconds // unit)
        if count:
            return f"{count:,} {word}{'s' if count > 1 else ''}"
    return "a moment"
