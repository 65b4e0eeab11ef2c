"""`doctor runs` and `doctor runs forget`."""

from __future__ import annotations

import os
import re
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest
from click.testing import CliRunner, Result

from hermes_doctor.cli.app import app
from hermes_doctor.demo.home import make_demo_home
from hermes_doctor.host.locks import doctor_lock
from tests.cli.changing import DAY, journal_of, many_zombies
from tests.cli.support import listing, start, valid

#: Text that a changeset carries, so that it can be looked for in the journal's bytes.
PRIVATE = "a word that nobody else may read"


@pytest.fixture(autouse=True)
def _own_state_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("HERMES_HOME", str(tmp_path / "nobody"))


def run(*arguments: str | Path, env: dict[str, str | None] | None = None) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env=env)


def mend(store: Path, *more: str) -> str:
    [database] = valid(run("fix", store, "--apply", "--json", *more).stdout, "fix")["databases"]
    return str(database["run"])


def listed(*arguments: str | Path) -> list[Any]:
    result = run("runs", *arguments, "--json")
    assert result.exit_code == 0
    runs: list[Any] = valid(result.stdout, "runs")["runs"]
    return runs


def age(store: Path, name: str, seconds: float) -> None:
    """Makes a run that much older."""
    with closing(sqlite3.connect(store.parent / "doctor" / "doctor.db")) as journal, journal:
        journal.execute("UPDATE runs SET at = at - ? WHERE run = ?", (seconds, name))


def test_newest_first_with_what_changed(tmp_path: Path, damaged: Path) -> None:
    other = make_demo_home(tmp_path / "other")
    first = mend(damaged, "--check", "orphan-stubs", "--check", "lineage-gaps")
    second = mend(other)
    third = mend(damaged)
    assert [each["run"] for each in listed()] == [third, second, first]
    assert [each["mended"] for each in listed(damaged)] == [
        {"double-encoded": 4, "open-zombies": 8},
        {"lineage-gaps": 2, "orphan-stubs": 3},
    ]
    assert [each["applied"] for each in listed(damaged)] == [12, 5]
    assert [each["run"] for each in listed(other, damaged)] == [third, second, first]
    newest = listed()[0]
    assert (newest["path"], newest["outcome"], newest["state"]) == (str(damaged), "fixed", "done")
    assert newest["journal"] == str(damaged.parent / "doctor" / "doctor.db")
    assert Path(newest["backup"]).is_file()

    run("undo", second, "--apply")
    table = run("runs").stdout
    lines = [line.split()[0] for line in table.splitlines()[2:] if line and line[0].isdigit()]
    assert lines == [third, second, first]
    assert "4 double-encoded, 8 open-zombies" in " ".join(table.split())
    assert "(undone just now)" in " ".join(table.split())
    assert f"Next: doctor undo {third} (" in table
    assert all(len(line) <= 80 for line in table.splitlines() if not line.startswith("Next: "))


def test_times_are_relative(damaged: Path) -> None:
    age(damaged, mend(damaged), 3 * DAY)
    assert "3 days ago" in run("runs").stdout


def test_where_there_are_none(tmp_path: Path, damaged: Path) -> None:
    result = run("runs")
    assert result.exit_code == 0
    assert "No runs are known" in result.stdout
    assert listed() == []
    assert listed(damaged) == []
    assert run("runs", "--quiet").output == ""
    assert listing(tmp_path).keys() == {"damaged/config.yaml", "damaged/state.db"}


def test_a_run_that_changed_nothing_is_none(damaged: Path) -> None:
    first = mend(damaged)
    assert mend(damaged) == "None"
    assert [each["run"] for each in listed()] == [first]


def test_a_run_that_was_killed_is_unfinished(damaged: Path) -> None:
    name = mend(damaged)
    with closing(sqlite3.connect(damaged.parent / "doctor" / "doctor.db")) as journal, journal:
        journal.execute("UPDATE runs SET finished_at = NULL, outcome = NULL")
    [past] = listed()
    assert (past["run"], past["state"], past["finished_at"], past["outcome"]) == (name, "unfinished", None, None)
    assert "unfinished: doctor fix --apply carries on" in " ".join(run("runs").stdout.split())

    # Once that is done there is nothing left to carry on, and a run that came to nothing is none.
    with closing(sqlite3.connect(damaged.parent / "doctor" / "doctor.db")) as journal, journal:
        journal.execute("INSERT INTO runs (run, at, path, identity) VALUES ('empty', 1.0, ?, '{}')", (str(damaged),))
    many_zombies(damaged, 1)
    after = mend(damaged)
    newest, past = listed()
    assert (newest["run"], newest["outcome"]) == (after, "fixed")
    assert (past["run"], past["state"], past["outcome"]) == (name, "done", "stopped")
    shown = " ".join(run("runs").stdout.split())
    assert "(stopped part-way)" in shown
    assert "carries on" not in shown


def test_listing_changes_nothing(tmp_path: Path, damaged: Path) -> None:
    mend(damaged)
    before = listing(tmp_path)
    run("runs")
    run("runs", damaged, "--json")
    assert listing(tmp_path) == before


def test_the_truth_is_beside_the_store(tmp_path: Path, damaged: Path) -> None:
    name = mend(damaged)
    (tmp_path / "state" / "hermes-state-doctor" / "runs.db").write_bytes(b"broken" * 2000)
    assert listed() == []
    assert [each["run"] for each in listed(damaged)] == [name]
    # The host's own stores need no index.
    result = run("runs", "--json", env={"HERMES_HOME": str(damaged.parent)})
    assert [each["run"] for each in valid(result.stdout, "runs")["runs"]] == [name]
    # The next run makes a new index, in which the older runs of the store are, too.
    connection = apsw.Connection(str(damaged))
    connection.execute("UPDATE sessions SET ended_at = NULL, end_reason = NULL WHERE id = 'killed-in-march'")
    connection.close()
    second = mend(damaged)
    assert [each["run"] for each in listed()] == [second, name]


def test_a_store_that_is_gone_is_no_error(damaged: Path) -> None:
    mend(damaged)
    damaged.parent.rename(damaged.parent.with_name("moved"))
    assert listed() == []


def test_a_journal_that_cannot_be_read(tmp_path: Path, damaged: Path) -> None:
    other = make_demo_home(tmp_path / "other")
    mend(damaged)
    kept = mend(other)
    (damaged.parent / "doctor" / "doctor.db").write_bytes(b"these are notes" * 1000)
    result = run("runs", "--json")
    document = valid(result.stdout, "runs")
    assert result.exit_code == 3
    assert [each["run"] for each in document["runs"]] == [kept]
    assert [each["path"] for each in document["unreadable"]] == [str(damaged.parent / "doctor" / "doctor.db")]
    assert "cannot be read" in result.stderr


def test_a_target_called_forget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make_demo_home(tmp_path / "forget")
    name = mend(store)
    monkeypatch.chdir(tmp_path)
    assert [each["run"] for each in listed("./forget")] == [name]


def test_help_names_the_commands_as_they_are_typed() -> None:
    assert run("runs", "--help").output.splitlines()[0].endswith(" runs [OPTIONS] [TARGET]...")
    assert run("runs", "forget", "--help").output.splitlines()[0].endswith(" runs forget [OPTIONS] [RUN] [TARGET]...")


def test_options_from_the_environment(damaged: Path) -> None:
    mend(damaged)
    assert run("runs", env={"HERMES_DOCTOR_RUNS_JSON": "1"}).stdout.startswith("{")
    forced = run("runs", "forget", "--older-than", "1s", env={"HERMES_DOCTOR_RUNS_FORGET_YES": "1"})
    assert forced.exit_code == 2
    assert [each["forgotten"] for each in listed()] == [False]


# forget


def _private_journal(damaged: Path) -> bytes:
    return (damaged.parent / "doctor" / "doctor.db").read_bytes()


def _with_private_text(damaged: Path) -> None:
    connection = apsw.Connection(str(damaged))
    connection.execute("UPDATE sessions SET title = ? WHERE id = 'empty-2'", (PRIVATE,))
    connection.execute(
        "UPDATE messages SET reasoning_details = json_quote(json_array(json_object('text', ?)) || '')"
        " WHERE id = (SELECT min(id) FROM messages WHERE session_id = 'first-fork' AND reasoning_details IS NOT NULL)",
        (PRIVATE,),
    )
    connection.close()


def test_forgetting_drops_the_bytes_and_keeps_the_receipts(damaged: Path) -> None:
    _with_private_text(damaged)
    name = mend(damaged, "--backup", "never")
    assert PRIVATE.encode() in _private_journal(damaged)
    with journal_of(damaged) as journal:
        receipts = journal.execute("SELECT * FROM receipts").fetchall()
    result = run("runs", "forget", name, "--yes")
    assert (result.exit_code, result.stderr) == (0, "")
    assert re.fullmatch(
        r"1 run forgotten \([\d.]+ \wB\): it can no longer be undone\. What it did stays\.\n", result.stdout
    )
    assert PRIVATE.encode() not in _private_journal(damaged)
    with journal_of(damaged) as journal:
        assert journal.execute("SELECT * FROM receipts").fetchall() == receipts
    [past] = listed()
    assert (past["state"], past["applied"] > 0) == ("forgotten", True)
    assert "forgotten: it can no longer be undone" in " ".join(run("runs").stdout.split())
    assert run("runs", "forget", name, "--yes").stdout == "Nothing to forget.\n"


def test_forgetting_old_ones(damaged: Path) -> None:
    old = mend(damaged, "--check", "orphan-stubs")
    new = mend(damaged)
    age(damaged, old, 91 * DAY)
    assert run("runs", "forget", "--older-than", "92d", "--yes").stdout == "Nothing to forget.\n"
    assert run("runs", "forget", "--older-than", "90d", "--yes").exit_code == 0
    assert {each["run"]: each["forgotten"] for each in listed()} == {old: True, new: False}


def test_forgetting_in_named_stores_only(tmp_path: Path, damaged: Path) -> None:
    other = make_demo_home(tmp_path / "other")
    here, there = mend(damaged), mend(other)
    time.sleep(0.01)
    assert run("runs", "forget", "--older-than", "0s", damaged, "--yes").exit_code == 0
    assert {each["run"]: each["forgotten"] for each in listed()} == {here: True, there: False}
    assert run("runs", "forget", here, other, "--yes").exit_code == 2


def test_forgetting_needs_to_be_told_what(damaged: Path) -> None:
    name = mend(damaged)
    assert run("runs", "forget", "--yes").exit_code == 2
    result = run("runs", "forget", "nonsense", "--yes")
    assert result.exit_code == 2
    assert name in result.stderr


def test_forgetting_without_a_terminal_needs_yes(damaged: Path) -> None:
    name = mend(damaged)
    result = run("runs", "forget", name)
    assert result.exit_code == 2
    assert "Add --yes" in result.stderr
    assert [each["forgotten"] for each in listed()] == [False]


@pytest.mark.parametrize(("answer", "code", "forgotten"), [("y\n", 0, True), ("\n", 1, False)])
def test_forgetting_asks_on_a_terminal(tmp_path: Path, damaged: Path, answer: str, code: int, forgotten: bool) -> None:
    name = mend(damaged)
    leading, following = os.openpty()
    try:
        process = start(tmp_path, "runs", "forget", name, damaged, stdin=following, stderr=following)
        asked = b""
        while b"Go on?" not in asked:
            asked += os.read(leading, 1000)
        os.write(leading, answer.encode())
        process.communicate(timeout=60)
    finally:
        os.close(leading)
        os.close(following)
    assert process.returncode == code
    assert [each["forgotten"] for each in listed(damaged)] == [forgotten]


def test_forgetting_waits_for_another_doctor(damaged: Path) -> None:
    name = mend(damaged)
    with doctor_lock(damaged.parent / "doctor"):
        result = run("runs", "forget", name, "--yes")
    assert result.exit_code == 6
    assert f"process {os.getpid()}" in result.stderr
    assert [each["forgotten"] for each in listed()] == [False]


def test_old_runs_are_forgotten_by_the_next(damaged: Path) -> None:
    old = mend(damaged, "--check", "orphan-stubs")
    age(damaged, old, 91 * DAY)
    new = mend(damaged)
    assert {each["run"]: each["forgotten"] for each in listed()} == {old: True, new: False}


def test_a_store_behind_a_link_has_one_journal_beside_itself(tmp_path: Path, damaged: Path) -> None:
    linked = tmp_path / "linked" / "state.db"
    linked.parent.mkdir()
    linked.symlink_to(damaged)
    name = mend(linked)
    assert (damaged.parent / "doctor" / "doctor.db").exists()
    assert not (linked.parent / "doctor").exists()
    # By either name, and once only where both are known.
    assert [each["run"] for each in listed(linked)] == [name]
    assert [each["run"] for each in listed(damaged)] == [name]
    assert [each["run"] for each in listed()] == [name]
    assert run("undo", name, damaged, "--apply").exit_code == 0
    assert [each["undone"] for each in listed(linked)] == [True]
