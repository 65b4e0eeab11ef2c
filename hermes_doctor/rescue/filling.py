"""Rows that are cut: what is left of them is saved, where it is enough to tell what the row was.

A value that is cut short is no value, but for the text of a message: its beginning is worth having, and says itself
that it is only that. Nothing else is made up but a time that the schema insists on, which is taken from the messages
nearby.
"""

from __future__ import annotations

import apsw

from hermes_doctor.rescue.forms import Form
from hermes_doctor.rescue.records import Record
from hermes_doctor.store.cells import Cell

#: What stands behind the beginning of a text.
MARK = "\n[The rest of this message is lost: it was cut off when the store was damaged.]"

#: The only times that releases insist on, and where one that is near is found.
_NEAREST = {
    (
        "messages",
        "timestamp",
    ): """
SELECT coalesce(
    (SELECT timestamp FROM messages WHERE session_id IS :session_id AND id < :id ORDER BY id DESC LIMIT 1),
    (SELECT timestamp FROM messages WHERE session_id IS :session_id AND id > :id ORDER BY id LIMIT 1),
    (SELECT timestamp FROM messages WHERE id < :id ORDER BY id DESC LIMIT 1),
    (SELECT timestamp FROM messages WHERE id > :id ORDER BY id LIMIT 1))
""",
    ("sessions", "started_at"): "SELECT min(timestamp) FROM messages WHERE session_id IS :id",
}
#: What has to be left of a row, so that it is clear where it belongs.
_ESSENTIAL = {"messages": ("session_id", "role"), "sessions": ("id", "source")}


def belongs(form: Form, record: Record, *, torn: bool) -> bool:
    """Whether a row that may be wiped in part still says clearly where it belongs; ``torn``: its page is.

    Texts that are no text there are in sound stores, too, but no NULs in what says where a row belongs.
    """
    values = dict(zip((column.name.lower() for column in form.columns), record.values, strict=False))
    told = (values.get(name) for name in _ESSENTIAL.get(form.table.lower(), ()))
    return all("\0" not in value if isinstance(value, str) else value is not None and not torn for value in told)


def completed(connection: apsw.Connection, form: Form, number: int, record: Record) -> dict[str, Cell] | None:
    """Return the values of a row that is cut by their columns' names in lower case; None where too little is left.

    A column that is missing in it gets its default.
    """
    values = dict(zip((column.name.lower() for column in form.columns), record.values, strict=False))
    essential = _ESSENTIAL.get(form.table.lower())
    if essential is None or any(values.get(name) is None for name in essential):
        return None
    cut = form.columns[len(record.values)]
    if record.partial is not None and (form.table.lower(), cut.name.lower()) == ("messages", "content"):
        values["content"] = _sure(record.partial) + MARK
    bound = {**values, **{column.name.lower(): number for column in form.columns if column.is_rowid}}
    for column in form.columns[len(record.values) :]:
        name = column.name.lower()
        if name not in values and column.needed and not column.has_default:
            values[name] = _nearest(connection, form, name, bound)
            if values[name] is None:
                return None
    return values


def _sure(beginning: str) -> str:
    """Return the beginning of a text as far as it is sure to be text.

    Where a page is torn, bytes of another follow, and with them NULs. Releases store structured content with a NUL in
    front; other texts of theirs hold none.
    """
    return beginning[:1] + beginning[1:].partition("\0")[0]


def _nearest(connection: apsw.Connection, form: Form, column: str, bound: dict[str, Cell]) -> Cell:
    sql = _NEAREST.get((form.table.lower(), column))
    if sql is None:
        return None
    rows = connection.execute(sql, {name: bound.get(name) for name in ("id", "session_id")}).fetchall()
    found: Cell = rows[0][0] if rows else None
    return found
