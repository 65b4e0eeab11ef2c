"""Stores that are to be damaged, and what the check is to say of each damage."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checks.file_damage import CHECK
from hermes_doctor.engine.model import Check, Finding, Severity
from hermes_doctor.engine.scan import ScanOptions, scan_store
from hermes_doctor.host.bundle import Condition
from hermes_doctor.host.homes import StoreRef
from tests.checks.support import built_once
from tests.oracle.home import Home
from tests.oracle.steps import sql_many
from tests.whole.breaking import DAMAGES, Belongs, Hit, at_rest, leave_free_pages

#: In WAL mode, with an index of texts of its own; in rollback mode, with an index over the messages.
VERSIONS = ("0.19.0", "0.22.2")

_WORDS = ("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa")


def large_enough(shared: Path, to: Path, version: str) -> Path:
    """A private copy of a sound store of that release, in which every kind of tree has several pages."""
    home, _now = built_once(shared / "to-be-damaged" / version, lambda home: _build(home, version))
    to.mkdir(parents=True)
    return Path(shutil.copy2(home.store, to / "state.db"))


def _build(home: Home, version: str) -> float:
    sessions: list[list[Any]] = [[f"session-{n}", "cli", 1.7e9 + n, "model " * 60] for n in range(40)]
    # Some texts are so long that they have pages of their own.
    messages: list[list[Any]] = [
        [
            f"session-{n % 40}",
            "user",
            f"{_WORDS[n % 10]} {_WORDS[n // 10 % 10]} {n} " * (6 if n % 70 else 900),
            1.7e9 + n,
        ]
        for n in range(800)
    ]
    home.run(
        version,
        [
            sql_many("INSERT INTO sessions (id, source, started_at, model) VALUES (?, ?, ?, ?)", sessions),
            sql_many("INSERT INTO messages (session_id, role, content, timestamp) VALUES (?, ?, ?, ?)", messages),
        ],
    )
    at_rest(home.store)
    leave_free_pages(home.store)
    return 0.0


@dataclass(frozen=True)
class Diagnosis:
    """What a scan said of a damaged store: its condition, what that means and what to do, and the check's findings."""

    condition: Condition
    reason: str | None
    next_step: str | None
    exit_code: int
    findings: list[Finding]
    trace: list[str]

    @property
    def kinds(self) -> set[str]:
        """What is said to be damaged."""
        return {str(finding.detail["damage"]) for finding in self.findings if finding.severity is Severity.ERROR}

    def names(self, kind: str) -> set[str]:
        """The tables, indexes or other things that are said to be damaged in that way."""
        found: set[str] = set()
        for finding in self.findings:
            if finding.detail.get("damage") == kind:
                for key in ("tables", "indexes", "names"):
                    value = finding.detail.get(key)
                    found |= set(value) if isinstance(value, list) else set()
        return found


def diagnosed(store: Path, *, check: Check = CHECK, deep: bool = False, home: Path | None = None) -> Diagnosis:
    """Scan a store with the check alone; fails where the check could not do its work."""
    scan = scan_store(StoreRef(store, home, "default"), [check], ScanOptions(deep=deep))
    with scan.findings as findings:
        assert [result.reason for result in scan.checks if result.status != "ran"] == []
        code = int(scan.exit_code(Severity.WARNING))
        return Diagnosis(scan.condition, scan.reason, scan.next_step, code, list(findings), scan.trace)


#: By what is hit, what is said of it; and of single damages, where that is something else.
_SAID = {
    Belongs.TABLE: {"rows"},
    Belongs.INDEX: {"index"},
    Belongs.SEARCH: {"search"},
    Belongs.FREE: {"pages"},
    Belongs.SCHEMA: {"schema"},
}
_SAID_OF = {
    # A page of the messages went to the list of free pages, and that to the messages.
    "swap-free": {"pages", "rows"},
    "lose-first-page": {"header"},
    "tear-last-frame": set(),
}


def faults_in(diagnosis: Diagnosis, name: str, hit: Hit) -> list[str]:
    """What is wrong with a diagnosis of that damage; nothing for a right one."""
    if name.startswith("shorten"):
        short = [finding for finding in diagnosis.findings if finding.detail.get("missing_pages") == len(hit.pages)]
        told = set().union(*(diagnosis.names(kind) for kind in diagnosis.kinds))
        # Without all of the schema it cannot be told what else there was.
        unknown = ({"sqlite_schema"} if "sqlite_schema" in hit.names else set(hit.names)) - told
        return ([] if short else ["how much is missing is not told"]) + [f"{each} is not told" for each in unknown]
    if name == "another-generations-log":
        # Pages of another time lie among the others: some tree or other does not hold together.
        return [] if diagnosis.kinds else ["nothing is found"]
    wanted = _SAID_OF.get(name, _SAID.get(hit.belongs, set()))
    if name == "tear-search" and not diagnosis.kinds:
        # The lists of words are one long text each: half of another one is for the search index's own check to see.
        return []
    faults = [] if diagnosis.kinds == wanted else [f"{diagnosis.kinds or 'nothing'} instead of {wanted}"]
    if hit.names and hit.belongs is not Belongs.FREE:
        told = set().union(*(diagnosis.names(kind) for kind in wanted))
        # Where SQLite cannot read on, it names the first of two indexes only.
        right = told == set(hit.names) or (name == "swap-index-interior" and told and told < set(hit.names))
        faults += [] if right else [f"{told} instead of {set(hit.names)}"]
    return faults


def wrong_diagnoses(shared: Path, folder: Path, version: str, names: tuple[str, ...], check: Check) -> list[str]:
    """Of these damages, those that a check (a wrong one, say) diagnoses wrongly."""
    wrong = []
    for name in names:
        store = large_enough(shared, folder / name, version)
        hit = DAMAGES[name](store, 1)
        wrong += [name] if faults_in(diagnosed(store, check=check), name, hit) else []
    return wrong
