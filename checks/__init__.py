"""The faults that the doctor knows, one module each, in the order in which reports show them."""

from __future__ import annotations

from checks import double_encoded, lineage_gaps, open_zombies, orphan_stubs
from hermes_doctor.engine.model import Check

CHECKS: tuple[Check, ...] = (lineage_gaps.CHECK, double_encoded.CHECK, open_zombies.CHECK, orphan_stubs.CHECK)
