"""Who refers to a session, from anywhere that can be seen.

Nothing in the schema says which columns hold session ids: foreign keys are rare, plugins and forks bring tables of
their own, and much is JSON. So every ordinary table is looked through, of the store and of hermes's other databases
in the home: columns whose name speaks of a session, and JSON that does. What looks like a mention counts as one: it
only ever keeps a row. All sessions that are asked about are looked for in one walk of each table.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from hermes_doctor.host import state_files
from hermes_doctor.store.cells import Cell, Key, quote
from hermes_doctor.store.shape import Shape, Table
from hermes_doctor.store.view import StoreView

if TYPE_CHECKING:
    from hermes_doctor.store.reader import Reader

#: Tables of the store that are not asked: a session's own rows are its contents, and prompts name nobody.
_OWN_TABLES_LEFT_OUT = frozenset({"messages", "system_prompts"})
#: Columns of sessions that are not asked: what the row itself is called; text of a person or for the model (up to
#: 30 kB a row).
_SESSION_COLUMNS_LEFT_OUT = frozenset({"id", "session_key", "title", "system_prompt"})
#: state_meta keeps what belongs to one session under ``goal:<id>`` (0.13.0 on), ``loop:<id>``, ``heartbeat:<id>``
#: (0.22.2).
_KEYED_BY_SESSION = ("state_meta", "key")

#: Declared types of columns that hold numbers, not documents.
_NUMERIC = re.compile("INT|REAL|FLOA|DOUB|BOOL", re.IGNORECASE)
#: So few ids are compared by SQLite, as a fix asks for them inside its transaction; more of them by a set.
_FEW = 100

#: JSON larger than this, in bytes, is not taken apart.
_LARGEST_JSON = 64 << 20
#: JSON inside a string of JSON is followed so deep.
_DEEPEST = 4

#: Seconds that a lock on another database is waited for: the store itself may be waiting for us meanwhile.
_BUSY_SECONDS = 1.0

_CODECS = {"UTF-16le": "utf-16-le", "UTF-16be": "utf-16-be"}

_Name = str | bytes


@dataclass(frozen=True)
class References:
    """What refers to some sessions. ``unseen`` says, in words, what could not be looked at."""

    places: Mapping[_Name, tuple[str, ...]]
    unseen: tuple[str, ...]

    def of(self, session: Key) -> tuple[str, ...]:
        """Return the places that name the session, such as ``gateway_routing.entry_json`` or ``cron/jobs.json``."""
        return self.places.get(_name(session), ())

    @property
    def complete(self) -> bool:
        """Whether everything that could refer to a session was looked at."""
        return not self.unseen


@dataclass
class _Search:
    wanted: frozenset[_Name]
    found: dict[_Name, dict[str, None]] = field(default_factory=dict)
    unseen: dict[str, None] = field(default_factory=dict)

    def among(self, encoding: str) -> str:
        """Return SQL for "is one of the ids", open for the expression; where they are many, for "is there"."""
        if len(self.wanted) > _FEW:
            return "{} IS NOT NULL"
        codec = _CODECS.get(encoding, "utf-8")
        spelled = (name if isinstance(name, bytes) else name.encode(codec, "surrogatepass") for name in self.wanted)
        return "CAST({} AS TEXT) IN (" + ", ".join(f"CAST(x'{each.hex()}' AS TEXT)" for each in spelled) + ")"

    def note(self, name: _Name, place: str) -> None:
        if name in self.wanted:
            self.found.setdefault(name, {})[place] = None


def references(view: StoreView, sessions: Sequence[Key]) -> References:
    """Look for whatever names one of these sessions.

    Looked at: ordinary tables of the store (but ``messages`` and ``system_prompts``, and a session's own row);
    ``sessions.json``, ``active_sessions.json``, ``cron/jobs.json`` and the other databases of the home and, for a
    profile, of the root that it belongs to. Opens nothing where no session is asked about. Raises what reading the
    store itself raises; trouble with anything else is named in ``unseen``.
    """
    search = _Search(frozenset(_name(session) for session in sessions))
    if search.wanted:
        _search_tables(search, view.reader, view.shape, own=True)
        if view.home is None:
            search.unseen["the store stands without its home"] = None
        else:
            for home in _homes(view.home):
                _search_files(search, home)
                for path in state_files.other_databases(home):
                    _search_database(search, path, home)
    return References({name: tuple(places) for name, places in search.found.items()}, tuple(search.unseen))


def _name(cell: Key) -> _Name:
    """Return an id as mentions of it are compared: what is no text or bytes, by how JSON would spell it."""
    if isinstance(cell, bytes):
        return bytes(cell)
    return cell if isinstance(cell, str) else str(cell)


def _homes(home: Path) -> Iterator[Path]:
    """Give the home and, where it is a profile's, the root's: boards and rooms of all profiles are kept there."""
    yield home
    if home.parent.name == "profiles":
        yield home.parent.parent


def _search_files(search: _Search, home: Path) -> None:
    for place, read in (
        ("sessions/sessions.json", state_files.routed_session_ids),
        ("runtime/active_sessions.json", state_files.active_sessions_ids),
        ("cron/jobs.json", state_files.cron_job_ids),
    ):
        mentions = read(home)
        if not mentions.readable:
            search.unseen[f"{place} is not readable"] = None
        for session in mentions.ids:
            search.note(session, place)


def _search_database(search: _Search, path: Path, home: Path) -> None:
    """Look through one of hermes's other databases, without a trace as always."""
    import apsw

    from hermes_doctor.host.bundle import StoreProblem
    from hermes_doctor.store.opening import open_without_trace
    from hermes_doctor.store.reader import Reader
    from hermes_doctor.store.shape import read_shape

    name = str(path.relative_to(home)) if path.is_relative_to(home) else path.name
    try:
        if path.stat().st_size == 0:
            return
        opened = open_without_trace(path, busy_seconds=_BUSY_SECONDS, hermes_only=False)
        try:
            shape = read_shape(opened.connection)
            reader = Reader(opened.connection, opened.pace, encoding=shape.encoding, rests=opened.holding.state != "no")
            _search_tables(search, reader, shape, own=False, prefix=f"{name}: ")
            reader.finish()
            if opened.moved():
                search.unseen[f"{name} was being written"] = None
        finally:
            opened.close()
    except (StoreProblem, apsw.Error, OSError):
        search.unseen[f"{name} is not readable"] = None


def _search_tables(search: _Search, reader: Reader, shape: Shape, *, own: bool, prefix: str = "") -> None:
    import apsw

    for name in shape.unreadable:
        search.unseen[f"{prefix}table {name} cannot be described"] = None
    for table in shape.tables.values():
        if own and table.name.lower() in _OWN_TABLES_LEFT_OUT:
            continue
        try:
            _search_table(search, reader, table, own=own, prefix=prefix)
        except apsw.SQLError:
            # A generated column may call a function that only its plugin has.
            search.unseen[f"{prefix}table {table.name} is not readable"] = None


def _search_table(search: _Search, reader: Reader, table: Table, *, own: bool, prefix: str) -> None:
    """Look through one table: first for ids that stand in cells of their own, then for JSON that names them."""
    is_sessions = own and table.name.lower() == "sessions"
    # What a session's row says of itself is no reference to it.
    itself = quote("id") if is_sessions and table.has("id") else "NULL"
    ids: dict[str, str] = {}
    documents: dict[str, str] = {}
    for name, column in table.columns.items():
        if is_sessions and name in _SESSION_COLUMNS_LEFT_OUT:
            continue
        cell, place = quote(column.name), f"{prefix}{table.name}.{column.name}"
        if own and (table.name.lower(), name) == _KEYED_BY_SESSION:
            ids[place] = f"substr({cell}, instr({cell}, ':') + 1)"
        elif _speaks_of_sessions(name):
            ids[place] = cell
            documents[place] = (
                f"CASE WHEN typeof({cell}) = 'text' AND substr({cell}, 1, 1) IN ('{{', '[') THEN {cell} END"
            )
        elif not _NUMERIC.search(column.type):
            words = ("ession", "conversation", *(("_from",) if is_sessions and name == "model_config" else ()))
            some = " OR ".join(f"instr({cell}, '{word}')" for word in words)
            documents[place] = f"CASE WHEN typeof({cell}) = 'text' AND ({some}) THEN {cell} END"
    for where, found, row in _cells(reader, table, ids, itself, search.among(reader.encoding)):
        if row is None or _name(found) != _name(row):
            search.note(_name(found), where)
    for where, found, row in _cells(reader, table, documents, itself, "{} IS NOT NULL"):
        if isinstance(found, str | bytes) and len(found) > _LARGEST_JSON:
            search.unseen[f"{where} is too large to look through"] = None
            continue
        for mention in _strings(_text(found, reader.encoding), 0):
            if row is None or mention != _name(row):
                search.note(mention, where)


def _cells(
    reader: Reader, table: Table, asked: Mapping[str, str], itself: str, where: str
) -> Iterator[tuple[str, Cell, Cell]]:
    """Give (place, cell, session whose own row it is) for the expressions that are not NULL, in one walk."""
    if not asked:
        return
    some = " OR ".join(where.format(expression) for expression in asked.values())
    for row, *cells in reader.walk(table, [itself, *asked.values()], some):
        for place, cell in zip(asked, cells, strict=True):
            if cell is not None:
                yield place, cell, row


def _speaks_of_sessions(column: str) -> bool:
    return "session" in column or "conversation" in column or column == "root" or column.endswith("root_id")


def _text(cell: Cell, encoding: str) -> str:
    return cell.decode(_CODECS.get(encoding, "utf-8"), "replace") if isinstance(cell, bytes) else str(cell)


def _strings(text: str, depth: int) -> Iterator[str]:
    """Give all strings, keys and numbers of a JSON document, and of the documents inside its strings.

    A document that is broken or nested too deep is cut at its quotation marks: no mention in it is lost.
    """
    if depth > _DEEPEST or text.lstrip()[:1] not in ("{", "[", '"'):
        return
    try:
        waiting: list[object] = [json.loads(text)]
    except (ValueError, RecursionError):
        yield from (piece.rstrip("\\") for piece in text.split('"'))
        return
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting.extend(value)
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)
        elif isinstance(value, str):
            yield value
            yield from _strings(value, depth + 1)
        elif isinstance(value, int | float):
            yield str(value)


def has_transcript(view: StoreView, session: Key) -> bool:
    """Whether the home has a transcript file of the session, or it cannot be told; False without a home."""
    if view.home is None or not isinstance(session, str):
        return False
    return any(state_files.transcript_exists(home, session) for home in _homes(view.home))
