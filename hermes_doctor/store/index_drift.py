"""Which messages a search index holds wrongly: not there, there although they should not be, or with another text.

FTS5 keeps one row of ``_docsize`` for each entry: a narrow table in the order of the messages' ids. FTS5's own check
sees nothing of this on an inline index, and a trigram index leaves out on purpose what its view leaves out, so that
its count says nothing. Messages that a deferred rebuild has not come to (0.20.0 on) are in no index, and rightly so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hermes_doctor.store.cells import Cell, quote
from hermes_doctor.store.index_state import IndexState, follows_all
from hermes_doctor.store.reader import Pace, Values
from hermes_doctor.store.search_index import INDEXES, Layout, depends_on_sessions, inline_texts
from hermes_doctor.store.shape import Shape, Table
from hermes_doctor.store.view import StoreView

#: Ids that one finding covers, and one repair: the width of the ranges, which begin at its multiples.
WIDTH = 2048

#: The newest messages are always compared, and windows spread over the rest, by their ids.
_NEWEST, _WINDOW, _WINDOWS = 256, 64, 15
#: Sessions of which one message is compared: the newest, and some of each stretch of the rest.
_NEWEST_SESSIONS, _SOME_SESSIONS, _STRETCHES = 256, 16, 8
#: Entries of the newest messages that are held against those of the base index.
_NEWEST_ENTRIES = 1 << 16
#: Messages up to which their ids are added up in one statement where somebody may be waiting.
_SUMMED = 2_000_000
#: How many ids are asked about in one statement.
_AT_ONCE = 500


@dataclass(frozen=True)
class Drift:
    """What is wrong in an index with the messages of the ids from ``low`` to ``high``: how many, by kind.

    ``missing`` from it; ``surplus``: in it and to be left out, the message being there; ``gone``: in it without a
    message; ``stale``: in it with another text (inline indexes, where texts are compared).
    """

    low: int
    high: int
    missing: int = 0
    surplus: int = 0
    gone: int = 0
    stale: int = 0

    def __bool__(self) -> bool:
        return bool(self.missing or self.surplus or self.gone or self.stale)


class Condition(NamedTuple):
    """An SQL condition over the rows of one table, which is not aliased: those of which something is wrong."""

    table: str
    where: str

    def ids(self, view: StoreView, low: int, high: int) -> list[int]:
        """Return the ids from ``low`` to ``high`` for which it holds, in order."""
        rows = view.rows(
            f"SELECT id FROM {quote(self.table)} WHERE id >= ?1 AND id <= ?2 AND {self.where} ORDER BY id", (low, high)
        )
        return [row[0] for row in rows if isinstance(row[0], int)]

    def walk(self, view: StoreView, *columns: str) -> Iterator[Values]:
        """Give these columns of all rows for which it holds."""
        table = Table(self.table, {}, without_rowid=False)
        return view.reader.walk(table, columns, self.where, key="id")

    def without_message(self) -> str:
        """Return SQL for: no message has the row's id."""
        return f"NOT EXISTS (SELECT 1 FROM messages AS m WHERE m.id = {quote(self.table)}.id)"


class Comparison(NamedTuple):
    """How an index is held against the messages.

    ``docsize`` has a row for each of its entries, ``source`` is the table or view of what it should hold. ``missing``
    is of messages, ``surplus`` of entries; of an inline index ``other`` is of its own texts: that they are not the
    messages', or what is left of an entry without a message.
    """

    docsize: str
    source: str
    missing: Condition
    surplus: Condition
    other: Condition | None = None


def comparison(shape: Shape, state: IndexState) -> Comparison:
    """Return how an index is held against the messages."""
    declared = state.declared
    assert declared is not None, "the layout was read from what it declares"
    docsize = f"{state.name}_docsize"
    source = declared.content or "messages"

    def settled(key: str) -> str:
        """Return SQL for: no deferred rebuild has this id before it."""
        return "1" if state.pending is None else f"({key} <= {state.pending[0]} OR {key} > {state.pending[1]})"

    def indexed(key: str) -> str:
        return f"EXISTS (SELECT 1 FROM {quote(docsize)} AS indexed WHERE indexed.id = {key})"

    def wanted(key: str) -> str:
        return f"EXISTS (SELECT 1 FROM {quote(source)} AS src WHERE src.id = {key})"

    of_message, of_entry = "messages.id", f"{quote(docsize)}.id"
    # Nested, since SQLite may take operands in any order: the view is asked of those only that are not in the index.
    shown = "1" if follows_all(state) else wanted(of_message)
    missing = f"CASE WHEN {indexed(of_message)} THEN 0 ELSE {settled(of_message)} AND {shown} END"
    surplus = f"({settled(of_entry)} AND NOT {wanted(of_entry)})"
    how = Comparison(docsize, source, Condition("messages", missing), Condition(docsize, surplus))
    if state.layout is not Layout.INLINE:
        return how
    content = f"{state.name}_content"
    own = f"{quote(content)}.id"
    whole, short = inline_texts(shape)
    role = shape.column("messages", "role", alias="m")
    other = (
        f"CASE WHEN NOT {wanted(own)} THEN NOT {indexed(own)} ELSE EXISTS (SELECT 1 FROM messages AS m"
        f" WHERE m.id = {own} AND c0 IS NOT {whole} AND ({role} IS NOT 'tool' OR c0 IS NOT {short})) END"
    )
    return how._replace(other=Condition(content, other))


def drift_in(view: StoreView, state: IndexState, low: int, high: int) -> Drift:
    """Return what is wrong in an index with the messages of these ids; every row and text is compared."""
    how = comparison(view.shape, state)
    surplus = how.surplus.ids(view, low, high)
    gone = _without_message(view, surplus)
    other = [] if how.other is None else how.other.ids(view, low, high)
    left = _without_message(view, other)
    return Drift(
        low,
        high,
        missing=len(how.missing.ids(view, low, high)),
        surplus=len(surplus) - len(gone),
        gone=len(gone) + len(left),
        stale=len(other) - len(left),
    )


def drifts(view: StoreView, state: IndexState) -> Iterator[Drift]:
    """Give what is wrong in an index, range by range; every row is looked at, and every text of an inline index."""
    how = comparison(view.shape, state)
    counts: Counter[tuple[int, str]] = Counter()
    for (key,) in how.missing.walk(view, "id"):
        counts[_begin(key), "missing"] += 1
    for condition, kind in ((how.surplus, "surplus"), (how.other, "stale")):
        if condition is not None:
            for key, without in condition.walk(view, "id", condition.without_message()):
                counts[_begin(key), "gone" if without else kind] += 1
    for low in sorted({low for low, _kind in counts}):
        kinds = ("missing", "surplus", "gone", "stale")
        yield Drift(low, low + WIDTH - 1, *(counts[low, kind] for kind in kinds))


def suspects(view: StoreView, states: Sequence[IndexState]) -> list[IndexState]:
    """Return those of the indexes of which something tells that rows are missing or surplus.

    It is found without reading the messages. An index that follows all messages holds as many entries as there are
    messages, and the same ids: their sum is compared too. Of another one the newest entries have to be in the base
    index. And samples of all are compared: the newest messages, windows of the rest, one message of each of some
    sessions. All of ``states`` can be compared.
    """
    base = next((each for each in states if each.name == INDEXES[0]), None)
    last = view.reader.value("SELECT max(id) FROM messages")
    brief = view.reader.pace is Pace.SLICED and isinstance(last, int) and last > _SUMMED
    sums: dict[tuple[int, int] | None, Values | None] = {}

    def suspected(state: IndexState) -> bool:
        how = comparison(view.shape, state)
        if follows_all(state):
            if state.pending not in sums:
                sums[state.pending] = _sums(view, "messages", state, brief=brief)
            if _sums(view, how.docsize, state, brief=brief) != sums[state.pending]:
                return True
        elif base is not None and _strangers(view, how.docsize, comparison(view.shape, base).docsize):
            return True
        spans = windows(view, how.docsize)
        conditions = [each for each in (how.missing, how.surplus, how.other) if each is not None]
        if any(_sampled(view, spans, condition) for condition in conditions):
            return True
        return depends_on_sessions(view.shape, state.name) and _sessions_differ(view, how)

    return [state for state in states if suspected(state)]


def windows(view: StoreView, docsize: str) -> list[tuple[int, int]]:
    """Return ranges of ids that stand for all: the newest, and some spread over the rest."""
    ends: list[int] = []
    for table in (docsize, "messages"):
        # Each by itself: together they would be looked for in the whole table.
        ends += [
            value
            for what in ("min", "max")
            if isinstance(value := view.reader.value(f"SELECT {what}(id) FROM {quote(table)}"), int)
        ]
    if not ends:
        return []
    first, last = min(ends), max(ends)
    newest = max(first, last - _NEWEST + 1)
    step = max((newest - first) // _WINDOWS, _WINDOW)
    spread = [(low, min(low + _WINDOW, newest) - 1) for low in range(first, newest, step)]
    return [*spread, (newest, last)]


def _sampled(view: StoreView, spans: Sequence[tuple[int, int]], condition: Condition) -> bool:
    """Whether a condition holds for a row of the windows."""
    if not spans:
        return False
    asked = ", ".join("(?, ?)" for _ in spans)
    ends: list[Cell] = [end for span in spans for end in span]
    table = quote(condition.table)
    found = view.reader.value(
        f"WITH windows(low, high) AS (VALUES {asked}) SELECT 1 FROM windows CROSS JOIN {table}"
        f" ON {table}.id BETWEEN low AND high WHERE {condition.where} LIMIT 1",
        ends,
    )
    return found is not None


def _sums(view: StoreView, table: str, state: IndexState, *, brief: bool) -> Values | None:
    """Return how many rows a table has and (unless ``brief``) the sum of their ids.

    Those that a deferred rebuild has still before it are left out.
    """
    settled = "" if state.pending is None else f" WHERE +id <= {state.pending[0]} OR +id > {state.pending[1]}"
    # Of messages the narrowest index is read, which has the ids, too.
    summed = "" if brief else ", total(id)"
    return view.reader.row(f"SELECT count(*){summed} FROM {quote(table)}{settled}")


def _strangers(view: StoreView, docsize: str, base: str) -> bool:
    """Whether one of an index's newest entries is not in the base index, which follows all messages."""
    found = view.reader.value(
        f"SELECT 1 FROM (SELECT id FROM {quote(docsize)} ORDER BY id DESC LIMIT {_NEWEST_ENTRIES}) AS entry"
        f" WHERE NOT EXISTS (SELECT 1 FROM {quote(base)} AS indexed WHERE indexed.id = entry.id) LIMIT 1"
    )
    return found is not None


def _sessions_differ(view: StoreView, how: Comparison) -> bool:
    """Whether a message of some session is in the index and should not be, or the other way.

    What changes a session's standing changes that of all its messages, so that one of them tells.
    """
    sessions = view.shape.tables.get("sessions")
    if sessions is None or sessions.rowid is None or not sessions.has("id") or not view.shape.messages_by_session:
        return False
    rowid = sessions.rowid
    first = view.reader.value(f"SELECT min({rowid}) FROM sessions")
    last = view.reader.value(f"SELECT max({rowid}) FROM sessions")
    if not isinstance(first, int) or not isinstance(last, int):
        return False
    newest = max(first, last - _NEWEST_SESSIONS + 1)
    step = max((newest - first) // _STRETCHES, _SOME_SESSIONS)
    stretches = [(low, min(low + _SOME_SESSIONS, newest) - 1) for low in range(first, newest, step)]
    for low, high in [*stretches, (newest, last)]:
        found = view.reader.value(
            "WITH some(id) AS (SELECT (SELECT m.id FROM messages AS m WHERE m.session_id = s.id LIMIT 1)"
            f" FROM sessions AS s WHERE s.{rowid} BETWEEN ?1 AND ?2)"
            f" SELECT 1 FROM some CROSS JOIN messages ON messages.id = some.id WHERE {how.missing.where}"
            f" OR EXISTS (SELECT 1 FROM {quote(how.docsize)} WHERE id = messages.id AND {how.surplus.where}) LIMIT 1",
            (low, high),
        )
        if found is not None:
            return True
    return False


def _without_message(view: StoreView, ids: Sequence[int]) -> list[int]:
    """Return those of the ids that no message has."""
    gone: list[int] = []
    for start in range(0, len(ids), _AT_ONCE):
        some = ids[start : start + _AT_ONCE]
        asked = ", ".join("(?)" for _ in some)
        rows = view.rows(
            f"WITH asked(id) AS (VALUES {asked}) SELECT id FROM asked"
            " WHERE NOT EXISTS (SELECT 1 FROM messages AS m WHERE m.id = asked.id)",
            some,
        )
        gone += [row[0] for row in rows if isinstance(row[0], int)]
    return gone


def _begin(key: Cell) -> int:
    assert isinstance(key, int), "ids of messages and entries are rowids"
    return key - key % WIDTH
