"""The reports of a rescue: what a person reads, and a document that is valid whatever the account holds."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from jsonschema import ValidationError

from hermes_doctor.engine.model import ExitCode
from hermes_doctor.host.bundle import Condition
from hermes_doctor.host.homes import StoreRef
from hermes_doctor.report.ink import Ink
from hermes_doctor.report.layout import Look
from hermes_doctor.report.model import RunStart
from hermes_doctor.report.rescue_json import rescue_json
from hermes_doctor.report.rescue_table import rescue_text
from hermes_doctor.rescue.account import LostRange, Rescue, RescueOutcome, Source, TableAccount
from tests.cli.support import valid

REF = StoreRef(Path("/srv/hermes/state.db"), Path("/srv/hermes"), "default")
NEW = Path("/srv/rescued.db")
START = RunStart("0.1.0", "3.54.1", 1796072400.9)
CODES: dict[RescueOutcome, ExitCode] = {
    "rescued": ExitCode.CLEAN,
    "partly-rescued": ExitCode.FINDINGS,
    "nothing-saved": ExitCode.DAMAGED,
    "refused": ExitCode.REFUSED,
    "failed": ExitCode.FAILED,
    "stopped": ExitCode.STOPPED,
}


def a_rescue(outcome: RescueOutcome = "partly-rescued", **more: Any) -> Rescue:
    known: dict[str, Any] = {"schema_version": 31, "bytes": 65536, "output": NEW, "seconds": 3.21}
    known |= {"condition": Condition.DAMAGED, "outcome": outcome, "exit_code": CODES[outcome]}
    return Rescue(REF, False, **(known | more))


def whole(name: str = "sessions", rows: int = 18) -> TableAccount:
    return TableAccount(name, saved={Source.IN_PLACE: rows})


def hurt() -> TableAccount:
    """A table to which everything happened."""
    return TableAccount(
        "messages",
        read_by="pages",
        saved={Source.IN_PLACE: 61_000, Source.LOOSE: 5, Source.TORN: 2, Source.FREE: 7},
        cut=4,
        left_out=1_001,
        lost=[
            LostRange(1204, 1310, 88, "a page holds nothing but zeros"),
            LostRange(None, 7, None, "it is not known where the table begins"),
            LostRange(70_000, None, 91, "a page holds rows of another place"),
            LostRange(2000, 2000, 92, "a page is torn"),
            LostRange(None, None, 93, "a page is gone"),
        ],
        more_lost=3,
        doubtful=[(5, 5), (9, 14), (1300, 1301)],
        cut_rows=[(40, 43)],
        ambiguous_pages=2,
    )


def told(result: Rescue, *more: Any, **look: Any) -> str:
    """The text as one line: where it wraps is another matter."""
    return " ".join(rescue_text(result, Look(**look), *more).split())


def test_the_whole_of_a_partial_rescue() -> None:
    result = a_rescue(
        tables=[whole(), hurt(), whole("state_meta", 0)],
        notes=["The log beside it is of another generation and was left aside."],
        sessions_given=3,
        chats_short=1,
        messages_missing=106,
        index_rebuilt=True,
        verified="SQLite finds no fault with the new file.",
    )
    text = rescue_text(result, Look(width=100, limit=9), ["doctor scan /srv/rescued.db"], ["cd /srv && mv a b"])
    assert text == (
        """\
/srv/hermes/state.db   damaged · schema 31 · 64.0 KB

table      saved  of these not sure  cut  lost ranges
--------  ------  -----------------  ---  -----------
sessions      18                  0    0            0
messages  61,014                  9    4            8

  Lost of messages, but for what was found elsewhere: ids 1,204 to 1,310, for a page holds nothing
    but zeros (page 88).
  Lost of messages, but for what was found elsewhere: ids up to 7, for it is not known where the
    table begins.
  Lost of messages, but for what was found elsewhere: ids from 70,000 on, for a page holds rows of
    another place (page 91).
  Lost of messages, but for what was found elsewhere: id 2,000, for a page is torn (page 92).
  Lost of messages, but for what was found elsewhere: all ids, for a page is gone (page 93).
  Lost of messages are 3 ranges more.
  7 rows of messages are from pages that had been given back: they may have been deleted, or changed
    later.
  2 rows of messages are from torn pages: a text may be mixed up with another.
  Look at these before you rely on them: messages, ids 5, 9 to 14, 1,300 to 1,301.
  4 rows of messages are cut: a value is missing, or ends too early (ids 40 to 43).
  5 rows of messages are from pages that the table leads to no more.
  Of 2 pages it cannot be told whether they are of messages.
  Of messages, 1,001 older or deleted copies of rows are left out.
  3 sessions could not be found: an empty one in its place holds the messages that are left.
  1 chat holds fewer messages than hermes had counted, 106 messages in all.
  The log beside it is of another generation and was left aside.
  The search index was made anew from the messages.
  Verified: SQLite finds no fault with the new file.

61,032 rows saved in /srv/rescued.db, 9 of them not sure, in 3.2 s. /srv/hermes/state.db is as it
was.
Next: doctor scan /srv/rescued.db

To put it in place, stop hermes first. Keep the damaged file, and move it with each -wal, -shm and
-journal of its name: one that stays would spoil the new store.
  cd /srv && mv a b
"""
    )


def test_one_of_each_and_what_is_from_the_log() -> None:
    account = TableAccount(
        "messages", saved={Source.LOG: 1, Source.FREE: 0}, left_out=1, ambiguous_pages=1, cut=1, more_lost=1
    )
    account.lost = [LostRange(3, 3, 9, "a page is gone")]
    text = told(a_rescue(tables=[account], sessions_given=1, chats_short=2, messages_missing=None, index_rebuilt=False))
    assert "messages 1 1 1 2 " in text
    assert "Lost of messages is 1 range more." in text
    assert "1 row of messages is from behind a broken part of the log: they may have been changed or deleted" in text
    assert "1 row of messages is cut: a value is missing, or ends too early." in text
    assert "Of 1 page it cannot be told" in text
    assert "Of messages, 1 older or deleted copy of a row is left out." in text
    assert "1 session could not be found:" in text
    assert "2 chats hold fewer messages than hermes had counted. 1 row saved in" in text
    for other in ("given back", "torn", "leads to no more", "search index", "Verified"):
        assert other not in text


def test_rows_of_other_tables_go_by_their_rowids() -> None:
    account = replace(hurt(), name="sessions", doubtful=[(5, 5)])
    text = told(a_rescue(tables=[account]), limit=9)
    assert "elsewhere: rowids 1,204 to 1,310, for" in text
    assert "elsewhere: rowid 2,000, for" in text
    assert "elsewhere: all rowids, for" in text
    assert "sessions, rowid 5." in text
    assert "8 ranges of rowids." in told(a_rescue(tables=[account]), limit=0)


def test_of_a_whole_one_there_is_little_to_say() -> None:
    result = a_rescue("rescued", tables=[whole()], condition=Condition.READABLE)
    assert told(result).endswith("All 18 rows saved in /srv/rescued.db, in 3.2 s. /srv/hermes/state.db is as it was.")
    assert "damaged" not in told(result)
    assert "ost of" not in told(result)
    assert told(result, quiet=True) == ""


def test_an_inspection_says_that_nothing_was_written() -> None:
    text = told(replace(a_rescue(tables=[hurt()], output=None), inspect_only=True))
    assert "61,014 rows can be saved, 9 of them not sure. Read in 3.2 s, nothing was written." in text
    assert " saved in " not in text


def test_quiet_says_what_is_wrong() -> None:
    text = told(a_rescue(tables=[hurt()], index_rebuilt=True, verified="so it is"), ["next"], ["mv"], quiet=True)
    assert "a page holds nothing but zeros (page 88)." in text
    for word in ("Next", "mv", "search index", "Verified", "as it was"):
        assert word not in text


@pytest.mark.parametrize(
    ("limit", "ranges", "more"), [(0, 0, "8 ranges of ids"), (2, 2, "6 ranges more"), (9, 5, "3 ranges more")]
)
def test_limit(limit: int, ranges: int, more: str) -> None:
    text = told(a_rescue(tables=[hurt()]), limit=limit)
    assert text.count(", for a page ") + text.count(", for it is ") == ranges
    assert more in text
    assert ("Look at these" in text) == (limit > 0)
    assert ("ids 5, 9 to 14" in text) == (limit > 1)
    assert ("1,300" in text) == (limit > 2)
    assert ("and 1 run more" in text) == (limit == 2)


@pytest.mark.parametrize("outcome", ["nothing-saved", "refused", "failed", "stopped"])
def test_what_stood_in_the_way_and_what_to_do(outcome: RescueOutcome) -> None:
    result = a_rescue(outcome, output=None, reason="there is no room: 3 MB are free", next_step="doctor scan it")
    text = told(result, [], quiet=True)
    word = {"nothing-saved": "Nothing can be saved"}.get(outcome, outcome.capitalize())
    assert text.endswith(f"{word}: there is no room: 3 MB are free. Next: doctor scan it")
    assert "saved in" not in text


def test_a_table_of_which_nothing_could_be_read() -> None:
    text = told(a_rescue(tables=[TableAccount("messages", failed="its schema is unknown")]))
    assert "messages 0 0 0 all" in text
    assert "Nothing of messages could be read: its schema is unknown." in text


@pytest.mark.parametrize("width", [60, 80, 100, 120])
def test_it_fits_the_width(width: int) -> None:
    result = a_rescue(tables=[hurt()], notes=["a word or two " * 30], verified="it was proved " * 20)
    assert max(map(len, rescue_text(result, Look(width=width)).splitlines())) <= width


def test_what_comes_from_the_store_is_shown_harmlessly() -> None:
    odd = "a\x1b[31m\u202e\ud800\nb"
    account = replace(hurt(), name=odd, failed=odd, lost=[LostRange(1, 2, 3, odd)])
    result = a_rescue(tables=[account], notes=[odd], verified=odd, reason=odd, next_step=odd)
    result.ref, result.output = REF._replace(path=Path(f"/srv/{odd}/state.db")), Path(f"/srv/{odd}.db")
    for outcome in get_args(RescueOutcome):
        text = rescue_text(replace(result, outcome=outcome), Look())
        assert all(line.isprintable() for line in text.splitlines())
        assert "\\x1b[31m\\u202e\\ud800\\x0a" in text
    document = valid(rescue_json(result, START), "rescue")
    assert document["tables"][0]["name"] == "a\x1b[31m\u202e\\ud800\nb"


def test_colour_only_helps() -> None:
    result = a_rescue(tables=[hurt()])
    colored = rescue_text(result, Look(ink=Ink(True)))
    assert "\x1b[1;31mdamaged" in colored
    assert re.sub(r"\x1b\[[\d;]*m", "", colored) == rescue_text(result, Look())


def test_the_document_has_all_of_it() -> None:
    result = a_rescue(tables=[whole(), hurt()], notes=["a note"], sessions_given=3, chats_short=1, messages_missing=106)
    document = valid(rescue_json(result, START), "rescue")
    assert document["started_at"] == "2026-11-30T21:00:00Z"
    assert document["store"] == {
        "path": "/srv/hermes/state.db",
        "home": "/srv/hermes",
        "profile": "default",
        "condition": "damaged",
        "schema_version": 31,
        "bytes": 65536,
    }
    assert document["tables"][0]["saved"] == {"in-place": 18, "loose": 0, "torn": 0, "free": 0, "log": 0}
    assert document["tables"][1] == {
        "name": "messages",
        "read_by": "pages",
        "saved": {"in-place": 61_000, "loose": 5, "torn": 2, "free": 7, "log": 0},
        "rows": 61_014,
        "cut": 4,
        "left_out": 1_001,
        "lost": [
            {"low": 1204, "high": 1310, "page": 88, "why": "a page holds nothing but zeros"},
            {"low": None, "high": 7, "page": None, "why": "it is not known where the table begins"},
            {"low": 70_000, "high": None, "page": 91, "why": "a page holds rows of another place"},
            {"low": 2000, "high": 2000, "page": 92, "why": "a page is torn"},
            {"low": None, "high": None, "page": 93, "why": "a page is gone"},
        ],
        "more_lost": 3,
        "doubtful": [[5, 5], [9, 14], [1300, 1301]],
        "cut_rows": [[40, 43]],
        "ambiguous_pages": 2,
        "failed": None,
    }
    rest = {name: document[name] for name in document if name not in ("tool", "started_at", "store", "tables")}
    assert rest == {
        "format": "hermes-doctor.rescue",
        "format_version": 1,
        "output": "/srv/rescued.db",
        "inspect_only": False,
        "sessions_given": 3,
        "chats_short": 1,
        "messages_missing": 106,
        "index_rebuilt": False,
        "verified": None,
        "notes": ["a note"],
        "reason": None,
        "next_step": None,
        "seconds": 3.21,
        "outcome": "partly-rescued",
        "exit_code": 1,
    }


@pytest.mark.parametrize("outcome", get_args(RescueOutcome))
def test_each_outcome_has_its_exit_code(outcome: RescueOutcome) -> None:
    result = a_rescue(outcome, condition=None, schema_version=None, bytes=None, output=None)
    document = valid(rescue_json(result, START), "rescue")
    assert (document["outcome"], document["exit_code"]) == (outcome, CODES[outcome])
    wrong = replace(result, exit_code=ExitCode.BUSY)
    with pytest.raises(ValidationError):
        valid(rescue_json(wrong, START), "rescue")
