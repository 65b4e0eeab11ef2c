"""Asking SQLite whether a file is sound, for no longer than there is time, and reading what it answers.

Row by row, and to the end that comes: SQLite tells of the trees first, and then may stop at the very page that it has
just told of (apsw.CorruptError). The words are those of SQLite 3.51 to 3.54; older ones say ``On tree page N``.
"""

from __future__ import annotations

import enum
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, NamedTuple

import apsw

from hermes_doctor.store.cells import quote

#: Steps of SQLite between two questions whether to stop; in a tree that is one for each page, which a slow disk reads
#: in some milliseconds. Where nothing stops it Python is called all the same: only there is Ctrl-C heard.
_STEPS, _STEPS_UNSTOPPED = 100, 2000

#: Asked again and again while SQLite is at work: whether to stop.
Stop = Callable[[], bool]


class Kind(enum.Enum):
    """What one line of the answer is about.

    TREE: a page of the tree that begins at a root. PAGE: a page, whose tree is not told. SHARED: a page that two
    places lead to. COUNT: an index that has more or fewer entries than its table has rows; INDEX: one that does not
    fit them in another way. ROWS: a table whose rows are not in order. FREE: the list of free pages. UNUSED: a page
    that nothing leads to. STOPPED: SQLite could not read on, and does not say where. OTHER: words not known here.
    """

    TREE = enum.auto()
    PAGE = enum.auto()
    SHARED = enum.auto()
    COUNT = enum.auto()
    INDEX = enum.auto()
    ROWS = enum.auto()
    FREE = enum.auto()
    UNUSED = enum.auto()
    STOPPED = enum.auto()
    OTHER = enum.auto()


class Problem(NamedTuple):
    """One line: what it is about, as far as it names a root, a page, or a table or an index."""

    kind: Kind
    root: int | None = None
    page: int | None = None
    name: str | None = None


class Answer(NamedTuple):
    """What SQLite found. ``finished``: it came to an end of its own, be it at damage; False where it was stopped."""

    problems: Sequence[Problem]
    finished: bool


_LINES: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    (Kind.SHARED, re.compile(r"Tree (?P<root>\d+) page \d+.*: 2nd reference to page (?P<page>\d+)")),
    (Kind.TREE, re.compile(r"Tree (?P<root>\d+) page (?P<page>\d+)\b.*")),
    (Kind.TREE, re.compile(r"Tree (?P<root>\d+)\b.*")),
    (Kind.FREE, re.compile(r"Freelist: .*")),
    (Kind.UNUSED, re.compile(r"Page (?P<page>\d+): (?:never used|pointer map referenced)")),
    (Kind.PAGE, re.compile(r"Fragmentation of \d+ bytes reported as \d+ on page (?P<page>\d+)")),
    (Kind.PAGE, re.compile(r"Multiple uses for byte \d+ of page (?P<page>\d+)")),
    (Kind.COUNT, re.compile(r"wrong # of entries in index (?P<name>.+)", re.S)),
    (Kind.INDEX, re.compile(r"row \S+ (?:missing from|values differ from) index (?P<name>.+)", re.S)),
    (Kind.INDEX, re.compile(r"rowid not at end-of-record for row \S+ of index (?P<name>.+)", re.S)),
    (Kind.INDEX, re.compile(r"non-unique entry in index (?P<name>.+)", re.S)),
    (Kind.ROWS, re.compile(r"row not in PRIMARY KEY order for (?P<name>.+)", re.S)),
    (Kind.STOPPED, re.compile(r"database disk image is malformed")),
)
#: What is no damage. Rows that break a constraint are faults of the content, and old releases left columns weaker than
#: they are declared. And whether a search index fits its texts is another question: SQLite asks it here from 3.44 on,
#: and one that cuts texts with a NUL in another way than the SQLite that wrote it calls a sound index malformed.
_NO_DAMAGE = re.compile(
    r"ok|\*\*\* in database .* \*\*\*|(?:NULL|TEXT|NUMERIC|non-\w+) value in .+|CHECK constraint failed in .+"
    r"|malformed inverted index for FTS\d table .+|unable to validate the inverted index for FTS\d table .+",
    re.S,
)


def read_line(line: str) -> Problem | None:
    """Return what a line of the answer says, None where it says nothing of damage."""
    if not line or _NO_DAMAGE.fullmatch(line):
        return None
    for kind, pattern in _LINES:
        match = pattern.fullmatch(line)
        if match is not None:
            found = match.groupdict()
            root, page = (int(found[part]) if found.get(part) else None for part in ("root", "page"))
            return Problem(kind, root, page, found.get("name"))
    return Problem(Kind.OTHER)


def ask(
    connection: apsw.Connection,
    about: str | int,
    *,
    stop: Stop | None = None,
    how: Literal["integrity_check", "quick_check"] = "integrity_check",
) -> Answer:
    """Ask about one table and its indexes, by its name, or about the whole file, by the most lines of the answer.

    ``stop``: ends it; Ctrl-C does in any case. ``quick_check`` does not look up each row in each index. The name
    ``sqlite_schema`` asks about the list of free pages, too.

    Never raises what says that the file is damaged: the answer does. What this connection lacks to know (a function,
    a collation) leaves it unfinished.
    """
    argument = str(about) if isinstance(about, int) else quote(about)
    problems: list[Problem] = []
    with stopped_by(connection, stop):
        try:
            for (text,) in connection.execute(f"PRAGMA {how}({argument})"):
                problems += [problem for line in _lines(str(text)) if (problem := read_line(line)) is not None]
        except (apsw.CorruptError, apsw.NotADBError):
            problems.append(Problem(Kind.STOPPED))
        except apsw.IOError as error:
            if getattr(error, "extendedresult", 0) != apsw.SQLITE_IOERR_SHORT_READ:
                raise
            problems.append(Problem(Kind.STOPPED))
        except (apsw.InterruptError, apsw.SQLError, UnicodeDecodeError):
            return Answer(problems, finished=False)
    return Answer(problems, finished=True)


def _lines(text: str) -> list[str]:
    # What is told of the trees comes as one text; what is told of rows as one each, and a name may hold a line feed.
    return text.split("\n") if text.startswith("*** in database") else [text]


@contextmanager
def stopped_by(connection: apsw.Connection, stop: Stop | None) -> Iterator[None]:
    """Have the connection's statements meanwhile end with apsw.InterruptError where ``stop`` says so."""
    mark = object()
    connection.set_progress_handler(stop or (lambda: False), _STEPS if stop else _STEPS_UNSTOPPED, id=mark)
    try:
        yield
    finally:
        connection.set_progress_handler(None, id=mark)


def after(seconds: float) -> Stop:
    """Return what says to stop when so many seconds have passed from now."""
    end = time.monotonic() + seconds
    return lambda: time.monotonic() > end
