"""Which of hermes's own commands mends which damage of a store's file.

Executed on damaged stores of each kind: ``sessions repair`` of 0.17.0, 0.19.0, 0.20.0 and 0.22.2 makes the search index
anew and takes doubled schema rows out; an index over rows it makes anew from 0.20.0 on, where SQLite can still read
the old one; it gets back no row, and up to 0.20.0 it works in the store's file, which then lacks its search index as
well. ``sessions recover`` (0.20.0 on) reads what can be read into another file, of one that is cut off, too; where the
first page is lost it takes 0.21.5 and the sqlite3 shell, which guesses what the pages were.
"""

from __future__ import annotations

import enum
from pathlib import Path

from hermes_doctor.host.upstream import (
    RECOVER_SCHEMA,
    RECOVER_SINCE,
    REPAIR_SCHEMA,
    hermes_command,
    inspection,
    quoted,
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


#: The first release that salvages a file without its first page.
_SALVAGE_SINCE = "0.21.5"

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

    ``schema_version``: of the store, as far as known: the hermes that wrote it last may be too old for the command.
    Where the file is no home's own store, only ``recover`` applies, which takes a path.
    """
    hermes = hermes_command(path, profile)
    if loss is Loss.HEADER:
        into = quoted(path.with_name(f"{path.name}.recovered"))
        salvage = f"{hermes or 'hermes'} sessions recover --source {quoted(path)} --output {into} --allow-partial"
        return f"{salvage} (hermes {_SALVAGE_SINCE} or newer, with the sqlite3 shell)"
    recover = _with_need(
        inspection(hermes or "hermes", path),
        RECOVER_SINCE,
        upgrade=schema_version is not None and schema_version < RECOVER_SCHEMA,
    )
    if loss is Loss.ROWS or hermes is None:
        return recover
    since, schema = (RECOVER_SINCE, RECOVER_SCHEMA) if loss is Loss.INDEX else (_REPAIR_SINCE, REPAIR_SCHEMA)
    upgrade = schema_version is not None and schema_version < schema
    return f"{_with_need(f'{hermes} sessions repair', since, upgrade=upgrade)}; and if it cannot: {recover}"


def _with_need(command: str, since: str, *, upgrade: bool) -> str:
    return (
        f"upgrade hermes to {since} or newer and type {command}" if upgrade else f"{command} (hermes {since} or newer)"
    )
