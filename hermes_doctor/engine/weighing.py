"""Notes about the room that something takes: one finding of a table as a whole, from a mebibyte on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hermes_doctor.engine.model import Detail, Finding, Severity
from hermes_doctor.store.cells import Key
from hermes_doctor.store.prompts import MEBIBYTE

#: Less than this, in bytes, is nothing to tell.
WORTH_TELLING = MEBIBYTE


def is_asked(keys: Sequence[Key] | None) -> bool:
    """Whether a rule that is asked about these keys is asked about the table as a whole, which has no key."""
    return keys is None or None in keys


def weighed(check: str, table: str, rows: int, size: int, summary: str, detail: Detail) -> Iterator[Finding]:
    """Give the finding of a table, of which so many rows take ``size`` bytes, if these are worth telling."""
    if size >= WORTH_TELLING:
        yield Finding(
            check=check,
            severity=Severity.INFO,
            table=table,
            key=None,
            session=None,
            summary=summary,
            detail={"rows": rows, "bytes": size, **detail},
        )


def in_mebibytes(size: int) -> str:
    """Return a number of bytes as the notes tell it."""
    return f"{size / MEBIBYTE:,.1f} MiB"
