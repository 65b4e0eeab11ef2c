"""Everything that the doctor can look for here: its own checks and fixes, and those that other packages bring.

Experimental: a package may bring checks of its own through the entry-point group ``hermes_doctor.checks``. An entry
point is called as its check, ``PREFIX/NAME``, where PREFIX is the name of the package that brings it (without a
leading ``hermes-doctor-``), so that no two packages can meet; it leads to a `Check`, or to a pair of a `Check` and its
`Fix`. What such a package may import is in `hermes_doctor.plugin`.

Checks from elsewhere are kept apart from our own: each reads by itself, so that its mistakes fail none but itself; the
connection writes nothing while it looks; and whatever it says of its fix, that needs ``--unsafe``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

import apsw

from checks import CHECKS
from hermes_doctor.engine.defects import OthersDefectError
from hermes_doctor.engine.model import Check, Finding, RelationRule, Rule, Safety
from hermes_doctor.engine.rows import ask, find
from hermes_doctor.host.installed import may_be_declared
from hermes_doctor.store.cells import Key
from hermes_doctor.store.view import StoreView

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from hermes_doctor.engine.cure import Fix

#: The entry-point group through which other packages bring checks.
GROUP = "hermes_doctor.checks"

_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
#: Left off a package's name to make its prefix.
_FAMILY = "hermes-doctor-"


@dataclass(frozen=True)
class Catalogue:
    """All checks, in the order of reports.

    ``brought``: the fixes that other packages bring, by their check's name. ``problems``: one line for each check of
    another package that cannot be used, and why.
    """

    checks: tuple[Check, ...]
    brought: dict[str, Fix]
    problems: tuple[str, ...] = ()

    @property
    def fixes(self) -> dict[str, Fix]:
        """All fixes by their check's name; ours are imported when they are asked for, which no scan does."""
        from fixes import FIXES

        return {fix.check: fix for fix in FIXES} | self.brought

    @property
    def names(self) -> list[str]:
        """The names of all checks."""
        return [check.name for check in self.checks]


class UnusableError(Exception):
    """A check of another package that cannot be used, and why: the end of a sentence."""


@cache
def catalogue() -> Catalogue:
    """Return all that can be looked for, computed once; what other packages bring is imported by this."""
    checks = list(CHECKS)
    brought: dict[str, Fix] = {}
    problems: list[str] = []
    for entry in _entry_points():
        try:
            if entry.name in {check.name for check in checks}:
                raise UnusableError("its name is taken")
            check, fix = _load(entry)
        except Exception as error:
            reason = str(error) if isinstance(error, UnusableError) else f"{type(error).__name__}: {error}"
            problems.append(f"the check {entry.name} of {_package(entry)} is left out: {reason}")
            continue
        checks.append(check)
        if fix is not None:
            brought[check.name] = fix
    return Catalogue(tuple(checks), brought, tuple(problems))


def _entry_points() -> Sequence[EntryPoint]:
    if not may_be_declared(GROUP):
        return ()
    # Only here: it takes longer than all of our own checks.
    from importlib.metadata import entry_points

    return sorted(entry_points(group=GROUP), key=lambda entry: entry.name)


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else "an unknown package"


def _load(entry: EntryPoint) -> tuple[Check, Fix | None]:
    """Import what the entry point leads to and put it behind the fence; raises what its import raises."""
    prefix = re.sub(r"[-_.]+", "-", _package(entry)).lower().removeprefix(_FAMILY)
    if not entry.name.startswith(f"{prefix}/") or not _NAME.fullmatch(entry.name.removeprefix(f"{prefix}/")):
        raise UnusableError(f"its name has to be {prefix}/ and then words in lower case, with hyphens")
    from hermes_doctor.engine.cure import Fix

    brought = entry.load()
    check, fix = brought if isinstance(brought, tuple) and len(brought) == 2 else (brought, None)
    if not isinstance(check, Check) or not isinstance(fix, Fix | None):
        raise UnusableError("it leads to no Check, nor to a pair of a Check and its Fix")
    if check.name != entry.name or (fix is not None and fix.check != entry.name):
        raise UnusableError("its Check, its Fix and its entry point have different names")
    return _fenced(check, _package(entry), mends=fix is not None), fix


def _fenced(check: Check, package: str, *, mends: bool) -> Check:
    """Return the check with each rule behind the fence: it reads by itself, writes nothing, and mends unsafely."""
    best = Safety.UNSAFE if mends and check.fix is not Safety.NONE else Safety.NONE
    rules = tuple(_fence(replace(check, rule=rule), rule, best, package) for rule in check.rules)
    return replace(check, fix=best, rule=rules)


def _fence(alone: Check, rule: Rule, best: Safety, package: str) -> RelationRule:
    def look(view: StoreView, keys: Sequence[Key] | None) -> Iterator[Finding]:
        with _writing_nothing(view.reader.connection), _named(package):
            for finding in find([alone], view) if keys is None else ask(alone, keys, view):
                fix = Safety.NONE if finding.fix is Safety.NONE else best
                yield replace(finding, check=alone.name, table=rule.table, fix=fix)

    return RelationRule(rule.table, look)


@contextmanager
def _named(package: str) -> Iterator[None]:
    """Have a mistake carry the name of the package that made it; what is the file's own fault stays what it is."""
    try:
        yield
    except (apsw.BusyError, apsw.CorruptError, apsw.IOError, apsw.NotADBError):
        raise
    except Exception as error:
        raise OthersDefectError(package) from error


@contextmanager
def _writing_nothing(connection: apsw.Connection) -> Iterator[None]:
    """Have SQLite refuse every change meanwhile; inside a fix's transaction, too, where the connection can write."""
    was = connection.pragma("query_only")
    connection.pragma("query_only", True)
    try:
        yield
    finally:
        connection.pragma("query_only", was)
