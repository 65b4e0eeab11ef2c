"""What the fixes of copies share: what they are to make of every row, the copies' and all others'."""

from __future__ import annotations

from collections.abc import Sequence

from hermes_doctor.engine.cure import Fix
from hermes_doctor.engine.model import Check, Finding
from tests.checks.copies_cases import CopyCase, by_session
from tests.checks.support import Planted
from tests.fixes.support import Patient, there_and_back
from tests.whole.identical import Image, difference, image_of


def set_aside(
    planted: Planted[CopyCase],
    check: Check,
    fix: Fix,
    changed: Sequence[str],
    once: Sequence[Finding] | None = None,
) -> tuple[list[str], Image, Image]:
    """Mend with that fix and take it back; what is not as it must be, and the store before and between the two.

    Copies are rewound rows then, every other row stands where it stood, in no column but ``changed`` is anything
    changed, and all of it comes back. ``once``: as for :func:`there_and_back`.
    """
    patient = Patient(planted.home.store, planted.home.path, planted.now)
    before, after, back = there_and_back(patient, check, fix, image_of, once=once)
    lines = difference(before, back)
    lines += [line for line in difference(before, after) if not any(f": {column} " in line for column in changed)]
    copies = {case.name: case.copies for case in planted.cases}
    now = by_session(after)
    for session, rows in by_session(before).items():
        wanted = [(0, 0) if place in copies.get(session, ()) else state for place, state in enumerate(rows)]
        if now.get(session) != wanted:
            lines.append(f"{session}: {now.get(session)}")
    return lines, before, after
