"""Whether an index answers as a search wants it to: that it answers at all, and finds what it holds.

An index whose own tables are damaged fails at some words only, or finds nothing and says nothing (upstream issues
33865 and 66724: `repair --check-only` called it clean). So phrases of real messages are asked for, each at its own
message, which costs little in an index of any size; and one rare word by rank, which goes through all its hits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import apsw

from hermes_doctor.store.cells import Cell, quote
from hermes_doctor.store.index_drift import Condition, comparison, windows
from hermes_doctor.store.index_state import IndexState, follows_all, is_trigram
from hermes_doctor.store.search_index import TOOL_CHARACTERS, Layout
from hermes_doctor.store.varints import varints
from hermes_doctor.store.view import StoreView

#: Entries of the newest messages that are asked for, beside one of each window of the rest.
_NEWEST = 8
#: Bytes at the beginning of a text from which words are taken, and how many of them make a phrase.
_BEGINNING, _PHRASE = 400, 4
#: Words of one message that are tried for being rare, and hits from which on a word is not.
_TRIED, _COMMON = 16, 64
#: Bytes up to which a text is cut into its tokens, to count them.
_COUNTED = 1 << 15

#: Ids between two words about how far it is.
_TOLD = 64

#: Where each token of a text begins and ends, in bytes, and what it is.
_Tokens = Sequence[tuple[int, int, str]]
#: The texts of an entry, one for each column of its index.
Texts = Sequence[bytes | None]


class SearchFailedError(Exception):
    """A search that an index should answer raised something.

    ``structural``: the file itself is damaged where the index lies, rather than what FTS5 keeps there. ``refused``:
    SQLite would not even begin, since something that the index is made of is not there.
    """

    def __init__(self, error: apsw.Error) -> None:
        super().__init__(str(error))
        # FTS5 tells of its own tables with a code of its own. (The attribute is not in APSW's own type hints.)
        code = getattr(error, "extendedresult", None)
        self.structural = isinstance(error, apsw.CorruptError) and code != apsw.SQLITE_CORRUPT_VTAB
        self.refused = isinstance(error, apsw.SQLError)
        self.error = error


class _Tokenizer(NamedTuple):
    """How an index cuts texts into tokens."""

    cut: Callable[..., Any]

    def tokens(self, text: bytes) -> _Tokens:
        found: _Tokens = self.cut(text, apsw.FTS5_TOKENIZE_DOCUMENT, None)
        return found

    def count(self, text: bytes) -> int:
        return len(self.cut(text, apsw.FTS5_TOKENIZE_DOCUMENT, None, include_offsets=False, include_colocated=False))


class Sample(NamedTuple):
    """Entries that were searched for: how many, and how many of them were not found or hold another text."""

    asked: int
    lost: int


def probe(view: StoreView, state: IndexState) -> Sample:
    """Search an index for some messages that it holds. Raises SearchFailedError where that fails."""
    if state.fails is not None:
        raise SearchFailedError(state.fails)
    try:
        # Many small questions: a pause behind each would be longer than they are.
        with view.reader.pinned():
            return _probe(view, state)
    except (apsw.SQLError, apsw.CorruptError) as error:
        raise SearchFailedError(error) from error


def fits(view: StoreView, state: IndexState, key: int, texts: Texts, *, exactly: bool = False) -> bool | None:
    """Whether the entry of a message holds these texts, as far as an index tells; None where it cannot be told.

    ``exactly``: cut as this connection cuts them, so that they take the entry out of the index without a rest.
    """
    tokenizer = _tokenizer(view, state)
    if tokenizer is None:
        return None
    sizes = view.reader.value(f"SELECT sz FROM {quote(state.name + '_docsize')} WHERE id = ?", (key,))
    agrees = _agrees(tokenizer, state, sizes, texts, exactly=exactly)
    # Texts without a word that could be asked for are told by their length alone.
    return _found(view, state, tokenizer, key, texts) is not False if agrees else agrees


def misfits(view: StoreView, state: IndexState) -> Iterator[int]:
    """Give the ids of the messages whose entries in an external index are not as long as their texts; reads all."""
    how, tokenizer = comparison(view.shape, state), _tokenizer(view, state)
    assert state.declared is not None, "the layout was read from what it declares"
    if tokenizer is None:
        return
    rightly = Condition(how.docsize, f"NOT {how.surplus.where}")
    texts = (
        f"(SELECT CAST({quote(column)} AS BLOB) FROM {quote(how.source)} AS src WHERE src.id = {quote(how.docsize)}.id)"
        for column in state.declared.columns
    )
    last = view.reader.value(f"SELECT max(id) FROM {quote(how.docsize)}")
    for key, sizes, *cells in rightly.walk(view, "id", "sz", *texts):
        if view.reader.on_share is not None and isinstance(key, int) and isinstance(last, int) and not key % _TOLD:
            view.reader.on_share(min(max(key / last, 0.0), 1.0))
        own = [cell if isinstance(cell, bytes) else None for cell in cells]
        if _agrees(tokenizer, state, sizes, own) is False and isinstance(key, int):
            yield key


def texts_of(view: StoreView, state: IndexState, key: int, source: str) -> Texts | None:
    """Return the texts of a message as an external index takes them from the view or table ``source``.

    None where that has no such row.
    """
    assert state.declared is not None, "the layout was read from what it declares"
    return _texts(view, source, [quote(column) for column in state.declared.columns], key)


def answers(view: StoreView, state: IndexState, key: int) -> bool | None:
    """Whether an index finds a message by what it holds of it; None where that cannot be told."""
    tokenizer, texts = _tokenizer(view, state), held_texts(view, state, key)
    if tokenizer is None or texts is None:
        return None
    if state.layout is Layout.INLINE:
        return _found(view, state, tokenizer, key, texts)
    return fits(view, state, key, texts)


def held_texts(view: StoreView, state: IndexState, key: int) -> Texts | None:
    """Return what an index holds of a message: texts of its own, or those of its view. None where it has neither."""
    how = comparison(view.shape, state)
    if how.other is not None:
        return _texts(view, how.other.table, ["c0"], key)
    return texts_of(view, state, key, how.source)


def _probe(view: StoreView, state: IndexState) -> Sample:
    asked = lost = 0
    newest: Texts = ()
    for key in _some_entries(view, comparison(view.shape, state).docsize):
        found = answers(view, state, key)
        asked += found is not None
        lost += found is False
        newest = held_texts(view, state, key) or newest
    _by_rank(view, state, newest)
    return Sample(asked, lost)


def _texts(view: StoreView, source: str, columns: Sequence[str], key: int) -> Texts | None:
    cells = ", ".join(f"CAST({column} AS BLOB)" for column in columns)
    row = view.reader.row(f"SELECT {cells} FROM {quote(source)} WHERE id = ?", (key,))
    return None if row is None else [cell if isinstance(cell, bytes) else None for cell in row]


def _some_entries(view: StoreView, docsize: str) -> Iterator[int]:
    """Give ids of entries: the last of each window, then the newest, the very newest last."""
    spans = windows(view, docsize)
    if not spans:
        return
    asked = ", ".join("(?, ?)" for _ in spans)
    ends: list[Cell] = [end for span in spans for end in span]
    rows = view.rows(
        f"WITH windows(low, high) AS (VALUES {asked})"
        f" SELECT (SELECT max(id) FROM {quote(docsize)} WHERE id BETWEEN low AND high) FROM windows",
        ends,
    )
    rows += reversed(view.rows(f"SELECT id FROM {quote(docsize)} ORDER BY id DESC LIMIT {_NEWEST}"))
    yield from dict.fromkeys(row[0] for row in rows if isinstance(row[0], int))


def _tokenizer(view: StoreView, state: IndexState) -> _Tokenizer | None:
    """Return how an index cuts texts; None where that cannot be had, or the store's texts are not in its encoding."""
    declared = state.declared
    if declared is None or view.shape.encoding != "UTF-8":
        return None
    name, *arguments = declared.tokenizer.split()
    try:
        return _Tokenizer(view.reader.connection.fts5_tokenizer(name, arguments))
    except apsw.Error:
        return None


def _agrees(
    tokenizer: _Tokenizer, state: IndexState, sizes: Cell, texts: Texts, *, exactly: bool = False
) -> bool | None:
    """Whether an entry has as many tokens as these texts; None where that cannot be told."""
    if not isinstance(sizes, bytes):
        return False
    try:
        told = list(varints(sizes))
    except ValueError:
        return False
    agrees: bool | None = True
    for text, size in zip(texts, told, strict=False):
        counts = _counts(tokenizer, state, text, exactly=exactly)
        if counts is None:
            agrees = None
        elif size not in counts:
            return False
    return agrees


def _counts(tokenizer: _Tokenizer, state: IndexState, text: bytes | None, *, exactly: bool) -> set[int] | None:
    """Return how many tokens an entry may have of a text; None where that would take long or it is no text."""
    if text is None:
        return {0}
    try:
        whole = text.decode()
    except UnicodeDecodeError:
        return None
    if len(text) > _COUNTED:
        return None
    ways = {text}
    if not exactly:
        # Another SQLite stops the trigrams at a NUL. Builds between two releases shortened the results of tools.
        ways.add(text.partition(b"\0")[0])
        if state.layout is Layout.EXTERNAL_1 and follows_all(state):
            ways.add(whole[:TOOL_CHARACTERS].encode())
    return {tokenizer.count(way) for way in ways}


def _found(view: StoreView, state: IndexState, tokenizer: _Tokenizer, key: int, texts: Texts) -> bool | None:
    """Whether a phrase of the texts finds the message; None where they have no words."""
    for text in texts:
        beginning, tokens = _beginning(tokenizer, state, text)
        if tokens:
            phrase = beginning[tokens[0][0] : tokens[min(len(tokens), _PHRASE) - 1][1]]
            return view.reader.value(_search(state, "1", "AND rowid = ?2"), (_quoted(phrase), key)) is not None
    return None


def _beginning(tokenizer: _Tokenizer, state: IndexState, text: bytes | None) -> tuple[bytes, _Tokens]:
    """Return the beginning of a text and its tokens, as every SQLite cuts it and a query can have it."""
    parts = (text or b"").split(b"\0")
    if is_trigram(state):
        parts = parts[:1]
    for part in parts:
        beginning = part[:_BEGINNING]
        try:
            beginning.decode()
        except UnicodeDecodeError as error:
            # A character that is cut through; text that is no text cannot be asked for.
            beginning = beginning[: error.start]
        tokens = tokenizer.tokens(beginning)
        if tokens:
            # What is cut off may have been part of the last word.
            return beginning, tokens if len(beginning) == len(part) else tokens[:-1]
    return b"", ()


def _by_rank(view: StoreView, state: IndexState, texts: Texts) -> None:
    """Search for a word and sort by rank, as hermes does, if one of the texts' first words is rare enough."""
    tokenizer = _tokenizer(view, state)
    if tokenizer is None:
        return
    words: dict[bytes, None] = {}
    for text in texts:
        beginning, tokens = _beginning(tokenizer, state, text)
        words |= dict.fromkeys(beginning[begin:end] for begin, end, *_ in tokens)
    for word in sorted(words, key=len, reverse=True)[:_TRIED]:
        hits = view.reader.value(f"SELECT count(*) FROM ({_search(state, '1', f'LIMIT {_COMMON}')})", (_quoted(word),))
        if isinstance(hits, int) and 0 < hits < _COMMON:
            view.rows(_search(state, "rowid, rank", "ORDER BY rank LIMIT 3"), (_quoted(word),))
            return


def _search(state: IndexState, what: str, how: str) -> str:
    name = quote(state.name)
    return f"SELECT {what} FROM {name} WHERE {name} MATCH ?1 {how}"


def _quoted(phrase: bytes) -> str:
    """Return a phrase as a query has it."""
    return '"' + phrase.decode().replace('"', '""') + '"'
