"""The search indexes over ``messages``: how each is laid out, keeping one in step, and whether it is.

Layouts are read from the tables' own SQL, each index for itself: a file of 0.20 that 0.22.2 has opened has a new
word index beside an old trigram one, and neither ``schema_version`` nor ``fts_storage_version`` tells.

Not every SQLite cuts a text into the same trigrams: up to 3.46 it stops at a NUL, from 3.48 on it goes on behind it,
and upstream stores structured content with a NUL in front. So an index that one of them wrote fails the check of the
other, and taking a text out with other trigrams than it was put in with leaves entries behind: `match_trigrams`.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import apsw

from hermes_doctor.store.cells import Cell, Key, decoded, quote
from hermes_doctor.store.reader import in_keys
from hermes_doctor.store.shape import Shape
from hermes_doctor.store.view import StoreView

#: All that releases make; the last only where the tokenizer ``cjk_unicode61`` has been built (0.20.0 on).
INDEXES = ("messages_fts", "messages_fts_trigram", "messages_fts_cjk")

#: How much of a tool's message the triggers of 0.21.5 on put into the index, in characters.
TOOL_CHARACTERS = 8192
#: How many ids are asked about in one statement.
_AT_ONCE = 500


class Layout(enum.StrEnum):
    """How an index is laid out.

    INLINE: it holds texts of its own (files of 0.13 to 0.19). EXTERNAL: the texts are those of ``messages``, seen
    directly or through a view (0.20 on). _1 is upstream's storage 1; _2 has no ``tool_calls`` in the trigram index
    (no release made it); _3 leaves out what its view leaves out: long tool results, and for the trigram index the
    messages of cron runs, subagents and delegates, so that it depends on rows of ``sessions``. UNKNOWN: none of these.
    """

    INLINE = "inline"
    EXTERNAL_1 = "external-1"
    EXTERNAL_2 = "external-2"
    EXTERNAL_3 = "external-3"
    ABSENT = "absent"
    UNKNOWN = "unknown"


#: What the views of texts are made of beside columns, and from what they read.
_WORD_OF_VIEWS = re.compile(
    r"as|case|when|then|else|end|from|join|on|where|and|in|is|not|null"
    r"|messages|sessions|coalesce|substr|json_extract|json_object|json_valid"
)
_PLAIN_SOURCE = (
    r"\bFROM\s+messages(?:\s+AS\s+(\w+))?(?:\s+JOIN\s+sessions(?:\s+AS\s+(\w+))?\s+ON\s[^,]*)?\s*(?:WHERE\b.*)?$"
)
_TEXTS = re.compile(r"--[^\n]*|/\*.*?\*/|'(?:[^']|'')*'", re.S)

_EXTERNAL = frozenset({Layout.EXTERNAL_1, Layout.EXTERNAL_2, Layout.EXTERNAL_3})


class Declared(NamedTuple):
    """What an index's CREATE statement says: its columns, the table or view of its texts (None: its own), tokenizer."""

    columns: tuple[str, ...]
    content: str | None
    tokenizer: str


def layouts(shape: Shape) -> dict[str, Layout]:
    """Return the layout of each index that a release can have made, ABSENT for those that the store has not."""
    return {name: _layout(shape, name) for name in INDEXES}


def pending_range(view: StoreView, index: str = "messages_fts") -> tuple[int, int] | None:
    """Return (progress, high water) of an index's deferred rebuild, None where none is going on.

    Messages with ids above the first and up to the second are rightly not in the index yet (0.20.0 on).
    """
    question = _pending_question(view.shape, index)
    return None if question is None else _pending(view.rows(*question))


@contextmanager
def kept_in_step(connection: apsw.Connection, view: StoreView, session_ids: Sequence[Key]) -> Iterator[None]:
    """Keep the indexes that depend on ``sessions`` right while the body changes rows of these sessions.

    No trigger of any release watches ``sessions``, so whoever changes a session's ``source``, ``_delegate_from`` in its
    ``model_config``, or puts a missing session back, has to move its messages in or out of the index (measured on
    0.21.5 and 0.22.2), in the same transaction. Does nothing on the other layouts. Messages that a deferred rebuild
    has not come to are left to it; what is in the index already, although its session was gone, is not put in twice.

    Raises apsw.SQLError where this machine lacks the index's tokenizer. Where the body raises, the transaction or
    savepoint has to be rolled back, since the messages are out of the index then.
    """
    shape = view.shape
    dependent = [name for name in INDEXES if depends_on_sessions(shape, name)]
    if not shape.has("messages", "id", "session_id"):
        dependent = []
    for name in dependent:
        _move(connection, shape, name, session_ids, out=True)
    yield
    for name in dependent:
        _move(connection, shape, name, session_ids, out=False)


def match_trigrams(connection: apsw.Connection, shape: Shape) -> bool:
    """Make a connection cut texts with a NUL as the SQLite did that wrote the trigram index last.

    Call it once, outside a transaction. Returns whether its own way had to be changed, which costs some time for every
    text that is put in or taken out. The newest message with a NUL decides; where there is none, or it is too short to
    tell, the connection stays as it is. Reads all messages at worst.
    """
    declared = declared_by(shape, "messages_fts_trigram")
    if declared is None or declared.tokenizer != "trigram" or not stops_at_nul(connection, shape):
        return False
    own = connection.fts5_tokenizer("trigram", [])
    if len(list(own(b"abc\0abc", apsw.FTS5_TOKENIZE_DOCUMENT, None))) == 1:
        return False

    def make(_connection: apsw.Connection, _arguments: list[str]) -> apsw.Tokenizer:
        return lambda text, reason, locale: own(text.partition(b"\0")[0], reason, locale)

    connection.register_fts5_tokenizer("trigram", make)
    # Tables that are connected already (describing the store does that) keep their tokenizer until the schema is read
    # anew.
    connection.execute("PRAGMA writable_schema = RESET")
    return True


def check(connection: apsw.Connection, shape: Shape) -> list[str]:
    """Return the names of the indexes that fail FTS5's own check.

    It compares an external index with the messages, and an inline one only with its own texts: for those there is
    `check_rows`. Where hermes itself is not done with an index (`unchecked`), only its structure is checked. A trigram
    index of texts with a NUL may be the work of more than one SQLite, and fails then although nothing is wrong: which
    rows it holds decides. All of the index is read. The connection must be one that may write; nothing is changed.
    Raises apsw.Error for anything but a failed check.
    """
    reasons = unchecked(connection, shape)
    failed = []
    for name, layout in layouts(shape).items():
        if layout is Layout.ABSENT or tokenizer_missing(connection, name):
            continue
        compares = layout in _EXTERNAL and name not in reasons
        try:
            connection.execute(
                f"INSERT INTO {quote(name)}({quote(name)}, rank) VALUES ('integrity-check', ?)", (int(compares),)
            )
        except apsw.CorruptError:
            if not _is_cut_otherwise(connection, shape, name):
                failed.append(name)
    return failed


def unchecked(connection: apsw.Connection, shape: Shape) -> dict[str, str]:
    """Return the indexes that cannot be compared with the messages here and now, and why, in a few words."""
    reasons: dict[str, str] = {}
    for name, layout in layouts(shape).items():
        if layout is Layout.ABSENT:
            continue
        try:
            missing = tokenizer_missing(connection, name)
        except (apsw.SQLError, apsw.CorruptError):
            reasons[name] = "it cannot be asked anything"
            continue
        question = _pending_question(shape, name)
        if missing is not None:
            reasons[name] = f"this machine lacks its tokenizer ({missing})"
        elif layout is Layout.UNKNOWN:
            reasons[name] = "its layout is none that a release makes"
        elif question is not None and _pending(connection.execute(*question).fetchall()) is not None:
            reasons[name] = "hermes is still rebuilding it"
        elif is_detached(connection, shape, name):
            reasons[name] = "hermes has marked it for a rebuild"
    return reasons


def check_rows(connection: apsw.Connection, shape: Shape, ids: Sequence[int]) -> list[int]:
    """Return those of the message ids that an index holds wrongly: missing, left over, or (inline) with another text.

    Releases from 0.21.5 on shorten the results of tools in an inline index, too, so both texts are right there. An
    id without a message must be in no index. Indexes named by `unchecked` are left out.
    """
    if not shape.has("messages", "id", "content"):
        return []
    reasons = unchecked(connection, shape)
    wrong: set[int] = set()
    for name, layout in layouts(shape).items():
        if layout is Layout.ABSENT or name in reasons:
            continue
        question = _inline_question(shape, name) if layout is Layout.INLINE else _external_question(shape, name)
        for start in range(0, len(ids), _AT_ONCE):
            some = ids[start : start + _AT_ONCE]
            asked = ", ".join("(?)" for _ in some)
            wrong.update(row[0] for row in connection.execute(f"WITH asked(id) AS (VALUES {asked}) {question}", some))
    return [each for each in ids if each in wrong]


def _move(connection: apsw.Connection, shape: Shape, name: str, session_ids: Sequence[Key], *, out: bool) -> None:
    """Take the sessions' messages out of an index, or put in those that its view shows and that are not in it."""
    declared = declared_by(shape, name)
    assert declared is not None, "an index that depends on sessions has been recognised by what it declares"
    index, texts = quote(name), ", ".join(quote(column) for column in declared.columns)
    question = _pending_question(shape, name)
    pending = _pending(connection.execute(*question).fetchall()) if question is not None else None
    rebuilt = "" if pending is None else f" AND NOT (src.id > {pending[0]} AND src.id <= {pending[1]})"
    # The view shows what should be in the index; docsize has one row for each message that is.
    indexed = f"EXISTS (SELECT 1 FROM {quote(name + '_docsize')} AS indexed WHERE indexed.id = src.id)"
    for start in range(0, len(session_ids), _AT_ONCE):
        of_sessions, values = in_keys("session_id", session_ids[start : start + _AT_ONCE])
        rows = (
            f"FROM {quote(declared.content or '')} AS src"
            f" WHERE src.id IN (SELECT id FROM messages WHERE {of_sessions}){rebuilt}"
        )
        if out:
            connection.execute(
                f"INSERT INTO {index}({index}, rowid, {texts}) SELECT 'delete', src.id, {texts} {rows} AND {indexed}",
                values,
            )
        else:
            connection.execute(
                f"INSERT INTO {index}(rowid, {texts}) SELECT src.id, {texts} {rows} AND NOT {indexed}", values
            )


def _layout(shape: Shape, name: str) -> Layout:
    if _sql_of(shape.virtual_tables, name) is None:
        return Layout.ABSENT
    declared = declared_by(shape, name)
    if declared is None or "content" not in declared.columns:
        return Layout.UNKNOWN
    if declared.content is None:
        return Layout.INLINE
    if not shape.has("messages", "id", *declared.columns):
        return Layout.UNKNOWN
    if name == "messages_fts" and declared.content == "messages":
        return Layout.EXTERNAL_1
    view = _sql_of(shape.views, declared.content)
    if view is None or not _is_plain(shape, view):
        return Layout.UNKNOWN
    if name == "messages_fts" or _mentions_sessions(view):
        return Layout.EXTERNAL_3
    return Layout.EXTERNAL_1 if "tool_calls" in declared.columns else Layout.EXTERNAL_2


def depends_on_sessions(shape: Shape, name: str) -> bool:
    """Whether it depends on rows of ``sessions`` which messages an index holds."""
    declared = declared_by(shape, name)
    view = _sql_of(shape.views, declared.content) if declared is not None and declared.content else None
    return view is not None and _mentions_sessions(view) and _layout(shape, name) in _EXTERNAL


def _is_plain(shape: Shape, view: str) -> bool:
    """Whether a view reads messages, and their sessions, once, as those of releases do.

    One that is anybody's may never end, or ask for columns that the store has not.
    """
    plain = _TEXTS.sub(" ", view)
    begin = re.match(r"\s*CREATE\s+VIEW\s+(?:IF\s+NOT\s+EXISTS\s+)?\S+\s+AS\s+SELECT\b(.*)$", plain, re.I | re.S)
    source = re.search(_PLAIN_SOURCE, begin[1], re.I | re.S) if begin is not None else None
    if begin is None or source is None or len(re.findall(r"\bJOIN\b", begin[1], re.I)) > 1:
        return False
    named = zip(source.groups(), ("messages", "sessions"), strict=True)
    tables = {(alias or table).lower(): table for alias, table in named}
    owned = re.findall(r"([^\W\d]\w*)\.([^\W\d]\w*)", begin[1])
    words = {word.lower() for word in re.findall(r"[^\W\d]\w*", begin[1])} - tables.keys()
    return all(shape.has(tables.get(owner.lower(), ""), column) for owner, column in owned) and all(
        _WORD_OF_VIEWS.fullmatch(word) or shape.has("messages", word) or shape.has("sessions", word) for word in words
    )


def _mentions_sessions(view: str) -> bool:
    return re.search(r"\b(JOIN|FROM)\s+\W?sessions\b", view, re.I) is not None


def declared_by(shape: Shape, name: str) -> Declared | None:
    """Return what an index's CREATE statement says; None where it is no FTS5 table."""
    match = re.search(r"\bUSING\s+fts5\s*\((.*)\)\s*$", _sql_of(shape.virtual_tables, name) or "", re.I | re.S)
    if match is None:
        return None
    columns: list[str] = []
    content, tokenizer = None, "unicode61"
    for argument in re.findall(r"(?:'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|[^,'\"])+", match.group(1)):
        key, equals, value = (part.strip() for part in argument.partition("="))
        if not equals:
            columns.append(key.split()[0].strip("'\"`[]").lower())
        elif key.lower() == "content":
            content = value.strip("'\"`[]").lower()
        elif key.lower() == "tokenize":
            tokenizer = value.strip("'\"").lower()
    return Declared(tuple(columns), content, tokenizer)


def _sql_of(objects: Mapping[str, str], name: str) -> str | None:
    return next((sql for known, sql in objects.items() if known.lower() == name.lower()), None)


def _prefix(name: str) -> str:
    """By which keys of state_meta the state of an index is known: the cjk one is rebuilt by itself."""
    return "fts_cjk" if name == "messages_fts_cjk" else "fts"


def _pending_question(shape: Shape, name: str) -> tuple[str, tuple[Cell, ...]] | None:
    """Return the query whose answer `_pending` takes, its keys as its values; None where nothing can be pending."""
    if not shape.has("state_meta", "key", "value") or _layout(shape, name) not in _EXTERNAL:
        return None
    # As the triggers read them (0.20.0 on).
    return (
        "SELECT (SELECT CAST(value AS INTEGER) FROM state_meta WHERE key = ?1),"
        " (SELECT CAST(value AS INTEGER) FROM state_meta WHERE key = ?2)",
        (f"{_prefix(name)}_rebuild_progress", f"{_prefix(name)}_rebuild_high_water"),
    )


def _pending(rows: Sequence[tuple[Cell, ...]]) -> tuple[int, int] | None:
    progress, high_water = rows[0]
    if not isinstance(high_water, int):
        return None
    low = progress if isinstance(progress, int) else -1
    return (low, high_water) if low < high_water else None


def stops_at_nul(connection: apsw.Connection, shape: Shape) -> bool | None:
    """Whether the trigrams of the newest text with a NUL in the index end there; None where there is none to tell.

    Reads all messages at worst.
    """
    name = "messages_fts_trigram"
    declared = declared_by(shape, name)
    if declared is None or _layout(shape, name) is Layout.UNKNOWN:
        return None
    # An index of which a part was taken away cannot be asked.
    parts = [f"{name}_docsize"] + ([f"{name}_content"] if declared.content is None else [])
    there = f"SELECT count(DISTINCT name) FROM sqlite_schema WHERE name IN ({', '.join('?' for _ in parts)})"
    if connection.execute(there, parts).fetchall() != [(len(parts),)]:
        return None
    # Of an external index the messages themselves: its view may leave out by now what was put in before.
    texts = _texts(declared, name) if declared.content is None else "SELECT id, content AS text FROM messages"
    # docsize has the number of tokens of each text.
    for size, content in connection.execute(
        f"SELECT indexed.sz, CAST(texts.text AS BLOB) FROM {quote(name + '_docsize')} AS indexed"
        f" JOIN ({texts}) AS texts ON texts.id = indexed.id"
        " WHERE typeof(texts.text) = 'text' AND instr(texts.text, char(0)) > 0 ORDER BY indexed.id DESC"
    ):
        text = decoded(content, shape.encoding) if isinstance(content, bytes) else ""
        if isinstance(text, bytes):
            # No text: how many characters it has, each SQLite tells otherwise.
            continue
        before, _, behind = text.partition("\0")
        # One trigram starts at each character but the last two, NULs not counted.
        stopping, going_on = max(len(before) - 2, 0), max(len(before) + len(behind.replace("\0", "")) - 2, 0)
        if stopping != going_on and isinstance(size, bytes):
            return _first_varint(size) == stopping
    return None


def _texts(declared: Declared, name: str) -> str:
    """Return the query for id and first indexed text of what an index holds or should hold."""
    if declared.content is None:
        return f"SELECT id, c0 AS text FROM {quote(name + '_content')}"
    return f"SELECT id, {quote(declared.columns[0])} AS text FROM {quote(declared.content)}"


def _first_varint(data: bytes) -> int:
    """Return the first of SQLite's variable-length integers: seven bits a byte, the highest bit says that more come."""
    value = 0
    for byte in data[:8]:
        value = value << 7 | byte & 0x7F
        if not byte & 0x80:
            break
    return value


def _is_cut_otherwise(connection: apsw.Connection, shape: Shape, name: str) -> bool:
    """Whether a trigram index that failed its check holds texts with a NUL, and just the rows that it should hold."""
    declared = declared_by(shape, name)
    if declared is None or declared.tokenizer != "trigram" or not shape.has("messages", "id", "content"):
        return False
    nul = connection.execute(f"SELECT 1 FROM ({_texts(declared, name)}) WHERE instr(text, char(0)) > 0 LIMIT 1")
    if nul.fetchone() is None:
        return False
    question = _inline_question(shape, name) if declared.content is None else _external_question(shape, name)
    every = f"SELECT id FROM messages UNION SELECT id FROM {quote(name + '_docsize')}"
    return connection.execute(f"WITH asked(id) AS ({every}) {question} LIMIT 1").fetchone() is None


def is_detached(connection: apsw.Connection, shape: Shape, name: str) -> bool:
    """Whether hermes has detached the index's triggers and will rebuild it (0.20.6 on)."""
    if not shape.has("state_meta", "key", "value"):
        return False
    found = connection.execute(
        "SELECT 1 FROM state_meta WHERE key = ? AND CAST(value AS TEXT) = '1'", (f"{_prefix(name)}_stale",)
    )
    return found.fetchone() is not None


def tokenizer_missing(connection: apsw.Connection, name: str) -> str | None:
    """Return the name of the tokenizer that an index wants and this machine lacks, None where it works."""
    try:
        # A tokenizer is loaded when it is first needed: taking a query apart needs it, reading rows does not.
        connection.execute(f"SELECT 1 FROM {quote(name)} WHERE {quote(name)} MATCH '\"\"' LIMIT 1").fetchall()
    except apsw.SQLError as error:
        match = re.search(r"no such tokenizer: (\S+)", str(error))
        if match is None:
            raise
        return match.group(1)
    return None


def inline_texts(shape: Shape) -> tuple[str, str]:
    """Return SQL for the text of the message ``m`` in an inline index: whole, and as a tool's result is shortened.

    Releases from 0.21.5 on shorten the results of tools, so that one file can hold both.
    """

    def text(content: str) -> str:
        others = (f"coalesce({shape.column('messages', c, alias='m')}, '')" for c in ("tool_name", "tool_calls"))
        return " || ' ' || ".join((f"coalesce({content}, '')", *others))

    return text("m.content"), text(f"substr(m.content, 1, {TOOL_CHARACTERS})")


def _inline_question(shape: Shape, name: str) -> str:
    """Return the query for those of ``asked`` whose text in an inline index is not that of the message."""
    role = shape.column("messages", "role", alias="m")
    whole, short = inline_texts(shape)
    own = f"SELECT c0 FROM {quote(name + '_content')} AS own WHERE own.id = asked.id"
    indexed = f"EXISTS (SELECT 1 FROM {quote(name + '_docsize')} AS indexed WHERE indexed.id = asked.id)"
    return (
        "SELECT asked.id FROM asked LEFT JOIN messages AS m ON m.id = asked.id WHERE CASE WHEN m.id IS NULL"
        f" THEN {indexed} OR EXISTS ({own})"
        f" ELSE NOT {indexed} OR (({own}) IS NOT {whole} AND ({role} IS NOT 'tool' OR ({own}) IS NOT {short})) END"
    )


def _external_question(shape: Shape, name: str) -> str:
    """Return the query for those of ``asked`` that are in an external index and should not be, or the other way."""
    declared = declared_by(shape, name)
    assert declared is not None, "the layout was read from what it declares"
    wanted = f"EXISTS (SELECT 1 FROM {quote(declared.content or '')} AS src WHERE src.id = asked.id)"
    indexed = f"EXISTS (SELECT 1 FROM {quote(name + '_docsize')} AS indexed WHERE indexed.id = asked.id)"
    return f"SELECT asked.id FROM asked WHERE {wanted} IS NOT {indexed}"
