"""Who has a store open.

A read lease decides where there is one: it sees every process, in any pid namespace, that could write. ``/proc``
gives names, and is the second witness; psutil is the last (macOS, Windows). Only descriptors that can write count:
a backup, a search, or another doctor that reads is nobody's owner.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from hermes_doctor.host.bundle import Bundle
from hermes_doctor.host.lease import Lease, LeaseRefusal, take_lease
from hermes_doctor.host.upstream import printable

#: What the kernel always calls the pid namespace that the machine started with (PROC_PID_INIT_INO).
_INITIAL_PID_NAMESPACE = "pid:[4026531836]"
_PROC = Path("/proc")


class Holder(NamedTuple):
    """A process that has the store open for writing."""

    pid: int
    name: str


def named(holders: Iterable[Holder]) -> str:
    """Name processes, with their pids, as one line that a terminal shows harmlessly."""
    return ", ".join(f"{printable(holder.name)} (pid {holder.pid})" for holder in holders)


class Holding(NamedTuple):
    """Whether somebody has the store open for writing, and who as far as can be seen.

    ``unknown`` counts as held wherever something is decided. ``holders`` may be empty although the state is ``yes``:
    a process in another pid namespace cannot be named. ``deleted_sidecar``: one of them still has a ``-wal`` or
    ``-shm`` open that was deleted under it, so what it wrote last is in no file that others can see. ``confined``:
    there may be processes that cannot be seen at all (another pid namespace, hidepid). ``unseen``: those of the store's
    owner that are seen, and cannot be looked into.
    """

    state: Literal["no", "yes", "unknown"]
    holders: tuple[Holder, ...] = ()
    deleted_sidecar: bool = False
    confined: bool = False
    unseen: tuple[int, ...] = ()


@dataclass
class _Seen:
    """What a look through the processes came to; the words are those of `Holding`."""

    holders: list[Holder]
    deleted_sidecar: bool = False
    confined: bool = False
    unseen: list[int] = field(default_factory=list)

    @property
    def blind(self) -> bool:
        """Whether it may have missed somebody."""
        return self.confined or bool(self.unseen)


def others_at(bundle: Bundle) -> tuple[Holder, ...]:
    """Return who else has a store open for writing that this process has open so itself, as far as can be seen.

    A lease says nothing then.
    """
    return look_around(bundle).holders


def look_around(bundle: Bundle) -> Holding:
    """Say who has a store open, without a lease: for while this process has it open so itself. Opens no file of it."""
    return find_holding(bundle, LeaseRefusal.UNAVAILABLE)


def find_holding(bundle: Bundle, lease: Lease | LeaseRefusal | None = None) -> Holding:
    """Say whether somebody has the store open for writing; the doctor itself never counts.

    ``lease``: an answer of `take_lease` that the caller has already; without one, one is taken and given back. A
    connection of this process that may write makes the lease HELD: ask before opening one.
    """
    if lease is None:
        lease = take_lease(bundle.real_path)
        if isinstance(lease, Lease):
            lease.release()
            return Holding("no")
    if isinstance(lease, Lease):
        return Holding("no") if lease.intact() else find_holding(bundle)
    seen = _look_through_proc(bundle) if _proc_is_there() else _ask_psutil(bundle)
    if lease is LeaseRefusal.HELD or seen.holders:
        state: Literal["no", "yes", "unknown"] = "yes"
    else:
        state = "unknown" if seen.blind else "no"
    holders = tuple(sorted(seen.holders, key=lambda holder: holder.pid))
    return Holding(state, holders, seen.deleted_sidecar, seen.confined, tuple(seen.unseen))


def _proc_is_there() -> bool:
    return sys.platform.startswith("linux") and (_PROC / "self" / "fd").is_dir()


def _look_through_proc(bundle: Bundle) -> _Seen:
    """Look at every process's descriptors, by device and inode, and by name where a sidecar was deleted."""
    seen = _Seen([], confined=_in_own_pid_namespace() or _others_are_hidden(bundle.owner))
    store = bundle.device, bundle.inode
    wanted = {store, *_inodes_of_sidecars(bundle)}
    deleted = {f"{path} (deleted)" for path in (bundle.wal_path, bundle.shm_path)}
    for process in _PROC.iterdir():
        if not process.name.isdigit() or int(process.name) == os.getpid():
            continue
        try:
            holds, deleted_sidecar = _holds(process, wanted, store, deleted)
        except (FileNotFoundError, ProcessLookupError, NotADirectoryError):
            continue
        except OSError:
            seen.unseen += [int(process.name)] if bundle.owner in _users(process) else []
            continue
        if holds:
            seen.holders.append(Holder(int(process.name), name_of(process)))
            seen.deleted_sidecar = seen.deleted_sidecar or deleted_sidecar
    return seen


def _holds(process: Path, wanted: set[tuple[int, int]], store: tuple[int, int], deleted: set[str]) -> tuple[bool, bool]:
    """Tell whether a process has one of the files open for writing, and whether a deleted sidecar is among them.

    SQLite opens the log for writing for a connection that only reads, too, and often the log's index. So of each
    sidecar as many descriptors count for nothing as the process has of the store itself for reading only. One more
    belongs to a connection whose store was put elsewhere, and that may write to the log that lies here.
    """
    holds = deleted_sidecar = False
    readers = 0
    sidecars: Counter[tuple[int, int]] = Counter()
    for entry in (process / "fd").iterdir():
        try:
            status = entry.stat()
            file = status.st_dev, status.st_ino
            is_deleted = status.st_nlink == 0 and str(entry.readlink()) in deleted
            if file not in wanted and not is_deleted:
                continue
            writes = may_write(process / "fdinfo" / entry.name)
        except FileNotFoundError:
            # Closed since, or a socket of a namespace that is gone.
            continue
        if not writes:
            readers += file == store
        elif file == store or is_deleted:
            holds = True
            deleted_sidecar = deleted_sidecar or is_deleted
        else:
            sidecars[file] += 1
    return holds or any(count > readers for count in sidecars.values()), deleted_sidecar


def may_write(fdinfo: Path) -> bool:
    """Tell from ``flags`` (octal, as open(2) got them) whether a descriptor can write; yes where it is not told."""
    for line in fdinfo.read_text().splitlines():
        if line.startswith("flags:"):
            return int(line.split()[1], 8) & os.O_ACCMODE != os.O_RDONLY
    return True


def _inodes_of_sidecars(bundle: Bundle) -> Iterator[tuple[int, int]]:
    for path in (bundle.wal_path, bundle.shm_path):
        try:
            status = path.stat()
        except OSError:
            continue
        yield status.st_dev, status.st_ino


def _in_own_pid_namespace() -> bool:
    """Tell whether there may be processes that this one cannot see at all."""
    try:
        return str((_PROC / "self" / "ns" / "pid").readlink()) != _INITIAL_PID_NAMESPACE
    except OSError:
        return True


def _others_are_hidden(owner: int) -> bool:
    """Tell whether /proc hides other users' processes (hidepid) and the store is another user's."""
    return owner != os.geteuid() and not (_PROC / "1" / "status").exists()


def _users(process: Path) -> set[int]:
    """Return the real, effective, saved and file-system user of a process; empty where it is gone."""
    try:
        for line in (process / "status").read_text(errors="replace").splitlines():
            if line.startswith("Uid:"):
                return {int(each) for each in line.split()[1:]}
    except OSError:
        pass
    return set()


def name_of(process: Path) -> str:
    """Return what a process of ``/proc`` calls itself."""
    try:
        return (process / "comm").read_text(errors="replace").strip() or "?"
    except OSError:
        return "?"


def _ask_psutil(bundle: Bundle) -> _Seen:
    """Ask psutil, which compares names only; the last resort. It cannot see containers, so "none" is unsure there."""
    import psutil

    seen = _Seen([])
    wanted = {os.path.normcase(bundle.real_path), os.path.normcase(bundle.wal_path)}
    owner = _owner_name(bundle)
    for process in psutil.process_iter(["pid", "name", "username"]):
        if process.pid == os.getpid():
            continue
        try:
            opened = process.open_files()
        except psutil.NoSuchProcess:
            continue
        except (psutil.Error, OSError):
            seen.unseen += [process.pid] if owner is None or process.info["username"] in (owner, None) else []
            continue
        # "mode" is told on Linux only; elsewhere every one that has it open counts.
        if any(
            os.path.normcase(file.path) in wanted and getattr(file, "mode", "r+") not in ("r", "rt") for file in opened
        ):
            seen.holders.append(Holder(process.pid, process.info["name"] or "?"))
    return seen


def _owner_name(bundle: Bundle) -> str | None:
    try:
        return bundle.real_path.owner()
    except (OSError, KeyError, NotImplementedError):
        return None
