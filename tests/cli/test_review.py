"""`doctor fix --review` as its user meets it: at a real terminal, a wide and a narrow one, and where there is none."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import apsw
import pytest

from tests.cli.changing import contents, value
from tests.cli.reviewing import APPLY, ASKED, PRIVATE, QUESTION, Person, doubtful, subject
from tests.cli.support import doctor, listing, valid

OPEN = "SELECT group_concat(id) FROM (SELECT id FROM sessions WHERE id LIKE 'old-%' AND ended_at IS NULL ORDER BY id)"
TITLE = "SELECT title FROM sessions WHERE id = 'namesake'"
USAGE = "SELECT count(*) FROM session_model_usage WHERE session_id = 'long-gone'"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return doubtful(tmp_path / "home")


def test_the_whole_way_there_and_back(tmp_path: Path, store: Path) -> None:
    before, files = contents(store), listing(store.parent)
    person = Person(tmp_path, store)
    first = person.waits_for(QUESTION)
    assert "5 findings to look at one by one." in first
    assert subject(first) == "namesake"
    assert re.search(r"title: text of 15 characters -> text of \d+ characters", first)
    usage = person.answers("n")
    assert subject(usage) == "the usage"
    assert "1 row of session_model_usage deleted" in usage
    chat = person.answers("y")
    assert subject(chat) == "old-1"
    assert "open-zombies: rows that nobody will ever end" in chat
    assert "Why you are asked: " in chat
    assert "Found: open for 9 days, a newer session has taken over its chat" in chat
    assert "end_reason: NULL -> startup_orphan_reap" in chat
    around = person.answers("r")
    assert "1 of 1 message:" in around
    assert re.search(r"\d+ · user · .* · 15 bytes · reasoning", around)
    assert "Fix safety" in person.answers("e")
    assert "not now; the next review asks again" in person.answers("what?")
    second = person.answers("yes")
    assert subject(second) == "old-2"
    assert "Why you are asked" not in second, "that of a check is said once"
    assert subject(person.answers("L")) == "old-3"
    summary = person.answers("n", APPLY)
    assert "Answered yes: 2, no: 2, waiting: 1." in summary
    assert "dangling-routes 1, open-zombies 1" in summary
    assert contents(store) == before
    assert listing(store.parent) == files, "nothing is written before the last question is answered"
    person.answers("y", "2 rows mended")
    code, last = person.reads_on()
    assert code == 1, "one waits for an answer"
    assert PRIVATE not in person.seen
    assert (value(store, OPEN), value(store, USAGE)) == ("old-2,old-3", 0)
    assert value(store, TITLE) == f"{PRIVATE} title"
    # Nothing but what was answered: none of the safe ones either, of which without the usage there is one more.
    plan = valid(doctor(tmp_path, "fix", store, "--unsafe", "--json").stdout, "fix")["databases"][0]
    assert plan["mendable"] == 16 + 1 + 3

    run = re.search(r"doctor undo (\S+)", last)
    assert run is not None
    assert doctor(tmp_path, "undo", run[1], "--apply").returncode == 0
    assert contents(store) == before
    # What was mended and came back is asked again, what was answered no is not.
    person = Person(tmp_path, store)
    assert person.goes_through(["n", "n", "n"], end=r"Nothing was changed\.") == ["the usage", "old-1", "old-2"]
    assert person.reads_on()[0] == 0
    person = Person(tmp_path, store)
    person.waits_for(r"nothing new to review \(5 answered before: --again shows them\)")
    assert person.reads_on()[0] == 0


def test_again_shows_what_was_answered(tmp_path: Path, store: Path) -> None:
    person = Person(tmp_path, store, "--check", "open-zombies")
    person.goes_through(["y", "n", "n"])
    person.answers("n", "Your answers are kept")
    assert person.reads_on()[0] == 1, "a yes was not carried out"
    person = Person(tmp_path, store, "--check", "open-zombies", "--again")
    first = person.waits_for(QUESTION)
    assert subject(first) == "old-1"
    assert "You answered yes just now." in first
    assert "You answered no just now." in person.answers("")
    # One changes their mind, one is to be asked again.
    assert subject(person.answers("y")) == "old-3"
    assert "Answered yes: 2 (1 of them in an earlier review), no: 0, waiting: 1." in person.answers("l", APPLY)
    person.answers("y", "2 rows mended")
    assert person.reads_on()[0] == 1
    assert value(store, OPEN) == "old-3"
    assert Person(tmp_path, store, "--check", "open-zombies").goes_through(["q"], end="waiting: 1") == ["old-3"]


def test_all_of_this_check_on_a_narrow_terminal(tmp_path: Path, store: Path) -> None:
    person = Person(tmp_path, store, "--backup", "never", columns=34)
    assert person.goes_through(["l", "n", "a"]) == ASKED[:3]
    assert "open-zombies 3" in person.seen
    # Paths and ids are never broken: they are there to be copied.
    words = (line for line in person.seen.replace("\r", "").splitlines() if len(line.split()) > 1)
    assert [line for line in words if len(line) > 34] == []
    person.answers("y", "3 rows mended")
    person.reads_on()
    assert value(store, OPEN) is None
    assert value(store, USAGE) == 1


def test_ctrl_c_leaves_what_was_answered(tmp_path: Path, store: Path) -> None:
    before, files = contents(store), listing(store.parent)
    person = Person(tmp_path, store)
    person.waits_for(QUESTION)
    person.answers("n")
    person.presses("c", "what was answered is kept")
    assert person.reads_on()[0] == 7
    person = Person(tmp_path, store)
    assert person.goes_through(["y", "a"]) == ["the usage", "old-1"]
    person.presses("c", "Nothing was changed")
    assert person.reads_on()[0] == 7
    # All is answered: what is left is to do it.
    person = Person(tmp_path, store)
    last = person.waits_for(APPLY)
    assert "Answered yes: 4 (4 of them in an earlier review), no: 1, waiting: 0." in last
    person.presses("d", "Nothing was changed")
    assert person.reads_on()[0] == 1
    assert (contents(store), listing(store.parent)) == (before, files)
    assert not list((tmp_path / "tmp").iterdir()), "the private copies are gone"


def test_the_end_of_the_input_quits(tmp_path: Path, store: Path) -> None:
    person = Person(tmp_path, store.parent)
    person.waits_for(QUESTION)
    person.answers("n")
    person.presses("d", r"Answered yes: 0, no: 1, waiting: 4\. Nothing was changed\.")
    assert person.reads_on()[0] == 1


def test_a_window_that_is_closed_leaves_what_was_answered(tmp_path: Path, store: Path) -> None:
    person = Person(tmp_path, store)
    person.waits_for(QUESTION)
    person.answers("n")
    assert len(list((tmp_path / "tmp").iterdir())) == 1
    person.closes_the_window()
    assert not list((tmp_path / "tmp").iterdir()), "the private copies are gone"
    person = Person(tmp_path, store)
    assert "4 findings to look at one by one (1 answered before" in person.waits_for(QUESTION)
    person.presses("d", "waiting: 4")
    person.reads_on()


def test_what_is_no_text_is_no_answer(tmp_path: Path, store: Path) -> None:
    person = Person(tmp_path, store, "--check", "dangling-routes", PYTHONIOENCODING="utf-8:strict")
    person.waits_for(QUESTION)
    assert "yes, mend it" in person.types(b"\xff\xfey\n", QUESTION)
    person.answers("n", "no: 1")
    assert person.reads_on()[0] == 0


def test_what_is_typed_ahead_does_not_answer_the_last_question(tmp_path: Path, store: Path) -> None:
    person = Person(tmp_path, store, "--check", "dangling-routes")
    person.waits_for(QUESTION)
    person.answers("y\ny", APPLY)
    person.answers("n", "Nothing was changed")
    assert person.reads_on()[0] == 1
    assert value(store, USAGE) == 1


def test_a_store_that_is_open_is_reviewed_but_not_changed(tmp_path: Path, store: Path) -> None:
    holder = apsw.Connection(str(store))
    holder.execute("SELECT count(*) FROM sessions").fetchall()
    person = Person(tmp_path, store, "--check", "dangling-routes")
    assert "Nothing of it could be mended now" in person.waits_for(QUESTION)
    person.answers("y", APPLY)
    person.answers("y", "Refused")
    assert person.reads_on()[0] == 5
    holder.close()
    person = Person(tmp_path, store, "--check", "dangling-routes")
    person.waits_for(APPLY)
    person.answers("y", "1 row mended")
    assert person.reads_on()[0] == 0
    assert value(store, USAGE) == 0


def test_each_store_by_itself(tmp_path: Path, store: Path) -> None:
    other = doubtful(tmp_path / "other")
    gone = tmp_path / "gone" / "state.db"
    person = Person(tmp_path, store, other, gone, "--check", "dangling-routes", "--check", "same-titles")
    first = person.waits_for(QUESTION)
    assert "~/home/state.db" in first
    person.answers("y")
    second = person.answers("n")
    assert "~/other/state.db" in second
    person.answers("n")
    summary = person.answers("y", APPLY)
    assert "~/gone/state.db" in summary
    assert "~/home/state.db: same-titles 1" in summary
    assert "~/other/state.db: dangling-routes 1" in summary
    person.answers("y", "2 rows mended")
    assert person.reads_on()[0] == 4, "one of the stores is not there"
    assert (value(store, USAGE), value(other, USAGE)) == (1, 0)
    assert value(store, TITLE) != value(other, TITLE) == f"{PRIVATE} title"


def test_quitting_leaves_the_stores_that_follow_alone(tmp_path: Path, store: Path) -> None:
    other = doubtful(tmp_path / "other")
    person = Person(tmp_path, store, other)
    person.goes_through(["y", "q"])
    assert "Not looked at: ~/other/state.db" in person.seen
    person.answers("y", "1 row mended")
    assert person.reads_on()[0] == 1


def test_without_a_terminal_it_says_so_in_one_line(tmp_path: Path, store: Path) -> None:
    told = doctor(tmp_path, "fix", "--review", store, stdin=subprocess.DEVNULL)
    assert (told.returncode, told.stdout) == (2, "")
    assert re.fullmatch(r"doctor: --review asks on a terminal, and there is none here\. .*\n", told.stderr)
    # Nor where somebody could answer, but would not see what is asked.
    master, terminal = os.openpty()
    told = doctor(tmp_path, "fix", "--review", store, stdin=terminal)
    os.close(terminal)
    os.close(master)
    assert (told.returncode, told.stdout) == (2, "")
    assert len(told.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--review", "--yes"], "--yes says to ask nothing"),
        (["--review", "--json"], "leave out --json"),
        (["--review", "--output", "x"], "leave out --json, --format and --output"),
        (["--again"], "--again goes with --review"),
    ],
)
def test_what_contradicts_it_is_a_usage_error(tmp_path: Path, arguments: list[str], said: str) -> None:
    told = doctor(tmp_path, "fix", *arguments)
    assert told.returncode == 2
    assert said in told.stderr


def test_it_is_only_ever_typed(tmp_path: Path, store: Path) -> None:
    told = doctor(tmp_path, "fix", store, extra={"HERMES_DOCTOR_FIX_REVIEW": "1", "HERMES_DOCTOR_FIX_AGAIN": "1"})
    assert told.returncode == 1
    assert "16 rows would be mended" in told.stdout
