"""Damages stores, by a seed: what disks, crashes, copies and hands have done to real ones.

Each damage is a function of a store's path and a seed, in `DAMAGES` by its name, and says what it hit. The same seed
on the same bytes does the same. ``python -m tests.whole.breaking NAME STORE SEED`` damages a store by hand.

The store lies at rest, without a log (`at_rest` sees to that); those damages that are about the log write one. Worse
things, after which rows have to be saved, are in `WRECKS`.
"""

from __future__ import annotations

import enum
import random
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import apsw

#: What a disk writes whole, in bytes: a page can be torn between two of these.
SECTOR = 512

#: Where the header of a database file keeps what; bytes from the start.
_PAGE_SIZE, _PAGES, _FREE_TRUNK, _FREE_COUNT = 16, 28, 32, 36
_HEADER, _LOG_HEADER, _FRAME_HEADER = 100, 32, 24


class Part(enum.StrEnum):
    """What a page is, in the file."""

    TABLE_INTERIOR = "table-interior"
    TABLE_LEAF = "table-leaf"
    INDEX_INTERIOR = "index-interior"
    INDEX_LEAF = "index-leaf"
    SEARCH = "search"
    FREE = "free"


class Belongs(enum.StrEnum):
    """What is hit: rows, an index that can be made anew from rows, one over the texts, or something without a name."""

    TABLE = "table"
    INDEX = "index"
    SEARCH = "search"
    FREE = "free"
    SCHEMA = "schema"
    LOG = "log"
    FILE = "file"
    SEVERAL = "several"


@dataclass(frozen=True)
class Hit:
    """What was damaged: the names of the tables or indexes whose trees the pages were in, and the pages' numbers."""

    damage: str
    belongs: Belongs
    names: tuple[str, ...] = ()
    pages: tuple[int, ...] = ()


@dataclass(frozen=True)
class _Page:
    """One page of a tree. ``table``: which table an index is of, else the table itself. ``kind``: as dbstat says."""

    number: int
    name: str
    table: str
    kind: str
    index: bool

    @property
    def belongs(self) -> Belongs:
        if self.table.startswith("messages_fts"):
            return Belongs.SEARCH
        if self.table == "sqlite_schema":
            return Belongs.SCHEMA
        return Belongs.INDEX if self.index else Belongs.TABLE


class NothingToDamageError(Exception):
    """The store has no page of that kind: it is too small, or has nothing free."""


def at_rest(store: Path) -> None:
    """Bring all of a store's log into its file, as whoever closes it last does; nobody else may have it open."""
    with _writing(store) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    assert not _log(store).exists()


def leave_free_pages(store: Path, pages: int = 160) -> None:
    """Make so many pages of a store free, as deleting rows does."""
    with _writing(store) as connection:
        connection.execute("CREATE TABLE passing(filling BLOB)")
        connection.execute("INSERT INTO passing VALUES (zeroblob(? * 4096))", (pages,))
        connection.execute("DROP TABLE passing")


def leave_no_free_pages(store: Path) -> None:
    """Write a store's file anew, without free pages: its end is in use then."""
    with _writing(store) as connection:
        connection.execute("VACUUM")


def zero(store: Path, seed: int, part: Part) -> Hit:
    """Fill a page with zeros: a write that never reached the disk, or a sector that was lost."""
    page = _chosen(store, seed, part, 1)[0]
    _put(store, page.number, bytes(_page_size(store)))
    return _hit("zero", page)


def tear(store: Path, seed: int, part: Part) -> Hit:
    """Leave the first sectors of a page as they are and put those of another page, or zeros, behind them."""
    page, *others = _chosen(store, seed, part, 2, least=1)
    size = _page_size(store)
    # The cut is among the first sectors, for a page may hold little more than its header and, at its end, a few cells;
    # a list of free pages holds nothing there.
    cut = SECTOR * random.Random(seed).randint(1, 1 if part is Part.FREE else max(1, size // SECTOR // 4))
    behind = _get(store, others[0].number) if others and part is not Part.FREE else bytes(size)
    _put(store, page.number, _get(store, page.number)[:cut] + behind[cut:])
    return _hit("tear", page)


def swap(store: Path, seed: int, part: Part) -> Hit:
    """Exchange two pages: writes that went to the wrong place. Of the free pages, the first list changes places."""
    if part is Part.FREE:
        pages = [_chosen(store, seed, Part.FREE, 1)[0], _chosen(store, seed, Part.TABLE_LEAF, 1)[0]]
    else:
        pages = _chosen(store, seed, part, 2)
    _swap(store, *(page.number for page in pages))
    return _hit("swap", *pages)


def cut_overflow(store: Path, seed: int) -> Hit:
    """Let a long row's chain of pages end too early, or lead out of the file."""
    chains = [page for page in _pages(store) if page.kind == "overflow" and page.belongs is Belongs.TABLE]
    if not chains:
        raise NothingToDamageError("no row is long enough to overflow its page")
    chance = random.Random(seed)
    page = chance.choice(chains)
    rest = _get(store, page.number)[4:]
    # 0 ends a chain; the last page of one ends it anyway, so that one gets a number that no page has.
    ends = _get(store, page.number)[:4] == bytes(4)
    following = 0x7FFFFFF0 if ends else chance.choice((0, 0x7FFFFFF0))
    _put(store, page.number, following.to_bytes(4, "big") + rest)
    return _hit("cut-overflow", page)


def lose_root(store: Path, seed: int, *, index: bool) -> Hit:
    """Fill the root page of a table of conversations, or of one of its indexes, with zeros."""
    roots = [
        page
        for page in _pages(store)
        if page.belongs is (Belongs.INDEX if index else Belongs.TABLE)
        and page.table in ("messages", "sessions")
        and page.number in _roots(store)
    ]
    page = random.Random(seed).choice(roots)
    _put(store, page.number, bytes(_page_size(store)))
    return _hit("lose-root", page)


def shorten(store: Path, seed: int, *, torn: bool) -> Hit:
    """Cut off the last tenth of the file: a copy that was broken off. ``torn``: in the midst of a page."""
    size, count = _page_size(store), store.stat().st_size // _page_size(store)
    chance = random.Random(seed)
    left = count - chance.randint(1, max(1, count // 10))
    gone = [page for page in _pages(store) if page.number > left]
    with store.open("r+b") as file:
        file.truncate(left * size + (chance.randint(1, size - 1) if torn else 0))
    names = tuple(dict.fromkeys(page.name for page in gone))
    return Hit("shorten", Belongs.FILE, names, tuple(range(left + 1, count + 1)))


def lose_first_page(store: Path, seed: int) -> Hit:
    """Fill the first page, which has the header and the root of the schema, with zeros, or with something else."""
    size = _page_size(store)
    chance = random.Random(seed)
    _put(store, 1, bytes(size) if chance.random() < 0.5 else chance.randbytes(size))
    return Hit("lose-first-page", Belongs.FILE, (), (1,))


def duplicate_schema(store: Path, seed: int) -> Hit:
    """List a table, an index or a trigger twice in the schema: two programs that made the same at once."""
    with _writing(store) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        rows = connection.execute(
            "SELECT rowid, name FROM sqlite_schema WHERE name NOT LIKE 'sqlite_%' AND sql IS NOT NULL ORDER BY rowid"
        ).fetchall()
        rowid, name = random.Random(seed).choice(rows)
        connection.execute(
            "INSERT INTO sqlite_schema SELECT type, name, tbl_name, rootpage, sql FROM sqlite_schema WHERE rowid = ?",
            (rowid,),
        )
    return Hit("duplicate-schema", Belongs.SCHEMA, (str(name),))


def another_generations_log(store: Path, seed: int) -> Hit:
    """Put a log beside the store that was written before its pages changed places: half of a backup, put back."""
    aside = store.with_name(store.name + ".log-aside")
    _write_log(store, seed)
    log = _log(store)
    shutil.copyfile(log, aside)
    pages = tuple(dict.fromkeys(_frames(log)))
    at_rest_before = {page.number: page for page in _pages(store)}
    with _writing(store) as connection:
        # Everything after the first pages moves.
        connection.execute("CREATE TABLE first_of_all(filling)")
        connection.execute("VACUUM")
        connection.execute("DROP TABLE first_of_all")
        connection.execute("VACUUM")
    at_rest(store)
    aside.rename(log)
    names = tuple(dict.fromkeys(at_rest_before[number].name for number in pages if number in at_rest_before))
    return Hit("another-generations-log", Belongs.LOG, names, pages)


def tear_last_frame(store: Path, seed: int) -> Hit:
    """Leave a log whose last frame was not written to its end. SQLite goes without it: nothing is damaged."""
    _write_log(store, seed)
    log = _log(store)
    pages = _frames(log)
    with log.open("r+b") as file:
        file.truncate(log.stat().st_size - random.Random(seed).randint(1, _page_size(store)))
    return Hit("tear-last-frame", Belongs.LOG, (), (pages[-1],))


Damage = Callable[[Path, int], Hit]

#: Every damage by its name; those of pages are named as what is done, and to which part of the file.
DAMAGES: dict[str, Damage] = {
    **{f"{deed.__name__}-{part}": partial(deed, part=part) for deed in (zero, tear, swap) for part in Part},
    "cut-overflow": cut_overflow,
    "lose-root-table": partial(lose_root, index=False),
    "lose-root-index": partial(lose_root, index=True),
    "shorten": partial(shorten, torn=False),
    "shorten-torn": partial(shorten, torn=True),
    "lose-first-page": lose_first_page,
    "duplicate-schema": duplicate_schema,
    "another-generations-log": another_generations_log,
    "tear-last-frame": tear_last_frame,
}


def lose_table(store: Path, seed: int, table: str) -> Hit:
    """Fill every page of a table with zeros, its root included; its indexes stay."""
    pages = [page for page in _pages(store) if page.name == table]
    for page in pages:
        _put(store, page.number, bytes(_page_size(store)))
    return _hit("lose-table", *pages)


def unlist(store: Path, seed: int, table: str) -> Hit:
    """Take a table out of the schema; by the seed with its indexes and triggers, or without them."""
    whole = random.Random(seed).random() < 0.5
    with _writing(store) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("DELETE FROM sqlite_schema WHERE tbl_name = ? AND (type = 'table' OR ?)", (table, whole))
    return Hit("unlist", Belongs.SCHEMA, (table,))


def zero_half(store: Path, seed: int) -> Hit:
    """Fill the second half of the file with zeros: a copy of which the end never reached the disk."""
    size, length = _page_size(store), store.stat().st_size
    begin = length // 2 // size * size + SECTOR * random.Random(seed).randrange(size // SECTOR)
    names = tuple(dict.fromkeys(page.name for page in _pages(store) if page.number * size > begin))
    with store.open("r+b") as file:
        file.seek(begin)
        file.write(bytes(length - begin))
    return Hit("zero-half", Belongs.FILE, names, tuple(range(begin // size + 1, length // size + 1)))


def zero_schema(store: Path, seed: int, *, root: bool) -> Hit:
    """Fill a leaf of the schema's own tree with zeros, or its root, which is on the first page behind the header."""
    if root:
        _put(store, 1, _get(store, 1)[:_HEADER].ljust(_page_size(store), b"\x00"))
        return Hit("zero-schema", Belongs.SCHEMA, ("sqlite_schema",), (1,))
    leaves = [page for page in _pages(store) if page.belongs is Belongs.SCHEMA and page.number != 1]
    if not leaves:
        raise NothingToDamageError("all of the schema is on the first page")
    page = random.Random(seed).choice(leaves)
    _put(store, page.number, bytes(_page_size(store)))
    return _hit("zero-schema", page)


def swap_roots(store: Path, seed: int) -> Hit:
    """Exchange the root page of the messages with that of the sessions."""
    roots = [page for page in _pages(store) if page.name in ("messages", "sessions") and page.number in _roots(store)]
    _swap(store, *(page.number for page in roots))
    return _hit("swap-roots", *roots)


def swap_across(store: Path, seed: int) -> Hit:
    """Exchange a leaf of the messages with one of the sessions."""
    chance = random.Random(seed)
    pages = _pages(store)
    leaves = [
        chance.choice([page for page in pages if page.name == table and page.kind == "leaf"])
        for table in ("messages", "sessions")
    ]
    _swap(store, *(page.number for page in leaves))
    return _hit("swap-across", *leaves)


def zero_overflow(store: Path, seed: int) -> Hit:
    """Fill a page with zeros on which a long message goes on."""
    page = random.Random(seed).choice([page for chain in _chains(store) for page in chain])
    _put(store, page, bytes(_page_size(store)))
    return Hit("zero-overflow", Belongs.TABLE, ("messages",), (page,))


def swap_overflow(store: Path, seed: int) -> Hit:
    """Exchange pages of two long messages, behind which follow unlike numbers of pages.

    Were they alike, each message would have the end of the other, and nothing in the file would show it.
    """
    chance = random.Random(seed)
    places = [(page, len(chain) - n, chain[0]) for chain in _chains(store) for n, page in enumerate(chain)]
    page, left, whose = chance.choice(places)
    others = [other for other, following, of in places if following != left and of != whose]
    if not others:
        raise NothingToDamageError("all long rows are of one length")
    pages = (page, chance.choice(others))
    _swap(store, *pages)
    return Hit("swap-overflow", Belongs.TABLE, ("messages",), pages)


def lose_free_list(store: Path, seed: int, *, interior: bool) -> Hit:
    """Forget which pages are free: what was deleted lies there as if it were in use.

    ``interior``: lose a page above leaves, too, so that the tree does not tell either which of them were in use.
    """
    _free_lists(store)
    hit = zero(store, seed, Part.TABLE_INTERIOR) if interior else Hit("", Belongs.FREE)
    header = _get(store, 1)
    _put(store, 1, header[:_FREE_TRUNK] + bytes(8) + header[_FREE_TRUNK + 8 :])
    return Hit("lose-free-list", hit.belongs, hit.names, (1, *hit.pages))


def five_pages(store: Path, seed: int) -> Hit:
    """Do something to five pages: three of conversations, two of anything."""
    chance = random.Random(seed)
    pages = [page for page in _pages(store) if page.number > 1]
    own = [page for page in pages if page.table in ("messages", "sessions")]
    hit = list(dict.fromkeys((*chance.sample(own, min(3, len(own))), *chance.sample(pages, 2))))
    size = _page_size(store)
    for page in hit:
        whole = _get(store, page.number)
        cut = SECTOR * chance.randrange(1, size // SECTOR)
        other = _get(store, chance.choice(pages).number)
        _put(
            store,
            page.number,
            chance.choice((bytes(size), whole[:cut].ljust(size, b"\x00"), chance.randbytes(size), other)),
        )
    names = tuple(dict.fromkeys(page.name for page in hit))
    return Hit("five-pages", Belongs.SEVERAL, names, tuple(page.number for page in hit))


def write_messages_into_log(store: Path, seed: int) -> None:
    """Leave a log of twenty transactions beside the store, each of which wrote two messages; all of them count."""
    chance = random.Random(seed)
    with _logging(store) as connection:
        sessions = [row[0] for row in connection.execute("SELECT id FROM sessions ORDER BY rowid")]
        for number in range(20):
            with connection:
                for role, length in (("user", 30), ("assistant", 6000 if number % 7 == 3 else 300)):
                    connection.execute(
                        "INSERT INTO messages (session_id, role, content, timestamp)"
                        " SELECT ?, ?, ?, max(timestamp) + 1 FROM messages",
                        (chance.choice(sessions), role, f"said {number} ".ljust(length, ".")),
                    )


def break_frame(store: Path, seed: int) -> Hit:
    """Change one byte of a frame in the middle of a log. SQLite goes without all that comes behind it."""
    log = _log(store)
    pages = _frames(log)
    chance = random.Random(seed)
    frame = len(pages) // 2 + chance.randrange(-2, 3)
    with log.open("r+b") as file:
        place = _LOG_HEADER + frame * (_FRAME_HEADER + _page_size(store)) + _FRAME_HEADER
        place += chance.randrange(_page_size(store))
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 0xFF]))
    return Hit("break-frame", Belongs.LOG, (), (pages[frame],))


def use_rollback_mode(store: Path, seed: int) -> None:
    """Take a store out of WAL mode, as is right."""
    with _writing(store) as connection:
        connection.execute("PRAGMA journal_mode = delete").fetchall()


def leave_hot_journal(store: Path, seed: int) -> Hit:
    """Let somebody die who has half written a change of many messages, and zero a leaf of the messages besides.

    What was there before is in the journal, but for the leaf where that was not to be changed.
    """
    page = random.Random(seed).choice(
        [page for page in _pages(store) if page.name == "messages" and page.kind == "leaf"]
    )
    journal = store.with_name(store.name + "-journal")
    asides = [(file, file.with_name(file.name + ".aside")) for file in (store, journal)]
    with _writing(store) as connection:
        # So that pages are written before the end.
        connection.execute("PRAGMA cache_size = 1")
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("UPDATE messages SET timestamp = timestamp + 1 WHERE id % 3 = 0")
        connection.execute("UPDATE sessions SET started_at = started_at + 1")
        for file, aside in asides:
            shutil.copyfile(file, aside)
        connection.execute("ROLLBACK")
    for file, aside in asides:
        aside.replace(file)
    _put(store, page.number, bytes(_page_size(store)))
    return Hit("hot-journal", Belongs.TABLE, ("messages",), (page.number,))


@dataclass(frozen=True)
class Wreck:
    """A damage after which rows have to be saved. ``before``: what is rightly done to the store before that."""

    damage: Damage
    before: Callable[[Path, int], None] | None = None


#: What takes more than pages of one kind, by its name.
WRECKS: dict[str, Wreck] = {
    "lose-sessions": Wreck(partial(lose_table, table="sessions")),
    "unlist-sessions": Wreck(partial(unlist, table="sessions")),
    "unlist-messages": Wreck(partial(unlist, table="messages")),
    "zero-half": Wreck(zero_half),
    "zero-schema-root": Wreck(partial(zero_schema, root=True)),
    "zero-schema-leaf": Wreck(partial(zero_schema, root=False)),
    "swap-roots": Wreck(swap_roots),
    "swap-across": Wreck(swap_across),
    "zero-overflow": Wreck(zero_overflow),
    "swap-overflow": Wreck(swap_overflow),
    "lose-free-list": Wreck(partial(lose_free_list, interior=False)),
    "lose-free-list-and-interior": Wreck(partial(lose_free_list, interior=True)),
    "break-frame": Wreck(break_frame, write_messages_into_log),
    "hot-journal": Wreck(leave_hot_journal, use_rollback_mode),
    "lose-first-page-beside-a-log": Wreck(lose_first_page, write_messages_into_log),
    "five-pages": Wreck(five_pages),
}


def _chosen(store: Path, seed: int, part: Part, count: int, *, least: int | None = None) -> list[_Page]:
    """Choose that many pages of one kind, all of one tree where it has as many; the roots of trees come last."""
    if part is Part.FREE:
        return [_Page(number, "", "", "free", index=False) for number in _free_lists(store)[:count]]
    fitting = [page for page in _pages(store) if _is_part(page, part)]
    chance = random.Random(seed)
    chance.shuffle(fitting)
    roots = _roots(store)
    fitting.sort(key=lambda page: page.number in roots)
    by_tree: dict[str, list[_Page]] = {}
    for page in fitting:
        by_tree.setdefault(page.name, []).append(page)
    together = [pages[:count] for pages in by_tree.values() if len(pages) >= count]
    if together:
        return together[0]
    if len(fitting) < (count if least is None else least):
        raise NothingToDamageError(f"the store has too few pages of the kind {part}")
    return fitting[:count]


def _is_part(page: _Page, part: Part) -> bool:
    if page.belongs is Belongs.SEARCH:
        # What is looked up by word or by row: the lists of words, and where each begins.
        return part is Part.SEARCH and page.kind != "overflow" and page.name.endswith(("_data", "_idx"))
    if page.belongs not in (Belongs.TABLE, Belongs.INDEX) or page.table.startswith("sqlite_"):
        return False
    kind = {"internal": "interior", "leaf": "leaf"}.get(page.kind)
    return part == f"{'index' if page.index else 'table'}-{kind}" and page.table in ("messages", "sessions")


def _hit(damage: str, *pages: _Page) -> Hit:
    free = pages[0].kind == "free"
    names = tuple(dict.fromkeys(page.name for page in pages if page.name))
    return Hit(damage, Belongs.FREE if free else pages[0].belongs, names, tuple(page.number for page in pages))


def _pages(store: Path) -> list[_Page]:
    """Every page of every tree, as SQLite itself finds them, in the order of their numbers."""
    connection = apsw.Connection(f"{store.as_uri()}?immutable=1", apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
    try:
        rows = connection.execute(
            "SELECT d.pageno, d.name, coalesce(s.tbl_name, d.name), d.pagetype, coalesce(s.type = 'index', 0)"
            " FROM dbstat AS d LEFT JOIN sqlite_schema AS s ON s.name = d.name ORDER BY d.pageno"
        ).fetchall()
    finally:
        connection.close()
    return [
        _Page(int(str(number)), str(name), str(table), str(kind), bool(index))
        for number, name, table, kind, index in rows
    ]


def _roots(store: Path) -> set[int]:
    connection = apsw.Connection(f"{store.as_uri()}?immutable=1", apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
    try:
        return {number for (number,) in connection.execute("SELECT rootpage FROM sqlite_schema WHERE rootpage > 0")}
    finally:
        connection.close()


def _free_lists(store: Path) -> list[int]:
    """The pages that list the free ones."""
    header = _get(store, 1)
    number, found = int.from_bytes(header[_FREE_TRUNK:_FREE_COUNT], "big"), []
    while number:
        found.append(number)
        number = int.from_bytes(_get(store, number)[:4], "big")
    if not found:
        raise NothingToDamageError("the store has no free pages")
    return found


@contextmanager
def _writing(store: Path) -> Iterator[apsw.Connection]:
    connection = apsw.Connection(str(store))
    try:
        yield connection
    finally:
        connection.close()


def _write_log(store: Path, seed: int) -> None:
    """Leave a log of several transactions beside the store, of which nothing has come into its file yet."""
    with _logging(store) as connection:
        ids = [row[0] for row in connection.execute("SELECT rowid FROM sessions ORDER BY rowid")]
        for rowid in random.Random(seed).choices(ids, k=5):
            # No trigger of any release watches sessions.
            connection.execute("UPDATE sessions SET started_at = started_at + 0.5 WHERE rowid = ?", (rowid,))


@contextmanager
def _logging(store: Path) -> Iterator[apsw.Connection]:
    """A connection of which all that it writes stays in the log."""
    with _writing(store) as connection:
        connection.execute("PRAGMA journal_mode = wal").fetchall()
        connection.wal_autocheckpoint(0)
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        yield connection
    store.with_name(store.name + "-shm").unlink()


def _chains(store: Path) -> list[list[int]]:
    """The chains of pages on which long messages go on, each from its first page to its last."""
    pages = [page.number for page in _pages(store) if page.kind == "overflow" and page.name == "messages"]
    following = {page: int.from_bytes(_get(store, page)[:4], "big") for page in pages}
    if not pages:
        raise NothingToDamageError("no message is long enough to overflow its page")
    chains = []
    for page in sorted(following.keys() - following.values()):
        chain = [page]
        while following[chain[-1]]:
            chain.append(following[chain[-1]])
        chains.append(chain)
    return chains


def _log(store: Path) -> Path:
    return store.with_name(store.name + "-wal")


def _frames(log: Path) -> list[int]:
    """The numbers of the pages in a log, in its order."""
    data = log.read_bytes()
    size = int.from_bytes(data[8:12], "big") + _FRAME_HEADER
    return [int.from_bytes(data[start : start + 4], "big") for start in range(_LOG_HEADER, len(data), size)]


def _page_size(store: Path) -> int:
    with store.open("rb") as file:
        size = int.from_bytes(file.read(_PAGE_SIZE + 2)[_PAGE_SIZE:], "big")
    return 65536 if size == 1 else size


def _get(store: Path, number: int) -> bytes:
    size = _page_size(store)
    with store.open("rb") as file:
        file.seek((number - 1) * size)
        return file.read(size)


def _swap(store: Path, one: int, other: int) -> None:
    first, second = _get(store, one), _get(store, other)
    _put(store, one, second)
    _put(store, other, first)


def _put(store: Path, number: int, data: bytes) -> None:
    with store.open("r+b") as file:
        file.seek((number - 1) * len(data))
        file.write(data)


if __name__ == "__main__":
    name, path, number = sys.argv[1:]
    chosen = WRECKS[name] if name in WRECKS else Wreck(DAMAGES[name])
    if chosen.before is not None:
        chosen.before(Path(path).resolve(), int(number))
    sys.stdout.write(f"{chosen.damage(Path(path).resolve(), int(number))}\n")
