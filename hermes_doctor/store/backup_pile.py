"""What lies beside a store and takes room: backups, what repairs left, which backups are equal, and hermes's ledger.

A backup is a bundle: its file and the sidecars of the same name. Two are equal when all of these are, byte by byte;
only files of equal size that begin alike are read for that. What SQLite may have open is never read: closing it would
drop SQLite's locks.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from hermes_doctor.host import upstream
from hermes_doctor.host.bundle import refuse_if_open_here
from hermes_doctor.host.nearby import Kind, Nearby, around
from hermes_doctor.host.room import free_bytes
from hermes_doctor.store.cells import Key
from hermes_doctor.store.view import StoreView

#: Bytes of equal backups that a scan reads; with ``--deep`` all of them.
MOST_READ = 2 << 30
#: How often hermes tries to repair one and the same file (0.20.6 on); then it leaves it.
MOST_ATTEMPTS = 3

_PILED = (
    Kind.MALFORMED_BACKUP,
    Kind.CLEANED_BACKUP,
    Kind.ZEROED_BACKUP,
    Kind.SCRATCH,
    Kind.RETIRED_LOG,
    Kind.DOCTOR_BACKUP,
)
#: Of these a duplicate may go. The doctor keeps few of its own, and its receipts name them.
_REMOVABLE = (Kind.MALFORMED_BACKUP, Kind.CLEANED_BACKUP)
_SIDECARS = ("-wal", "-shm", "-journal")
_HEAD = 4096
_LARGEST_LEDGER = 1 << 16


@dataclass(frozen=True)
class Heap:
    """How many files of one kind there are, and their bytes."""

    count: int
    bytes: int


class Duplicate(NamedTuple):
    """A file of a backup that lies there once more, in a newer backup: ``twin``. ``main``: the name of its backup."""

    file: Nearby
    twin: Nearby
    main: str


@dataclass
class Comparison:
    """Which backups are equal. ``unread``: how many could not be compared, because that would take too long."""

    duplicates: list[Duplicate] = field(default_factory=list)
    equal_doctor_backups: int = 0
    unread: int = 0


def heaps(store: Path) -> dict[Kind, Heap]:
    """Return what lies beside a store by its kind: of its path, symbolic links followed."""
    found: dict[Kind, list[int]] = defaultdict(list)
    for each in around(store):
        if each.kind in _PILED:
            found[each.kind].append(sum(_sizes_in(each.path)) if each.is_folder else each.status.st_size)
    return {kind: Heap(len(found[kind]), sum(found[kind])) for kind in _PILED if kind in found}


def room_beside(store: Path) -> int | None:
    """Return how many bytes are free where the store lies, None where that cannot be told."""
    try:
        return free_bytes(store.parent)
    except OSError:
        return None


def failed_attempts(store: Path, size: int) -> int:
    """Return how often hermes tried in vain to repair this very file, going by its own ledger; 0 without one.

    Hermes knows the file by its size and by bytes from both its ends; these are not read here, so the size decides,
    as it does for hermes while somebody has the store open.
    """
    ledger = store.with_name(ledger_name(store))
    try:
        status = ledger.lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST_LEDGER:
            return 0
        told = json.loads(ledger.read_bytes())
    except (OSError, ValueError, RecursionError):
        return 0
    attempts, fingerprint = (told.get("failed_attempts"), told.get("fingerprint")) if isinstance(told, dict) else (0, 0)
    same = isinstance(fingerprint, str) and fingerprint.startswith(f"{size}:")
    return attempts if same and isinstance(attempts, int) else 0


def ledger_name(store: Path) -> str:
    """Return the name of hermes's ledger of repairs."""
    return f"{store.name}.repair-attempts.json"


def salvage(store: Path, profile: str | None = None) -> str:
    """Return the commands that look what can be salvaged of a store, changing nothing."""
    return upstream.salvage(store, profile=profile)


def compare(view: StoreView, keys: Sequence[Key] | None = None) -> Comparison:
    """Say which backups of the store lie there twice; with ``keys``, of these files only."""
    compared = Comparison()
    if view.bundle is None:
        return compared
    budget = None if view.deep or keys is not None else MOST_READ
    bundles = _bundles(view.bundle.real_path)
    whole = [each for each in bundles if each.main is not None]
    groups = [group for group in _alike(whole) if keys is None or any(each.holds(keys) for each in group)]
    for group in sorted(groups, key=lambda group: sum(each.bytes for each in group)):
        cost = sum(each.bytes for each in group)
        if budget is not None and cost > budget:
            compared.unread += len(group)
            continue
        budget = None if budget is None else budget - cost
        for older, newest in _equal(group):
            if newest.kind is Kind.DOCTOR_BACKUP:
                compared.equal_doctor_backups += 1
            else:
                compared.duplicates += _paired(older, newest)
    for left in (each for each in bundles if each.main is None):
        compared.duplicates += _left_sidecars(left, whole)
    if keys is not None:
        compared.duplicates = [each for each in compared.duplicates if each.file.name in keys]
    return compared


@dataclass
class _Bundle:
    """A backup: its files by their suffix; the file itself has none."""

    kind: Kind
    name: str
    files: dict[str, Nearby] = field(default_factory=dict)

    @property
    def main(self) -> Nearby | None:
        return self.files.get("")

    @property
    def bytes(self) -> int:
        return sum(each.status.st_size for each in self.files.values())

    @property
    def age(self) -> tuple[str | int, ...]:
        """What backups of a kind sort by, the newest last: names hold the time, and a number where it is the same."""
        parts = re.split(r"(\d+)", self.name)
        return tuple(int(part) if place % 2 else part for place, part in enumerate(parts))

    def holds(self, keys: Sequence[Key]) -> bool:
        return any(each.name in keys for each in self.files.values())


def _bundles(store: Path) -> list[_Bundle]:
    """Return the backups beside the store, the oldest first of each kind."""
    found: dict[str, _Bundle] = {}
    for each in around(store):
        if each.kind not in (*_REMOVABLE, Kind.DOCTOR_BACKUP) or each.is_folder:
            continue
        suffix = next((end for end in _SIDECARS if each.name.endswith(end)), "")
        name = each.name.removesuffix(suffix)
        found.setdefault(name, _Bundle(each.kind, name)).files[suffix] = each
    return sorted(found.values(), key=lambda bundle: bundle.age)


def _alike(bundles: Iterable[_Bundle]) -> list[list[_Bundle]]:
    """Return groups of backups of one kind whose files are of the same sizes and begin alike."""
    sizes: dict[tuple[object, ...], list[_Bundle]] = defaultdict(list)
    for each in bundles:
        shape = tuple(sorted((suffix, file.status.st_size) for suffix, file in each.files.items()))
        sizes[each.kind, shape].append(each)
    groups: dict[tuple[object, ...], list[_Bundle]] = defaultdict(list)
    for sized, group in sizes.items():
        if len(group) == 1 or not group[0].bytes:
            continue
        for each in group:
            head = _read(each.files[""], _HEAD)
            if head is not None:
                groups[sized, head].append(each)
    return [group for group in groups.values() if len(group) > 1]


def _equal(group: Sequence[_Bundle]) -> Iterator[tuple[_Bundle, _Bundle]]:
    """Give the backups of a group that a newer one is equal to, and that newest one."""
    by_content: dict[tuple[str, ...], list[_Bundle]] = defaultdict(list)
    for each in group:
        digests = [_digest_of(each.files[suffix]) for suffix in sorted(each.files)]
        if all(digests):
            by_content[tuple(digest or "" for digest in digests)].append(each)
    for equal in by_content.values():
        newest = equal[-1]
        yield from ((older, newest) for older in equal[:-1] if not _share_a_file(older, newest))


def _paired(older: _Bundle, newest: _Bundle) -> Iterator[Duplicate]:
    """Give the files of a backup, itself first: it must not stay without its log."""
    for suffix in sorted(older.files):
        yield Duplicate(older.files[suffix], newest.files[suffix], older.name)


def _left_sidecars(left: _Bundle, whole: Sequence[_Bundle]) -> Iterator[Duplicate]:
    """Give the sidecars of a backup that is gone which a newer, whole one has, too.

    Newer: the sidecars of a backup that hermes is just making come before its file.
    """
    for suffix, file in left.files.items():
        for other in reversed(whole):
            twin = other.files.get(suffix)
            newer = other.kind is left.kind and other.kind in _REMOVABLE and other.age > left.age
            if not newer or twin is None or twin.status.st_size != file.status.st_size or _is_one(file, twin):
                continue
            digest = _digest_of(file)
            if digest is not None and digest == _digest_of(twin):
                yield Duplicate(file, twin, left.name)
                break


def _share_a_file(left: _Bundle, right: _Bundle) -> bool:
    return any(_is_one(left.files[suffix], right.files[suffix]) for suffix in left.files)


def _is_one(left: Nearby, right: Nearby) -> bool:
    """Whether two names are of one file: removing one of them gives nothing back."""
    return (left.status.st_dev, left.status.st_ino) == (right.status.st_dev, right.status.st_ino)


def _digest_of(file: Nearby) -> str | None:
    status = file.status
    return _digest(file.path, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


@lru_cache(maxsize=4096)
def _digest(path: Path, device: int, inode: int, *_moment: int) -> str | None:
    """Return a file's SHA-256, None where it cannot be read; once for each state of it."""
    descriptor = _opened(path, device, inode)
    if descriptor is None:
        return None
    with os.fdopen(descriptor, "rb") as source:
        # Here, and not with the others: OpenSSL comes with it, and few homes have copies of one size.
        import hashlib

        try:
            return hashlib.file_digest(source, "sha256").hexdigest()
        except OSError:
            return None


def _read(file: Nearby, count: int) -> bytes | None:
    descriptor = _opened(file.path, file.status.st_dev, file.status.st_ino)
    if descriptor is None:
        return None
    with os.fdopen(descriptor, "rb") as source:
        try:
            return source.read(count)
        except OSError:
            return None


def _opened(path: Path, device: int, inode: int) -> int | None:
    """Open a file for reading; not a link, nor one that SQLite has open here, which a second name may be of."""
    try:
        refuse_if_open_here(device, inode)
        return os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0))
    except (OSError, RuntimeError):
        return None


def _sizes_in(folder: Path) -> Iterator[int]:
    """Give the sizes of the files in a folder; what cannot be seen is left out."""
    try:
        with os.scandir(folder) as entries:
            yield from [entry.stat(follow_symlinks=False).st_size for entry in entries]
    except OSError:
        return
