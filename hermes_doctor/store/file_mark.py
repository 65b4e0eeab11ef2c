"""A store's files as the file system describes them: where that is as it was, nobody has written, and nothing is read.

Two equal marks prove it, as far as the file system goes:

- Whoever writes to a file changes its times, and no call sets back the time of its last change (``ctime``); restoring
  a copy with its old ``mtime``, moving another file there, and cutting one off and filling it again all show. Of a
  log only the time of the last writing counts: run as root, SQLite sets its owner anew each time that it opens it. So
  its salts and its last frame are held together besides; in that frame is a sum over all before it.
- Times move in steps, so that a second write within the step of the first would not show: a mark counts only if the
  last change lay some seconds back when it was taken. Where times are of whole seconds there is none, nor on a disk
  that another machine can write to, nor with times that lie in the future or a clock that went back.
- It has to be proven that nobody is able to write from the mark on until what it stands for has been read: by a lease,
  or since what is read is a private copy. A copy is of what the mark shows, since the mark is taken after it was made
  and has the size and the time that the file had before.

It says nothing of bytes that a disk gives back otherwise than they were written, nor of a file system that is written
to from below (a disk image, a snapshot put back under the same inode); and only a clock that was set back, caught up
since, and hit the very step of the last change could hide a write that left the counter in the header as it was.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

import apsw

from hermes_doctor.host.bundle import refuse_if_open_here
from hermes_doctor.host.lease import on_local_disk
from hermes_doctor.host.wal_files import FRAME_HEADER_BYTES, LOG_HEADER_BYTES, read_log
from hermes_doctor.store.opening import OpenStore

#: Seconds that a file's last change must lie back: the steps of its time are far smaller.
_SETTLED = 2.0
_HEADER_BYTES = 100

Stamp = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FileMark:
    """What the file system says of a store's files. All of it can be written down as JSON, and read back.

    ``file``, ``log``, ``journal``: device, inode, size, and the time of the last writing in nanoseconds, of the store,
    its ``-wal`` and its ``-journal``, and of the store that of the last change, too; None where there is no such file.
    ``header``: the first bytes of the store (in them the counter of its changes, that of its schema and the size of a
    page), in hex; ``log_header``: those of its log, in them its salts; ``log_end``: how many frames are committed, and
    the header of the last, as far as the log's index tells. ``taken``: when, in nanoseconds since the epoch.
    ``settled``: whether no change later than that can have left all this as it is.
    """

    file: Stamp
    log: Stamp | None
    journal: Stamp | None
    header: str
    log_header: str
    log_end: str
    taken: int
    settled: bool

    def shows_no_change_since(self, recorded: FileMark) -> bool:
        """Whether nobody has written to the store between an earlier mark and this one."""
        if not recorded.settled or self.taken < recorded.taken:
            return False
        return replace(self, taken=0, settled=True) == replace(recorded, taken=0, settled=True)


def take_mark(store: OpenStore) -> FileMark | None:
    """Return the mark of a store that was just opened; None where it would prove nothing.

    It stands for what is read through the store only as long as `OpenStore.undisturbed` says so: ask it once more
    when all has been read. Raises OSError where the files cannot be looked at.
    """
    bundle = store.bundle
    if not store.undisturbed() or not on_local_disk(bundle.real_path):
        return None
    paths = (bundle.real_path, bundle.wal_path, bundle.journal_path)
    stamps = [_stamp(path, changed=path == bundle.real_path) for path in paths]
    headers = _headers(store)
    taken = time.time_ns()
    file, log, journal = stamps
    if file is None or headers is None or stamps != [_stamp(path, changed=path == bundle.real_path) for path in paths]:
        return None
    seen = (file[0], file[1], file[2], file[3], log and log[2], log and log[1], journal and journal[2])
    found = (
        *(bundle.device, bundle.inode, bundle.size, bundle.mtime_ns),
        *(bundle.wal_bytes, bundle.wal_inode, bundle.journal_bytes),
    )
    if seen != found or not store.undisturbed():
        return None
    times = [when for stamp in stamps if stamp for when in stamp[3:]]
    settled = taken - max(times) >= _SETTLED * 1e9 and not any(when % 10**9 == 0 for when in times)
    return FileMark(file, log, journal, *headers, taken=taken, settled=settled)


def _stamp(path: Path, *, changed: bool) -> Stamp | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    stamp = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
    return (*stamp, status.st_ctime_ns) if changed else stamp


def _headers(store: OpenStore) -> tuple[str, str, str] | None:
    """Return the first bytes of the store and of its log, and its end; None where they cannot be read without harm."""
    bundle = store.bundle
    try:
        if store.private:
            # Opened nowhere else in this process: to close it drops nobody's locks.
            refuse_if_open_here(bundle.device, bundle.inode)
            header = _bytes_at(bundle.real_path, _HEADER_BYTES)
        else:
            header = store.connection.read("main", 0, 0, _HEADER_BYTES)[1]
    except (RuntimeError, apsw.Error):
        return None
    end, log = "", read_log(bundle.real_path)
    if log is not None and log.index.frames:
        last = LOG_HEADER_BYTES + (log.index.frames - 1) * (FRAME_HEADER_BYTES + log.index.page_size)
        end = f"{log.index.frames}:{_bytes_at(bundle.wal_path, FRAME_HEADER_BYTES, last).hex()}"
    return header.hex(), _bytes_at(bundle.wal_path, LOG_HEADER_BYTES).hex(), end


def _bytes_at(path: Path, count: int, offset: int = 0) -> bytes:
    """Return some bytes of a file, none where there is no such file."""
    try:
        with path.open("rb", buffering=0) as file:
            file.seek(offset)
            return file.read(count) or b""
    except FileNotFoundError:
        return b""
