"""The cures, one module each, named as the check whose findings they mend."""

from __future__ import annotations

from fixes import double_encoded, lineage_gaps, open_zombies, orphan_stubs
from hermes_doctor.engine.cure import Fix

FIXES: tuple[Fix, ...] = (lineage_gaps.FIX, double_encoded.FIX, open_zombies.FIX, orphan_stubs.FIX)
