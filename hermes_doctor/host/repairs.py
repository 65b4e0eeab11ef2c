"""What mends which damage of a store's file: one of hermes's own commands, or the doctor's rescue.

Executed on damaged stores of each kind: ``sessions repair`` of 0.17.0, 0.19.0, 0.20.0 and 0.22.2 makes the search index
anew and takes doubled schema rows out; an index over rows it makes anew from 0.20.0 on, where SQLite can still read
the old one; it gets back no row, and up to 0.20.0 it works in the store's file, which then lacks its search index as
well. ``sessions recover`` (0.20.0 on) reads what can be read into another file, of one that is cut off, too; where the
first page is lost it takes 0.21.5 and the sqlite3 shell, which guesses what the pages were. ``doctor rescue`` does that
for the stores of every release.
"""

from __future__ import annotations

import enum
from pathlib import Path

from hermes_doctor.host.upstream import (
    RECOVER_SCHEMA,
    RECOVER_SINCE,
    REPAIR_SCHEMA,
    hermes_command,
    rescue_inspection,
    salvage,
)

#: The first release with ``sessions repair``.
_REPAIR_SINCE = "0.17"


class Loss(enum.Enum):
    """What is damaged. HEADER, ROWS: the first page, or something else that only a copy or a salvage gives back. INDEX,
    SEARCH: what can be made anew from rows, and from messages. SCHEMA: something that is listed twice.
    """

    HEADER = enum.auto()
    ROWS = enum.auto()
    INDEX = enum.auto()
    SEARCH = enum.auto()
    SCHEMA = enum.auto()


#: What makes the damage worse: executed, or reported (issue 101735: ``.recover`` on the file itself).
WORSE = {
    Loss.HEADER: "keep the file as it is: .recover on the file itself makes it worse",
    Loss.ROWS: ".recover, VACUUM, REINDEX or sessions repair on the file itself make it worse",
    Loss.INDEX: ".recover or VACUUM on the file itself make it worse",
    Loss.SEARCH: ".recover on the file itself makes it worse",
    Loss.SCHEMA: ".recover or VACUUM on the file itself make it worse",
}


def way_out(loss: Loss, path: Path, schema_version: int | None = None, profile: str | None = None) -> str:
    """Return what to type for a store with that damage, as one line.

    ``schema_version``: of the store, as far as known: the hermes that wrote it last may be too old for its command.
    Where the file is no home's own store, none but those apply that take a path.
    """
    if loss is Loss.HEADER:
        return rescue_inspection(path)
    hermes = hermes_command(path, profile)
    if loss is Loss.ROWS or hermes is None:
        return salvage(path, schema_version, profile)
    since, schema = (RECOVER_SINCE, RECOVER_SCHEMA) if loss is Loss.INDEX else (_REPAIR_SINCE, REPAIR_SCHEMA)
    repair = f"{hermes} sessions repair"
    if schema_version is not None and schema_version < schema:
        return f"{rescue_inspection(path)}; or upgrade hermes to {since} or newer and type {repair}"
    return f"{repair} (hermes {since} or newer); and if it cannot: {rescue_inspection(path)}"
