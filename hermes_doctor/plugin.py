"""What a package imports that brings a check of its own (experimental: names may still change).

A package registers its check in the entry-point group ``hermes_doctor.checks``; see `hermes_doctor.catalogue` for the
rules that hold for such checks, and ``examples/`` for a whole package.
"""

from __future__ import annotations

from hermes_doctor.engine.cure import Fix, FixRefusedError, Mending, Phase, RowMovedError
from hermes_doctor.engine.model import (
    Check,
    Finding,
    Fold,
    FoldRule,
    RelationRule,
    Row,
    RowRule,
    Safety,
    Severity,
    Sieve,
    Told,
)
from hermes_doctor.store.cells import BadText, Cell, Key
from hermes_doctor.store.clocks import trusted, trusted_sql
from hermes_doctor.store.reader import in_keys
from hermes_doctor.store.shape import Shape
from hermes_doctor.store.view import StoreView

__all__ = [
    "BadText",
    "Cell",
    "Check",
    "Finding",
    "Fix",
    "FixRefusedError",
    "Fold",
    "FoldRule",
    "Key",
    "Mending",
    "Phase",
    "RelationRule",
    "Row",
    "RowMovedError",
    "RowRule",
    "Safety",
    "Severity",
    "Shape",
    "Sieve",
    "StoreView",
    "Told",
    "in_keys",
    "trusted",
    "trusted_sql",
]
