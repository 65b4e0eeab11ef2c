"""The SQLite library that APSW brings: whether it is fit to write to a store."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import apsw

#: The first release without the WAL-reset bug. Its two backports are not counted: APSW's own library is newer.
_OLDEST_FIT = (3, 51, 3)
_ADVICE = "pip install --upgrade --force-reinstall apsw"


class Library(NamedTuple):
    """What APSW's SQLite is and can do.

    ``own_amalgamation``: APSW brings its own SQLite, not the system's. ``missing``: of ``session``, ``fts5`` and
    ``trigram``, those that do not work. ``fit``: a store may be written to with it; reading works with any.
    ``advice``: what to type where it is not fit, else None.
    """

    version: str
    own_amalgamation: bool
    missing: tuple[str, ...]
    fit: bool
    advice: str | None


@cache
def library() -> Library:
    """Look at APSW's SQLite, once per process; each feature is proved by using it in memory."""
    import apsw

    connection = apsw.Connection(":memory:")
    try:
        missing = tuple(name for name, works in _FEATURES.items() if not works(connection))
    finally:
        connection.close()
    version = apsw.sqlite_lib_version()
    return judge(version, apsw.using_amalgamation, missing)


def judge(version: str, own_amalgamation: bool, missing: tuple[str, ...]) -> Library:
    """Say whether a SQLite of that version and origin, lacking those features, is fit for writing to a store."""
    numbers = tuple(int(part) for part in version.split(".") if part.isdigit())
    fit = own_amalgamation and numbers >= _OLDEST_FIT and not missing
    return Library(version, own_amalgamation, missing, fit, None if fit else _ADVICE)


def _session_works(connection: apsw.Connection) -> bool:
    import apsw

    if not hasattr(apsw, "Session"):
        return False
    connection.execute("CREATE TABLE tracked(id INTEGER PRIMARY KEY)")
    session = apsw.Session(connection, "main")
    try:
        session.attach("tracked")
        connection.execute("INSERT INTO tracked VALUES (1)")
        return not session.is_empty
    finally:
        session.close()


def _search_works(connection: apsw.Connection, name: str, tokenizer: str) -> bool:
    import apsw

    try:
        connection.execute(f"CREATE VIRTUAL TABLE {name} USING fts5(text, tokenize='{tokenizer}')")
        connection.execute(f"INSERT INTO {name} VALUES ('a needle in it')")
        found = connection.execute(f"SELECT count(*) FROM {name} WHERE {name} MATCH 'needle'").get
    except apsw.SQLError:
        return False
    return bool(found == 1)


_FEATURES: dict[str, Callable[[apsw.Connection], bool]] = {
    "session": _session_works,
    "fts5": lambda connection: _search_works(connection, "plain", "unicode61"),
    "trigram": lambda connection: _search_works(connection, "grams", "trigram"),
}
