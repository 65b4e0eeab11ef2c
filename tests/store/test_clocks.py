"""Which cells are times: the same in Python, in SQL and in the releases."""

from __future__ import annotations

import datetime
import math

import apsw
import pytest

from hermes_doctor.store.cells import BadText, Cell, json_key, quote
from hermes_doctor.store.clocks import DAY, HOUR, LATEST, MINUTE, trusted, trusted_sql
from tests.oracle.home import Home
from tests.oracle.releases import get
from tests.oracle.steps import call, sql

CELLS: tuple[tuple[str, Cell, float | None], ...] = (
    ("a time", 1_780_000_000.25, 1_780_000_000.25),
    ("a time in whole seconds", 1_780_000_000, 1_780_000_000.0),
    ("the first moment", 1e-6, 1e-6),
    ("zero", 0.0, None),
    ("whole zero", 0, None),
    ("minus zero", -0.0, None),
    ("before 1970", -1.0, None),
    ("the last moment", math.nextafter(LATEST, 0), math.nextafter(LATEST, 0)),
    ("the first absurd one", LATEST, None),
    ("milliseconds", 1_780_000_000_000, None),
    ("salvaged from a damaged page", 5.49e246, None),
    ("infinite", math.inf, None),
    ("infinite, backwards", -math.inf, None),
    ("the largest integer", 2**63 - 1, None),
    ("text", "2026-01-01", None),
    ("a number as text", "1780000000", None),
    ("empty text", "", None),
    ("bad text", BadText(b"\xff"), None),
    ("a blob", b"1780000000", None),
    ("nothing", None, None),
)


@pytest.mark.parametrize(("cell", "expected"), [each[1:] for each in CELLS], ids=[each[0] for each in CELLS])
def test_what_is_a_time(cell: Cell, expected: float | None) -> None:
    assert trusted(cell) == expected
    connection = apsw.Connection(":memory:")
    connection.execute("CREATE TABLE t(c)")
    mark = "CAST(? AS TEXT)" if isinstance(cell, BadText) else "?"
    connection.execute(f"INSERT INTO t VALUES ({mark})", (cell,))
    assert connection.execute(f"SELECT {trusted_sql('c')} FROM t").get == expected
    assert connection.execute(f"SELECT {trusted_sql('x.c')} FROM t AS x").get == expected


def test_truth_values_and_not_a_number_are_no_times() -> None:
    assert trusted(True) is None
    assert trusted(math.nan) is None


def test_units_are_seconds() -> None:
    assert (MINUTE, HOUR, DAY) == (60, 3600, 86400)
    assert datetime.datetime.fromtimestamp(LATEST, datetime.UTC).year == 2103


@pytest.mark.parametrize("version", ["0.21.5", "0.22.2"])
def test_releases_draw_the_line_at_the_same_moment(home: Home, version: str) -> None:
    """A message's time that the release does not trust becomes the present time when it is written."""
    release = get(version)
    times = [LATEST - 1, LATEST + 1]
    home.run(release, [call("create_session", "s1", "cli")])
    home.run(release, [call("append_message", "s1", "user", str(when), timestamp=when) for when in times])
    rows = home.run(release, [sql("SELECT content, timestamp FROM messages ORDER BY id")])[0]
    kept = [float(content) == timestamp for content, timestamp in rows]
    assert kept == [trusted(when) is not None for when in times]


# ---- Cells


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("s1", "s1"),
        (5, 5),
        (None, None),
        (b"\x00\xff", {"blob": "00ff"}),
        (BadText(b"caf\xe9"), {"blob": "636166e9"}),
        (("s1", b"\x01", 2), ["s1", {"blob": "01"}, 2]),
    ],
)
def test_keys_in_json(key: Cell, expected: object) -> None:
    assert json_key(key) == expected


@pytest.mark.parametrize("name", ["plain", 'with "quotes"', "with ; and --", "select", "é", "", "[x]", "`y`"])
def test_quoted_names_reach_their_column(name: str) -> None:
    connection = apsw.Connection(":memory:")
    connection.execute(f"CREATE TABLE t({quote(name)} INTEGER, other)")
    connection.execute("INSERT INTO t VALUES (7, 8)")
    assert connection.execute(f"SELECT {quote(name)} FROM t").get == 7
