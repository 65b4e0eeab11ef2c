"""`doctor history` and the list of mutes: what a person reads."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from hermes_doctor.nightly.history import DAY, HOUR, Entry
from hermes_doctor.nightly.mutes import Mute
from hermes_doctor.nightly.trends import trends
from hermes_doctor.report.history import StoreHistory, history_table, mutes_table
from hermes_doctor.report.ink import Ink
from hermes_doctor.report.layout import Look

NOW = datetime(2026, 11, 30, 12, 0).timestamp()
STORE = Path("/srv/hermes/state.db")
MUTE = Mute("bloat", None, NOW, datetime(2026, 12, 14, 6, 55).timestamp(), True)


def lived(*last: Entry) -> StoreHistory:
    """Three weeks of nights, and what came after them."""
    entries = [
        Entry(
            STORE,
            NOW - night * DAY,
            sessions=3013 - night,
            messages=61465,
            bytes=1_503_238_553 - night * 10_000_000,
            counts={
                "open-zombies": 910 - night,
                "lineage-gaps": 3 * (night < 3),
                "double-encoded": 212 * (night > 1),
                "weights": 4 + (night > 4),
                "bloat": 1,
                "bad-times": 0,
            },
        )
        for night in range(21, 0, -1)
    ]
    entries += last
    return StoreHistory(STORE, entries, trends(entries, NOW, 7 * DAY), {"bloat": MUTE})


def shown(told: StoreHistory, **look: object) -> str:
    return history_table([told], NOW, 7 * DAY, Look(**look))  # type: ignore[arg-type]  # Look's own keywords


def test_the_whole_of_it() -> None:
    assert (
        shown(lived())
        == """\
/srv/hermes/state.db   21 scans kept since 2026-11-09 12:00 (21 days ago), the
  last 1 day ago
  3,012 sessions (+6) · 61,465 messages (+0) · 1.4 GB (+57.2 MB) since
  2026-11-23 12:00 (7 days ago)

check           now  7 days ago  what became of it
--------------  ---  ----------  --------------------------------------------
lineage-gaps      3           0  new since 2026-11-28 12:00 (2 days ago)
open-zombies    909         903  grows; there since 2026-11-09 or longer
weights           4           5  fewer; there since 2026-11-09 or longer
double-encoded    0         212  gone since 2026-11-29 12:00 (1 day ago)
bloat             1           1  as it was; there since 2026-11-09 or longer;
                                 muted until 2026-12-14
"""
    )


def test_a_store_that_could_not_be_read() -> None:
    text = " ".join(shown(lived(Entry(STORE, NOW - HOUR, "unreadable"))).split())
    said = "It could not be read at the last scan (unreadable); it was read last 1 day ago. Next: doctor scan"
    assert said in text
    assert "lineage-gaps 3 0 new since 2026-11-28 12:00 (2 days ago)" in text
    never = StoreHistory(STORE, [Entry(STORE, NOW, "damaged")], [], {})
    assert "it was never read." in shown(never)
    read_again = lived(Entry(STORE, NOW - HOUR, "damaged"), Entry(STORE, NOW, counts={"bloat": 1}, failed=("odd\x1b",)))
    text = " ".join(shown(read_again).split())
    assert "It could not be read at 1 scan in the last 7 days." in text
    assert "Could not be checked in full at the last scan: odd\\x1b." in text
    assert "open-zombies 909 903 grows; there since 2026-11-09 or longer; last looked for 1 day ago" in text


@pytest.mark.parametrize("first", [2, 6.9])
def test_a_history_that_is_younger_than_the_time_asked_for(first: float) -> None:
    """Its first scan was not 7 days ago, and is not called so."""
    entries = [Entry(STORE, NOW - days * DAY, counts={"bloat": 1}) for days in (first, 1)]
    header = shown(StoreHistory(STORE, entries, trends(entries, NOW, 7 * DAY), {})).splitlines()[-3]
    assert header.split() == ["check", "now", "at", "first", "what", "became", "of", "it"]


def test_where_nothing_was_found() -> None:
    well = StoreHistory(STORE, [Entry(STORE, NOW, counts={"bloat": 0})], [], {})
    assert shown(well) == (
        "/srv/hermes/state.db   1 scan kept since 2026-11-30 12:00 (just now), the last\n"
        "  just now\n"
        "  No check has found anything.\n"
    )


def test_several_stores_stand_apart_and_colour_only_helps() -> None:
    told = lived()
    plain = history_table([told, told], NOW, 7 * DAY, Look())
    assert plain == shown(told) + "\n" + shown(told)
    colored = history_table([told, told], NOW, 7 * DAY, Look(ink=Ink(True)))
    assert "\x1b[1;31mlineage-gaps\x1b[0m" in colored
    assert "\x1b[32mdouble-encoded\x1b[0m" in colored


def test_the_list_of_mutes() -> None:
    text = mutes_table([MUTE, replace(MUTE, check="weights", store=STORE, until_worse=False)], NOW, Look())
    assert (
        text
        == """\
check    muted until                    on which store
-------  -----------------------------  ---------------------------------------
bloat    2026-12-14 06:55 (in 13 days)  every store, until more are found there
weights  2026-12-14 06:55 (in 13 days)  /srv/hermes/state.db

Next: doctor unmute bloat
"""
    )
