"""A write-ahead log that is not what it should be, or a journal that waits to be taken back.

What it finds
A process that writes to a deleted -wal or -shm, or to a deleted store; a log that was taken away,
cut off, or belongs to another store; a log whose store is gone; WAL mode on a file system that
another machine serves; a log that hermes put aside; frames that wait to be checkpointed; a hot
journal.

Why it matters
What is committed in WAL mode is in the log only, until a checkpoint carries it over. Who writes to
a deleted log writes what nobody else sees and what is gone when it ends; others begin a log of
their own meanwhile, and there are two generations of the store, each sound by itself. Closing the
older one in good order can ruin the store: 0.19.0 does. Opening a store without bytes deletes the
log beside it, and a log of another store makes a sound one malformed.

How it decides
Deleted files: by what processes have open (Linux, and only those that this user may look into), and
twice, since SQLite deletes a log as it closes it. Frames: by the header of the -shm, which says how
many are committed and how many carried over, and by the length of the -wal. Beside a living hermes
they are told from 16,384 on (64 MiB, what hermes lets a log keep; it checkpoints after each 50
writes) where no checkpoint is under way and a second look finds them unmoved. A large log that is
carried over is no fault. Frames without anybody are told as info: hermes's next opening carries
them over. A copy that was made without its log shows only where its -shm was copied along: nothing
else in a store tells that a log is missing. File systems: by the type that mountinfo gives; others
of FUSE than the known ones are told as info.

Fix
None. The steps are named in order. In general: stop before you look; copy /proc/PID/fd/N before PID
ends; never delete, move or checkpoint a log beside a living hermes; keep a store and its log
together. `hermes sessions recover --inspect-only` (0.20 on) looks into a copy without changing it.

Fix safety
Nothing is changed: which generation is wanted is for a person to say.

Upstream
Issues 109727, 109966, 100368 (a second opener deletes a living log), 96976 and 113055 (bytes of a
log are no fault), 22032 and 111904 (network file systems). 0.21.5 on refuses to write to a deleted
log and puts it aside (`state.db.retired-wal-*`), and has `sessions set-journal-mode`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from hermes_doctor.engine.model import FILES, Check, Finding, RelationRule, Safety, Severity
from hermes_doctor.store.cells import Key
from hermes_doctor.store.hermes_command import hermes
from hermes_doctor.store.view import StoreView
from hermes_doctor.store.wal_state import Fault, LogFault, Opener, faults_of_wreck, log_faults
from hermes_doctor.store.wal_steps import hermes_of, steps

NAME = "wal-health"

#: What each fault is called; ``{}`` are a LogFault's own words, below.
_SAYS = {
    Fault.WRITES_TO_DELETED: (
        Severity.ERROR,
        "{two}{retired} writes to files that were deleted ({deleted}): what it wrote last is gone when it ends",
    ),
    Fault.READS_DELETED: (
        Severity.WARNING,
        "{retired} reads files that were deleted ({deleted}) and sees nothing of what is written since",
    ),
    Fault.TAKEN_AWAY: (
        Severity.ERROR,
        "{frames} committed pages are in no file: the -wal was taken away, or this copy was made without it",
    ),
    Fault.CUT_OFF: (Severity.WARNING, "{frames} committed pages are in no file: the -wal was cut off"),
    Fault.FOREIGN: (
        Severity.ERROR,
        "a -wal of {bytes} lies beside a store that is not in WAL mode: it is another store's, and SQLite reads it all"
        " the same",
    ),
    Fault.ORPHANED: (Severity.ERROR, "a -wal of {bytes} is there, and its store is gone or has no bytes"),
    Fault.WIPED: (Severity.ERROR, "a -wal of {bytes} is there, and the beginning of its store was overwritten"),
    Fault.STUCK: (Severity.WARNING, "{frames} frames ({bytes}) wait to be checkpointed, and {blocked}"),
    Fault.WAITING: (
        Severity.INFO,
        "{frames} frames ({bytes}) wait in the -wal for hermes's next opening; until then it is part of the store",
    ),
    Fault.PUT_ASIDE: (
        Severity.WARNING,
        "hermes put a log of {bytes} aside that was deleted under it; it may hold messages that are nowhere else",
    ),
    Fault.PUT_ASIDE_CARRIED: (
        Severity.INFO,
        "hermes put a log aside that was deleted under it; all that is in it is in the store too",
    ),
    Fault.SERVED_DISK: (
        Severity.WARNING,
        "the store is in WAL mode on {disk}, where the log's shared memory and locks are not certain",
    ),
    Fault.LAID_DISK: (Severity.INFO, "the store is in WAL mode on {disk}, where a log works only if it keeps locks"),
    Fault.HOT_JOURNAL: (
        Severity.INFO,
        "a transaction was under way when its writer ended; hermes's next opening takes it back with the -journal;"
        " until then that is part of the store",
    ),
}


def _find(view: StoreView, keys: Sequence[Key] | None) -> Iterator[Finding]:
    for fault in log_faults(view):
        if keys is None or fault.file in keys:
            yield _finding(fault, hermes(view))


def _wreck(path: Path) -> Iterator[Finding]:
    for fault in faults_of_wreck(path):
        yield _finding(fault, hermes_of(path))


def _finding(fault: LogFault, command: str) -> Finding:
    severity, says = _SAYS[fault.fault]
    todo = steps(fault, command)
    deleted = dict.fromkeys(name or fault.store.name for each in fault.retired for name in each.deleted)
    blocked = f"{_named(fault.others)} reads an older moment of the store, which holds them up"
    summary = says.format(
        two="two generations of the store: " if fault.two else "",
        retired=_named(fault.retired),
        deleted=", ".join(deleted),
        frames=f"{fault.frames:,}",
        bytes=_size(fault.bytes),
        blocked=blocked if fault.others else "nobody carries them over",
        disk=fault.disk,
    )
    detail: dict[str, str | int | Sequence[str]] = {
        "fault": fault.fault.name.lower().replace("_", "-"),
        "frames": fault.frames,
        "bytes": fault.bytes,
        "pids": [str(each.pid) for each in (*fault.retired, *fault.others)],
        "steps": todo if len(todo) > 1 else (),
    }
    return Finding(
        check=NAME,
        severity=severity,
        table=FILES,
        key=fault.file,
        session=None,
        summary=f"{summary}; what to do, in this order" if len(todo) > 1 else "; ".join((summary, *todo)),
        detail={name: value for name, value in detail.items() if value},
    )


def _named(processes: Sequence[Opener]) -> str:
    return ", ".join(f"{each.name} (pid {each.pid})" for each in processes)


def _size(count: int) -> str:
    return f"{count:,} bytes" if count < 1024 * 1024 else f"{count / 1024 / 1024:,.1f} MiB"


CHECK = Check(
    name=NAME,
    severity=Severity.ERROR,
    summary="a write-ahead log that was deleted, cut off, mixed up, put aside or waits, and hot journals",
    meaning="what was last written may be in one file only, or in none",
    fix=Safety.NONE,
    page=__doc__ or "",
    rule=RelationRule(FILES, _find),
    wreck=_wreck,
)
