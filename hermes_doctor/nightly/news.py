"""What a nightly run has found that none before it had: the memory of what is known, and the difference.

A finding is known by its check, its table and its row's key. Of them digests are kept, in the user's state folder, and
never what is in a row. A deep look finds more than others do, so what the last deep one found stays known beside what
the last ordinary one did.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, cast

from hermes_doctor.engine.model import ExitCode, Severity
from hermes_doctor.engine.state_file import StateFile, path_cell, state_folder
from hermes_doctor.store.cells import Key, json_key

if TYPE_CHECKING:
    from sqlite_utils import Database
    from sqlite_utils.db import Table

    from hermes_doctor.engine.plan import StoreFix
    from hermes_doctor.engine.scan import StoreScan

FILE = "nightly.db"

#: Bytes of a digest; of how many findings of one check they are kept. Where there are more, only their number tells.
_DIGEST = 8
_MOST = 50_000

_STORES = {"path": str, "condition": str, "failed": str, "at": float, "deep_at": float}
_FOUND = {"path": str, "deep": int, "check": str, "count": int, "digests": bytes}


@dataclass(frozen=True)
class Found:
    """What a check found at one time: how many, and the digests of them, None where there were too many."""

    count: int
    digests: frozenset[bytes] | None


@dataclass(frozen=True)
class Known:
    """What is known of one store. ``condition``: in which it was, None where no nightly run has seen it yet.

    ``failed``: the checks that could not do their work. ``deep_at``: when all of it was last read, in seconds since the
    epoch, 0 for never. ``found``: by whether the look was deep, and the check's name.
    """

    condition: str | None = None
    failed: frozenset[str] = frozenset()
    deep_at: float = 0.0
    found: Mapping[tuple[bool, str], Found] = field(default_factory=dict)

    def new(self, check: str, found: Found) -> int:
        """Return how many of what a check has found now are not known."""
        earlier = [known for (_deep, name), known in self.found.items() if name == check]
        if found.digests is not None and all(known.digests is not None for known in earlier):
            return len(found.digests.difference(*(known.digests or () for known in earlier)))
        return max(0, found.count - max((known.count for known in earlier), default=0))


class Ledger:
    """What nightly runs keep in one folder. Never raises for what is wrong with it: what cannot be read is unknown."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self._file = StateFile(self.path)

    @classmethod
    def of_user(cls) -> Ledger:
        """Return that of the user who runs the doctor."""
        return cls(state_folder())

    def recall(self, store: Path) -> Known:
        """Return what is known of a store."""
        cell = path_cell(store)
        try:
            with self._file.reading() as database:
                if database is None:
                    return Known()
                row = database.execute(
                    "SELECT condition, failed, deep_at FROM stores WHERE path = ?", (cell,)
                ).fetchone()
                if row is None:
                    return Known()
                found = database.execute(
                    'SELECT deep, "check", count, digests FROM found WHERE path = ?', (cell,)
                ).fetchall()
            return Known(
                row[0],
                frozenset(json.loads(row[1])),
                float(row[2]),
                {(bool(deep), check): Found(int(count), _apart(digests)) for deep, check, count, digests in found},
            )
        except (OSError, sqlite3.Error, ValueError, TypeError):
            return Known()

    def keep(
        self, store: Path, condition: str, failed: Collection[str], found: Mapping[str, Found], *, deep: bool
    ) -> bool:
        """Keep what a run has found in a store, for each check that did its work; return whether that worked."""
        cell = path_cell(store)
        rows = [
            {"path": cell, "deep": int(deep), "check": check, "count": each.count, "digests": _together(each.digests)}
            for check, each in found.items()
        ]

        def change(database: Database) -> None:
            stores, founds = (cast("Table", database[name]) for name in ("stores", "found"))
            if (stores.exists() and stores.columns_dict.keys() != _STORES.keys()) or (
                founds.exists() and founds.columns_dict.keys() != _FOUND.keys()
            ):
                raise sqlite3.DatabaseError("it is laid out in another way")
            stores.create(_STORES, pk="path", if_not_exists=True)
            founds.create(_FOUND, pk=("path", "deep", "check"), if_not_exists=True)
            at = time.time()
            before = database.execute("SELECT deep_at FROM stores WHERE path = ?", (cell,)).fetchone()
            deep_at = at if deep else before[0] if before else 0.0
            stores.upsert(
                {
                    "path": cell,
                    "condition": condition,
                    "failed": json.dumps(sorted(failed)),
                    "at": at,
                    "deep_at": deep_at,
                },
                pk="path",
            )
            founds.upsert_all(rows, pk=("path", "deep", "check"))

        return self._file.write(change)


@dataclass(frozen=True)
class CheckNews:
    """What a check came to: ``found`` that count, ``new`` among them, ``mended`` by this run."""

    check: str
    severity: Severity
    found: int
    new: int
    mended: int = 0


@dataclass(frozen=True)
class Mending:
    """What mending a store came to. ``run``: what `doctor undo` takes back. ``reason``: why not all of it was done."""

    run: str | None
    mended: int
    exit_code: ExitCode
    reason: str | None = None


@dataclass(frozen=True)
class StoreNews:
    """What a nightly run says of one store.

    ``turned``: it is in another condition than at the last run, and one that has to be told. ``newly_failed``: checks
    that could not do their work, and could at the last run. ``exit_code``: FINDINGS only where something is new.
    ``kept``: whether all of this could be kept for the next run.
    """

    scan: StoreScan
    deep: bool
    checks: Sequence[CheckNews] = ()
    turned: bool = False
    newly_failed: Sequence[str] = ()
    mending: Mending | None = None
    exit_code: ExitCode = ExitCode.CLEAN
    kept: bool = True

    @property
    def found(self) -> int:
        """All findings that count."""
        return sum(each.found for each in self.checks)

    @property
    def new(self) -> int:
        """Those of them that no run before has found."""
        return sum(each.new for each in self.checks)

    @property
    def has_news(self) -> bool:
        """Whether there is anything to be told."""
        return bool(
            self.new
            or self.turned
            or self.newly_failed
            or self.exit_code is ExitCode.STOPPED
            or not self.kept
            or (self.mending and (self.mending.mended or self.mending.exit_code is ExitCode.FAILED))
        )


def look(
    scan: StoreScan,
    ledger: Ledger,
    known: Known,
    least: Severity | None,
    *,
    deep: bool,
    fix: StoreFix | None = None,
) -> StoreNews:
    """Compare a scan with what is known, and keep what is left after mending as what is known from now on.

    ``known``: what the ledger recalls of the store. ``least``: the severity from which on findings count, None where
    none does. What a muted check finds counts for nothing, and what it found before it was muted stays known.
    """
    digests: dict[str, list[bytes]] = {}
    counts: Counter[str] = Counter()
    worst: dict[str, Severity] = {}
    mended = _mended(fix)
    told = {each.check.name for each in scan.checks if each.muted is None}
    seen: Counter[bytes] = Counter()
    for finding in scan.findings:
        if least is None or finding.severity < least or finding.check not in told:
            continue
        counts[finding.check] += 1
        worst[finding.check] = max(worst.get(finding.check, finding.severity), finding.severity)
        kept = digests.setdefault(finding.check, [])
        if len(kept) <= _MOST:
            plain = _digest(finding.check, finding.table, finding.key)
            # Findings about the store itself may have no key of their own: the second is another than the first.
            kept.append(plain if not seen[plain] else _digest(finding.check, str(seen[plain]), plain))
            seen[plain] += 1
    found = {
        each.check.name: _found(counts[each.check.name], digests.get(each.check.name, ()))
        for each in scan.checks
        if each.status == "ran" and each.muted is None
    }
    failed = {each.check.name for each in scan.checks if each.status == "failed"}
    checks = [
        CheckNews(name, worst[name], counts[name], known.new(name, _found(counts[name], digests[name])), mended[name])
        for name in counts
    ]
    code = scan.exit_code(None)
    closed = code is ExitCode.DAMAGED
    turned = closed and known.condition != scan.condition.value
    mending = None if fix is None else Mending(fix.run, mended.total(), fix.exit_code, fix.reason)
    if code is ExitCode.CLEAN and any(each.new for each in checks):
        code = ExitCode.FINDINGS
    if mending is not None and mending.exit_code in (ExitCode.FAILED, ExitCode.STOPPED):
        code = mending.exit_code if code in (ExitCode.CLEAN, ExitCode.FINDINGS) else code
    noted = scan.stopped is not None or ledger.keep(
        scan.ref.path, scan.condition.value, failed, _without(found, fix), deep=deep
    )
    newly = [] if closed else sorted(failed - known.failed)
    return StoreNews(scan, deep, checks, turned, newly, mending, code, noted)


def _mended(fix: StoreFix | None) -> Counter[str]:
    """Return how many findings of each check a run has mended."""
    if fix is None:
        return Counter()
    return Counter(change.check for change in fix.changes if change.state == "applied")


def _without(found: Mapping[str, Found], fix: StoreFix | None) -> dict[str, Found]:
    """Return what was found without what is mended since: it is new, should it come again."""
    gone: dict[str, set[bytes]] = {}
    for change in fix.changes if fix is not None else ():
        if change.state in ("applied", "gone"):
            gone.setdefault(change.check, set()).add(_digest(change.check, change.table, change.key))
    left: dict[str, Found] = {}
    for check, each in found.items():
        if check not in gone:
            left[check] = each
        elif each.digests is None:
            left[check] = Found(max(0, each.count - len(gone[check])), None)
        else:
            digests = each.digests - gone[check]
            left[check] = Found(len(digests), digests)
    return left


def _found(count: int, digests: Sequence[bytes]) -> Found:
    return Found(count, None if count > _MOST else frozenset(digests))


def _digest(check: str, table: str, key: Key) -> bytes:
    told = json.dumps([check, table, json_key(key)], ensure_ascii=True, default=str)
    return hashlib.blake2b(told.encode(), digest_size=_DIGEST).digest()


def _together(digests: Iterable[bytes] | None) -> bytes | None:
    return None if digests is None else b"".join(sorted(digests))


def _apart(joined: bytes | None) -> frozenset[bytes] | None:
    return None if joined is None else frozenset(_pieces(joined))


def _pieces(joined: bytes) -> Iterator[bytes]:
    for at in range(0, len(joined), _DIGEST):
        yield joined[at : at + _DIGEST]


__all__ = ["CheckNews", "Found", "Known", "Ledger", "Mending", "StoreNews", "look"]
