"""Spans of time in words."""

from __future__ import annotations

from hermes_doctor.store.clocks import DAY, HOUR, MINUTE


def in_words(seconds: float) -> str:
    """Return a span of time as a person says it, rounded down: 3 days, 5 hours."""
    for unit, size in (("day", DAY), ("hour", HOUR), ("minute", MINUTE)):
        count = int(seconds // size)
        if count:
            return f"{count:,} {unit}{'' if count == 1 else 's'}"
    return "less than a minute"
