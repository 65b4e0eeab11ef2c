"""Looking for damage to a store's file: all of a small one, a sample of a large one, or all of any.

SQLite's own checks do the work, on a connection of their own that knows no search index: they would check that, too,
at the price of reading and cutting up all texts, and call a sound one malformed where it was written by a SQLite that
cuts texts in another way.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import apsw

from hermes_doctor.host.bundle import Bundle
from hermes_doctor.host.holders import find_holding
from hermes_doctor.store.connecting import connect
from hermes_doctor.store.damage import Damage, judge
from hermes_doctor.store.integrity import Answer, Kind, Problem, Stop, after, ask
from hermes_doctor.store.page_sample import take_sample, touching
from hermes_doctor.store.placing import NEEDED_MODULE, placed
from hermes_doctor.store.reader import SLICE_SECONDS, SNAPSHOT_SECONDS, Pace
from hermes_doctor.store.trees import Tree, read_trees
from hermes_doctor.store.view import StoreView

#: Up to so many pages a file is looked at as a whole.
_SMALL_PAGES = 1000
#: Seconds that this may take; after that, a sample has to do.
_SMALL_SECONDS = 0.25
#: Seconds that one question may take beside somebody else: all of it keeps a log from being reset, or writers from
#: their commits.
_BESIDE_OTHERS = {Pace.SNAPSHOT: SNAPSHOT_SECONDS, Pace.SLICED: SLICE_SECONDS * 3 / 4}
#: Seconds between two looks whether somebody has come, where nobody had the store open.
_ALONE_SECONDS = 1.0
#: Seconds for each table in which a sample has found damage, to say more of it.
_CLOSER_SECONDS = 2.0
#: How much more time a sample gets where it is to find again what it has found.
_PATIENCE_AGAIN = 10.0
#: Lines of SQLite's answer about a whole file that are read. Each table is asked about by itself where there are any.
_LINES = 1000
#: How much longer all of a check takes for each page than the reading of tree after tree (measured on stores of
#: 300 MB): rows are read once more, and each is looked up in each index.
_WHOLE_FACTOR = 4
#: Steps of SQLite between two words about how far it is.
_STEPS_TOLD = 1000
#: Pages that are kept in memory while all of a file is looked at, in KiB: rows are looked up in every index.
_CACHE_KIB = 65536


class Examination(NamedTuple):
    """What looking at a file came to.

    ``pages``: how many it has; ``looked_at``: how many of them were read, at most. ``whole``: all of it was checked.
    ``unverified``: tables for which one question would have taken too long while somebody has the store open.
    ``deep_seconds``: how long looking at all of it may take; None where it is not known, or was done.
    """

    damage: Damage
    pages: int
    looked_at: int
    whole: bool
    unverified: tuple[str, ...] = ()
    deep_seconds: float | None = None


def examine(view: StoreView, *, again: bool = False) -> Examination:
    """Look at the store's file, deeply where the view says so. ``again``: a sample is to find what it has found."""
    with _looking(view) as connection:
        trees = read_trees(connection)
        pages = int(str(connection.pragma("page_count")))
        # Where another check could not read a page, a sample is not to miss it.
        if view.deep or view.damage or pages <= _SMALL_PAGES:
            deep = view.deep or bool(view.damage)
            found = _whole(view, connection, trees, pages, None if deep else _SMALL_SECONDS)
            if deep or found.whole:
                return found
        return _sample(view, connection, trees, pages, again=again)


def examine_trees(connection: apsw.Connection, seconds: float) -> Damage:
    """Look at all tables of a file that nobody else has open, for so many seconds each at most."""
    trees = read_trees(connection)
    return judge(
        trees, {tree.name: _closer(connection, trees, tree.name, partial(after, seconds)) for tree in _tables(trees)}
    )


def _stop(view: StoreView, seconds: float | None = None) -> Stop | None:
    """Return what ends a question: it goes on for so many seconds at most, and no longer than others can wait."""
    limit = _BESIDE_OTHERS.get(view.reader.pace)
    if limit is not None and view.held == "no" and view.bundle is not None and seconds is None:
        return _until_somebody_comes(view.bundle)
    limits = [each for each in (limit, seconds) if each is not None]
    return after(min(limits)) if limits else None


def _until_somebody_comes(bundle: Bundle) -> Stop:
    looked = time.monotonic()
    alone = True

    def stop() -> bool:
        nonlocal looked, alone
        if alone and time.monotonic() - looked > _ALONE_SECONDS:
            alone = find_holding(bundle).state == "no"
            looked = time.monotonic()
        return not alone

    return stop


def _whole(
    view: StoreView, connection: apsw.Connection, trees: Sequence[Tree], pages: int, seconds: float | None
) -> Examination:
    """Ask about the file as a whole, and about each table where there is something to say or time was up."""
    with _telling(view, connection, pages):
        answer = ask(connection, _LINES, stop=_stop(view, seconds))
    if answer.finished and not answer.problems:
        return Examination(Damage(), pages, pages, whole=True)
    by_table: dict[str, Sequence[Problem]] = {}
    unverified: list[str] = []
    for table in _tables(trees):
        began = time.monotonic()
        found = ask(connection, table.name, stop=_stop(view, seconds))
        _rest(view, began)
        if not found.finished:
            began = time.monotonic()
            found = ask(connection, table.name, stop=_stop(view, seconds), how="quick_check")
            _rest(view, began)
        if not found.finished and not found.problems:
            unverified.append(table.name)
            if view.deep:
                found = _rows_one_by_one(view, table)
        by_table[table.name] = placed(
            connection, trees, table.name, found.problems, partial(_stop, view, seconds or _CLOSER_SECONDS)
        )
    damage = judge(trees, by_table, answer.problems if answer.finished else ())
    return Examination(damage, pages, pages, whole=not unverified, unverified=tuple(unverified))


@contextmanager
def _telling(view: StoreView, connection: apsw.Connection, pages: int) -> Iterator[None]:
    """Tell how far SQLite's check of the whole file is: it reads each page twice, tree after tree, then by the rows."""
    told = view.reader.on_share
    if told is None:
        yield
        return
    read = partial(connection.status, apsw.SQLITE_DBSTATUS_CACHE_MISS, False)
    before = read()[0]

    def tell() -> bool:
        told(min((read()[0] - before) / (2 * max(pages, 1)), 1.0))
        return False

    mark = object()
    connection.set_progress_handler(tell, _STEPS_TOLD, id=mark)
    try:
        yield
    finally:
        connection.set_progress_handler(None, id=mark)


def _rows_one_by_one(view: StoreView, tree: Tree) -> Answer:
    """Read all rows of a table in pieces: not whether they are in order, but whether they can be read."""
    table = view.shape.tables.get(tree.name.lower())
    if table is None or table.rowid is None:
        return Answer((), finished=False)
    try:
        for _row in view.reader.walk(table, ["1"], f"{touching(view.reader.connection, table.name)} < 0"):
            pass
    except apsw.CorruptError:
        return Answer((Problem(Kind.STOPPED, name=tree.name),), finished=False)
    return Answer((), finished=False)


def _sample(
    view: StoreView, connection: apsw.Connection, trees: Sequence[Tree], pages: int, *, again: bool
) -> Examination:
    # Another sample with each scan, and the same one where a scan asks again.
    chance = random.Random(int(view.now))
    sample = take_sample(connection, trees, chance, _PATIENCE_AGAIN if again else 1.0)
    for table, problems in sample.by_table.items():
        began = time.monotonic()
        closer = _closer(connection, trees, table, partial(_stop, view, _CLOSER_SECONDS))
        sample.by_table[table] = [*problems, *closer]
        _rest(view, began)
    seconds = None if sample.page_seconds is None else pages * sample.page_seconds * _WHOLE_FACTOR
    damage = judge(trees, sample.by_table)
    return Examination(damage, pages, min(sample.pages, pages), whole=False, deep_seconds=seconds)


def _closer(
    connection: apsw.Connection, trees: Sequence[Tree], table: str, begin: Callable[[], Stop | None]
) -> list[Problem]:
    """Ask about one table in full, and where that takes too long without looking up its rows."""
    answer = ask(connection, table, stop=begin())
    if not answer.finished and not answer.problems:
        answer = ask(connection, table, stop=begin(), how="quick_check")
    return placed(connection, trees, table, answer.problems, begin)


def _tables(trees: Sequence[Tree]) -> list[Tree]:
    return [tree for tree in trees if not tree.is_index]


def _rest(view: StoreView, began: float) -> None:
    """Pause for as long as the question took, where a writer may have waited for it."""
    if view.reader.pace is Pace.SLICED and view.reader.rests:
        time.sleep(min(time.monotonic() - began, SLICE_SECONDS))


@contextmanager
def _looking(view: StoreView) -> Iterator[apsw.Connection]:
    """Give a second connection to the same, which knows no search index; where none can be had, the view's own."""
    with ExitStack() as stack:
        connection = view.reader.connection
        # OSError: the file is not there any more.
        with suppress(OSError, apsw.CantOpenError, apsw.ReadOnlyError):
            connection = connection if view.bundle is None else _again(view, view.bundle, stack)
        yield connection


def _again(view: StoreView, bundle: Bundle, stack: ExitStack) -> apsw.Connection:
    connection = connect(view.opened, _options(view.opened, bundle))
    stack.callback(connection.close)
    connection.drop_modules([NEEDED_MODULE])
    # A page is looked at more closely when it is read, for the sake of samples.
    connection.pragma("cell_size_check", True)
    if view.deep:
        connection.pragma("cache_size", -_CACHE_KIB)
    # The first read: where SQLite cannot read it in this way, it says so here.
    connection.pragma("schema_version")
    return connection


def _options(opened: Path, bundle: Bundle) -> str:
    """Return how what the view has open is opened once more: as `open_without_trace` would."""
    if not opened.samefile(bundle.real_path) or bundle.journal_mode == "rollback":
        # A private copy, which SQLite has recovered by now, or one that is read under short locks.
        return "mode=ro"
    return "mode=ro&readonly_shm=1" if bundle.wal_path.exists() else "mode=ro&immutable=1"
