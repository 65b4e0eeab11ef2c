"""The faults that the doctor knows, one module each, in the order in which reports show them."""

from __future__ import annotations

from hermes_doctor.engine.model import Check

CHECKS: tuple[Check, ...] = ()
