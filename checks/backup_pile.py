"""Backups and leftovers of repairs that pile up beside a store.

What it finds
Backups that hermes made before it repaired the store or cleaned markers out of it, and what such
repairs left: scratch and staging files, logs and files of zeros that were put aside; the doctor's
own backups. One finding tells how many they are and what they take. Of backups that lie there
twice, each file that may go is a finding of its own. A third kind of finding says that hermes has
given up repairing the file by itself.

Why it matters
Releases before 0.20.6 make a backup of the whole store each time they try to repair it, and keep
them all: 505 copies of two contents have been seen, and 89 GB in 11 days. On a full disk hermes
cannot write. From 0.20.6 on hermes stops after three failures on the same file, and says so in its
log only.

How it decides
By the names that hermes and the doctor give. Two backups are equal when their files are, and their
sidecars, by size and SHA-256. Only files of equal size that begin alike are read, and no more than
2 GiB of them: how many were not compared is told, and `doctor scan --deep` reads all. The pile is
told where hermes left something, or from 16 MiB on. It is a warning from a gibibyte on, where it is
also more than five times the store, or more than what is left free on the disk. The failures are
those that hermes noted for a file of the store's present size.

Fix
An equal backup goes, where a newer one stays that has the same bytes: first the file, then its
sidecars. The doctor's own are left: it keeps three of them, and its receipts name them. Retired
logs, zeros and scratch files are left as well: look at them, and remove them by hand.

Fix safety
Unsafe. What goes lies there once more, which is made sure of by reading both just before. `doctor
undo` copies it back from the one that stayed, as long as that is there and unchanged.

Upstream
Issues 86747, 88224 and 82940 (repairs in a loop), 87409 (equal backups are used again). 0.20.6 on
keeps the three newest; the ledger is `state.db.repair-attempts.json`. `sessions repair` obeys it,
too: what helps is `doctor rescue` or `sessions recover`, which the finding names. Removing the
ledger gives hermes three more tries.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from hermes_doctor.engine.model import FILES, Check, Finding, RelationRule, Safety, Severity
from hermes_doctor.store.backup_pile import (
    MOST_ATTEMPTS,
    Comparison,
    compare,
    failed_attempts,
    heaps,
    ledger_name,
    room_beside,
    salvage,
)
from hermes_doctor.store.cells import Key
from hermes_doctor.store.view import StoreView

NAME = "backup-pile"

MEBIBYTE = 1 << 20
#: From here on, in bytes, the doctor's own backups alone are worth telling.
WORTH_TELLING = 16 * MEBIBYTE
#: From here on a pile may hurt: where it is also so many times the store, or more than what is free.
HURTS = 1 << 30
TIMES_THE_STORE = 5

#: What the kinds are called in a sentence, by their names in host/nearby.py.
_WORDS = {
    "MALFORMED_BACKUP": "of repairs' backups",
    "CLEANED_BACKUP": "of backups before cleaning",
    "ZEROED_BACKUP": "of zeros put aside",
    "SCRATCH": "left by repairs",
    "RETIRED_LOG": "of logs put aside",
    "DOCTOR_BACKUP": "of the doctor's backups",
}


def _find(view: StoreView, keys: Sequence[Key] | None) -> Iterator[Finding]:
    if view.bundle is None:
        return
    store = view.bundle.real_path
    compared = compare(view, keys)
    for each in compared.duplicates:
        yield Finding(
            check=NAME,
            severity=Severity.INFO,
            table=FILES,
            key=each.file.name,
            session=None,
            summary=f"the same {each.file.status.st_size / MEBIBYTE:,.1f} MiB are in {each.twin.name}",
            detail={"bytes": each.file.status.st_size, "twin": each.twin.name, "backup": each.main},
            fix=Safety.UNSAFE,
            action="remove it: a newer copy of the same bytes stays",
        )
    if keys is None or store.name in keys:
        yield from _pile(store, view.bundle.size_with_log, compared if keys is None else compare(view))
    if keys is None or ledger_name(store) in keys:
        yield from _ledger(store, view.bundle.size, view.profile)


def _wreck(path: Path) -> Iterator[Finding]:
    store = path.resolve()
    size = store.stat().st_size if store.is_file() else 0
    yield from _pile(store, size, Comparison())
    yield from _ledger(store, size, None)


def _pile(store: Path, store_bytes: int, compared: Comparison) -> Iterator[Finding]:
    found = {kind.name: heap for kind, heap in heaps(store).items()}
    total = sum(heap.bytes for heap in found.values())
    if not total or (set(found) == {"DOCTOR_BACKUP"} and total < WORTH_TELLING):
        return
    free = room_beside(store)
    hurts = total >= HURTS and (total > TIMES_THE_STORE * store_bytes or (free is not None and total > free))
    files = sum(heap.count for heap in found.values())
    parts = ", ".join(f"{heap.count:,} {_WORDS[name]}" for name, heap in found.items())
    counted = "1 file takes" if files == 1 else f"{files:,} files take"
    yield Finding(
        check=NAME,
        severity=Severity.WARNING if hurts else Severity.INFO,
        table=FILES,
        key=store.name,
        session=None,
        summary=f"{counted} {total / MEBIBYTE:,.1f} MiB beside the store: {parts}",
        detail={
            "files": files,
            "bytes": total,
            "store_bytes": store_bytes,
            "free_bytes": free,
            **{f"{name.lower()}_bytes": heap.bytes for name, heap in found.items()},
            "removable_files": len(compared.duplicates),
            "removable_bytes": sum(each.file.status.st_size for each in compared.duplicates),
            "equal_doctor_backups": compared.equal_doctor_backups,
            "not_compared": compared.unread,
        },
    )


def _ledger(store: Path, size: int, profile: str | None) -> Iterator[Finding]:
    attempts = failed_attempts(store, size)
    if attempts >= MOST_ATTEMPTS:
        yield Finding(
            check=NAME,
            severity=Severity.WARNING,
            table=FILES,
            key=ledger_name(store),
            session=None,
            summary=f"hermes failed {attempts} times to repair this file and tries no more: {salvage(store, profile)}",
            detail={"failed_attempts": attempts},
        )


CHECK = Check(
    name=NAME,
    severity=Severity.WARNING,
    summary="backups that pile up beside the store, some of them twice",
    meaning="room that copies of the store and leftovers of repairs take",
    fix=Safety.UNSAFE,
    page=__doc__ or "",
    rule=RelationRule(FILES, _find),
    wreck=_wreck,
)
