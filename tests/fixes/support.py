"""What tests of fixes share: mending a real store in this process, and taking it back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import apsw

from checks import CHECKS
from fixes import FIXES
from hermes_doctor.engine.apply import apply_store
from hermes_doctor.engine.cure import Fix, FixRefusedError, Mending, RowMovedError
from hermes_doctor.engine.journal import Journal, Run
from hermes_doctor.engine.model import Check, Finding, Safety
from hermes_doctor.engine.plan import Chosen, StoreFix
from hermes_doctor.engine.scan import ScanOptions, scan_store
from hermes_doctor.engine.stopping import Stop
from hermes_doctor.engine.undo import StoreUndo, undo_store
from hermes_doctor.host.homes import StoreRef
from hermes_doctor.store.reader import Pace, Reader
from hermes_doctor.store.shape import read_shape
from hermes_doctor.store.view import StoreView
from hermes_doctor.store.writing import open_for_writing
from tests.whole.identical import difference, image_of

SeenT = TypeVar("SeenT")


@dataclass(frozen=True)
class Patient:
    """A store, and the home around it (None: it stands alone). ``now``: the moment that the doctor takes for now."""

    store: Path
    home: Path | None
    now: float | None = None

    @property
    def ref(self) -> StoreRef:
        return StoreRef(self.store, self.home, "default")

    @property
    def options(self) -> ScanOptions:
        return ScanOptions(now=self.now)

    def findings(self, checks: Sequence[Check] = CHECKS) -> list[Finding]:
        """All that a scan finds; fails where the store or a check could not be read."""
        scan = scan_store(self.ref, checks, self.options)
        with scan.findings as findings:
            assert scan.reason is None, (scan.condition, scan.reason)
            assert {each.check.name: each.reason for each in scan.checks if each.status == "failed"} == {}
            return list(findings)

    def mend(
        self,
        *,
        unsafe: bool = True,
        checks: Sequence[Check] = CHECKS,
        fixes: Sequence[Fix] = FIXES,
        stop: Stop | None = None,
    ) -> StoreFix:
        """Apply what is chosen, without a backup."""
        chosen = Chosen(checks, {fix.check: fix for fix in fixes}, unsafe)
        fix = apply_store(self.ref, chosen, self.options, backup="never", stop=stop or Stop())
        fix.scan.findings.close()
        return fix

    def undo(self, run: str | None, *, apply: bool = True) -> StoreUndo:
        """Take the run back, or plan it."""
        assert run is not None, "nothing was changed"
        undo = undo_store(self.ref, self.run(run), self.options, apply=apply, stop=Stop())
        undo.scan.findings.close()
        return undo

    def runs(self) -> list[Run]:
        """The runs that the journal beside the store knows, newest first."""
        journal = Journal.beside(self.store)
        if journal is None:
            return []
        with journal:
            return journal.runs()

    def run(self, name: str) -> Run:
        """The run of that name."""
        return next(run for run in self.runs() if run.run == name)


def outcome(change: StoreFix | StoreUndo) -> tuple[str, int, str | None]:
    """How it ended: the outcome, the exit code and the reason."""
    return change.outcome, int(change.exit_code), change.reason


def mend_with_all(patient: Patient, check: Check, fix: Fix) -> StoreFix:
    """Mend with every check and fix there is, this one's turn being first."""
    checks = [check, *(other for other in CHECKS if other.name != check.name)]
    fixes = [fix, *(other for other in FIXES if other.check != check.name)]
    return patient.mend(checks=checks, fixes=fixes)


def there_and_back(
    patient: Patient, check: Check, fix: Fix, look: Callable[[Path], SeenT], *, once: Sequence[Finding] | None = None
) -> tuple[SeenT, SeenT, SeenT]:
    """Mend with that fix and take it back: what is seen of the store before, between and behind the two.

    ``once``: all that is found before; fails then as :func:`mended_once` does.
    """
    before = look(patient.store)
    if once is not None:
        with mended_once(patient, check, fix, once):
            between = look(patient.store)
        return before, between, look(patient.store)
    done = patient.mend(checks=[check], fixes=[fix])
    between = look(patient.store)
    if done.run is not None:
        patient.undo(done.run)
    return before, between, look(patient.store)


@contextmanager
def mended_once(patient: Patient, check: Check, fix: Fix, findings: Sequence[Finding]) -> Iterator[None]:
    """Mend what none but an unsafe fix mends, and take it back at the end; ``findings``: all that is there before.

    Fails where anything is mended without ``--unsafe``, is left, is mended twice, or does not come back.
    """
    safely = patient.mend(checks=[check], fixes=[fix], unsafe=False)
    assert (outcome(safely), safely.run) == (("nothing-to-do", 0, None), None)
    done = patient.mend(checks=[check], fixes=[fix])
    assert outcome(done) == ("fixed", 0, None)
    assert [finding for finding in patient.findings([check]) if finding.fix is not Safety.NONE] == []
    again = patient.mend(checks=[check], fixes=[fix])
    assert (outcome(again), again.run) == (("nothing-to-do", 0, None), None)
    yield
    assert outcome(patient.undo(done.run)) == ("fixed", 0, None)
    assert patient.findings([check]) == list(findings)


def mended_and_taken_back(patient: Patient, mend: Callable[[], str | None]) -> list[str]:
    """What differs from before once the run that ``mend`` names is taken back."""
    before = image_of(patient.store)
    run = mend()
    assert outcome(patient.undo(run)) == ("fixed", 0, None)
    return difference(before, image_of(patient.store))


def mend_too_late(patient: Patient, check: Check, fix: Fix, change: Callable[[Mending, Finding], None]) -> StoreFix:
    """Mend where each row is changed just before its turn; fails where anything is left of that, or of the fix."""

    def late(mending: Mending, finding: Finding) -> None:
        change(mending, finding)
        fix.mend(mending, finding)

    before = image_of(patient.store)
    done = patient.mend(checks=[check], fixes=[replace(fix, mend=late)])
    assert difference(before, image_of(patient.store)) == []
    return done


def change_meanwhile(
    patient: Patient, fix: Fix, finding: Finding, *statements: tuple[str, tuple[str | int | float, ...]]
) -> str | None:
    """Run a fix on a finding after somebody has changed the store; what it raised, None where it went through.

    As the engine does: in a transaction, taken back where it raises.
    """
    connection = open_for_writing(patient.store)
    try:
        shape = read_shape(connection)
        reader = Reader(connection, Pace.FREE, encoding=shape.encoding)
        view = StoreView(reader=reader, shape=shape, now=patient.now or time.time(), held="no", home=patient.home)
        for statement, values in statements:
            connection.execute(statement, values)
        connection.execute("BEGIN IMMEDIATE")
        try:
            fix.mend(Mending(view, connection), finding)
        except (RowMovedError, FixRefusedError, apsw.ConstraintError) as error:
            connection.execute("ROLLBACK")
            return type(error).__name__
        connection.execute("COMMIT")
        return None
    finally:
        connection.close()
